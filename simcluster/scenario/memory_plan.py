"""Memory of a scenario: recipe, tensor shapes, overheads, footprint of each stage, and fit in GPU memory.

No device time and no clock is needed, so a plan can be judged at once. The count is of what a training framework
allocates; a share of GPU memory (``HEADROOM``) is left free for the rest: the CUDA context, library buffers, holes
between allocations. Pure functions of a scenario.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from simcluster.base.counts import float_or_nan, format_count
from simcluster.base.errors import InputError
from simcluster.devices.software import Software
from simcluster.faults.expert_loads import ExpertLoads
from simcluster.faults.fault_spec import faults_with_effect
from simcluster.faults.rank_effects import image_loads
from simcluster.model.kernel_choices import Quantization
from simcluster.model.layers import RankShape, parameters
from simcluster.model.memory import offloaded_bytes
from simcluster.model.quantization import find_quantization
from simcluster.model.recipes import Recipe, recipe_named
from simcluster.model.trainable import QUANTIZED_BYTES
from simcluster.model.transformer import Model
from simcluster.planning.block_memory import block_memory_table
from simcluster.planning.footprint import Footprint, UnevenLoads, stage_footprint
from simcluster.planning.fsdp_units import peak_unsharded_bytes
from simcluster.planning.job import Job, OffloadOptions
from simcluster.planning.optimizer import get_optimizer_class
from simcluster.planning.owned_parameters import MemoryOverheads, nccl_buffer_bytes
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.scenario.schedule_plan import batch_sizes_of, outer_state_bytes
from simcluster.schedules.stage_layout import find_separate_prediction
from simcluster.traffic.nccl.platforms import Platform, load_platform

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario
    from simcluster.scenario.training_section import Training

HEADROOM = 0.1
"""Share of GPU memory that is left free by default: below it a run is "tight", and no search recommends it."""

Fit = Literal["yes", "tight", "no"]
"""Whether a job fits in memory: with headroom (yes), only without headroom (tight), or not at all."""

OVER, TIGHT = " !", " ~"
"""Marks after bytes that exceed the GPU's memory (OVER) or its usable part (TIGHT)."""


def usable_bytes(capacity: float, headroom: float = HEADROOM) -> float:
    """Return the bytes of GPU memory that a job may use: the capacity minus a share left free (``headroom``)."""
    return (1 - headroom) * capacity


def judge_fit(memory: float, capacity: float, headroom: float = HEADROOM) -> Fit:
    """Return whether ``memory`` bytes fit in a GPU's memory: yes, no, or tight (headroom partly used)."""
    if memory > capacity:
        return "no"
    return "tight" if memory > usable_bytes(capacity, headroom) else "yes"


def fit_mark(memory: float, capacity: float, headroom: float = HEADROOM) -> str:
    """Return the mark that tables append to memory that does not fit, or only tightly; "" if the memory fits."""
    return {"no": OVER, "tight": TIGHT, "yes": ""}[judge_fit(memory, capacity, headroom)]


def parse_headroom(text: str) -> float:
    """Parse the share of GPU memory to leave free, such as "10%" or "0.1"; raise InputError if invalid."""
    number, percent = (text[:-1], 100) if text.endswith("%") else (text, 1)
    return check_headroom(float_or_nan(number) / percent, text)


def check_headroom(share: float, written: object) -> float:
    """Return the headroom (share of GPU memory left free) unchanged; raise InputError unless 0 <= headroom < 1."""
    if not 0 <= share < 1:
        raise InputError(
            f'headroom must be the share of GPU memory left free, at least 0 and below 1, as in "10%" or 0.1; '
            f"got {written!r}"
        )
    return share


ELEMENT_BYTES = {
    "bf16-mixed": 2.0,
    "fp16-mixed": 2.0,
    "fp8-mixed": 2.0,
    "mxfp8-mixed": 2.0,
    "nvfp4-mixed": 2.0,
    "fp32": 4.0,
}
"""Bytes of a weight or an activation as matmuls read it, by precision."""

_RECIPE = {"bf16-mixed": "mixed-18", "fp16-mixed": "mixed-16", "fp8-mixed": "fp8-20", "mxfp8-mixed": "fp8-20",
           "nvfp4-mixed": "nvfp4-19", "fp32": "fp32-16"}  # fmt: skip


def recipe_of(scenario: Scenario) -> Recipe:
    """Return the memory recipe (bytes per parameter) of a scenario; the default depends on the precision."""
    return recipe_named(scenario.training.memory_recipe or _RECIPE[scenario.training.precision])


def shape_of(scenario: Scenario) -> RankShape:
    """Return the settings that determine, together with the model, the tensor and kernel shapes on a rank."""
    training, parallel, memory = scenario.training, scenario.parallel, scenario.memory
    software, recipe, how = scenario.software or Software(), recipe_of(scenario), quantization_of(scenario)
    weight_cast_bytes, weight_cast_launches = _weight_casts(scenario, recipe, how)
    start, end = training.layers_in_16_bits
    layers = range(scenario.model.layers)
    experts = software.experts
    if parallel.expert_dispatch.kind == "hybridep":
        # it pads, so the software copies no rows (Megatron-LM, fused_a2a.py, ``hybrid_ep_dispatch``; Transformer
        # Engine, ``Fp8Padding``, which gives rows back that need none)
        experts = experts.model_copy(update={"padding": "routing"})
    return RankShape(
        micro_batch=training.micro_batch,
        tp=parallel.tp,
        cp=parallel.cp,
        cp_comm=parallel.cp_comm,
        cp_inner=parallel.cp_inner,
        cp_shares=parallel.cp_shares,
        cp_states=parallel.cp_states,
        ring=software.ring,
        rope=software.rope,
        bias=software.bias,
        ep=parallel.ep,
        etp=parallel.etp or 0,
        sequence_parallel=parallel.sequence_parallel,
        relayed=parallel.ep > 1 and parallel.expert_dispatch.relays_tokens,
        all_gathered=parallel.ep > 1 and parallel.expert_dispatch.kind == "allgather",
        sent_cast=parallel.ep > 1 and parallel.expert_dispatch.dtype == "fp8",
        separate_prediction=find_separate_prediction(scenario.pipeline.layout) is not None,
        recompute=training.recompute,
        modules=training.recompute_modules,
        recompute_every=training.recompute_every,
        attention=training.attention,
        dropout=training.dropout,
        logits=memory.logits,
        activation_input=memory.activation_input,
        temporaries=memory.backward_temporaries,
        probabilities=software.probabilities,
        kernels=software.kernels,
        accumulate=software.accumulate,
        experts=experts,
        quantization=how,
        wide_layers=frozenset((*layers[:start], *layers[len(layers) - end :])),
        weight_cast_bytes=weight_cast_bytes,
        weight_cast_launches=weight_cast_launches,
        stops_early={"whole": False, "early-stop": True}[software.checkpoint],
        keeps_fused_core={"any-core": False, "unfused-core": True}[software.selective],
        element_bytes=ELEMENT_BYTES[training.precision],
        grad_accumulate_bytes=recipe.gradient,
    )


def quantization_of(scenario: Scenario) -> Quantization | None:
    """Return the recipe that quantizes operands of the layers' matmuls; None in 16 and 32 bits."""
    training, software = scenario.training, scenario.software or Software()
    fused = {"fused": True, "compiled": False, "eager": False}[software.kernels]
    either = scenario.cluster.device.peak.mxfp8 is not None  # Blackwell, which takes fp8 operands in either order
    return find_quantization(training.precision, training.fp8_scaling, fused=fused, either_order=either)


def gathered_weight_of(scenario: Scenario) -> float:
    """Return the bytes per weight that an all-gather of sharded weights sends.

    MXFP8 weights are gathered in 16 bits, of which each rank makes both orders (Megatron-LM,
    core/distributed/param_and_grad_buffer.py, ``reuse_grad_buf_for_mxfp8_param_ag``).
    """
    sent, how = recipe_of(scenario).gathered_weight, quantization_of(scenario)
    return max(sent, ELEMENT_BYTES[scenario.training.precision]) if how and how.name == "mxfp8" else sent


def _weight_casts(scenario: Scenario, recipe: Recipe, how: Quantization | None) -> tuple[float, int]:
    """Return the bytes per weight and the launches of the kernels that quantize it, once per step.

    They write two copies where the recipe keeps none. Weights gathered as operands are not quantized; where matmuls
    take one order only, and the recipe keeps a copy, it is a transpose.
    """
    if how is None:
        return 0.0, 1
    element, each = ELEMENT_BYTES[scenario.training.precision], how.operand_bytes
    if gathered_weight_of(scenario) < element:
        turned = how.gathers == "rows" and how.rearranges and recipe.copies > 0
        return 2 * each if turned else 0.0, 1
    copies = 2 if how.name == "mxfp8" else round(recipe.copies / each) or 2
    return how.weight.reads * element + copies * each, how.weight.launches


def platform_of(scenario: Scenario) -> Platform | None:
    """Return the NCCL platform of the job; None if links alone determine transfer times."""
    chosen = scenario.collectives.nccl
    name = scenario.cluster.built.nccl if chosen == "auto" else chosen
    return None if name in (None, "none") else load_platform(name)


def overheads_of(scenario: Scenario, plan: ParallelPlan) -> MemoryOverheads:
    """Return the memory per rank for fragmentation and library buffers, from the section ``memory``."""
    memory = scenario.memory
    communication = memory.communication_buffers
    if communication == "auto":
        machines = len(set(scenario.cluster.built.host_of[: scenario.gpus]))
        communication = nccl_buffer_bytes(plan, platform_of(scenario), machines=machines)
    return MemoryOverheads(
        fragmentation=memory.fragmentation,
        communication=0.0 if communication == "none" else communication,
        workspace=memory.workspace or 0.0,
        megatron_te={"plain": False, "megatron-te": True}[memory.library],
    )


def offload_of(scenario: Scenario) -> OffloadOptions:
    """Return the options for offloading activations and optimizer state to host memory."""
    chosen, recipe, cluster = scenario.memory.offload, recipe_of(scenario), scenario.cluster.built
    model, shape = scenario.model, shape_of(scenario)
    blocks = block_memory_table(model, shape)

    def kept_bytes(layers: Sequence[int]) -> float:
        if chosen.modules:
            return sum(offloaded_bytes(model, shape, layer, chosen.modules) for layer in layers)
        return sum(map(blocks.kept_bytes, layers))

    boxes = Counter(cluster.node_and_tray(rank) for rank in range(scenario.gpus)) if chosen.optimizer == "host" else {}
    return OffloadOptions(
        activations=chosen.activations,
        prefetch_actions=chosen.ahead,
        kept_bytes_of_layers=kept_bytes,
        optimizer=chosen.optimizer,
        state_bytes=recipe.optimizer,
        gradient_bytes=recipe.gradient,
        weight_bytes=gathered_weight_of(scenario),
        update_bytes=recipe.update_traffic,
        host_rate=(chosen.host_update or math.inf) / max(boxes.values(), default=1),
        bucket=chosen.bucket,
        buffers=chosen.buffers,
    )


def footprints_of(scenario: Scenario, job: Job) -> tuple[Footprint, ...]:
    """Return the peak memory footprint of each pipeline stage.

    Where experts get unequal numbers of tokens, or sequences of image tokens, it is that of the stage's fullest rank.
    """
    shape, recipe, overheads = shape_of(scenario), recipe_of(scenario), overheads_of(scenario, job.plan)
    moe = scenario.model.moe
    uneven = faults_with_effect(scenario.faults, "expert_loads")
    loads: UnevenLoads | None = image_loads(scenario.faults, scenario.seed, batch_sizes_of(scenario), scenario.dp)
    if moe and uneven:
        loads = ExpertLoads(uneven, job.plan, scenario.seed, moe.token_routes, moe.capacity_in_even_shares)
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
                loads=loads,
                steps=scenario.steps,
                optimizer=job.data_parallel.optimizer,
                outer=outer_state_bytes(scenario),
            ),
            unsharded=peak_unsharded_bytes(job, stage) if scenario.parallel.zero >= 2 else 0.0,
        )
        for stage in range(job.plan.pp)
    )


def describe_recompute(training: Training) -> str:
    """Describe the recomputation: "none", "full", or "selective" (with the modules if they are not the default)."""
    own = training.recompute_modules
    listed = training.recompute == "selective" and own != ("core_attn",)
    return f"{training.recompute} ({', '.join(own)})" if listed else training.recompute


# --- the recipe in words and numbers: bytes a parameter, and who chose them -------------------------------------------


def recipe_document(scenario: Scenario) -> dict[str, Any]:
    """Return the memory recipe as a dict for the result JSON: bytes per parameter of each part, without sharding.

    Where weights are frozen, also the numbers of all and of trained parameters.
    """
    recipe, count = recipe_of(scenario), parameters(scenario.model)
    return {
        "weight": recipe.weight,
        "gradient": recipe.gradient,
        "optimizer": recipe.optimizer,
        "recipe": recipe.name,
        "default": scenario.training.memory_recipe is None,
        **({"parameters": count.total, "trained_parameters": count.total - count.frozen} if count.frozen else {}),
    }


def describe_recipe(scenario: Scenario) -> str:
    """Describe the memory recipe, as in "18 B per parameter (weights 2, gradients 4, optimizer 12: mixed-18)"."""
    recipe = recipe_of(scenario)
    default = ", by default" if scenario.training.memory_recipe is None else ""
    less = get_optimizer_class(scenario.training.optimizer).describe_state_difference(recipe)
    parts = f"{recipe.total:g} B per parameter ({describe_recipe_parts(recipe)}: {recipe.name}{default}{less})"
    return parts + describe_frozen(scenario.model, recipe)


def describe_frozen(model: Model, recipe: Recipe) -> str:
    """Describe which parameters are trained, and the bytes of the others; "" if all are trained."""
    count = parameters(model)
    if not count.frozen:
        return ""
    base = model.lora.base_weights if model.lora else None
    low = f" ({QUANTIZED_BYTES[base]:.4g} in layers)" if base else ""
    trained = f"{format_count(count.total - count.frozen)} of {format_count(count.total)} parameters are trained"
    return f"; {trained}, others have {recipe.weight:g} B{low} and at most 4 FLOP per token, not 6"


def describe_recipe_parts(recipe: Recipe) -> str:
    """Describe a memory recipe's bytes per parameter, as in "weights 2, gradients 4, optimizer 12"."""
    return f"weights {recipe.weight:g}, gradients {recipe.gradient:g}, optimizer {recipe.optimizer:g}"


def describe_recipe_change(before: Recipe, after: Recipe) -> str:
    """Describe how two memory recipes differ, as in "gradients 4 -> 2 B per parameter, in memory and over dp"."""
    return "; ".join(_recipe_changes(before, after)) or "only the memory traffic of the optimizer update"


def _recipe_changes(before: Recipe, after: Recipe) -> Iterator[str]:
    if before.gradient != after.gradient:
        yield f"gradients {before.gradient:g} -> {after.gradient:g} B per parameter, in memory and over dp"
    if before.weight != after.weight:
        yield f"weights {before.weight:g} -> {after.weight:g} B"
    if before.optimizer != after.optimizer:
        yield f"optimizer {before.optimizer:g} -> {after.optimizer:g} B"
