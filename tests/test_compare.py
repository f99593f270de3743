"""Variants side by side: the table, its attribution, the command; and what ``run`` writes."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pandas as pd
import pytest

import simcluster
from simcluster.cli import main
from simcluster.results.rank_time import BREAKDOWN
from simcluster.results.result import flatten_result
from simcluster.results.result_file import OLDER_NAMES
from simcluster.studies.variations import make_variant_scenarios, subtract_first_breakdown

EXACT = {"step_time_s": lambda cell: float(cell or "nan")}
"""pandas before 3 reads numbers of a CSV file a bit off by itself."""


def test_the_difference_is_attributed_to_the_last_picosecond() -> None:
    vary = [("parallel.zero", [0, 1]), ("training.recompute", ["none", "full"])]
    scenarios = make_variant_scenarios("tiny_3d", (), vary)
    assert list(scenarios) == [
        "zero 0, recompute none",
        "zero 0, recompute full",
        "zero 1, recompute none",
        "zero 1, recompute full",
    ]
    table = simcluster.compare(list(scenarios.values()), list(scenarios))
    assert table["difference_s"].iloc[0] == 0
    assert (table[list(BREAKDOWN)].sum(axis=1) - table["step_time_s"]).abs().max() < 1e-12
    assert (subtract_first_breakdown(table).sum(axis=1) - table["difference_s"]).abs().max() < 1e-12
    assert (
        subtract_first_breakdown(table)["recompute"].iloc[1] > 0 == subtract_first_breakdown(table)["recompute"].iloc[2]
    )


def test_columns_are_keys_of_the_result_json_and_older_names_are_understood() -> None:
    result = simcluster.simulate("tiny_3d")
    compared = simcluster.compare([result, "tiny_dp"])
    swept = simcluster.sweep("tiny_3d", {"seed": [result.scenario.seed]})
    keys = set(flatten_result(result.to_dict()))
    assert keys - set(compared.columns) <= {"step_time_s"} | keys - set(swept.columns)
    for table in (compared, swept):
        assert not set(OLDER_NAMES) & set(table.columns)
        for old, name in OLDER_NAMES.items():
            assert table[old].equals(table[name].rename(old))
            assert table[old].iloc[0] == flatten_result(result.to_dict())[name]
        assert list(table[["step_time_s", "bubble"]].columns) == ["step_time_s", "bubble"]
        assert table.exposed_tp.equals(table["exposed_tp"])
        assert pickle.loads(pickle.dumps(table))["memory"].equals(table["memory"])
        with pytest.raises(KeyError, match="bubbles"):
            table["bubbles"]


def test_results_paths_and_scenarios_may_be_mixed() -> None:
    scenario = simcluster.scenario("tiny_dp")
    table = simcluster.compare([scenario, simcluster.simulate(scenario), "tiny_dp"])
    assert table["step_time_s"].nunique() == 1
    assert table.index.is_unique


def test_nothing_to_compare_and_names_that_do_not_match() -> None:
    with pytest.raises(simcluster.InputError, match="nothing to compare"):
        simcluster.compare([])
    with pytest.raises(simcluster.InputError, match="1 variants but 2 names; give 1 names"):
        simcluster.compare(["tiny_dp"], ["a", "b"])


def test_varied_faults_stand_in_labels_in_the_words_of_a_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    vary = ["tiny_3d", "--vary", "faults=[],[{kind: slow_link, nic_of: 0, speed: 0.5}]"]
    assert main(["compare", *vary]) == 0
    assert main(["sweep", *vary, "-o", str(tmp_path / "rows.csv"), "--executor", "1"]) == 0
    printed = capsys.readouterr().out + (tmp_path / "rows.csv").read_text()
    assert "slow link, nic of 0, speed 0.5" in printed
    assert "\nno faults  " in printed
    assert "{'" not in printed
    assert "[]" not in printed


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "tiny_3d", "--vary", "training.recompute=none,full"]
    outputs = ["--gantt", str(tmp_path / "c.png"), "--csv", str(tmp_path / "c.csv"), "--json", str(tmp_path / "c.json")]
    assert main([*arguments, *outputs]) == 0
    shown = capsys.readouterr().out
    assert "recompute none" in shown
    assert "causes of the difference from 'recompute none'" in shown
    rows = json.loads((tmp_path / "c.json").read_text())
    assert [row["variant"] for row in rows] == ["recompute none", "recompute full"]
    assert all(row["bubble"] == row["breakdown_s.bubble"] for row in rows)
    assert pd.read_csv(tmp_path / "c.csv", converters=EXACT)["step_time_s"].tolist() == [
        row["step_time_s"] for row in rows
    ]
    assert (tmp_path / "c.png").stat().st_size > 10_000


def test_a_variant_that_cannot_be_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In text, JSON and CSV, with the reason; pictures and differences are of the others."""
    arguments = ["compare", "tiny_3d", "--set", "parallel.dp=null", "--vary", "parallel.tp=3,2,4"]
    outputs = ["--gantt", str(tmp_path / "c.png"), "--csv", str(tmp_path / "c.csv"), "--json", str(tmp_path / "c.json")]
    assert main([*arguments, *outputs]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^tp 3 +refused$", shown, re.MULTILINE)
    assert re.search(r"^  tp 3: .*parallel\.tp: tp 3 does not divide model\.heads", shown, re.MULTILINE)
    assert "causes of the difference from 'tp 2'" in shown
    rows = json.loads((tmp_path / "c.json").read_text())
    assert [(row["variant"], row["status"]) for row in rows] == [("tp 3", "refused"), ("tp 2", "ok"), ("tp 4", "ok")]
    assert "tp 3 does not divide" in rows[0]["error"]
    assert set(rows[0]) == {"variant", "status", "error"}
    table = pd.read_csv(tmp_path / "c.csv", converters=EXACT)
    assert table["status"].tolist() == ["refused", "ok", "ok"]
    assert table["step_time_s"].tolist()[1:] == [row["step_time_s"] for row in rows[1:]]
    assert main(["report", *arguments[1:], "-o", str(tmp_path / "r.html")]) == 0
    captured = capsys.readouterr()
    assert "2 of 3 variants" in captured.out
    assert "note: tp 3 is invalid: " in captured.err


def test_variants_of_which_none_can_be_are_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command in (["compare"], ["report", "-o", str(tmp_path / "r.html")]):
        assert main([command[0], "tiny_3d", "--vary", "parallel.tp=3,5", *command[1:]]) == 2
        assert "tp 3 does not divide" in capsys.readouterr().err


def test_a_table_with_another_ending_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    assert main(["compare", "tiny_3d", "tiny_dp", "--csv", str(path)]) == 2
    assert f"cannot write {path}: a table ends in .csv or .parquet" in capsys.readouterr().err
    assert not path.exists()


def test_run_writes_what_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {option: str(tmp_path / name) for option, name in (
        ("--timeline", "t.csv"), ("--links", "l.csv"), ("--gantt", "g.svg"), ("--json", "r.json"))}  # fmt: skip
    assert main(["run", "tiny_3d", *(word for pair in names.items() for word in pair)]) == 0
    assert "where the step time went" in capsys.readouterr().out
    result = simcluster.simulate(simcluster.scenario("tiny_3d"))
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(json.dumps(result.to_dict()))
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "t.csv", keep_default_na=False), result.timeline, check_dtype=False
    )
    assert main(["run", "tiny_3d", "--timeline", str(tmp_path / "t.parquet")]) == 0
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), result.timeline, check_dtype=False)
    assert len(pd.read_csv(tmp_path / "l.csv")) > 0
    assert (tmp_path / "g.svg").read_text().startswith("<?xml")


def test_run_draws_a_window_of_some_ranks(tmp_path: Path) -> None:
    picture = tmp_path / "g.png"
    assert main(["run", "tiny_3d", "--gantt", str(picture), "--window", "1 ms:3 ms", "--ranks", "0,3"]) == 0
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--window", "3 ms:1 ms"], ["after the start"]),
        (["--window", "3 ms"], ["a start and an end"]),
        (["--window", "1:2"], ["seconds"]),
        (["--ranks", "0,99"], ["no rank 99"]),
        (["--ranks", "first"], ["whole numbers"]),
        (["--gantt", "nowhere/x.png"], ["does not exist"]),
        (["--gantt", "x.bmp"], [".png"]),
        (["--timeline", "x.txt"], [".csv or .parquet"]),
        (["--json", "nowhere/x.json"], ["does not exist"]),
        (["--links", "x.bmp"], [".png"]),
        (["--set", "parallel.tpp=2"], ["tpp", "tp"]),
        (["collectives.all_reduce=rong"], ["ring", "rong"]),
    ],
)
def test_bad_arguments_are_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    assert main(["run", "tiny_3d", *arguments]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.startswith("simcluster: error: ")
    assert all(word in shown.err for word in words), shown.err


def test_the_versions_agree() -> None:
    import tomllib

    from simcluster.results.result import VERSION

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]  # the one source: nowhere is it written twice
    source = project["tool"]["hatch"]["version"]["path"]
    assert f'VERSION = "{VERSION}"' in (Path(__file__).parents[1] / source).read_text(encoding="utf-8")
    assert simcluster.__version__ == VERSION
