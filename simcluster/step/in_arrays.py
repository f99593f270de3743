"""A step whose ranks all differ, played in arrays over them (``engine.rank_arrays``), op by op once that is asked for.

It is chosen where so many ranks differ that folding leaves most of them; what the arrays are not proved for
(``proved_for.ARRAYS``, and what they refuse by name) is left to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from simcluster.base.clock import later_on_this_grid
from simcluster.base.effort import in_words, require_begun
from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.base.telling import phase
from simcluster.engine.beginnings import beginning
from simcluster.engine.longest_path import NeedsEventsError
from simcluster.engine.lower import Lowered, lower
from simcluster.engine.own_works import OwnWorks
from simcluster.engine.rank_arrays import RankArrays
from simcluster.engine.rank_times import RankTimes
from simcluster.engine.record import Record, when_over
from simcluster.faults.capacities import with_permanent
from simcluster.planning.ops import StageProgram
from simcluster.planning.perturbations import Disturbances
from simcluster.programs.program import OpTimes
from simcluster.programs.slowed import RowColumns, SlowedRows
from simcluster.scenario.effort import ARRAYS_FROM, estimated_seconds
from simcluster.scenario.job import disturbances_of, facts_with_memory, slowness
from simcluster.scenario.scenario import Scenario
from simcluster.step.planned import Planned, PreparedStep
from simcluster.step.proved_for import ARRAYS
from simcluster.symmetry.folding import Symmetry

_TELLING = 80e-6
"""Seconds for an op of a rank that is told by itself: its program 28e-6, what is measured of it 34e-6, a page 16e-6."""
_RANKS_A_SWEEP = 12
"""Twice the ranks that events play in the time of a sweep (FSDP 7B on 128 GPUs 0.027 s a rank, 0.15 s a sweep): sweeps
in vain take about half as long as events."""
_FEWER = "use fewer ranks"
_REPLICAS = (
    f"ask for replicas (--replicas 10), whose links and interference are those of the step without chance, {_FEWER}"
)
_WHY = "every rank is different: op by op, in arrays over ranks"


def played_in_arrays(scenario: Scenario, planned: Planned) -> tuple[PreparedStep, Record] | None:
    """The step prepared and played, if arrays are worth it and exact; else None."""
    if not scenario.faults or ARRAYS.obstacle(scenario):
        return None
    slow, disturbed = slowness(scenario), _disturbances(scenario, planned)
    if not _worth(scenario, slow, disturbed):
        return None
    try:
        return _in_arrays(scenario, planned, slow, disturbed, len(slow) // _RANKS_A_SWEEP)
    except NeedsEventsError as error:
        _require_begun(scenario, str(error))
        return None
    except InputError:  # ops that wait for each other: the events say which
        return None


def in_arrays(scenario: Scenario, planned: Planned) -> tuple[PreparedStep, Record]:
    """The step prepared and played; NeedsEventsError, with the reason, where that would not be exact.

    Raises InputError for ops that wait for each other.
    """
    obstacle = ARRAYS.obstacle(scenario)
    if obstacle:
        raise NeedsEventsError(obstacle)
    return _in_arrays(scenario, planned, slowness(scenario), _disturbances(scenario, planned))


def _require_begun(scenario: Scenario, reason: str) -> None:
    """InputError if events would take longer than is begun unasked; the loader has counted on arrays."""
    seconds = estimated_seconds(scenario, in_arrays=False)
    require_begun(
        seconds,
        f"faults: {scenario.gpus:,} ranks that all differ cannot be played in arrays over ranks ({reason}); one by "
        f"one they would take about {in_words(seconds)}",
        _REPLICAS if any(fault.by_chance for fault in scenario.faults) else _FEWER,
    )


def _require_told(times: RankTimes) -> None:
    """InputError if telling every op of every rank would take longer than is begun unasked."""
    seconds = times.count * _TELLING
    ranks = sum(map(len, times.sweep.stage_ranks))
    require_begun(
        seconds,
        f"faults: {ranks:,} ranks that all differ are played in arrays over ranks, and what was asked for needs "
        f"their {times.count:,} ops one by one, which takes about {in_words(seconds)}",
        "ask for the step time, breakdown, waits and memory of simcluster run without --json, use fewer ranks",
    )


@collector_off()
@phase("simulating")
def _in_arrays(
    scenario: Scenario, planned: Planned, slow: Sequence[float], disturbed: Disturbances, most_sweeps: int | None = None
) -> tuple[PreparedStep, Record]:
    saved = planned.job.saved
    if saved and saved.uneven:
        raise NeedsEventsError("ranks of a stage save different parts of a checkpoint")
    cluster = with_permanent(scenario.faults, scenario.cluster.built, scenario.seed)
    own = _own_works(planned, disturbed)
    arrays = partial(
        RankArrays, planned.programs, planned.job.plan, cluster, np.asarray(cluster.capacity, dtype=float),
        planned.symmetry.whole, slow, planned.choices.interference, own, most_sweeps=most_sweeps,
    )  # fmt: skip
    if not own:
        _look_at_beginning(arrays, planned)
    times = arrays().play()
    choices = replace(planned.choices, folded=False, collapsed=False)

    def lowered() -> Lowered:
        _require_told(times)
        return lower(
            planned.programs, planned.job.plan, cluster, cluster.link_capacity, slowness=slow, choices=choices,
            disturbances=disturbed, symmetry=planned.symmetry,
        )  # fmt: skip

    later = LaterLowered(lowered, planned.symmetry, len(cluster.capacity))
    facts = planned.facts
    if scenario.faults != planned.faults:
        facts = facts_with_memory(scenario, scenario.cluster.device, planned.job)
    return PreparedStep(later, facts, cluster), ArraysRecord(times, later)


def _look_at_beginning(arrays: Callable[[Sequence[StageProgram]], RankArrays], planned: Planned) -> None:
    """NeedsEventsError if transfers hold each other back in the beginning, which is told much sooner than all."""
    begun = beginning(planned.programs)
    if begun is None:
        return
    try:
        arrays(begun).play()
    except NeedsEventsError:
        raise
    except InputError:  # what waits for what is left out
        return


def _disturbances(scenario: Scenario, planned: Planned) -> Disturbances:
    return disturbances_of(scenario, planned.job.plan, scenario.cluster.built, saved=planned.job.saved)


def _worth(scenario: Scenario, slow: Sequence[float], disturbed: Disturbances) -> bool:
    """Do so many ranks differ that folding would leave most of them?"""
    colours: set[object] = set(slow)
    if any("slowness" not in fault.effects() and "slowdowns" not in fault.effects() for fault in scenario.faults):
        colours = {(own, disturbed.colour(rank)) for rank, own in enumerate(slow)}
    return len(colours) >= max(ARRAYS_FROM, len(slow) // 4)


def _own_works(planned: Planned, disturbed: Disturbances) -> Callable[[int], OwnWorks] | None:
    """The works of a stage on each of its ranks; None where all have the stage's."""
    programs, ranks = planned.programs, [own.tolist() for own in planned.job.plan.stage_ranks()]
    if all(disturbed.program(rank, own) is own for own, here in zip(programs, ranks, strict=True) for rank in here):
        return None

    def own(stage: int) -> OwnWorks:
        program = programs[stage]
        return OwnWorks.of_ranks(program, lambda rank: disturbed.program(rank, program), ranks[stage])

    return own


class LaterLowered(Lowered):
    """A program that is made when somebody asks for any of it: rank by rank, every op by itself.  Its communicators and
    classes are known without."""

    def __init__(self, make: Callable[[], Lowered], symmetry: Symmetry, num_links: int) -> None:
        parts = {"_make": later_on_this_grid(make), "communicators": symmetry.whole}
        parts["_classes"] = lambda: symmetry.unfolded(num_links).classes
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in Lowered.__dataclass_fields__:
            raise AttributeError(name)
        if name == "classes":
            object.__setattr__(self, name, self._classes())
            return self.__dict__[name]
        made = self._make()
        for field in Lowered.__dataclass_fields__:
            object.__setattr__(self, field, getattr(made, field))
        return getattr(made, name)


class ArraysRecord(Record):
    """What arrays over ranks have found; ``over`` is known at once, all else is told when somebody asks."""

    def __init__(self, times: RankTimes, lowered: Lowered) -> None:
        parts = {"told": times.columns, "events": 0, "kind": "arrays", "why": _WHY, "over": times.over,
                 "over_ranks": times}  # fmt: skip
        for name, value in {**parts, "slowed": SlowedRows(lambda: _slowed(lowered, self.columns))}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_lowered", lowered)

    def __getattr__(self, name: str) -> Any:
        if name != "lanes":
            raise AttributeError(name)
        lanes = when_over(self._lowered.played, self.columns.end.tolist())
        object.__setattr__(self, "lanes", lanes)
        return lanes


def _slowed(lowered: Lowered, times: OpTimes) -> RowColumns:
    """Of what ranks do by themselves, the ops that took other times than their rows say."""
    program = lowered.played
    rows = [each[0] if each else None for each in program.row_sets]
    planned = np.array([0.0 if row is None else row.end - row.start for row in rows])[np.array(program.rows)]
    there = np.array([row is not None for row in rows])[np.array(program.rows)]
    took = times.end - times.start
    ops = np.flatnonzero((np.array(program.meeting) < 0) & there & (took != planned))
    return RowColumns(ops, np.arange(len(ops) + 1), np.zeros(len(ops)), took[ops])
