"""Quick steps: to the bit the step times of full runs, or no number."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import counts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster import InputError, simulate
from simcluster.base.arrays import Floats
from simcluster.cli import main
from simcluster.documents.builtin_documents import builtin_names
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import EngineTables
from simcluster.results.step_metrics import METRICS
from simcluster.scenario.job_conversion import job_facts_of
from simcluster.scenario.scenario import BaseScenario, Scenario, ScenarioVariant, load
from simcluster.schedules import SCHEDULES
from simcluster.studies.sweep import step_tables
from simcluster.studies.sweep.quick_rows import make_variant_scenario, simulate_quickly
from simcluster.studies.sweep.quick_steps import quick_step_numbers, quick_step_time
from simcluster.studies.sweep.stage_network import NeedsFullRunError
from simcluster.traffic.traffic import Traffic

SMALL = {
    "model.layers": 16,
    "model.hidden_size": 1024,
    "model.heads": 16,
    "model.kv_heads": 16,
    "model.ffn_hidden_size": 4096,
}


def scenario(**changes: Any) -> Scenario:
    """A small GPT on DGX A100."""
    return load("gpt3_175b_64xa100", changes)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    nodes, tp, pp = (
        draw(st.sampled_from([1, 2, 4])),
        draw(st.sampled_from([1, 2, 4, 8])),
        draw(st.sampled_from([1, 2, 4])),
    )
    gpus = nodes * 8
    tp = min(tp, gpus // pp)
    dp = gpus // tp // pp
    schedule = draw(st.sampled_from(list(SCHEDULES) if pp > 1 else ["1f1b", "gpipe"]))
    micro, rounds = draw(st.sampled_from([1, 2])), draw(st.integers(1, 3))
    made: dict[str, Any] = {
        **SMALL,
        "cluster.nodes": nodes,
        "gpus": gpus,
        "parallel.tp": tp,
        "parallel.pp": pp,
        "parallel.dp": dp,
        "parallel.sequence_parallel": tp > 1 and draw(st.booleans()),
        "parallel.zero": draw(st.sampled_from([0, 1])),
        "pipeline.schedule": schedule,
        "pipeline.chunks": counts_of(schedule, pp)[0],
        "pipeline.scatter_gather": draw(st.booleans()),
        "training.micro_batch": micro,
        "training.global_batch": micro * dp * pp * 2 * rounds,
        "training.recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "overlap.pipeline": draw(st.booleans()),
        "overlap.tensor": draw(st.booleans()),
        "overlap.interference": draw(st.sampled_from(["none", "auto"])),
    }
    return scenario(**made)


@given(scenarios())
@settings(max_examples=30, deadline=None)
def test_quick_is_exact_or_says_that_it_is_not(made: Scenario) -> None:
    try:
        step_time = quick_step_time(made)
    except NeedsFullRunError:
        pass
    else:
        assert step_time == simulate(made).step_time


SHARED_LINKS = [  # efficiency of NICs, tp, pp, dp, schedule, chunks, sends overlapped
    (0.02, 1, 4, 8, "1f1b", 1, True),
    (0.05, 4, 4, 2, "interleaved", 2, True),
    (0.05, 2, 4, 4, "zb-v", 1, True),
    (0.05, 2, 4, 4, "zb-v", 1, False),
    (0.1, 1, 4, 8, "interleaved", 2, True),
    (0.02, 4, 4, 2, "zb-h1", 1, True),
    (0.9, 1, 8, 4, "interleaved", 2, True),
]


@pytest.mark.parametrize("case", SHARED_LINKS)
def test_transfers_that_share_links(case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick step is exact where transfers slow each other down, and they do."""
    efficiency, tp, pp, dp, schedule, chunks, overlap = case
    base = {"cluster.nodes": 4, "cluster.routing": {"kind": "static"}, "gpus": 32,
            "cluster.nic.efficiency": efficiency, "overlap.interference": "none",
            "overlap.pipeline": overlap, "parallel.sequence_parallel": False, "parallel.zero": 1,
            "parallel.tp": tp, "parallel.pp": pp, "parallel.dp": dp, "pipeline.schedule": schedule,
            "pipeline.chunks": chunks, "training.global_batch": 192, "training.micro_batch": 1}  # fmt: skip
    made = scenario(**{**SMALL, **base})
    expected = simulate(made).step_time
    assert quick_step_time(made) == expected
    simulated: list[EngineTables] = []
    ended = SimpleNamespace(lane_end=np.ones(1))
    monkeypatch.setattr(step_tables, "simulate_tables", lambda tables, *_, **__: simulated.append(tables) or ended)
    quick_step_time(made)
    shared, alone = op_ends(simulated[0]), op_ends(on_own_links(simulated[0]))
    assert (shared >= alone).all()
    assert (shared > alone).any()


def op_ends(tables: EngineTables) -> Floats:
    times = simulate_tables(tables, str, keeps_times=True).times
    assert times is not None
    return times.end


def on_own_links(tables: EngineTables) -> EngineTables:
    """The tables with no link shared."""
    capacity = tables.capacity.tolist()
    alone = [Traffic((), 0.0, 1, traffic.solo_seconds(capacity)) for traffic in tables.traffics]
    return tables._replace(traffics=tuple(alone))


INTERFERENCE = [
    {"kind": "factor", "compute": 0.1},
    {"kind": "factor", "compute": 0.1, "communication": 0.2},
    "auto",
]


@pytest.mark.parametrize("interference", INTERFERENCE)
@pytest.mark.parametrize(("tp", "overlap_tensor"), [(1, False), (4, False), (4, True)])
def test_sends_that_interfere_with_computation(interference: Any, tp: int, overlap_tensor: bool) -> None:
    changes = {"cluster.nodes": 2, "gpus": 16, "parallel.tp": tp, "parallel.pp": 4, "parallel.dp": 4 // tp,
               "parallel.sequence_parallel": tp > 1, "pipeline.schedule": "interleaved", "pipeline.chunks": 2,
               "training.global_batch": 32, "overlap.pipeline": True, "overlap.tensor": overlap_tensor}  # fmt: skip
    without = scenario(**{**SMALL, **changes, "overlap.interference": "none"})
    made = scenario(**{**SMALL, **changes, "overlap.interference": interference})
    assert quick_step_time(made) == simulate(made).step_time > simulate(without).step_time


@pytest.mark.parametrize("interference", ["none", INTERFERENCE[1]])
@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_tensor_parallel_groups_that_share_links_with_sends(schedule: str, interference: Any) -> None:
    changes = {"cluster.nodes": 8, "cluster.routing": {"kind": "static"}, "gpus": 64, "parallel.tp": 16,
               "parallel.pp": 4, "parallel.dp": 1, "pipeline.schedule": schedule, "pipeline.chunks": 1,
               "training.global_batch": 16, "overlap.tensor": True, "overlap.interference": interference}  # fmt: skip
    made = scenario(**{**SMALL, **changes})
    assert quick_step_time(made) == simulate(made).step_time


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if not SCHEDULES[name].depends_on_times])
def test_every_schedule(schedule: str, overlap: bool) -> None:
    """Fused pairs and models held more than once included."""
    changes = {"cluster.nodes": 1, "gpus": 8, "parallel.tp": 1, "parallel.pp": 4, "parallel.dp": 2,
               "pipeline.schedule": schedule, "pipeline.chunks": counts_of(schedule, 4)[0],
               "training.micro_batch": 1, "training.global_batch": 32, "parallel.sequence_parallel": False,
               "overlap.pipeline": overlap}  # fmt: skip
    made = scenario(**{**SMALL, **changes})
    assert quick_step_time(made) == simulate(made).step_time


@pytest.mark.parametrize("many", [1, 2, 3, 5, 16])
@pytest.mark.parametrize(("recompute", "parallel"), list(product(["none", "selective", "full"], [False, True])))
def test_any_number_of_layers(many: int, recompute: str, parallel: bool) -> None:
    """From two layers on each takes what the last one took."""
    changes = {"model.layers": many, "cluster.nodes": 1, "gpus": 8, "parallel.tp": 8, "parallel.pp": 1,
               "parallel.dp": 1, "pipeline.schedule": "1f1b", "pipeline.chunks": 1, "training.global_batch": 2,
               "training.recompute": recompute, "parallel.sequence_parallel": parallel,
               "overlap.interference": "none"}  # fmt: skip
    made = scenario(**{**SMALL, **changes})
    assert quick_step_time(made) == simulate(made).step_time


def test_most_of_what_is_drawn_is_quick() -> None:
    """The test above would prove nothing if quick steps were always rejected."""
    base = {"cluster.nodes": 2, "gpus": 16, "pipeline.schedule": "1f1b", "pipeline.chunks": 1,
            "training.global_batch": 32}  # fmt: skip
    splits = [
        {"parallel.tp": tp, "parallel.pp": pp, "parallel.dp": 16 // tp // pp, "parallel.sequence_parallel": tp > 1}
        for tp, pp in [(8, 2), (8, 1), (4, 2), (1, 1)]
    ]
    made = [scenario(**SMALL, **base, **split) for split in splits]
    assert all(quick_step_time(each) > 0 for each in made)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"overlap.grad_reduce": True}, "gradients are reduced during"),
        (
            {
                "overlap.grad_reduce": True,
                "pipeline.schedule": "chimera",
                "pipeline.chunks": 1,
                "parallel.tp": 8,
                "parallel.dp": 1,
            },
            "copies of stages",
        ),
        ({"parallel.zero": 3, "pipeline.schedule": "1f1b", "pipeline.chunks": 1}, "ZeRO 3"),
        ({"pipeline.p2p": "rendezvous"}, "sends wait for receives"),
        ({"steps": 2}, "several steps"),
        ({"collectives.detail": "steps"}, "step by step"),
        ({"pipeline.schedule": "zb-auto", "pipeline.chunks": 1}, "optimized for simulated times"),
        ({"faults": [{"kind": "slow_gpu", "rank": 1, "factor": 1.5}]}, "faults"),
        ({"engine": "simpy", "overlap.interference": "none"}, "the engine is reference or simpy"),
    ],
)
def test_a_scenario_out_of_scope_says_why(change: dict[str, Any], why: str) -> None:
    base = {"cluster.nodes": 2, "gpus": 16, "parallel.tp": 4, "parallel.pp": 2, "parallel.dp": 2, "pipeline.chunks": 2,
            "training.global_batch": 16}  # fmt: skip
    with pytest.raises(NeedsFullRunError, match=why):
        quick_step_time(scenario(**{**SMALL, **base, **change}))


def test_an_algorithm_that_the_scenario_does_not_use_refuses_nothing() -> None:
    """Without ZeRO nothing is scattered; what a variant with ZeRO would do is asked for all of a layout at once."""
    base = {"cluster.nodes": 1, "gpus": 6, "parallel.tp": 1, "parallel.pp": 1, "parallel.dp": 6, "pipeline.chunks": 1,
            "pipeline.schedule": "1f1b", "training.global_batch": 6, "training.micro_batch": 1,
            "collectives.reduce_scatter": "halving_doubling", "collectives.nccl": "none",
            "parallel.sequence_parallel": False}  # fmt: skip
    made = ScenarioVariant(BaseScenario("gpt3_175b_64xa100"), tuple({**SMALL, **base, "parallel.zero": 0}.items()))
    row = simulate_quickly(made)
    assert (row["status"], row["step_time_s"]) == ("ok", simulate(made.scenario()).step_time)
    sharded = ScenarioVariant(made.base, (*made.changes, ("parallel.zero", 1)))
    assert "needs a power-of-two number of ranks" in simulate_quickly(sharded)["error"]


def test_more_clusters_than_are_kept() -> None:
    base = {"gpus": 8, "parallel.tp": 8, "parallel.pp": 1, "parallel.dp": 1, "pipeline.schedule": "1f1b",
            "pipeline.chunks": 1, "training.global_batch": 4}  # fmt: skip
    for _ in range(2):
        for nodes in range(1, 11):
            made = scenario(
                **{**SMALL, **base, "cluster.nodes": nodes, "cluster.nvlink.efficiency": 0.5 + 0.04 * nodes}
            )
            assert quick_step_time(made) == simulate(made).step_time


# --- rows -------------------------------------------------------------------------------------------------------------

CHANGES = [
    {"parallel.tp": 4, "parallel.pp": 4, "parallel.dp": 4},
    {"training.recompute": "full", "pipeline.schedule": "1f1b"},
    {"overlap.interference": "none", "parallel.zero": 1},
    {"parallel.tp": 4, "parallel.pp": 4, "parallel.dp": 1, "gpus": 16},
    {"overlap.interference": {"kind": "factor", "compute": 0.1}},
]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_sections_are_the_scenario_as_read(change: dict[str, Any]) -> None:
    variant = ScenarioVariant(BaseScenario("gpt3_175b_64xa100"), tuple(change.items()))
    assert make_variant_scenario(variant) == variant.scenario()


@pytest.mark.parametrize("name", builtin_names("scenarios"))
def test_a_shipped_base_is_read_once_for_all_variants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every section made anew, the scenario is that which its file gives: nothing falls back on reading it."""
    base = load(name)
    kept = {"parallel.tp": base.parallel.tp, "pipeline.p2p": base.pipeline.p2p,
            "overlap.pipeline": base.overlap.pipeline, "training.micro_batch": base.training.micro_batch}  # fmt: skip
    variant = ScenarioVariant(BaseScenario(name), tuple(kept.items()))
    expected = variant.scenario()
    monkeypatch.setattr(
        ScenarioVariant, "scenario", lambda self: pytest.fail(f"{self.base.source} is read for each variant")
    )
    assert make_variant_scenario(variant) == expected
    assert make_variant_scenario(variant).cluster is make_variant_scenario(variant).cluster


def test_a_variant_that_cannot_be_says_what_the_full_one_says() -> None:
    variant = ScenarioVariant(BaseScenario("gpt3_175b_64xa100"), (("parallel.tp", 7),))
    with pytest.raises(InputError) as plain:
        variant.scenario()
    assert simulate_quickly(variant) == {"status": "refused", "error": str(plain.value)}


def test_numbers_are_those_of_the_result() -> None:
    variant = ScenarioVariant(
        BaseScenario("gpt3_175b_64xa100"), (("training.global_batch", 16), ("overlap.interference", "none"))
    )
    row = simulate_quickly(variant)
    full = simulate(variant.scenario()).to_dict()
    assert row["how"] == "quick"
    numbers = {name: value for name, value in row.items() if name not in ("status", "error", "how")}
    assert numbers == {name: full[name] for name in numbers}
    assert len(numbers) == sum(metric.timed for metric in METRICS.values()) == 12


@pytest.mark.usefixtures("in_this_process")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, summary = tmp_path / "rows.csv", tmp_path / "summary.json"
    command = ["sweep", "tiny_3d", "--vary", "training.micro_batch=1,2", "--vary", "overlap.grad_reduce=false,true",
               "-o", str(output), "--executor", "1", "--quick", "exact", "--json", str(summary)]  # fmt: skip
    assert main(command) == 0
    table = pd.read_csv(output, converters={"step_time_s": float})
    assert table["how"].tolist() == ["quick", "full", "quick", "full"], "gradients reduced during the backward: in full"
    for number, row in table.iterrows():
        changes = {
            "training.micro_batch": int(row["training.micro_batch"]),
            "overlap.grad_reduce": bool(row["overlap.grad_reduce"]),
        }
        assert simulate(load("tiny_3d", changes)).step_time == row["step_time_s"], number
    assert sum(json.loads(summary.read_text())["how"].values()) == 4
    assert "memory is simulated for variants simulated in full, else a planned" in capsys.readouterr().out


@pytest.mark.usefixtures("in_this_process")
def test_rows_of_different_ways_do_not_mix(tmp_path: Path) -> None:
    output = tmp_path / "rows.csv"
    command = ["sweep", "tiny_dp", "--vary", "seed=1,2", "-o", str(output), "--executor", "1",
               "--set", "overlap.grad_reduce=false"]  # fmt: skip
    assert main([*command, "--quick", "bounds"]) == 0
    assert "fits" not in pd.read_csv(output)
    assert main(command) == 0
    assert "how" not in pd.read_csv(output)


def test_bad_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "tiny_dp", "--vary", "seed=1", "-o", str(tmp_path / "x.csv"), "--quick", "soon"]) == 2
    assert "must be one of exact" in capsys.readouterr().err


def test_facts_are_kept_by_all_that_real_tokens_follow_from() -> None:
    """Variants of one cluster that differ in how documents are packed, or in the draw, share no facts."""
    data = {"documents": {"kind": "lognormal", "median": 400, "sigma": 1.5}, "packing": "pad", "mask": "none"}
    first = ScenarioVariant(BaseScenario("tiny_3d"), (("data", data),)).scenario()
    assert first.data is not None
    cut = first.model_copy(update={"data": first.data.model_copy(update={"packing": "cut"})})
    for each in (first, cut, first.model_copy(update={"seed": 5})):
        assert each.cluster is first.cluster
        found = quick_step_numbers(each, quick_step_time(each))
        assert found["real_token_fraction"] == job_facts_of(each, each.cluster.device).real
