"""Estimate of the CPU time to plan and simulate a scenario, from counts such as layers, steps and ranks.

Constants are those of one core in 2026, to within a factor of five: the estimate keeps a mistyped number, as 10^9
layers, from running for days. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.base.progress import check_estimated_time, describe_confirmation, estimate_limit, format_rough_duration
from simcluster.documents.diagnostics import KeyPath, KeyProblem
from simcluster.model.flops import model_flops_per_sequence
from simcluster.model.layers import parameters

if TYPE_CHECKING:
    from simcluster.scenario.scenario_fields import ScenarioFields

_PLANNED_PIECE = 8e-4  # a layer's part of a step: tiny_3d with 40 layers in 100 pieces each takes 3.6 s
_PLANNED_PAIR = 2e-6  # of layers on a stage, which planning compares: with 4,000 layers it takes 19 s
_PLANNED_PASS = 3e-4  # a microbatch on a chunk, forward and back: 1,000 steps of it take 3.0 s
_SIMULATED_LAYER = 5e-5  # a layer's passes on a rank, and its spans: 32,256 (Llama 3 405B, 256 ranks) take 1.7 s
_PLAIN_LAYER = 1e-3  # a layer's passes on a rank by the reference: 186,192 events in 1.9 s
_COMING = 8e-6  # a fault that comes and goes: a link that flaps every 100 us in a step of 53 s takes 0.7 s, two 4.7 s
_SIMULATED_OP = 4e-6  # of a step: 1,407,488 of documents on 16 GPUs take 3.0 s, 1,170,688 of jitter 9.6 s
_BUCKET = 2e-4  # of an offloaded optimizer: 280,000 take 10 s and 0.8 GB; five times that, as memory runs out first
_MFU = 0.3  # of a step whose length is not known yet
_MOST_LAYERS = 10**5  # whose FLOP are added up layer by layer: more are too many for any fault to matter
_REPLICA = 0.02  # of a step: replicas are played together
_DRAWN_LAYER = 2e-4  # a layer's passes with seconds of their own: 32,256 of jitter take 7.6 s
_EACH_PASS = {"sequence_lengths", "jitter", "image_tokens"}  # faults that make each pass one of its own


def estimate_simulation_seconds(scenario: ScenarioFields, *, sim_ranks: int = 0) -> float:
    """Return the estimated CPU time (s) to plan and simulate a scenario with N simulated ranks (0: not known)."""
    parallel, layers = scenario.parallel, scenario.model.encoder_layers.stop
    pp, pieces = parallel.pp, scenario.overlap.tensor_pieces
    passes = scenario.steps * (scenario.microbatches or 1)
    planned = _PLANNED_PIECE * layers * pieces + _PLANNED_PAIR * layers**2 / pp
    updated = _BUCKET * _count_optimizer_buckets(scenario) * scenario.steps  # by a rank per stage
    if scenario.engine == "reference":
        return planned + (_PLAIN_LAYER * passes * pieces * layers + updated) * (scenario.gpus or 1) / pp
    planned += _PLANNED_PASS * passes * pp * scenario.pipeline.chunks
    played = _SIMULATED_LAYER * passes * layers * pieces + updated  # by one rank of each stage, as its others
    drawing = [fault.kind for fault in scenario.faults if fault.is_random]
    if sim_ranks:
        played *= max(1.0, sim_ranks / pp)
    elif drawing and scenario.replicas == 1:
        gpus = scenario.gpus or pp
        played *= gpus / pp
        if set(drawing) & _EACH_PASS:
            replicas = (gpus if set(drawing) & {"speeds", "jitter"} else gpus // parallel.tp) / pp
            played += _DRAWN_LAYER * passes * layers * replicas
    return planned + (played + _COMING * count_fault_changes(scenario)) * (1.0 + _REPLICA * (scenario.replicas - 1))


def _count_optimizer_buckets(scenario: ScenarioFields) -> float:
    offload, parallel = scenario.memory.offload, scenario.parallel
    if offload.optimizer == "none" or scenario.model.encoder_layers.stop > _MOST_LAYERS:
        return 0.0
    shards = (scenario.gpus or 1) / parallel.pp if parallel.zero else parallel.tp
    return parameters(scenario.model).total / shards / offload.bucket


def count_fault_changes(scenario: ScenarioFields) -> float:
    """Return the expected number of fault starts and ends in all steps, with step times estimated from FLOP."""
    coming = any(fault.count_starts(1.0) for fault in scenario.faults)
    if not coming or scenario.model.encoder_layers.stop > _MOST_LAYERS:
        return 0.0
    rates = scenario.cluster.device.peak.known_rates()
    flops = model_flops_per_sequence(scenario.model) * scenario.training.global_batch * scenario.steps
    seconds = flops / (_MFU * rates.get("bf16", max(rates.values())) * (scenario.gpus or 1))
    return sum(fault.count_starts(seconds) for fault in scenario.faults)


def check_effort(scenario: ScenarioFields) -> Iterator[KeyProblem]:
    """Yield an error if simulating the scenario would take longer than the time limit."""
    seconds = estimate_simulation_seconds(scenario)
    if seconds > estimate_limit():
        path, what = _largest_count(scenario)
        confirmation = describe_confirmation("use fewer")
        yield path, f"{what} would take about {format_rough_duration(seconds)} to plan and simulate; {confirmation}"


def require_time_for_steps(scenario: ScenarioFields, steps: int, purpose: str, *, ops: int = 0) -> None:
    """Raise InputError if N more simulated steps, needed for ``purpose``, would exceed the time limit.

    ``ops`` is the number of ops of its step, if it was simulated.
    """
    seconds = (1 + steps) * max(estimate_simulation_seconds(scenario), _SIMULATED_OP * ops)
    told = f"{purpose} simulates about {steps} more steps, which would take about {format_rough_duration(seconds)}"
    check_estimated_time(seconds, told, "remove it")


def count_affordable_steps(scenario: ScenarioFields, most: int, *, ops: int = 0) -> int:
    """Return how many more steps can be simulated within the time limit, up to a maximum."""
    limit = estimate_limit() / max(estimate_simulation_seconds(scenario), _SIMULATED_OP * ops)
    return most if limit >= 1 + most else max(0, int(limit) - 1)


def _largest_count(scenario: ScenarioFields) -> tuple[KeyPath, str]:
    coming, buckets = count_fault_changes(scenario), _count_optimizer_buckets(scenario)
    predicting = scenario.model.mtp_layers or 0
    ranks = (scenario.gpus or 1) if any(fault.is_random for fault in scenario.faults) else 1
    counts: list[tuple[float, KeyPath, str]] = [
        (scenario.model.layers / 100, ("model", "layers"), f"{scenario.model.layers:,} layers"),
        (predicting / 100, ("model", "mtp_layers"), f"{predicting:,} layers of multi-token prediction"),
        (scenario.overlap.tensor_pieces, ("overlap", "tensor_pieces"), f"{scenario.overlap.tensor_pieces:,} pieces"),
        ((scenario.microbatches or 1) / 100, ("training", "global_batch"), f"{scenario.microbatches:,} microbatches"),
        (scenario.steps, ("steps",), f"{scenario.steps:,} steps"),
        (scenario.replicas / 50, ("replicas",), f"{scenario.replicas:,} replicas"),
        (buckets / 1000, ("memory", "offload", "bucket"), f"{buckets:,.0f} buckets of the offloaded optimizer"),
        (coming / 1e4, ("faults",), f"faults that start and end about {coming:,.0f} times"),
        (ranks / 1024, ("faults",), f"{ranks:,} ranks that all differ"),
    ]
    _, path, what = max(counts)
    return path, what
