"""One scenario, one answer, in the corners that test_same_answer leaves out: every network and routing policy, every
schedule, context and expert parallelism, offload, collectives in steps, and every kind of fault."""

from __future__ import annotations

import math
from typing import Any

from conftest import Tiny
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from test_same_answer import every_way

from simcluster.base.errors import InputError
from simcluster.schedules import SCHEDULES

POLICIES: list[dict[str, Any]] = [
    {"kind": "shortest"},
    {"kind": "static"},
    {"kind": "ecmp", "seed": 3},
    {"kind": "ecmp", "seed": 5, "queue_pairs": 3},
    {"kind": "adaptive"},
]
RAILS = ["node0.gpu1", "node0.nic1"]
CLUSTERS: list[tuple[dict[str, Any], list[str]]] = [  # with one cable of each, near the first GPUs
    ({"topology": "leaf_spine_512", "leaves": 4, "gpus_per_leaf": 2, "spines": 3}, ["leaf0", "spine0"]),
    (
        {"topology": "rail_only", "nodes": 4, "machine": {"gpus": 2}, "fabric": {"nodes_per_unit": 2}},
        ["node0.gpu1", "node0.nvswitch"],
    ),
    ({"topology": "dragonfly_plus", "nodes": 8, "machine": {"gpus": 1}}, ["node0.gpu0", "node0.nic0"]),
    (
        {"topology": "fat_tree_3level", "nodes": 4, "machine": {"gpus": 2}, "fabric": {"nodes_per_unit": 1}},
        ["node0.gpu1", "node0.nic4"],
    ),
    ({"topology": "dgx_h100", "nodes": 2, "gpus_per_node": 4}, RAILS),
    ({"topology": "dgx_h100", "nodes": 1}, RAILS),
    ({"topology": "mixed_nics", "nodes": 2}, ["node0.gpu1", "node0.pcie0"]),
    ({"topology": "two_nodes_explicit", "gpus": 4}, ["a.gpu1", "a.nic"]),
]
SHAPES = [  # tp, cp, pp, dp
    (1, 1, 2, 4), (2, 1, 2, 2), (1, 2, 2, 2), (1, 1, 4, 2), (2, 2, 1, 2), (1, 2, 4, 1), (1, 1, 4, 1), (1, 1, 2, 2),
    (2, 2, 1, 1), (1, 1, 1, 4),
]  # fmt: skip
EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Sections for ``tiny``: what test_same_answer does not draw.

    All choices by one seed: they are many, and each should be made as often as any other.
    """
    dice = draw(st.randoms(use_true_random=True))
    cluster, cable = dice.choice(CLUSTERS)
    routing = {**dice.choice(POLICIES), "pxn": dice.choice([None, True])}
    tp, cp, pp, dp = dice.choice([shape for shape in SHAPES if math.prod(shape) <= cluster.get("gpus", 8)])
    schedule = dice.choice(list(SCHEDULES) if pp > 1 else ["gpipe", "1f1b"])
    ep, etp = dice.choice([1, 2, dp, tp * dp]), dice.choice([None, None, 1, 2])
    experts = ep > 1 or dice.random() < 0.2
    zero = dice.choice([0, 1, 2, 3]) if dp > 1 else 0
    how = dice.choice(DISPATCH) if experts else {}
    collectives = dice.choice(COLLECTIVES[:-1] if how.get("kind") in ("deepep", "hybridep") else COLLECTIVES)
    faults = _faults(dice.randrange(tp * cp * pp * dp), cable, experts=experts)
    return {
        "cluster": {**{key: value for key, value in cluster.items() if key != "gpus"}, "routing": routing},
        "gpus": tp * cp * pp * dp,
        "model": {"layers": 8, "gated_mlp": True, **({"moe": EXPERTS} if experts else {})},
        "parallel": {
            "tp": tp, "cp": cp, "pp": pp, "dp": dp, "zero": zero, "ep": ep, "etp": etp if experts else None,
            "sequence_parallel": tp > 1 and experts, "expert_dispatch": how,
            "order": dice.choice([("tp", "cp", "dp", "pp"), ("pp", "dp", "cp", "tp"), ("dp", "tp", "pp", "cp")]),
        },
        "pipeline": {"schedule": schedule, "chunks": 2 if SCHEDULES[schedule].takes_chunks else 1},
        "training": {"global_batch": (2 * pp if pp > 1 else dice.choice([1, 3])) * dp},
        "overlap": {
            "grad_reduce": dice.choice([False, True]),
            "param_gather": zero > 0 and dice.choice([False, True]),
            "pipeline": dice.choice([False, True]),
            "pairs": schedule.startswith("dualpipe") and zero < 3 and dice.choice([False, True]),
            "bucket_size": dice.choice(["1 MB", "8 MB"]),
            "experts": experts and dice.random() < 0.3,
            "interference": dice.choice(["none", "auto"]),
        },
        "collectives": collectives,
        "memory": {} if cluster["topology"] == "leaf_spine_512" else {"offload": dice.choice(OFFLOAD)},
        "faults": dice.sample(faults, dice.choice([0, 1, 1, 2, 3])),
        "steps": dice.choice([1, 1, 1, 1, 2]),
        **dice.choice(CHECKPOINT),
        **dice.choice(LOADER),
        **dice.choice(SOFTWARE),
    }  # fmt: skip


COLLECTIVES: list[dict[str, Any]] = [
    *[{}] * 4,
    {"nccl": "none"},
    {"all_reduce": "tree"},
    {"nccl": "none", "detail": "steps"},
]
DISPATCH: list[dict[str, Any]] = [
    {}, {"kind": "allgather"}, {"kind": "deepep", "dtype": "fp8"}, {"kind": "hybridep", "sms": 64},
]  # fmt: skip
OFFLOAD: list[dict[str, Any]] = [{}, {}, {"optimizer": "stream", "bucket": 300_000}, {"activations": 0.5}]
CHECKPOINT: list[dict[str, Any]] = [
    *[{}] * 3,
    {"checkpoint": {"mode": "snapshot", "to": "1 GB/s"}},
    {"checkpoint": {"mode": "snapshot", "to": "1 TB/s"}},  # bound by the NICs
    {"checkpoint": {"mode": "blocking", "to": "20 GB/s"}},
]


LOADER: list[dict[str, Any]] = [
    *[{}] * 3,
    {"data": {"loader": {"batch": "20 ms", "workers": 2}}},
    {"data": {"loader": {"rate": "3M tokens/s", "jitter": {"kind": "normal", "sigma": 0.3}, "prefetch": 0}}},
]


SOFTWARE: list[dict[str, Any]] = [
    *[{}] * 3,
    {"software": {"kernel": "3 us", "collective": "5 us", "sync": "20 us"}},  # a mixture waits for its counts
]


def _faults(rank: int, cable: list[str], *, experts: bool) -> list[dict[str, Any]]:
    """Every kind; at times, by chance, and on several ranks."""
    return [
        {"kind": "slow_gpu", "factor": 1.5, "ranks": sorted({0, rank})},
        {"kind": "slow_gpu", "factor": 3.0, "rank": rank, "start": "0.5 ms", "period": "2 ms", "duty": 0.25},
        {"kind": "slow_link", "between": cable, "factor": 0.2},
        {"kind": "link_flap", "between": cable, "start": "1 ms", "down": "0.5 ms", "period": "3 ms"},
        {"kind": "background_load", "between": cable, "share": 0.3},
        {"kind": "background_load", "between": cable, "share": 0.6, "on": "1 ms", "off": "2 ms"},
        {"kind": "jitter", "factor": {"kind": "normal", "sigma": 0.05}, "per": "pass"},
        {"kind": "jitter", "factor": {"kind": "gumbel", "scale": 0.05}, "per": "step", "rank": rank},
        {"kind": "host_stall", "cause": "data_loading", "seconds": "1 ms", "rank": rank},
        {"kind": "host_stall", "cause": "garbage_collection", "seconds": "1 ms", "every": 2, "first": "random"},
        {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 32, "sigma": 1.0}},
        *([{"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 1.0}}] if experts else []),
    ]


@settings(max_examples=6)
@given(document=documents())
def test_every_way_to_play_a_scenario_gives_the_same_spans(tiny: Tiny, document: dict[str, Any]) -> None:
    try:
        scenario = tiny(**document, engine="events")
    except InputError:  # some combinations are none, such as zero 3 with chimera
        reject()
    every_way(scenario)
