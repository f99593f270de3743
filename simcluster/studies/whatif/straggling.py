"""What stragglers cost a simulated job, and which: each cause by playing the step without it.

Beside the exact figure stands what the estimator for recorded jobs (``interop.recorded.measure``) makes of the same run
from its trace alone: all that one has of a real job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.satellites import provided
from simcluster.base.shown import Shown
from simcluster.base.tables import Records
from simcluster.documents.argument_types import checked
from simcluster.faults import Fault
from simcluster.faults.words import in_words
from simcluster.planning.ops import StageProgram
from simcluster.results.result import Result
from simcluster.scenario.effort import require_time_for
from simcluster.scenario.scenario import Scenario
from simcluster.step.planned import Planned, plan
from simcluster.step.simulate import ResultLike, replay, result_of
from simcluster.studies.whatif.free import freed_where
from simcluster.studies.whatif.only_faster import slower_although_faster, told

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Cause(Shown):
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
    note: str = ""
    """Why the step is longer without it, where it is."""

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
            "note": self.note,
        }


@dataclass(frozen=True)
class Stragglers(Shown):
    """A job's stragglers: ``step_time`` with them, ``clean`` without any, both in seconds (what holds all ranks up
    alike stays in both).

    ``by_worker[dp rank, stage]`` is the slowdown by the faults of that worker's GPUs alone, exactly;
    ``estimated.by_worker`` the estimator's (``estimated`` is a ``Straggling`` of ``interop.recorded``).
    """

    step_time: float
    clean: float
    causes: tuple[Cause, ...]
    by_worker: Floats
    estimated: Any

    @property
    def slowdown(self) -> float:
        """S, exactly: the step over the step without them."""
        return self.step_time / self.clean

    @property
    def table(self) -> pd.DataFrame:
        """A row a cause: what, cost, estimated_cost, without_s, alone_s."""
        return Records(self.causes).table

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


@checked
def stragglers(result: ResultLike) -> Stragglers:
    """Every fault of a result's scenario, or of a scenario, uneven stages and the LM head, by playing the step without
    each; dearest first.

    Raises InputError where playing all these steps would take longer than is begun.
    """
    result = result_of(result, "stragglers")
    require_time_for(result.scenario, steps_without_causes(result.scenario), "stragglers", ops=result.ops_played)
    return _Counterfactuals(result).found()


def steps_without_causes(scenario: Scenario) -> int:
    """Steps that are played: without each fault, with it alone, with none, and of a pipeline two without its causes."""
    return 2 * len(scenario.faults) + 1 + 2 * (scenario.parallel.pp > 1)


class _Counterfactuals:
    def __init__(self, result: Result) -> None:
        self._result, self._scenario = result, result.scenario
        self._plan = result.job.plan
        self._hosts = result.scenario.cluster.built.host_of[: result.scenario.gpus]
        self._everything = range(len(result.scenario.faults))
        self._played: dict[tuple[int, ...], float] = {(): result.step_time}
        if result.without_faults is not None:
            self._played[result.scenario.straggling] = result.without_faults

    def found(self) -> Stragglers:
        faults = self._scenario.faults
        causes = [self._fault(place, fault) for place, fault in enumerate(faults)]
        if self._scenario.parallel.pp > 1:
            causes += [*self._uneven_stages(), *self._head()]
        return Stragglers(
            step_time=self._result.step_time,
            clean=self._without(*self._scenario.straggling),
            causes=tuple(sorted(causes, key=lambda cause: -cause.cost)),
            by_worker=self._by_worker(),
            estimated=self._estimator.straggling,
        )

    @cached_property
    def _planned(self) -> Planned:
        """What is the same whatever faults there are."""
        return plan(self._scenario)

    @cached_property
    def _estimator(self) -> Any:
        return provided("estimator of recorded jobs")(self._result, self._scenario.name)

    def _without(self, *places: int) -> float:
        """Seconds of a step without these faults."""
        if places not in self._played:
            self._played[places] = replay(self._scenario.without(*places), planned=self._planned).step_time
        return self._played[places]

    def _only(self, *places: int) -> float:
        """Seconds of a step with these faults only."""
        return self._without(*(place for place in self._everything if place not in places))

    def _workers(self, fault: Fault) -> tuple[tuple[int, int], ...]:
        """(dp rank, stage) of the workers that have a fault; none if others are slow by it, too."""
        if fault.everywhere:
            return ()
        places = [self._plan.coordinates(rank) for rank in fault.chosen(self._hosts)]
        return tuple(dict.fromkeys((place["dp"], place["pp"]) for place in places))

    def _fault(self, place: int, fault: Fault) -> Cause:
        workers = self._workers(fault)
        return Cause(
            what=in_words(fault),
            step_time=self._result.step_time,
            without=self._without(place),
            alone=self._only(place),
            estimate=self._estimate(workers) if workers else None,
            note=self._longer_without(place),
        )

    def _longer_without(self, place: int) -> str:
        """Why a step without this fault is longer; "" where it is not."""
        if self._without(place) <= self._result.step_time:
            return ""
        other = self._scenario.without(place)
        again = replay(other, planned=self._planned)
        return told(slower_although_faster(self._result, again, self._scenario, other))

    def _estimate(self, workers: Sequence[tuple[int, int]]) -> float:
        """Seconds of a step if those workers' ops took what is typical; steps as the run has them, end to end."""
        numbers = [dp * self._plan.pp + stage for dp, stage in workers]
        return self._result.step_time * float(self._estimator.share_without(numbers))

    def _uneven_stages(self) -> list[Cause]:
        """The longest stage, by cutting the model where the times of the run say; none where that gains nothing."""
        pipeline = self._scenario.pipeline.model_copy(update={"layers_per_stage": "auto"})
        try:
            seconds = replay(self._scenario.model_copy(update={"pipeline": pipeline})).step_time
        except InputError:  # a schedule or model that cannot be cut otherwise
            return []
        if seconds >= self._result.step_time:
            return []
        estimated = self._estimator.straggling
        estimate = self._result.step_time * estimated.last_stage.without / float(estimated.replayed.mean())
        return [Cause("uneven stages", self._result.step_time, seconds, None, estimate)]

    def _head(self) -> list[Cause]:
        """The output projection and the loss, by playing the step with them free; none where nobody waits for them."""
        seconds = replay(self._scenario, change=headless).step_time
        if seconds >= self._result.step_time:
            return []
        return [Cause("LM head and loss", self._result.step_time, seconds, None, None)]

    def _by_worker(self) -> Floats:
        found = np.ones((self._scenario.dp, self._plan.pp))
        owners = [self._workers(fault) for fault in self._scenario.faults]
        for worker in dict.fromkeys(owner[0] for owner in owners if len(owner) == 1):
            own = [place for place, owner in enumerate(owners) if owner == (worker,)]
            found[worker] = self._only(*own) / self._without(*self._everything)
        return found


_HEAD = ("lm_head", "loss")


def headless(programs: Sequence[StageProgram]) -> list[StageProgram]:
    """The programs with a free LM head and loss: their ops take no time, but stay in their places."""
    return freed_where(programs, lambda op: op.name.startswith(_HEAD))
