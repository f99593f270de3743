"""Every key of torchtitan's job config that is known here, by what becomes of it: ``torchtitan_keys.yaml`` beside this
file."""

from __future__ import annotations

from pathlib import Path

from simcluster.documents.reading import read_document
from simcluster.importers.flat_settings import flattened

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
NO_EFFECT_SECTIONS, NO_EFFECT, MAY_MATTER, FLOAT8 = (
    frozenset(_TABLES[name].split()) for name in ("no_effect_sections", "no_effect", "may_matter", "float8")
)
DEFAULTS = flattened(_TABLES["defaults"], "torchtitan_keys.yaml")
RENAMED: dict[str, str] = _TABLES["renamed"]
MODELS: dict[str, str] = _TABLES["models"]
ROTATIONS: dict[str, str] = _TABLES["rotations"]
SCHEDULES: dict[str, str] = _TABLES["schedules"]
