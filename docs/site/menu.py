"""The site's menu, by what a reader wants to do, and the pages that are files of the repository's root."""

from __future__ import annotations

from typing import Any

ROOT_FILES = {  # a file of the repository: its page in the site
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "examples/README.md": "examples.md",
}
MENU: dict[str, Any] = {  # None: the pages that are generated under this title
    "Start": {
        "simcluster": "index.md",
        "Tutorial": "tutorial.md",
        "Example files": "examples.md",
        "Gallery": "gallery.md",
    },
    "Answer a question": {
        "Command tour": "howto.md",
        "Cookbook": "cookbook.md",
        "Slurm clusters": "slurm.md",
        "Speed": "speed.md",
    },
    "Notebooks": None,
    "Trust": {
        "Accuracy": "accuracy.md",
        "Accuracy gaps": "accuracy_gaps.md",
        "What is modelled": "modelled.md",
        "Formulas and sources": "MODELLING.md",
    },
    "Look up": {
        "Scenario keys": None,
        "Commands": None,
        "Built-in": None,
        "Keys of results": "CONTRACT.md",
        "Glossary": "GLOSSARY.md",
        "Changelog": "CHANGELOG.md",
    },
    "Python": None,
    "Develop": {
        "Contributing": "CONTRIBUTING.md",
        "Architecture": "ARCHITECTURE.md",
        "Extending": "extending.md",
        "Fast paths": "ACCELERATORS.md",
        "Benchmarks and floors": "floors.md",
    },
}
