"""Studies of memory: from a table's row to bytes, what is refused, and the published tables."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.evidence.validation import load_study, score_overall, validate_studies
from simcluster.evidence.validation.reports import Report
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.scenario import from_document

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("SIMCLUSTER_DATA", ROOT.parent / "shared" / "validation"))
needs_data = pytest.mark.skipif(
    not (DATA / "simumax_b200_real_runs.csv").is_file(), reason="needs the measured runs (SIMCLUSTER_DATA)"
)

BASE = """\
  cluster: {topology: flat, gpus: 2}
  model:
    {layers: 4, hidden_size: 256, heads: 8, kv_heads: 8, ffn_hidden_size: 1024, vocab_size: 1000,
     sequence_length: 128, gated_mlp: false, tied_embeddings: false}
  training: {global_batch: 4}
  parallel: {pp: 2}
"""
TINY = f"""\
kind: memory
name: tiny
source: made up
original: nowhere
table:
  header: [run, mode, all_mb, state_mb, part]
  rows:
    - [one, none, 100, 50, null]
    - [two, full, null, null, 10]
    - [nothing, none, null, null, null]
    - [odd, sometimes, 1, null, null]
scenario:
{BASE}columns: {{mode: {{path: training.recompute, values: {{none: none, full: full}}}}}}
label: [run]
measured:
  - {{column: all_mb, quantity: total, unit: MB}}
  - {{column: state_mb, quantity: model_state, unit: MB, of: mean}}
  - {{column: part, quantity: activations, unit: "%", baseline: {{training.recompute: none}}}}
aim: 0.5
"""


def study(text: str, tmp_path: Path) -> Report:
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    (report,) = validate_studies([load_study(path)])
    return report


def test_rows_become_bytes(tmp_path: Path) -> None:
    report = study(TINY, tmp_path)
    whole, state, part = report.points
    yaml = {"layers": 4, "hidden_size": 256, "heads": 8, "kv_heads": 8, "ffn_hidden_size": 1024, "vocab_size": 1000,
            "sequence_length": 128, "gated_mlp": False, "tied_embeddings": False}  # fmt: skip
    document = {"cluster": {"topology": "flat", "gpus": 2}, "model": yaml, "parallel": {"pp": 2}}
    none, full = (
        plan_footprints(from_document({**document, "training": {"global_batch": 4, "recompute": mode}}))
        for mode in ("none", "full")
    )
    assert (whole.label, whole.measured, whole.predicted) == ("one: total", 100e6, max(each.total for each in none))
    states = [each.parameters + each.gradients + each.optimizer for each in none]
    assert (state.measured, state.predicted) == (50e6, sum(states) / 2)
    fullest = [max(stages, key=lambda each: each.total).activations for stages in (none, full)]
    assert part.measured == pytest.approx(0.1 * fullest[0], rel=1e-12)
    assert part.predicted == fullest[1]
    reasons = {each.label: each.reason for each in report.refused}
    assert "nothing was measured" in reasons["nothing"]
    assert "sometimes" in reasons["odd"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('unit: "%", baseline: {training.recompute: none}', 'unit: "%"', "baseline"),
        ("column: all_mb, quantity: total, unit: MB", "column: all, quantity: total, unit: MB", "'all'"),
        ("unit: MB, of: mean", "unit: s, of: mean", "unit"),
        ("{training.recompute: none}", "{training.recomput: none}", "recompute"),
    ],
)
def test_broken_studies_say_what_is_wrong(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in TINY
    with pytest.raises(InputError, match=message):
        study(TINY.replace(old, new), tmp_path)


def test_the_command_prints_bytes_and_the_plot_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plot = tmp_path / "study.yaml", tmp_path / "plot.png"
    path.write_text(TINY, encoding="utf-8")
    assert main(["validate", str(path), "--plot", str(plot)]) == 0
    text = capsys.readouterr().out
    assert "one: total" in text
    assert "0.10 GB" in text
    assert "memory: 3 rows" in text
    assert plot.stat().st_size > 10_000
    assert main(["validate", str(path), "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["studies"][0]["parts"][0]["rows"]
    assert rows[0]["measured_bytes"] == 100e6


def test_korthikanti_meets_its_aim() -> None:
    """Figures 1 and 7 are the paper's formulas drawn; what differs here is the embedding, which they leave out."""
    (report,) = validate_studies([load_study("korthikanti_memory")])
    (part,) = report.parts
    assert len(part.points) == 16
    assert not report.refused
    assert part.score is not None
    assert part.score.mean < 0.013
    split = [point.error for point in part.points if "sequence parallel: activations" in point.label]
    assert max(map(abs, split)) < 0.006
    assert score_overall([report]).memory == part.score


def test_the_bar_of_model_state_is_18_bytes_of_12_l_h_squared() -> None:
    for layers, hidden, gpus in ((48, 6144, 8), (96, 12288, 64)):
        assert 18 * 12 * layers * hidden**2 / gpus / 2**30 == 45.5625


@needs_data
def test_simumax_meets_its_aim_and_no_constant_is_fitted() -> None:
    (report,) = validate_studies([load_study("simumax_b200")], data=DATA)
    (part,) = report.parts
    with (DATA / "simumax_b200_real_runs.csv").open(encoding="utf-8") as stream:
        assert len(part.points) == len(list(csv.DictReader(stream)))
    assert not report.refused
    assert part.role == "held out"
    assert part.score is not None
    assert part.score.mean < load_study("simumax_b200").study.aim
    errors = {point.label: abs(point.predicted / point.measured - 1) for point in part.points}
    settled = [error for label, error in errors.items() if "_cp" not in label]  # with these rows in view
    assert sum(settled) / len(settled) < 0.005
    assert max(settled) < 0.01
