"""Short forms in a scenario document, and what changes of a document do to its title and its measurement.

Short forms are other tools' names of the axes, and names instead of whole sections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simcluster.documents.trusted_text import is_function_reference
from simcluster.documents.yaml_documents import Document
from simcluster.scenario.sections import LONG_NAMES
from simcluster.schedules import schedules_with


def shorten_axis_override(pair: tuple[str, Any]) -> tuple[str, Any]:
    """Return an override with the short name of a parallelism axis, as in parallel.tp."""
    section, _, key = pair[0].partition(".")
    return (f"parallel.{LONG_NAMES[key]}", pair[1]) if section == "parallel" and key in LONG_NAMES else pair


def reset_unused_chunks(overrides: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the overrides, plus ``chunks`` = 1 if they select a schedule without chunks but do not set ``chunks``.

    So that ``--vary pipeline.schedule=gpipe,1f1b,interleaved`` works on a scenario that is interleaved.
    """
    given = dict(overrides)
    schedule = given.get("pipeline.schedule")
    name = schedule.get("name") if isinstance(schedule, Mapping) else schedule
    takes = name in schedules_with("takes_chunks") or is_function_reference(name)
    if schedule is None or takes or "pipeline.chunks" in given or "pipeline" in given:
        return overrides
    return [*overrides, ("pipeline.chunks", 1)]


def expand_section_names(document: Document) -> Document:
    """Return the document with a cluster or model given only by name expanded to a section."""
    alone = {"cluster": "topology", "model": "preset"}
    named = {
        section: {key: document.data[section]}
        for section, key in alone.items()
        if isinstance(document.data.get(section), str)
    }
    return replace(document, data={**document.data, **named}) if named else document


def shorten_axis_names(document: Document) -> Document:
    """Return the document with short names of parallelism axes; raise InputError if an axis occurs twice."""
    section = document.data.get("parallel")
    if not isinstance(section, dict) or not any(key in LONG_NAMES for key in section):
        return document
    short: dict[str, Any] = {}
    marks = dict(document.marks)
    for key, value in section.items():
        name = LONG_NAMES.get(str(key), str(key))
        if name in short:
            raise document.error_at(("parallel", key), f"is an alias of {name}, which is also set; keep one of the two")
        short[name] = value
        marks["parallel", name] = document.location_of(("parallel", key))
    return replace(document, data={**document.data, "parallel": short}, marks=marks)


_MOST = 3  # changes that a title names


def title_with_changes(name: str, document: Mapping[str, Any], changes: Sequence[tuple[str, Any]]) -> str:
    """Return a scenario's name followed by the changes, as in "tiny model (with parallel.tp 4)".

    A change that gives the name, or the value that the document already has, is not named.
    """
    last = dict(changes)
    changed = [(path, value) for path, value in last.items() if value != value_at_path(document, path)]
    named = [_describe_change(*change) for change in sorted(changed, key=lambda change: change[1] is None)]
    if not named or "name" in last:
        return name
    more = [f"{len(named) - _MOST} more"] if len(named) > _MOST else []
    return f"{name} (with {', '.join([*named[:_MOST], *more])})"


def _describe_change(path: str, value: object) -> str:
    key = path.removesuffix("+")
    if isinstance(value, Mapping | list | tuple):
        return key
    return f"{key} {'default' if value is None else value}"


def value_at_path(document: Mapping[str, Any], path: str, default: object = None) -> object:
    """Return the value at a dotted path of a document; ``default`` if the document has no such path."""
    value: object = document
    for key in path.split("."):
        value = value.get(key, default) if isinstance(value, Mapping) else default
    return value


NOT_OF_THE_STEP = ("name", "measured", "run", "memory", "engine", "steps", "seed", "replicas")
"""Sections and fields that leave the simulated step unchanged: names, measurements, and how it is simulated."""
_ABSENT = object()


def record_measured_changes(
    document: Mapping[str, Any], given: Mapping[str, Any], overrides: Sequence[tuple[str, Any]]
) -> dict[str, Any]:
    """List changes of the step in ``measured.changed``, so that the measurement is no longer compared.

    ``given`` is the document without the overrides. An override with the existing value changes nothing; one of
    ``measured`` itself applies to the changed scenario.
    """
    measured = document.get("measured")
    if not isinstance(measured, Mapping) or any(_section_of(path) == "measured" for path, _ in overrides):
        return dict(document)
    changed = [
        path
        for path, value in overrides
        if _section_of(path) not in NOT_OF_THE_STEP and str(value_at_path(given, path, _ABSENT)) != str(value)
    ]
    if not changed:
        return dict(document)
    before = [path for path in measured.get("changed") or () if path not in changed]
    return {**document, "measured": {**measured, "changed": [*before, *dict.fromkeys(changed)]}}


def _section_of(path: str) -> str:
    return path.partition(".")[0].rstrip("+")
