"""FSDP units (groups of layers that ZeRO 3 gathers together), and the uses of each unit in a step.

A unit is some layers, the embedding, or the LM head. Every F and B (or I) of a microbatch uses its units one after the
other. After a use its unit is freed, but where backward follows forward the last ones stay, as they come next. Tied
embeddings on one stage: embedding and LM head (with the final norm) are one unit, the root, there from its first to its
last use in a step. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simcluster.model.layers import layer_matrices_per_tp_rank
from simcluster.planning.job import Job
from simcluster.planning.owned_parameters import OwnedParameters, parameters_of_ends, parameters_of_layers
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.replicas import split_into_grad_buckets
from simcluster.schedules import Action


@dataclass(frozen=True, slots=True)
class FsdpUnitPart:
    """Consecutive layers of a chunk in the same FSDP unit, and the number of that unit."""

    work: PassLayers
    unit: int
    has_backward: bool = True


@dataclass(frozen=True, slots=True)
class FsdpUnits:
    """FSDP units of a stage: parameters per rank in each unit, and the units of each chunk.

    ``chunks`` are the stretches of each chunk, ``root`` is the root unit's number or -1. ``sizes`` are the parameters
    of each that come and go: all but experts that no other rank has; ``grad_sizes``: those of them whose gradients do,
    the trained ones; ``matrices`` what is gathered of the common ones in separate calls.
    """

    held: tuple[OwnedParameters, ...]
    sizes: tuple[float, ...]
    grad_sizes: tuple[float, ...]
    chunks: tuple[tuple[FsdpUnitPart, ...], ...]
    root: int
    matrices: tuple[tuple[float, ...], ...]

    @property
    def total(self) -> OwnedParameters:
        """Number of parameters of all FSDP units on a rank."""
        return sum(self.held, OwnedParameters())


@dataclass(frozen=True, slots=True)
class FsdpUnitUse:
    """Use of an FSDP unit in a pass: whether the unit is gathered before the pass and freed after the pass.

    Of ``held`` and ``kept``, its fractions on the rank before the gather and after the free, only one can exceed 0.
    """

    unit: int
    gathered: bool
    freed: bool
    backward: bool = False
    held: float = 0.0
    kept: float = 0.0


def find_fsdp_units(job: Job, stage: int) -> FsdpUnits:
    """Return the FSDP units of a stage."""
    model, tp, most = job.model, job.plan.tp, job.data_parallel.fsdp.unit_layers
    wholes = [job.pass_over_chunk(stage, chunk) for chunk in range(job.schedule.num_chunks)]
    tied = model.tied_embeddings and any(whole.embedding for whole in wholes) and any(whole.lm_head for whole in wholes)
    held: list[OwnedParameters] = []
    if tied:
        held.append(parameters_of_ends(model, tp, first=True, last=True))
    chunks = []
    for whole in wholes:
        works = [PassLayers((), embedding=True)] if whole.embedding else []
        works += [PassLayers(whole.layers[at : at + most]) for at in range(0, len(whole.layers), most)]
        works += [PassLayers((), lm_head=True)] if whole.lm_head else []
        stretches: list[FsdpUnitPart] = []
        for work in works or [PassLayers(())]:  # a slice without layers
            if tied and (work.embedding or work.lm_head):
                stretches.append(FsdpUnitPart(work, 0))
                continue
            passed = (*(model.freezes_layer(each) == "no backward" for each in work.layers),
                      *[model.freezes("embedding")] * work.embedding, *[False] * work.lm_head)  # fmt: skip
            stretches.append(FsdpUnitPart(work, len(held), not (passed and all(passed))))
            ends = parameters_of_ends(model, tp, first=work.embedding, last=work.lm_head)
            held.append(parameters_of_layers(model, job.plan, work.layers) + ends)
        chunks.append(tuple(stretches))
    shared = job.plan.expert_replicas > 1
    sizes, grad_sizes = (
        tuple([own.total if shared else own.common for own in each])
        for each in ([own.all_parameters for own in held], held)
    )
    matrices = _parameters_per_gather(job, held, chunks)
    return FsdpUnits(tuple(held), sizes, grad_sizes, tuple(chunks), 0 if tied else -1, matrices)


def _parameters_per_gather(
    job: Job, held: Sequence[OwnedParameters], chunks: Sequence[Sequence[FsdpUnitPart]]
) -> tuple[tuple[float, ...], ...]:
    """Return, for each unit, the number of parameters per gather: one gather per unit, or one per matrix.

    Norms and biases are then whole on every rank, too small to be sharded; the sum of their gradients, a thousandth of
    all, is neglected.
    """
    found: list[tuple[float, ...]] = [(own.all_parameters.common,) for own in held]
    if job.data_parallel.fsdp.gather_by_matrix:
        for stretch in (stretch for chunk in chunks for stretch in chunk if stretch.work.layers):
            found[stretch.unit] = tuple(
                float(each)
                for layer in stretch.work.layers
                for each in layer_matrices_per_tp_rank(job.model, job.plan.tp, layer)
            )
    return tuple(found)


def action_unit_parts(units: FsdpUnits, action: Action) -> tuple[FsdpUnitPart, ...]:
    """Return the parts of an action (one pass over a chunk), one part per FSDP unit, in execution order.

    What no gradients reach has no backward: a frozen embedding, and frozen layers after it.
    """
    forward = units.chunks[action.chunk]
    if action.kind == "F":
        return forward
    forward = tuple(part for part in forward if part.has_backward) or forward[-1:]
    if action.kind == "I" and len(forward) > 1 and forward[0].work.embedding:  # nothing of it is in I (segments)
        forward = (replace(forward[1], work=replace(forward[1].work, embedding=True)), *forward[2:])
    return tuple(reversed(forward))


def list_unit_uses(job: Job, stage: int, units: FsdpUnits) -> list[FsdpUnitUse]:
    """Return every use of an FSDP unit in one step of a stage, in execution order."""
    row = [action for action in job.schedule.rows[stage] if action.kind != "W"]
    window, reshard = count_unsharded_units(job), job.data_parallel.fsdp.reshard_after_forward
    part = 1.0 / job.plan.regather if job.plan.regather else 0.0
    found: list[FsdpUnitUse] = []
    there = [0.0] * len(units.sizes)  # fraction that is on the rank
    for action, following in zip(row, [*row[1:], None], strict=True):
        turn = following is not None and following.kind != "F" and following.chunk == action.chunk
        order = action_unit_parts(units, action)
        for index, stretch in enumerate(order):
            stays = action.kind == "F" and (not reshard or (turn and index >= len(order) - window))
            stays = stays or stretch.unit == units.root
            held = there[stretch.unit] % 1.0
            absent = there[stretch.unit] < 1.0 and units.sizes[stretch.unit] > 0
            kept = part if action.kind == "F" and not stays else 0.0
            found.append(FsdpUnitUse(stretch.unit, absent, not stays, action.kind != "F", held, kept))
            there[stretch.unit] = 1.0 if stays else kept
    for last in {use.unit: index for index, use in enumerate(found)}.values():
        found[last] = replace(found[last], freed=True, kept=0.0)
    return found


def count_unsharded_units(job: Job) -> int:
    """Return the largest number of FSDP units that are unsharded (gathered) at once."""
    data = job.data_parallel
    return (data.fsdp.prefetch if data.overlap_gather else 0) + 1


def peak_unsharded_bytes(job: Job, stage: int) -> float:
    """Return the peak bytes of temporarily unsharded parameters and gradients on a rank under ZeRO 2 or 3.

    Under ZeRO 3 parameters in use or prefetched: of ``prefetch + 1`` consecutive uses, or of all units, if they stay
    after forward. Gradients that are made and, where reductions overlap with the backward, those on their way; all of
    the stage, where they are summed up unsharded over microbatches. Reached where communication keeps up.
    """
    data, ranks = job.data_parallel, job.plan.shard_size
    if ranks == 1:
        return 0.0
    row = job.schedule.rows[stage]
    makers = [action for action in row if action.kind in ("B", "W")]
    root, units = 0.0, None
    if data.zero == 2:
        buckets = {chunk: [held.total for _, held in cut] for chunk, cut in split_into_grad_buckets(job, stage).items()}
        total = sum(map(sum, buckets.values()))
        made = [
            size
            for action in makers
            for size in (buckets[action.chunk] if data.overlap_reduce else [sum(buckets[action.chunk])])
        ]
    else:
        units = find_fsdp_units(job, stage)
        total = sum(units.grad_sizes)
        stretches = [stretch for action in makers for stretch in action_unit_parts(units, action)]
        made = [units.grad_sizes[stretch.unit] for stretch in stretches if stretch.unit != units.root]
        root = units.grad_sizes[units.root] if units.root >= 0 else 0.0
    together = 2 if data.overlap_reduce else 1
    halves = job.schedule.fused_positions(stage) if job.overlap_pairs else ()
    if job.schedule.num_microbatches > 1 and not data.fsdp.reduce_every_microbatch:
        gradients = total
    else:
        gradients = max((sum(made[at : at + together]) for at in range(len(made))), default=0.0)
        gradients *= 2 if any(row[place].kind == "B" for place in halves) else 1  # both halves make some
        gradients += root * min(together, job.schedule.num_microbatches)
    return gradients * data.gradient_bytes + (_peak_parameter_bytes(job, stage, units) if units else 0.0)


def _peak_parameter_bytes(job: Job, stage: int, units: FsdpUnits) -> float:
    uses, window = list_unit_uses(job, stage, units), count_unsharded_units(job)
    peak = held = 0.0
    for index, use in enumerate(uses):
        held += units.sizes[use.unit] * (1.0 - use.held) if use.gathered else 0.0
        peak = max(peak, held)
        past = index - window + 1  # its use is over before the next gather begins
        if past >= 0 and uses[past].freed:
            held -= units.sizes[uses[past].unit] * (1.0 - uses[past].kept)
    return peak * job.data_parallel.parameter_bytes
