"""The blocks of a transformer as one GPU launches them: attention, MLP, embedding, LM head.

Shapes are those of one rank: heads, MLP columns and vocabulary divided by tp; n = micro_batch x sequence / cp tokens in
the body of a block, and n / tp in its entry and exit under sequence parallelism.  Communication is not here: it goes
between entry, body and exit (``kernels.Block``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from simcluster.model import eager_sections as eager
from simcluster.model.casts import cast_pair
from simcluster.model.core_sections import fused_core, unfused_core
from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.layer_sections import (
    FP32_BYTES,
    LocalSizes,
    RankShape,
    activation,
    biased,
    both_ways,
    dropout,
    join,
    linear,
    local_sizes,
    memory,
    norm,
    positions,
    residual_add,
    rotation,
)
from simcluster.model.mixture import Mla
from simcluster.model.recomputed import again
from simcluster.model.rope_sections import latent_rotation, rotation_in_steps
from simcluster.model.transformer import Model

__all__ = [
    "RankShape",
    "attention_block",
    "embedding_block",
    "lm_head_block",
    "mixture_edges",
    "mlp_block",
    "prediction_block",
]


def attention_block(model: Model, shape: RankShape) -> Block:
    """Norm; QKV, rotation, core attention, projection; dropout and residual add.

    Unfused core attention works on the full square, since its products cannot skip the masked half: it executes
    4 n s q / tp FLOP where the fused kernel executes ``causal_factor`` of that.  Selective recompute runs the core
    again, a fused one where the software does (``RankShape.core_again``).  PyTorch's own attention, eager or compiled,
    reads keys and values copied for every head (``eager_sections``).
    """
    if model.mla:
        return latent_attention(model, shape, model.mla)
    local = local_sizes(model, shape)
    core = _core(model, shape, local)
    product = linear("qkv", shape, local.tokens, local.hidden, local.query + 2 * local.kv, bias=model.qkv_bias)
    projection = linear("projection", shape, local.tokens, local.query, local.hidden, bias=False)
    turned = _turned(model, shape, local)
    if model.qkv_bias and {"product": False, "own": True}[shape.bias]:
        turned = join((biased("qkv", shape, local.tokens, local.query + 2 * local.kv), turned), "none")
    if model.qk_norm:
        heads = replace(local, edge_tokens=local.tokens, hidden=local.query + local.kv)
        turned = join((_norm("qk_norm", model, shape, heads, residual=False), turned), "none")
    match shape.kernels:
        case "fused":
            pass
        case "compiled":
            turned = join((turned, eager.expansion(shape, local)), "none")
        case "eager":
            width = local.query + 2 * local.kv
            copied = join((turned, eager.expansion(shape, local)), "none")
            turned = join((eager.split_grad("qkv", model, shape, local, 3, width), copied), "none")
        case _:
            assert_never(shape.kernels)
    return _layer_block("attention", model, shape, local, (product, turned, core, projection))


def _core(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    match shape.attention:
        case "fused":
            return fused_core(model, shape, local)
        case "unfused":
            return unfused_core(shape, local)
    assert_never(shape.attention)


def _turned(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Positions of queries and keys: one kernel for both, or the steps of whose expression the software has."""
    if shape.kernels == "eager":
        return eager.rotation(model, shape, local)
    return {"fused": rotation, "steps": rotation_in_steps}[shape.rope](model, shape, local)


def latent_attention(model: Model, shape: RankShape, mla: Mla) -> Block:
    """Norm; narrow vectors of the tokens, by weights that all tp ranks have, and their norms; from these the rank's
    heads; then as any attention.

    Under sequence parallelism the narrow vectors are gathered, not the hidden state, but where queries come from it.
    Megatron-LM, core/transformer/multi_latent_attention.py; keys are put together by a copy (position and content).
    """
    local = local_sizes(model, shape)
    heads = local.heads
    core = _core(model, shape, local)
    down = _narrowed(shape, local, mla)
    narrow = replace(local, hidden=mla.kv_lora_rank + (mla.q_lora_rank or 0))
    low = mla.q_lora_rank or local.hidden
    queries = linear("latent_query", shape, local.tokens, low, heads * mla.qk_head_dim, bias=False)
    width = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    keys = linear("latent_key", shape, local.tokens, mla.kv_lora_rank, width, bias=False)
    turned = latent_rotation(shape, local, mla)
    projection = linear("projection", shape, local.tokens, local.output, local.hidden, bias=False)
    heads_again = shape.reruns("mla_up_proj")
    made = again(join((queries, keys), "none"), when=heads_again)
    block = _layer_block("attention", model, shape, local, (made, again(turned, when=heads_again), core, projection))
    before = again(block.entry, when=shape.reruns("layernorm"))
    inner = again(norm("latent_norm", shape, narrow, residual=False), when=heads_again)
    gathered = mla.kv_lora_rank + mla.qk_rope_head_dim + low
    return replace(block, entry=join((before, *down, inner), shape.recompute), gathered=gathered)


def _narrowed(shape: RankShape, local: LocalSizes, mla: Mla) -> tuple[Section, ...]:
    """The products that make a token's narrow vectors: one for keys and values with the part that is turned, one for
    queries; back, the gradients of what both read are added up."""

    def product(name: str, width: int) -> Section:
        return linear(name, shape, local.edge_tokens, local.hidden, width, bias=False)

    keys = product("latent_key_down", mla.kv_lora_rank + mla.qk_rope_head_dim)
    if not mla.q_lora_rank:
        return (keys,)
    size = 3 * shape.element_bytes * local.edge_tokens * local.hidden
    summed = Section(input_grad=(memory("latent_down_grad", size),))
    return (summed, product("latent_query_down", mla.q_lora_rank), keys)


def mlp_block(model: Model, shape: RankShape) -> Block:
    """Norm; widening product (gate and up as one), activation, narrowing product; dropout and residual add."""
    local = local_sizes(model, shape)
    widths = model.mlp_matrices - 1
    up = linear("mlp_up", shape, local.tokens, local.hidden, widths * local.ffn, bias=model.mlp_bias)
    down = linear("mlp_down", shape, local.tokens, local.ffn, local.hidden, bias=False)
    if shape.kernels != "eager":
        return _layer_block("mlp", model, shape, local, (up, activation(model, shape, local), down))
    parts = eager.split_grad("mlp_up", model, shape, local, widths, widths * local.ffn)
    active = join((parts, eager.activation(model, shape, local)), "none")
    return _layer_block("mlp", model, shape, local, (up, active, down))


def mixture_edges(model: Model, shape: RankShape) -> Block:
    """What a mixture of experts has around it, in place of the MLP: norm, and residual add; the body is empty."""
    local = local_sizes(model, shape)
    entry, add = _norm("mlp_norm", model, shape, local, residual=True), residual_add("mlp", model, shape, local)
    entry = again(entry, when=shape.reruns("layernorm"))
    return Block("mlp", join([entry], shape.recompute), Section(), join([add], shape.recompute))


def embedding_block(model: Model, shape: RankShape) -> Block:
    """Look-up of token rows; then, on the reduced output, position rows and dropout.  Never recomputed.

    W adds the output gradient into the rows that the tokens touched: every rank reads the gradient of all n tokens and
    updates those in its share of the vocabulary, taken as an even share.  A framework that first makes a dense gradient
    of the whole table pays more.
    """
    local = local_sizes(model, shape)
    e = shape.element_bytes
    touched = min(local.tokens, model.vocab_size) / shape.tp
    size = local.tokens * local.hidden
    lookup = Section(
        forward=(memory("embedding", 2 * e * size),),
        weight_grad=(memory("embedding_weight_grad", e * size + shape.gradient_bytes(touched * local.hidden)),),
    )
    pieces = [positions(model, shape, local)]
    if model.embedding_norm:
        pieces.append(_norm("embedding_norm", model, shape, local, residual=False))
    if shape.dropout:
        pieces.append(dropout("embedding_dropout", shape, local.edge_tokens * local.hidden))
    return Block("embedding", entry=Section(), body=lookup, exit=join(pieces, "none"))


def prediction_block(model: Model, shape: RankShape) -> Block:
    """What is in front of a layer of multi-token prediction: the next token's row, norms of it and of the hidden state,
    and the product that makes one of both.  Never recomputed.

    The product is column-parallel; its output is gathered, which is as much traffic as the reduction that is counted.
    (Megatron-LM, core/transformer/multi_token_prediction.py, ``MultiTokenPredictionLayer``.)
    """
    local = local_sizes(model, shape)
    size = shape.element_bytes * local.tokens * local.hidden
    touched = min(local.tokens, model.vocab_size) / shape.tp
    rows = Section(
        forward=(memory("prediction_rows", 2 * size),),
        weight_grad=(memory("prediction_rows_weight_grad", size + shape.gradient_bytes(touched * local.hidden)),),
    )
    both = [_norm(f"prediction_{name}_norm", model, shape, local, residual=False) for name in ("row", "hidden")]
    product = linear("projection", shape, local.tokens, 2 * local.hidden, local.hidden // shape.tp, bias=False)
    return Block("mtp", entry=join([rows, *both], "none"), body=product, exit=Section(), gathered=2 * local.hidden)


def lm_head_block(model: Model, shape: RankShape) -> Block:
    """Final norm; logits over the rank's share of the padded vocabulary, cross-entropy in fp32.  Never recomputed."""
    local = local_sizes(model, shape)
    logits = local.tokens * local.vocab
    product = linear("logits", shape, local.tokens, local.hidden, local.vocab, bias=False, wide=True)
    entry = _norm("final_norm", model, shape, local, residual=False)
    return Block(
        "lm_head", entry=entry, body=join((product, _loss(shape, shape.loss_shares * logits)), "none"), exit=Section()
    )


def _loss(shape: RankShape, logits: float) -> Section:
    """Cross-entropy over so many logits.

    In place: a fused loss reads them for maximum and sum, then reads them and writes their gradient over them; backward
    scales it, a read and a write (Transformer Engine's and flash-attn's, which writes a tensor of its own).
    Else as Megatron-LM does it, a kernel a step on fp32 logits (mpu/cross_entropy.py, later
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
        return eager.loss(shape, logits)
    wide = FP32_BYTES
    forward = {"to_fp32": e + wide, "maximum": wide, "less_maximum": 2 * wide, "exponentials": 2 * wide, "sum": wide,
               "probabilities": 2 * wide}  # fmt: skip
    backward = {"scaled": 2 * wide, "to_16_bits": wide + e}
    return Section(
        forward=tuple(memory(f"logits_{step}", size * logits) for step, size in forward.items()),
        input_grad=tuple(memory(f"logits_grad_{step}", size * logits) for step, size in backward.items()),
    )


def _norm(name: str, model: Model, shape: RankShape, local: LocalSizes, *, residual: bool) -> Section:
    if shape.kernels == "eager":
        return eager.norm(name, model, shape, local, residual=residual)
    return norm(name, shape, local, residual=residual)


def _layer_block(name: str, model: Model, shape: RankShape, local: LocalSizes, body: tuple[Section, ...]) -> Block:
    """A block between its norm and its residual add; under full recompute every section runs its forward again.

    One that ``stops_early`` does not run the last product of the MLP again, nor what follows: backward reads neither.
    """
    entry = _norm(f"{name}_norm", model, shape, local, residual=True)
    if model.layer_norms == 1 and name == "mlp":  # it reads what the attention's norm gave
        entry = Section(input_grad=entry.input_grad[-1:])
    add = residual_add(name, model, shape, local)
    if model.layer_norms == 4:
        add = join((_norm(f"{name}_post_norm", model, shape, local, residual=False), add), "none")
    if shape.fp8:
        outside, body = cast_pair(name, shape, body, rows=local.tokens, outer=local.edge_tokens * local.hidden)
        entry = replace(entry, forward=(*entry.forward, *outside.forward))
        add = replace(add, input_grad=(*outside.input_grad, *add.input_grad))
    if shape.recompute == "operators":
        joined = join(body, "none")
        again = (*entry.forward, *_run_again(name, model, shape, local, body))
        again += add.forward if name == "attention" else ()
        return Block(name, entry=entry, body=replace(joined, recompute=again), exit=add)
    mode = "full" if name == "mlp" and shape.reruns("mlp") else shape.recompute
    whole = Block(
        name,
        entry=join([entry], mode),
        body=join(body, mode),
        exit=join([add], shape.recompute),
    )
    if shape.recompute == "full" and shape.stops_early and name == "mlp":
        shorter = replace(whole.body, recompute=whole.body.recompute[:-1])
        return replace(whole, body=shorter, exit=replace(whole.exit, recompute=()))
    return whole


def _run_again(
    name: str, model: Model, shape: RankShape, local: LocalSizes, body: tuple[Section, ...]
) -> tuple[Kernel, ...]:
    """Kernels between the norm and the residual add that run again when every second product's result is kept.

    Counting through a layer of the Llama family, whose products are separate: of query, key, value, projection, gate,
    up and down the second, fourth and sixth; of the GPT family's four the second.  The last is never needed.  Attention
    is kept (torchtitan, ``_apply_ac_to_transformer_block``, "op"; torch.utils.checkpoint's selective contexts).
    """

    def product(width_in: int, width_out: int) -> tuple[Kernel, ...]:
        return linear(f"{name}_again", shape, local.tokens, width_in, width_out, bias=False).forward

    if name == "attention":
        key = product(local.hidden, local.kv) if model.gated_mlp else ()
        core = [kernel for section in body[1:-1] for kernel in section.forward if kernel.kind != "attention"]
        return (*key, *core, *product(local.query, local.hidden))
    up = product(local.hidden, local.ffn) if model.gated_mlp else ()
    return (*up, *body[1].forward)
