"""What a scenario asks of memory: recipe, shape, overheads, the bytes that every stage holds, and whether these fit.

No device time and no clock is needed for it, so a plan can be judged at once.  What is counted is what a program
allocates; a part of a GPU's memory (``HEADROOM``) is left free for the rest: the CUDA context, buffers of libraries,
holes between allocations.  Pure functions of a scenario.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from simcluster.base.errors import InputError
from simcluster.faults.expert_loads import ExpertLoads
from simcluster.model.layers import RankShape
from simcluster.model.memory import moved_bytes
from simcluster.model.mixture import ExpertKernels
from simcluster.model.recipes import Recipe, recipe_named
from simcluster.planning.footprint import Footprint, stage_footprint
from simcluster.planning.job import Job, Offload
from simcluster.planning.optimizer import optimizer_class
from simcluster.planning.owned_parameters import Overheads, nccl_buffer_bytes
from simcluster.planning.parallel import Plan
from simcluster.planning.residency import residencies
from simcluster.planning.sharded_units import unsharded_peak
from simcluster.scenario.schedule_plan import outer_state
from simcluster.traffic.nccl.platforms import Platform, load_platform

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario
    from simcluster.scenario.training_section import Training

HEADROOM = 0.1
"""The part that is left free unless another is asked for: below it a run is "tight", and no search recommends it."""

Fit = Literal["yes", "tight", "no"]
"""Does a job fit: with the headroom left, without it, or not at all?"""

OVER, TIGHT = " !", " ~"
"""Marks behind bytes: more than the GPU has, and less than the headroom left."""


def usable(capacity: float, headroom: float = HEADROOM) -> float:
    """Bytes that may be used of a GPU's ``capacity``."""
    return (1 - headroom) * capacity


def fit_of(memory: float, capacity: float, headroom: float = HEADROOM) -> Fit:
    """Whether so many bytes fit in a GPU's ``capacity``."""
    if memory > capacity:
        return "no"
    return "tight" if memory > usable(capacity, headroom) else "yes"


def mark(memory: float, capacity: float, headroom: float = HEADROOM) -> str:
    """What stands behind so many bytes in a table: "" where the headroom is left."""
    return {"no": OVER, "tight": TIGHT, "yes": ""}[fit_of(memory, capacity, headroom)]


def headroom_of(text: str) -> float:
    """A part of memory as it is written: "10%" or 0.1; InputError unless it is from 0 to below all."""
    number, percent = (text[:-1], 100) if text.endswith("%") else (text, 1)
    try:
        part = float(number) / percent
    except ValueError:
        part = -1.0
    return check_headroom(part, text)


def check_headroom(part: float, written: object) -> float:
    """The part itself; InputError unless it is from 0 to below 1."""
    if not 0 <= part < 1:
        raise InputError(
            f"headroom {written!r} must be the part of a GPU's memory that is left free, from 0 to below all of it, as "
            f'in "10%" or 0.1'
        )
    return part


ELEMENT_BYTES = {
    "bf16-mixed": 2.0,
    "fp16-mixed": 2.0,
    "fp8-mixed": 2.0,
    "mxfp8-mixed": 2.0,
    "nvfp4-mixed": 2.0,
    "fp32": 4.0,
}
"""Bytes of a weight or an activation as products read it, by precision."""

_RECIPE = {"bf16-mixed": "mixed-18", "fp16-mixed": "mixed-16", "fp8-mixed": "fp8-20", "mxfp8-mixed": "fp8-20",
           "nvfp4-mixed": "nvfp4-19", "fp32": "fp32-16"}  # fmt: skip

_CAST_ROWS = {"mxfp8-mixed": 32, "nvfp4-mixed": 64}
"""Rows of an expert at a time that quantized products take, 16 in fp8 (Megatron-LM, core/fp8_utils.py,
``get_fp8_align_size``; core/fp4_utils.py, ``get_fp4_align_size``, 64 for its Hadamard transforms)."""
_CAST_BYTES = {"fp8-mixed": 1.0, "mxfp8-mixed": 1.0 + 1 / 32, "nvfp4-mixed": 0.5 + 1 / 16}
"""Bytes of an operand's element as products of layers read it, its share of a scale of one byte with it (Open Compute
Project, Microscaling Formats 1.0; NVFP4: arXiv:2509.25149); of one scale for a whole tensor nothing."""


_HALF_BYTES = 2.0  # of a weight in 16 bits


def recipe_of(scenario: Scenario) -> Recipe:
    """Bytes per parameter: as named, else what the precision's usual program keeps."""
    return recipe_named(scenario.training.memory_recipe or _RECIPE[scenario.training.precision])


def shape_of(scenario: Scenario) -> RankShape:
    """What decides the shapes of one rank's tensors and kernels besides the model."""
    training, parallel, memory = scenario.training, scenario.parallel, scenario.memory
    software, recipe = scenario.software, recipe_of(scenario)
    experts = software.experts if software else ExpertKernels()
    if parallel.expert_dispatch.kind == "hybridep":
        # it pads, so the software copies no rows (Megatron-LM, fused_a2a.py, ``hybrid_ep_dispatch``; Transformer
        # Engine, ``Fp8Padding``, which gives rows back that need none)
        experts = experts.model_copy(update={"padding": "routing"})
    return RankShape(
        micro_batch=training.micro_batch,
        tp=parallel.tp,
        cp=parallel.cp,
        cp_comm=parallel.cp_comm,
        cp_shares=parallel.cp_shares,
        ring=software.ring if software else "transformer-engine",
        rope=software.rope if software else "fused",
        bias=software.bias if software else "product",
        ep=parallel.ep,
        etp=parallel.etp or 0,
        sequence_parallel=parallel.sequence_parallel,
        relayed=parallel.ep > 1 and parallel.expert_dispatch.relays,
        all_gathered=parallel.ep > 1 and parallel.expert_dispatch.kind == "allgather",
        sent_cast=parallel.ep > 1 and parallel.expert_dispatch.dtype == "fp8",
        recompute=training.recompute,
        modules=training.recompute_modules,
        recompute_every=training.recompute_every,
        attention=training.attention,
        dropout=training.dropout,
        logits=memory.logits,
        activation_input=memory.activation_input,
        temporaries=memory.backward_temporaries,
        probabilities=software.probabilities if software else "combine",
        kernels=software.kernels if software else "fused",
        accumulate=software.accumulate if software else "fused",
        experts=experts,
        fp8=training.precision in _CAST_BYTES,
        cast_bytes=_CAST_BYTES.get(training.precision, 1.0),
        cast_rows=_CAST_ROWS.get(training.precision, 16),
        weight_cast_bytes=_weight_cast_bytes(scenario, recipe) if training.precision in _CAST_BYTES else 0.0,
        stops_early=software is not None and {"whole": False, "early-stop": True}[software.checkpoint],
        keeps_fused_core=software is not None and {"any-core": False, "unfused-core": True}[software.selective],
        element_bytes=ELEMENT_BYTES[training.precision],
        grad_accumulate_bytes=recipe.gradient,
    )


def _weight_cast_bytes(scenario: Scenario, recipe: Recipe) -> float:
    """Return the bytes per weight that its cast moves: the 16-bit weight, and as many copies as the recipe keeps.

    Both orders where it keeps none; 0 where weights themselves are in 8 bits, since they are gathered as operands.
    """
    precision = scenario.training.precision
    if recipe.gathered < _HALF_BYTES:
        return 0.0
    each = _CAST_BYTES[precision]
    return ELEMENT_BYTES[precision] + (round(recipe.copies / each) or 2) * each


def platform_of(scenario: Scenario) -> Platform | None:
    """The platform of NCCL, whose buffers, latencies and rates the job has; None where links alone count."""
    chosen = scenario.collectives.nccl
    name = scenario.cluster.built.nccl if chosen == "auto" else chosen
    return None if name in (None, "none") else load_platform(name)


def overheads_of(scenario: Scenario, plan: Plan) -> Overheads:
    """Fragmentation and buffers of the ranks of a plan, as the scenario's ``memory`` section says."""
    memory = scenario.memory
    communication = memory.communication_buffers
    if communication == "auto":
        machines = len(set(scenario.cluster.built.host_of[: scenario.gpus]))
        communication = nccl_buffer_bytes(plan, platform_of(scenario), machines=machines)
    return Overheads(
        fragmentation=memory.fragmentation,
        communication=0.0 if communication == "none" else communication,
        workspace=memory.workspace or 0.0,
        megatron_te={"plain": False, "megatron-te": True}[memory.library],
    )


def offload_of(scenario: Scenario) -> Offload:
    """What the scenario keeps in host memory."""
    chosen, recipe, cluster = scenario.memory.offload, recipe_of(scenario), scenario.cluster.built
    model, shape = scenario.model, shape_of(scenario)
    blocks = residencies(model, shape)

    def kept(layers: Sequence[int]) -> float:
        if chosen.modules:
            return sum(moved_bytes(model, shape, layer, chosen.modules) for layer in layers)
        return sum(map(blocks.kept, layers))

    boxes = Counter(cluster.box_of(rank) for rank in range(scenario.gpus)) if chosen.optimizer == "host" else {}
    return Offload(
        activations=chosen.activations,
        ahead=chosen.ahead,
        kept=kept,
        optimizer=chosen.optimizer,
        state_bytes=recipe.optimizer,
        gradient_bytes=recipe.gradient,
        weight_bytes=recipe.gathered,
        update_bytes=recipe.update_traffic,
        host_rate=(chosen.host_update or math.inf) / max(boxes.values(), default=1),
        bucket=chosen.bucket,
        buffers=chosen.buffers,
    )


def footprints_of(scenario: Scenario, job: Job) -> tuple[Footprint, ...]:
    """Bytes on the ranks of every stage of the scenario's job when they hold most, stage by stage; on the fullest of a
    stage's ranks where experts get unequally many tokens."""
    shape, recipe, overheads = shape_of(scenario), recipe_of(scenario), overheads_of(scenario, job.plan)
    moe = scenario.model.moe
    experts = ExpertLoads.of(scenario.faults, job.plan, scenario.seed, moe.routes, moe.most) if moe else None
    return tuple(
        replace(
            stage_footprint(
                job.model,
                shape,
                job.plan,
                job.schedule,
                job.slices,
                recipe,
                zero=scenario.parallel.zero,
                stage=stage,
                overheads=overheads,
                offload=job.offload,
                experts=experts,
                steps=scenario.steps,
                optimizer=job.data_parallel.optimizer,
                outer=outer_state(scenario) if scenario.training.outer else 0.0,
            ),
            unsharded=unsharded_peak(job, stage) if scenario.parallel.zero >= 2 else 0.0,
        )
        for stage in range(job.plan.pp)
    )


def recompute_words(training: Training) -> str:
    """What runs again: none, full, selective, or selective with its modules where they are not the attention's core."""
    own = training.recompute_modules
    listed = training.recompute == "selective" and own != ("core_attn",)
    return f"{training.recompute} ({', '.join(own)})" if listed else training.recompute


# --- the recipe in words and numbers: bytes a parameter, and who chose them -------------------------------------------


def recipe_document(scenario: Scenario) -> dict[str, Any]:
    """As in the result JSON: bytes of each part before any sharding; ``default``: it follows from the precision."""
    recipe = recipe_of(scenario)
    return {
        "weight": recipe.weight,
        "gradient": recipe.gradient,
        "optimizer": recipe.optimizer,
        "recipe": recipe.name,
        "default": scenario.training.memory_recipe is None,
    }


def recipe_words(scenario: Scenario) -> str:
    """One line: 18 B a parameter (weights 2, gradients 4, optimizer 12: mixed-18, by default)."""
    recipe = recipe_of(scenario)
    default = ", by default" if scenario.training.memory_recipe is None else ""
    less = optimizer_class(scenario.training.optimizer).state_in_words(recipe)
    return f"{recipe.total:g} B a parameter ({parts_of(recipe)}: {recipe.name}{default}{less})"


def parts_of(recipe: Recipe) -> str:
    """Bytes by part: weights 2, gradients 4, optimizer 12."""
    return f"weights {recipe.weight:g}, gradients {recipe.gradient:g}, optimizer {recipe.optimizer:g}"


def change_words(before: Recipe, after: Recipe) -> str:
    """What another recipe changes: gradients 4 -> 2 B a parameter, in memory and over dp."""
    return "; ".join(_changes(before, after)) or "what the update reads and writes"


def _changes(before: Recipe, after: Recipe) -> Iterator[str]:
    """Parts that differ; gradients are what replicas reduce, weights what ZeRO gathers."""
    if before.gradient != after.gradient:
        yield f"gradients {before.gradient:g} -> {after.gradient:g} B a parameter, in memory and over dp"
    if before.weight != after.weight:
        yield f"weights {before.weight:g} -> {after.weight:g} B"
    if before.optimizer != after.optimizer:
        yield f"optimizer {before.optimizer:g} -> {after.optimizer:g} B"
