"""Advice on a scenario: costly settings, combinations that no framework supports, and missing overlap.

Pure functions of a scenario and of its ranks' footprints; nothing is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcluster.base.units import format_seconds
from simcluster.faults.expert_imbalance import ExpertImbalance
from simcluster.scenario.memory_plan import ELEMENT_BYTES, recipe_of, shape_of
from simcluster.scenario.schedule_plan import schedule_of
from simcluster.schedules.comparison import describe_extra_activations
from simcluster.schedules.specs import ZbAutoSpec

if TYPE_CHECKING:
    from simcluster.model.mixture import Moe
    from simcluster.planning.footprint import Footprint
    from simcluster.scenario.scenario import Scenario
    from simcluster.schedules import Schedule


def find_cost_warnings(
    scenario: Scenario, footprints: Sequence[Footprint], recompute: float, schedule: Schedule
) -> Iterator[str]:  # fmt: skip
    """Yield warnings about settings with hidden costs, each with a cheaper alternative.

    ``recompute`` is the recompute time of the mean rank per step (s), ``schedule`` the schedule of the run.
    """
    training = scenario.training
    recipe = recipe_of(scenario)
    if training.precision == "fp32" and recipe.weight < ELEMENT_BYTES["fp32"]:
        yield (
            f"training.memory_recipe {recipe.name} keeps {recipe.weight:g} bytes per weight, but matmuls in fp32 read "
            "4 bytes per weight; use fp32-16, which keeps 4"
        )
    if scenario.parallel.zero == 2 and not scenario.overlap.grad_reduce:
        yield from _warn_unsharded_gradients(footprints)
    if schedule.name == "zb-auto":
        yield from _warn_zb_auto_activations(scenario, schedule)
    if scenario.model.moe:
        yield from _warn_overfull_experts(scenario, scenario.model.moe)
    if training.recompute == "selective" and training.attention == "fused" and shape_of(scenario).recomputes_core:
        yield (
            f"recompute: selective recomputes the fused attention, {format_seconds(recompute)} per step, but frees "
            "only the softmax statistics; recompute: none is faster and needs hardly more memory"
        )


def _warn_unsharded_gradients(footprints: Sequence[Footprint]) -> Iterator[str]:
    """Warn if ZeRO 2 keeps gradients unsharded until the backward ends, because overlap is off.

    DeepSpeed's stage 2 reduces bucket by bucket (``reduce_bucket_size``) in the backward, with overlap_comm or without
    (runtime/zero/stage_1_and_2.py, ``reduce_independent_p_g_buckets_and_remove_grads``), and FSDP's SHARD_GRAD_OP unit
    by unit; there gradients are whole only where one bucket has them all.
    """
    whole = max(each.unsharded for each in footprints)
    most = max(each.gradients + each.unsharded for each in footprints)
    if whole:
        yield (
            f"ZeRO 2 without overlap.grad_reduce holds up to {_format_size(most)} of gradients per GPU: its shard, and "
            f"{_format_size(whole)} unsharded until the backward ends (ZeRO 1 holds only the unsharded gradients); "
            "set overlap.grad_reduce: true to reduce them in buckets, as in DeepSpeed"
        )


def _warn_zb_auto_activations(scenario: Scenario, schedule: Schedule) -> Iterator[str]:
    what = scenario.pipeline.schedule
    limit = what.memory_limit if isinstance(what, ZbAutoSpec) else None
    if limit is None and (more := describe_extra_activations(schedule)):
        usual = min(schedule.num_stages, schedule.num_microbatches)
        yield (
            f"zb-auto without a memory_limit {more}; pipeline.schedule: {{name: zb-auto, memory_limit: {usual}}} "
            "holds no more than 1F1B"
        )


def _warn_overfull_experts(scenario: Scenario, moe: Moe) -> Iterator[str]:
    first = next((layer for layer in range(scenario.model.layers) if scenario.model.has_experts(layer)), 0)
    for fault in (each for each in scenario.faults if isinstance(each, ExpertImbalance)):
        asked = fault.requested_rows_per_token(scenario.seed, moe.token_routes, first)
        if asked > 1:
            yield (
                f"expert_imbalance: the {fault.tokens.kind} distribution sends {asked:.3g} copies of each token to the "
                f"most popular expert of layer {first}; that expert gets only one, and the others share the rest"
            )


def _format_size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


# --- ZeRO 2 and 3 under a pipeline ------------------------------------------------------------------------------------


def describe_zero_support(zero: int, pp: int, replicas: int, *, reshards: bool = True) -> str:
    """Describe which frameworks support a ZeRO stage with ``pp`` pipeline stages; "" if all frameworks do.

    ``replicas`` share the state; ``reshards``: ZeRO 3 frees parameters after the forward. A pipeline passes many
    microbatches through a stage before its gradients are complete, so most frameworks that have both refuse to shard
    gradients or parameters there:

    * DeepSpeed asserts ``zero_optimization_stage() < 2`` in the constructor of ``PipelineEngine``
      (deepspeed/runtime/pipe/engine.py: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism").
    * Megatron-LM's ``--use-distributed-optimizer`` shards the optimizer's state alone, which is ZeRO 1, and
      ``--use-torch-fsdp2`` asserts that there is no pipeline (megatron/training/arguments.py).  Megatron-FSDP, which
      replaces both, is not judged here.
    * torchtitan puts PyTorch's ``fully_shard`` under ``torch.distributed.pipelining``; its ``reshard_after_forward`` is
      ``default`` (with a pipeline: parameters stay after the forward), ``always`` (ZeRO 3) or ``never``
      (torchtitan/models/llama3/infra/parallelize.py).
    """
    if zero < 2 or pp == 1 or replicas == 1:
        return ""
    policy = "always" if zero == 3 and reshards else "never"
    return (
        f"ZeRO-{zero} with pipeline parallelism: torchtitan supports it (FSDP2, reshard_after_forward {policy}); "
        "DeepSpeed rejects it, and Megatron-LM's distributed optimizer is only ZeRO-1"
    )


def describe_framework_support(scenario: Scenario) -> str:
    """Describe which frameworks support this scenario's ZeRO stage with its pipeline; "" if all frameworks do."""
    parallel, reshards = scenario.parallel, scenario.fsdp.reshard_after_forward is not False
    words = describe_zero_support(parallel.zero, parallel.pp, scenario.dp * parallel.cp, reshards=reshards)
    name = scenario.software.name if scenario.software else ""
    if not words or not name.startswith("megatron"):
        return words
    return f"software {name} cannot launch this: {words}"


# --- what could run beside computation --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MissingOverlap:
    """Communication that could overlap with compute but does not, and the scenario keys that enable overlap."""

    description: str
    axes: tuple[str, ...]
    enabling_keys: Mapping[str, Any]
    enabled_in: str = ""


@dataclass(frozen=True, slots=True)
class OverlapNote:
    """Note that communication does not overlap with compute, with the exposed share of the step time."""

    missing_overlap: MissingOverlap
    exposed_fraction: float

    @property
    def text(self) -> str:
        """The note as one line of text, including the scenario keys that enable overlap."""
        overlap = self.missing_overlap
        switches = ", ".join(f"{path}: {str(value).lower()}" for path, value in overlap.enabling_keys.items())
        as_in = f" (the default of {overlap.enabled_in})" if overlap.enabled_in else ""
        exposed = f"exposed {' and '.join(overlap.axes)} is {self.exposed_fraction:.1%} of the step"
        return f"{overlap.description}: {exposed}; to overlap set {switches}{as_in}"

    def to_dict(self) -> dict[str, Any]:
        """Return the note as a dict for the result JSON."""
        keys = dict(self.missing_overlap.enabling_keys)
        return {"text": self.text, "set": keys, "exposed_fraction": self.exposed_fraction}


@dataclass(frozen=True, slots=True)
class PlainNote:
    """Note about a run for which no scenario key offers a remedy."""

    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the note as a dict for the result JSON; the dict names no scenario keys."""
        return {"text": self.text, "set": {}, "exposed_fraction": 0.0}


def find_missing_overlaps(scenario: Scenario) -> Iterator[MissingOverlap]:
    """Yield each kind of communication in a scenario that could overlap with compute but does not.

    The keys are off unless a scenario sets them, as Megatron-LM's own are (``--overlap-grad-reduce`` and
    ``--overlap-param-gather`` are optional flags); PyTorch's FSDP has both on, and gathers one unit ahead
    (docs.pytorch.org, "FSDP Notes": implicit forward prefetching is always enabled; backward prefetching by default).
    DualPipe is made for pairs whose halves overlap (arXiv:2412.19437 section 3.2.1).
    """
    replicas = scenario.dp * scenario.parallel.cp
    if replicas > 1:
        yield from _find_missing_dp_overlap(scenario)
    experts = scenario.model.moe is not None and scenario.parallel.ep > 1
    axes = (*(("tp",) if scenario.parallel.tp > 1 else ()), *(("ep",) if experts else ()))
    if axes and not scenario.overlap.pairs and scenario.parallel.zero < 3 and any(schedule_of(scenario).fused):
        yield MissingOverlap("forward and backward of fused pairs [F|B] do not overlap", axes, {"overlap.pairs": True})


def _find_missing_dp_overlap(scenario: Scenario) -> Iterator[MissingOverlap]:
    overlap, zero = scenario.overlap, scenario.parallel.zero
    values: dict[str, Any] = {}
    parts = []
    if not overlap.grad_reduce:
        parts.append("gradient reduction")
        values["overlap.grad_reduce"] = True
    late = zero == 3 and not scenario.fsdp.prefetch
    if (zero and not overlap.param_gather) or late:
        parts.append("parameter gathering")
        values |= {} if overlap.param_gather else {"overlap.param_gather": True}
        values |= {"fsdp.prefetch": 1} if late else {}
    if parts:
        what = f"{' and '.join(parts)} {'do' if len(parts) > 1 else 'does'} not overlap with compute"
        yield MissingOverlap(what, ("dp",), values, "PyTorch's FSDP" if zero == 3 else "")
