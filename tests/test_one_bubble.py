"""One bubble: the breakdown's, in text, JSON, tables and the page; none without a pipeline; the schedule's beside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

import simcluster
from simcluster.cli import main
from simcluster.schedules import SCHEDULES, make_schedule
from simcluster.schedules.comparison import compute_schedule_bubble
from simcluster.step.simulate import simulate
from simcluster.studies.bench.fixed_durations import Costs, simulate_costs

FAULTS: tuple[list[dict[str, Any]], ...] = (
    [],
    [{"kind": "slow_gpu", "rank": 1, "factor": 1.5}],
    [{"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}],
    [{"kind": "host_stall", "cause": "data_loading", "seconds": "100 us"}],
)


@settings(max_examples=12)
@given(
    pp=st.sampled_from([1, 1, 2, 4]),
    dp=st.sampled_from([2, 4]),
    zero=st.integers(0, 3),
    beside=st.booleans(),
    faults=st.sampled_from(FAULTS),
    steps=st.integers(1, 2),
)
def test_it_is_the_breakdowns_and_none_without_a_pipeline(
    tiny: Tiny, pp: int, dp: int, zero: int, beside: bool, faults: list[dict[str, Any]], steps: int
) -> None:
    """bubble = bubble_fraction x step, whatever else is exposed or late: ZeRO-3 without overlap, stragglers, stalls."""
    run = simulate(
        tiny(
            cluster={"topology": "pcie_ethernet", "nodes": 2},
            gpus=pp * dp,
            parallel={"pp": pp, "zero": zero},
            training={"global_batch": 8},
            overlap={"grad_reduce": beside, "param_gather": beside and zero > 0},
            faults=faults,
            steps=steps,
        )
    )
    result = run.to_dict()
    bubble = result["breakdown_s"]["bubble"]
    assert result["bubble_fraction"] * result["step_time_s"] == pytest.approx(bubble, rel=1e-12)
    assert result["bubble_over_ideal"] * (result["step_time_s"] - bubble) == pytest.approx(bubble, rel=1e-12)
    assert (bubble > 0) == (result["schedule_bubble_fraction"] > 0) == (pp > 1)
    assert bool(result["schedule_bubble_formula"]) == (pp > 1)
    for stage in result["account"]["stages_s"]:
        assert pp > 1 or stage["bubble"] == 0


def shapes(name: str) -> tuple[int, int, int]:
    return (2, 4, 4) if name == "hanayo" else (4, 8, 2 if SCHEDULES[name].takes_chunks else 1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_pipeline_that_does_nothing_else_has_its_schedules_bubble(name: str) -> None:
    stages, microbatches, chunks = shapes(name)
    own = compute_schedule_bubble(make_schedule(name, stages, microbatches, chunks))
    costs = Costs(forward=1.0, backward=2.0, weight_grad=1.0)
    run = simulate_costs(costs, stages=stages, microbatches=microbatches, schedule=name, chunks=chunks)
    assert run.times.bubble_fraction == pytest.approx(own.fraction, abs=1e-9)
    whole = name in ("gpipe", "1f1b", "interleaved", "breadth-first")
    assert own.formula == ("" if not whole else "(P-1)/(M+P-1)" if chunks == 1 else "(P-1)/(vM+P-1)")


@settings(max_examples=30)
@given(P=st.integers(2, 6), groups=st.integers(1, 4), v=st.integers(1, 4))
def test_formulas_give_what_they_stand_beside(P: int, groups: int, v: int) -> None:
    M = groups * P
    for name in ("gpipe", "1f1b", "interleaved", "breadth-first"):
        chunks = v if SCHEDULES[name].takes_chunks else 1
        own = compute_schedule_bubble(make_schedule(name, P, M, chunks))
        assert own.fraction == pytest.approx((P - 1) / (chunks * M + P - 1), rel=1e-12)
        assert own.formula
    assert compute_schedule_bubble(make_schedule("1f1b", 1, M)) == compute_schedule_bubble(make_schedule("gpipe", 1, M))
    assert compute_schedule_bubble(make_schedule("1f1b", 1, M)).describe() == "0.0% by the schedule alone"


def test_everything_prints_the_same_bubble(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Four stages whose gradients are reduced in the middle of the pipeline, one GPU slow: text, JSON, tables, page."""
    overrides = ["parallel.zero=2", "faults=[{kind: slow_gpu, rank: 1, factor: 1.5}]"]
    options = [word for text in overrides for word in ("--set", text)]
    result = simulate(simcluster.scenario("tiny_3d", overrides))
    share = result.times.breakdown["bubble"] / result.step_time
    written = f"{share:.1%}"
    assert main(["run", "tiny_3d", *options]) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.strip().startswith("bubble ")]
    assert len(rows) == 2
    assert all(written in row for row in rows), rows
    assert f"({result.schedule_bubble.describe()})" in rows[1]
    assert main(["run", "tiny_3d", *options, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["bubble_fraction"] == pytest.approx(share, rel=1e-12)
    assert main(["compare", "tiny_3d", *options, "--csv", str(tmp_path / "table.csv")]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(result.scenario.name)]
    assert row[row.index(written) + 1] == f"{result.schedule_bubble.fraction:.1%}"  # beside it, in a column of its own
    assert pd.read_csv(tmp_path / "table.csv")["bubble_fraction"].item() == pytest.approx(share, rel=1e-12)
    assert main(["report", "tiny_3d", *options, "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"{100 * share:.1f} %" in page
    assert f"{100 * result.schedule_bubble.fraction:.1f} % by the schedule alone" in page
