"""Blocks of kernels on one GPU: a layer kind's body with norm and residual add, embedding, and LM head.

Shapes are those of one rank: heads, MLP columns and vocabulary divided by tp; n = micro_batch x sequence / cp tokens in
the body of a block, and n / tp in its entry and exit under sequence parallelism. Communication is not here: it runs
between entry, body and exit (``kernels.Block``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, assert_never

from simcluster.model import eager_sections as eager
from simcluster.model.kept import Tensor, mask, operands
from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.layer_sections import (
    FP32_BYTES,
    LocalSizes,
    RankShape,
    both_ways,
    cast_kernels,
    dropout_section,
    fused_norm,
    join_sections,
    linear,
    local_sizes,
    memory_kernel,
    position_section,
    residual_section,
)
from simcluster.model.transformer import Model


def layer_block(name: str, model: Model, shape: RankShape, local: LocalSizes, body: tuple[Section, ...]) -> Block:
    """Return a block of norm, body and residual add, with the kernels that recomputation repeats.

    Full recompute repeats every section; one that ``stops_early`` repeats neither the last matmul of the MLP nor the
    kernels after it: backward reads neither.
    """
    entry = make_norm(f"{name}_norm", model, shape, local, residual=True)
    if model.layer_norms == 1 and name == "mlp":  # it reads what the attention's norm gave
        entry = Section(input_grad=entry.input_grad[-1:])
    add = residual_section(name, model, shape, local)
    if model.layer_norms == 4:
        add = join_sections((make_norm(f"{name}_post_norm", model, shape, local, residual=False), add), "none")
    if shape.fp8:
        outside, body = cast_pair(name, shape, body, rows=local.tokens, outer=local.edge_tokens * local.hidden)
        entry = replace(entry, forward=(*entry.forward, *outside.forward))
        add = replace(add, input_grad=(*outside.input_grad, *add.input_grad))
    if shape.recompute == "operators":
        joined = join_sections(body, "none")
        again = (*entry.forward, *_rerun_kernels(name, model, shape, local, body))
        again += add.forward if name == "attention" else ()
        return Block(name, entry=entry, body=replace(joined, recompute=again), exit=add)
    mode = "full" if name == "mlp" and shape.reruns("mlp") else shape.recompute
    whole = Block(
        name,
        entry=join_sections([entry], mode),
        body=join_sections(body, mode),
        exit=join_sections([add], shape.recompute),
    )
    if shape.recompute == "full" and shape.stops_early and name == "mlp":
        shorter = replace(whole.body, recompute=whole.body.recompute[:-1])
        return replace(whole, body=shorter, exit=replace(whole.exit, recompute=()))
    return whole


def make_norm(name: str, model: Model, shape: RankShape, local: LocalSizes, *, residual: bool) -> Section:
    """Return the kernels of a norm as the framework runs them, eager or fused."""
    if shape.kernels == "eager":
        return eager.unfused_norm(name, model, shape, local, residual=residual)
    return fused_norm(name, shape, local, residual=residual)


def _rerun_kernels(
    name: str, model: Model, shape: RankShape, local: LocalSizes, body: tuple[Section, ...]
) -> tuple[Kernel, ...]:
    """Return the kernels of a block that run again if recomputation keeps every second matmul's result.

    Counting through a layer of the Llama family, whose matmuls are separate: of query, key, value, projection, gate, up
    and down the second, fourth and sixth; of the GPT family's four the second. The last is never needed. Attention is
    kept (torchtitan, ``_apply_ac_to_transformer_block``, "op"; torch.utils.checkpoint's selective contexts).
    """

    def product(width_in: int, width_out: int) -> tuple[Kernel, ...]:
        return linear(f"{name}_again", shape, local.tokens, width_in, width_out, bias=False).forward

    if name == "attention":
        key = product(local.hidden, local.kv) if model.gated_mlp else ()
        core = [kernel for section in body[1:-1] for kernel in section.forward if kernel.kind != "attention"]
        return (*key, *core, *product(local.query, local.hidden))
    up = product(local.hidden, local.ffn) if model.gated_mlp else ()
    return (*up, *body[1].forward)


# --- casts to fp8 or fp4 ----------------------------------------------------------------------------------------------


class CastPair(NamedTuple):
    """A widening and a narrowing matmul, and the kernels between them, with their casts to fp8 or fp4.

    ``outside``: casts of the first matmul's input (forward) and of the last one's output gradient (backward), which the
    caller puts where these are made; ``body``: both matmuls, and between them the casts of the inner tensors.
    """

    outside: Section
    body: tuple[Section, Section, Section]


def cast_pair(
    name: str, shape: RankShape, body: Sequence[Section], *, rows: int, outer: int, launches: int = 1
) -> CastPair:
    """Return a pair of matmuls with the casts of their operands, of ``launches`` kernels each.

    The matmuls work on N ``rows``; ``outer``: elements of the first's input, as many as of the last's output; 0 where
    these arrive cast.
    """
    first, *rest, last = body

    def made(tensor: str, elements: int) -> tuple[Kernel, ...]:
        kernels = cast_kernels(f"{name}_{tensor}", shape, elements) if elements else ()
        return tuple(replace(kernel, launches=launches) for kernel in kernels)

    between = (
        Section(input_grad=made("middle_grad", rows * first.forward[0].n)),
        *rest,
        Section(forward=made("middle", rows * last.forward[0].k)),
    )
    outside = Section(forward=made("input", outer), input_grad=made("grad", outer))
    return CastPair(outside, (first, join_sections(between, "none"), last))


def weight_casts(shape: RankShape, sections: Iterable[Section]) -> tuple[Kernel, ...]:
    """Return the kernels that cast the weights of these sections to low precision, one per weight.

    They run in the first microbatch of a step; later ones reuse the copies (Transformer Engine, ``is_first_microbatch``
    of its modules and ``get_weight_workspace``).
    """
    if not shape.weight_cast_bytes:
        return ()
    gradients = (kernel for section in sections for kernel in section.weight_grad)
    return tuple(
        Kernel(
            kernel.name.replace("_weight_grad", "_weight_cast"), "memory", 0.0,
            shape.weight_cast_bytes * kernel.m * kernel.n * kernel.batch, launches=kernel.launches, calls=kernel.calls,
        )
        for kernel in gradients
        if kernel.kind == "matmul" and not kernel.wide
    )  # fmt: skip


def embedding_block(model: Model, shape: RankShape) -> Block:
    """Return the embedding's kernels: token look-up, then positions, norm and dropout.

    Never recomputed. W adds the output gradient into the rows that the tokens touched: every rank reads the gradient of
    all n tokens and updates those in its share of the vocabulary, assumed even. A framework that first makes a dense
    gradient of the whole table pays more.
    """
    local = local_sizes(model, shape)
    e = shape.element_bytes
    touched = min(local.tokens, model.vocab_size) / shape.tp
    size = local.tokens * local.hidden
    lookup = Section(
        forward=(memory_kernel("embedding", 2 * e * size),),
        weight_grad=(memory_kernel("embedding_weight_grad", e * size + shape.gradient_bytes(touched * local.hidden)),),
    )
    pieces = [position_section(model, shape, local)]
    if model.embedding_norm:
        pieces.append(make_norm("embedding_norm", model, shape, local, residual=False))
    if shape.dropout:
        pieces.append(dropout_section("embedding_dropout", shape, local.edge_tokens * local.hidden))
    return Block("embedding", entry=Section(), body=lookup, exit=join_sections(pieces, "none"))


def prediction_block(model: Model, shape: RankShape) -> Block:
    """Return the kernels that make the input of a multi-token prediction layer: look-up, norms, matmul.

    The next token's row and the hidden state are joined. Never recomputed. The matmul is column-parallel; gathering its
    output is as much traffic as the reduction that is counted. (Megatron-LM,
    core/transformer/multi_token_prediction.py, ``MultiTokenPredictionLayer``.)
    """
    local = local_sizes(model, shape)
    size = shape.element_bytes * local.tokens * local.hidden
    touched = min(local.tokens, model.vocab_size) / shape.tp
    rows = Section(
        forward=(memory_kernel("prediction_rows", 2 * size),),
        weight_grad=(
            memory_kernel("prediction_rows_weight_grad", size + shape.gradient_bytes(touched * local.hidden)),
        ),
    )
    both = [make_norm(f"prediction_{name}_norm", model, shape, local, residual=False) for name in ("row", "hidden")]
    product = linear("projection", shape, local.tokens, 2 * local.hidden, local.hidden // shape.tp, bias=False)
    return Block(
        "mtp", entry=join_sections([rows, *both], "none"), body=product, exit=Section(), gathered=2 * local.hidden
    )


def lm_head_block(model: Model, shape: RankShape) -> Block:
    """Return the kernels of the LM head: final norm, logits of the rank's vocabulary share, cross-entropy.

    Never recomputed.
    """
    local = local_sizes(model, shape)
    logits = local.tokens * local.vocab
    product = linear("logits", shape, local.tokens, local.hidden, local.vocab, bias=False, wide=True)
    entry = make_norm("final_norm", model, shape, local, residual=False)
    return Block(
        "lm_head",
        entry=entry,
        body=join_sections((product, _loss_section(shape, shape.loss_shares * logits)), "none"),
        exit=Section(),
    )


def _loss_section(shape: RankShape, logits: float) -> Section:
    """Return the kernels of the cross-entropy over N ``logits``.

    In place: a fused loss reads them for maximum and sum, then reads them and writes their gradient over them; backward
    scales it, a read and a write (Transformer Engine's and flash-attn's, which writes a separate tensor). Else as
    Megatron-LM does it, one kernel per step on fp32 logits (mpu/cross_entropy.py, later
    core/tensor_parallel/cross_entropy.py).
    """
    e = shape.element_bytes
    match shape.logits:
        case "in-place":
            return both_ways("cross_entropy", 3 * e * logits, 2 * e * logits)
        case "fp32" | "gathered":
            pass
        case _:
            assert_never(shape.logits)
    if shape.kernels != "fused":
        return eager.unfused_loss(shape, logits)
    wide = FP32_BYTES
    forward = {"to_fp32": e + wide, "maximum": wide, "less_maximum": 2 * wide, "exponentials": 2 * wide, "sum": wide,
               "probabilities": 2 * wide}  # fmt: skip
    backward = {"scaled": 2 * wide, "to_16_bits": wide + e}
    return Section(
        forward=tuple(memory_kernel(f"logits_{step}", size * logits) for step, size in forward.items()),
        input_grad=tuple(memory_kernel(f"logits_grad_{step}", size * logits) for step, size in backward.items()),
    )


# --- what they keep --------------------------------------------------------------------------------------------------


def embedding_tensors(model: Model, shape: RankShape) -> list[Tensor]:
    """Return the tensors that the embedding's weight gradient reads.

    W needs the whole gradient of the output on every rank of tp.
    """
    local = local_sizes(model, shape)
    gradient = shape.element_bytes * local.tokens * local.hidden
    norm_input = shape.element_bytes * local.edge_tokens * local.hidden
    return [
        *([Tensor("embedding", "embedding_norm_input", norm_input)] if model.embedding_norm else []),
        *(replace(tensor, read="W") for tensor in mask("embedding", "embedding_dropout_mask", model, shape)),
        Tensor("embedding", "embedding_output_grad", gradient, made="I", read="W"),
    ]


def prediction_tensors(model: Model, shape: RankShape) -> list[Tensor]:
    """Return the tensors that the backward of ``prediction_block`` reads: inputs of two norms and a matmul."""
    local, e = local_sizes(model, shape), shape.element_bytes
    hidden = e * local.edge_tokens * local.hidden
    both = (replace(each, bytes=2 * each.bytes) for each in operands("mtp", "prediction_input", model, shape))
    made = Tensor(
        "mtp", "prediction_output_grad", e * local.tokens * local.hidden / shape.tp, made="I", read="W", in_fp8="cast"
    )
    return [*(Tensor("mtp", f"prediction_{name}", hidden) for name in ("row", "hidden")), *both, made]


def lm_head_tensors(model: Model, shape: RankShape) -> list[Tensor]:
    """Return the tensors that the backward of the LM head reads."""
    local = local_sizes(model, shape)
    hidden = shape.element_bytes * local.edge_tokens * local.hidden
    logits = local.tokens * local.vocab
    gradient = Tensor("lm_head", "logits_grad", shape.element_bytes * logits, made="I", read="W")
    loss = [Tensor("lm_head", "logits", FP32_BYTES * logits * shape.loss_shares), gradient]
    if shape.logits == "in-place":
        loss = [replace(gradient, name="logits", made="F")]
    return [Tensor("lm_head", "final_norm_input", hidden), *operands("lm_head", "head_input", model, shape), *loss]


def head_working_bytes(model: Model, shape: RankShape) -> float:
    """Return the bytes of logits that exist only until the loss has copied them to fp32.

    Their gradient is as large: made from the fp32 ones, and read by both matmuls of the head's backward. None where the
    loss works in place.
    """
    if shape.logits == "in-place":
        return 0.0
    local = local_sizes(model, shape)
    return shape.element_bytes * local.tokens * local.vocab * shape.loss_shares
