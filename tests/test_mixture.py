"""Mixtures of experts: what is counted, where tokens and gradients travel, what each rank holds, and who waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster import InputError, Scenario, simulate
from simcluster.model.flops import layer_flops, model_flops_per_sequence
from simcluster.model.kernels import Kernel
from simcluster.model.layers import RankShape, parameters
from simcluster.model.memory import activation_bytes
from simcluster.model.mixture_sections import make_mixture_sections
from simcluster.model.transformer import Model
from simcluster.planning.ops import Segment
from simcluster.planning.owned_parameters import parameters_of_layers, parameters_of_stage
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.work_kinds import Collective
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate_scenario

MOE = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 512, "shared_experts": 1, "first_dense_layers": 1}
FIELDS: dict[str, Any] = {
    "layers": 4, "hidden_size": 1024, "heads": 16, "kv_heads": 4, "vocab_size": 32000, "sequence_length": 1024,
    "gated_mlp": True, "ffn_hidden_size": 2048, "moe": MOE,
}  # fmt: skip
MODEL = Model.model_validate(FIELDS)
LAYER = PassLayers((1,))
SHAPES = st.builds(
    RankShape,
    micro_batch=st.sampled_from([1, 3]),
    tp=st.sampled_from([2, 4]),
    ep=st.sampled_from([1, 2, 8]),
    etp=st.sampled_from([0, 1, 2, 8]),
    sequence_parallel=st.just(True),
    recompute=st.sampled_from(["none", "selective", "full"]),
)


def passes(shape: RankShape, model: Model = MODEL) -> CachedPassSegmentMaker:
    return CachedPassSegmentMaker(
        model, shape, lambda kernels: sum(kernel.flops for kernel in kernels), overlap_tensor=False
    )


def moved(segment: Segment) -> Counter[tuple[str, str, str]]:
    """Bytes by axis, kind and name of a collective."""
    found: Counter[tuple[str, str, str]] = Counter()
    for op in segment.ops:
        if isinstance(op.work, Collective):
            found[op.work.axis, op.work.kind, op.name] += int(op.work.size)
    return found


# --- counting ---------------------------------------------------------------------------------------------------------


def test_parameters_by_hand() -> None:
    count, h = parameters(MODEL), 1024
    attention, expert = h * (2 * 1024 + 2 * 256), 3 * h * 512
    mixtures = 3 * (h * 8 + expert + 8 * expert)
    assert count.total == 4 * (attention + 2 * h) + 3 * h * 2048 + mixtures + 2 * 32000 * h + h
    assert count.total - count.active == 3 * 6 * expert


def test_flops_are_those_of_what_a_token_visits() -> None:
    """Two experts and a shared one of width 512 are an MLP of width 1536; the router is not counted."""
    dense = Model.model_validate({**FIELDS, "moe": None, "ffn_hidden_size": 1536})
    assert layer_flops(MODEL, 1, layer=1) == layer_flops(dense, 1)
    assert layer_flops(MODEL, 1, layer=0) != layer_flops(dense, 1)
    each = [layer_flops(MODEL, 1, layer=layer).total.total for layer in range(4)]
    assert model_flops_per_sequence(MODEL) == pytest.approx(sum(each) + 3 * 2.0 * 1024 * 1024 * 32000, rel=1e-12)


@given(shape=SHAPES)
def test_kernels_do_the_flops(shape: RankShape) -> None:
    """Over the ranks that share the tokens of a microbatch the products of experts are those of the layer."""
    parts, tokens = make_mixture_sections(MODEL, shape), shape.micro_batch * 1024
    ranks = shape.tp  # experts of ep ranks do the rows of ep ranks
    for half in ("forward", "input_grad", "weight_grad"):
        experts = sum(k.flops for k in getattr(parts.experts, half) if k.kind == "matmul")
        assert ranks * experts == pytest.approx(2.0 * tokens * 2 * 3 * 1024 * 512, rel=1e-9)
        shared = sum(k.flops for k in getattr(parts.shared, half) if k.kind == "matmul")
        assert ranks * shared == pytest.approx(2.0 * tokens * 3 * 1024 * 512, rel=1e-9)


@given(shape=SHAPES)
def test_every_kernel_runs_once(shape: RankShape) -> None:
    """What a split backward does is what the whole one does, and it moves as much."""
    seen: list[Kernel] = []

    def timer(kernels: Sequence[Kernel]) -> float:
        seen.extend(kernels)
        return 0.0

    made = CachedPassSegmentMaker(MODEL, shape, timer, overlap_tensor=False)
    whole = made.segment("B", LAYER)
    together, seen[:] = Counter(seen), []
    inputs, weights = made.segment("I", LAYER), made.segment("W", LAYER)
    assert Counter(seen) == together
    assert moved(inputs) == moved(whole)
    assert not moved(weights)


def test_a_single_expert_is_the_mlp() -> None:
    """One expert for every token, on one rank: the products of an MLP of its width."""
    one = {"experts": 1, "top_k": 1, "expert_ffn_hidden_size": 2048}
    lone = Model.model_validate({**FIELDS, "moe": one})
    dense = Model.model_validate({**FIELDS, "moe": None})
    shape = RankShape(micro_batch=1)
    products = []
    for model in (lone, dense):
        seen: list[Kernel] = []
        CachedPassSegmentMaker(
            model, shape, lambda ks, seen=seen: seen.extend(ks) or 0.0, overlap_tensor=False
        ).segment("B", LAYER)  # type: ignore[misc]
        products.append(Counter((k.m, k.n, k.k, k.flops) for k in seen if k.kind == "matmul" and k.n != 1))
    router = {(1024, 1024, 1, 2.0 * 1024 * 1024), (1024, 1, 1024, 2.0 * 1024 * 1024)}
    assert {key for key in products[0] - products[1] if key not in router} == set()
    assert not products[1] - products[0]


# --- what travels -----------------------------------------------------------------------------------------------------


@given(shape=SHAPES)
def test_tokens_travel_twice_each_way(shape: RankShape) -> None:
    """Two all-to-alls forward and two backward of tokens x top_k rows; those who split an expert gather rows."""
    edge = shape.micro_batch * 1024 // shape.tp
    sent, there = 2 * edge * 2 * 1024, 2 * edge * shape.expert_tp * 2 * 1024
    split = "tp" if shape.expert_tp == shape.tp else "etp"
    forward, backward = moved(passes(shape).segment("F", LAYER)), moved(passes(shape).segment("B", LAYER))
    again = shape.recompute == "full"
    for found, names in ((forward, ("dispatch", "combine")), (backward, ("combine_grad", "dispatch_grad"))):
        for name, over_tp in zip(names, ("all_gather", "reduce_scatter"), strict=True):
            assert found["ep", "all_to_all", name] == (sent if shape.ep > 1 else 0)
            assert found[split, over_tp, name] == (there if shape.etp != 1 else 0)
            assert not found["etp" if split == "tp" else "tp", over_tp, name]
    for name in ("dispatch", "combine"):
        assert backward["ep", "all_to_all", name] == (sent if shape.ep > 1 and again else 0)


@given(
    tp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2]), dp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]), etp=st.sampled_from([0, 1, 2, 4, 8]), ep=st.sampled_from([1, 2, 4, 8]),
    order=st.permutations(["tp", "cp", "dp", "pp"]),
)  # fmt: skip
def test_groups_of_experts(tp: int, cp: int, dp: int, pp: int, etp: int, ep: int, order: list[str]) -> None:
    """Every rank is in one etp, one ep and one edp group of its stage; any two of these share nobody else."""
    split = etp or tp
    if dp * cp * tp % (ep * split):
        return
    plan = ParallelPlan(tp=tp, cp=cp, dp=dp, pp=pp, order=tuple(order), ep=ep, etp=etp)
    sizes = {"etp": split, "ep": ep, "edp": dp * cp * tp // (ep * split)}
    stages = plan.stage_of_every_rank()
    of: dict[str, dict[int, set[int]]] = {}
    for axis, size in sizes.items():
        groups = plan.groups(axis).tolist()
        assert sorted(chain(*groups)) == list(range(plan.num_ranks))
        assert {len(group) for group in groups} == {size}
        assert all(len({int(stages[rank]) for rank in group}) == 1 for group in groups)
        of[axis] = {rank: set(group) for group in groups for rank in group}
    for rank in range(plan.num_ranks):
        assert of["etp"][rank] & of["ep"][rank] == of["etp"][rank] & of["edp"][rank] == {rank}
        assert of["ep"][rank] & of["edp"][rank] == {rank}
        if not etp:  # an expert is split over tp, so its ep group has one place there
            assert len({plan.coordinates(other)["tp"] for other in of["ep"][rank]}) == 1


@given(ep=st.sampled_from([1, 2, 4]), etp=st.sampled_from([0, 1, 2, 4]))
def test_all_ranks_together_hold_the_model_as_often_as_there_are_replicas(ep: int, etp: int) -> None:
    if ep * etp > 8:
        return
    plan = ParallelPlan(tp=2, dp=4, ep=ep, etp=etp)
    held = parameters_of_stage(MODEL, plan, range(4), first=True, last=True)
    padded = 2 * 1024 * (32000 % 256 and 256 - 32000 % 256)
    norms = 4 * 2 * 1024 + 1024 + 3 * 1024 * 8  # norms and routers are whole on every tp rank
    common = 2 * held.common - norms
    experts = held.experts * plan.ep * plan.expert_tp
    if not plan.has_separate_expert_groups:
        experts = 3 * 8 * 3 * 1024 * 512
        common -= experts
    assert common + experts == parameters(MODEL).total + padded
    once = 2 * held.common + held.experts * plan.ep * plan.expert_tp  # a tp group's, and an ep group's
    assert held.sharded_count(plan) * plan.num_ranks == pytest.approx(once)


# --- scenarios --------------------------------------------------------------------------------------------------------

WAYS: list[dict[str, Any]] = [
    {"parallel.ep": 4},
    {"parallel.ep": 1},
    {"parallel.ep": 8, "parallel.etp": 1},
    {"parallel.ep": 2, "parallel.etp": 1, "parallel.tp": 4, "parallel.dp": 2},
    {"parallel.ep": 2, "parallel.etp": 4},
    {"parallel.ep": 2, "parallel.zero": 0, "training.recompute": "full"},
    {"parallel.ep": 2, "parallel.zero": 2},
    {"parallel.ep": 4, "parallel.cp": 2, "parallel.dp": 2, "overlap.grad_reduce": True},
    {"parallel.ep": 4, "pipeline.schedule": "zb-h1", "overlap.grad_reduce": True, "overlap.param_gather": True},
    {"parallel.ep": 2, "pipeline.schedule": "dualpipe-v"},
    {"parallel.ep": 2, "parallel.zero": 3, "overlap.grad_reduce": True, "overlap.param_gather": True},
    {"parallel.ep": 4, "parallel.zero": 3, "fsdp.lanes": "two", "overlap.param_gather": True},
    {"parallel.ep": 2, "parallel.etp": 1, "parallel.zero": 3, "fsdp.lanes": "two", "overlap.param_gather": True,
     "overlap.grad_reduce": True, "fsdp.shard_group": 2},
]  # fmt: skip


def scenario(**changes: object) -> Scenario:
    base = {
        "gpus": 16, "cluster.nodes": 8, "parallel.dp": 4, "training.global_batch": 16,
        **{f"model.{name}": value for name, value in FIELDS.items()},
    }  # fmt: skip
    return load("tiny_3d", {**base, **changes})


@pytest.mark.parametrize("changes", WAYS)
def test_folded_is_unfolded_to_the_bit(changes: dict[str, Any]) -> None:
    made = scenario(**changes)
    folded, unfolded = simulate_scenario(made), simulate(made, folded=False)
    assert folded.step_time == unfolded.step_time
    for rank in range(16):
        left, right = (result.timeline_of(rank).drop(columns="group") for result in (folded, unfolded))
        assert left.equals(right)
    assert (folded.times.breakdown["exposed_ep"] > 0) == (changes["parallel.ep"] > 1)
    assert sum(folded.times.breakdown.values()) == pytest.approx(folded.step_time, rel=1e-12)


def test_gradients_of_experts_go_to_those_who_have_them() -> None:
    """Bytes that a rank reduces: its common gradients over dp, its experts' over the two ranks that have the same."""
    result = simulate(scenario(**{"parallel.ep": 2, "parallel.pp": 1, "gpus": 8}))
    table = result.timeline_of(0)
    reduced = table[(table["kind"] == "reduce_scatter") & (table["name"] == "gradients")]
    plan = ParallelPlan(tp=2, dp=4, ep=2)
    held = parameters_of_stage(MODEL, plan, range(4), first=True, last=True)
    assert sorted(reduced["bytes"]) == sorted([4 * held.common, 4 * held.experts])


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_fsdp_shards_experts_over_those_who_have_them(ep: int) -> None:
    """A microbatch gathers every layer's common parameters over dp, and its experts' over dp / ep ranks, twice."""
    result = simulate(scenario(**{"parallel.ep": ep, "parallel.zero": 3, "parallel.pp": 1, "gpus": 8}))
    table = result.timeline_of(0)
    gathered = table[(table["name"] == "parameters") & (table["layer"] == 1) & (table["microbatch"] < 1)]
    plan = ParallelPlan(tp=2, dp=4, ep=ep)
    held = parameters_of_layers(MODEL, plan, [1])
    wanted = [2 * held.common] + ([2 * held.experts] if 1 < ep < 4 else [])
    assert sorted(set(gathered["bytes"])) == sorted(wanted)
    state = result.facts.footprints[0]
    whole = parameters_of_stage(MODEL, plan, range(4), first=True, last=True)
    assert state.parameters == pytest.approx(2 * whole.sharded_count(plan))


def test_more_ep_ranks_hold_fewer_experts() -> None:
    few, many = (simulate(scenario(**{"parallel.ep": ep})).facts.footprints[0] for ep in (1, 4))
    expert_bytes = 2 * 3 * 1024 * 512 / 2  # of one expert on a tp rank, two bytes each
    layers = 1  # of the first stage's two, one has experts
    assert few.parameters - many.parameters == pytest.approx(layers * 6 * expert_bytes)


def test_activations_by_hand() -> None:
    """MODELLING.md B.2: 6 f_e k of an MLP's tensors, and 2 h k for each row before and behind the experts."""
    shape = RankShape(micro_batch=1)
    parts, n = activation_bytes(MODEL, shape, layer=1), 1024
    assert parts["experts_input"] == parts["experts_output"] == 2 * n * 2 * 1024
    assert sum(size for name, size in parts.items() if name in ("experts_gate", "experts_up", "experts_product")) == (
        6 * n * 2 * 512
    )
    assert parts["shared_product"] == 2 * n * 512
    assert activation_bytes(MODEL, shape).keys() & {"gate", "experts_gate"} == {"gate"}


@settings(max_examples=6)
@given(exponent=st.floats(0.1, 2.0), per=st.sampled_from(["layer", "pass"]))
def test_uneven_experts_only_ever_cost(exponent: float, per: str) -> None:
    fault = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": exponent}, "per": per}
    changes: dict[str, Any] = {"parallel.ep": 4, "model.layers": 2, "training.global_batch": 4}
    even = simulate(scenario(**changes))
    made = scenario(**changes, faults=[fault])
    uneven = simulate(made)
    assert uneven.step_time > even.step_time
    assert uneven.step_time == simulate(made, folded=False).step_time
    assert uneven.times.breakdown["straggler_wait"] > 0


def test_what_runs_beside_all_to_alls() -> None:
    """Shared experts hide the way to the experts, weight gradients the way back of gradients; nothing else changes."""
    blocked, beside = (simulate(scenario(**{"parallel.ep": 4, "overlap.experts": each})) for each in (False, True))
    assert beside.times.breakdown["exposed_ep"] < blocked.times.breakdown["exposed_ep"]
    assert beside.step_time < blocked.step_time
    tables = [result.timeline_of(0) for result in (blocked, beside)]
    moved = [table[table["stream"] == "ep"].groupby("name")["bytes"].sum() for table in tables]
    assert moved[0].equals(moved[1])
    kernels = [table[table["stream"] == "compute"] for table in tables]
    seconds = [float((table["end"] - table["start"]).sum()) for table in kernels]
    assert seconds[1] >= seconds[0] * (1 - 1e-12)  # communication beside computation slows it, or leaves it
    hidden = kernels[1]
    layer = tables[1][(tables[1]["layer"] == 1) & (tables[1]["microbatch"] == 0)]
    way = layer[(layer["name"] == "dispatch") & (layer["stream"] == "ep")].iloc[0]
    shared = hidden[(hidden["name"] == "shared") & (hidden["kind"] == "forward") & (hidden["microbatch"] == 0)].iloc[0]
    assert shared["start"] >= way["start"]


def test_even_experts_change_nothing() -> None:
    fault = {"kind": "expert_imbalance", "tokens": {"kind": "fractions", "values": [1.0] * 8}}
    assert simulate(scenario(**{"parallel.ep": 4}, faults=[fault])).step_time == simulate(scenario(**{"parallel.ep": 4})).step_time  # fmt: skip  # noqa: E501


def test_all_to_all_is_its_closed_form() -> None:
    """On a flat network alone: alpha + (ep - 1) / ep S / B each."""
    from simcluster.studies.bench.collective import collective_times
    from simcluster.topology import parse_topology

    cluster = parse_topology(
        {"kind": "flat", "device": "h100", "gpus": 4, "link": {"line_rate": "50 GB/s"}, "path_latency": "5 us"}
    ).build()
    size = 2.0 * 1024 * 2 * 1024
    assert collective_times(cluster, range(4), "all_to_all", size).duration == pytest.approx(5e-6 + 0.75 * size / 50e9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallel.ep": 3}, ["ep 3 does not divide", "experts 8"]),
        ({"parallel.ep": 8, "parallel.etp": 2}, ["ep 8 x etp 2 does not divide the 8 ranks", "use ep 4 or"]),
        ({"parallel.ep": 2, "model.moe": None}, ["the model is dense", "parallel.ep"]),
        ({"parallel.ep": 2, "parallel.sequence_parallel": False}, ["sequence_parallel to true"]),
        ({"parallel.ep": 4, "parallel.zero": 3, "fsdp.shard_group": 2}, ["shard_group", "use a multiple of 4"]),
        ({"parallel.ep": 8, "parallel.etp": 3}, ["etp 3", "does not divide model.moe.expert_ffn_hidden_size 512"]),
        ({"training.recompute": "operators"}, ["operators", "moe"]),
        ({"model.moe": {**MOE, "top_k": 9}}, ["top_k 9 is more than the 8 experts"]),
        ({"model.moe": {**MOE, "experts": 0}}, ["model.moe.experts"]),
        ({"model.moe": {**MOE, "width": 1}}, ["model.moe", "width"]),
        (
            {"faults": [{"kind": "expert_imbalance", "tokens": {"kind": "fractions", "values": [1, 2]}}]},
            ["2 fractions for 8 experts"],
        ),
    ],
)
def test_what_does_not_go_says_why(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        scenario(**changes)
    for word in words:
        assert word in str(caught.value)


def test_copies_of_a_stage_share_the_experts_gradients() -> None:
    plan = replace(ParallelPlan(dp=2, pp=4, ep=2), copies=((0, 3), (1, 2)))
    groups = plan.groups("edp")
    assert groups.shape == (4, 2)
    for group in groups:
        first, second = (plan.coordinates(int(rank)) for rank in group)
        assert {first["pp"], second["pp"]} in ({0, 3}, {1, 2})
        assert first["dp"] == second["dp"]
    assert sorted(np.concatenate(groups).tolist()) == list(range(8))
