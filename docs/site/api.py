"""The API reference: one page per package with public names, its text from the docstrings."""

from __future__ import annotations

import importlib
from pathlib import Path

import simcluster


def api_pages(root: Path) -> dict[str, str]:
    """Return one page per package, in the order of the public names' modules."""
    del root
    below: dict[str, list[str]] = {}
    for name in simcluster.__all__:
        below.setdefault(simcluster._HOME[name].split(".")[1], []).append(name)
    first = ["scenario", "step", "results"]
    order = [*first, *sorted(set(below) - {*first})]
    pages = {f"api/{package}.md": _page(package, sorted(below[package])) for package in order}
    return {"api/index.md": _index(order, below), **pages}


def _said(package: str) -> str:
    return (importlib.import_module(f"simcluster.{package}").__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")


def _index(order: list[str], below: dict[str, list[str]]) -> str:
    rows = [
        f"| [{package}]({package}.md) | {_said(package)} | " + ", ".join(f"`{name}`" for name in below[package]) + " |"
        for package in order
    ]
    text = ["# In Python", "", str(simcluster.__doc__).strip(), "", "| page | what | `simcluster.` |", "|---|---|---|"]
    return "\n".join([*text, *rows]) + "\n"


def _page(package: str, names: list[str]) -> str:
    parts = [f"# {package}\n\n{_said(package)}\n"]
    for name in names:
        home = simcluster._HOME[name]
        thing = home if name == "plots" else f"{home}.{name}"
        members = "true" if name in ("plots", "Result", "Scenario", "Costs") else "false"
        parts.append(f"::: {thing}\n    options:\n      heading: simcluster.{name}\n      members: {members}\n")
    return "\n".join(parts)
