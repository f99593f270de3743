"""The class Scenario: cluster, model, parallelism, schedule, batch and faults as one immutable object.

``load`` reads a file; the result is complete (defaults, presets and the cluster's file filled in) and self-contained:
``Scenario.document()`` is a scenario file. Knows every spec and registry, so that bad names are rejected here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, model_validator

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.documents import yaml_documents
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.builtin_documents import builtin_folder, builtin_names, reject_path_of_builtin
from simcluster.documents.catalogue import load_presets
from simcluster.documents.catalogue.devices import device_names
from simcluster.documents.diagnostics import KeyPath, RuleError, did_you_mean, reject_argument
from simcluster.documents.overrides import Changes, apply_overrides, list_overrides
from simcluster.documents.trusted_text import is_python_allowed, mark_trusted_text
from simcluster.documents.yaml_documents import STDIN, Document, convert_pydantic_errors, parse_document, read_document
from simcluster.faults import FaultSpec
from simcluster.scenario import link_changes
from simcluster.scenario.derived_defaults import fill_derived_fields, hand_over_trainable
from simcluster.scenario.document_resolution import resolve_scenario
from simcluster.scenario.field_effects import effective_document, reject_idle_fields
from simcluster.scenario.key_paths import suggest_key_location
from simcluster.scenario.rules import find_broken_rules
from simcluster.scenario.scenario_fields import ScenarioFields
from simcluster.scenario.schedule_rules import check_finished_schedule
from simcluster.scenario.short_forms import expand_section_names, title_with_changes
from simcluster.schedules import Schedule, ScheduleFunction, make_schedule
from simcluster.schedules.specs import RowsSpec

_ORIGIN = "_origin"  # among a scenario's attributes, beside its fields


@dataclass(frozen=True, slots=True)
class ScenarioOrigin:
    """Source of a scenario: the document as the user wrote it, and the changes to it."""

    document: Document
    changes: tuple[tuple[str, Any], ...] = ()

    def with_changes(self, more: Changes) -> Scenario:
        """Return the scenario of this source with further changes, applied after all earlier changes."""
        origin = ScenarioOrigin(self.document, (*self.changes, *list_overrides(more)))
        resolved = resolve_scenario(origin.document, origin.changes)
        return _attach_origin(yaml_documents.validate_document(Scenario, resolved), origin, resolved)

    @property
    def written_document(self) -> Document:
        """The user's document with all changes applied, but without the contents of the files that it names."""
        return apply_overrides(expand_section_names(self.document), self.changes)

    def without_values(self, paths: Iterable[KeyPath]) -> Scenario:
        """Return the scenario after removing the values at these key paths."""
        document = self.written_document
        for *parents, key in paths:
            section: Any = document.data  # a copy, which may be changed
            for parent in parents:
                section = section[parent]
            del section[key]
        return ScenarioOrigin(document).with_changes({})


class Scenario(Displayable, ScenarioFields):
    """One training step to simulate; the constructor takes the top-level keys of a scenario file as keywords.

    ``gpus`` is the number of GPUs of the job (default: all of the cluster). ``engine`` chooses how to simulate:
    ``simpy`` (one rank of each class of equal ranks), ``compiled`` (the same by the compiled engine), the one of both
    that suits the size (``auto``), or the slow ``reference``, every rank by SimPy; times are equal to the bit. Raises
    InputError with every broken rule.
    """

    @staticmethod
    def elsewhere(key: str) -> str:
        """Return the ending of an error message that names the section to which a misplaced key belongs."""
        return suggest_key_location(key)

    def __init__(self, **sections: Any) -> None:
        origin = ScenarioOrigin(Document(data=_to_plain(sections), source="Scenario(...)", folder=Path()))
        resolved = resolve_scenario(origin.document)
        with convert_pydantic_errors(resolved, Scenario):
            super().__init__(**resolved.data)
        _attach_origin(self, origin, resolved)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # read documents are checked without it

    @model_validator(mode="before")
    @classmethod
    def _check_one_software(cls, document: object) -> object:
        if isinstance(document, Mapping) and "software" in document and "framework" in document:
            raise RuleError([(("framework",), "is an alias of software, which is also set; keep one of the two")])
        return document

    @model_validator(mode="after")
    def _fill_and_check(self) -> Self:
        """Fill in defaults that depend on other fields, then check every rule.

        Raises RuleError with all violated rules. The cluster's spec keeps the built cluster, so that copies share it.
        """
        fill_derived_fields(self)
        if broken := find_broken_rules(self):
            raise RuleError(broken)
        return self

    def with_(self, changes: Changes = (), /, **more: Any) -> Scenario:
        """Return a changed and validated copy, as in ``scenario.with_({"parallel.tp": 4})``.

        ``with_(parallel__tp=4)`` is the same. The original document is read again with these changes: values that it
        omits (dp, the number of GPUs) are derived anew. Of a scenario that was changed otherwise, its ``document`` is
        changed. InputError with the lines of the file, where it was read from one.
        """
        return self.origin.with_changes(mark_trusted_text([*list_overrides(changes), *keywords_to_changes(more)]))

    @property
    def origin(self) -> ScenarioOrigin:
        """Source of the scenario: the document and changes that produced it (default: the scenario's own document)."""
        found: ScenarioOrigin | None = vars(self).get(_ORIGIN)
        return found or ScenarioOrigin(Document(data=self.document(), source=self.name, folder=Path()))

    @property
    def title(self) -> str:
        """Name of the scenario, followed by the changes made to its document."""
        return title_with_changes(self.name, self.origin.document.data, self.origin.changes)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with changed values, without validation (overrides pydantic's method)."""
        copied = super().model_copy(update=update, deep=deep)
        if update:
            vars(copied).pop(_ORIGIN, None)
            if "training" in update:
                hand_over_trainable(copied)
        return copied

    def with_schedule(self, what: Schedule | ScheduleFunction) -> Self:
        """Return the scenario with a custom pipeline schedule: a Schedule, or a function that creates a Schedule.

        Raises InputError for an invalid schedule (the place is marked) or for other stages and microbatches.
        """
        schedule = make_schedule(what, self.parallel.pp, self.microbatches, self.pipeline.chunks)
        pipeline = self.pipeline.model_copy(update={"schedule": RowsSpec.from_schedule(schedule), "chunks": 1})
        measured = self.measured and self.measured.model_copy(update={"changed": ("pipeline.schedule",)})
        changed = self.model_copy(update={"pipeline": pipeline, "measured": measured})
        if broken := list(check_finished_schedule(changed)):
            raise RuleError(broken)
        return changed

    def without(self, *indices: int) -> Self:
        """Return the scenario without the faults at these indices; the random draws of other faults stay the same.

        Of uneven data only the unevenness is removed: the same documents, spread evenly over the microbatches.
        """
        beyond = [number for number in indices if number not in range(len(self.faults))]
        if beyond:
            have = f"faults 0 to {len(self.faults) - 1}: name some of those" if self.faults else "none: add one first"
            raise InputError(f"without: there is no fault {beyond[0]!r}; the scenario has {have}")
        kept = (each.replacement_if_removed() if place in indices else each for place, each in enumerate(self.faults))
        return self.model_copy(update={"faults": tuple(fault for fault in kept if fault is not None)})

    def without_faults(self) -> Self:
        """Return the scenario with no faults at all."""
        return self.without(*range(len(self.faults)))

    @property
    def straggler_faults(self) -> tuple[int, ...]:
        """Indices of the faults that can make some ranks slower than others (not faults that delay all equally)."""
        return tuple(place for place, fault in enumerate(self.faults) if not fault.delays_all_equally)

    @property
    def document_faults(self) -> tuple[FaultSpec, ...]:
        """Faults that the document lists, without the fault derived from the ``data`` section."""
        mine = self.data and self.data.attention_lengths
        return tuple(fault for fault in self.faults if mine is None or fault != mine)

    @property
    def tokens_per_step(self) -> int:
        """Number of tokens per step, summed over all replicas."""
        return self.training.global_batch * self.model.sequence_length

    @property
    def measured_step_time(self) -> float | None:
        """Measured step time (s) of this scenario; None if unmeasured, or if the step has changed since."""
        return None if (found := self.measured) is None or found.changed else found.step_seconds(self.tokens_per_step)

    def document(self) -> dict[str, Any]:
        """Return the scenario as a self-contained, JSON-compatible document from which it can be recreated."""
        return effective_document(self.model_copy(update={"faults": self.document_faults}))


Written = str | Path | Mapping[str, Any]
"""A scenario as a built-in name, a path, or a document."""


@check_arguments
def load(path: Written, overrides: Changes = (), *, allow_python: bool = False) -> Scenario:
    """Load a scenario from a file, a built-in name or a document, then apply overrides (dotted paths).

    ``-`` is standard input. A schedule FILE.py:FUNCTION runs where the overrides name it, and one that the document
    names only with ``allow_python``. Raises InputError that names the file, line, key, value, rule and a fix.
    """
    if not isinstance(path, str | Path | Mapping):
        reject_argument(path, "load", "a built-in name, a path or a dict (simcluster.scenario takes a Scenario, too)")
    return _read_scenario(path, mark_trusted_text(list_overrides(overrides)), python=allow_python)


@check_arguments
def load_text(text: str, overrides: Changes = (), *, folder: str | Path = ".", allow_python: bool = False) -> Scenario:
    """Load a scenario from the text of a scenario file; relative paths start at ``folder``."""
    document = parse_document(text, source="<text>", folder=folder)
    if allow_python:
        document = replace(document, data=mark_trusted_text(document.data))
    return ScenarioOrigin(document).with_changes(mark_trusted_text(list_overrides(overrides)))


def _read_scenario(what: Written, changes: Changes, *, python: bool, folder: str = ".") -> Scenario:
    if isinstance(what, Mapping):
        if what and all("." in str(path) for path in what):
            raise InputError(
                f"{next(iter(what))!r} is a change of a scenario, but a scenario is needed: write "
                f"simcluster.scenario('NAME', {{{next(iter(what))!r}: ...}})"
            )
        document = Document(data=_to_plain(what), source="<document>", folder=Path(folder))
    else:
        document = read_document(find_scenario_file(what))
    if python:
        document = replace(document, data=mark_trusted_text(document.data))
        changes = mark_trusted_text(list_overrides(changes))
    return ScenarioOrigin(document).with_changes(changes)


def from_document(data: Mapping[str, Any], overrides: Changes = (), *, folder: str | Path = ".") -> Scenario:
    """Create a scenario from nested dicts and lists (a file's contents); the inverse of ``Scenario.document()``."""
    return ScenarioOrigin(Document(_to_plain(data), source="<document>", folder=Path(folder))).with_changes(overrides)


def keywords_to_changes(keywords: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Convert keyword arguments to scenario changes; the keyword ``parallel__tp=4`` changes parallel.tp."""
    return [(name.replace("__", "."), value) for name, value in keywords.items()]


def _to_plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        dumped = value.model_dump(mode="json", exclude_none=True)
        return {key: inner for key, inner in dumped.items() if key != "dp" or inner}  # 0: left out
    if isinstance(value, Mapping):
        return {key: _to_plain(inner) for key, inner in value.items()}
    return [_to_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _attach_origin(scenario: Scenario, origin: ScenarioOrigin, resolved: Document) -> Scenario:
    """Record the scenario's source in the scenario; raise InputError if a changed link latency has no effect."""
    with convert_pydantic_errors(resolved, Scenario):
        reject_idle_fields(scenario, origin.changes)
    latencies = link_changes.LATENCIES
    takes = link_changes.uses_link_latencies(scenario)
    if not takes and (changed := link_changes.find_changed_link_settings(origin.written_document, latencies)):
        known = all(path[1] != "topology" for path in changed)
        if not known or (origin.without_values(changed).cluster.built.latency != scenario.cluster.built.latency).any():
            raise link_changes.make_latency_error(scenario, origin.written_document, changed[0])
    vars(scenario)[_ORIGIN] = origin
    return scenario


def find_scenario_file(path: str | Path) -> Path:
    """Return the file of a built-in scenario; return any other path, or ``-`` (standard input), unchanged."""
    path = Path(path)
    if path.exists() or str(path) == STDIN:
        return path
    names = builtin_names("scenarios")
    if path.suffix or len(path.parts) != 1:
        reject_path_of_builtin("scenarios", path)
        return path
    if path.name in names:
        return builtin_folder("scenarios") / f"{path.name}.yaml"
    if told := _describe_non_scenario_name(path.name):
        raise InputError(f"{path}: {told}")
    hint = did_you_mean(path.name, names)
    raise InputError(f"{path}: no such file, and no built-in scenario{hint}; built-in: {', '.join(names) or 'none'}")


def _describe_non_scenario_name(name: str) -> str:
    if name in load_presets("models.yaml"):
        return f"is a model, not a scenario; make one: simcluster new --model {name} --cluster dgx_h100 --gpus 64"
    if name in device_names():
        return f"is a device, not a scenario; use it in one, as in simcluster run tiny_3d --cluster.device {name}"
    if name in builtin_names("topologies"):
        return f"is a topology, not a scenario; see simcluster topology {name}, or make a job on it with simcluster new"
    return ""


@dataclass(frozen=True, slots=True)
class BaseScenario:
    """Base scenario from which variants are made: a built-in name, a path, or a document with its folder.

    ``fixed_changes`` are applied before those of a variant; ``allow_python``: the creator allows files to name code.
    """

    source: Mapping[str, Any] | str
    folder: str = "."
    fixed_changes: tuple[tuple[str, Any], ...] = ()
    allow_python: bool = field(default_factory=is_python_allowed, compare=False)  # also where others play it

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> BaseScenario:
        """Return a base scenario with the document from which this scenario was made."""
        document, changes = scenario.origin.document, scenario.origin.changes
        return cls({"name": scenario.name, **document.data}, str(document.folder), changes)

    def __post_init__(self) -> None:
        if self.source == STDIN:  # other processes have no part in it
            object.__setattr__(self, "source", read_document(STDIN).data)

    def with_changes(self, changes: tuple[tuple[str, Any], ...]) -> Scenario:
        """Return the base scenario with values at dotted paths changed; raise InputError if the result is invalid."""
        changes = (*self.fixed_changes, *changes)
        return _read_scenario(self.source, changes, python=self.allow_python, folder=self.folder)

    def digest(self) -> str:
        """Return a digest of the base scenario; base scenarios with equal digests have equal variants."""
        try:
            base: Any = self.with_changes(()).document()
        except InputError:
            base = read_document(find_scenario_file(self.source)).data if isinstance(self.source, str) else self.source
            base = [base, self.fixed_changes] if self.fixed_changes else base
        return hashlib.sha256(json.dumps(base, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ScenarioVariant:
    """Base scenario plus changes, each a pair (dotted path, value); later changes override earlier changes."""

    base: BaseScenario
    changes: tuple[tuple[str, Any], ...]

    def scenario(self) -> Scenario:
        """Return the changed scenario; raise InputError if it is invalid."""
        return self.base.with_changes(self.changes)
