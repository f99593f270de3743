"""Scenarios in whose neighbourhood every field is tried: each has a feature that gives some fields their effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]

_MODEL: Document = {
    "layers": 4, "hidden_size": 256, "heads": 8, "kv_heads": 8, "ffn_hidden_size": 1024, "vocab_size": 1000,
    "sequence_length": 256, "gated_mlp": False, "tied_embeddings": False,
}  # fmt: skip
_MOE = {"experts": 4, "top_k": 2, "expert_ffn_hidden_size": 256, "shared_experts": 1, "shared_ffn_hidden_size": 256}
_ENCODER = {
    "layers": 4, "hidden_size": 128, "heads": 4, "ffn_hidden_size": 512, "patch_values": 48, "image_tokens": 128,
    "tokens_per_image": 64, "attention_window": 32, "full_attention_every": 2,
}  # fmt: skip
_MLA = {"kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}


def _base(gpus: int, *, per_node: int = 2, **sections: Any) -> Document:
    cluster = {"topology": "dgx_h100", "nodes": -(-gpus // per_node), "gpus_per_node": per_node}
    document: Document = {"cluster": cluster, "model": _MODEL, "training": {"global_batch": 8}, "software": {}}
    for name, section in sections.items():
        known = document.get(name)
        document[name] = {**known, **section} if isinstance(known, dict) and isinstance(section, Mapping) else section
    return document


BASES: dict[str, Document] = {
    "plain": _base(1, per_node=1),
    "3d": _base(
        8,
        parallel={"tp": 2, "pp": 2, "dp": 2, "zero": 1},
        overlap={"grad_reduce": True, "param_gather": True, "tensor": True},
    ),
    "moe": _base(
        8,
        model={"moe": _MOE, "gated_mlp": True},
        parallel={"tp": 2, "ep": 4, "sequence_parallel": True, "expert_dispatch": {"kind": "deepep"}},
        overlap={"experts": True},
    ),
    "mla": _base(4, model={"moe": _MOE, "mla": _MLA, "gated_mlp": True}, parallel={"pp": 2, "ep": 2}),
    "encoder": _base(2, model={"encoder": _ENCODER}, parallel={"tp": 2}),
    "cp": _base(4, parallel={"cp": 2, "tp": 2}, training={"recompute": "selective", "recompute_every": 2}),
    "fsdp": _base(
        4,
        parallel={"zero": 3},
        overlap={"grad_reduce": True, "param_gather": True},
        software={"shards": "lists", "checkpoint": "early-stop"},
        training={"recompute": "full"},
    ),
    "fp8": _base(
        4,
        model={"moe": _MOE, "gated_mlp": True, "bias": True, "clamped_activation": True},
        parallel={"ep": 2},
        training={"precision": "fp8-mixed"},
    ),
    "zero-bubble": _base(4, parallel={"pp": 4}, pipeline={"schedule": {"name": "zb-auto"}}),
    "offload": _base(
        4,
        parallel={"pp": 2, "tp": 2},
        memory={"offload": {"activations": 0.5, "optimizer": "stream", "bucket": 500_000}},
    ),
    "lora": _base(
        4,
        parallel={"tp": 2, "sequence_parallel": True, "zero": 1},
        training={"trainable": {"rank": 8, "base_weights": "nf4"}},
    ),
    "muon": _base(4, parallel={"zero": 1, "tp": 2}, training={"optimizer": "muon"}),
    "steps": _base(4, parallel={"dp": 2, "pp": 2}, collectives={"detail": "steps"}, overlap={"grad_reduce": True}),
    "packed": _base(
        4,
        data={"documents": {"kind": "lognormal", "median": 64, "sigma": 1.0}},
        training={"recompute": "full"},
        steps=2,
    ),
    "checkpoint": _base(4, checkpoint={"after": 0, "to": "1 GB/s"}, steps=2),
    "outer": _base(4, training={"outer": {"every": 2, "workers": 2}}, steps=4),
    "drawn": _base(4, parallel={"pp": 2}, faults=[{"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}]),
    "window": _base(
        2,
        model={"attention_window": 64, "full_attention_every": 2},
        training={"attention": "unfused", "recompute": "selective", "dropout": True},
    ),
}  # fmt: skip
