"""What can be done about a job's stragglers, and what each step would take: every answer is played."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.base.tables import Records
from simcluster.documents.argument_types import checked
from simcluster.faults.spec import FaultSpec, acting
from simcluster.results.result import Result
from simcluster.scenario.effort import require_time_for
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import ResultLike, result_of
from simcluster.studies.whatif.fewer import FewerReplicas, dropped, step_of


@dataclass(frozen=True, slots=True)
class Mitigation(Shown):
    """A change of the job against its stragglers.

    ``step_time`` in seconds for ``samples`` sequences with ``gpus`` GPUs; ``pays`` is how much less time the job takes
    for the same sequences (0.1: 10 % less; negative: more), and ``pays_per_gpu`` how much less GPU time.
    """

    what: str
    step_time: float
    samples: int
    gpus: int
    pays: float
    pays_per_gpu: float
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "what": self.what,
            "step_time_s": self.step_time,
            "samples": self.samples,
            "gpus": self.gpus,
            "pays": self.pays,
            "pays_per_gpu": self.pays_per_gpu,
            "note": self.note,
        }


@checked
def what_pays(result: ResultLike) -> Records[Mitigation]:
    """Those that apply to a scenario or to that of a result, best first; what cannot be planned is left out."""
    result = result_of(result, "what_pays")
    found = []
    changes = list(_changes(result.scenario))
    require_time_for(result.scenario, len(changes), "what_pays", ops=result.ops_played)
    for what, changed, note in changes:
        try:
            step_time = step_of(changed)
        except InputError:  # a schedule that cannot be cut otherwise, for one
            continue
        found.append(_of(result, what, changed.scenario, step_time, note))
    return Records(sorted(found, key=lambda each: -each.pays))


def _of(result: Result, what: str, scenario: Scenario, step_time: float, note: str) -> Mitigation:
    old, new = result.scenario, scenario
    ratio = (step_time / new.training.global_batch) / (result.step_time / old.training.global_batch)
    per_gpu = ratio * new.gpus / old.gpus
    return Mitigation(what, step_time, new.training.global_batch, new.gpus, 1 - ratio, 1 - per_gpu, note)


def _changes(scenario: Scenario) -> Iterator[tuple[str, FewerReplicas, str]]:
    """(what, the changed job, what is to be said of it)."""

    def as_placed(changes: Mapping[str, Any]) -> FewerReplicas:
        return FewerReplicas(scenario.model_copy(update=changes), None)

    faults = scenario.faults
    if scenario.parallel.pp > 1 and scenario.pipeline.layers_per_stage != "auto":
        pipeline = scenario.pipeline.model_copy(update={"layers_per_stage": "auto"})
        yield "rebalance the stages (layers_per_stage: auto)", as_placed({"pipeline": pipeline}), ""
    for machine in slow_machines(scenario):
        healthy = tuple(fault for fault in faults if not _slows(fault, scenario, machine))
        yield f"replace machine {machine} by a healthy one", as_placed({"faults": healthy}), ""
        smaller, note = dropped(scenario, machine)
        if smaller is not None:
            yield f"drop machine {machine}, go on with dp {smaller.scenario.dp}", smaller, note
    remedies = [fault.remedy() for fault in faults]
    for what in dict.fromkeys(remedy[0] for remedy in remedies if remedy is not None):
        pairs = zip(faults, remedies, strict=True)
        better = tuple(remedy[1] if remedy is not None and remedy[0] == what else fault for fault, remedy in pairs)
        yield what, as_placed({"faults": better}), ""


def slow_machines(scenario: Scenario) -> list[int]:
    """Machines that have a slow GPU, ascending."""
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    slow = [fault for fault in acting(scenario.faults, "slowness") if not fault.everywhere]
    return sorted(dict.fromkeys(hosts[rank] for fault in slow for rank in fault.chosen(hosts)))


def _slows(fault: FaultSpec, scenario: Scenario, machine: int) -> bool:
    """Does a fault slow the GPUs of this machine alone?"""
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    return "slowness" in fault.effects() and {hosts[rank] for rank in fault.chosen(hosts)} == {machine}
