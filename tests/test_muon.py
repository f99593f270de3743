"""Muon: which weights are matrices, what their products take, who updates and keeps them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from conftest import tiny_scenario
from hypothesis import given
from hypothesis import strategies as st
from test_inputs_megatron import GPT_345M, imported
from test_reference import compare_scenario

from simcluster import InputError, Scenario, simulate
from simcluster.devices.device import kernel_sequence_seconds, load_device, memory_kernel_seconds
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.layers import expert_parameters_per_rank, layer_matrices, layer_parameters_per_tp_rank
from simcluster.model.recipes import RECIPES
from simcluster.model.transformer import Model
from simcluster.planning.muon import MuonOptimizer, newton_schulz_matmuls
from simcluster.planning.optimizer import UpdateContext
from simcluster.planning.owned_parameters import OwnedParameters
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.scenario.scenario import load
from simcluster.studies.search.layout_memory import LayoutMemory
from simcluster.studies.search.layout_space import make_layout_space

H100 = load_device("h100")
MODELS = ("llama3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3")


def of(name: str) -> Model:
    return Model(**{**load_model_entry(name), "sequence_length": 4096})


def elements_of(kernels: Any) -> float:
    """Elements of the matrix that the matmuls of one iteration work on."""
    gram, *_ = kernels
    return float(gram.m * gram.k)


def optimizer(
    plan: ParallelPlan, distribute: Any = "layers", model: str | Model = "llama3-8b", zero: int = 1, **more: Any
) -> MuonOptimizer:
    """One iteration's seconds are elements, and passes over memory take none."""
    whole = of(model) if isinstance(model, str) else model
    job = UpdateContext(
        whole, plan, RECIPES["mixed-18"], 0 if distribute == "none" else zero, 1e6, matmul_seconds=elements_of
    )
    return MuonOptimizer(job, distribute, iterations=1, **more)


def elements(made: MuonOptimizer, layers: Any) -> OwnedParameters:
    """Elements of all matrices that a rank holds: those of which a moment is not needed."""
    held = made.unneeded_adam_state(layers)
    return OwnedParameters(held.common / 4.0, held.experts / 4.0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 1, 1), (2, 4, 1), (2, 4, 2)])
def test_matrices_are_all_parameters_but_norms_and_biases(name: str, tp: int, ep: int, etp: int) -> None:
    model = of(name)
    for layer in (0, model.layers - 1):
        whole = layer_parameters_per_tp_rank(model, tp, layer)
        whole += expert_parameters_per_rank(model, layer, ep=ep, etp=etp)
        found = sum(each.elements * each.count for each in layer_matrices(model, layer, tp=tp, ep=ep, etp=etp))
        mla, moe = model.mla, model.moe if model.has_experts(layer) else None
        vectors = model.layer_norm_parameters + (mla.kv_lora_rank + (mla.q_lora_rank or 0) if mla else 0)
        vectors += moe.experts * moe.router_bias if moe else 0
        assert found == whole - vectors


@given(rows=st.integers(1, 4096), columns=st.integers(1, 4096), iterations=st.integers(1, 7))
def test_products_are_their_closed_form(rows: int, columns: int, iterations: int) -> None:
    m, n = min(rows, columns), max(rows, columns)
    flops = sum(kernel.flops for kernel in newton_schulz_matmuls(rows, columns, iterations))
    assert flops == pytest.approx(iterations * (4.0 * m * m * n + 2.0 * m**3))
    assert newton_schulz_matmuls(rows, columns, iterations) == newton_schulz_matmuls(columns, rows, iterations)


def test_a_matrix_takes_its_products_at_the_devices_rate() -> None:
    times = partial(memory_kernel_seconds, H100), partial(kernel_sequence_seconds, H100, precision="bf16")
    job = UpdateContext(of("llama3-8b"), ParallelPlan(), RECIPES["mixed-18"], 0, 1e6, *times)
    seconds = MuonOptimizer(job)._orthogonalization_seconds(4096, 14336)
    flops = 5 * (4.0 * 4096**2 * 14336 + 2.0 * 4096**3)
    assert 0.4 < flops / seconds / 989e12 < 0.8


@given(dp=st.sampled_from([1, 2, 3, 8, 64]), tp=st.sampled_from([1, 2]), layers=st.integers(1, 6))
def test_whole_matrices_are_dealt_out(dp: int, tp: int, layers: int) -> None:
    """The fullest rank has an even part at least, and no more than that and the largest matrix."""
    plan = ParallelPlan(tp=tp, dp=dp)
    made, stage = optimizer(plan), range(layers)
    one = layer_matrices(of("llama3-8b"), 0, tp=tp, ep=1, etp=1)
    whole, largest = sum(each.elements * each.count for each in one) * layers, max(each.elements for each in one)
    own = made.update_work(stage).seconds
    assert whole / dp <= own <= whole / dp + largest
    assert elements(made, stage).total == whole
    assert optimizer(plan, "none").update_work(stage).seconds == whole
    assert optimizer(plan, "none").saved_state_bytes(stage) == 4.0 * whole
    assert made.saved_state_bytes(stage) == pytest.approx(12.0 * whole / dp - 8.0 * own)
    gathered = optimizer(plan, "gather").update_work(stage)
    assert whole / dp <= gathered.seconds <= whole
    assert gathered.calls == ((("dp", 2.0 * whole),) if dp > 1 else ())


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("shard", [0, 4])
def test_shards_travel_to_the_owner_of_a_matrix_and_back(zero: int, shard: int) -> None:
    """In 16 bits; an owner works as much as where ranks hold whole matrices.  FSDP2 gives every rank a part of each."""
    plan, stage = ParallelPlan(dp=8, shard=shard), range(4)
    ranks, axis = (shard or 8, "shard") if zero == 3 else (8, "dp")
    whole = elements(optimizer(plan), stage).total
    work = optimizer(plan, "all_to_all", zero=zero).update_work(stage)
    assert (work.calls, work.exchanges) == ((), ((axis, 4.0 * whole / ranks),))
    assert work.seconds == optimizer(ParallelPlan(dp=ranks), "layers").update_work(stage).seconds
    gathered = optimizer(plan, "gather", zero=zero).update_work(stage)
    assert (gathered.calls, gathered.exchanges) == (((axis, 2.0 * whole),), ())
    assert gathered.seconds == whole if zero == 3 else whole / ranks <= gathered.seconds <= whole
    assert optimizer(plan, "all_to_all", zero=zero).saved_state_bytes(stage) == 4.0 * whole / ranks


def test_experts_are_dealt_out_to_those_who_have_them() -> None:
    model = of("mixtral-8x7b")
    plan = ParallelPlan(tp=2, dp=8, ep=4, etp=1)
    made = optimizer(plan, "gather", model=model)
    held = elements(made, [0])
    assert held.experts == 2 * 3 * 4096 * 14336
    assert dict(made.update_work([0]).calls) == {"dp": 2.0 * held.common, "edp": 2.0 * held.experts}
    gathers = dict(optimizer(plan, "none", gathered_tp=True, model=model).update_work([0]).calls)
    assert gathers == {"tp": 4.0 * 2 * (held.common - 8 * 4096)}  # all but the router, which no rank splits


def tiny(**changes: Any) -> Scenario:
    return load("tiny_3d", {"training.optimizer": "muon", **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"training.muon": {"distribute": "gather", "tp_mode": "duplicated"}, "overlap.grad_reduce": True},
        {"parallel.zero": 0, "pipeline.schedule": "zb-h1", "training.global_batch": 4},
        {"parallel.zero": 2},
        {"parallel.zero": 3, "training.muon.distribute": "gather"},
        {
            "parallel.zero": 3,
            "training.muon.tp_mode": "duplicated",
            "parallel.dp": 4,
            "parallel.pp": 1,
            "fsdp.shard_group": 2,
        },
    ],
)
def test_all_engines_play_it_alike(changes: dict[str, Any]) -> None:
    compare_scenario(tiny(**changes))


def test_momentum_gathered_over_the_ranks_that_split_experts_is_tp() -> None:
    """Where these are another number than tp."""
    moe = {"experts": 4, "top_k": 2, "expert_ffn_hidden_size": 256}
    document: dict[str, Any] = {
        "cluster": {"topology": "flat", "gpus": 8}, "gpus": 8, "model": {"gated_mlp": True, "moe": moe},
        "parallel": {"tp": 4, "ep": 4, "etp": 2, "sequence_parallel": True},
    }  # fmt: skip
    muon, whole = (
        tiny_scenario(**document, training={"optimizer": "muon", "muon": {"tp_mode": mode}, "global_batch": 4})
        for mode in ("duplicated", "blockwise")
    )
    compare_scenario(muon)
    assert simulate(muon).times.breakdown["exposed_tp"] > simulate(whole).times.breakdown["exposed_tp"]


def test_a_step_pays_products_and_keeps_one_moment() -> None:
    adam, muon = (simulate(tiny(**{"training.optimizer": each, "parallel.zero": 0})) for each in ("adam", "muon"))
    table = muon.timeline_of(0)
    made = table[table["name"] == "orthogonalize"]
    more = muon.times.breakdown["optimizer"] - adam.times.breakdown["optimizer"]
    assert len(made) == 1
    assert more == pytest.approx(float((made["end"] - made["start"]).iloc[0]), rel=0.2)
    model, plan = muon.scenario.model, ParallelPlan(tp=2, dp=2, pp=2)
    spared = elements(optimizer(plan, "none", model=model), range(model.layers // 2)).total
    held, less = (each.facts.footprints[0].optimizer for each in (adam, muon))
    assert held - less == 4.0 * spared


def test_megatrons_options_choose_it() -> None:
    script = GPT_345M.replace("--fp16", "--bf16 --optimizer dist_muon --muon-num-ns-steps 5 --muon-momentum 0.95")
    document = imported(script + " --muon-tp-mode duplicated").document
    assert document["training"]["optimizer"] == "muon"
    assert document["training"]["muon"] == {"iterations": 5, "tp_mode": "duplicated"}
    assert document["parallel"]["zero"] == 1
    without = imported(GPT_345M + " --muon-tp-mode blockwise")
    assert "muon" not in without.document["training"]
    assert any("so muon-tp-mode has no effect" in each for each in without.assumed)


def test_bounds_of_a_search_are_below_what_layouts_hold() -> None:
    base = tiny(**{"model.sequence_length": 256})
    memory = LayoutMemory(base)
    vary = {"parallel.zero": (0, 1, 2, 3), "training.recompute": ("none",), "training.micro_batch": (1,)}
    legal = make_layout_space(base, 8, {**vary, "pipeline.schedule": ("1f1b",)}).layouts_and_counts[0]
    assert len(legal) > 10
    for layout in legal:
        assert memory.least_bytes(layout) <= memory.planned_bytes(layout)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallel.zero": 2, "training.muon.distribute": "layers"}, "no rank has whole matrices.*use all_to_all or"),
        ({"training.precision": "fp16-mixed"}, "muon with fp16 is not supported"),
        ({"training.optimizer": "adam", "training.muon.iterations": 6}, "training.optimizer is adam"),
        ({"training.optimizer": "moun"}, "did you mean 'muon'"),
        ({"training.muon.tp_mode": "distributed"}, "blockwise"),
    ],
)
def test_what_does_not_go_says_why(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tiny(**changes)
