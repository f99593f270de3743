"""Size of a job's checkpoint, its times on PCIe, network and storage, and its simulation in a step.

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
from simcluster.planning.checkpoint import SavedParts, transfer_rate
from simcluster.planning.job import Job, Slices
from simcluster.planning.optimizer import UpdateJob, optimizer_class
from simcluster.planning.owned_parameters import OwnedParameters, parameters_of_stage
from simcluster.planning.parallel import Plan
from simcluster.scenario.memory_plan import recipe_of, usable_bytes
from simcluster.scenario.run_section import CheckpointSpec, MemoryCopies
from simcluster.scenario.schedule_plan import plan_of, schedule_of, slices_of
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
    """Return the bytes of the whole job's checkpoint, with each parameter once."""
    return bytes_per_parameter(scenario, spec) * parameters(scenario.model).total


def checkpoint_cost(scenario: Scenario, spec: CheckpointSpec) -> CheckpointCost:
    """Return the size and times of a scenario's checkpoint; InputError if no key sets its duration."""
    if spec.to is None and spec.stall is None:
        takes = "needs a duration: set to (storage write rate), as in to: 100 GB/s, or stall, as in stall: 5 s"
        raise scenario.origin.document.error(("run", "checkpoint"), takes)
    each = bytes_per_parameter(scenario, spec)
    size = checkpoint_bytes(scenario, spec)
    by_rank = bytes_by_rank(scenario, each)
    hosts, by_host = _bytes_by_host(scenario, by_rank)
    written = by_host * (size / by_host.sum())
    nics = nic_rates(scenario, hosts)
    copy, linked = snapshot_seconds(scenario, by_rank)
    away = _longest_time(by_host, nics)
    stored = size / spec.to if spec.to else 0.0
    blocking = {"blocking": True, "snapshot": False}[spec.mode]
    apart = _has_storage_nics(scenario)
    wire = 0.0 if apart else _longest_time(written, nics) / (1.0 if blocking else WRITE_SHARE)
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
        shares=() if apart else _nic_shares(hosts, written, nics, write),
        memory_shares=_nic_shares(hosts, by_host, nics, peers) if memory else (),
        notes=tuple(_list_assumptions(spec, size, by_host, linked=linked, wired=wire > stored, apart=apart)),
    )


# --- bytes ------------------------------------------------------------------------------------------------------------


def bytes_per_parameter(scenario: Scenario, spec: CheckpointSpec) -> float:
    """Return a checkpoint's bytes per parameter: as set, or weights and optimizer state of the memory recipe.

    Copies that can be recomputed do not count; with Muon it is the mean over all parameters.
    """
    recipe = recipe_of(scenario)
    if spec.bytes_per_parameter:
        return spec.bytes_per_parameter
    job = UpdateJob(scenario.model, Plan(), recipe)
    spared = optimizer_class(scenario.training.optimizer).of(job, scenario.training).unneeded_per_parameter
    return recipe.gathered + recipe.optimizer - spared


def bytes_by_rank(scenario: Scenario, each: float) -> Floats:
    """Return the bytes that every rank copies to its host for a checkpoint, at ``each`` bytes per parameter.

    All tensor-parallel ranks copy what they all hold (norms, padding). Storage has it once: of equal tensors the rank
    that writes least writes one (PyTorch, torch/distributed/checkpoint/_dedup_save_plans.py).
    """
    schedule = schedule_of(scenario)
    plan = replace(plan_of(scenario, schedule), workers=1)  # one of them writes
    slices = slices_of(scenario, schedule) or Slices.nearly_even(scenario.model.layers, len(schedule.routes[0]))
    written = _WritingRanks.of(plan, sharded=scenario.parallel.zero >= 1)
    found = np.zeros(plan.num_ranks)
    for stage in range(plan.pp):
        size, ranks = (
            written.of_stage(_count_held(scenario.model, plan, schedule, slices, stage)),
            plan.grid[stage].ravel(),
        )
        found[ranks] = size.common * written.common[ranks] + size.experts * written.experts[ranks]
    return np.asarray(each * found)


def _count_held(model: Model, plan: Plan, schedule: Schedule, slices: Slices, stage: int) -> OwnedParameters:
    held = [schedule.slice_of(stage, chunk) for chunk in range(schedule.num_chunks)]
    layers = [layer for number in held for layer in slices.layers_of(number)]
    first, last = 0 in held, len(slices.counts) - 1 in held
    owned = parameters_of_stage(model, plan, layers, first=first, last=last)
    twice = model.tied_embeddings or bool(model.prediction_layers)
    again = twice and last and not first  # the first stage writes the table
    return OwnedParameters(owned.common - again * lm_head_parameters_per_tp_rank(model, plan.tp), owned.experts)


@dataclass(frozen=True)
class _WritingRanks:
    """Ranks that write a checkpoint: the first ``shards`` ranks of each dp group, in equal shards."""

    common: Bools
    experts: Bools
    shards: tuple[int, int]

    @classmethod
    def of(cls, plan: Plan, *, sharded: bool) -> _WritingRanks:
        shards = plan.shard_size if sharded else 1, plan.expert_shard_size if sharded else 1
        common = _first_ranks(plan, "dp", shards[0])
        if not plan.experts_apart:
            return cls(common, common, (shards[0], shards[0]))
        return cls(common, _first_ranks(plan, "edp", shards[1]), shards)

    def of_stage(self, held: OwnedParameters) -> OwnedParameters:
        """Return how many parameters each writing rank of a stage writes, given those that a rank holds."""
        return OwnedParameters(held.common / self.shards[0], held.experts / self.shards[1])


def _first_ranks(plan: Plan, axis: str, count: int) -> Bools:
    found = np.zeros(plan.num_ranks, dtype=bool)
    found[plan.groups(axis)[:, :count]] = True
    return found


def _bytes_by_host(scenario: Scenario, by_rank: Floats) -> tuple[list[int], Floats]:
    hosts, place = np.unique(scenario.cluster.built.hosts[: scenario.gpus], return_inverse=True)
    size = np.zeros(len(hosts))
    np.add.at(size, place.ravel(), by_rank)
    return hosts.tolist(), size


# --- links ------------------------------------------------------------------------------------------------------------


def nic_rates(scenario: Scenario, hosts: list[int]) -> Floats:
    """Return the rate (B/s) of each node's links to the fabric; infinite if all ranks are on one node."""
    cluster = scenario.cluster.built
    cables: dict[int, dict[int, None]] = {host: {} for host in hosts}
    for rank in range(scenario.gpus):
        cables[int(cluster.hosts[rank])].update({link: None for link, _ in cluster.host_way(rank, "storage")})
    return np.array([sum(float(cluster.capacity[link]) for link in own) or np.inf for own in cables.values()])


def _longest_time(size: Floats, rate: Floats) -> float:
    return float((size / rate).max())


def _nic_shares(hosts: list[int], size: Floats, rate: Floats, seconds: float) -> tuple[tuple[int, float], ...]:
    if not seconds:
        return ()
    return tuple(zip(hosts, np.minimum(WRITE_SHARE, size / rate / seconds).tolist(), strict=True))


def snapshot_seconds(scenario: Scenario, by_rank: Floats) -> tuple[float, bool]:
    """Return the time (s) to copy every rank's bytes to its host, and whether the topology has links for it.

    GPUs that share a link on the path share its capacity. Without such links each GPU has ``HOST_LINK``.
    """
    cluster = scenario.cluster.built
    loads: dict[int, float] = {}
    for rank, size in enumerate(by_rank.tolist()):
        try:
            way = cluster.host_way(rank, "d2h") if size else ()
        except InputError:
            return float(by_rank.max()) / HOST_LINK, False
        for link, part in way:
            loads[link] = loads.get(link, 0.0) + part * size
    return max((size / float(cluster.capacity[link]) for link, size in loads.items()), default=0.0), True


def _has_storage_nics(scenario: Scenario) -> bool:
    return bool(scenario.cluster.built.wiring.storage_nics)


# --- in a step --------------------------------------------------------------------------------------------------------


def checkpoint_spec(scenario: Scenario) -> CheckpointSpec:
    """Return the settings of the checkpoint that a step simulates; omitted keys come from ``run.checkpoint``."""
    spec = scenario.run.checkpoint if scenario.run else CheckpointSpec()
    given = (
        {}
        if scenario.checkpoint is None
        else scenario.checkpoint.model_dump(exclude_none=True, exclude={"after", "place"})
    )
    if scenario.checkpoint is not None and scenario.checkpoint.place == "peers":  # nothing waits for storage
        given |= {"mode": "snapshot", "memory": spec.memory or MemoryCopies(), "stall": spec.stall or 0.0}
    return spec.model_copy(update=given)


def plan_saved_parts(scenario: Scenario, job: Job) -> SavedParts | None:
    """Return what the ranks of a job save in a simulated step; None if the step has no checkpoint."""
    if scenario.checkpoint is None:
        return None
    spec, plan = checkpoint_spec(scenario), job.plan
    weight = checkpoint_cost(scenario, spec)
    each, written = bytes_per_parameter(scenario, spec), _WritingRanks.of(plan, sharded=scenario.parallel.zero >= 1)
    held = [written.of_stage(_count_held(job.model, plan, job.schedule, job.slices, stage)) for stage in range(plan.pp)]
    sizes = tuple((each * part.common, each * part.experts) for part in held)
    blocking, to = {"blocking": True, "snapshot": False}[spec.mode], scenario.checkpoint.place
    by_rank = bytes_by_rank(scenario, each)
    once = checkpoint_bytes(scenario, spec) / float(by_rank.sum()) if to == "storage" else 1.0
    seconds, stall = weight.stall if blocking else weight.write, spec.stall or 0.0
    wired = not _has_storage_nics(scenario) and bool(scenario.cluster.built.host_way(0, "storage"))
    if to == "peers" and spec.memory is not None:
        seconds, stall = weight.memory_write, spec.memory.stall or 0.0
        wired = spec.memory.write is None
    return SavedParts(
        after=scenario.checkpoint.after,
        blocking=blocking,
        sizes=sizes,
        saves=tuple(zip(written.common.tolist(), written.experts.tolist(), strict=True)),
        bounds=tuple(transfer_rate(once * sum(size), seconds) for size in sizes),
        written=once,
        copying=-1.0 if snapshot_seconds(scenario, by_rank)[1] else weight.rank / HOST_LINK,
        stall=stall,
        writing=-1.0 if wired else seconds,
        to=to,
    )


# --- host memory ------------------------------------------------------------------------------------------------------


def count_host_copies(spec: CheckpointSpec) -> int:
    """Return how many copies of its part of a checkpoint a node's host memory holds at once.

    A snapshot that is being written and the next one; with copies in peers' memory also its own and a peer's, each with
    the next one.
    """
    return (2 if spec.mode == "snapshot" else 0) + (4 if spec.memory else 0)


def host_copy_bytes(scenario: Scenario, spec: CheckpointSpec) -> float:
    """Return the bytes of checkpoint copies in the fullest host memory, of a node or of a rack's tray."""
    by_rank = bytes_by_rank(scenario, bytes_per_parameter(scenario, spec))
    of_box: dict[tuple[int, int], float] = {}
    for rank, size in enumerate(by_rank.tolist()):
        box = scenario.cluster.built.box_of(rank)
        of_box[box] = of_box.get(box, 0.0) + size
    return count_host_copies(spec) * max(of_box.values())


def describe_host_memory(scenario: Scenario, offloaded: float, spec: CheckpointSpec | None) -> tuple[str, bool]:
    """Return a line on the use of the fullest host memory ("" if unused), and whether it is a warning."""
    saved = host_copy_bytes(scenario, spec) if spec else 0.0
    need, known = offloaded + saved, scenario.cluster.topology.host_memory
    if not need:
        return "", False
    parts = [f"{offloaded / 1e9:.1f} GB offloaded"] if offloaded else []
    parts += [f"{saved / 1e9:.1f} GB in {count_host_copies(spec)} snapshots"] if spec and saved else []
    of = f"needs {need / 1e9:.1f} GB of a host's memory ({', '.join(parts)})"
    if known is None:
        return f"host memory: {of}; not checked, since cluster.host_memory is not set", False
    there = f"which has {known.size / 1e9:.1f} GB{f' ({known.source})' if known.source else ''}"
    if need > known.size:
        return f"host memory does not fit: {of}, {there}", True
    if need > usable_bytes(known.size):
        return f"host memory is tight: {of}, {there}", True
    return f"host memory: {of}, {there}", False


# --- words ------------------------------------------------------------------------------------------------------------


def _list_assumptions(
    spec: CheckpointSpec, size: float, by_host: Floats, *, linked: bool, wired: bool, apart: bool
) -> list[str]:
    fullest, copies = float(by_host.max()), count_host_copies(spec)
    found = [f"a checkpoint is {size / 1e12:.3g} TB, {fullest / 1e9:.3g} GB on the fullest node"]
    if spec.to:
        found.append(f"{spec.keep} are kept on storage: {spec.keep * size / 1e12:.3g} TB")
    if copies and not linked:
        found.append(f"the topology has no link to host memory: {HOST_LINK / 1e9:g} GB/s per GPU are assumed")
    if wired:
        found.append("the write is limited by the nodes' NICs, not by storage")
    if apart:
        found.append("nodes have separate NICs for storage: the write does not slow training")
    return found
