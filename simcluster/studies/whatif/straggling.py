"""Cost of each straggler of a job: the step is simulated again without each cause.

Next to the exact cost is the estimate for recorded jobs (``interop.replay``) from the trace of the same run alone,
which is all that is known of a real job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.satellites import load_provided
from simcluster.base.shown import Displayable
from simcluster.base.tables import Records
from simcluster.documents.argument_types import checked
from simcluster.faults import Fault
from simcluster.faults.words import describe_fault
from simcluster.planning.ops import StageProgram
from simcluster.results.result import Result
from simcluster.scenario.effort import require_time_for
from simcluster.scenario.scenario import Scenario
from simcluster.step.planned import PlannedStep, plan_step
from simcluster.step.simulate import ResultLike, simulate_scenario, to_result
from simcluster.studies.whatif.free import free_chosen_ops
from simcluster.studies.whatif.only_faster import describe_unexpected_slowdown, find_unexpected_slowdown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Cause(Displayable):
    """A cause of a longer step, with the step times (s) without it and with it alone.

    ``without`` is the step's seconds without it and with all other causes, ``alone`` those with it and without all
    others (None where that is not known). ``estimate`` is the trace's estimate of ``without``, None where it has none.
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
        """Fraction of the step time that is saved without the cause."""
        return 1 - self.without / self.step_time

    @property
    def estimated_cost(self) -> float | None:
        """Fraction of the step time saved without the cause, as estimated from the trace."""
        return None if self.estimate is None else 1 - self.estimate / self.step_time

    def to_dict(self) -> dict[str, Any]:
        """Return the cause as JSON-ready values."""
        return {
            "what": self.what, "cost": self.cost, "estimated_cost": self.estimated_cost, "without_s": self.without,
            "alone_s": self.alone, "note": self.note,
        }  # fmt: skip


@dataclass(frozen=True)
class Stragglers(Displayable):
    """A job's stragglers: step time (s) with and without them, their causes, slowdown by worker.

    Delays equal on all ranks are in both times. ``by_worker[dp rank, stage]`` is the slowdown by the faults of that
    worker's GPUs alone, exactly; ``estimated.by_worker`` the estimator's (``estimated`` is a ``Straggling`` of
    ``interop.replay``).
    """

    step_time: float
    clean: float
    causes: tuple[Cause, ...]
    by_worker: Floats
    estimated: Any

    @property
    def slowdown(self) -> float:
        """Exact slowdown S: step time over step time without stragglers."""
        return self.step_time / self.clean

    @property
    def table(self) -> pd.DataFrame:
        """Table with one row per cause: what, cost, estimated_cost, without_s, alone_s."""
        return Records(self.causes).table

    def to_dict(self) -> dict[str, Any]:
        """Return the stragglers as JSON-ready values."""
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
    """Simulate the step without each fault, uneven stages and the LM head; return the causes, costliest first.

    Raises InputError where all these steps would take too long to simulate.
    """
    result = to_result(result, "stragglers")
    require_time_for(result.scenario, count_straggler_steps(result.scenario), "stragglers", ops=result.simulated_ops)
    return _Counterfactuals(result).find_stragglers()


def count_straggler_steps(scenario: Scenario) -> int:
    """Return how many steps ``stragglers`` simulates: without each fault, with it alone, and without any."""
    return 2 * len(scenario.faults) + 1 + 2 * (scenario.parallel.pp > 1)


class _Counterfactuals:
    """Simulator of a result's scenario with some of its faults, each combination once."""

    def __init__(self, result: Result) -> None:
        self._result, self._scenario = result, result.scenario
        self._plan = result.job.plan
        self._hosts = result.scenario.cluster.built.host_of[: result.scenario.gpus]
        self._known: dict[tuple[int, ...], float] = {(): result.step_time}
        if result.without_faults is not None:
            self._known[result.scenario.straggling] = result.without_faults

    def find_stragglers(self) -> Stragglers:
        causes = [self._measure_fault(place, fault) for place, fault in enumerate(self._scenario.faults)]
        if self._scenario.parallel.pp > 1:
            causes += self._measure_pipeline()
        return Stragglers(
            step_time=self._result.step_time,
            clean=self._time_without(*self._scenario.straggling),
            causes=tuple(sorted(causes, key=lambda cause: -cause.cost)),
            by_worker=self._measure_workers(),
            estimated=self._estimator_of_record.straggling,
        )

    @cached_property
    def _planned_step(self) -> PlannedStep:
        return plan_step(self._scenario)  # the same for all faults

    @cached_property
    def _estimator_of_record(self) -> Any:
        return load_provided("estimator of recorded jobs")(self._result, self._scenario.name)

    def _time_without(self, *places: int) -> float:
        if places not in self._known:
            self._known[places] = simulate_scenario(
                self._scenario.without(*places), planned=self._planned_step
            ).step_time
        return self._known[places]

    def _time_with_only(self, *places: int) -> float:
        return self._time_without(*(place for place in range(len(self._scenario.faults)) if place not in places))

    def _workers_with(self, fault: Fault) -> tuple[tuple[int, int], ...]:
        if fault.everywhere:
            return ()
        places = [self._plan.coordinates(rank) for rank in fault.chosen(self._hosts)]
        return tuple(dict.fromkeys((place["dp"], place["pp"]) for place in places))

    def _measure_fault(self, place: int, fault: Fault) -> Cause:
        step, note, estimate = self._result.step_time, "", None
        if self._time_without(place) > step:
            other = self._scenario.without(place)
            again = simulate_scenario(other, planned=self._planned_step)
            note = describe_unexpected_slowdown(find_unexpected_slowdown(self._result, again, self._scenario, other))
        if workers := self._workers_with(
            fault
        ):  # their ops take what is typical; steps as the run has them, end to end
            numbers = [dp * self._plan.pp + stage for dp, stage in workers]
            estimate = step * float(self._estimator_of_record.share_without(numbers))
        return Cause(
            describe_fault(fault), step, self._time_without(place), self._time_with_only(place), estimate, note
        )

    def _measure_pipeline(self) -> Iterator[Cause]:
        step = self._result.step_time
        pipeline = self._scenario.pipeline.model_copy(update={"layers_per_stage": "auto"})
        try:  # the model cut where the times of the run say
            even = simulate_scenario(self._scenario.model_copy(update={"pipeline": pipeline})).step_time
        except InputError:  # a schedule or model that cannot be cut otherwise
            even = step
        if even < step:
            estimated = self._estimator_of_record.straggling
            estimate = step * estimated.last_stage.without / float(estimated.replayed.mean())
            yield Cause("uneven stages", step, even, None, estimate)
        free = simulate_scenario(self._scenario, change=free_lm_head).step_time
        if free < step:
            yield Cause("LM head and loss", step, free, None, None)

    def _measure_workers(self) -> Floats:
        found = np.ones((self._scenario.dp, self._plan.pp))
        owners = [self._workers_with(fault) for fault in self._scenario.faults]
        for worker in dict.fromkeys(owner[0] for owner in owners if len(owner) == 1):
            own = [place for place, owner in enumerate(owners) if owner == (worker,)]
            found[worker] = self._time_with_only(*own) / self._time_without(*range(len(owners)))
        return found


def free_lm_head(programs: Sequence[StageProgram]) -> list[StageProgram]:
    """Return the stages' ops with a free LM head and loss, which take no time but stay in their places."""
    return free_chosen_ops(programs, lambda op: op.name.startswith(("lm_head", "loss")))
