"""Advice on a scenario: hidden costs, combinations that no framework supports, and missing overlap.

Pure functions of a scenario and of its ranks' footprints; nothing is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcluster.base.units import format_seconds
from simcluster.faults.experts import ExpertImbalance
from simcluster.scenario.memory_plan import ELEMENT_BYTES, recipe_of, shape_of
from simcluster.scenario.schedule_plan import schedule_of
from simcluster.schedules.comparison import describe_extra_activations
from simcluster.schedules.specs import ZbAuto

if TYPE_CHECKING:
    from simcluster.model.mixture import Moe
    from simcluster.planning.footprint import Footprint
    from simcluster.scenario.scenario import Scenario
    from simcluster.schedules import Schedule


def cost_warnings(
    scenario: Scenario, footprints: Sequence[Footprint], recompute: float, schedule: Schedule
) -> Iterator[str]:  # fmt: skip
    """Yield warnings about hidden costs, each with a cheaper alternative.

    ``recompute`` is the recompute time of the mean rank per step (s), ``schedule`` the schedule of the run.
    """
    training = scenario.training
    recipe = recipe_of(scenario)
    if training.precision == "fp32" and recipe.weight < ELEMENT_BYTES["fp32"]:
        yield (
            f"training.memory_recipe {recipe.name} keeps weights in {recipe.weight:g} bytes, and matmuls in fp32 read "
            "4; use fp32-16, which keeps them in 4"
        )
    if scenario.parallel.zero == 2 and not scenario.overlap.grad_reduce:
        yield from _warn_unsharded_gradients(footprints)
    if schedule.name == "zb-auto":
        yield from _warn_activations(scenario, schedule)
    if scenario.model.moe:
        yield from _warn_full_experts(scenario, scenario.model.moe)
    if training.recompute == "selective" and training.attention == "fused" and shape_of(scenario).core_again:
        yield (
            f"recompute: selective runs the fused attention again, {format_seconds(recompute)} per step, and frees "
            "only its softmax statistics; recompute: none is faster and needs hardly more memory"
        )


def _warn_unsharded_gradients(footprints: Sequence[Footprint]) -> Iterator[str]:
    """Warn of ZeRO 2 that reduces gradients only after the backward, so that they stay unsharded until then.

    DeepSpeed's stage 2 reduces bucket by bucket (``reduce_bucket_size``) in the backward, with overlap_comm or without
    (runtime/zero/stage_1_and_2.py, ``reduce_independent_p_g_buckets_and_remove_grads``), and FSDP's SHARD_GRAD_OP unit
    by unit; there gradients are whole only where one bucket has them all.
    """
    whole = max(each.unsharded for each in footprints)
    most = max(each.gradients + each.unsharded for each in footprints)
    if whole:
        yield (
            f"ZeRO 2 without overlap.grad_reduce holds up to {_format_size(most)} of gradients per GPU: its shard, and "
            f"{_format_size(whole)} unsharded until the backward ends, where ZeRO 1 holds only the unsharded ones; "
            "with overlap.grad_reduce: true they are reduced in buckets, as in DeepSpeed"
        )


def _warn_activations(scenario: Scenario, schedule: Schedule) -> Iterator[str]:
    what = scenario.pipeline.schedule
    limit = what.memory_limit if isinstance(what, ZbAuto) else None
    if limit is None and (more := describe_extra_activations(schedule)):
        usual = min(schedule.num_stages, schedule.num_microbatches)
        yield (
            f"zb-auto without a memory_limit {more}; pipeline.schedule: {{name: zb-auto, memory_limit: {usual}}} "
            "holds no more than 1F1B"
        )


def _warn_full_experts(scenario: Scenario, moe: Moe) -> Iterator[str]:
    first = next((layer for layer in range(scenario.model.layers) if moe.is_moe_layer(layer)), 0)
    for fault in (each for each in scenario.faults if isinstance(each, ExpertImbalance)):
        asked = fault.asked(scenario.seed, moe.routes, first)
        if asked > 1:
            yield (
                f"expert_imbalance: {fault.tokens.kind} distribution gives the most popular expert of layer {first} "
                f"{asked:.3g} rows per token, but a token visits an expert once; it gets one, others share the rest"
            )


def _format_size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


# --- ZeRO 2 and 3 under a pipeline ------------------------------------------------------------------------------------


def describe_zero_support(zero: int, pp: int, replicas: int, *, reshards: bool = True) -> str:
    """Return which frameworks support this ZeRO stage with ``pp`` stages; "" if all that have both do.

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
        f"ZeRO-{zero} under a pipeline: torchtitan launches it (FSDP2, reshard_after_forward {policy}); DeepSpeed "
        "refuses it, Megatron-LM's distributed optimizer is ZeRO-1"
    )


def launch_note(scenario: Scenario) -> str:
    """Return which frameworks support a scenario's ZeRO stage with its pipeline; "" if all do."""
    parallel, reshards = scenario.parallel, scenario.fsdp.reshard_after_forward
    words = describe_zero_support(parallel.zero, parallel.pp, scenario.dp * parallel.cp, reshards=reshards)
    name = scenario.software.name if scenario.software else ""
    if not words or not name.startswith("megatron"):
        return words
    return f"software {name} cannot launch this: {words}"


# --- what could run beside computation --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MissingOverlap:
    """Communication (of ``axes``) that a scenario does not overlap with compute, and the keys that enable it."""

    what: str
    axes: tuple[str, ...]
    values: Mapping[str, Any]
    as_in: str = ""


@dataclass(frozen=True, slots=True)
class OverlapNote:
    """Note on a missing overlap, with the share of the step time that its communication exposes."""

    off: MissingOverlap
    exposed: float

    @property
    def text(self) -> str:
        """Return the note as one line, with the scenario keys that enable the overlap."""
        switches = ", ".join(f"{path}: {str(value).lower()}" for path, value in self.off.values.items())
        as_in = f", on in {self.off.as_in}" if self.off.as_in else ""
        axes = " and ".join(self.off.axes)
        return f"{self.off.what}: exposed {axes} is {self.exposed:.1%} of the step; {switches} (off here{as_in})"

    def to_dict(self) -> dict[str, Any]:
        """Return the note as in the result JSON."""
        return {"text": self.text, "set": dict(self.off.values), "exposed_fraction": self.exposed}


@dataclass(frozen=True, slots=True)
class PlainNote:
    """Note on a run that no scenario key can improve."""

    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the note as in the result JSON, with nothing to set."""
        return {"text": self.text, "set": {}, "exposed_fraction": 0.0}


def find_missing_overlaps(scenario: Scenario) -> Iterator[MissingOverlap]:
    """Yield the communication of a scenario that could overlap with compute but does not.

    The keys are off unless a scenario sets them, as Megatron-LM's own are (``--overlap-grad-reduce`` and
    ``--overlap-param-gather`` are optional flags); PyTorch's FSDP has both on, and gathers one unit ahead
    (docs.pytorch.org, "FSDP Notes": implicit forward prefetching is always enabled; backward prefetching by default).
    DualPipe is made for pairs whose halves overlap (arXiv:2412.19437 section 3.2.1).
    """
    replicas = scenario.dp * scenario.parallel.cp
    if replicas > 1:
        yield from _find_dp_overlaps(scenario)
    experts = scenario.model.moe is not None and scenario.parallel.ep > 1
    axes = (*(("tp",) if scenario.parallel.tp > 1 else ()), *(("ep",) if experts else ()))
    if axes and not scenario.overlap.pairs and scenario.parallel.zero < 3 and any(schedule_of(scenario).fused):
        yield MissingOverlap("the halves of pairs [F|B] run one after the other", axes, {"overlap.pairs": True})


def _find_dp_overlaps(scenario: Scenario) -> Iterator[MissingOverlap]:
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
