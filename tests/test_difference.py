"""simcluster diff: causes and stages sum to the difference, saved results say the same, words say what was changed."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from hypothesis import given, settings
from test_fold import documents

import simcluster
from simcluster.cli import main
from simcluster.results.result import VERSION
from simcluster.results.result_file import read_result
from simcluster.results.step_account import WAITING_ENTRIES, StepAccount
from simcluster.step.simulate import simulate
from simcluster.studies.whatif.difference import RunDifference, explain_difference, list_changed_settings


@settings(max_examples=8)
@given(first=documents(), second=documents())
def test_every_stage_sums_to_the_difference_and_a_saved_account_is_the_same(
    tiny: Tiny, first: dict[str, Any], second: dict[str, Any]
) -> None:
    base, other = simulate(tiny(**first)), simulate(tiny(**second))
    found = explain_difference(base, other)
    assert found.seconds == pytest.approx(other.step_time - base.step_time, rel=0, abs=1e-12)
    assert sum(found.seconds_by_cause.values()) == pytest.approx(found.seconds, rel=0, abs=1e-12)
    for stage in found.seconds_by_stage:
        assert sum(stage.values()) == pytest.approx(found.seconds, rel=0, abs=1e-12)
    assert bool(found.seconds_by_stage) == (len(base.account.stages) == len(other.account.stages))
    for result in (base, other):
        assert sum(result.account.breakdown.values()) == pytest.approx(result.step_time, rel=1e-12)
        written = json.loads(json.dumps(result.to_dict()))
        again = StepAccount.from_result(written)
        assert again.to_dict() == result.account.to_dict()


def test_one_slow_stage_is_named(tiny: Tiny) -> None:
    plan: dict[str, Any] = {
        "cluster": {"topology": "flat", "gpus": 4},
        "parallel": {"pp": 4},
        "training": {"global_batch": 8, "micro_batch": 1},
        "model": {"layers": 4},
    }
    base = simulate(tiny(**plan))
    slow = simulate(tiny(**plan, faults=[{"kind": "slow_gpu", "rank": 2, "factor": 1.5}]))
    found = explain_difference(base, slow)
    own = [
        sum(seconds for name, seconds in stage.items() if name not in WAITING_ENTRIES)
        for stage in found.seconds_by_stage
    ]
    assert max(own) == own[2] > 0
    assert "The work of stage 2 changes most" in found.describe()
    assert [setting.path for setting in found.settings] == ["faults"]


@pytest.mark.parametrize("slow", [[5], [1, 4]])
def test_slow_ranks_of_a_group_are_named(tiny: Tiny, slow: list[int]) -> None:
    """One of eight tensor-parallel ranks: the causes have a part of its compute, and of the wait of all others."""
    plan: dict[str, Any] = {
        "cluster": {"topology": "flat", "gpus": 8},
        "parallel": {"tp": 8},
        "training": {"global_batch": 4},
    }
    clean = simulate(tiny(**plan))
    late = simulate(tiny(**plan, faults=[{"kind": "slow_gpu", "ranks": slow, "slowdown": 1.5}]))
    found = explain_difference(clean, late)
    assert [each.rank for each in found.slower_ranks] == slow
    work = sum(clean.times.of_rank[0].states[name] for name in ("forward", "backward", "optimizer"))
    for each in found.slower_ranks:
        assert each.own == pytest.approx(0.5 * work, rel=0.01)
        assert each.others == pytest.approx((len(slow) - 1) * each.own / 7, abs=1e-9)
    gpus = clean.scenario.cluster.built.gpus
    assert f"{'Rank' if len(slow) == 1 else 'Ranks'} {slow[0]} ({gpus[slow[0]]})" in found.describe()
    assert [each["gpu"] for each in found.to_dict()["ranks"]] == [gpus[rank] for rank in slow]
    back = explain_difference(late, clean)  # and when they are mended
    assert [each.rank for each in back.slower_ranks] == slow
    assert [each.own for each in back.slower_ranks] == [-each.own for each in found.slower_ranks]
    assert not explain_difference(
        clean, tiny(**plan, faults=[{"kind": "slow_gpu", "ranks": [*range(8)], "slowdown": 1.5}])
    ).slower_ranks


def test_in_a_notebook_each_cause_begins_where_the_one_before_ends(tiny: Tiny) -> None:
    found = explain_difference(simulate(tiny()), simulate(tiny(training={"recompute": "full", "micro_batch": 2})))
    table = next(part for part in found._repr_html_().split("<table>") if "B - A" in part)
    bars = [(float(x), float(width)) for x, width in re.findall(r'<rect x="([\d.]+)" y="0" width="([\d.]+)"', table)]
    *causes, (start, whole) = bars
    signs = [1 if sign == "+" else -1 for sign in re.findall(r'<td class="number">([+−])[^%]*?</td>', table)][:-1]
    assert len(causes) == len(signs) > 2
    level = start if found.seconds > 0 else start + whole
    for (x, width), sign in zip(causes, signs, strict=True):
        assert (x if sign > 0 else x + width) == pytest.approx(level, abs=1.5)  # of 1000; the slimmest bar has 1
        level = x + width if sign > 0 else x
    assert level == pytest.approx(start + whole if found.seconds > 0 else start, abs=1.5)


def test_settings_are_told_leaf_by_leaf() -> None:
    before = {"name": "a", "parallel": {"tp": 8, "dp": 1}, "faults": [], "measured": {"step_time": "1 s"}}
    after = {"name": "b", "parallel": {"tp": 4, "dp": 1}, "faults": [{"kind": "slow_gpu"}], "seed": 3}
    told = [(each.path, each.before, each.after) for each in list_changed_settings(before, after)]
    assert told == [("parallel.tp", 8, 4), ("faults", [], [{"kind": "slow_gpu"}]), ("seed", None, 3)]


def test_equal_runs_differ_by_nothing(tiny: Tiny) -> None:
    result = simulate(tiny())
    found = explain_difference(result, result)
    assert found.seconds == 0
    assert not any(found.seconds_by_cause.values())
    assert "exactly as long" in found.describe()


def test_some_ticks_of_the_clock_are_no_difference(tiny: Tiny) -> None:
    """Two schedules that come to the same end a tick apart."""
    base = simulate(tiny()).account
    for part, told in ((1e-11, "equal to A within a billionth"), (1e-6, "(0.0%) longer than A")):
        slower = replace(base, step_time=base.step_time * (1 + part))
        found = RunDifference(("A", "B"), base, slower, ()).describe()
        assert told in found


def saved(folder: Path, name: str, *overrides: str) -> Path:
    path = folder / name
    assert main(["run", "tiny_3d", "--json", str(path), *overrides]) == 0
    return path


def test_the_command_reads_scenarios_and_saved_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = saved(tmp_path, "a.json"), saved(tmp_path, "b.json", "training.recompute=full")
    capsys.readouterr()
    assert main(["diff", str(before), str(after), "--json", "-"]) == 0
    from_saved = json.loads(capsys.readouterr().out)
    assert main(["diff", "tiny_3d", "--training.recompute", "full", "--json", "-"]) == 0
    played = json.loads(capsys.readouterr().out)
    assert from_saved == played
    assert played["causes_s"]["recompute"] > 0
    assert [setting["path"] for setting in played["settings"]] == ["training.recompute"]
    picture = tmp_path / "why.png"
    assert main(["diff", str(before), str(after), "--waterfall", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "recomputing activations" in out
    assert "by stage" in out
    assert picture.stat().st_size > 10_000


def test_more_stages_have_no_table_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "tiny_3d", "--set", "parallel.pp=1", "--set", "parallel.dp=4"]) == 0
    assert "no table by stage: A has 2 stages, B 1" in capsys.readouterr().out


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = saved(tmp_path, "a.json")
    values = json.loads(whole.read_text())
    (tmp_path / "cut.json").write_text(whole.read_text()[:500])
    (tmp_path / "old.json").write_text(json.dumps({**values, "version": "0.0.9"}))
    (tmp_path / "torn.json").write_text(json.dumps({**values, "account": {"stages_s": 3}}))
    (tmp_path / "other.json").write_text("[1, 2]")
    (tmp_path / "deep.json").write_text("[" * 200_000)
    (tmp_path / "later.json").write_text(json.dumps({**values, "version": "9" * 5000}))
    (tmp_path / "infinite.json").write_text(whole.read_text().replace('"step_time_s": ', '"step_time_s": 1e999, "x": '))
    (tmp_path / "nan.json").write_text(json.dumps({**values, "mfu": math.nan}))
    (tmp_path / "text.json").write_text(json.dumps({**values, "step_time_s": "nan"}))
    capsys.readouterr()
    for file, words in {
        "cut.json": "is the file truncated?",
        "old.json": f"written by simcluster 0.0.9, but this is simcluster {VERSION}",
        "torn.json": "is incomplete",
        "other.json": "not a result: it has no step_time_s",
        "deep.json": "nested too deeply",
        "later.json": "999..., but this is",
        "infinite.json": "1e999 is not a valid number in a result",
        "nan.json": "NaN is not a valid number",
        "text.json": "'nan' is not a number of seconds",
        "missing.json": "no such file",
    }.items():
        assert main(["diff", str(whole), str(tmp_path / file)]) == 2, file
        message = capsys.readouterr().err
        assert words in message, file
        assert message.count("simcluster: error") == 1
    assert main(["diff", str(whole)]) == 2
    assert "a difference needs two" in capsys.readouterr().err
    assert main(["diff", str(whole), "--parallel.tp", "2"]) == 2
    assert "a saved result" in capsys.readouterr().err


def test_it_is_public(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.json")
    assert read_result(path).values["step_time_s"] == simcluster.simulate(simcluster.scenario("tiny_3d")).step_time
    assert simcluster.diff(path, "tiny_3d").seconds == 0
