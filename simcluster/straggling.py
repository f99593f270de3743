"""What stragglers cost a simulated job, and which: each cause by playing the step without it.

Beside the exact figure stands what the estimator for recorded jobs (``replay.measure``) makes of the same run from its
trace alone: all that one has of a real job.  Imports the door and the replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simcluster.errors import InputError
from simcluster.faults import Fault, SlowGpu
from simcluster.replay import Recorded, Straggling, measure, recorded
from simcluster.replay.trace import Floats
from simcluster.replay.written import plan_of, trace_of_result
from simcluster.result import Result
from simcluster.scenario import Scenario
from simcluster.simulate import simulate


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that makes a step longer.

    ``without`` is the step's seconds without it and with all other causes, ``alone`` those with it and without all
    others (None where that is not to be had).  ``estimate`` is what the trace's estimator gives for ``without``, None
    where it has no such figure.
    """

    what: str
    step_time: float
    without: float
    alone: float | None
    estimate: float | None

    @property
    def cost(self) -> float:
        """The part of the step that goes without it."""
        return 1 - self.without / self.step_time

    @property
    def estimated_cost(self) -> float | None:
        """The same by the estimator."""
        return None if self.estimate is None else 1 - self.estimate / self.step_time

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "what": self.what,
            "cost": self.cost,
            "estimated_cost": self.estimated_cost,
            "without_s": self.without,
            "alone_s": self.alone,
        }


@dataclass(frozen=True)
class Stragglers:
    """A job's stragglers: ``step_time`` with them, ``clean`` without any, both in seconds.

    ``by_worker[dp rank, stage]`` is the slowdown by the faults of that worker's GPUs alone, exactly;
    ``estimated.by_worker`` the estimator's.
    """

    step_time: float
    clean: float
    causes: tuple[Cause, ...]
    by_worker: Floats
    estimated: Straggling

    @property
    def slowdown(self) -> float:
        """S, exactly: the step over the step without faults."""
        return self.step_time / self.clean

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "step_time_s": self.step_time,
            "clean_s": self.clean,
            "slowdown": self.slowdown,
            "causes": [cause.to_dict() for cause in self.causes],
            "slowdown_by_worker": self.by_worker.tolist(),
            "estimated": self.estimated.to_dict(),
        }


def stragglers(result: Result) -> Stragglers:
    """Every fault of a result's scenario, and uneven stages, by playing the step without each; dearest first."""
    return _Counterfactuals(result).found()


class _Counterfactuals:
    def __init__(self, result: Result) -> None:
        self._result, self._scenario = result, result.scenario
        self._plan = plan_of(result.scenario)
        self._played: dict[tuple[Fault, ...], float] = {result.scenario.faults: result.step_time}

    def found(self) -> Stragglers:
        faults = self._scenario.faults
        causes = [self._fault(place, fault) for place, fault in enumerate(faults)]
        if self._scenario.parallel.pp > 1:
            causes += self._uneven_stages()
        return Stragglers(
            step_time=self._result.step_time,
            clean=self._with(()),
            causes=tuple(sorted(causes, key=lambda cause: -cause.cost)),
            by_worker=self._by_worker(),
            estimated=measure(self._recorded),
        )

    @cached_property
    def _recorded(self) -> Recorded:
        return recorded(trace_of_result(self._result, self._scenario.name))

    def _with(self, faults: tuple[Fault, ...]) -> float:
        """Seconds of a step with these faults only."""
        if faults not in self._played:
            self._played[faults] = _step_time(self._scenario.model_copy(update={"faults": faults}))
        return self._played[faults]

    def _worker(self, fault: Fault) -> tuple[int, int] | None:
        """(dp rank, stage) of a fault that a worker has."""
        if not isinstance(fault, SlowGpu):
            return None
        place = self._plan.coordinates(fault.rank)
        return place["dp"], place["pp"]

    def _fault(self, place: int, fault: Fault) -> Cause:
        faults, worker = self._scenario.faults, self._worker(fault)
        return Cause(
            what=_named(fault),
            step_time=self._result.step_time,
            without=self._with((*faults[:place], *faults[place + 1 :])),
            alone=self._with((fault,)),
            estimate=None if worker is None else self._estimate(*worker),
        )

    def _estimate(self, dp: int, stage: int) -> float:
        """Seconds of a step if that worker's ops took what is typical; steps as the run has them, end to end."""
        number = dp * self._plan.pp + stage
        replayed = self._recorded.times(lambda graph: graph.seconds)
        without = self._recorded.keeping(lambda graph: graph.worker != number)
        return self._result.step_time * float(without.sum() / replayed.sum())

    def _uneven_stages(self) -> list[Cause]:
        """The longest stage, by cutting the model where the times of the run say; none where that gains nothing."""
        pipeline = self._scenario.pipeline.model_copy(update={"layers_per_stage": "auto"})
        try:
            seconds = _step_time(self._scenario.model_copy(update={"pipeline": pipeline}))
        except InputError:  # a schedule or model that cannot be cut otherwise
            return []
        if seconds >= self._result.step_time:
            return []
        return [Cause("uneven stages", self._result.step_time, seconds, None, None)]

    def _by_worker(self) -> Floats:
        found = np.ones((self._scenario.dp, self._plan.pp))
        owners = [self._worker(fault) for fault in self._scenario.faults]
        for worker in dict.fromkeys(owner for owner in owners if owner is not None):
            own = [fault for fault, owner in zip(self._scenario.faults, owners, strict=True) if owner == worker]
            found[worker] = self._with(tuple(own)) / self._with(())
        return found


def _step_time(scenario: Scenario) -> float:
    return simulate(scenario).step_time


def _named(fault: Fault) -> str:
    """'slow gpu, rank 37, factor 1.2'."""
    fields = fault.model_dump()
    kind = str(fields.pop("kind")).replace("_", " ")
    parts = [f"{name} {_text(value)}" for name, value in fields.items() if value is not None]
    return ", ".join([kind, *parts])


def _text(value: object) -> str:
    return " - ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
