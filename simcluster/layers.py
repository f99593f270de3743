"""The blocks of a transformer as one GPU launches them: attention, MLP, embedding, LM head.

Shapes are those of one rank: heads, MLP columns and vocabulary divided by tp; n = micro_batch x sequence / cp tokens in
the body of a block, and n / tp in its entry and exit under sequence parallelism.  Communication is not here: it goes
between entry, body and exit (``kernels.Block``).
"""

from __future__ import annotations

from simcluster.kernels import Block, Section
from simcluster.layer_sections import (
    FP32_BYTES,
    LocalSizes,
    RankShape,
    activation,
    dropout,
    fused_core,
    join,
    linear,
    local_sizes,
    memory,
    norm,
    positions,
    residual_add,
    rotation,
    unfused_core,
)
from simcluster.model import Model

__all__ = ["RankShape", "attention_block", "embedding_block", "lm_head_block", "mlp_block"]


def attention_block(model: Model, shape: RankShape) -> Block:
    """Norm; QKV, rotation, core attention, projection; dropout and residual add.

    Unfused core attention works on the full square, since its products cannot skip the masked half: it executes
    4 n s q / tp FLOP where the fused kernel executes ``causal_factor`` of that.  Selective recompute runs the unfused
    core again; a fused kernel keeps no scores to begin with, so there selective is the same as none.
    """
    local = local_sizes(model, shape)
    core = fused_core(model, shape, local) if shape.attention == "fused" else unfused_core(shape, local)
    body = (
        linear("qkv", shape, local.tokens, local.hidden, local.query + 2 * local.kv, bias=model.bias),
        rotation(model, shape, local),
        core,
        linear("projection", shape, local.tokens, local.query, local.hidden, bias=False),
    )
    return _layer_block("attention", model, shape, local, body)


def mlp_block(model: Model, shape: RankShape) -> Block:
    """Norm; widening product (gate and up as one), activation, narrowing product; dropout and residual add."""
    local = local_sizes(model, shape)
    widths = model.mlp_matrices - 1
    body = (
        linear("mlp_up", shape, local.tokens, local.hidden, widths * local.ffn, bias=model.bias),
        activation(model, shape, local),
        linear("mlp_down", shape, local.tokens, local.ffn, local.hidden, bias=False),
    )
    return _layer_block("mlp", model, shape, local, body)


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
    if shape.dropout:
        pieces.append(dropout("embedding_dropout", shape, local.edge_tokens * local.hidden))
    return Block("embedding", entry=Section(), body=lookup, exit=join(pieces, "none"))


def lm_head_block(model: Model, shape: RankShape) -> Block:
    """Final norm; logits over the rank's share of the padded vocabulary, cross-entropy in fp32.  Never recomputed."""
    local = local_sizes(model, shape)
    logits = local.tokens * local.vocab
    body = (
        linear("logits", shape, local.tokens, local.hidden, local.vocab, bias=False),
        Section(
            forward=(
                memory("logits_to_fp32", (shape.element_bytes + FP32_BYTES) * logits),
                # One pass reads for maximum and sum; one reads and writes the probabilities that I needs.
                memory("cross_entropy", 3 * FP32_BYTES * logits),
            ),
            input_grad=(memory("cross_entropy_input_grad", (FP32_BYTES + shape.element_bytes) * logits),),
        ),
    )
    entry = norm("final_norm", shape, local, residual=False)
    return Block("lm_head", entry=entry, body=join(body, "none"), exit=Section())


def _layer_block(name: str, model: Model, shape: RankShape, local: LocalSizes, body: tuple[Section, ...]) -> Block:
    """A block between its norm and its residual add; under full recompute every section runs its forward again."""
    return Block(
        name,
        entry=join([norm(f"{name}_norm", shape, local, residual=True)], shape.recompute),
        body=join(body, shape.recompute),
        exit=join([residual_add(name, model, shape, local)], shape.recompute),
    )
