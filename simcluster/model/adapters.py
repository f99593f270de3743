"""Blocks of frozen weights: kernels and saved tensors without weight gradients, and with those of adapters (LoRA).

No frozen matmul has a weight gradient (W), keeps its input for it, or casts an operand column-wise, which W alone reads
(Transformer Engine, module/linear.py: ``backward_needs_input``, ``set_usage``). Adapters are two thin matmuls in 16
bits next to theirs: NVIDIA-NeMo/Megatron-Bridge 0191fc5, peft/lora_layers.py, ``LoRALinear`` (separate kernels) and
``TEFusedLoRALinear`` (scale and add in the matmuls); peft/utils.py, ``ParallelLinearAdapter`` (collectives over tp, on
all tokens whatever sequence parallelism does); NVIDIA-NeMo/Automodel 03bd7a9, components/_peft/lora_kernel.py (triton).
The first layer's backward runs to its input, as where that is made to need a gradient (Bridge, peft/recompute.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.layer_sections import MASK_BYTES, linear_section, memory_kernel
from simcluster.model.rank_shape import RankShape, local_sizes
from simcluster.model.saved_tensors import SavedTensor
from simcluster.model.shard_widths import shard_widths
from simcluster.model.trainable import PARTS, QUANTIZED_BYTES, BaseWeights, Trainable
from simcluster.model.transformer import Model

_OPERANDS = {"qkv": ("qkv_input",), "projection": ("projection_input",), "mlp_up": ("mlp_input",),
             "mlp_down": ("mlp_product", "gelu_output")}  # fmt: skip
"""Names of the saved tensors that are the inputs of a matmul with an adapter."""


class Adapter(NamedTuple):
    """Adapter of one matmul on a rank: the matmul's name, its inputs and outputs on the rank, its split over tp."""

    name: str
    base: str
    inputs: int
    outputs: int
    split: Literal["rows", "columns"]
    rank: int
    tp: int

    @property
    def widths(self) -> tuple[int, int]:
        """Return the outputs of A and of B on one rank of tp.

        A of a column-parallel matmul is split by rows, like B of either; A of a row-parallel one by columns, as its
        inputs are (NVIDIA-NeMo/Megatron-Bridge peft/utils.py, ``ParallelLinearAdapter``).
        """
        return (self.rank // self.tp, self.outputs) if self.split == "rows" else (self.rank, self.outputs // self.tp)

    @property
    def parameters(self) -> int:
        """Number of parameters of A and B on one rank of tp."""
        low, outputs = self.widths
        return low * self.inputs + outputs * self.rank


def list_adapters(model: Model, block: str, tp: int = 1) -> list[Adapter]:
    """Return the adapters of a block (a layer kind) on one rank; ``model`` is that of the layer."""
    rank = model.lora.rank if model.lora else None
    if model.lora is None or rank is None or block not in ("attention", "mlp") or (block == "attention" and model.mla):
        return []
    shard, hidden = shard_widths(model, tp), model.hidden_size
    query, kv, ffn = shard.heads * model.head_dim, shard.kv_heads * model.head_dim, shard.ffn
    gated = 2 * query if model.attention_gate else query
    inputs = {"query": gated, "key": kv, "value": kv, "qkv": gated + 2 * kv} if block == "attention" else {
        "mlp_up": (model.num_mlp_matrices - 1) * ffn, **({"gate": ffn, "up": ffn} if model.gated_mlp else {})
    }  # fmt: skip
    last, width = ("projection", query) if block == "attention" else ("mlp_down", ffn)
    found = [
        Adapter(each if each == PARTS.get(each, each) else f"{PARTS[each]}_{each}", PARTS.get(each, each), hidden,
                inputs[each], "rows", rank, tp)
        for each in model.lora.modules if each in inputs
    ]  # fmt: skip
    return found + [Adapter(last, last, width, hidden, "columns", rank, tp)] * (last in model.lora.modules)


def shape_of_block(name: str, model: Model, shape: RankShape) -> RankShape:
    """Return the shape for a block's kernels: operands of frozen matmuls are quantized, and gathered, in one order."""
    how = shape.quantization
    if how is None or not model.freezes(name):
        return shape
    gathers = "rows" if how.gathers == "both" else how.gathers
    return replace(shape, quantization=replace(how, copies=1, rearranges=False, gathers=gathers))


def train_blocks(
    blocks: Mapping[tuple[tuple[str, ...], str], Block], model: Model, shape: RankShape
) -> dict[tuple[tuple[str, ...], str], Block]:
    """Return a model's blocks, by layer type (() outside layers) and name, as they are trained."""
    models = {each: model.layer_model(layer) for each, (layer, _) in model.count_layer_types().items()} | {(): model}
    return {(own, name): train_block(block, name, models[own], shape) for (own, name), block in blocks.items()}


def train_block(block: Block, name: str, model: Model, shape: RankShape) -> Block:
    """Return a block as it is trained; ``name`` is that of its layer kind, or embedding or lm_head."""
    if not model.freezes(name):
        return block
    entry, body, end = train_sections(block.sections, name, model, shape)
    return replace(block, entry=entry, body=body, exit=end, frozen=True)


def train_sections(sections: Sequence[Section], name: str, model: Model, shape: RankShape) -> tuple[Section, ...]:
    """Return the sections of a block as they are trained: frozen ones have no weight gradients, but adapters."""
    if not model.freezes(name):
        return tuple(sections)
    if not model.has_backward:
        return tuple(Section(section.forward) for section in sections)
    adapters = list_adapters(model, name, shape.tp)
    return tuple(_freeze_section(section, adapters, model.lora, shape) for section in sections)


def _freeze_section(section: Section, adapters: Sequence[Adapter], lora: Trainable | None, shape: RankShape) -> Section:
    bases = {
        kernel.name.removesuffix("_weight_grad"): kernel for kernel in section.weight_grad if kernel.kind == "matmul"
    }
    made = [(each, _adapter_section(each, lora, shape, bases[each.base].k)) for each in adapters if each.base in bases
            and lora]  # fmt: skip

    def add_kernels(kernels: Sequence[Kernel], suffix: str) -> Iterator[Kernel]:
        for kernel in kernels:
            base = kernel.name.removesuffix(suffix)
            if base in bases and kernel.name == base + suffix:
                own: tuple[Kernel, ...] = (kernel,)
                if lora and lora.base_weights:
                    own = (_dequantize_kernel(bases[base], lora.base_weights, shape), kernel)
                for adapter, extra in made:  # inside the block, so that its collectives meet the frozen matmul
                    if adapter.base == base:
                        more = extra.input_grad if suffix else extra.forward
                        own = (*more, *own) if (adapter.split == "columns") != bool(suffix) else (*own, *more)
                yield from own
            else:
                yield kernel

    gradients = [kernel for _, extra in reversed(made) for kernel in extra.weight_grad]
    forward, again = (tuple(add_kernels(each, "")) for each in (section.forward, section.recompute))
    return Section(forward, again, tuple(add_kernels(section.input_grad, "_input_grad")), tuple(gradients))


def _dequantize_kernel(base: Kernel, weights: BaseWeights, shape: RankShape) -> Kernel:
    """Return the kernels that write a matmul's 16-bit weights from 4-bit ones, given its weight gradient."""
    double = {"nf4": False, "nf4-double": True}[weights]  # scales first: a look-up, and an offset
    size = (QUANTIZED_BYTES[weights] + shape.element_bytes) * base.m * base.n * base.batch
    return memory_kernel(base.name.replace("_weight_grad", "_dequantize"), size, launches=3 if double else 1)


def _adapter_section(adapter: Adapter, lora: Trainable, shape: RankShape, tokens: int) -> Section:
    """Return the kernels of an adapter on a rank's ``tokens`` tokens, with its collectives over tp.

    Its output is that of all tokens; under sequence parallelism a row-parallel one keeps its own tokens of it, and
    gathers their gradients.
    """
    e, split = shape.element_bytes, shape.tp > 1
    apart, adds = {"separate": (True, True), "triton": (False, True), "fused": (False, False)}[lora.kernels]
    low, outputs = adapter.widths
    name, rows = f"{adapter.name}_adapter", adapter.split == "rows"
    (down,) = (first := linear_section(f"{name}_a", shape, tokens, adapter.inputs, low, bias=False, wide=True)).forward
    (up,) = (second := linear_section(f"{name}_b", shape, tokens, adapter.rank, outputs, bias=False, wide=True)).forward
    (down_grad,), (up_grad,) = first.input_grad, second.input_grad
    sharded = shape.sequence_parallel and split
    inside, outside = e * tokens * adapter.inputs, e * tokens * adapter.outputs
    shard = outside / (shape.tp if sharded and not rows else 1)
    dropped = (2 * e + MASK_BYTES) * tokens * adapter.inputs

    def gathered(kernel: Kernel, kind: str, size: float) -> Kernel:
        return replace(kernel, then=(kind, name, size)) if split else kernel

    kind, moved = {"gather": ("all_gather", outside), "all_to_all": ("all_to_all", outside / shape.tp)}[lora.exchange]
    narrow = e * tokens * adapter.rank
    down = gathered(down, "all_gather" if rows else "all_reduce", narrow)
    up = up if rows else gathered(up, kind, moved)
    up_grad = gathered(up_grad, "all_reduce", narrow)
    scale_grad = memory_kernel(f"{name}_scale_input_grad", 2 * shard)
    scale_grad = gathered(scale_grad, kind, moved) if sharded and not rows else scale_grad
    down_grad = gathered(down_grad, "all_reduce", inside) if rows and not sharded else down_grad
    if not adds:  # the second matmul of each way adds to what the frozen one wrote
        up, down_grad = replace(up, bytes=up.bytes + outside), replace(down_grad, bytes=down_grad.bytes + inside)
    return Section(
        forward=(*[memory_kernel(f"{name}_dropout", dropped)] * lora.dropout, down, up,
                 *[memory_kernel(f"{name}_scale", 2 * shard)] * apart,
                 *[memory_kernel(f"{name}_add", 3 * shard)] * adds),
        input_grad=(*[scale_grad] * apart, up_grad, down_grad,
                    *[memory_kernel(f"{name}_dropout_input_grad", dropped)] * lora.dropout,
                    *[memory_kernel(f"{name}_add_input_grad", 3 * inside)] * adds),
        weight_grad=(*second.weight_grad, *first.weight_grad),
    )  # fmt: skip


# --- what they keep --------------------------------------------------------------------------------------------------


def train_tensors(tensors: Sequence[SavedTensor], name: str, model: Model, shape: RankShape) -> list[SavedTensor]:
    """Return a block's saved tensors as it is trained: frozen matmuls keep no operands, adapters their own."""
    if not model.freezes(name):
        return list(tensors)
    if name == "embedding" or not model.has_backward:  # nothing before it needs a gradient
        return []
    sharded = {each.name.removesuffix("_gathered") for each in tensors if each.name.endswith("_gathered")}
    found = []
    for tensor in tensors:
        if tensor.in_fp8 == "copied" or tensor.name == "logits":  # others read it, too
            found.append(replace(tensor, in_fp8="no", read="I"))
        elif tensor.in_fp8 != "cast" and tensor.read != "W" and tensor.name not in sharded:
            found.append(tensor)
    return found + _adapter_tensors(tensors, name, model, shape, model.lora) if model.lora else found


def _adapter_tensors(
    tensors: Sequence[SavedTensor], name: str, model: Model, shape: RankShape, lora: Trainable
) -> list[SavedTensor]:
    """Return what adapters keep: their input (whole under sequence parallelism), A's output, and gradients for W."""
    found: dict[str, SavedTensor] = {}
    for adapter in list_adapters(model, name, shape.tp):
        unit = shape.element_bytes * local_sizes(model, shape).tokens
        low, outputs = adapter.widths
        operand = next((each for each in tensors if each.name in _OPERANDS[adapter.base]), SavedTensor(name, "", 0.0))
        kept = replace(operand, made="F", read="W", in_fp8="no")

        def keep(called: str, size: float, tensor: SavedTensor = kept) -> None:
            found[called] = replace(tensor, name=called, bytes=size)

        if lora.dropout:
            keep(f"{adapter.name}_adapter_dropped", unit * adapter.inputs)
            mask = MASK_BYTES / shape.element_bytes * unit * adapter.inputs
            keep(f"{adapter.name}_adapter_dropout_mask", mask, replace(kept, read="I"))
        elif operand.in_fp8 != "copied":
            keep(f"{adapter.base}_adapter_input", unit * adapter.inputs)
        keep(f"{adapter.name}_adapter_middle", unit * adapter.rank)
        grad = SavedTensor(name, "", 0.0, made="I", read="W")
        keep(f"{adapter.name}_adapter_output_grad", unit * outputs, grad)
        keep(f"{adapter.name}_adapter_middle_grad", unit * low, grad)
    return [*found.values()]
