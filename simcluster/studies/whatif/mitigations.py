"""Mitigations of a job's stragglers, such as replacement of a slow node, with their simulated step times.

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
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.tables import Records
from simcluster.documents.argument_types import check_arguments
from simcluster.faults.fault_spec import FaultSpec, faults_with_effect
from simcluster.results.result import Result
from simcluster.scenario.data_wait import without_loader
from simcluster.scenario.effort_estimate import require_time_for_steps
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.schedules import schedules_with
from simcluster.step.simulate import ResultLike, simulate_loading, simulate_scenario, to_result
from simcluster.step.step_plan import collective_options
from simcluster.studies.multi_job import PlacedJob, simulate_placed_job


@dataclass(frozen=True, slots=True)
class Mitigation(Displayable):
    """A change of a job that reduces the cost of stragglers, and the simulated step time (s) with this change.

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


@check_arguments
def mitigations(result: ResultLike) -> Records[Mitigation]:
    """Simulate each change that may reduce the cost of the job's stragglers; return the best change first."""
    result = to_result(result, "mitigations")
    found = []
    changes = list(_iterate_mitigations(result.scenario))
    require_time_for_steps(result.scenario, len(changes), "mitigations", ops=result.simulated_ops)
    for what, changed, note in changes:
        try:
            step_time = simulate_reduced_job(changed)
        except InputError:  # a schedule that cannot be cut otherwise, for one
            continue
        found.append(_make_mitigation(result, what, changed.scenario, step_time, note))
    return Records(sorted(found, key=lambda each: -each.pays))


def _make_mitigation(result: Result, what: str, scenario: Scenario, step_time: float, note: str) -> Mitigation:
    old, new = result.scenario, scenario
    ratio = (step_time / new.training.global_batch) / (result.step_time / old.training.global_batch)
    per_gpu = ratio * new.gpus / old.gpus
    return Mitigation(what, step_time, new.training.global_batch, new.gpus, 1 - ratio, 1 - per_gpu, note)


def _iterate_mitigations(scenario: Scenario) -> Iterator[tuple[str, ReducedJob, str]]:

    def reduced_job(changes: Mapping[str, Any]) -> ReducedJob:
        return ReducedJob(scenario.model_copy(update=changes), None)

    faults = scenario.faults
    if scenario.parallel.pp > 1 and scenario.pipeline.layers_per_stage != "auto":
        pipeline = scenario.pipeline.model_copy(update={"layers_per_stage": "auto"})
        yield "rebalance the stages (layers_per_stage: auto)", reduced_job({"pipeline": pipeline}), ""
    for machine in find_slow_nodes(scenario):
        healthy = tuple(fault for fault in faults if not _slows_only_node(fault, scenario, machine))
        yield f"replace node {machine} with a healthy one", reduced_job({"faults": healthy}), ""
        smaller, note = drop_node(scenario, machine)
        if smaller is not None:
            yield f"drop node {machine}, continue with dp {smaller.scenario.dp}", smaller, note
    remedies = [fault.remedy() for fault in faults]
    for what in dict.fromkeys(remedy[0] for remedy in remedies if remedy is not None):
        pairs = zip(faults, remedies, strict=True)
        better = tuple(remedy[1] if remedy is not None and remedy[0] == what else fault for fault, remedy in pairs)
        yield what, reduced_job({"faults": better}), ""


def find_slow_nodes(scenario: Scenario) -> list[int]:
    """Return the numbers of the nodes with a slow GPU, in ascending order."""
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    slow = [fault for fault in faults_with_effect(scenario.faults, "slowdown_factor") if not fault.affects_all_ranks]
    return sorted(dict.fromkeys(hosts[rank] for fault in slow for rank in fault.affected_ranks(hosts)))


def _slows_only_node(fault: FaultSpec, scenario: Scenario, node: int) -> bool:
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    return "slowdown_factor" in fault.effects() and {hosts[rank] for rank in fault.affected_ranks(hosts)} == {node}


# --- fewer replicas ---------------------------------------------------------------------------------------------------


class ReducedJob(NamedTuple):
    """A job with fewer replicas, and the GPUs of its ranks (None: the first GPUs of the cluster)."""

    scenario: Scenario
    gpus: tuple[int, ...] | None


def remove_nodes(scenario: Scenario, machines: int) -> ReducedJob | None:
    """Return the job with as many replicas as fit after the loss of ``machines`` nodes; None if no replica fits.

    The first replicas leave. Where nodes have ranks of several replicas that are not all on the same ones, ranks move
    up into the gap (``drop_node_and_move_ranks``).
    """
    hosts = scenario.cluster.built.node_of_gpu[: scenario.gpus]
    each = len(hosts) // len(np.unique(hosts))
    left = min(scenario.dp - 1, (scenario.gpus - machines * each) // (scenario.gpus // scenario.dp))
    if left < 1:
        return None
    stays = _drop_replicas(scenario, np.arange(scenario.dp) < scenario.dp - left)
    moved: Scenario | None = scenario
    while stays is None and moved is not None and moved.dp > left:
        moved, _ = drop_node_and_move_ranks(moved, int(hosts[0]))
    if stays is None and moved is not None:
        return ReducedJob(moved, None)
    return stays


def drop_node(scenario: Scenario, machine: int) -> tuple[ReducedJob | None, str]:
    """Return the job without the replicas that use this node, and a note on GPUs that become idle.

    The others stay where they are, as in ``remove_nodes``, where they have no faults; else ranks move up
    (``drop_node_and_move_ranks``). None for a job of a single replica.
    """
    moved, note = drop_node_and_move_ranks(scenario, machine)
    if moved is None:
        return None, note
    grid = plan_of(scenario, schedule_of(scenario)).grid
    there = scenario.cluster.built.node_of_gpu[grid] == machine
    stays = _drop_replicas(scenario, there.any(axis=tuple(axis for axis in range(grid.ndim) if axis != 1)))
    whole = stays is not None and stays.scenario.dp == moved.dp and not stays.scenario.faults
    return stays if whole else ReducedJob(moved, None), note


def _drop_replicas(scenario: Scenario, gone: Bools) -> ReducedJob | None:
    """Return the job without the replicas marked in ``gone``; the remaining ranks keep their GPUs.

    None where none is left or both have ranks on one node, and where collectives are simulated step by step.
    """
    grid, hosts = plan_of(scenario, schedule_of(scenario)).grid, scenario.cluster.built.node_of_gpu
    kept = grid[:, ~gone]
    if gone.all() or np.isin(hosts[kept], hosts[grid[:, gone]]).any() or collective_options(scenario).hop_by_hop:
        return None
    gpus = np.sort(kept.ravel()).tolist()  # in the order of their ranks in the smaller job as well
    return ReducedJob(reduce_to_ranks(scenario, kept.shape[1], gpus), tuple(gpus))


def simulate_reduced_job(job: ReducedJob) -> float:
    """Simulate the reduced job; return its step time (s)."""
    scenario, gpus = job
    if gpus is None:
        return simulate_scenario(scenario).step_time
    if scenario.data and scenario.data.loader:
        alone = simulate_reduced_job(ReducedJob(without_loader(scenario), gpus))
        loading = simulate_loading(scenario, alone)
        return alone + (loading.exposed_seconds if loading else 0.0)
    return simulate_placed_job(PlacedJob(scenario, gpus), scenario.cluster.built).step_time


def drop_node_and_move_ranks(scenario: Scenario, machine: int) -> tuple[Scenario | None, str]:
    """Return the job without a node, with ranks moved to close the gap, and a note on batch size and idle GPUs.

    Ranks move up into the gap (``reduce_to_ranks``). None for a job of a single replica.
    """
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    replica = scenario.gpus // scenario.dp
    kept = [rank for rank in range(scenario.gpus) if hosts[rank] != machine]
    dp = min(scenario.dp - 1, len(kept) // replica)
    if dp < 1:
        return None, "the job has a single replica"
    changed = reduce_to_ranks(scenario, dp, kept[: dp * replica])
    batch, notes = changed.training.global_batch, []
    if batch != scenario.training.global_batch:
        notes.append(f"global batch {batch:,}, as {scenario.training.global_batch:,} is not divisible by dp")
    if len(kept) > changed.gpus:
        notes.append(f"{len(kept) - changed.gpus:,} healthy GPUs are idle")
    return changed, "; ".join(notes)


def reduce_to_ranks(scenario: Scenario, dp: int, kept: Sequence[int]) -> Scenario:
    """Return the job with ``dp`` replicas, which run on the previous ranks in ``kept``, in this order.

    The global batch stays where the replicas can share it, else it is the nearest smaller one that they can. A fault of
    a rank moves with it.
    """
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    parallel, training = scenario.parallel, scenario.training
    together = dp * training.micro_batch
    if scenario.pipeline.schedule in schedules_with("needs_whole_groups"):
        together *= parallel.pp
    batch = training.global_batch // together * together or together
    place = {rank: number for number, rank in enumerate(kept)}
    moved = [fault.for_remaining_ranks(hosts, place) for fault in scenario.faults]
    sections = {"parallel": parallel.model_copy(update={"dp": dp}),
                "training": training.model_copy(update={"global_batch": batch})}  # fmt: skip
    faults = tuple(fault for fault in moved if fault is not None)
    return scenario.model_copy(update={"gpus": len(kept), "faults": faults, **sections})
