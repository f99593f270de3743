"""Mitigations of a job's stragglers, such as replacing a slow node, and their simulated step times.

Where a job continues with fewer replicas, the replica whose node has failed leaves with all of its ranks; its other
nodes are idle and replace the next that fails. Other ranks stay where they are: moved up into the gap they would leave
the pods that they fill, which is 0.6 % of Llama 3 405B's step on 16,384 GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.arrays import Bools
from simcluster.base.errors import InputError
from simcluster.base.shown import Displayable
from simcluster.base.tables import Records
from simcluster.documents.argument_types import checked
from simcluster.faults.spec import FaultSpec, acting_faults
from simcluster.results.result import Result
from simcluster.scenario.effort import require_time_for
from simcluster.scenario.loading import without_loader
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.schedules import schedules_with
from simcluster.step.planned import collective_options
from simcluster.step.simulate import ResultLike, simulate_loading, simulate_scenario, to_result
from simcluster.studies.multi_job import PlacedJob, simulate_placed


@dataclass(frozen=True, slots=True)
class Mitigation(Displayable):
    """A change of a job that reduces the cost of its stragglers, with its simulated step time (s).

    ``step_time`` in seconds for ``samples`` sequences with ``gpus`` GPUs; ``pays`` is the saved fraction of the job's
    time for the same sequences (0.1: 10 % less; negative: more), and ``pays_per_gpu`` that of GPU time.
    """

    what: str
    step_time: float
    samples: int
    gpus: int
    pays: float
    pays_per_gpu: float
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the mitigation as JSON-ready values."""
        return {name if name != "step_time" else "step_time_s": value for name, value in asdict(self).items()}


@checked
def mitigations(result: ResultLike) -> Records[Mitigation]:
    """Simulate each possible mitigation of a scenario's or result's stragglers; return them best first."""
    result = to_result(result, "mitigations")
    found = []
    changes = list(_list_mitigations(result.scenario))
    require_time_for(result.scenario, len(changes), "mitigations", ops=result.simulated_ops)
    for what, changed, note in changes:
        try:
            step_time = simulate_fewer_replicas(changed)
        except InputError:  # a schedule that cannot be cut otherwise, for one
            continue
        found.append(_make_mitigation(result, what, changed.scenario, step_time, note))
    return Records(sorted(found, key=lambda each: -each.pays))


def _make_mitigation(result: Result, what: str, scenario: Scenario, step_time: float, note: str) -> Mitigation:
    old, new = result.scenario, scenario
    ratio = (step_time / new.training.global_batch) / (result.step_time / old.training.global_batch)
    per_gpu = ratio * new.gpus / old.gpus
    return Mitigation(what, step_time, new.training.global_batch, new.gpus, 1 - ratio, 1 - per_gpu, note)


def _list_mitigations(scenario: Scenario) -> Iterator[tuple[str, FewerReplicas, str]]:

    def as_placed(changes: Mapping[str, Any]) -> FewerReplicas:
        return FewerReplicas(scenario.model_copy(update=changes), None)

    faults = scenario.faults
    if scenario.parallel.pp > 1 and scenario.pipeline.layers_per_stage != "auto":
        pipeline = scenario.pipeline.model_copy(update={"layers_per_stage": "auto"})
        yield "rebalance the stages (layers_per_stage: auto)", as_placed({"pipeline": pipeline}), ""
    for machine in find_slow_nodes(scenario):
        healthy = tuple(fault for fault in faults if not _slows_only(fault, scenario, machine))
        yield f"replace node {machine} with a healthy one", as_placed({"faults": healthy}), ""
        smaller, note = drop_node(scenario, machine)
        if smaller is not None:
            yield f"drop node {machine}, continue with dp {smaller.scenario.dp}", smaller, note
    remedies = [fault.remedy() for fault in faults]
    for what in dict.fromkeys(remedy[0] for remedy in remedies if remedy is not None):
        pairs = zip(faults, remedies, strict=True)
        better = tuple(remedy[1] if remedy is not None and remedy[0] == what else fault for fault, remedy in pairs)
        yield what, as_placed({"faults": better}), ""


def find_slow_nodes(scenario: Scenario) -> list[int]:
    """Return the numbers of the nodes that have a slow GPU, ascending."""
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    slow = [fault for fault in acting_faults(scenario.faults, "slowness") if not fault.everywhere]
    return sorted(dict.fromkeys(hosts[rank] for fault in slow for rank in fault.chosen(hosts)))


def _slows_only(fault: FaultSpec, scenario: Scenario, machine: int) -> bool:
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    return "slowness" in fault.effects() and {hosts[rank] for rank in fault.chosen(hosts)} == {machine}


# --- fewer replicas ---------------------------------------------------------------------------------------------------


class FewerReplicas(NamedTuple):
    """A job reduced to fewer replicas, and the GPUs of its ranks (None: the cluster's first ones)."""

    scenario: Scenario
    gpus: tuple[int, ...] | None


def with_fewer_nodes(scenario: Scenario, machines: int) -> FewerReplicas | None:
    """Return the job after losing ``machines`` nodes, with as many replicas as still fit; None if none fit.

    The first replicas leave. Where nodes have ranks of several replicas that are not all on the same ones, ranks move
    up into the gap (``drop_node_and_move_ranks``).
    """
    hosts = scenario.cluster.built.hosts[: scenario.gpus]
    each = len(hosts) // len(np.unique(hosts))
    left = min(scenario.dp - 1, (scenario.gpus - machines * each) // (scenario.gpus // scenario.dp))
    if left < 1:
        return None
    stays = _drop_replicas(scenario, np.arange(scenario.dp) < scenario.dp - left)
    moved: Scenario | None = scenario
    while stays is None and moved is not None and moved.dp > left:
        moved, _ = drop_node_and_move_ranks(moved, int(hosts[0]))
    if stays is None and moved is not None:
        return FewerReplicas(moved, None)
    return stays


def drop_node(scenario: Scenario, machine: int) -> tuple[FewerReplicas | None, str]:
    """Return the job without a node and the replicas on it, and a note on idle GPUs.

    The others stay where they are, as in ``with_fewer_nodes``, where they have no faults; else ranks move up
    (``drop_node_and_move_ranks``). None for a job of a single replica.
    """
    moved, note = drop_node_and_move_ranks(scenario, machine)
    if moved is None:
        return None, note
    grid = plan_of(scenario, schedule_of(scenario)).grid
    there = scenario.cluster.built.hosts[grid] == machine
    stays = _drop_replicas(scenario, there.any(axis=tuple(axis for axis in range(grid.ndim) if axis != 1)))
    whole = stays is not None and stays.scenario.dp == moved.dp and not stays.scenario.faults
    return stays if whole else FewerReplicas(moved, None), note


def _drop_replicas(scenario: Scenario, gone: Bools) -> FewerReplicas | None:
    """Return the job without the replicas that are ``gone``; the other ranks keep their GPUs.

    None where none is left or both have ranks on one node, and where collectives are simulated step by step.
    """
    grid, hosts = plan_of(scenario, schedule_of(scenario)).grid, scenario.cluster.built.hosts
    kept = grid[:, ~gone]
    if gone.all() or np.isin(hosts[kept], hosts[grid[:, gone]]).any() or collective_options(scenario).steps:
        return None
    gpus = np.sort(kept.ravel()).tolist()  # in the order of their ranks in the smaller job as well
    return FewerReplicas(keep_ranks(scenario, kept.shape[1], gpus), tuple(gpus))


def simulate_fewer_replicas(job: FewerReplicas) -> float:
    """Simulate a job with fewer replicas and return its step time (s)."""
    scenario, gpus = job
    if gpus is None:
        return simulate_scenario(scenario).step_time
    if scenario.data and scenario.data.loader:
        alone = simulate_fewer_replicas(FewerReplicas(without_loader(scenario), gpus))
        loading = simulate_loading(scenario, alone)
        return alone + (loading.exposed if loading else 0.0)
    return simulate_placed(PlacedJob(scenario, gpus), scenario.cluster.built).step_time


def drop_node_and_move_ranks(scenario: Scenario, machine: int) -> tuple[Scenario | None, str]:
    """Return the job without a node and one replica, and a note on its batch and idle GPUs.

    Ranks move up into the gap (``keep_ranks``). None for a job of a single replica.
    """
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    replica = scenario.gpus // scenario.dp
    kept = [rank for rank in range(scenario.gpus) if hosts[rank] != machine]
    dp = min(scenario.dp - 1, len(kept) // replica)
    if dp < 1:
        return None, "the job has a single replica"
    changed = keep_ranks(scenario, dp, kept[: dp * replica])
    batch, notes = changed.training.global_batch, []
    if batch != scenario.training.global_batch:
        notes.append(f"global batch {batch:,}, as {scenario.training.global_batch:,} is not divisible")
    if len(kept) > changed.gpus:
        notes.append(f"{len(kept) - changed.gpus:,} healthy GPUs idle")
    return changed, "; ".join(notes)


def keep_ranks(scenario: Scenario, dp: int, kept: Sequence[int]) -> Scenario:
    """Return the job reduced to ``dp`` replicas and the ranks in ``kept``, in this order.

    The global batch stays where the replicas can share it, else it is the nearest smaller one that they can. A fault of
    a rank moves with it.
    """
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    parallel, training = scenario.parallel, scenario.training
    together = dp * training.micro_batch
    if scenario.pipeline.schedule in schedules_with("in_groups"):
        together *= parallel.pp
    batch = training.global_batch // together * together or together
    place = {rank: number for number, rank in enumerate(kept)}
    moved = [fault.moved(hosts, place) for fault in scenario.faults]
    sections = {"parallel": parallel.model_copy(update={"dp": dp}),
                "training": training.model_copy(update={"global_batch": batch})}  # fmt: skip
    faults = tuple(fault for fault in moved if fault is not None)
    return scenario.model_copy(update={"gpus": len(kept), "faults": faults, **sections})
