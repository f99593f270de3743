"""Context parallelism by passing states: bytes and kernels by hand, what does not change, and every engine."""

from __future__ import annotations

import math
from typing import Any

import pytest
from test_layer_patterns import scenario
from test_linear_attention import HYBRID, SMALL_SIZES, own_kernels

import simcluster
from simcluster.base.errors import InputError
from simcluster.model.kernels import Kernel
from simcluster.model.layers import LAYER_KINDS, RankShape
from simcluster.model.memory import activation_bytes
from simcluster.model.transformer import Model
from simcluster.scenario.scenario import Scenario

SIZES = {**SMALL_SIZES, "mamba2": {"heads": 16, "groups": 4, "state": 64}}
STATES = {  # fp32 values of a piece that each of two tp ranks contributes, and a piece's state: heads x widths
    "mamba2": (8 * 64 * 64 + 8, 8 * 64 * 64),
    "gated_delta_net": (4 * 64 * (64 + 64), 4 * 64 * 64),
    "kda": (4 * 64 * (64 + 64), 4 * 64 * 64),
    "lightning": (4 * 64 * 64, 4 * 64 * 64),
}
HALOS = {"mamba2": 512 + 2 * 128, "gated_delta_net": 2 * 128 + 256, "kda": 3 * 256}
"""Channels of the convolution on a rank, of which each piece sends the last three tokens."""
BACK = {"mamba2": 8 * 64 * 64}
"""Mamba-2's backward sends no decays, which the forward gathered."""
every_kind = pytest.mark.parametrize("name", STATES)


def job(name: str, **changes: Any) -> Scenario:
    """A model of layers of the kind and of attention with experts, by turns, on 8 GPUs."""
    types = {"L": {"mixer": name}, "F": {}}
    model = {**HYBRID, "layer_types": types, "layer_kinds": {name: SIZES[name]}}
    more = {"sequence_parallel": True, "tp": 2, "pp": 2, "cp": 2, "cp_states": True}
    found = {**{f"parallel__{key}": value for key, value in more.items()}, **changes}
    ranks = math.prod(found[f"parallel__{axis}"] for axis in ("tp", "pp", "cp"))
    return scenario(model, parallel__dp=8 // ranks, **found)


def gathers(base: Scenario, layer: int = 0) -> list[float]:
    """Bytes of the all-gathers over cp of a layer's first microbatch."""
    line = simcluster.simulate(base).timeline
    own = line[(line["stream"] == "cp") & (line["rank"] == 0) & (line["layer"] == layer) & (line["microbatch"] == 0)]
    assert {*own["kind"]} == {"all_gather"}
    return [float(size) for size in own["bytes"]]


def kernels_of(name: str, phase: str, cp: int = 2, **changes: Any) -> dict[str, Kernel]:
    """Kernels of a layer between its weight matmuls, by name."""
    model = Model(**{**HYBRID, "moe": None, "pattern": "L", "layer_types": {"L": {"mixer": name}},
                     "layer_kinds": {name: SIZES[name]}})  # fmt: skip
    shape = RankShape(1, cp=cp, cp_states=True, **changes)
    return {each.name.removeprefix(f"{name}_"): each for each in own_kernels(model, name, shape, phase)}


@every_kind
@pytest.mark.parametrize(("shares", "pieces"), [("zigzag", 2), ("contiguous", 1)])
def test_bytes_of_states_and_of_the_convolutions_last_tokens(name: str, shares: str, pieces: int) -> None:
    """Of all ranks; forward the tokens and then the states, backward the other way round."""
    (values, _), halo = STATES[name], [2.0 * 3 * HALOS[name]] if name in HALOS else []
    whole = [*halo, 4.0 * values, 4.0 * BACK.get(name, values), *halo]
    assert gathers(job(name, parallel__cp_shares=shares)) == [2 * pieces * size for size in whole]


@every_kind
def test_bytes_of_states_do_not_depend_on_the_length_of_the_sequence(name: str) -> None:
    short, long = (gathers(job(name, model__sequence_length=length)) for length in (1024, 4096))
    assert short == long


@every_kind
def test_heads_are_not_exchanged_and_need_not_be_divisible(name: str) -> None:
    """Four ranks of cp, and two groups of Mamba-2 or keys on a tp rank."""
    found = gathers(job(name, parallel__cp=4, parallel__pp=1))
    assert found == [2 * size for size in gathers(job(name, parallel__pp=1))]


@every_kind
def test_one_rank_passes_nothing(name: str) -> None:
    alone, plain = (job(name, parallel__cp=1, parallel__cp_states=on) for on in (True, False))
    assert simcluster.simulate(alone).step_time == simcluster.simulate(plain).step_time
    assert any("parallel.cp_states" in note["text"] for note in simcluster.simulate(alone).to_dict()["notes"])


@pytest.mark.parametrize("name", HALOS)
@pytest.mark.parametrize("comm", ["ring", "all_gather"])
def test_layers_of_attention_exchange_keys_as_before(name: str, comm: str) -> None:
    """Ops of layer 1: names, sizes and durations, whatever layer 0 does."""
    columns, rows = ["name", "kind", "stream", "bytes"], []
    for states in (True, False):
        line = simcluster.simulate(job(name, parallel__cp_comm=comm, parallel__cp_states=states)).timeline
        own = line[(line["layer"] == 1) & (line["rank"] == 0) & (line["stream"] != "ep")]
        rows.append([own[columns].to_dict("records"), (own["end"] - own["start"])[own["stream"] == "compute"].tolist()])
    assert rows[0][0] == rows[1][0]
    assert rows[0][1] == pytest.approx(rows[1][1], rel=1e-9)


@every_kind
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallel__cp_comm": "all_gather", "parallel__cp_shares": "contiguous"},
        {"parallel__cp_comm": "hybrid", "parallel__cp_inner": 1},
        {"pipeline__schedule": "zb-h1", "training__recompute": "selective"},
        {"parallel__tp": 1, "parallel__sequence_parallel": False, "parallel__cp": 4, "parallel__pp": 2},
        {"parallel__zero": 3, "parallel__pp": 1},
    ],
)
def test_every_engine_simulates_it(name: str, changes: dict[str, Any]) -> None:
    base = job(name, **changes)
    compiled = simcluster.simulate(base)
    assert compiled.step_time == simcluster.simulate(base, engine="reference").step_time
    assert compiled.step_time == simcluster.simulate(base, folded=False).step_time


@pytest.mark.parametrize("name", ["gated_delta_net", "kda", "lightning"])
def test_full_recompute_gathers_again(name: str) -> None:
    plain, again = (gathers(job(name, training__recompute=mode)) for mode in ("none", "full"))
    forward = len(plain) // 2
    assert again == [*plain[:forward], *plain[:forward], *plain[forward:]]


@every_kind
def test_kernels_are_those_of_a_part_of_the_sequence_and_few_more(name: str) -> None:
    """Work is shared; each of a rank's two pieces has a quarter of the chunks in turn, and its blocks of threads."""
    added = {
        "mamba2": ({"state_passing_alone", "merge"}, {"state_passing_alone_grad", "merge_grad", "halo_grad"}),
        "gated_delta_net": ({"summary", "merge"}, {"summary_grad", "merge_grad", "halo_grad"}),
        "kda": ({"summary", "merge"}, {"summary_grad", "merge_grad", "halo_grad"}),
        "lightning": ({"own_state", "merge"}, {"own_state_grad", "merge_grad"}),
    }[name]
    for phase, more in zip(("forward", "input_grad"), added, strict=True):
        whole, part = kernels_of(name, phase, cp=1), kernels_of(name, phase)
        assert part.keys() - whole.keys() == more
        assert whole.keys() <= part.keys()
        for key, kernel in whole.items():
            assert part[key].flops == kernel.flops / 2
            if kernel.passes:
                assert (kernel.passes + 1, kernel.rows) == (4 * (part[key].passes + 1), part[key].rows / 2)


def test_kernels_of_the_delta_rules_summary() -> None:
    """512 tokens x 8 heads of 64: k, w and u in 16 bits, decays; 4 d^2 and 2 d^2 (1 + d / 64) FLOP; fp32 summaries."""
    found = kernels_of("gated_delta_net", "forward")["summary"]
    tokens, pieces, summary = 512 * 8, 2, 4 * 8 * 64 * 128
    assert found.bytes == tokens * (2 * 2 * 64 + 2 * 64 + 4) + pieces * summary
    assert found.flops == tokens * (4 * 64 * 64 + 2 * 64 * 64 * 2)
    assert (found.passes, found.rows) == (1024 // 4 // 64 - 1, pieces * 8 * 2)
    merge = kernels_of("gated_delta_net", "forward")["merge"]
    assert merge.bytes == 3 * summary + pieces * 4 * 8 * 64 * 64  # of the three other pieces; one state each
    assert kernels_of("gated_delta_net", "forward", cp_shares="contiguous")["merge"].bytes == summary + 4 * 8 * 64 * 64


@every_kind
def test_initial_states_are_kept(name: str) -> None:
    """In fp32 for each piece; all else is a half."""
    model = Model(**{**HYBRID, "moe": None, "pattern": "L", "layer_types": {"L": {"mixer": name}},
                     "layer_kinds": {name: SIZES[name]}})  # fmt: skip
    kept, half = (activation_bytes(model, RankShape(1, tp=2, cp=cp, cp_states=True), 0) for cp in (1, 2))
    assert half.pop(f"{name}_initial_states") == 2 * 4 * STATES[name][1]
    assert half == {key: size / 2 for key, size in kept.items()}
    kind, sizes = LAYER_KINDS[name], []
    for cp in (1, 2, 4):
        shape = RankShape(1, tp=2, cp=cp, cp_states=True)
        sizes.append(kind.forward_working_bytes(model, shape)[0])
    summary = {"gated_delta_net": 2, "kda": 2}.get(name, 1) * 4 * STATES[name][1]  # of every piece
    assert [sizes[0] / 2 + 4 * summary, sizes[0] / 4 + 8 * summary] == sizes[1:]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("lightning", {"parallel__cp_states": False}, "lightning do not exchange tokens for heads; set parallel.cp_st"),
        ("mamba2", {"model__layer_kinds__mamba2": {"heads": 16, "groups": 4, "chunks": 8}}, "no size 'chunks'"),
    ],
)
def test_what_is_rejected(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(name, **changes)


def test_a_convolution_of_one_token_gathers_none() -> None:
    types = {"L": {"mixer": "kda"}, "F": {}}
    model = {**HYBRID, "layer_types": types, "layer_kinds": {"kda": {**SIZES["kda"], "conv": 1}}}
    values, _ = STATES["kda"]
    more = {"parallel__cp": 2, "parallel__cp_states": True, "parallel__dp": 1, "parallel__sequence_parallel": True}
    assert gathers(scenario(model, **more)) == [4 * 4.0 * values] * 2


def test_a_document_of_a_model_says_what_is_gathered() -> None:
    """Before the kernel that it names: bytes of both ranks, of a formula with the pieces of a sequence."""
    sums = {"kind": "memory", "bytes": "e * tokens * hidden"}
    kind = {
        "description": "cumulative sums", "source": "own",
        "cp": {"states": {"add": "4 * micro_batch * parts / cp * hidden"}},
        "weights": {"in": {"rows": "hidden", "columns": "hidden"}, "out": {"rows": "hidden", "columns": "hidden"}},
        "body": [{"matmul": "in"}, {"forward": {"sums": sums, "add": sums}}, {"matmul": "out"}],
    }  # fmt: skip
    model = {**HYBRID, "layer_types": {"L": {"mixer": "sums"}, "F": {}}, "layer_kinds": {"sums": kind}}
    more = {"parallel__cp": 2, "parallel__cp_states": True, "parallel__dp": 1, "parallel__sequence_parallel": True}
    base = scenario(model, **more)
    assert gathers(base) == [2 * 4.0 * 2 * 512]
    assert simcluster.simulate(base).step_time == simcluster.simulate(base, engine="reference").step_time
