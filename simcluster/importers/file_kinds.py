"""Detection of the training framework that a file is written for, by the patterns in ``file_kinds.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.yaml_documents import read_document

_TABLES: Mapping[str, Any] = read_document(Path(__file__).with_suffix(".yaml")).data
_SETTINGS = (".json", ".yaml", ".yml", ".toml")
_LOGS = (".log", ".out", ".err")
_MAX_SEARCHED = 200_000  # characters searched


def check_framework(text: str, source: str, kind: str) -> None:
    """Raise InputError if a file is for another framework than ``kind``, the one named in the import command."""
    text = text[:_MAX_SEARCHED]
    settings = source.endswith(_SETTINGS) or text.lstrip().startswith("{")
    tables = ("frameworks", "settings") if settings else ("frameworks",)
    for name, marks in (pair for table in tables for pair in _TABLES[table].items()):
        if _matches_all_patterns(text, marks):
            raise InputError(
                f"{source}: this is a file of {name}, which cannot be imported; create a scenario (simcluster new), or "
                "import the config.json of its model (simcluster import hugging-face)"
            )
    known = settings or source.endswith(_LOGS)
    if not known or any(_matches_all_patterns(text, marks) for marks in _TABLES["imports"].get(kind, {}).values()):
        return
    for other, kinds in _TABLES["imports"].items():
        for what, marks in kinds.items():
            if _matches_all_patterns(text, marks):
                raise InputError(f"{source}: this is {what}: run simcluster import {other} {source}")
    for what, (marks, remedy) in _TABLES["others"].items():
        if _matches_all_patterns(text, marks):
            raise InputError(f"{source}: this is {what}: {remedy}")


def _matches_all_patterns(text: str, patterns: str) -> bool:
    return all(re.search(each, text, re.MULTILINE) for each in patterns.split("AND"))
