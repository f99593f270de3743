"""The scenario: cluster, model, parallelism, schedule, batch and faults, as one immutable document.

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

from simcluster.base.errors import InputError
from simcluster.base.shown import Displayable
from simcluster.documents.argument_types import checked
from simcluster.documents.catalogue import load_presets
from simcluster.documents.catalogue.devices import device_names
from simcluster.documents.diagnostics import KeyPath, RuleError, did_you_mean, reject_argument
from simcluster.documents.overrides import Changes, apply_overrides, normalize_changes
from simcluster.documents.own_words import is_python_allowed, trust_text
from simcluster.documents.reading import STDIN, Document, locate_errors, parse_document, read_document, validate
from simcluster.documents.shipped import builtin_folder, builtin_names, reject_builtin_path
from simcluster.faults import FaultSpec, placed
from simcluster.scenario import link_changes
from simcluster.scenario.effects import effective_document, reject_idle_fields
from simcluster.scenario.fields import ScenarioFields
from simcluster.scenario.files import resolve_scenario
from simcluster.scenario.left_out import build_cluster, complete_parallel, complete_pipeline, set_field
from simcluster.scenario.model_rules import check_order
from simcluster.scenario.paths import suggest_right_place
from simcluster.scenario.rules import find_broken_rules
from simcluster.scenario.short_forms import expand_names, title_with_changes
from simcluster.schedules import Schedule, ScheduleFunction, make_schedule
from simcluster.schedules.specs import Rows

_ORIGIN = "_origin"  # among a scenario's attributes, beside its fields


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a scenario: the document as the user wrote it, and the changes to it."""

    document: Document
    changes: tuple[tuple[str, Any], ...] = ()

    def with_changes(self, more: Changes) -> Scenario:
        """Return the scenario with further changes, which are applied last."""
        origin = Origin(self.document, (*self.changes, *normalize_changes(more)))
        resolved = resolve_scenario(origin.document, origin.changes)
        return _with_origin(validate(Scenario, resolved), origin, resolved)

    @property
    def written_document(self) -> Document:
        """The user's document with the changes applied, before the files that it names are read in."""
        return apply_overrides(expand_names(self.document), self.changes)

    def without_values(self, paths: Iterable[KeyPath]) -> Scenario:
        """Return the scenario without the values at these key paths."""
        return Origin(link_changes.remove_values(self.written_document, paths)).with_changes({})


class Scenario(Displayable, ScenarioFields):
    """One training step to simulate; ``Scenario(cluster=..., model=..., training=...)`` takes what a file takes.

    ``gpus`` is the number of GPUs of the job (default: all of the cluster). ``engine`` chooses how to simulate:
    ``simpy`` (one rank of each class of equal ranks), ``compiled`` (the same by the compiled engine), the one of both
    that suits the size (``auto``), or the slow ``reference``, every rank by SimPy; times are equal to the bit. Raises
    InputError with every broken rule.
    """

    @staticmethod
    def elsewhere(key: str) -> str:
        """Return the end of an error message with the section where a misplaced key belongs."""
        return suggest_right_place(key)

    def __init__(self, **sections: Any) -> None:
        origin = Origin(Document(data=_to_plain(sections), source="Scenario(...)", folder=Path()))
        resolved = resolve_scenario(origin.document)
        with locate_errors(resolved, Scenario):
            super().__init__(**resolved.data)
        _with_origin(self, origin, resolved)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # read documents are checked without it

    @model_validator(mode="before")
    @classmethod
    def _check_one_software(cls, document: object) -> object:
        if isinstance(document, Mapping) and "software" in document and "framework" in document:
            raise RuleError([(("framework",), "is an alias of software, which is also set; keep one of the two")])
        return document

    @model_validator(mode="after")
    def _fill_and_check(self) -> Self:
        """Fill in defaults that depend on other fields, and check every rule.

        Raises RuleError with all violated rules. The cluster is built here; its spec keeps it, so copies of the
        scenario share it.
        """
        cluster = build_cluster(self)
        set_field(self, "gpus", self.gpus or cluster.num_gpus)
        set_field(self, "parallel", complete_parallel(self))
        if self.faults or self.data:
            set_field(self, "faults", placed(self.data.faults(self.faults) if self.data else self.faults))
        set_field(self, "pipeline", complete_pipeline(self))
        if broken := find_broken_rules(self):
            raise RuleError(broken)
        return self

    def with_(self, changes: Changes = (), /, **more: Any) -> Scenario:
        """Return a changed copy, validated as a whole: ``scenario.with_({"parallel.tp": 4})``.

        ``with_(parallel__tp=4)`` is the same. The original document is read again with these changes: values that it
        omits (dp, the number of GPUs) are derived anew. Of a scenario that was changed otherwise, its ``document`` is
        changed. InputError with the lines of the file, where it was read from one.
        """
        return self.origin.with_changes(trust_text([*normalize_changes(changes), *keyword_pairs(more)]))

    @property
    def origin(self) -> Origin:
        """Source of the scenario; its own document if the source is unknown."""
        found: Origin | None = vars(self).get(_ORIGIN)
        return found or Origin(Document(data=self.document(), source=self.name, folder=Path()))

    @property
    def title(self) -> str:
        """Name of the scenario, followed by the changes to the document of that name."""
        return title_with_changes(self.name, self.origin.document.data, self.origin.changes)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with values changed without validation, as pydantic does."""
        copied = super().model_copy(update=update, deep=deep)
        if update:
            vars(copied).pop(_ORIGIN, None)
        return copied

    def with_schedule(self, what: Schedule | ScheduleFunction) -> Self:
        """Return the scenario with a custom schedule: data, or a function (stages, microbatches, chunks).

        Raises InputError for an invalid schedule (the place is marked) or for other stages and microbatches.
        """
        schedule = make_schedule(what, self.parallel.pp, self.microbatches, self.pipeline.chunks)
        pipeline = self.pipeline.model_copy(update={"schedule": Rows.of(schedule), "chunks": 1})
        measured = self.measured and self.measured.model_copy(update={"changed": ("pipeline.schedule",)})
        changed = self.model_copy(update={"pipeline": pipeline, "measured": measured})
        broken = list(check_order(changed))
        if broken:
            raise RuleError(broken)
        return changed

    def without(self, *numbers: int) -> Self:
        """Return the scenario without the faults at these indices; all other random draws are unchanged.

        Of uneven data only the unevenness is removed: the same documents, spread evenly over the microbatches.
        """
        beyond = [number for number in numbers if number not in range(len(self.faults))]
        if beyond:
            have = f"faults 0 to {len(self.faults) - 1}: name some of those" if self.faults else "none: add one first"
            raise InputError(f"without: there is no fault {beyond[0]!r}; the scenario has {have}")
        kept = (fault.without() if place in numbers else fault for place, fault in enumerate(self.faults))
        return self.model_copy(update={"faults": tuple(fault for fault in kept if fault is not None)})

    def without_faults(self) -> Self:
        """Return the scenario without any of its faults."""
        return self.without(*range(len(self.faults)))

    @property
    def straggling(self) -> tuple[int, ...]:
        """Indices of the faults that can make ranks differ, as opposed to delaying all ranks equally."""
        return tuple(place for place, fault in enumerate(self.faults) if not fault.shared)

    @property
    def given_faults(self) -> tuple[FaultSpec, ...]:
        """Faults as the document sets them, without the one that the ``data`` section adds."""
        mine = self.data and self.data.lengths
        return tuple(fault for fault in self.faults if mine is None or fault != mine)

    @property
    def tokens_per_step(self) -> int:
        """Number of tokens per step, over all replicas."""
        return self.training.global_batch * self.model.sequence_length

    @property
    def measured_step_time(self) -> float | None:
        """Measured step time (s) of this scenario; None if there is none, or if it is of another step."""
        return None if self.measured is None or self.measured.changed else self.measured.seconds(self.tokens_per_step)

    def document(self) -> dict[str, Any]:
        """Return the scenario as a self-contained JSON-able document; reading it gives an equal one."""
        return effective_document(self.model_copy(update={"faults": self.given_faults}))


Written = str | Path | Mapping[str, Any]
"""A scenario as a built-in name, a path, or a document."""


@checked
def load(path: Written, overrides: Changes = (), *, allow_python: bool = False) -> Scenario:
    """Return the scenario of a file, built-in name or document, with values at dotted paths changed.

    ``-`` is standard input. A schedule FILE.py:FUNCTION runs where the overrides name it, and one that the document
    names only with ``allow_python``. Raises InputError that names the file, line, key, value, rule and a fix.
    """
    if not isinstance(path, str | Path | Mapping):
        reject_argument(path, "load", "a built-in name, a path or a dict (simcluster.scenario takes a Scenario, too)")
    return _read_scenario(path, trust_text(normalize_changes(overrides)), python=allow_python)


@checked
def load_text(text: str, overrides: Changes = (), *, folder: str | Path = ".", allow_python: bool = False) -> Scenario:
    """Return the scenario in a text, otherwise as ``load``; its paths are relative to ``folder``."""
    document = parse_document(text, source="<text>", folder=folder)
    if allow_python:
        document = replace(document, data=trust_text(document.data))
    return Origin(document).with_changes(trust_text(normalize_changes(overrides)))


def _read_scenario(
    what: str | Path | Mapping[str, Any], changes: Changes, *, python: bool, folder: str = "."
) -> Scenario:
    if isinstance(what, Mapping):
        if what and all("." in str(path) for path in what):
            raise InputError(
                f"{next(iter(what))!r} is a change of a scenario, but a scenario is needed: write "
                f"simcluster.scenario('NAME', {{{next(iter(what))!r}: ...}})"
            )
        document = Document(data=_to_plain(what), source="<document>", folder=Path(folder))
    else:
        document = read_document(scenario_path(what))
    if python:
        document, changes = replace(document, data=trust_text(document.data)), trust_text(normalize_changes(changes))
    return Origin(document).with_changes(changes)


def from_document(data: Mapping[str, Any], overrides: Changes = (), *, folder: str | Path = ".") -> Scenario:
    """Return the scenario of plain data, as of a file; ``from_document(s.document()) == s``."""
    return Origin(Document(data=_to_plain(data), source="<document>", folder=Path(folder))).with_changes(overrides)


def keyword_pairs(keywords: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return keyword arguments as changes of a scenario; ``parallel__tp=4`` changes parallel.tp."""
    return [(name.replace("__", "."), value) for name, value in keywords.items()]


def _to_plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        dumped = value.model_dump(mode="json", exclude_none=True)
        return {key: inner for key, inner in dumped.items() if key != "dp" or inner}  # 0: left out
    if isinstance(value, Mapping):
        return {key: _to_plain(inner) for key, inner in value.items()}
    return [_to_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _with_origin(scenario: Scenario, origin: Origin, resolved: Document) -> Scenario:
    """Record the scenario's source in it; raise InputError for a changed link latency without effect."""
    with locate_errors(resolved, Scenario):
        reject_idle_fields(scenario, origin.changes)
    latencies = link_changes.LATENCIES
    takes = link_changes.uses_link_latencies(scenario)
    if not takes and (changed := link_changes.find_link_changes(origin.written_document, latencies)):
        known = all(path[1] != "topology" for path in changed)
        if not known or (origin.without_values(changed).cluster.built.latency != scenario.cluster.built.latency).any():
            raise link_changes.latency_error(scenario, origin.written_document, changed[0])
    vars(scenario)[_ORIGIN] = origin
    return scenario


def scenario_path(path: str | Path) -> Path:
    """Return the file of a built-in scenario's name; any other path, or ``-`` (standard input), unchanged."""
    path = Path(path)
    if path.exists() or str(path) == STDIN:
        return path
    names = builtin_names("scenarios")
    if path.suffix or len(path.parts) != 1:
        reject_builtin_path("scenarios", path)
        return path
    if path.name in names:
        return builtin_folder("scenarios") / f"{path.name}.yaml"
    if told := _describe_other_name(path.name):
        raise InputError(f"{path}: {told}")
    hint = did_you_mean(path.name, names)
    raise InputError(f"{path}: no such file, and no built-in scenario{hint}; built-in: {', '.join(names) or 'none'}")


def _describe_other_name(name: str) -> str:
    if name in load_presets("models.yaml"):
        return f"is a model, not a scenario; make one: simcluster new --model {name} --cluster dgx_h100 --gpus 64"
    if name in device_names():
        return f"is a device, not a scenario; use it in one, as in simcluster run tiny_3d --cluster.device {name}"
    if name in builtin_names("topologies"):
        return f"is a topology, not a scenario; see simcluster topology {name}, or make a job on it with simcluster new"
    return ""


@dataclass(frozen=True, slots=True)
class Base:
    """Base scenario of variants: a file's name or path, or a document with its folder.

    ``fixed`` changes are applied before those of a variant; ``python``: the creator allows files to name code.
    """

    what: Mapping[str, Any] | str
    folder: str = "."
    fixed: tuple[tuple[str, Any], ...] = ()
    python: bool = field(default_factory=is_python_allowed, compare=False)  # also where others play it

    @classmethod
    def of(cls, scenario: Scenario) -> Base:
        """Return the base whose variants change the document that a scenario was made from."""
        document, changes = scenario.origin.document, scenario.origin.changes
        return cls({"name": scenario.name, **document.data}, str(document.folder), changes)

    def __post_init__(self) -> None:
        if self.what == STDIN:  # other processes have no part in it
            object.__setattr__(self, "what", read_document(STDIN).data)

    def scenario(self, changes: tuple[tuple[str, Any], ...]) -> Scenario:
        """Return the base scenario with values at dotted paths changed; raise InputError if that is invalid."""
        return _read_scenario(self.what, (*self.fixed, *changes), python=self.python, folder=self.folder)

    def fingerprint(self) -> str:
        """Return a digest of the base scenario; bases with equal digests have equal variants.

        It is of the base's document, resolved where that is possible without a change.
        """
        try:
            document: Any = self.scenario(()).document()
        except InputError:
            document = read_document(scenario_path(self.what)).data if isinstance(self.what, str) else self.what
            document = [document, self.fixed] if self.fixed else document
        text = json.dumps(document, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed base scenario; ``changes`` are (dotted path, value), later ones win."""

    base: Base
    changes: tuple[tuple[str, Any], ...]

    def scenario(self) -> Scenario:
        """Return the changed scenario; raise InputError if it is invalid."""
        return self.base.scenario(self.changes)
