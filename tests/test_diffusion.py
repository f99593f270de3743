"""Diffusion transformers: parameters of Wan 2.1, FLOP by hand, engines, and what is rejected."""

from __future__ import annotations

from typing import Any

import pytest
from test_layer_patterns import scenario

import simcluster
from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.flops import layer_flops, model_flops_per_sequence
from simcluster.model.layers import RankShape, parameters
from simcluster.model.memory import activation_bytes
from simcluster.model.transformer import Model

WAN = Model.model_validate(load_model_entry("wan2.1-14b"))
SMALL: dict[str, Any] = {
    "layers": "SCFSCF", "hidden_size": 512, "heads": 8, "vocab_size": 64, "vocab_multiple": 1, "sequence_length": 1024,
    "norm": "layernorm", "position": "none", "bias": False, "causal": False, "tied_embeddings": False,
    "layer_types": {
        "S": {"blocks": ["diffusion_attention"]}, "C": {"blocks": ["diffusion_cross_attention"]},
        "F": {"blocks": ["diffusion_mlp"]},
    },
    "layer_kinds": {
        "diffusion_attention": {"heads": 8, "head_dim": 64}, "diffusion_cross_attention": {"heads": 8, "context": 128},
        "diffusion_mlp": {"ffn": 2048},
    },
}  # fmt: skip
DOCUMENTS = {"documents": {"kind": "lognormal", "median": 64, "sigma": 1.0}}


def test_wan_has_its_parameters() -> None:
    """Wan 2.1 T2V 14B: the sum over the tensors of WanModel, by hand."""
    h, f = 5120, 13824
    attention = 4 * (h * h + h) + 2 * h  # of a layer; the cross-attention's is as large
    layer = 2 * attention + (h * f + f + f * h + h) + 2 * h + 6 * h
    text, time = 4096 * h + h + h * h + h, 256 * h + h + h * h + h + 6 * h * h + 6 * h
    ends = 64 * h + h + 64 * h + 64 + 2 * h
    assert parameters(WAN).total == 40 * layer + text + time + ends == 14_288_491_584


def test_flop_of_a_video() -> None:
    """Every token meets all tokens and the text; keys and values of the text have its tokens alone."""
    h, f, s, text = 5120, 13824, 37440, 512
    forward = {
        "S": 2 * s * 4 * h * h + 4 * s * s * h,
        "C": 2 * s * 2 * h * h + 2 * text * 2 * h * h + 4 * s * text * h,
        "F": 2 * s * 2 * h * f,
    }
    for word, (layer, _) in ((each, place) for (each, *_), place in WAN.count_layer_types().items() if each != "T"):
        assert layer_flops(WAN, 1, layer=layer).total.total == pytest.approx(3 * forward[word], rel=1e-12)
    time = 2 * (256 * h + h * h + 6 * h * h)
    conditioning = 2 * text * (4096 * h + h * h) + time
    whole = 3 * (40 * sum(forward.values()) + conditioning + 2 * s * h * 64)
    assert model_flops_per_sequence(WAN) == pytest.approx(whole, rel=1e-12)


def test_what_a_self_attention_keeps() -> None:
    model = Model(**SMALL)
    kept = activation_bytes(model.layer_model(0), RankShape(micro_batch=1))
    row, width = 2 * 1024 * 512, 2 * 1024 * 512
    # input, normed and modulated input; queries and keys before their norm; queries, keys, values; output; its gate
    assert sum(kept.values()) == 3 * row + 2 * width + 3 * width + width + row + 4 * 1024 * 8


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel__pp": 1, "parallel__dp": 4, "parallel__sequence_parallel": True},
        {"parallel__pp": 1, "parallel__cp": 2, "parallel__cp_comm": "all_to_all"},
        {"training__recompute": "full", "pipeline__layers_per_stage": "auto"},
        {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 4},
    ],
)
def test_every_engine_simulates_it(changes: dict[str, Any]) -> None:
    base = scenario(SMALL, **changes)
    compiled, reference = (simcluster.simulate(base, engine=engine) for engine in ("compiled", "reference"))
    assert compiled.step_time == reference.step_time
    assert compiled.memory.total == reference.memory.total


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__causal": True}, "a diffusion transformer's attention has no mask; set causal to false"),
        (
            {"training__precision": "fp8-mixed"},
            "training.precision: is not modelled with layers of kind diffu",
        ),
        ({"data": DOCUMENTS}, "data: is not modelled with layers of kind diffusion_attention"),
    ],
)
def test_what_is_not_modelled(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario(SMALL, **changes)
