"""Every option of Megatron-LM that is known here, by what becomes of it: ``megatron_options.yaml`` beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simcluster.documents.reading import read_document


def _by_name(groups: Mapping[str, str]) -> dict[str, str]:
    """What is said of a group of names, by each name of it."""
    return {name: said for said, names in groups.items() for name in names.split()}


_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
MAPPED = _by_name(_TABLES["mapped"])
NO_EFFECT = frozenset(_TABLES["no_effect"].split())
NO_EFFECT_PREFIXES = tuple(_TABLES["no_effect_prefixes"].split())
NOT_MODELLED = _by_name(_TABLES["not_modelled"])
REFUSED = _by_name(_TABLES["refused"])
REFUSED_PREFIXES = _by_name(_TABLES["refused_prefixes"])
SWITCHED_OFF: dict[str, str] = _TABLES["switched_off"]
VOCABULARIES: dict[str, int] = _TABLES["vocabularies"]
