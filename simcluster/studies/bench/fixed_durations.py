"""Simulation of a pipeline schedule with user-given pass durations, for textbook examples and measured profiles.

Stage programs, folding, engine and metrics are those of a scenario; only the durations are given instead of computed
from a model and a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from simcluster.base.clock import simulate_on_exact_grid
from simcluster.base.errors import InputError
from simcluster.base.gc_pause import pause_gc
from simcluster.documents.argument_types import check_arguments
from simcluster.engine.job_record import simulate_job
from simcluster.engine.tabulate import tabulate_job
from simcluster.planning.fixed_time_stages import FixedTimeStageBuilder, SendMode
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.user_supplied_times import (
    ChunkCosts,
    Costs,
    require_short_simulation,
    require_valid_steps,
    slowdown_of_every_rank,
    times_for_scheduling,
)
from simcluster.results.simulated_run import Run
from simcluster.schedules import Schedule, ScheduleFunction, ScheduleMaker, make_schedule
from simcluster.symmetry.folding import SymmetryFinder
from simcluster.topology import parse_topology
from simcluster.traffic.collective_methods import MethodChooser

__all__ = ["Costs", "OptimizerSync", "seconds_between_steps", "simulate_costs"]

OptimizerSync = Literal["all_reduce", "post_validation"]
"""How the stages agree on gradient norm and overflow: together before the optimizer, or by a later check that
runs concurrently with the next step, so that no stage waits (arXiv:2401.10241 section 4)."""


@check_arguments
@pause_gc()
def simulate_costs(
    costs: Costs | Sequence[Costs],
    *,
    stages: int,
    microbatches: int,
    schedule: str | Schedule | ScheduleFunction | ScheduleMaker = "1f1b",
    chunks: int = 1,
    tp: int = 1,
    dp: int = 1,
    steps: int = 1,
    blocking_sends: bool = False,
    rendezvous: bool = False,
    optimizer_sync: OptimizerSync = "post_validation",
    sync: float = 0.0,
    slowness: Mapping[int, float] | None = None,
    folded: bool = True,
) -> Run:
    """Simulate training steps of a pipeline with these pass durations, on tp x dp x stages ranks.

    ``costs`` is one Costs for each whole stage, the same for all, or one for each slice of the model (virtual stage) in
    forward order. ``schedule`` is a name, a name with parameters (``schedules.specs``), a function or a Schedule, whose
    number of ``chunks`` must match. Messages overlap with computation or, with ``blocking_sends``, block the sender;
    with ``rendezvous`` a stage waits for all that it sends and receives between two passes, as Megatron-LM does without
    overlap. With ``optimizer_sync`` all_reduce every stage waits for all others before its optimizer, and ``sync``
    seconds more. ``slowness[rank]`` multiplies that rank's compute times.

    Raises InputError if the schedule does, for a size below 1, for a number of costs other than the number of slices,
    and for the slowness of a rank that does not exist.
    """
    plan = ParallelPlan(tp=tp, dp=dp, pp=stages)
    require_valid_steps(steps, optimizer_sync, sync)
    if blocking_sends and rendezvous:
        raise InputError("'blocking_sends' and 'rendezvous' exclude each other; set only one of them")
    times, latency = times_for_scheduling(costs, stages)
    order = make_schedule(schedule, stages, microbatches, chunks, costs=times, latency=latency)
    cost = ChunkCosts(costs, order)
    end = sync if optimizer_sync == "all_reduce" and stages * tp > 1 else None
    ranks, slow = range(plan.num_ranks), slowdown_of_every_rank(slowness or {}, plan.num_ranks)
    require_short_simulation(order, steps, min(tp * dp, 1 + len(slowness or ())) if folded else tp * dp)
    way: SendMode = "rendezvous" if rendezvous else "blocking" if blocking_sends else "beside"
    programs = [FixedTimeStageBuilder(cost, order, plan, each, way, end).build_program(steps) for each in range(stages)]

    flat = {"kind": "flat", "device": "h100", "gpus": plan.num_ranks, "link": {"line_rate": "1 GB/s"}}
    fabric = parse_topology({**flat, "path_latency": "0 s"}).build()  # nothing is moved, and its GPUs are equal
    capacity = fabric.link_capacity
    symmetry = SymmetryFinder(programs, plan, fabric, MethodChooser({}))
    folding = symmetry.fold_job(capacity, slow) if folded else symmetry.trivial_folding(len(capacity))

    def simulate() -> Run:
        tables = tabulate_job(programs, plan, fabric, capacity, folding, slowness=slow)
        rates = tables.tables.capacity.tolist()
        record = simulate_job(tables)
        return Run(record=record, folding=folding, capacity=rates, hop_by_hop=False, steps=steps, ranks=ranks)

    return simulate_on_exact_grid(simulate)


def seconds_between_steps(run: Run) -> float:
    """Return the time (s) from the end of the last step but one to the end of the last step.

    The length of the step if there is only one. Differs from the length of a step where stages continue without waiting
    for each other: they are in two steps at once.
    """
    spans = run.spans
    ends = [float(spans.end[spans.step == step].max()) for step in range(run.steps)]
    return ends[-1] - (ends[-2] if len(ends) > 1 else 0.0)
