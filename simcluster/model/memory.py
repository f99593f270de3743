"""What backward needs of a microbatch's forward, as a list of named tensors on one rank.

Activations live from F until backward, so they are multiplied by the microbatches in flight, which is
the schedule's business.  Counting only: no device, no time.  (Model state: ``recipes``.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcluster.model.core_sections import has_fused_softmax
from simcluster.model.kept import OffloadModule, Tensor, as_kept, is_kept, mask, operands
from simcluster.model.layer_sections import FP32_BYTES, MASK_BYTES, RankShape, local_sizes
from simcluster.model.mixture import Mla
from simcluster.model.mixture_sections import routed
from simcluster.model.mixture_tensors import mixture_tensors, mixture_working_bytes, mixture_working_rows
from simcluster.model.recomputed import RecomputeModule
from simcluster.model.transformer import Model


def tensors(model: Model, shape: RankShape) -> list[Tensor]:
    """Every tensor of one layer, of the embedding, of multi-token prediction and of the LM head, in the order in which
    they are made.

    Those made in F are what a full backward reads; those made in I exist only where the backward is split.  GPT-style
    without tensor parallelism W reads 32 s b h of a layer (14 of inputs, 18 of gradients), as the zero-bubble papers
    have it.  Under sequence parallelism I leaves W what it has gathered over tp, whole.
    """
    mlp = [] if model.moe_layers == model.layers else _mlp(model, shape)
    mixture = mixture_tensors(model, shape) if model.moe else []
    layer = as_kept([*_attention(model, shape), *mlp, *mixture], shape)
    predicted = as_kept(_prediction(model, shape), shape) if model.predicting else []
    return [*layer, *_embedding(model, shape), *predicted, *_lm_head(model, shape)]


def activation_parts(model: Model, shape: RankShape, layer: int = 0) -> dict[str, float]:
    """Bytes that one rank keeps of one layer and one microbatch, from F until its backward, by tensor.

    GPT-style with dropout the sum is s b h (34 + 5 a s / h) without parallelism; Llama-style with fused attention s b
    (8 h + 4 q + 4 kv + 6 f) + 4 s b a, the last term being the log-sum-exp.  tp divides what lies between the column-
    and the row-parallel product; the rest (10 of the 34) only under sequence parallelism; cp divides all. Selective
    recompute drops what its modules run again (``recomputed``), of the attention core softmax and its dropout of an
    unfused one, the log-sum-exp of a fused one; full keeps the layer's input alone.  Source: arXiv:2205.05198 section 4
    and table 2; the Llama form is the same listing for its tensors.
    """
    return {tensor.name: tensor.bytes for tensor in _layer(model, shape, layer) if is_kept(tensor, shape)}


def activation_bytes_per_layer(model: Model, shape: RankShape, layer: int = 0) -> float:
    """The sum of ``activation_parts``."""
    return sum(activation_parts(model, shape, layer).values())


def moved_bytes(model: Model, shape: RankShape, layer: int, modules: Sequence[OffloadModule]) -> float:
    """Bytes that one rank keeps of the layer of this number for the inputs of ``modules``, of one microbatch."""
    own = shape if shape.recomputes(layer) else replace(shape, recompute="none")
    return sum(each.bytes for each in _layer(model, own, layer) if each.moved_by in modules and is_kept(each, own))


def head_working_bytes(model: Model, shape: RankShape) -> float:
    """Logits in the precision of the product, alive only until the loss has copied them to fp32.

    As large, their gradient: made from the fp32 ones, and read by both products of the head's backward.  None where the
    loss works in place.
    """
    if shape.logits == "in-place":
        return 0.0
    local = local_sizes(model, shape)
    return shape.element_bytes * local.tokens * local.vocab * shape.loss_shares


def working_bytes(block: str, model: Model, shape: RankShape) -> float:
    """What lives inside a block's forward and backward, made for each anew: logits in the precision of the product."""
    return head_working_bytes(model, shape) if block == "lm_head" else 0.0


def forward_working_bytes(block: str, model: Model, shape: RankShape) -> float:
    """What lives inside a block's forward alone, beyond what it keeps: rows on their way between experts."""
    return mixture_working_bytes(model, shape) if block == "mixture" else 0.0


def forward_working_rows(block: str, model: Model, shape: RankShape) -> float:
    """Of ``forward_working_bytes`` what goes with the rows that visit the rank's experts."""
    return mixture_working_rows(model, shape) if block == "mixture" else 0.0


def temporary_bytes(block: str, model: Model, shape: RankShape) -> float:
    """What lives inside a block's backward at its highest point, beyond what F kept, in bytes.

    The gradient that comes in (gathered, under sequence parallelism, beside the shard that the residual path keeps),
    and in the MLP those of what the activation function read, while the gradient of its output is as large as the kept
    output that it replaces.  The head's: the gradient of its input before and after the reduction.  Zero unless
    ``shape.temporaries``, for the embedding, whose table's gradient is added in place, and for multi-token
    prediction's product, whose is small beside its layer's.
    """
    if not shape.temporaries or block in ("embedding", "mtp"):
        return 0.0
    local = local_sizes(model, shape)
    tokens, edge = shape.element_bytes * local.tokens, shape.element_bytes * local.edge_tokens
    incoming = local.hidden * (tokens + (edge if edge < tokens else 0.0))
    if block == "mixture":
        return incoming + routed_temporary_bytes(block, model, shape)
    if block == "mlp":
        return incoming + tokens * local.ffn * (2 if model.gated_mlp else 1)
    if block == "attention":
        return incoming + tokens * (local.query + local.kv + local.value)
    return incoming


def routed_temporary_bytes(block: str, model: Model, shape: RankShape) -> float:
    """Of ``temporary_bytes`` what goes with the rows that visit the rank's experts."""
    if not shape.temporaries or block != "mixture":
        return 0.0
    there = routed(model, shape)
    wide = shape.element_bytes * there.rows * there.ffn * (2 if model.gated_mlp else 1)
    return there.row_bytes(shape, there.rows) + wide


def _layer(model: Model, shape: RankShape, layer: int) -> list[Tensor]:
    """What the forward of one layer makes and its backward reads."""
    behind = (mixture_tensors if model.has_experts(layer) else _mlp)(model, shape)
    return [tensor for tensor in as_kept([*_attention(model, shape), *behind], shape) if tensor.made == "F"]


def _attention(model: Model, shape: RankShape) -> list[Tensor]:
    e, local = shape.element_bytes, local_sizes(model, shape)
    hidden = e * local.edge_tokens * local.hidden
    query, kv, value, output = (
        e * local.tokens * width for width in (local.query, local.kv, local.value, local.output)
    )
    heads: tuple[RecomputeModule, ...] = ("mla_up_proj",) if model.mla else ()
    plain = [replace(each, moved_by="qkv_linear") for each in operands("attention", "qkv_input", model, shape)]
    return [
        Tensor("attention", "attention_norm_input", hidden, "input", moved_by="attn_norm"),
        *(_latent(model, shape, model.mla) if model.mla else plain),
        *([Tensor("attention", "qk_norm_input", query + kv)] if model.qk_norm else []),
        Tensor("attention", "query", query, "kept", freed_by=heads, moved_by="core_attn"),
        Tensor("attention", "key", kv, "other" if model.gated_mlp else "kept", freed_by=heads, moved_by="core_attn"),
        Tensor("attention", "value", value, "kept", freed_by=heads, moved_by="core_attn"),
        *_core(model, shape),
        Tensor("attention", "projection_input", output, "kept", read="W", in_fp8="copied", moved_by="attn_proj"),
        *([Tensor("attention", "attention_post_norm_input", hidden)] if model.layer_norms == 4 else []),
        *mask("attention", "attention_dropout_mask", model, shape),
        Tensor(
            "attention", "projection_output_grad", e * local.tokens * local.hidden, made="I", read="W", in_fp8="cast"
        ),
        Tensor("attention", "qkv_output_grad", query + kv + value, made="I", read="W", in_fp8="cast"),
    ]


def _latent(model: Model, shape: RankShape, mla: Mla) -> list[Tensor]:
    """The norm's output, which narrow vectors are made of; those; what their norms give, which heads are made of."""
    local = local_sizes(model, shape)
    tokens, edge = shape.element_bytes * local.tokens, shape.element_bytes * local.edge_tokens  # bytes of one column
    normed = mla.kv_lora_rank + (mla.q_lora_rank or 0)
    gathered = mla.kv_lora_rank + (mla.q_lora_rank or model.hidden_size)
    found = [
        Tensor("attention", "latent_input", edge * model.hidden_size, read="W", in_fp8="cast", freed_by=("layernorm",),
               moved_by="qkv_linear"),
        Tensor("attention", "latent", edge * mla.down),
        Tensor("attention", "latent_normed", edge * normed, read="W", in_fp8="cast", freed_by=("mla_up_proj",)),
        Tensor("attention", "latent_output_grad", edge * mla.down, made="I", read="W", in_fp8="cast"),
    ]  # fmt: skip
    if shape.sequence_parallel and shape.tp > 1:
        found.append(Tensor("attention", "latent_gathered", tokens * gathered, made="I", read="W"))
    return found


def _mlp(model: Model, shape: RankShape) -> list[Tensor]:
    e, local = shape.element_bytes, local_sizes(model, shape)
    ffn = e * local.tokens * local.ffn
    inputs = ("gate", "up") if model.gated_mlp else ("gelu_input",)
    norm_input = Tensor("mlp", "mlp_norm_input", e * local.edge_tokens * local.hidden, moved_by="mlp_norm")
    shared = model.layer_norms == 1  # the norm and what it gave are the attention's
    product = "mlp_product" if model.gated_mlp else "gelu_output"
    return [
        *([] if shared or model.parallel_residual else [norm_input]),
        *([] if shared else operands("mlp", "mlp_input", model, shape, freed_by=("mlp",))),
        *(
            Tensor("mlp", name, ffn, "other" if name == "up" else "kept", in_fp8="input", freed_by=("mlp",))
            for name in inputs
        ),
        Tensor("mlp", product, ffn, read="W", in_fp8="cast", freed_by=("mlp",)),
        *([replace(norm_input, name="mlp_post_norm_input")] if model.layer_norms == 4 else []),
        *mask("mlp", "mlp_dropout_mask", model, shape),
        Tensor("mlp", "mlp_down_output_grad", e * local.tokens * local.hidden, made="I", read="W", in_fp8="cast"),
        Tensor("mlp", "mlp_up_output_grad", len(inputs) * ffn, made="I", read="W", in_fp8="cast"),
    ]


def _embedding(model: Model, shape: RankShape) -> list[Tensor]:
    """All of its backward is W, which needs the gradient of its output whole on every rank of tp."""
    local = local_sizes(model, shape)
    gradient = shape.element_bytes * local.tokens * local.hidden
    norm_input = shape.element_bytes * local.edge_tokens * local.hidden
    return [
        *([Tensor("embedding", "embedding_norm_input", norm_input)] if model.embedding_norm else []),
        *(replace(tensor, read="W") for tensor in mask("embedding", "embedding_dropout_mask", model, shape)),
        Tensor("embedding", "embedding_output_grad", gradient, made="I", read="W"),
    ]


def _prediction(model: Model, shape: RankShape) -> list[Tensor]:
    """In front of a layer of multi-token prediction: what its two norms read, and what its product reads of both."""
    local, e = local_sizes(model, shape), shape.element_bytes
    hidden = e * local.edge_tokens * local.hidden
    both = (replace(each, bytes=2 * each.bytes) for each in operands("mtp", "prediction_input", model, shape))
    made = Tensor(
        "mtp", "prediction_output_grad", e * local.tokens * local.hidden / shape.tp, made="I", read="W", in_fp8="cast"
    )
    return [*(Tensor("mtp", f"prediction_{name}", hidden) for name in ("row", "hidden")), *both, made]


def _lm_head(model: Model, shape: RankShape) -> list[Tensor]:
    local = local_sizes(model, shape)
    hidden = shape.element_bytes * local.edge_tokens * local.hidden
    logits = local.tokens * local.vocab
    gradient = Tensor("lm_head", "logits_grad", shape.element_bytes * logits, made="I", read="W")
    loss = [Tensor("lm_head", "logits", FP32_BYTES * logits * shape.loss_shares), gradient]
    if shape.logits == "in-place":
        loss = [replace(gradient, name="logits", made="F")]
    return [
        Tensor("lm_head", "final_norm_input", hidden),
        *operands("lm_head", "head_input", model, shape),
        *loss,
    ]


def _core(model: Model, shape: RankShape) -> list[Tensor]:
    """A fused kernel keeps a statistic per row and draws its dropout again; unfused attention keeps whole squares.

    Where a fused core runs again its statistics are all that it saves: its operands are the checkpoint's input, and its
    output is the projection's operand.  The output that it gives again comes when that operand has been read.
    """
    local = local_sizes(model, shape)
    heads, keys, rows = local.heads, local.columns, local.tokens * local.heads
    if shape.attention == "fused":
        return [Tensor("attention", "log_sum_exp", FP32_BYTES * rows, "core" if shape.core_again else "kept")]
    square = rows * keys
    sizes = {"softmax_output": shape.element_bytes * square}
    if shape.element_bytes < FP32_BYTES and not has_fused_softmax(shape, shape.micro_batch * heads, keys):
        sizes["softmax_output_in_fp32"] = FP32_BYTES * square
    if shape.dropout:
        sizes["softmax_dropout_mask"] = MASK_BYTES * square
        sizes["softmax_dropout_output"] = shape.element_bytes * square
    return [Tensor("attention", name, size, "core") for name, size in sizes.items()]
