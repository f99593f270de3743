"""The list of metrics: one that is registered is in the JSON, in compare, in sweeps and on the report's page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import simcluster
from simcluster.cli import main
from simcluster.results import attention
from simcluster.results.result import Result
from simcluster.results.step_metrics import (
    METRICS,
    NO_TABLES,
    Metric,
    SimulatedStep,
    TableName,
    simulated_metric,
    table_metrics,
    timed_metric,
)
from simcluster.scenario.scenario import BaseScenario, ScenarioVariant
from simcluster.show.table_cells import UNKNOWN_CELL, column_headings, format_row
from simcluster.studies.search.plan import plan
from simcluster.studies.sweep.quick_rows import simulate_quickly

SMALL = {"training.global_batch": 8}


def longest_part(step: SimulatedStep) -> float:
    return max(step.times.breakdown.values())


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> str:
    """A metric that somebody adds: one entry."""
    monkeypatch.setitem(METRICS, "longest_part_s", simulated_metric("s", longest_part, "longest part"))
    return "longest_part_s"


@pytest.fixture
def result() -> Result:
    return simcluster.simulate(simcluster.scenario("tiny_3d", SMALL))


def test_a_new_metric_is_in_the_result(registered: str, result: Result) -> None:
    assert result.to_dict()[registered] == max(result.times.breakdown.values())


def test_a_new_metric_is_in_compare(registered: str, result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    assert simcluster.compare([result])[registered].item() == max(result.times.breakdown.values())
    assert main(["compare", "tiny_dp"]) == 0
    assert "longest part" in capsys.readouterr().out.split("\n\n")[1].splitlines()[0]  # of the table's heads


def test_a_new_metric_is_in_a_sweep(registered: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = simcluster.sweep("tiny_dp", {"training.micro_batch": [1, 2]})
    assert (rows[registered] > 0).all()
    study = tmp_path / "study.yaml"
    study.write_text("scenario: tiny_dp\nvary: {training.micro_batch: [1, 2]}\n")
    assert main(["sweep", str(study), "-o", str(tmp_path / "rows.csv"), "--executor", "1"]) == 0
    assert "longest part" in capsys.readouterr().out
    assert registered in (tmp_path / "rows.csv").read_text().splitlines()[0]


def test_a_new_metric_is_in_a_plan(registered: str) -> None:
    vary = {"parallel.tp": [2], "parallel.pp": [2], "training.micro_batch": [1], "training.recompute": ["none"]}
    found = plan(simcluster.scenario("tiny_3d", SMALL), 8, top=1, vary={**vary, "pipeline.schedule": ["1f1b"]})
    assert found.best[0].to_dict(found.base)[registered] > 0


def test_a_new_metric_is_on_the_page(registered: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one.html", tmp_path / "two.html"
    saved = tmp_path / "saved.json"
    assert main(["run", "tiny_dp", "--json", str(saved)]) == 0
    assert main(["report", "tiny_dp", "-o", str(one)]) == 0
    assert main(["report", "tiny_dp", str(saved), "-o", str(two)]) == 0
    assert "longest part" in one.read_text()
    assert "longest part" in two.read_text()


def test_a_saved_result_without_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.json"
    assert main(["run", "tiny_dp", "--json", str(saved)]) == 0
    monkeypatch.setitem(METRICS, "longest_part_s", simulated_metric("s", longest_part, "longest part"))
    capsys.readouterr()
    assert main(["report", str(saved), "-o", str(tmp_path / "page.html")]) == 2
    assert "longest_part_s is None" in capsys.readouterr().err


def test_what_follows_from_the_step_time_is_in_quick_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        METRICS, "seconds_per_sample", timed_metric("s", lambda step: step.step_time / step.facts.samples)
    )
    row = simulate_quickly(ScenarioVariant(BaseScenario("gpt3_175b_64xa100"), (("overlap.interference", "none"),)))
    assert row["how"] == "quick"
    assert row["seconds_per_sample"] == pytest.approx(1 / row["samples_per_s"])
    assert set(row) - {"status", "error", "how"} == {name for name, metric in METRICS.items() if metric.timed}


# --- the list itself --------------------------------------------------------------------------------------------------

CONTRACT = (Path(__file__).parent.parent / "docs" / "CONTRACT.md").read_text()
UNITS = {"_s": ("s", "1/s"), "_bytes": ("bytes",), "_fraction": ("fraction",)}


@pytest.mark.parametrize("name", METRICS)
def test_names_end_in_their_units_as_in_the_contract(name: str) -> None:
    metric = METRICS[name]
    ending = next((ending for ending in UNITS if name.endswith(ending)), None)
    assert ending is None or metric.unit in UNITS[ending]
    assert bool(metric.columns) <= bool(metric.heading)
    row = next(line for line in CONTRACT.splitlines() if line.startswith(f"| `{name}` |"))
    assert row.split("|")[2].strip() == {"yes or no": "true/false"}.get(metric.unit, metric.unit)


def test_numbers_are_what_results_are_asked_for(result: Result) -> None:
    values = result.to_dict()
    assert {name: metric.formula(result) for name, metric in METRICS.items()} == {
        name: values[name] for name in METRICS
    }
    assert list(values)[:3] == ["step_time_s", "step_time_likely", "tokens_per_s"]
    assert json.dumps(values, allow_nan=False)


@pytest.mark.parametrize("table", ["compare", "sweep", "plan", "report"])
def test_a_row_has_a_cell_under_every_heading(table: TableName, result: Result) -> None:
    values: dict[str, Any] = result.to_dict()
    assert len(format_row(table, values)) == len(column_headings(table)) == len(table_metrics(table)) > 0
    assert UNKNOWN_CELL not in format_row(table, values)
    assert {*format_row(table, {"fits": True})} == {UNKNOWN_CELL}


def test_memory_that_does_not_fit_is_marked(result: Result) -> None:
    values = result.to_dict()
    assert not any(cell.endswith("!") for cell in format_row("compare", values))
    assert format_row("compare", {**values, "fits": False})[-1].endswith("GB !")


def test_a_metric_without_a_heading_is_in_no_table() -> None:
    assert timed_metric("s", lambda step: 0.0).columns == NO_TABLES
    assert Metric("s", lambda step: 0.0).columns == NO_TABLES


def test_a_block_without_fused_attention_reaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of another kind has no such kernel, and a run is printed without the line."""
    scenario = simcluster.scenario("tiny_dp")
    assert attention.attention_rates(scenario) is not None
    own = attention.layer_kinds(scenario.model, 0)[0]
    bare = own.block(scenario.model, attention.shape_of(scenario))
    bare = replace(bare, body=replace(bare.body, forward=(), input_grad=()))
    kind = SimpleNamespace(SQUARE=True, core_flops=own.core_flops, block=lambda model, shape: bare)
    monkeypatch.setattr(attention, "layer_kinds", lambda model, layer: (kind,))
    assert attention.attention_rates(scenario) is None
