"""Cost of each straggler of a job: the step time saved by removing this cause of delay.

Next to the exact cost is the estimate for recorded jobs (``interop.replay``) from the trace of the same run alone,
which is all that is known of a real job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.satellites import load_satellite_object
from simcluster.base.tables import Records
from simcluster.documents.argument_types import check_arguments
from simcluster.faults import Fault
from simcluster.faults.descriptions import describe_fault
from simcluster.results.result import Result
from simcluster.scenario.effort_estimate import require_time_for_steps
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import ResultLike, simulate_scenario, to_result
from simcluster.step.step_plan import PlannedStep, plan_step
from simcluster.studies.whatif.free_ops import make_chosen_ops_free
from simcluster.studies.whatif.unexpected_slowdown import describe_unexpected_slowdown, find_unexpected_slowdown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class StragglerCause(Displayable):
    """One cause of delay, with the step time (s) without this cause and the step time with this cause alone.

    ``step_time_without`` has all other causes, ``step_time_alone`` none of them (None where that is not known).
    ``estimated_without`` is the trace's estimate of ``step_time_without``, None where it has none.
    """

    what: str
    step_time: float
    step_time_without: float
    step_time_alone: float | None
    estimated_without: float | None
    note: str = ""
    """Explanation if the step is longer without the cause."""

    @property
    def cost(self) -> float:
        """Fraction of the step time that removing this cause saves."""
        return 1 - self.step_time_without / self.step_time

    @property
    def estimated_cost(self) -> float | None:
        """Fraction of the step time that removing this cause saves, estimated from the trace."""
        return None if self.estimated_without is None else 1 - self.estimated_without / self.step_time

    def to_dict(self) -> dict[str, Any]:
        """Return the cause as JSON-ready values."""
        return {
            "what": self.what, "cost": self.cost, "estimated_cost": self.estimated_cost,
            "without_s": self.step_time_without, "alone_s": self.step_time_alone, "note": self.note,
        }  # fmt: skip


@dataclass(frozen=True)
class StragglerCosts(Displayable):
    """Costs of a job's stragglers: step times (s) with and without all of them, cost per cause and per worker.

    Delays equal on all ranks are in both times. ``slowdown_by_worker[dp rank, stage]`` is the slowdown by the faults of
    that worker's GPUs alone, exactly; ``estimated.slowdown_by_worker`` the estimator's (``estimated`` is a
    ``StragglerMetrics`` of ``interop.replay``).
    """

    step_time: float
    clean_step_time: float
    causes: tuple[StragglerCause, ...]
    slowdown_by_worker: Floats
    estimated: Any

    @property
    def slowdown(self) -> float:
        """Exact slowdown S: step time divided by the step time without stragglers."""
        return self.step_time / self.clean_step_time

    @property
    def table(self) -> pd.DataFrame:
        """Table with one row per cause of delay and its costs; ``without_s`` and ``alone_s`` are step times (s)."""
        return Records(self.causes).table

    def to_dict(self) -> dict[str, Any]:
        """Return the stragglers as JSON-ready values."""
        return {
            "step_time_s": self.step_time,
            "clean_s": self.clean_step_time,
            "slowdown": self.slowdown,
            "causes": [cause.to_dict() for cause in self.causes],
            "slowdown_by_worker": self.slowdown_by_worker.tolist(),
            "estimated": self.estimated.to_dict(),
        }


@check_arguments
def stragglers(result: ResultLike) -> StragglerCosts:
    """Simulate the step without each fault, with even stages and without the LM head; return the cost of each.

    Raises InputError where all these steps would take too long to simulate.
    """
    result = to_result(result, "stragglers")
    steps = count_straggler_steps(result.scenario)
    require_time_for_steps(result.scenario, steps, "stragglers", ops=result.simulated_ops)
    return _CounterfactualSteps(result).find_stragglers()


def count_straggler_steps(scenario: Scenario) -> int:
    """Return the number of steps that ``stragglers`` simulates: with each fault removed, each alone, and none."""
    return 2 * len(scenario.faults) + 1 + 2 * (scenario.parallel.pp > 1)


class _CounterfactualSteps:
    """Simulator of a scenario with some of its faults removed; each combination is simulated once."""

    def __init__(self, result: Result) -> None:
        self._result, self._scenario = result, result.scenario
        self._plan = result.job.plan
        self._hosts = result.scenario.cluster.built.host_of[: result.scenario.gpus]
        self._known: dict[tuple[int, ...], float] = {(): result.step_time}
        if result.without_faults is not None:
            self._known[result.scenario.straggler_faults] = result.without_faults

    def find_stragglers(self) -> StragglerCosts:
        causes = [self._measure_fault(place, fault) for place, fault in enumerate(self._scenario.faults)]
        if self._scenario.parallel.pp > 1:
            causes += self._measure_pipeline()
        return StragglerCosts(
            step_time=self._result.step_time,
            clean_step_time=self._step_time_without(*self._scenario.straggler_faults),
            causes=tuple(sorted(causes, key=lambda cause: -cause.cost)),
            slowdown_by_worker=self._measure_workers(),
            estimated=self._estimator_of_record.metrics,
        )

    @cached_property
    def _planned_step(self) -> PlannedStep:
        return plan_step(self._scenario)  # the same for all faults

    @cached_property
    def _estimator_of_record(self) -> Any:
        return load_satellite_object("estimator of recorded jobs")(self._result, self._scenario.name)

    def _step_time_without(self, *indices: int) -> float:
        if indices not in self._known:
            scenario = self._scenario.without(*indices)
            self._known[indices] = simulate_scenario(scenario, planned=self._planned_step).step_time
        return self._known[indices]

    def _step_time_with_only(self, *indices: int) -> float:
        return self._step_time_without(*(place for place in range(len(self._scenario.faults)) if place not in indices))

    def _workers_with_fault(self, fault: Fault) -> tuple[tuple[int, int], ...]:
        if fault.affects_all_ranks:
            return ()
        places = [self._plan.coordinates(rank) for rank in fault.affected_ranks(self._hosts)]
        return tuple(dict.fromkeys((place["dp"], place["pp"]) for place in places))

    def _measure_fault(self, index: int, fault: Fault) -> StragglerCause:
        step, why, estimate = self._result.step_time, "", None
        if self._step_time_without(index) > step:
            other = self._scenario.without(index)
            again = simulate_scenario(other, planned=self._planned_step)
            why = describe_unexpected_slowdown(find_unexpected_slowdown(self._result, again, self._scenario, other))
        if workers := self._workers_with_fault(fault):
            # their ops take what is typical; steps as the run has them, end to end
            numbers = [dp * self._plan.pp + stage for dp, stage in workers]
            estimate = step * float(self._estimator_of_record.time_share_without(numbers))
        return StragglerCause(
            describe_fault(fault), step, self._step_time_without(index), self._step_time_with_only(index), estimate, why
        )

    def _measure_pipeline(self) -> Iterator[StragglerCause]:
        step = self._result.step_time
        pipeline = self._scenario.pipeline.model_copy(update={"layers_per_stage": "auto"})
        try:  # the model cut where the times of the run say
            even = simulate_scenario(self._scenario.model_copy(update={"pipeline": pipeline})).step_time
        except InputError:  # a schedule or model that cannot be cut otherwise
            even = step
        if even < step:
            estimated = self._estimator_of_record.metrics
            estimate = step * estimated.last_stage.without / float(estimated.replayed.mean())
            yield StragglerCause("uneven stages", step, even, None, estimate)
        free_head = partial(make_chosen_ops_free, chosen=lambda op: op.name.startswith(("lm_head", "loss")))
        free = simulate_scenario(self._scenario, change=free_head).step_time
        if free < step:
            yield StragglerCause("LM head and loss", step, free, None, None)

    def _measure_workers(self) -> Floats:
        found = np.ones((self._scenario.dp, self._plan.pp))
        owners = [self._workers_with_fault(fault) for fault in self._scenario.faults]
        for worker in dict.fromkeys(owner[0] for owner in owners if len(owner) == 1):
            own = [place for place, owner in enumerate(owners) if owner == (worker,)]
            found[worker] = self._step_time_with_only(*own) / self._step_time_without(*range(len(owners)))
        return found
