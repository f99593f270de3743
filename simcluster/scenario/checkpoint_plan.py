"""Checkpoint of a job: size, times on PCIe, network and storage, and simulation within a step.

Where the optimizer is sharded (ZeRO 1 and above) each rank writes its shard of weights and optimizer state; otherwise
the first replica writes all. A rank holds what the memory model counts: its part of tp and pp, the embedding and the
head on the ends of the pipeline, its experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.base.errors import InputError
from simcluster.model.layers import lm_head_parameters_per_tp_rank, parameters
from simcluster.planning.checkpoint import SimulatedCheckpoint, transfer_rate
from simcluster.planning.job import Job, ModelSlices
from simcluster.planning.optimizer import UpdateContext, get_optimizer_class
from simcluster.planning.owned_parameters import OwnedParameters, parameters_of_stage
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.scenario.memory_plan import judge_fit, recipe_of
from simcluster.scenario.run_section import CheckpointSpec, PeerMemoryCopies
from simcluster.scenario.schedule_plan import plan_of, planned_slices_of, schedule_of
from simcluster.schedules import Schedule

if TYPE_CHECKING:
    from simcluster.model.transformer import Model
    from simcluster.scenario.scenario import Scenario

HOST_LINK = 24e9
"""B/s between a GPU and its host where the topology has no link for it: the usual rate of PCIe 4.0 x16."""
WRITE_SHARE = 0.5
"""Largest share of a node's NICs that a concurrent write uses during training: flows of both share a link evenly."""


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """Size (bytes) of a job's checkpoint, and the times (s) to write and read it.

    Training stops for ``stall``; the ``write`` after it slows the work by ``slowed``. The fields ``memory_...`` are the
    same for copies in peers' memory. ``rank`` and ``host`` are bytes of the fullest rank and node; ``shares`` and
    ``memory_shares`` the shares of each node's NICs that writes and copies to peers use; ``notes`` are assumptions to
    report.
    """

    size: float
    stall: float
    write: float
    slowed: float
    memory_stall: float
    memory_write: float
    load_memory: float
    load_storage: float
    memory_slowed: float = 0.0
    rank: float = 0.0
    host: float = 0.0
    shares: tuple[tuple[int, float], ...] = ()
    memory_shares: tuple[tuple[int, float], ...] = ()
    notes: tuple[str, ...] = ()


def checkpoint_bytes(scenario: Scenario, spec: CheckpointSpec) -> float:
    """Return the bytes of the whole job's checkpoint, which stores each parameter once."""
    each, count = checkpoint_bytes_per_parameter(scenario, spec), parameters(scenario.model)
    return each * (count.total - count.frozen + _frozen_share(scenario, each) * count.frozen)


def _frozen_share(scenario: Scenario, per_param: float) -> float:
    """Return the bytes of a frozen parameter as a share of a trained one's: its weight, or nothing with adapters."""
    return 0.0 if scenario.model.lora else recipe_of(scenario).gathered_weight / per_param


def checkpoint_cost(scenario: Scenario, spec: CheckpointSpec) -> CheckpointCost:
    """Return the size and times of a scenario's checkpoint; raise InputError if no key sets its duration."""
    if spec.to is None and spec.stall is None:
        takes = "needs a duration: set the storage write rate, as in to: 100 GB/s, or the stall, as in stall: 5 s"
        raise scenario.origin.document.error_at(("run", "checkpoint"), takes)
    each = checkpoint_bytes_per_parameter(scenario, spec)
    size = checkpoint_bytes(scenario, spec)
    by_rank = checkpoint_bytes_by_rank(scenario, each)
    hosts, by_host = _bytes_by_host(scenario, by_rank)
    written = by_host * (size / by_host.sum())
    nics = node_nic_rates(scenario, hosts)
    copy, linked = snapshot_seconds(scenario, by_rank)
    away = float((by_host / nics).max())
    stored = size / spec.to if spec.to else 0.0
    blocking = {"blocking": True, "snapshot": False}[spec.mode]
    apart = scenario.cluster.built.wiring.has_storage_nics
    wire = 0.0 if apart else float((written / nics).max()) / (1.0 if blocking else WRITE_SHARE)
    whole = max(stored, wire)
    stall, write = (whole, 0.0) if blocking else (copy, whole)
    stall = spec.stall if spec.stall is not None else stall
    write = spec.write if spec.write is not None else write
    memory, read = spec.memory, spec.read or spec.to
    peers = memory.write if memory and memory.write is not None else away / WRITE_SHARE
    return CheckpointCost(
        size,
        stall,
        write,
        spec.slowed or 0.0,
        memory.stall if memory and memory.stall is not None else copy,
        peers,
        load_memory=max(copy, away),
        load_storage=max(size / read, 0.0 if apart else away) if read else 0.0,
        memory_slowed=spec.slowed or 0.0,
        rank=float(by_rank.max()),
        host=float(by_host.max()),
        shares=() if apart else _used_nic_shares(hosts, written, nics, write),
        memory_shares=_used_nic_shares(hosts, by_host, nics, peers) if memory else (),
        notes=tuple(_list_assumptions(spec, size, by_host, host_links=linked, wired=wire > stored, storage_nics=apart)),
    )


# --- bytes ------------------------------------------------------------------------------------------------------------


def checkpoint_bytes_per_parameter(scenario: Scenario, spec: CheckpointSpec) -> float:
    """Return a checkpoint's bytes per parameter; default: weights and optimizer state of the memory recipe.

    Copies that can be recomputed do not count; with Muon it is the mean over all parameters.
    """
    recipe = recipe_of(scenario)
    if spec.bytes_per_parameter:
        return spec.bytes_per_parameter
    job = UpdateContext(scenario.model, ParallelPlan(), recipe)
    optimizer = get_optimizer_class(scenario.training.optimizer).from_training_section(job, scenario.training)
    return recipe.gathered_weight + recipe.optimizer - optimizer.unneeded_bytes_per_parameter


def checkpoint_bytes_by_rank(scenario: Scenario, per_param: float) -> Floats:
    """Return the bytes that each rank copies to its host, for a checkpoint with N bytes per parameter.

    All tensor-parallel ranks copy what they all hold (norms, padding). Storage has it once: of equal tensors the rank
    that writes least writes one (PyTorch, torch/distributed/checkpoint/_dedup_save_plans.py).
    """
    model, schedule = scenario.model, schedule_of(scenario)
    plan = replace(plan_of(scenario, schedule), workers=1)  # one of them writes
    slices = planned_slices_of(scenario, schedule)
    written = _WritingRanks.from_plan(plan, sharded=scenario.parallel.zero >= 1)
    found = np.zeros(plan.num_ranks)
    for stage in range(plan.pp):
        saved = _count_saved_parameters(model, plan, schedule, slices, stage, _frozen_share(scenario, per_param))
        size = written.parameters_per_writer(saved)
        ranks = plan.grid[stage].ravel()
        found[ranks] = size.common * written.common[ranks] + size.experts * written.experts[ranks]
    return np.asarray(per_param * found)


def _count_saved_parameters(
    model: Model, plan: ParallelPlan, schedule: Schedule, slices: ModelSlices, stage: int, frozen: float
) -> OwnedParameters:
    """Return the number of parameters that a stage saves; a frozen one counts as the share ``frozen`` of one."""
    held = [schedule.model_slice(stage, chunk) for chunk in range(schedule.num_chunks)]
    layers = [layer for number in held for layer in slices.layers_of_slice(number)]
    first, last = 0 in held, len(slices.counts) - 1 in held
    owned = parameters_of_stage(model, plan, layers, first=first, last=last)
    twice = last and (model.tied_embeddings or bool(model.prediction_layers))
    again = not first and (stage in plan.embedding_stages if plan.embedding_stages else twice)  # stage 0 writes it
    table = lm_head_parameters_per_tp_rank(model, plan.tp) * (frozen if model.freezes("lm_head") else 1)
    common, experts = owned.common + frozen * owned.frozen, owned.experts + frozen * owned.frozen_experts
    return OwnedParameters(common - again * table, experts)


@dataclass(frozen=True)
class _WritingRanks:
    """Ranks that write a checkpoint (the first ranks of each dp group), and how they split the parameters."""

    common: Bools
    experts: Bools
    shards: tuple[int, int]

    @classmethod
    def from_plan(cls, plan: ParallelPlan, *, sharded: bool) -> _WritingRanks:
        shards = plan.shard_size if sharded else 1, plan.expert_shard_size if sharded else 1
        common = _first_ranks(plan, "dp", shards[0])
        if not plan.has_separate_expert_groups:
            return cls(common, common, (shards[0], shards[0]))
        return cls(common, _first_ranks(plan, "edp", shards[1]), shards)

    def parameters_per_writer(self, held: OwnedParameters) -> OwnedParameters:
        """Return the number of parameters that each writing rank writes, given the parameters of each rank."""
        return OwnedParameters(held.common / self.shards[0], held.experts / self.shards[1])


def _first_ranks(plan: ParallelPlan, axis: str, count: int) -> Bools:
    found = np.zeros(plan.num_ranks, dtype=bool)
    found[plan.groups(axis)[:, :count]] = True
    return found


def _bytes_by_host(scenario: Scenario, by_rank: Floats) -> tuple[list[int], Floats]:
    hosts, place = np.unique(scenario.cluster.built.node_of_gpu[: scenario.gpus], return_inverse=True)
    return hosts.tolist(), np.asarray(np.bincount(place.ravel(), weights=by_rank), dtype=np.float64)


# --- links ------------------------------------------------------------------------------------------------------------


def node_nic_rates(scenario: Scenario, hosts: list[int]) -> Floats:
    """Return the total rate (B/s) of each node's links to the network; infinite if all ranks are on one node."""
    cluster = scenario.cluster.built
    cables: dict[int, dict[int, None]] = {host: {} for host in hosts}
    for rank in range(scenario.gpus):
        cables[int(cluster.node_of_gpu[rank])] |= {link: None for link, _ in cluster.host_memory_route(rank, "storage")}
    return np.array([sum(float(cluster.capacity[link]) for link in own) or np.inf for own in cables.values()])


def _used_nic_shares(hosts: list[int], size: Floats, rate: Floats, seconds: float) -> tuple[tuple[int, float], ...]:
    if not seconds:
        return ()
    return tuple(zip(hosts, np.minimum(WRITE_SHARE, size / rate / seconds).tolist(), strict=True))


def snapshot_seconds(scenario: Scenario, by_rank: Floats) -> tuple[float, bool]:
    """Return the time (s) to copy all ranks' bytes to host memory, and whether the topology has links to it.

    GPUs that share a link on the path share its capacity. Without such links each GPU has ``HOST_LINK``.
    """
    cluster = scenario.cluster.built
    loads: dict[int, float] = {}
    for rank, size in enumerate(by_rank.tolist()):
        try:
            way = cluster.host_memory_route(rank, "d2h") if size else ()
        except InputError:
            return float(by_rank.max()) / HOST_LINK, False
        for link, part in way:
            loads[link] = loads.get(link, 0.0) + part * size
    return max((size / float(cluster.capacity[link]) for link, size in loads.items()), default=0.0), True


# --- in a step --------------------------------------------------------------------------------------------------------


def step_checkpoint_spec(scenario: Scenario) -> CheckpointSpec:
    """Return the settings of the checkpoint in a simulated step; the defaults are those of ``run.checkpoint``."""
    spec = scenario.run.checkpoint if scenario.run else CheckpointSpec()
    section = scenario.checkpoint
    given = section.model_dump(exclude_none=True, exclude={"after", "place"}) if section is not None else {}
    if section is not None and section.place == "peers":  # nothing waits for storage
        given |= {"mode": "snapshot", "memory": spec.memory or PeerMemoryCopies(), "stall": spec.stall or 0.0}
    return spec.model_copy(update=given)


def plan_step_checkpoint(scenario: Scenario, job: Job) -> SimulatedCheckpoint | None:
    """Return what each rank saves in the checkpoint of a simulated step; None without a checkpoint."""
    if scenario.checkpoint is None:
        return None
    spec, plan = step_checkpoint_spec(scenario), job.plan
    weight, each = checkpoint_cost(scenario, spec), checkpoint_bytes_per_parameter(scenario, spec)
    written = _WritingRanks.from_plan(plan, sharded=scenario.parallel.zero >= 1)
    parts, frozen = (job.model, plan, job.schedule, job.slices), _frozen_share(scenario, each)
    saved = (_count_saved_parameters(*parts, stage, frozen) for stage in range(plan.pp))
    sizes = tuple((each * part.common, each * part.experts) for part in map(written.parameters_per_writer, saved))
    blocking, to = {"blocking": True, "snapshot": False}[spec.mode], scenario.checkpoint.place
    by_rank = checkpoint_bytes_by_rank(scenario, each)
    once = checkpoint_bytes(scenario, spec) / float(by_rank.sum()) if to == "storage" else 1.0
    seconds, stall = weight.stall if blocking else weight.write, spec.stall or 0.0
    cluster = scenario.cluster.built
    wired = not cluster.wiring.has_storage_nics and bool(cluster.host_memory_route(0, "storage"))
    if to == "peers" and spec.memory is not None:
        seconds, stall = weight.memory_write, spec.memory.stall or 0.0
        wired = spec.memory.write is None
    return SimulatedCheckpoint(
        after_step=scenario.checkpoint.after,
        blocking=blocking,
        sizes=sizes,
        saved_by_rank=tuple(zip(written.common.tolist(), written.experts.tolist(), strict=True)),
        rate_limits=tuple(transfer_rate(once * sum(size), seconds) for size in sizes),
        written_share=once,
        copy_seconds=-1.0 if snapshot_seconds(scenario, by_rank)[1] else weight.rank / HOST_LINK,
        stall_seconds=stall,
        write_seconds=-1.0 if wired else seconds,
        destination=to,
    )


# --- host memory ------------------------------------------------------------------------------------------------------


def count_host_copies(spec: CheckpointSpec) -> int:
    """Return how many copies of a node's part of a checkpoint the node's host memory contains at once.

    A snapshot that is being written and the next one; with copies in peers' memory also its own and a peer's, each with
    the next one.
    """
    return (2 if spec.mode == "snapshot" else 0) + (4 if spec.memory else 0)


def host_checkpoint_bytes(scenario: Scenario, spec: CheckpointSpec) -> float:
    """Return the bytes of checkpoint copies in the fullest host memory (of a node, or in a rack of a tray)."""
    by_rank = checkpoint_bytes_by_rank(scenario, checkpoint_bytes_per_parameter(scenario, spec))
    of_box: dict[tuple[int, int], float] = {}
    for rank, size in enumerate(by_rank.tolist()):
        box = scenario.cluster.built.node_and_tray(rank)
        of_box[box] = of_box.get(box, 0.0) + size
    return count_host_copies(spec) * max(of_box.values())


def describe_host_memory(scenario: Scenario, offloaded: float, spec: CheckpointSpec | None) -> tuple[str, bool]:
    """Describe the use of the fullest host memory ("" if unused), and return whether the text is a warning."""
    saved = host_checkpoint_bytes(scenario, spec) if spec else 0.0
    need, known = offloaded + saved, scenario.cluster.topology.host_memory
    if not need:
        return "", False
    parts = [f"{offloaded / 1e9:.1f} GB offloaded"] if offloaded else []
    parts += [f"{saved / 1e9:.1f} GB in {count_host_copies(spec)} snapshots"] if spec and saved else []
    of = f"needs {need / 1e9:.1f} GB of a host's memory ({', '.join(parts)})"
    if known is None:
        return f"host memory: {of}; not checked, since cluster.host_memory is not set", False
    there = f"which has {known.size / 1e9:.1f} GB{f' ({known.source})' if known.source else ''}"
    verdict = {"no": " does not fit", "tight": " is tight", "yes": ""}[judge_fit(need, known.size)]
    return f"host memory{verdict}: {of}, {there}", bool(verdict)


# --- words ------------------------------------------------------------------------------------------------------------


def _list_assumptions(
    spec: CheckpointSpec, size: float, by_host: Floats, *, host_links: bool, wired: bool, storage_nics: bool
) -> list[str]:
    fullest, copies = float(by_host.max()), count_host_copies(spec)
    found = [f"a checkpoint is {size / 1e12:.3g} TB, {fullest / 1e9:.3g} GB on the fullest node"]
    if spec.to:
        found.append(f"{spec.keep} checkpoints are kept on storage: {spec.keep * size / 1e12:.3g} TB")
    if copies and not host_links:
        found.append(f"the topology has no link to host memory: assuming {HOST_LINK / 1e9:g} GB/s per GPU")
    if wired:
        found.append("the write is limited by the nodes' NICs, not by storage")
    if storage_nics:
        found.append("nodes have separate NICs for storage: the write does not slow training")
    return found
