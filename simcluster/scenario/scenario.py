"""The scenario: a cluster, a model, how it is split, its schedule, batch and faults, as one frozen, checked document.

``load`` reads a file; the result is complete (defaults, presets and the cluster's file filled in) and self-contained:
``Scenario.document()`` is a scenario file of its own.  Knows every spec and registry, so that bad names fail here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import RuleError, did_you_mean
from simcluster.documents.overrides import parse_override
from simcluster.documents.reading import (
    STDIN,
    Document,
    parse_document,
    read_document,
    refuse_shipped,
    shipped_folder,
    shipped_names,
    validate,
)
from simcluster.faults import FaultSpec, placed
from simcluster.importers.schedule_files import function_in, is_function
from simcluster.scenario.fields import ScenarioFields
from simcluster.scenario.files import resolve
from simcluster.scenario.paths import said_elsewhere
from simcluster.scenario.pipeline_rules import order_rules
from simcluster.scenario.rules import broken_rules, oversize
from simcluster.scenario.sections import Parallel, Pipeline
from simcluster.schedules import Schedule, ScheduleFunction, make_schedule
from simcluster.schedules.specs import Rows
from simcluster.topology import Cluster


class Scenario(ScenarioFields):
    """One training step to be replayed.

    ``gpus`` is how many of the cluster's GPUs the job takes (left out: all; the first ones, machine by machine), and
    ``parallel.dp`` is never left out once the scenario is made.  ``engine`` is how the step is played: as ``events``,
    as one longest ``path`` through all ops, refused where that would not be exact, the faster of what is exact
    (``auto``), or op by op of every rank by the slow ``reference``; times are the same to the bit.  With ``replicas``
    it is played so often, each time with draws of its own from ``seed`` (``montecarlo``).  ``framework`` is another
    word for ``software``.  Raises InputError (pydantic's
    ValidationError, if made without ``load``) with every broken rule.
    """

    @staticmethod
    def elsewhere(key: str) -> str:
        """Where else a scenario has a key of that name, for the message about one in the wrong place."""
        return said_elsewhere(key)

    @model_validator(mode="before")
    @classmethod
    def _one_software(cls, document: object) -> object:
        if isinstance(document, Mapping) and "software" in document and "framework" in document:
            raise RuleError([(("framework",), "is another word for software, which is there too; keep one of the two")])
        return document

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Each field is what it should be by itself: what was left out follows from the rest, and every rule holds.

        RuleError with all broken rules.  This is where the cluster is built; its spec keeps it, so copies of the
        scenario share it.
        """
        cluster = _built(self)
        _fill(self, "gpus", self.gpus or len(cluster.gpus))
        _fill(self, "parallel", _parallel(self))
        _fill(self, "faults", placed(self.data.faults(self.faults) if self.data else self.faults))
        _fill(self, "pipeline", _pipeline(self))
        if broken := broken_rules(self):
            raise RuleError(broken)
        return self

    def with_schedule(self, what: Schedule | ScheduleFunction) -> Self:
        """The same scenario with a schedule of one's own: the data, or a function (stages, microbatches, chunks).

        Raises InputError for one that is broken (the place is marked) or for other stages and microbatches.
        """
        schedule = make_schedule(what, self.parallel.pp, self.microbatches, self.pipeline.chunks)
        pipeline = self.pipeline.model_copy(update={"schedule": Rows.of(schedule), "chunks": 1})
        measured = self.measured and self.measured.model_copy(update={"changed": ("pipeline.schedule",)})
        changed = self.model_copy(update={"pipeline": pipeline, "measured": measured})
        broken = list(order_rules(changed))
        if broken:
            raise RuleError(broken)
        return changed

    def without(self, *numbers: int) -> Self:
        """The same scenario but for these faults (by their places in the list); all other draws stay what they are.

        Of uneven data only the unevenness goes: the same documents, spread evenly over the microbatches.
        """
        kept = (fault.without() if place in numbers else fault for place, fault in enumerate(self.faults))
        return self.model_copy(update={"faults": tuple(fault for fault in kept if fault is not None)})

    def without_faults(self) -> Self:
        """The same scenario with none of its faults."""
        return self.without(*range(len(self.faults)))

    @property
    def straggling(self) -> tuple[int, ...]:
        """Places of the faults by which ranks can differ: all but what holds all of them up alike."""
        return tuple(place for place, fault in enumerate(self.faults) if not fault.shared)

    @property
    def given_faults(self) -> tuple[FaultSpec, ...]:
        """Faults without what the ``data`` section makes of its documents."""
        mine = self.data and self.data.lengths
        return tuple(fault for fault in self.faults if mine is None or fault != mine)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all replicas' microbatches."""
        return self.training.global_batch * self.model.sequence_length

    @property
    def measured_step_time(self) -> float | None:
        """Seconds a step of a real run took; None if there is none, or if it was of another step than this one."""
        return None if self.measured is None or self.measured.changed else self.measured.seconds(self.tokens_per_step)

    def document(self) -> dict[str, Any]:
        """The scenario as a self-contained file says it: JSON-able, units as text; reading it gives an equal one."""
        return self.model_copy(update={"faults": self.given_faults}).model_dump(mode="json", exclude_none=True)


Changes = Mapping[str, Any] | Iterable[str | tuple[str, Any]]
"""Overrides: {"parallel.tp": 4}, [("parallel.tp", 4)] or ["parallel.tp=4"]."""


def load(path: str | Path, overrides: Changes = ()) -> Scenario:
    """The scenario in a file (``-``: standard input), or the shipped one of that name, with changes at dotted paths.

    Raises InputError that names the file, line, key, value, rule and a fix.
    """
    return _scenario(read_document(scenario_path(path)), overrides)


def load_text(text: str, overrides: Changes = (), *, folder: str | Path = ".") -> Scenario:
    """The scenario written in ``text``; paths in it are relative to ``folder``."""
    return _scenario(parse_document(text, source="<text>", folder=folder), overrides)


def from_document(data: Mapping[str, Any], overrides: Changes = (), *, folder: str | Path = ".") -> Scenario:
    """The scenario that plain data says, as a file would; ``from_document(s.document()) == s``."""
    return _scenario(Document(data=dict(data), source="<document>", folder=Path(folder)), overrides)


def _scenario(document: Document, overrides: Changes) -> Scenario:
    items = overrides.items() if isinstance(overrides, Mapping) else overrides
    pairs = [parse_override(item) if isinstance(item, str) else item for item in items]
    return validate(Scenario, resolve(document, pairs))


def scenario_path(path: str | Path) -> Path:
    """The path itself (``-``: standard input), or where the shipped scenario of that bare name lies.

    InputError for a file that is not there but whose name is that of a shipped scenario, and for an unknown name.
    """
    path = Path(path)
    if path.exists() or str(path) == STDIN:
        return path
    names = shipped_names("scenarios")
    if path.suffix or len(path.parts) != 1:
        refuse_shipped("scenarios", path)
        return path
    if path.name in names:
        return shipped_folder("scenarios") / f"{path.name}.yaml"
    hint = did_you_mean(path.name, names)
    raise InputError(f"{path}: no such file, and no shipped scenario{hint}; shipped: {', '.join(names) or 'none'}")


# --- what a document leaves out ---------------------------------------------------------------------------------------


def _fill(scenario: Scenario, field: str, value: object) -> None:
    object.__setattr__(scenario, field, value)  # frozen for everybody else


def _built(scenario: Scenario) -> Cluster:
    """The cluster, unless it is too large or cannot be."""
    if too_large := oversize(scenario.cluster.topology):
        raise RuleError([(("cluster",), too_large)])
    try:
        return scenario.cluster.built
    except InputError as error:
        raise RuleError([(("cluster",), str(error))]) from None


def _parallel(scenario: Scenario) -> Parallel:
    """With dp: what the other axes leave of the GPUs, where they divide them."""
    parallel = scenario.parallel
    others = parallel.tp * parallel.pp * parallel.cp
    if parallel.dp or scenario.gpus % others:
        return parallel
    return parallel.model_copy(update={"dp": scenario.gpus // others})


def _pipeline(scenario: Scenario) -> Pipeline:
    """With the rows that a schedule FILE.py:FUNCTION gives for the counts of this scenario."""
    pipeline, training = scenario.pipeline, scenario.training
    name, together = pipeline.schedule, scenario.parallel.dp * training.micro_batch
    if not isinstance(name, str) or not is_function(name):
        return pipeline
    if not together or training.global_batch % together:
        return pipeline  # the rules complain
    counts = scenario.parallel.pp, scenario.microbatches, pipeline.chunks
    try:
        rows = Rows.of(make_schedule(function_in(name), *counts))
    except InputError as error:
        raise RuleError([(("pipeline", "schedule"), str(error))]) from None
    return pipeline.model_copy(update={"schedule": rows, "chunks": 1})


@dataclass(frozen=True, slots=True)
class Base:
    """What variants are variants of: the name or path of a scenario file, or a document with its folder."""

    what: Mapping[str, Any] | str
    folder: str = "."

    def __post_init__(self) -> None:
        if self.what == STDIN:  # other processes have no part in it
            object.__setattr__(self, "what", read_document(STDIN).data)

    def scenario(self, changes: tuple[tuple[str, Any], ...]) -> Scenario:
        """The base with values at dotted paths changed; InputError if that cannot be."""
        if isinstance(self.what, str):
            return load(self.what, changes)
        return from_document(self.what, changes, folder=self.folder)

    def fingerprint(self) -> str:
        """Equal for bases that give the same variants: of what they say, as resolved where that can be done without
        a change."""
        try:
            document: Any = self.scenario(()).document()
        except InputError:
            document = read_document(scenario_path(self.what)).data if isinstance(self.what, str) else self.what
        text = json.dumps(document, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed scenario: ``changes`` are (dotted path, value), later ones win."""

    base: Base
    changes: tuple[tuple[str, Any], ...]

    def scenario(self) -> Scenario:
        """The scenario; InputError if it cannot be."""
        return self.base.scenario(self.changes)

    def key(self, fingerprint: str) -> str:
        """Equal for equal changes of bases of that fingerprint."""
        text = json.dumps([fingerprint, self.changes], default=str)
        return hashlib.sha256(text.encode()).hexdigest()
