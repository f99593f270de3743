"""Tensors and kernels of small layers of every form, against tables that people read when a change moves a line.

After a change that is meant to move some (look at every line that the difference shows):

    python tests/test_layer_tables.py --regenerate
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from activation_bytes import activation_bytes_per_layer, backward_tensors, gradients_of, kinds_by_block
from layer_blocks import attention_block, mlp_block
from ruamel.yaml import YAML

from simcluster.model.kernels import Block, Section
from simcluster.model.layer_block import embedding_block, lm_head_block, mtp_input_block
from simcluster.model.layers import LAYER_KINDS, RankShape, layer_kinds
from simcluster.model.memory import (
    activation_bytes,
    backward_working_bytes,
    offloaded_bytes,
    working_bytes,
)
from simcluster.model.mixture import ExpertKernels
from simcluster.model.mixture_sections import make_mixture_sections, routed_rows
from simcluster.model.quantization import find_quantization
from simcluster.model.transformer import Model

GOLDEN = Path(__file__).parent / "golden"
CASES: dict[str, dict[str, Any]] = YAML(typ="safe").load((GOLDEN / "layers.yaml").read_text(encoding="utf-8"))
BLOCKS = ("attention", "mlp", "mixture", "embedding", "mtp", "lm_head")
MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")


def made(name: str) -> tuple[Model, RankShape]:
    """A case's model and shape."""
    shape = dict(CASES[name]["shape"])
    if "experts" in shape:
        shape["experts"] = ExpertKernels(**shape["experts"])
    if scaling := shape.get("quantization"):
        named = None if scaling == "torch" else scaling
        how = find_quantization("fp8-mixed", named, fused=named is not None, either_order=False)
        shape["quantization"] = how
    if "modules" in shape:
        shape["modules"] = tuple(shape["modules"])
    return Model(**CASES[name]["model"]), RankShape(**shape)


# --- the tables -------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """All digits of a number, a whole one as such."""
    return str(int(value)) if value == int(value) else repr(value)


def tensor_lines(name: str) -> Iterator[list[str]]:
    """Every tensor, then what else of the layer is counted in bytes."""
    model, shape = made(name)
    for each in backward_tensors(model, shape):
        kept = [each.keep, each.made, each.read, each.in_fp8, "routed" if each.routed else ""]
        yield [name, each.block, each.name, number(each.bytes), *kept, " ".join(each.freed_by), each.moved_by or ""]
    kinds = kinds_by_block(model)

    def forward(block: str) -> tuple[float, float]:
        return kinds[block].forward_working_bytes(model, shape) if block in kinds else (0.0, 0.0)

    of_block = {"working": working_bytes, "temporary": gradients_of,
                "temporary of rows": lambda block, *of: backward_working_bytes(block, kinds.get(block), *of)[1],
                "working of forward": lambda block, *of: forward(block)[0],
                "working of rows": lambda block, *of: forward(block)[1]}  # fmt: skip
    for block in BLOCKS:
        if block in ("mlp", "mixture") and block not in kinds:
            continue
        for what, count in of_block.items():
            yield [name, block, what, number(count(block, model, shape))]
    for layer in range(model.layers):
        yield [name, f"layer {layer}", "kept", number(activation_bytes_per_layer(model, shape, layer))]
        for module in MODULES:
            yield [
                name,
                f"layer {layer}",
                f"moved by {module}",
                number(offloaded_bytes(model, shape, layer, (module,))),
            ]


def kernel_lines(name: str) -> Iterator[list[str]]:
    """Every kernel of every block, phase by phase."""
    model, shape = made(name)
    for block in blocks_of(model, shape):
        yield [name, block.name, "gathered", number(block.gathered_width)]
        for place in ("entry", "body", "exit"):
            yield from section_lines(name, f"{block.name} {place}", getattr(block, place))
    if model.moe:
        there = routed_rows(model, shape)
        yield [name, "mixture", "rows", *map(number, (there.tokens, there.sent, there.rows, there.rows_per_expert))]
        found = make_mixture_sections(model, shape)
        for part in ("router", "shared", "dispatch", "experts", "combine"):
            yield from section_lines(name, f"mixture {part}", getattr(found, part))


def blocks_of(model: Model, shape: RankShape) -> Iterator[Block]:
    yield attention_block(model, shape)
    yield mlp_block(model, shape)
    yield embedding_block(model, shape)
    yield lm_head_block(model, shape)
    if model.moe:
        yield LAYER_KINDS["mixture"].block(model, shape)
    if model.prediction_layers:
        yield mtp_input_block(model, shape)
    for layer, _ in model.count_layer_types().values():
        if layer in model.encoder_layers:
            yield from (kind.block(model.layer_model(layer), shape) for kind in layer_kinds(model, layer))


def section_lines(name: str, where: str, section: Section) -> Iterator[list[str]]:
    for phase in ("forward", "recompute", "input_grad", "weight_grad"):
        for each in getattr(section, phase):
            size = [f"{each.m}x{each.n}x{each.k}", f"{each.batch} of {each.streams}", number(each.launches)]
            marks = " ".join(mark for mark in ("transposed", "by_row", "keeps_16_bits") if getattr(each, mark))
            more = [number(each.passes), number(each.rows), number(each.concurrent_matmuls), marks]
            yield [name, where, phase, each.name, each.kind, number(each.flops), number(each.bytes), *size, *more]


TABLES = {
    "tensors.csv": (tensor_lines, "case,block,tensor,bytes,keep,made,read,in_fp8,routed,freed_by,moved_by"),
    "kernels.csv": (
        kernel_lines,
        "case,where,phase,kernel,kind,flop,bytes,m x n x k,batch,launches,passes,rows,beside,marks",
    ),
}


def text(table: str) -> str:
    lines, header = TABLES[table]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header.split(","))
    for name in CASES:
        writer.writerows(lines(name))
    return out.getvalue()


@pytest.mark.parametrize("table", TABLES)
def test_layers_are_those_of_the_table(table: str) -> None:
    golden = (GOLDEN / table).read_text(encoding="utf-8").splitlines()
    changed = sorted(set(golden) ^ set(text(table).splitlines()))
    assert not changed, "\n".join(["run: python tests/test_layer_tables.py --regenerate", *changed[:20]])
    assert golden == text(table).splitlines()


# --- what lives inside a backward, by hand ----------------------------------------------------------------------------

GPT, GPT_SHAPE = made("gpt")
TOKENS = 3 * 640


def test_a_backwards_temporaries_are_gradients_of_what_was_read() -> None:
    """Of a layer without tp: the gradient that comes in, and those of Q, K and V, or of the widened vectors."""
    incoming = 2 * TOKENS * 768
    assert gradients_of("attention", GPT, GPT_SHAPE) == incoming + 3 * 2 * TOKENS * 768
    assert gradients_of("mlp", GPT, GPT_SHAPE) == incoming + 2 * TOKENS * 4 * 768
    assert gradients_of("lm_head", GPT, GPT_SHAPE) == incoming
    gated = GPT.model_copy(update={"gated_mlp": True})
    assert gradients_of("mlp", gated, GPT_SHAPE) == incoming + 2 * 2 * TOKENS * 4 * 768
    for block in BLOCKS[:2] + BLOCKS[3:]:
        assert gradients_of(block, GPT, replace(GPT_SHAPE, temporaries=False)) == 0
    assert gradients_of("embedding", GPT, GPT_SHAPE) == gradients_of("mtp", GPT, GPT_SHAPE) == 0


def test_under_sequence_parallelism_the_shard_lives_beside_what_is_gathered() -> None:
    model, shape = made("gpt_tp_selective")
    incoming = 2 * TOKENS * 768 * (1 + 1 / 4)
    assert gradients_of("attention", model, shape) == incoming + 3 * 2 * TOKENS * 768 / 4


def test_the_layer_that_is_meant_unless_one_is_named_is_the_first() -> None:
    model, shape = made("experts_of_one_matrix")
    shape = replace(shape, recompute="none")
    assert activation_bytes(model, shape) == activation_bytes(model, shape, 0) != activation_bytes(model, shape, 1)


def test_logits_in_16_bits_live_until_the_loss_has_copied_them() -> None:
    vocab = 50304  # 50,257 to a multiple of 128
    assert working_bytes("lm_head", GPT, GPT_SHAPE) == 2 * TOKENS * vocab
    assert working_bytes("lm_head", GPT, replace(GPT_SHAPE, logits="in-place")) == 0
    assert working_bytes("mlp", GPT, GPT_SHAPE) == 0


def regenerate() -> None:
    for table in TABLES:
        (GOLDEN / table).write_text(text(table), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--regenerate"]:
        sys.exit(__doc__)
    regenerate()
