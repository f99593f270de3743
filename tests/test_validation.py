"""Study files, formulas over their columns, tables, scores, and whole studies through the command."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simcluster
from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.documents.table_formulas import column_formula_name, parse_formula
from simcluster.evidence.validation import load_study, score_overall, validate_studies
from simcluster.evidence.validation.collective_studies import PREDICTORS, MeasuredCollective
from simcluster.evidence.validation.measured_columns import InlineTable, MeasuredCollectiveColumn, MeasuredStepColumn
from simcluster.evidence.validation.reports import Report, ScoredPoint, geometric_score, relative_score
from simcluster.evidence.validation.step_studies import MissingTable, StepTask, plan_steps, read_study_table
from simcluster.evidence.validation.study import StepStudy
from simcluster.planning.footprint import JobFacts
from simcluster.scenario.key_paths import check_key_path

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "scenarios" / "validation"
_DEFAULT_DATA = ROOT.parent / "shared" / "validation"
DATA = Path(os.environ.get("SIMCLUSTER_DATA", _DEFAULT_DATA))
needs_data = pytest.mark.skipif(
    not (DATA / "nccl_measured.csv").is_file(),
    reason="needs the measured runs: name their directory in SIMCLUSTER_DATA",
)

TINY = """\
kind: steps
name: tiny
source: made up
original: nowhere
table:
  header: [run, gpus, tp, batch, seconds]
  rows:
    - [one, 1, 1, 4, 0.001]
    - [two, 2, 2, 4, 0.002]
    - [none, 2, 2, 4, null]
    - [odd, 3, 2, 4, 0.001]
scenario:
  cluster: {topology: flat}
  model:
    {layers: 4, hidden_size: 256, heads: 8, kv_heads: 8, ffn_hidden_size: 1024, vocab_size: 1000,
     sequence_length: 128, gated_mlp: false, tied_embeddings: false}
  training: {}
columns:
  gpus: [gpus, cluster.gpus]
  tp: parallel.tp
  batch: training.global_batch
derive: {parallel.dp: gpus / tp}
label: [run, gpus]
measured: {column: seconds, quantity: step_time, unit: s}
aim: 0.5
"""

CALLS = """\
kind: collectives
name: calls
source: made up
original: nowhere
table:
  header: [set, gpu, nodes, gpus, what, size, us, busbw, algo]
  rows:
    - [good, H100, 1, 8, all_gather, 67108864, 400, null, null]
    - [good, H100, 1, 8, all_reduce, 1073741824, null, 400, null]
    - [good, H100, 1, 8, all_reduce, 1024, 20, null, null]
    - [good, H100, 1, 8, all_to_all, 1048576, 100, null, null]
    - [good, H100, 1, 8, scatter, 1048576, 100, null, null]
    - [named, H100, 1, 8, all_reduce, 1073741824, null, 360, Ring]
    - [slow, H100, 1, 8, all_reduce, 1073741824, 100000, null, null]
    - [quoted, H100, 1, 8, all_reduce, large, null, 480, null]
    - [other, MI300X, 1, 8, all_reduce, 1048576, 50, null, null]
columns: {set: set, gpu: gpu, nodes: nodes, gpus: gpus, collective: what, size: size, algorithm: algo}
measured:
  - {column: us, quantity: time, unit: us}
  - {column: busbw, quantity: bus_bandwidth, unit: GB/s}
algorithms: {Ring: ring}
platforms: {H100: dgx-h100}
sets:
  good: {fitted: [all_reduce], aim: 0.5}
  named: {algorithm: column}
  slow: {degraded: a broken cable}
  quoted: {left_out: no size}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a study file, with texts in it replaced; the path."""

    def writing(text: str, *changes: tuple[str, str], name: str = "study.yaml") -> Path:
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return writing


CELLS = {"gpus": 64, "tp": 8, "pp": 4, "mode": "full", "empty": None, "rate": 0.5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("gpus // (tp * pp)", 2),
        ("gpus / tp / pp", 2),
        ("gpus / 3 - -1 % 2", 64 / 3 - 1),
        ("max(1, gpus // 100)", 1),
        ("min(tp, pp) + ceil(rate)", 5),
        ("'interleaved' if pp > 1 else '1f1b'", "interleaved"),
        ("mode == 'full' and not tp < 4 < 2", True),
        ("mode in ('none', 'full') or empty", True),
        ("mode not in ['none']", True),
        ("0 < tp <= 8 != pp", True),
        ("empty == None", True),
        ("2.5 * 2", 5),
    ],
)
def test_formulas(text: str, value: object) -> None:
    found = parse_formula(text).evaluate(CELLS)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    ["", "gpus +", "open('x')", "gpus.real", "gpus ** 9", "[x for x in gpus]", "min()", "min(*gpus)", "lambda: 1",
     "f'{gpus}'", "gpus[0]", "1 << 9", "~gpus", "min(gpus, key=tp)", "b'x'", "gpus is None", "x := 1", "(" * 400],
)  # fmt: skip
def test_formulas_compute_and_cannot_act(text: str) -> None:
    with pytest.raises(InputError, match=r"not a formula|not allowed|at most 500"):
        parse_formula(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu + 1", "no column 'gpu'; did you mean 'gpus'"),
        ("empty + 1", "empty is empty in this row"),
        ("mode + 1", "mode is 'full', but a number is needed"),
        ("1 / (tp - 8)", "divides by tp - 8, which is 0"),
        ("mode > 1", "cannot be compared"),
        ("mode in 3", "cannot be compared"),
        ("(1, 2)", "returns a list"),
        ("tp in ((1, 2), 3)", "a list inside a list"),
    ],
)
def test_formulas_without_a_value_say_why(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace("+", r"\+")):
        parse_formula(text).evaluate(CELLS)


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9))
def test_formulas_are_pythons_arithmetic(a: int, b: int, c: int) -> None:
    text = "(a - b) * a // c + b % c - (a if a > b else b) / c"
    expected = eval(text, {}, {"a": a, "b": b, "c": c})
    assert parse_formula(text).evaluate({"a": a, "b": b, "c": c}) == expected


def test_columns_have_names_that_formulas_can_say() -> None:
    names = [column_formula_name(name) for name in ("SeqLen (T)", "# GPUs", "tp", "a-b")]
    assert names == ["SeqLen_T", "GPUs", "tp", "a_b"]
    assert parse_formula("SeqLen_T * min(tp, 2)").column_names == ("SeqLen_T", "tp")


FACTS = JobFacts(
    ranks=4, samples=8, tokens=1000, model_flops=6e15, hardware_flops=8e15, peak_flops=1e15, memory=0.0, footprints=(),
    real_flops=6e15,
)  # fmt: skip


@pytest.mark.parametrize(
    ("quantity", "unit", "flop", "value", "seconds"),
    [
        ("step_time", "ms", None, 250, 0.25),
        ("tokens_per_s", "tokens/s", None, 500, 2.0),
        ("tokens_per_s_per_gpu", "tokens/s", None, 125, 2.0),
        ("samples_per_s", "samples/s", None, 4, 2.0),
        ("flop_per_s_per_gpu", "TFLOP/s", "model", 750, 2.0),
        ("flop_per_s_per_gpu", "TFLOP/s", "hardware", 1000, 2.0),
        ("flop_per_s_per_gpu", "TFLOP/s", "batch * 1000000000000000", 500, 2.0),
        ("mfu", "%", "model", 75, 2.0),
        ("hfu", "1", "hardware", 0.5, 4.0),
    ],
)
def test_every_quantity_is_seconds_of_a_step(
    quantity: str, unit: str, flop: str | None, value: float, seconds: float
) -> None:
    measured = MeasuredStepColumn.model_validate({"column": "x", "quantity": quantity, "unit": unit, "flop": flop})
    assert measured.seconds({"x": value, "batch": 4}, FACTS) == pytest.approx(seconds, rel=1e-12)


def test_every_quantity_is_seconds_of_a_collective() -> None:
    def seconds(quantity: str, unit: str, value: float) -> float:
        measured = MeasuredCollectiveColumn.model_validate({"column": "x", "quantity": quantity, "unit": unit})
        return measured.seconds({"x": value}, "all_reduce", 8, 8e9)

    assert seconds("time", "us", 50) == pytest.approx(50e-6, rel=1e-12)
    assert seconds("algorithm_bandwidth", "GB/s", 100) == pytest.approx(0.08, rel=1e-12)
    assert seconds("bus_bandwidth", "GB/s", 175) == pytest.approx(0.08, rel=1e-12)  # x 2 (8 - 1) / 8


@pytest.mark.parametrize("cell", [None, "n/a", 0, -1, True, math.inf])
def test_what_is_no_measurement_is_said(cell: object) -> None:
    measured = MeasuredStepColumn(column="x", quantity="step_time", unit="s")
    with pytest.raises(InputError, match="column x is"):
        measured.seconds({"x": cell}, FACTS)  # type: ignore[dict-item]


def point(predicted: float, measured: float = 1.0, **more: float) -> ScoredPoint:
    return ScoredPoint("p", "g", predicted, measured, **more)


def test_scores_by_hand() -> None:
    for score, points, mean, worst, bias in (
        (relative_score, [point(1.1), point(2.4, 2.0), point(0.6)], (0.1 + 0.2 + 0.4) / 3, 0.4, (0.1 + 0.2 - 0.4) / 3),
        (geometric_score, [point(2.0), point(0.5), point(4.0)], 2 ** (4 / 3) - 1, 3.0, 2 ** (2 / 3) - 1),
    ):
        assert score([]) is None
        found = score(points)
        assert found is not None
        assert found.rows == 3
        assert (found.mean, found.worst, found.bias) == pytest.approx((mean, worst, bias), rel=1e-12)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_scores_hold_together(ratios: list[float]) -> None:
    for score in (relative_score([point(each) for each in ratios]), geometric_score([point(each) for each in ratios])):
        assert score is not None
        assert -1e-12 <= score.mean <= score.worst + 1e-9
        assert score.bias <= score.mean + 1e-9
    mirrored = geometric_score([point(1 / each) for each in ratios])
    assert mirrored is not None
    assert score is not None
    assert mirrored.mean == pytest.approx(score.mean, rel=1e-9, abs=1e-12)  # half and twice are equally wrong


@pytest.mark.parametrize(
    "path",
    ["gpus", "model.preset", "model.layers", "parallel.tensor_model_parallel_size", "cluster.topology", "cluster.nodes",
     "cluster.nic.line_rate", "training.micro_batch", "overlap.bucket_size", "faults.0.factor", "faults"],
)  # fmt: skip
def test_paths_that_a_scenario_has(path: str) -> None:
    check_key_path(path)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("model.layrs", "'layers'"),
        ("paralel.tp", "'parallel'"),
        ("cluster.node", "'nodes'"),
        ("training.micro_batch_size", "'micro_batch'"),
    ],
)
def test_paths_that_no_scenario_has(path: str, hint: str) -> None:
    with pytest.raises(InputError, match=f"{path} is not a scenario key.*{hint}"):
        check_key_path(path)


BAD = [
    (TINY, ("kind: steps", "kind: step"), ["unknown kind 'step'", "did you mean 'steps'"]),
    (TINY, ("kind: steps\n", ""), ["has no 'kind'"]),
    (TINY, ("source: made up\n", ""), ["source: is required"]),
    (
        TINY,
        ("  tp: parallel.tp", "  tp: parallel.tpp"),
        [":20:3", "parallel.tpp is not a scenario key: no 'tpp' in parallel", "did you mean 'tp'", "known: tp, pp"],
    ),
    (TINY, ("derive: {parallel.dp", "derive: {parallel.dpp"), [":22:10", "parallel.dpp is not a scenario key"]),
    (TINY, ("gpus / tp}", "gpus ** tp}"), [":22", "not allowed in a formula"]),
    (TINY, ("gpus / tp}", "gpus / tpp}"), [":22", "no column 'tpp'", "did you mean 'tp'"]),
    (TINY, ("  tp: parallel.tp", "  tpp: parallel.tp"), [":20:3", "no column 'tpp'", "did you mean 'tp'"]),
    (TINY, ("label: [run", "label: [runs"), ["label.0", "no column 'runs'"]),
    (TINY, ("column: seconds", "column: second"), ["measured.column", "did you mean 'seconds'"]),
    (TINY, ("unit: s}", "unit: h}"), ["unit 'h' does not fit quantity step_time; use s or ms"]),
    (TINY, ("quantity: step_time, unit: s", "quantity: mfu, unit: '%'"), ["mfu needs 'flop'"]),
    (
        TINY,
        ("step_time, unit: s", "tokens_per_s, unit: tokens/s, parts: [forward]"),
        ["'parts' and 'less' apply only to quantity step_time"],
    ),
    (TINY, ("step_time, unit: s", "step_time, unit: s, parts: [forwards]"), ["parts", "forwards"]),
    (TINY, ("step_time, unit: s", "step_time, unit: s, less: {model.layer: 1}"), ["less", "model.layer"]),
    (TINY, ("aim: 0.5", "aim: 0"), ["aim", "greater than 0"]),
    (TINY, ("[one, 1, 1, 4, 0.001]", "[one, 1, 1, 4]"), [":8:7", "has 4 cells", "5 columns"]),
    (TINY, ("header: [run,", "header: [tp,"), ["names 'tp' twice"]),
    (TINY, ("aim: 0.5", "where: gpus > 99"), ["where", "none of the 4 rows"]),
    (TINY, ("aim: 0.5", "where: run > 99"), ["where", "cannot be compared"]),
    (TINY, ("  tp: parallel.tp", "  tp: {values: {'1': 1}}"), ["needs either 'path'"]),
    (TINY, ("  tp: parallel.tp", "  tp: {sets: {'1': {gpus: 1}}, unit: s}"), ["need 'path'"]),
    (CALLS, ("platforms: {H100: dgx-h100}", "platforms: {H100: dgx-h10}"), ["did you mean 'dgx-h100'"]),
    (CALLS, ("set: set, gpu: gpu", "set: sett, gpu: gpu"), ["columns.set", "no column 'sett'"]),
    (CALLS, ("fitted: [all_reduce]", "fitted: [allreduce]"), ["sets.good.fitted"]),
    (CALLS, ("left_out: no size", "left_out: no size, degraded: too"), ["remove one of them"]),
    (CALLS, ("unit: us", "unit: Gbit/s"), ["measured.0", "us, ms or s"]),
]


@pytest.mark.parametrize(("text", "change", "words"), BAD, ids=range(len(BAD)))
def test_bad_studies_exit_2_and_name_the_file(
    text: str, change: tuple[str, str], words: list[str], write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = write(TINY, name="good.yaml"), write(text, change, name="bad.yaml")
    assert main(["validate", str(good), str(bad)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""  # nothing was simulated before everything was checked
    assert shown.err.startswith("simcluster: error: ")
    assert [word for word in ["bad.yaml", *words] if word not in shown.err] == [], shown.err


def test_bad_arguments(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = str(write(TINY))
    for arguments, words in (
        ([study, "--data", str(tmp_path / "nowhere")], "--data names"),
        ([study, "--workers", "0"], "--workers 0"),
        ([study, "--store", "rows"], "validation rows are no longer stored"),
        ([study, "--plot", "picture.txt"], "a picture ends in"),
        ([study, "--json", str(tmp_path)], "is a folder"),
        (["korthikanti_table"], "did you mean 'korthikanti_table5'"),
        ([str(tmp_path / "none.yaml")], "no such file"),
    ):
        assert main(["validate", *arguments]) == 2
        assert words in capsys.readouterr().err


def test_tables_outside_the_project(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SIMCLUSTER_DATA", raising=False)
    start, end = CALLS.index("table:"), CALLS.index("columns:")
    study = write(CALLS[:start] + "table: calls.csv\n" + CALLS[end:])
    assert main(["validate", str(study)]) == 2
    shown, error = capsys.readouterr()
    assert "nothing was compared: " in error
    assert "skipped: needs calls.csv: the folder of measured data is not given" in shown
    assert "skipped studies: 1, because their tables are missing" in shown
    assert main(["validate", str(study), "--data", str(tmp_path)]) == 2
    assert f"{tmp_path} has no calls.csv" in capsys.readouterr().out

    (tmp_path / "calls.csv").write_text(
        "set,gpu,nodes,gpus,what,size,us,busbw,algo\n good ,H100,1,8,all_reduce,1e6,4.0,,\n", encoding="utf-8"
    )
    rows = read_study_table(load_study(study), tmp_path)
    assert not isinstance(rows, MissingTable)
    cells = rows[0].cells
    assert cells == {
        "set": "good", "gpu": "H100", "nodes": 1, "gpus": 8, "what": "all_reduce", "size": 1_000_000, "us": 4,
        "busbw": None, "algo": None,
    }  # fmt: skip
    assert {type(cells[name]) for name in ("nodes", "size", "us")} == {int}
    monkeypatch.setenv("SIMCLUSTER_DATA", str(tmp_path))
    assert main(["validate", str(study), "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["studies"][0]["parts"][0]["rows"]) == 1
    monkeypatch.setenv("SIMCLUSTER_DATA", str(tmp_path / "gone"))
    assert main(["validate", str(study)]) == 2
    assert "SIMCLUSTER_DATA names" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("a,b\n", "has no rows"),
        ("a,b\n1\n", "row 1 has 1 cells"),
        ("a,a\n1,2\n", "names 'a' twice"),
        ('a,b\n"1,2\n', "cannot be read as a CSV file"),
    ],
)
def test_broken_csv_files(text: str, message: str, write: Write, tmp_path: Path) -> None:
    start, end = CALLS.index("table:"), CALLS.index("columns:")
    study = write(CALLS[:start] + "table: ./calls.csv\n" + CALLS[end:])
    with pytest.raises(InputError, match=r"table: there is no file .*calls\.csv"):
        read_study_table(load_study(study), None)
    (tmp_path / "calls.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"calls\.csv: .*{message}"):
        read_study_table(load_study(study), None)


def tasks_of(path: Path) -> list[StepTask | str]:
    file = load_study(path)
    rows = read_study_table(file, None)
    assert isinstance(file.study, StepStudy)
    assert not isinstance(rows, MissingTable)
    return list(plan_steps(file, file.study, rows).tasks)


def test_cells_become_changes_in_the_order_of_set_columns_derive(write: Write) -> None:
    columns = (
        "  tp: {path: parallel.tp, values: {'1': 1, '2': 4}}\n"
        "  seconds: {path: overlap.bucket_size, unit: MB}\n"
        "  run: {sets: {one: {seed: 1}, two: {seed: 2, steps: 3}, none: {}}}\n"
    )
    path = write(
        TINY,
        ("  tp: parallel.tp\n", columns),
        ("/ tp}", "/ tp, training.micro_batch: 1}"),
        ("label:", "set: {steps: 2}\nlabel:"),
    )
    one, two, none, odd = tasks_of(path)
    assert isinstance(one, StepTask)
    assert one.changes == (
        ("steps", 2), ("gpus", 1), ("cluster.gpus", 1), ("parallel.tp", 1), ("overlap.bucket_size", "0.001 MB"),
        ("seed", 1), ("training.global_batch", 4), ("parallel.dp", 1), ("training.micro_batch", 1),
    )  # fmt: skip
    assert isinstance(two, StepTask)
    assert dict(two.changes)["parallel.tp"] == 4
    assert dict(two.changes)["steps"] == 3
    assert isinstance(none, StepTask)
    assert "overlap.bucket_size" not in dict(none.changes)  # its cell is empty
    assert odd == "the study does not define the value 'odd' of column 'run'; it defines one, two or none"


def test_a_base_scenario_may_be_a_file_beside_the_study_or_one_that_ships(write: Write) -> None:
    start, end = TINY.index("scenario:"), TINY.index("columns:")
    for base, expected in (("tiny_dp", "tiny_dp"), ("../x.yaml", None)):
        path = write(TINY[:start] + f"scenario: {base}\n" + TINY[end:])
        task = tasks_of(path)[0]
        assert isinstance(task, StepTask)
        assert task.base == (expected or str(path.parent / base))


def test_a_study_of_steps_end_to_end(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(TINY)
    outputs = ["--plot", str(tmp_path / "p.png"), "--json", str(tmp_path / "p.json")]
    assert main(["validate", str(path), *outputs]) == 0
    shown = capsys.readouterr().out
    document = json.loads((tmp_path / "p.json").read_text())
    (study,), total = document["studies"], document["overall"]
    (part,) = study["parts"]
    assert [row["label"] for row in part["rows"]] == ["one, 1", "two, 2"]
    expected = simcluster.simulate(
        simcluster.scenario(load_study(path).study.scenario, tasks_of(path)[1].changes)  # type: ignore[union-attr, arg-type]
    )
    second = part["rows"][1]
    assert second["predicted_s"] == expected.step_time
    assert second["error"] == expected.step_time / 0.002 - 1
    assert math.isclose(sum(second["breakdown_s"].values()), second["predicted_s"], rel_tol=1e-9)
    errors = [abs(row["error"]) for row in part["rows"]]
    assert part["score"]["mean_error"] == pytest.approx(sum(errors) / 2, rel=1e-12)
    assert part["met"] is (sum(errors) / 2 < 0.5)
    assert total["steps"] == part["score"]
    assert [each["label"] for each in study["refused"]] == ["none, 2", "odd, 3"]
    assert "2 rows: mean absolute error" in shown
    assert "failed: none, 2: column seconds is empty; it must be a number > 0" in shown
    assert "failed: odd, 3: " in shown
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_json_alone_is_json_alone_and_the_same_each_time(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(TINY, ("aim: 0.5", "where: gpus < 3"))
    texts = []
    for workers in ("1", "2"):
        assert main(["validate", str(path), "--json", "-", "--workers", workers]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["studies"][0]["left_out"] == [{"reason": "where gpus < 3", "rows": 1}]


def test_a_study_of_collectives_end_to_end(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(CALLS)
    assert main(["validate", str(path), "--rows", "--plot", str(tmp_path / "c.svg")]) == 0
    shown = capsys.readouterr().out
    (report,) = validate_studies([load_study(path)])
    assert [(part.name, part.collective, part.role) for part in report.parts] == [
        ("good", "all_reduce", "fitted"),
        ("named", "all_reduce", "held out"),
        ("slow", "all_reduce", "degraded"),
        ("good", "all_gather", "held out"),
        ("good", "all_to_all", "held out"),
    ]
    good, named, slow, gather, exchanged = report.parts
    assert exchanged.points[0].note == "direct LL"
    assert [each.size for each in good.points] == [1024, 2**30]
    assert good.score is not None
    assert good.small is not None
    assert (good.score.rows, good.small.rows, good.aim, gather.aim) == (1, 1, 0.5, None)
    assert good.points[1].measured == pytest.approx(2**30 * 14 / 8 / 400e9, rel=1e-12)
    assert named.points[0].note.startswith("ring ")
    assert slow.score is not None
    times = 0.1 / slow.points[0].predicted
    assert f"degraded: slow, all_reduce: measured {times:.2f} x slower than expected (1 row; a broken" in shown
    assert [each.reason.split(";")[0] for each in report.refused] == [
        "the NCCL model does not know the collective 'scatter'",
        "the study has no platform for GPU 'MI300X'",
    ]
    assert report.left_out == (("quoted: no size", 1),)
    assert slow.points[0] not in report.worst_points(10)
    total = score_overall([report])
    assert total.collectives_fitted is not None
    assert total.collectives_held_out is not None
    assert (total.collectives_fitted.rows, total.collectives_held_out.rows) == (1, 3)
    assert (total.refused_rows, total.steps) == (2, None)
    assert (tmp_path / "c.svg").stat().st_size > 10_000


def test_the_predictors_agree_on_idle_links() -> None:
    from simcluster.traffic.nccl.platforms import load_platform

    for platform, nodes in (("dgx-a100", 1), ("dgx-h100", 1), ("dgx-h100", 2), ("oci-gpu4", 2)):
        call = MeasuredCollective("all_reduce", nodes, 8, 2.0**28, load_platform(platform), None)
        assert PREDICTORS["network"](call)[0] == pytest.approx(PREDICTORS["formula"](call)[0], rel=1e-6)


def test_validation_draws_only_when_asked(write: Write) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "simcluster", "validate", str(write(TINY)), "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "simpy" in done.stderr
    assert "matplotlib" not in done.stderr
    assert "pandas" not in done.stderr


@pytest.mark.parametrize(
    ("study", "table"),
    [
        ("korthikanti_table5", "korthikanti_table5_iteration_time.csv"),
        ("megatron_sc21_table1", "megatron_sc21_table1_weak_scaling.csv"),
    ],
)
def test_copied_tables_are_those_of_the_collection(study: str, table: str) -> None:
    if not (DATA / table).is_file():
        pytest.skip(f"needs {table}: name its directory in SIMCLUSTER_DATA")
    with (DATA / table).open(newline="", encoding="utf-8") as stream:
        published = list(csv.DictReader(stream))
    copied = load_study(study).study.table
    assert isinstance(copied, InlineTable)
    assert len(copied.rows) == len(published)
    columns = [name for name in copied.header if not name.startswith(("assumed_", "script_"))]
    assert set(columns) <= set(published[0])
    for ours, theirs in zip(copied.rows, published, strict=True):
        row = dict(zip(copied.header, ours, strict=True))
        assert {name: str(row[name]) for name in columns} == {name: theirs[name] for name in columns}


def test_the_formula_of_megatron_gives_the_seconds_that_others_derived_from_it() -> None:
    file = load_study("megatron_sc21_table1")
    rows = read_study_table(file, None)
    assert not isinstance(rows, MissingTable)
    for row in rows:
        flop = parse_formula(file.study.measured.flop).evaluate(row.cells_by_formula_name())  # type: ignore[union-attr, arg-type]
        seconds = float(flop) / (row.cells["gpus"] * row.cells["tflops_per_gpu"] * 1e12)  # type: ignore[operator, arg-type]
        assert seconds == pytest.approx(row.cells["derived_iter_time_s"], abs=5.1e-4)


def test_both_rows_of_korthikanti_on_8_gpus_are_played_as_their_scenarios(write: Write) -> None:
    text = (STUDIES / "korthikanti_table5.yaml").read_text(encoding="utf-8")
    base = ROOT / "scenarios" / "gpt3_175b_64xa100.yaml"
    path = write(text.replace("../gpt3_175b_64xa100.yaml", str(base)) + "where: gpus == 8\n")
    (report,) = validate_studies([load_study(path)])
    assert report.refused == ()
    full, selective = report.points
    assert (full.measured, selective.measured) == (1.42, 1.1)
    assert full.breakdown["recompute"] > selective.breakdown["recompute"] > 0  # what the paper is about
    assert full.breakdown["bubble"] == 0  # one stage
    for each in report.points:
        assert abs(each.error) < 0.2, each


@needs_data
def test_measured_collectives_meet_their_aims_where_constants_were_fitted() -> None:
    (report,) = validate_studies([load_study("nccl_measured")], data=DATA)
    aims = {part.name: part for part in report.parts if part.aim is not None}
    assert len(aims) >= 9
    for part in aims.values():
        assert part.collective == "all_reduce"
        assert part.role == "fitted"
        assert part.aim == (0.08 if "-1n" in part.name else 0.12)
        assert part.meets_aim, (part.name, part.score)
    degraded = [part for part in report.parts if part.role == "degraded"]
    assert [part.name for part in degraded] == ["H100-2n (wutz mpi-operator)"]
    assert degraded[0].score is not None
    assert degraded[0].score.bias < -0.1
    assert {part.collective for part in report.parts if part.role == "held out"} >= {"all_gather", "reduce_scatter"}


def test_a_value_in_a_set_follows_from_the_row(write: Write) -> None:
    sets = "tp: {sets: {'1': {parallel.tp: 1}, '2': {parallel.tp: 2, training.global_batch: {formula: 2 * batch}}}}"
    path = write(TINY, ("tp: parallel.tp", sets), ("derive: {parallel.dp: gpus / tp}", "set: {parallel.dp: 1}"))
    changes = [dict(task.changes) for task in tasks_of(path) if not isinstance(task, str)]
    assert [change["parallel.tp"] for change in changes] == [1, 2, 2, 2]
    path = write(TINY, ("tp: parallel.tp", sets.replace("2 * batch", "2 * batches")))
    with pytest.raises(InputError, match=r"no column 'batches'; did you mean 'batch'"):
        tasks_of(path)


def test_studies_are_told_as_soon_as_they_are_there(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run once, though three rows ask for it; what was scored before an interrupt was reported."""
    twice = ("[two, 2, 2, 4, 0.002]", "[two, 2, 2, 4, 0.002]\n    - [two, 2, 2, 4, 0.003]")
    files = [
        load_study(write(TINY, ("name: tiny", f"name: {name}"), twice, name=f"{name}.yaml")) for name in ("a", "b")
    ]
    whole, played, told, answer = validate_studies(files), [], [], StepTask.simulate

    def counted(task: StepTask) -> object:
        played.append(task)
        if len(played) == 5:
            raise KeyboardInterrupt
        return answer(task)

    monkeypatch.setattr(StepTask, "simulate", counted)
    ended: list[Report] = []
    with pytest.raises(KeyboardInterrupt):
        validate_studies(files, ended=ended.append, progress=lambda *each: told.append(each))
    assert [report.to_dict() for report in ended] == [whole[0].to_dict()]
    assert told == [("a", 1, 3), ("a", 2, 3), ("a", 3, 3), ("b", 1, 3)]
    assert len(whole[0].points) == 3
