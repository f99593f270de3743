"""What stands in the site's menu, and which files of the root are pages."""

from __future__ import annotations

from typing import Any

ROOT_FILES = {  # a file of the repository: the page that it is
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "examples/README.md": "examples.md",
}
MENU: dict[str, Any] = {  # None: the pages that are generated under this title
    "simcluster": "index.md",
    "Learn": {
        "Tutorial": "tutorial.md",
        "Cookbook": "cookbook.md",
        "All that it does": "tour.md",
        "Weeks, not a step": "weeks.md",
        "On a Slurm cluster": "slurm.md",
        "Examples": "examples.md",
        "Gallery": "gallery.md",
    },
    "Notebooks": None,
    "Accuracy": "accuracy.md",
    "Reference": {
        "Scenario keys": None, "Commands": None, "What ships": None, "Result": "CONTRACT.md", "Words": "GLOSSARY.md",
    },
    "API": None,
    "How it works": {
        "What is modelled": "modelled.md",
        "Formulas and sources": "MODELLING.md",
        "Architecture": "ARCHITECTURE.md",
        "Accelerators": "ACCELERATORS.md",
        "What it costs": "speed.md",
    },
    "Develop": {"Contributing": "CONTRIBUTING.md", "To add": "extending.md", "Changelog": "CHANGELOG.md"},
}  # fmt: skip
