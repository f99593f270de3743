"""FLOP/s that fused attention achieves, if the small kernels around the attention kernel are included in its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from simcluster.devices.device import kernel_sequence_seconds
from simcluster.model.kernels import Kernel
from simcluster.model.layer_kind import LayerKind
from simcluster.model.layers import layer_kinds
from simcluster.model.transformer import Model
from simcluster.scenario.memory_plan import shape_of

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario

_AROUND = ("attention", "attention_row_sums", "attention_query_grad", "sparse_row_sums", "sparse_key_grad")


@dataclass(frozen=True, slots=True)
class AttentionRates:
    """FLOP/s that one layer's core attention achieves on a GPU, and the peak FLOP/s at its precision.

    FLOP under a causal mask are those of one half of the square; backward counts five matmuls, as a flash kernel does.
    """

    kernel: str
    forward: float
    backward: float
    peak: float


def attention_rates(scenario: Scenario) -> AttentionRates | None:
    """Return the FLOP/s that a scenario's attention achieves; None if its attention kernel is not fused."""
    shape, device = shape_of(scenario), scenario.cluster.device
    if shape.attention != "fused":
        return None
    kind, model = _main_attention(scenario.model)
    if kind is None:
        return None
    body = kind.block(model, shape).body
    context = kind.cp_exchange(model, shape) if shape.cp > 1 else None
    precision = scenario.training.precision.removesuffix("-mixed")
    precision = "bf16" if precision == "fp8" else precision

    if any(all(each.kind != "attention" for each in kernels) for kernels in (body.forward, body.input_grad)):
        return None

    def rate(kernels: Sequence[Kernel]) -> float:
        core = next(each for each in kernels if each.kind == "attention")
        found = [kernel for kernel in kernels if kernel is not core and kernel.name in _AROUND]
        pieces = context.split_kernel(core) if context else [(core,)]
        return core.flops / kernel_sequence_seconds(device, [*found, *chain.from_iterable(pieces)], precision=precision)

    forward, backward = rate(body.forward), rate(body.input_grad)
    return AttentionRates(device.attention.kernel, forward, backward, device.peak_flops(precision))


def _main_attention(model: Model) -> tuple[LayerKind | None, Model]:
    """Return the attention with the most work of all layers, and the model of its layers."""
    found = [
        (count * kind.core_flops(own, 1, "model").forward, kind, own)
        for layer, count in model.count_layer_types().values()
        for own in [model.layer_model(layer)]
        for kind in layer_kinds(model, layer)
        if kind.SQUARE
    ]
    _, kind, own = max(found, key=lambda each: each[0], default=(0.0, None, model))
    return kind, own
