"""Rules between the sections of a scenario.  Each broken one names the values, the rule, and what would work.

Pure functions of a scenario; ``Scenario`` calls them when it is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from simcluster.complaints import Complaint, did_you_mean, listed
from simcluster.errors import InputError
from simcluster.faults import SlowGpu
from simcluster.parallel import AXES
from simcluster.schedules import SCHEDULES, Schedule, schedule_function
from simcluster.topology.sizes import MAX_GPUS

if TYPE_CHECKING:
    from simcluster.scenario import Scenario
    from simcluster.topology import TopologySpec

TAKES_CHUNKS = ("interleaved", "breadth-first", "hanayo")
"""Schedules with as many chunks a stage as one asks for; all others have the chunks that their name says."""


def broken_rules(scenario: Scenario, cluster_gpus: int) -> list[Complaint]:
    """Every broken rule of a scenario on a cluster of so many GPUs, most basic first; none when it can be planned."""
    found = list(_grid(scenario, cluster_gpus))
    found += _tensor(scenario)
    found += _schedule(scenario)
    found += _stages(scenario)
    if scenario.parallel.dp:  # otherwise the grid's complaint is enough
        found += _batch(scenario)
    if not found:
        found += _order(scenario)
    found += _device(scenario)
    found += _faults(scenario)
    if scenario.overlap.param_gather and scenario.parallel.zero < 1:
        what = "there are no sharded parameters to gather with parallel.zero 0"
        found.append((("overlap", "param_gather"), f"{what}; set zero to 1, or param_gather to false"))
    return found


def oversize(topology: TopologySpec) -> str | None:
    """Why a cluster is too large to be built, if it is: found before it takes the memory."""
    count = {name: value for name, value in topology if isinstance(value, int)}
    gpus = count.get("nodes", 1) * count.get("gpus_per_node", 1)
    gpus *= count.get("gpus", 1) * count.get("leaves", 1) * count.get("gpus_per_leaf", 1)
    if gpus > MAX_GPUS:
        return f"has {gpus:,} GPUs; at most {MAX_GPUS:,} can be simulated: use fewer nodes"
    uplinks = count.get("leaves", 1) * count.get("spines", 1)
    return (
        f"has {uplinks:,} uplinks; at most {MAX_GPUS:,} can be simulated: use fewer spines"
        if uplinks > MAX_GPUS
        else None
    )


def near_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of ``number`` nearest to ``wanted``, one on each side where there is one."""
    divisors = _divisors(number)
    below = [divisor for divisor in divisors if divisor < wanted][-1:]
    return below + [divisor for divisor in divisors if divisor > wanted][:1]


def near_multiples(step: int, wanted: int) -> list[int]:
    """The positive multiples of ``step`` nearest to ``wanted``, one on each side where there is one."""
    below = wanted // step * step
    return [multiple for multiple in (below, below + step) if multiple > 0]


def _divisors(number: int) -> list[int]:
    small = [candidate for candidate in range(1, int(number**0.5) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})


# --- GPUs -----------------------------------------------------------------------------------------------------------


def _grid(scenario: Scenario, cluster_gpus: int) -> Iterator[Complaint]:
    """tp x pp x dp x cp = gpus, at most what the cluster has."""
    parallel, gpus = scenario.parallel, scenario.gpus
    fixed = parallel.tp * parallel.pp * parallel.cp
    if gpus > cluster_gpus:
        what = f"the job wants {gpus} GPUs, the cluster has {cluster_gpus}"
        yield ("gpus",), f"{what}; use {cluster_gpus} or fewer, or a larger cluster"
    sizes = f"tp {parallel.tp} x pp {parallel.pp} x cp {parallel.cp}"
    if parallel.dp and fixed * parallel.dp != gpus:
        product = fixed * parallel.dp
        fixes = [f"set gpus to {product}"] if product <= cluster_gpus else []
        fixes += [f"set dp to {gpus // fixed} (or leave it out)"] if gpus % fixed == 0 else []
        fixes += [] if gpus % fixed == 0 else [_smaller(gpus)]
        what = f"{sizes} x dp {parallel.dp} = {product}, but the job has {gpus} GPUs; the product must be the GPUs"
        yield ("parallel",), f"{what}: {', or '.join(fixes)}"
    elif not parallel.dp:
        multiples = [number for number in near_multiples(fixed, gpus) if number <= cluster_gpus]
        fix = f"set gpus to {listed(multiples)}, or {_smaller(gpus)}" if multiples else _smaller(gpus)
        yield ("parallel",), f"{sizes} = {fixed} does not divide the job's {gpus} GPUs; {fix}"
    if sorted(parallel.order) != sorted(AXES):
        what = f"[{', '.join(parallel.order)}] must name each of {', '.join(AXES)} once, fastest first"
        yield ("parallel", "order"), f"{what}, as in [tp, cp, dp, pp]"


def _smaller(gpus: int) -> str:
    return f"choose tp, pp and cp whose product divides {gpus} (one of {', '.join(map(str, _divisors(gpus)[:12]))})"


# --- the model on the grid -------------------------------------------------------------------------------------------


def _tensor(scenario: Scenario) -> Iterator[Complaint]:
    """What tensor and sequence parallelism split must divide."""
    model, parallel = scenario.model, scenario.parallel
    tp = parallel.tp
    split = {"heads": model.heads, "ffn_hidden_size": model.ffn_hidden_size}
    if model.kv_heads % tp and tp % model.kv_heads:  # more ranks than key-value heads: each keeps a copy of one
        split["kv_heads"] = model.kv_heads
    if parallel.sequence_parallel:
        split |= {"hidden_size": model.hidden_size, "sequence_length": model.sequence_length}
        if tp == 1:
            what = "sequence parallelism splits over the tp ranks, and tp is 1"
            yield ("parallel", "sequence_parallel"), f"{what}; set tp to 2 or more, or sequence_parallel to false"
    undivided = [f"model.{name} {size}" for name, size in split.items() if size % tp]
    if undivided:
        fix = listed(near_divisors(math.gcd(*split.values()), tp))
        yield ("parallel", "tp"), f"tp {tp} does not divide {', '.join(undivided)}; use tp {fix}"


def _schedule(scenario: Scenario) -> Iterator[Complaint]:
    """The schedule exists, and has the stages and chunks that it needs."""
    name, chunks = scenario.pipeline.schedule, scenario.pipeline.chunks
    if name not in SCHEDULES:
        what = f"unknown schedule {name!r}{did_you_mean(name, SCHEDULES)}"
        yield ("pipeline", "schedule"), f"{what}; known: {', '.join(SCHEDULES)}"
    elif chunks > 1 and name not in TAKES_CHUNKS:
        what = f"{chunks} chunks need the schedule {listed(TAKES_CHUNKS)}, and it is {name}"
        yield ("pipeline", "chunks"), f"{what}; leave chunks out, or change the schedule"
    elif name == "interleaved" and scenario.parallel.pp == 1:
        what = f"{name} needs stages to take turns on, and parallel.pp is 1"
        yield ("pipeline", "schedule"), f"{what}; use pp 2 or more, or the schedule 1f1b"


def _stages(scenario: Scenario) -> Iterator[Complaint]:
    """Every stage and chunk has as many layers as the others."""
    layers, pp, chunks = scenario.model.layers, scenario.parallel.pp, scenario.pipeline.chunks
    if layers % pp:
        what = f"pp {pp} does not divide model.layers {layers}; every stage holds as many layers"
        yield ("parallel", "pp"), f"{what}: use pp {listed(near_divisors(layers, pp))}"
    elif layers % (pp * chunks):
        what = f"pp {pp} x chunks {chunks} = {pp * chunks} does not divide model.layers {layers}"
        fix = listed(near_divisors(layers // pp, chunks))
        yield ("pipeline", "chunks"), f"{what}; every chunk holds as many layers: use chunks {fix}"


def schedule_of(scenario: Scenario) -> Schedule:
    """The order of the scenario's microbatches; InputError where its schedule cannot be made for them."""
    return _made(scenario.pipeline.schedule, scenario.parallel.pp, scenario.microbatches, scenario.pipeline.chunks)


@lru_cache(maxsize=16)
def _made(name: str, stages: int, microbatches: int, chunks: int) -> Schedule:
    return schedule_function(name)(stages, microbatches, chunks)


def _order(scenario: Scenario) -> Iterator[Complaint]:
    """The schedule can be made of these microbatches, and every slice of the model has as many layers."""
    try:
        schedule = schedule_of(scenario)
    except InputError as error:
        yield ("pipeline", "schedule"), str(error)
        return
    layers, slices = scenario.model.layers, len(schedule.routes[0])
    if len(schedule.routes) > 1:
        what = f"{schedule.name} keeps two copies of the model, one for each direction, and a step sums no gradients of"
        fix = "use dualpipe-v, which needs one; `simcluster schedule` and simulate_costs play it"
        yield ("pipeline", "schedule"), f"{what} copies yet; {fix}"
    elif layers % slices:
        what = (
            f"{schedule.name} on pp {scenario.parallel.pp} cuts the model into {slices} slices of equally many layers"
        )
        fix = listed(near_divisors(layers, slices))
        yield ("pipeline", "schedule"), f"{what}, and model.layers is {layers}; use a pp and schedule with {fix} slices"


# --- the batch, the device, the faults ------------------------------------------------------------------------------


def _batch(scenario: Scenario) -> Iterator[Complaint]:
    """Every replica gets the same number of whole microbatches."""
    training, dp, pp = scenario.training, scenario.parallel.dp, scenario.parallel.pp
    batch, together = training.global_batch, dp * training.micro_batch
    sizes = f"dp {dp} x micro_batch {training.micro_batch}"
    if batch % together:
        fix = listed(near_multiples(together, batch))
        yield ("training", "global_batch"), f"{batch} is not a multiple of {sizes} = {together}; use {fix}"
    elif scenario.pipeline.schedule == "interleaved" and batch // together % pp:
        fix = listed(near_multiples(together * pp, batch))
        what = f"{batch} over {sizes} is {batch // together} microbatches, not a multiple of pp {pp}"
        yield ("training", "global_batch"), f"{what} as {scenario.pipeline.schedule} needs; use {fix}"


def _device(scenario: Scenario) -> Iterator[Complaint]:
    """The GPU is known, and computes in the precision of the run."""
    try:
        device = scenario.cluster.device
    except InputError as error:
        yield ("cluster", "topology", "device"), str(error)
        return
    try:
        device.peak_flops(scenario.training.precision.removesuffix("-mixed"))
    except InputError as error:
        yield ("training", "precision"), str(error)


def _faults(scenario: Scenario) -> Iterator[Complaint]:
    for index, fault in enumerate(scenario.faults):
        if isinstance(fault, SlowGpu) and fault.rank >= scenario.gpus:
            yield (
                ("faults", index, "rank"),
                (f"there is no rank {fault.rank}: the job has {scenario.gpus} GPUs, so ranks 0 to {scenario.gpus - 1}"),
            )
