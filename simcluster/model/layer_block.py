"""Blocks of kernels on one GPU: half a layer from norm to residual add, the embedding, and the LM head.

Shapes are those of one rank: heads, MLP columns and vocabulary divided by tp; n = micro_batch x sequence / cp tokens in
the body of a block, and n / tp in its entry and exit under sequence parallelism. Communication is not here: it runs
between entry, body and exit (``kernels.Block``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from simcluster.model import eager_sections as eager
from simcluster.model.hyper_connections import connect_streams, copy_section, stream_tensors, streams_section
from simcluster.model.kernel_choices import Operand
from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.layer_sections import (
    FP32_BYTES,
    dropout_section,
    forward_backward_section,
    fused_norm,
    join_sections,
    learned_position_section,
    linear_section,
    memory_kernel,
    residual_section,
    step_kernels,
)
from simcluster.model.quantization import cast_matmul_pair
from simcluster.model.rank_shape import LocalSizes, RankShape, local_sizes
from simcluster.model.saved_tensors import SavedTensor, dropout_mask_tensors, matmul_input_tensors
from simcluster.model.transformer import Model


def layer_block(
    name: str, model: Model, shape: RankShape, local: LocalSizes, body: tuple[Section, ...], *, normed: bool = True
) -> Block:  # fmt: skip
    """Return a block of norm, ``body`` and residual add, including the kernels that recomputation adds.

    Full recompute repeats every section; one that ``stops_early`` repeats neither the last matmul of the MLP nor the
    kernels after it: backward reads neither. ``normed``: the first matmul is in one module with the norm, which may
    quantize for it.
    """
    entry = norm_section(f"{name}_norm", model, shape, local, residual=model.num_streams == 1)
    if model.layer_norms == 1 and name == "mlp":  # it reads what the attention's norm gave
        entry, normed = Section(input_grad=entry.input_grad[-1:]), False
    add = residual_section(name, model, shape, local)
    if model.layer_norms == 4:
        add = join_sections((norm_section(f"{name}_post_norm", model, shape, local, residual=False), add), "none")
    if not shape.quantization:
        return _recomputing_block(name, model, shape, local, entry, body, add)
    how, size = shape.quantization, local.edge_tokens * local.hidden
    gathered = normed and how.gathers != "16-bit" and shape.sequence_parallel and shape.tp > 1
    operand: Operand = "normed" if normed else "input"
    outside, body = cast_matmul_pair(
        name, shape, body, rows=local.tokens, outer_size=size, operand=operand, gathered=gathered
    )
    if normed and not how.normed.reads:  # the norm writes the operand
        *others, norm = entry.forward
        written = replace(norm, bytes=norm.bytes - (shape.element_bytes - how.operand_bytes) * size)
        entry = replace(entry, forward=(*others, written))
    entry = replace(entry, forward=(*entry.forward, *outside.forward))
    add = replace(add, input_grad=(*outside.input_grad, *add.input_grad))
    block = _recomputing_block(name, model, shape, local, entry, body, add)
    if not gathered:
        return block
    share = how.operand_bytes / shape.element_bytes
    both = {"rows": 1, "both": 2}[how.gathers]
    return replace(block, input_share=share, gradient_share=both * share, reduces_largest=how.reduces_largest)


def _recomputing_block(
    name: str, model: Model, shape: RankShape, local: LocalSizes, entry: Section, body: tuple[Section, ...],
    add: Section,
) -> Block:  # fmt: skip
    if shape.recompute == "operators":
        joined = join_sections(body, "none")
        again = (*entry.forward, *_recompute_kernels(name, model, shape, local, body))
        again += add.forward if name == "attention" else ()
        return Block(name, entry=entry, body=replace(joined, recompute=again), exit=add)
    mode = "full" if name == "mlp" and shape.recomputes_module("mlp") else shape.recompute
    whole = Block(name, join_sections([entry], mode), join_sections(body, mode), join_sections([add], shape.recompute))
    whole = connect_streams(whole, model, shape, local)
    if shape.recompute == "full" and shape.stops_early and name == "mlp" and model.num_streams == 1:
        shorter = replace(whole.body, recompute=whole.body.recompute[:-1])
        return replace(whole, body=shorter, exit=replace(whole.exit, recompute=()))
    return whole


def norm_section(name: str, model: Model, shape: RankShape, local: LocalSizes, *, residual: bool) -> Section:
    """Return the kernels of a norm, eager or fused, as the training framework runs them."""
    if shape.kernels == "eager":
        return eager.unfused_norm(name, model, shape, local, residual=residual)
    return fused_norm(name, shape, local, residual=residual)


def _recompute_kernels(
    name: str, model: Model, shape: RankShape, local: LocalSizes, body: tuple[Section, ...]
) -> tuple[Kernel, ...]:
    """Return a block's kernels that run again if recomputation saves only every second matmul's output.

    Counting through a layer of the Llama family, whose matmuls are separate: of query, key, value, projection, gate, up
    and down the second, fourth and sixth; of the GPT family's four the second. The last is never needed. Attention is
    kept (torchtitan, ``_apply_ac_to_transformer_block``, "op"; torch.utils.checkpoint's selective contexts).
    """

    def matmul_forward(width_in: int, width_out: int) -> tuple[Kernel, ...]:
        return linear_section(f"{name}_again", shape, local.tokens, width_in, width_out, bias=False).forward

    if name == "attention":
        key = matmul_forward(local.hidden, local.kv) if model.gated_mlp else ()
        core = [kernel for section in body[1:-1] for kernel in section.forward if kernel.kind != "attention"]
        return (*key, *core, *matmul_forward(local.query, local.hidden))
    up = matmul_forward(local.hidden, local.ffn) if model.gated_mlp else ()
    return (*up, *body[1].forward)


def embedding_block(model: Model, shape: RankShape) -> Block:
    """Return the embedding's kernels: token look-up, then positions, norm and dropout.

    Never recomputed. W adds the output gradient into the rows that the tokens touched: every rank reads the gradient of
    all n tokens and updates those in its share of the vocabulary, assumed even. A framework that first makes a dense
    gradient of the whole table pays more.
    """
    local = local_sizes(model, shape)
    lookup = _lookup_section("embedding", model, shape, local)
    pieces = [learned_position_section(model, shape, local)]
    if model.embedding_norm:
        pieces.append(norm_section("embedding_norm", model, shape, local, residual=False))
    if shape.dropout:
        pieces.append(dropout_section("embedding_dropout", shape, local.edge_tokens * local.hidden))
    pieces.append(copy_section(model, shape, local))
    return Block("embedding", entry=Section(), body=lookup, exit=join_sections(pieces, "none"))


def _lookup_section(name: str, model: Model, shape: RankShape, local: LocalSizes) -> Section:
    size = shape.element_bytes * local.tokens * local.hidden
    update = shape.gradient_write_bytes(min(local.tokens, model.vocab_size) / shape.tp * local.hidden)
    gradient = memory_kernel(f"{name}_weight_grad", size + update)
    return Section((memory_kernel(name, 2 * size),), weight_grad=(gradient,))


def mtp_input_block(model: Model, shape: RankShape) -> Block:
    """Return the kernels before a multi-token prediction layer: embedding look-up, norms, matmul.

    The next token's row and the hidden state are joined. Never recomputed. The matmul is column-parallel; gathering its
    output is as much traffic as the reduction that is counted. (Megatron-LM,
    core/transformer/multi_token_prediction.py, ``MultiTokenPredictionLayer``.)
    """
    local = local_sizes(model, shape)
    rows = _lookup_section("prediction_rows", model, shape, local)
    both = [norm_section(f"prediction_{name}_norm", model, shape, local, residual=False) for name in ("row", "hidden")]
    product = linear_section("projection", shape, local.tokens, 2 * local.hidden, local.hidden // shape.tp, bias=False)
    entry = join_sections([rows, *both], "none")
    return Block("mtp", entry=entry, body=product, exit=Section(), gathered_width=2 * local.hidden)


def lm_head_block(model: Model, shape: RankShape) -> Block:
    """Return the kernels of the LM head: final norm, logits for the rank's part of the vocabulary, loss.

    Never recomputed.
    """
    local = local_sizes(model, shape)
    logits = local.tokens * local.vocab
    product = linear_section("logits", shape, local.tokens, local.hidden, local.vocab, bias=False, wide=True)
    entry = norm_section("final_norm", model, shape, local, residual=False)
    if model.num_streams > 1:
        entry = join_sections((streams_section("head", model, shape, local, mixed=False), entry), "none")
    cap = _softcap_section(shape, logits) if model.logit_softcap else Section()
    body = join_sections((product, cap, _loss_section(shape, shape.loss_vocab_shares * logits)), "none")
    return Block("lm_head", entry=entry, body=body, exit=Section())


def _softcap_section(shape: RankShape, logits: float) -> Section:
    """Return the kernels of cap x tanh(logits / cap) in 16 bits: one for each operation, or one if compiled."""
    size, joined = shape.element_bytes * logits, {"compiled": True, "fused": False, "eager": False}[shape.kernels]
    forward, backward, launches = (2, 3, 1) if joined else (6, 7, 3)  # tanh's gradient reads its result
    return forward_backward_section("logit_softcap", forward * size, backward * size, launches)


def _loss_section(shape: RankShape, logits: float) -> Section:
    """Return the kernels of the cross-entropy; ``logits`` is the number of logits on the rank.

    In place: a fused loss reads them for maximum and sum, then reads them and writes their gradient over them; backward
    scales it, a read and a write (Transformer Engine's and flash-attn's, which writes a separate tensor). Else as
    Megatron-LM does it, one kernel per step on fp32 logits (mpu/cross_entropy.py, later
    core/tensor_parallel/cross_entropy.py).
    """
    e = shape.element_bytes
    match shape.logits:
        case "in-place":
            return forward_backward_section("cross_entropy", 3 * e * logits, 2 * e * logits)
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
    return Section(step_kernels("logits", logits, forward), input_grad=step_kernels("logits_grad", logits, backward))


# --- what they keep --------------------------------------------------------------------------------------------------


def embedding_tensors(model: Model, shape: RankShape) -> list[SavedTensor]:
    """Return the tensors that the backward of the embedding reads.

    W needs the whole gradient of the output on every rank of tp.
    """
    local = local_sizes(model, shape)
    gradient = shape.element_bytes * local.tokens * local.hidden
    norm_input = shape.element_bytes * local.edge_tokens * local.hidden
    return [
        *([SavedTensor("embedding", "embedding_norm_input", norm_input)] if model.embedding_norm else []),
        *(replace(one, read="W") for one in dropout_mask_tensors("embedding", "embedding_dropout_mask", model, shape)),
        SavedTensor("embedding", "embedding_output_grad", gradient, made="I", read="W"),
    ]


def mtp_input_tensors(model: Model, shape: RankShape) -> list[SavedTensor]:
    """Return the tensors that the backward of ``mtp_input_block`` reads: inputs of its norms and matmul."""
    local, e = local_sizes(model, shape), shape.element_bytes
    hidden = e * local.edge_tokens * local.hidden
    both = (replace(one, bytes=2 * one.bytes) for one in matmul_input_tensors("mtp", "prediction_input", model, shape))
    size = e * local.tokens * local.hidden / shape.tp
    made = SavedTensor("mtp", "prediction_output_grad", size, made="I", read="W", in_fp8="cast")
    return [*(SavedTensor("mtp", f"prediction_{name}", hidden) for name in ("row", "hidden")), *both, made]


def lm_head_tensors(model: Model, shape: RankShape) -> list[SavedTensor]:
    """Return the tensors that the backward of the LM head reads."""
    local = local_sizes(model, shape)
    hidden, logits = shape.element_bytes * local.edge_tokens * local.hidden, local.tokens * local.vocab
    gradient = SavedTensor("lm_head", "logits_grad", shape.element_bytes * logits, made="I", read="W")
    loss = [SavedTensor("lm_head", "logits", FP32_BYTES * logits * shape.loss_vocab_shares), gradient]
    if shape.logits == "in-place":
        loss = [replace(gradient, name="logits", made="F")]
    if model.logit_softcap:
        loss.insert(0, SavedTensor("lm_head", "logits_tanh", shape.element_bytes * logits))
    inputs = matmul_input_tensors("lm_head", "head_input", model, shape)
    streams = stream_tensors("lm_head", model, shape, mixed=False)
    return [*streams, SavedTensor("lm_head", "final_norm_input", hidden), *inputs, *loss]
