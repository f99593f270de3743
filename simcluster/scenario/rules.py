"""Rules between sections of a scenario; each error states the values, the rule, and what would work.

Pure functions of a scenario; ``Scenario`` checks them when it is created.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.devices.sensitivity import make_interference
from simcluster.documents.diagnostics import KeyProblem, join_or
from simcluster.documents.field_annotations import find_unsupported_values
from simcluster.documents.suggestions import divisors, nearest_divisors, nearest_multiples
from simcluster.model.recipes import RECIPES
from simcluster.planning.optimizer import get_optimizer_class
from simcluster.planning.rank_grid import AXES
from simcluster.scenario import model_rules, schedule_rules
from simcluster.scenario.effort_estimate import check_effort
from simcluster.scenario.schedule_plan import check_outer_step
from simcluster.scenario.sections import HostOffload, StepCheckpointSection
from simcluster.schedules import schedules_with
from simcluster.topology.draft import MAX_GPUS
from simcluster.topology.machine_parts import MachineSpec

if TYPE_CHECKING:
    from simcluster.devices.device import Device
    from simcluster.scenario.scenario_fields import ScenarioFields
    from simcluster.scenario.training_section import Training
    from simcluster.topology import TopologySpec


def find_broken_rules(scenario: ScenarioFields) -> list[KeyProblem]:
    """Return all violated rules of a scenario, the most basic first; empty if the scenario is valid."""
    found = list(_check_rank_grid(scenario))
    found += model_rules.check_model_rules(scenario)
    found += schedule_rules.check_schedule_name(scenario)
    found += schedule_rules.check_stage_layers(scenario)
    if scenario.parallel.dp:  # otherwise the grid's complaint is enough
        found += _check_batch(scenario)
    if not found:
        found += check_effort(scenario)
    if not found:
        found += schedule_rules.check_finished_schedule(scenario)
    found += _check_device(scenario)
    training = scenario.training
    if training.recompute == "operators" and training.attention == "unfused":
        what = "operators keeps the result of a fused attention, but training.attention is unfused"
        found.append((("training", "recompute"), f"{what}; set attention to fused, or recompute to selective"))
    modelled_with = get_optimizer_class(training.optimizer).MODELLED_WITH
    found += find_unsupported_values(f"training.optimizer: {training.optimizer}", modelled_with, scenario)
    if training.muon.distribute == "layers" and scenario.parallel.zero > 1:
        what = f"no rank has whole matrices: zero {scenario.parallel.zero} shards their gradients"
        found.append((("training", "muon", "distribute"), f"{what}; use all_to_all or gather, or zero 1"))
    if training.outer:
        found += check_outer_step(scenario, training.outer)
    if scenario.model.moe or not isinstance(scenario.overlap.interference, str):
        found += _check_interference(scenario)
    if scenario.faults:
        found += _check_faults(scenario)
    if scenario.parallel.zero == 3:
        found += _check_fsdp(scenario)
    if scenario.memory.offload != HostOffload():
        found += _check_offload(scenario)
    if scenario.checkpoint:
        found += _check_checkpoint(scenario, scenario.checkpoint)
    return found


def explain_oversize(topology: TopologySpec) -> str | None:
    """Return why a cluster is too large to be built, judged by counts alone; None if the size is acceptable."""
    count = {name: value for name, value in topology if isinstance(value, int)}
    gpus = count.get("nodes", 1) * count.get("gpus_per_node", 1)
    gpus *= count.get("gpus", 1) * count.get("leaves", 1) * count.get("gpus_per_leaf", 1)
    if gpus > MAX_GPUS:
        return f"has {gpus:,} GPUs; at most {MAX_GPUS:,} can be simulated: use fewer nodes"
    uplinks = count.get("leaves", 1) * count.get("spines", 1)
    if uplinks > MAX_GPUS:
        return f"has {uplinks:,} uplinks; at most {MAX_GPUS:,} can be simulated: use fewer spines"
    return None


# --- GPUs -----------------------------------------------------------------------------------------------------------


def _check_rank_grid(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    parallel, gpus, cluster_gpus = scenario.parallel, scenario.gpus, scenario.cluster.built.num_gpus
    fixed = parallel.tp * parallel.pp * parallel.cp
    if gpus > cluster_gpus:
        what = f"the job needs {gpus} GPUs, but the cluster has {cluster_gpus}"
        nodes = getattr(scenario.cluster.topology, "nodes", None)
        enough = f" (cluster.nodes: {-(-gpus * nodes // cluster_gpus)})" if isinstance(nodes, int) else ""
        yield ("gpus",), f"{what}; use {cluster_gpus} or fewer, or a larger cluster{enough}"
    sizes = f"tp {parallel.tp} x pp {parallel.pp} x cp {parallel.cp}"
    if parallel.dp and fixed * parallel.dp != gpus:
        product = fixed * parallel.dp
        fixes = [f"set gpus to {product}"] if product <= cluster_gpus else []
        fixes += [_suggest_sizes(gpus) if gpus % fixed else f"set dp to {gpus // fixed} (or remove it)"]
        what = f"{sizes} x dp {parallel.dp} = {product}, but the job has {gpus} GPUs; they must be equal"
        yield ("parallel",), f"{what}: {', or '.join(fixes)}{_rack_count_hint(scenario)}"
    elif not parallel.dp:
        multiples = [number for number in nearest_multiples(fixed, gpus) if number <= cluster_gpus]
        fix = f"set gpus to {join_or(multiples)}, or {_suggest_sizes(gpus)}" if multiples else _suggest_sizes(gpus)
        what = f"{sizes} = {fixed} does not divide the job's {gpus} GPUs"
        yield ("parallel",), f"{what}; {fix}{_rack_count_hint(scenario)}"
    if sorted(parallel.order) != sorted(AXES):
        what = f"[{', '.join(parallel.order)}] must name each of {', '.join(AXES)} once, fastest first"
        yield ("parallel", "order"), f"{what}, as in [tp, cp, dp, pp]"


def _rack_count_hint(scenario: ScenarioFields) -> str:
    words = describe_racks(scenario.cluster.topology)
    return f"; {words}, and cluster.nodes counts racks" if words else ""


def _suggest_sizes(gpus: int) -> str:
    return f"choose tp x pp x cp that divides {gpus} (one of {', '.join(map(str, divisors(gpus)[:12]))})"


# --- the batch, the device, the faults ------------------------------------------------------------------------------


def _check_batch(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    training, dp, pp = scenario.training, scenario.parallel.dp, scenario.parallel.pp
    batch, together = training.global_batch, dp * training.micro_batch
    sizes = f"dp {dp} x micro_batch {training.micro_batch}"
    if batch % together:
        fix = join_or(nearest_multiples(together, batch))
        yield ("training", "global_batch"), f"{batch} is not a multiple of {sizes} = {together}; use {fix}"
    elif scenario.pipeline.schedule in schedules_with("needs_whole_groups") and batch // together % pp:
        fix = join_or(nearest_multiples(together * pp, batch))
        what = f"{batch} over {sizes} is {batch // together} microbatches, but {scenario.pipeline.schedule} needs"
        yield ("training", "global_batch"), f"{what} a multiple of pp {pp}; use {fix}"


def _check_device(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    try:
        device = scenario.cluster.device
    except InputError as error:
        yield ("cluster", "topology", "device"), str(error)
        return
    try:
        device.peak_flops(scenario.training.precision.removesuffix("-mixed"))
    except InputError as error:
        yield ("training", "precision"), str(error)
    ends, layers = scenario.training.layers_in_16_bits, scenario.model.layers
    if sum(ends) > layers:
        what = f"{ends[0]} + {ends[1]} layers are more than the model's {layers}; use at most {layers} in all"
        yield ("training", "layers_in_16_bits"), what
    if scenario.training.memory_recipe is not None:
        yield from _check_recipe(scenario.training, scenario.training.memory_recipe, device)


def _check_recipe(training: Training, name: str, device: Device) -> Iterator[KeyProblem]:
    precision = training.precision
    if precision in (recipe := RECIPES[name]).precisions:
        return
    fix = f"use {join_or(other.name for other in RECIPES.values() if precision in other.precisions)}"
    peaks = device.peak.known_rates()
    if there := [other for other in recipe.precisions if other.removesuffix("-mixed") in peaks]:
        fix = f"set precision to {join_or(there)}, or {fix}"
    what = f"{name} keeps weights in {recipe.weights}, which matmuls in training.precision {precision} cannot read"
    yield ("training", "memory_recipe"), f"{what}; {fix}"


def _check_interference(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    choice, where = scenario.overlap.interference, ("overlap", "interference")
    held = scenario.parallel.expert_dispatch.dispatch_sms
    if isinstance(choice, str) and not held:
        return
    if scenario.collectives.detail == "steps" and not isinstance(choice, str):
        yield where, "is not modelled with collectives.detail: steps; use detail: flow, or interference: none"
    try:
        device = scenario.cluster.device
    except InputError:
        return  # said already
    try:
        make_interference(device, choice, dispatcher=held)
    except InputError as error:
        yield where if not isinstance(choice, str) else ("parallel", "expert_dispatch", "sms"), str(error)


def _check_fsdp(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    fsdp, parallel = scenario.fsdp, scenario.parallel
    ranks, group = parallel.dp * parallel.cp, fsdp.shard_group or 1
    if ranks and ranks % group:
        fix = join_or(nearest_divisors(ranks, group))
        yield ("fsdp", "shard_group"), f"{group} does not divide dp x cp = {ranks}, the number of replicas; use {fix}"
    shards, near = group if fsdp.shard_group else ranks, fsdp.regather_group
    if near and ranks and (shards % near or near == shards):
        what = f"{near} is not a divisor between 1 and {shards}, the number of ranks that share the parameters"
        yield ("fsdp", "reshard_after_forward"), f"{what}; use {join_or(nearest_divisors(shards, near))}, or true"
    if near and scenario.model.moe and (parallel.ep > 1 or parallel.etp not in (None, parallel.tp)):
        what = "a group size is not modelled with experts on ep ranks"
        yield ("fsdp", "reshard_after_forward"), f"{what}; use true or false, or set ep to 1"
    if fsdp.prefetch > 1 and not scenario.overlap.param_gather:
        what = f"{fsdp.prefetch} units cannot be gathered ahead of use while overlap.param_gather is false"
        yield ("fsdp", "prefetch"), f"{what}; set param_gather to true, or remove prefetch"


def _check_offload(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    chosen, cluster = scenario.memory.offload, scenario.cluster.built
    where = ("memory", "offload")
    if chosen.optimizer == "host" and chosen.host_update is None:
        what = "is required with optimizer: host: the memory rate of Adam on a node's CPUs, reads plus writes"
        yield (*where, "host_update"), f'{what}; write it, as in host_update: "100 GB/s"'
    if chosen.activations or chosen.optimizer != "none":
        try:
            for rank in range(min(scenario.gpus, cluster.num_gpus)):
                for direction in ("d2h", "h2d"):
                    cluster.host_memory_route(rank, direction)
        except InputError as error:
            yield where, str(error)


def _check_faults(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    first: dict[str, int] = {}
    of_data = scenario.data.attention_lengths if scenario.data else None
    for place, fault in enumerate(scenario.faults):
        for path, what in fault.complaints(scenario):
            yield ("data", "documents") if fault == of_data else ("faults", place, *path), what
        if fault.ONCE and first.setdefault(fault.kind, place) < place:
            yield ("faults", place), f"{fault.ONCE}, but faults.{first[fault.kind]} sets that, too; keep one of the two"


def _check_checkpoint(scenario: ScenarioFields, checkpoint: StepCheckpointSection) -> Iterator[KeyProblem]:
    if checkpoint.after >= scenario.steps:
        what = f"step {checkpoint.after} is not simulated: the scenario has {scenario.steps} steps, numbered from 0"
        what += f"; set steps to {checkpoint.after + 2}, so that the write overlaps with a step"
        yield ("checkpoint", "after"), what
    known = scenario.run.checkpoint if scenario.run else None
    if checkpoint.place == "peers":
        if checkpoint.mode == "blocking":
            yield ("checkpoint", "mode"), "copies to peers never block training; remove 'mode', or set it to snapshot"
        if scenario.cluster.built.node_of_gpu[0] == scenario.cluster.built.node_of_gpu[scenario.gpus - 1]:
            yield ("checkpoint", "place"), "the job's only node has no peer node; use storage, or more nodes"
    elif checkpoint.to is None and (known is None or (known.to is None and known.stall is None)):
        yield ("checkpoint", "to"), "is required: set the storage write rate of the whole job, as in to: 100 GB/s"


_SPARE_TRAYS = 2  # of 18, which jobs leave out


def rack_spec_of(topology: TopologySpec) -> MachineSpec | None:
    """Return the rack specification of a topology whose nodes are racks of trays; None for other topologies."""
    machine = getattr(topology, "machine", None)
    return machine if isinstance(machine, MachineSpec) and machine.trays > 1 else None


def count_full_trays(rack: MachineSpec, gpus: int) -> int:
    """Return the largest number of trays per rack that divides the GPUs evenly into racks; 0 if there is none."""
    most = range(rack.trays, max(1, rack.trays - _SPARE_TRAYS) - 1, -1)
    return next((trays for trays in most if gpus % (trays * rack.gpus) == 0), 0)


def describe_racks(topology: TopologySpec) -> str:
    """Describe the racks of a topology whose nodes are racks of trays; "" for other topologies."""
    rack = rack_spec_of(topology)
    return "" if rack is None else f"a node of {topology.name} is a rack of {rack.num_gpus} GPUs in {rack.trays} trays"


def warn_uneven_racks(scenario: ScenarioFields) -> str:
    """Return a warning if a job fills its last rack only in part; "" otherwise."""
    topology, gpus = scenario.cluster.topology, scenario.gpus
    rack = rack_spec_of(topology)
    if rack is None or gpus <= rack.num_gpus or not (last := gpus % rack.num_gpus):
        return ""
    trays = count_full_trays(rack, gpus)
    fix = f"cluster.machine.trays: {trays} with cluster.nodes: {gpus // (trays * rack.gpus)} takes {trays * rack.gpus} "
    fix += "of each rack, as most jobs do"
    return (
        f"racks are filled unevenly: the last has {last} of {rack.num_gpus} GPUs, so rank groups are split differently "
        f"there; {describe_racks(topology)}, and cluster.nodes counts racks; "
        + (fix if trays else f"use a multiple of {rack.num_gpus} GPUs, or fewer trays (cluster.machine.trays)")
    )
