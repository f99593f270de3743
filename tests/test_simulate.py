"""Whole steps: published runs, closed forms, what must not change the result, and what must."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

import simcluster
from simcluster.base.clock import TICK
from simcluster.devices.device import load_device_entry
from simcluster.engine.job_record import simulate_job
from simcluster.reference.step_record import StepRecord
from simcluster.results.result import Result, flatten_result
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate

ROOT = Path(__file__).parent.parent
GPT3 = ROOT / "scenarios" / "gpt3_175b_64xa100.yaml"
SMALL = ROOT / "scenarios" / "tiny_3d.yaml"

DGX = {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4}
SLOW = {"kind": "slow_gpu", "rank": 5, "factor": 1.5}
PLAIN: dict[str, Any] = {"cluster": DGX, "parallel": {"tp": 2, "pp": 2}, "training": {"global_batch": 8}}


def times(result: Result) -> dict[str, Any]:
    """Return the numbers of the result but for those of the simulation itself."""
    found, others = result.to_dict(), ("scenario", "engine", "straggler_slowdown", "notes")
    return {name: value for name, value in found.items() if name not in others}


# --- published runs -------------------------------------------------------------------------------------------------


def test_gpt3_175b_on_64_a100() -> None:
    """13.75 s: arXiv:2205.05198 table 5, 175B, sequence parallelism and selective recompute."""
    result = simulate(simcluster.scenario(GPT3))
    assert result.step_time == pytest.approx(13.75, rel=0.10)
    assert result.scenario.measured is not None
    assert result.scenario.measured.step_time == 13.75
    assert len(result.weights) == 8  # 64 GPUs, eight classes: one a stage


def test_gpt3_175b_with_full_recompute() -> None:
    """18.13 s: the same table, full recompute and no sequence parallelism."""
    scenario = simcluster.scenario(GPT3, {"training.recompute": "full", "parallel.sequence_parallel": False})
    assert simulate(scenario).step_time == pytest.approx(18.13, rel=0.10)


def test_recompute_costs_what_it_computes_again() -> None:
    """Full recompute runs every layer's forward once more, and mfu counts none of it."""
    none, full = (
        simulate(
            simcluster.scenario(
                GPT3,
                {
                    "training.recompute": recompute,
                    "parallel.sequence_parallel": False,
                    "overlap.interference": "none",
                },
            )
        )
        for recompute in ("none", "full")
    )
    layers = 96 / 8 * 64  # per GPU and step: 12 layers, 64 microbatches
    forward = none.timeline_of(8)  # a stage in the middle
    forward = forward[(forward["stream"] == "compute") & (forward["kind"] == "forward")]
    again = float((forward["end"] - forward["start"]).sum())
    assert layers == len(forward[forward["name"] == "mlp"])
    assert full.times.breakdown["recompute"] == pytest.approx(again, rel=1e-9)
    assert full.step_time > none.step_time + again
    h, s, V, L = 12288, 2048, 51200, 96
    layer, head = L * (24 * h * h + 2 * s * h), 2 * h * V  # forward FLOPs a token, causal
    ratio = (4 * layer + 3 * head) / (3 * layer + 3 * head)
    assert full.to_dict()["hfu"] / full.to_dict()["mfu"] == pytest.approx(ratio, rel=1e-12)
    assert none.to_dict()["hfu"] == none.to_dict()["mfu"]


# --- closed forms ---------------------------------------------------------------------------------------------------


def test_without_a_pipeline_microbatches_add_up(tiny: Tiny) -> None:
    """P = 1: makespan = M T (MODELLING.md H.4)."""

    def pipeline(M: int) -> float:
        return simulate(tiny(training={"global_batch": M})).times.pipeline_seconds

    assert pipeline(7) == pytest.approx(7 * pipeline(1), rel=1e-12)


@pytest.mark.parametrize("dp", [2, 8])
@pytest.mark.parametrize("rate", ["1000 GB/s", "2 GB/s"])
def test_gradient_buckets_beside_backward(tiny: Tiny, dp: int, rate: str) -> None:
    """finish = max_k (r_k + sum over j >= k of t_j), exactly (MODELLING.md F.1); t by the ring's closed form (D.1)."""
    result = simulate(
        tiny(
            cluster={
                "topology": "flat",
                "gpus": dp,
                "link": {"line_rate": rate, "source": ""},
                "path_latency": "1 us",
            },
            model={"layers": 8, "hidden_size": 512},
            parallel={"dp": dp},
            training={"global_batch": dp},
            overlap={"grad_reduce": True, "bucket_size": "12 MB"},
        )
    )
    table = result.timeline
    buckets = table[(table["stream"] == "dp") & (table["name"] == "gradients")]
    assert len(buckets) == 4  # of two layers each, last layers first; the ends of the model are in the outer ones
    backward = table[table["kind"] == "backward"]
    made = [float(backward["end"][backward["layer"] >= layer].max()) for layer in (6, 4, 2)]
    made.append(float(backward["end"].max()))
    bandwidth, alpha = float(rate.split()[0]) * 1e9, 1e-6
    lengths = [2 * (dp - 1) * (alpha + size / (dp * bandwidth)) for size in buckets["bytes"]]
    finish = max(made[k] + sum(lengths[k:]) for k in range(len(lengths)))
    assert float(buckets["end"].max()) == pytest.approx(finish, rel=1e-9)
    exposed = result.times.breakdown["exposed_dp"]
    assert exposed == pytest.approx(max(0.0, finish - float(backward["end"].max())), rel=1e-6, abs=1e-9)
    assert (exposed > 0.5 * sum(lengths)) == (rate == "2 GB/s")


def test_blocking_gradients_are_all_exposed(tiny: Tiny) -> None:
    result = simulate(tiny(cluster={"topology": "flat", "gpus": 8}, parallel={"dp": 8}, training={"global_batch": 8}))
    (row,) = result.timeline[result.timeline["name"] == "gradients"].itertuples()
    assert row.end - row.start == pytest.approx(2 * 7 * (5e-6 + row.bytes / (8 * 50e9)), rel=1e-9)
    assert result.times.breakdown["exposed_dp"] == pytest.approx(row.end - row.start, rel=1e-9)
    assert result.times.overlap_fraction == 0


def test_zero_one_moves_the_same_bytes_as_an_all_reduce_of_equal_width(tiny: Tiny) -> None:
    """reduce-scatter + all-gather = all-reduce on a ring (H.8), where parameters are as wide as gradients."""

    def communication(zero: int) -> float:
        scenario = tiny(
            cluster={"topology": "flat", "gpus": 8},
            parallel={"dp": 8, "zero": zero},
            training={"global_batch": 8, "memory_recipe": "mixed-16"},
        )
        table = simulate(scenario).timeline
        moved = table[table["name"].isin(["gradients", "parameters"])]
        return float((moved["end"] - moved["start"]).sum())

    assert communication(1) == pytest.approx(communication(0), rel=1e-9)


# --- what must not change the result ---------------------------------------------------------------------------------


def test_faults_of_factor_one_change_nothing(tiny: Tiny) -> None:
    """MODELLING.md H.33."""
    neutral = [{**SLOW, "factor": 1.0}, {"kind": "slow_link", "between": ["node0.gpu1", "node0.nic1"], "factor": 1.0}]
    clean, faulty = simulate(tiny(**PLAIN)), simulate(tiny(**PLAIN, faults=neutral))
    assert times(faulty) == times(clean)
    assert faulty.to_dict()["straggler_slowdown"] == 1.0
    assert len(faulty.weights) == len(clean.weights)
    assert faulty.timeline.equals(clean.timeline)


def test_two_steps_are_one_step_twice(tiny: Tiny) -> None:
    one, three = simulate(tiny(**PLAIN)), simulate(tiny(**PLAIN, steps=3))
    assert three.step_time == pytest.approx(one.step_time, rel=1e-12)
    for name, value in flatten_result(one.to_dict()).items():
        assert flatten_result(three.to_dict())[name] == pytest.approx(value, rel=1e-9, abs=1e-15), name
    table = three.timeline
    assert sorted(set(table["step"])) == [0, 1, 2]
    first, last = (table[table["step"] == step].reset_index(drop=True) for step in (0, 2))
    assert first["name"].equals(last["name"])
    shift = 2 * one.step_time
    assert (last["start"] - first["start"]).to_numpy() == pytest.approx(shift, rel=1e-12)


def test_parameters_gathered_beside_the_next_forward_reach_a_steady_state(tiny: Tiny) -> None:
    """With the gather before the first forward every step is alike: no more in the second than in the first."""

    def run(steps: int) -> float:
        overlap = {"grad_reduce": True, "param_gather": True, "bucket_size": "1 MB"}
        parallel = {"tp": 2, "pp": 2, "zero": 1}
        scenario = tiny(cluster=DGX, parallel=parallel, training={"global_batch": 8}, overlap=overlap, steps=steps)
        return simulate(scenario).step_time

    assert run(4) == pytest.approx(run(2), rel=1e-3)


def test_the_job_s_name_seed_and_measurement_change_nothing(tiny: Tiny) -> None:
    plain = tiny(**PLAIN)
    other = plain.model_copy(update={"name": "another", "seed": 7})
    assert times(simulate(other)) == times(simulate(plain))


def test_two_runs_are_the_same_bytes(usual_engines: None) -> None:
    """Also in another process, whose hashes of texts differ."""
    script = (
        "import json, sys, simcluster;"
        "s = simcluster.scenario(sys.argv[1], {'faults': [{'kind': 'slow_gpu', 'rank': 5, 'factor': 1.2}]});"
        "r = simcluster.simulate(s);"
        "print(json.dumps(r.to_dict())); print(r.timeline.to_csv()); print(r.waits)"
    )
    command = [sys.executable, "-c", script, str(SMALL)]
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT)}
    there = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    here = simulate(simcluster.scenario(SMALL, {"faults": [{"kind": "slow_gpu", "rank": 5, "factor": 1.2}]}))
    assert there == f"{json.dumps(here.to_dict())}\n{here.timeline.to_csv()}\n{here.waits}\n"


# --- what must change it --------------------------------------------------------------------------------------------


def scaled_device(speed: int) -> dict[str, Any]:
    """An A100 that does everything ``speed`` times as fast."""
    device = load_device_entry("a100-80gb")
    device["peak"] = {"fp32": f"{19.5 * speed} TFLOP/s", "bf16": f"{312 * speed} TFLOP/s"}
    device["memory_bandwidth"] = f"{2 * speed} TB/s"
    device["launch"] = f"{4 / speed} us"
    return device


def test_a_cluster_twice_as_fast_takes_half_the_time(tiny: Tiny) -> None:
    """MODELLING.md H.27: every rate doubled and every latency halved; to the clock's rounding, a tick an op."""

    def run(speed: int) -> Result:
        cluster = {
            "topology": "leaf_spine_512",
            "leaves": 2,
            "gpus_per_leaf": 4,
            "spines": 2,
            "link": {"line_rate": f"{50 * speed} GB/s", "source": ""},
            "uplink": {"line_rate": f"{40 * speed} GB/s", "source": ""},
            "path_latency": f"{8 / speed} us",
            "device": scaled_device(speed),
        }
        parallel = {"tp": 2, "pp": 2, "order": ("dp", "cp", "pp", "tp")}
        overlap = {"grad_reduce": True, "tensor": True, "bucket_size": "1 MB"}
        return simulate(tiny(cluster=cluster, parallel=parallel, training={"global_batch": 8}, overlap=overlap))

    slow, fast = run(1), run(2)
    assert fast.step_time == pytest.approx(slow.step_time / 2, abs=len(slow.spans) * TICK)
    rounding = len(slow.spans) * TICK / fast.step_time
    assert rounding < 1e-4
    assert fast.mfu == pytest.approx(slow.mfu, rel=rounding)
    assert fast.times.overlap_fraction == pytest.approx(slow.times.overlap_fraction, rel=10 * rounding)
    assert fast.times.bubble_fraction == pytest.approx(slow.times.bubble_fraction, rel=10 * rounding)


@settings(max_examples=12)
@given(rates=st.lists(st.integers(1, 400), min_size=2, max_size=4, unique=True), dp=st.sampled_from([1, 2, 4]))
def test_a_faster_network_is_never_slower(tiny: Tiny, rates: list[int], dp: int) -> None:
    """One kind of link, so one bottleneck (MODELLING.md H.31)."""
    found = [
        simulate(
            tiny(
                cluster={"topology": "flat", "gpus": 4 * dp, "link": {"line_rate": f"{rate} GB/s", "source": ""}},
                parallel={"tp": 2, "pp": 2, "dp": dp},
                training={"global_batch": 4 * dp},
            )
        ).step_time
        for rate in sorted(rates)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


@settings(max_examples=6)
@given(rank=st.integers(0, 7), factors=st.lists(st.floats(1, 3), min_size=2, max_size=3, unique=True))
def test_a_slow_gpu_slows_everyone(tiny: Tiny, rank: int, factors: list[float]) -> None:
    """Monotone and convex in its factor, never faster (MODELLING.md G.2), and waited for."""
    found = [simulate(tiny(**PLAIN, faults=[{**SLOW, "rank": rank, "factor": factor}])) for factor in sorted(factors)]
    steps = [result.step_time for result in found]
    assert steps == sorted(steps)
    for result in found:
        assert result.without_faults is not None
        assert result.to_dict()["straggler_slowdown"] == result.step_time / result.without_faults
        assert result.step_time >= result.without_faults


def test_the_step_without_faults_is_played_for_who_asks(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def counted(*args: Any) -> StepRecord:
        played.append(len(args))
        return simulate_job(*args)

    monkeypatch.setattr(importlib.import_module("simcluster.step.engine_run"), "simulate_job", counted)
    result = simulate(tiny(**PLAIN, faults=[{**SLOW, "rank": 3}]), engine="compiled")
    assert result.step_time > 0
    assert len(played) == 1
    assert result.slowdown > 1
    assert len(played) == 2
    assert result.to_dict()["straggler_slowdown"] == result.slowdown
    assert len(played) == 2


@pytest.mark.parametrize("rank", [0, 5])
def test_a_slow_gpu_is_found_and_removed(tiny: Tiny, rank: int) -> None:
    result = simulate(tiny(**PLAIN, faults=[{**SLOW, "rank": rank}]))
    clean = simulate(tiny(**PLAIN))
    assert result.without_faults == clean.step_time
    assert 1.05 < result.to_dict()["straggler_slowdown"] < 1.5
    assert result.weights[rank] == 1
    assert result.times.breakdown["straggler_wait"] > 0
    assert clean.times.breakdown["straggler_wait"] == 0
    peer = rank ^ 1  # of its tp group
    assert (peer, rank) in [(wait.rank, wait.culprit) for wait in result.waits if wait.where == "group"]
    assert not [wait for wait in result.waits if (wait.rank, wait.culprit) == (rank, peer)]
    # removing it: back to one, whatever else was asked for (H.34)
    assert simulate(result.scenario.model_copy(update={"faults": ()})).to_dict()["straggler_slowdown"] == 1.0


def test_a_slow_link_slows_what_crosses_it(tiny: Tiny) -> None:
    """H.12: one link slowed by phi slows the ring's bandwidth term by phi, exactly."""

    def gradients(faults: list[dict[str, Any]]) -> float:
        table = simulate(
            tiny(
                cluster={"topology": "flat", "gpus": 8, "path_latency": "0 us"},
                parallel={"dp": 8},
                training={"global_batch": 8},
                faults=faults,
            )
        ).timeline
        return float((table["end"] - table["start"])[table["name"] == "gradients"].max())

    slow = gradients([{"kind": "slow_link", "between": ["gpu3", "switch"], "factor": 0.25}])
    assert slow == pytest.approx(4 * gradients([]), rel=1e-9)


def test_communication_that_overlaps_costs_less(tiny: Tiny) -> None:
    def run(**overlap: bool | str) -> Result:
        return simulate(tiny(**PLAIN, overlap={"bucket_size": "1 MB", **overlap}))

    plain = run(pipeline=False)
    for change in ({"pipeline": True}, {"pipeline": False, "tensor": True}, {"pipeline": False, "grad_reduce": True}):
        other = run(**change)
        assert other.step_time < plain.step_time, change
        assert other.facts == plain.facts


# --- the result -----------------------------------------------------------------------------------------------------


def test_rates_are_counts_over_the_step(tiny: Tiny) -> None:
    found = simulate(tiny(**PLAIN))
    flat = found.to_dict()
    assert flat["tokens_per_s"] * flat["step_time_s"] == pytest.approx(8 * 128, rel=1e-12)
    assert flat["tokens_per_s_per_gpu"] == pytest.approx(flat["tokens_per_s"] / 8, rel=1e-12)
    assert flat["samples_per_s"] * flat["step_time_s"] == pytest.approx(8, rel=1e-12)
    assert flat["model_tflops_per_gpu"] * 1e12 == pytest.approx(
        flat["model_flops_per_step"] / flat["step_time_s"] / 8, rel=1e-12
    )
    assert flat["mfu"] == pytest.approx(flat["model_tflops_per_gpu"] / 312, rel=1e-12)
    assert 0 < flat["mfu"] <= flat["hfu"] < 1
    assert flat["engine"]["ranks_total"] == 8
    assert flat["engine"]["ranks_simulated"] == len(found.weights) == 2
    json.dumps(flat)


def test_the_document_in_a_result_gives_the_result_again(tiny: Tiny) -> None:
    result = simulate(tiny(**PLAIN, faults=[SLOW]))
    again = simulate(Scenario.model_validate(result.to_dict()["scenario"]))
    assert again.to_dict() == result.to_dict()


@pytest.mark.parametrize(
    ("change", "part"),
    [({"cluster": {"topology": "flat", "gpus": 8, "gpus_per_host": 1}}, "crosses nodes"), ({}, None)],
)
def test_warnings(tiny: Tiny, change: dict[str, Any], part: str | None) -> None:
    found = simulate(tiny(**{**PLAIN, **change})).warnings()
    assert found == [] if part is None else part in found[0]


def test_a_model_that_does_not_fit_says_so() -> None:
    result = simulate(simcluster.scenario(GPT3, {"training.recompute": "none"}))
    assert result.to_dict()["fits"] is False
    assert "out of memory" in result.warnings()[0]
