"""Logs of runs and of people: read, written, and replayed as they were and under another policy."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simcluster
from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.documents.yaml_documents import parse_document
from simcluster.longrun.checkpoint_pattern import CheckpointPattern, SnapshotCost
from simcluster.longrun.closed_forms import poisson_interval
from simcluster.longrun.event_log import (
    COLUMNS,
    EventLog,
    LoggedFailure,
    event_log_from_rows,
    parse_column_names,
    read_event_log,
    read_log_rows,
)
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.events.run_record import RunLogRow
from simcluster.longrun.long_run import DefectiveBatch, FailureMode, LongRun, Maintenance, RestartPhase, SpareNodes
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.logged_failures import exposed_seconds_of_log, fit_scenario_log, replace_failures_by_log
from simcluster.longrun.studies.training import TrainingRun, train
from simcluster.scenario.run_section import RunSpec
from simcluster.scenario.run_times import ExponentialTime, FixedTime, LognormalTime
from simcluster.scenario.scenario import Scenario, load

RUN: dict[str, Any] = {
    "days": "21 d",
    "failures": [
        {"name": "machine", "of": "host", "count": 400, "within": "54 d",
         "repair": {"kind": "exponential", "mean": "6 h"}},
        {"name": "hot", "effect": "slow", "count": 40, "within": "54 d", "by": [1.2], "lasts": "3 h"},
        {"name": "flap", "of": "nic", "effect": "pause", "count": 60, "within": "54 d", "lasts": "2 min"},
    ],
    "checkpoint": {"stall": "20 s", "every": "1 h"},
    "restart": [{"part": "stop", "takes": "1 min", "exposed": False}, {"part": "warm up", "takes": "4 min"}],
    "spares": {"warm": 20},
    "maintenance": {"every": "3 d", "lasts": "30 min"},
}  # fmt: skip


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load("tiny_dp", {"run": RUN})


@pytest.fixture(scope="module")
def training(scenario: Scenario) -> TrainingRun:
    return train(scenario, played=20)


@pytest.fixture(scope="module")
def files(training: TrainingRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenario and its log, as commands write and read them."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "own.yaml").write_text(json.dumps(training.scenario.document()))
    training.log.to_csv(folder / "log.csv", index=False)
    training.log.to_parquet(folder / "log.parquet", index=False)
    training.incidents.to_csv(folder / "incidents.csv", index=False)
    return folder


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_what_train_writes_is_replayed_as_it_is(
    name: str, scenario: Scenario, training: TrainingRun, files: Path
) -> None:
    """Run 0 is the logged one again, second by second; the log alone says so, too."""
    again = simcluster.replay_failures(scenario, files / name, played=3)
    first, own = again.as_it_was.outcomes, training.outcomes
    assert first.wall[0] == pytest.approx(own.wall[0], abs=1e-6)
    np.testing.assert_allclose(first.fates[0], own.fates[0], rtol=0, atol=1e-6)
    assert (first.strikes == own.strikes[0]).all()  # in every run
    assert again.measures_of_log["goodput"] == pytest.approx(
        own.seconds_by_category()["productive"][0] / own.wall[0], rel=1e-9
    )
    assert again.measures_of_log["steps"] == pytest.approx(own.steps[0], rel=1e-9)
    for fate in ("detection", "waiting", "restart", "maintenance", "pause"):
        assert again.measures_of_log[f"{fate}_h"] == pytest.approx(own.seconds_by_category()[fate][0] / 3600, abs=1e-9)
    assert again.what_if is None
    assert again.table["difference"].isna().all()


def test_what_people_log_is_replayed_nearly_so(scenario: Scenario, training: TrainingRun, files: Path) -> None:
    """Incidents alone: the same strikes, and nearly the same seconds in which the job stood."""
    again = simcluster.replay_failures(scenario, files / "incidents.csv", played=50)
    assert (again.as_it_was.outcomes.strikes == training.outcomes.strikes[0]).all()
    stood = sum(
        training.outcomes.seconds_by_category()[fate][0]
        for fate in ("detection", "waiting", "restart", "maintenance", "pause")
    )
    assert again.measures_of_log["stood_h"] == pytest.approx(stood / 3600, rel=0.02)
    own = training.outcomes.seconds_by_category()["productive"][0] / training.outcomes.wall[0]
    assert again.as_it_was.goodput == pytest.approx(own, abs=0.004)


def test_a_what_if_is_the_same_strikes_under_another_policy(scenario: Scenario, files: Path) -> None:
    """A restart that takes nine minutes more costs as much at each outage; runs of so many steps end as much later."""
    base = load("tiny_dp", {"run": {**RUN, "days": None, "steps": 20_000_000, "spares": {"unlimited": True}}})
    longer = [{"part": "stop", "takes": "10 min", "exposed": False}, RUN["restart"][1]]
    incidents = EventLog(tuple(LoggedFailure(7000.0 * n, "machine", lasts=400.0) for n in range(1, 40)))
    found = simcluster.replay_failures(base, incidents, {"run.restart": longer, "run.played": 5})
    row = found.table.loc["restart_h"]
    assert found.changes == {"run.restart": longer}
    assert row["difference"] == pytest.approx(540 / 3600 * found.table.loc["outages", "as_it_was"], rel=0.03)
    assert found.table.loc["strikes", "what_if"] == 39
    assert "With the same failures the change is worth +" in found.summary()
    assert found.to_dict()["measures"][0]["measure"] == "days"


def test_names_of_columns_and_dates_are_those_of_the_file(tmp_path: Path) -> None:
    plain, named = tmp_path / "plain.csv", tmp_path / "slurm.csv"
    plain.write_text("time,cause,device,lasts\n5 h,machine,n7,20 min\n34 h,flap,n9,60\n")
    named.write_text(
        "# sacct\nStart,End,Reason,NodeList\n2024-07-01 05:00:00,2024-07-01T05:20:00,machine,n7\n"
        "2024-07-02T10:00:00Z,2024-07-02 10:01:00,flap,n9\n"
    )
    columns = parse_column_names("time=Start, end=End,cause=Reason,device=NodeList")
    assert read_event_log(named, columns=columns, began="2024-07-01") == read_event_log(plain)
    assert read_event_log(plain).end == 34 * 3600 + 60


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("time,cause\n1 h,machin\n", [], "'machin'; did you mean 'machine'"),
        ("time,cause\n1 h,machine\nx,machine\n", [], "row 2: time: 'x'"),
        ("time,cause\n1e999,machine\n", [], "row 1: time: inf is not a time"),
        ("time,cause,end\n2 h,machine,1 h\n", [], "row 1: end: '1 h' is before its time"),
        ("begin_s,end_s,what,cause,which,at_s\n0,1,strike,,,0\n", [], "row 1: a failure needs a cause"),
        ("begin_s,end_s,what,cause,which,at_s\n2,1,training,,,0\n", [], "row 1: end_s: 1.0 is before"),
        ("begin_s\n2\n", [], "row 1: has no end_s, what, cause"),
        ("when,cause\n1 h,machine\n", [], "needs a time and a cause"),
        ("when,cause\n1 h,machine\n", ["--columns", "time=whn"], "no column 'whn'; did you mean 'when'"),
        ("when,cause\n1 h,machine\n", ["--columns", "tim=when"], "unknown column 'tim'; did you mean 'time'"),
        ("when,cause\n1 h,machine\n", ["--columns", "time"], "'time' is not a pair"),
        ("time,cause\n2024-07-01,machine\n", [], "row 1: time: '2024-07-01' is a date; set when"),
        ("time,cause\n2024-07-01,machine\n", ["--began", "2024-08-01"], "is before the start of the job, 2024-08-01"),
        ("time,cause\n2024-99-01,machine\n", ["--began", "2024-08-01"], "'2024-99-01' is not a date"),
        ("time,cause\n1 h,machine\n", ["--began", "soon"], "--began: 'soon' is not a date"),
        ("time,cause\n1 h,machine\n", ["--run.restart", "7"], "run.restart"),
        ("time,cause\n", [], "has no rows"),
    ],
)  # fmt: skip
def test_junk_is_one_message(
    text: str, more: list[str], words: str, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.csv").write_text(text)
    assert cli.main(["train", str(files / "own.yaml"), "--replay", str(tmp_path / "log.csv"), *more]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("simcluster: error: ")
    assert words in captured.err
    assert not captured.out


def test_the_command_says_both_and_what_the_change_is_worth(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, log = str(files / "own.yaml"), str(files / "log.csv")
    argv = ["train", own, "--replay", log, "--run.checkpoint.every", "10 min", "--played", "10", "--json", "-"]
    assert cli.main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["what_if"] == {"run.checkpoint.every": "10 min"}
    rows = {row["measure"]: row for row in found["measures"]}
    assert rows["lost_h"]["difference"] < 0 < rows["checkpoint_h"]["difference"]
    assert rows["goodput"]["difference"] == pytest.approx(rows["goodput"]["what_if"] - rows["goodput"]["as_it_was"])
    assert rows["goodput"]["half_width"] < 0.01
    assert cli.main([*argv[:-2], "--fates", str(files / "fates.png"), "--verbose"]) == 0
    said = capsys.readouterr().out
    for words in (
        "simulated again: ",
        "what if      run.checkpoint.every = 10 min",
        "as it was",
        "points of goodput, ",
    ):
        assert words in said
    assert (files / "fates.png").stat().st_size > 10_000
    assert cli.main(["train", own, "--columns", "time=x"]) == 2
    with pytest.raises(InputError, match="no built-in log; did you mean 'simulated_54_days'"):
        simcluster.replay_failures(own, "simulated_54_day")


# --- fitted -----------------------------------------------------------------------------------------------------------


def test_rates_are_of_the_time_in_which_the_job_was_exposed(
    scenario: Scenario, training: TrainingRun, files: Path
) -> None:
    """From its own log to the second; from incidents nearly so."""
    spent, parts = training.outcomes.seconds_by_category(), training.outcomes.parts[0]
    trained = training.outcomes.wall[0] - sum(
        spent[fate][0] for fate in ("detection", "waiting", "restart", "pause", "maintenance")
    )
    for name, near in (("log.csv", 1e-9), ("incidents.csv", 0.01)):
        fits = {fit.cause: fit for fit in fit_scenario_log(scenario, read_log_rows(files / name), "log").causes}
        assert fits["machine"].count == training.outcomes.strikes[0, 0]
        assert fits["machine"].watched == pytest.approx(trained + parts[1], rel=near)  # and in the exposed part
        assert fits["flap"].watched == pytest.approx(trained, rel=near)


def test_the_section_is_that_of_the_scenario_with_other_rates(
    scenario: Scenario, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, written = str(files / "own.yaml"), files / "fitted.yaml"
    assert cli.main(["failures", str(files / "log.csv"), "--scenario", own, "-o", str(written)]) == 0
    assert "the job was exposed to stops for" in capsys.readouterr().out
    section = parse_document(written.read_text(), source="fitted.yaml").data
    found = {each.name: each for each in RunSpec.model_validate({"days": "21 d", **section}).failures.also}
    assert scenario.run is not None
    for spec in scenario.run.failures.also:
        again = found[spec.name]
        assert (again.of, again.effect, again.by, again.repair) == (spec.of, spec.effect, spec.by, spec.repair)
        assert again.job_failure_rate(1, 1, scenario.gpus) == pytest.approx(
            spec.job_failure_rate(1, 1, scenario.gpus), rel=0.6
        )
    assert cli.main(["failures", str(files / "log.csv")]) == 2
    assert " is the log of a simulated run; name its scenario with --scenario" in capsys.readouterr().err


def test_intervals_hold_the_true_rate_as_often_as_they_say(scenario: Scenario, training: TrainingRun) -> None:
    """Of 72 intervals at 95 %, of the logs of 24 runs, about four miss it; ten would be one time in 200."""
    run, missed = training.run, 0
    for number in range(24):
        rows = simulate_with_log(run, scenario.seed, number)[1]
        log = event_log_from_rows(rows)
        counts = Counter(each.cause for each in log.failures)
        for cause in run.causes:
            low, high = poisson_interval(counts[cause.name])
            missed += not low <= cause.rate * exposed_seconds_of_log(run, log, log.end, stops=cause.stops_job) <= high
    assert missed < 10


DAY = 86400.0


def write_log(path: Path, rows: Sequence[RunLogRow]) -> None:
    """Write a log as .csv or .jsonl, a line per row."""
    if path.suffix == ".csv":
        lines = [COLUMNS, *([repr(float(x)) if isinstance(x, float) else x for x in row] for row in rows)]
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
    else:
        path.write_text("".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows))


HOURS = ExponentialTime(kind="exponential", mean="6 h")
MINUTE = FixedTime(seconds="1 min")
LOAD = LognormalTime(kind="lognormal", median="4 min", sigma=0.5)


def run_of(restart: tuple[RestartPhase, ...] | None = None, **changed: object) -> LongRun:
    """Days with one cause of every effect, spares that run out, and planned work."""
    causes = (
        FailureMode(
            "gpu", "stop", 1 / 12000, 64, detect=MINUTE, repair=HOURS, defective_batch=DefectiveBatch(4, 5.0, 0.5)
        ),
        FailureMode("host", "stop", 1 / 40000, 8, detect=LOAD, repair=HOURS, survives=1),
        FailureMode("heat", "slow", 1 / 20000, 64, lasts=LOAD, shares=(0.5, 0.5), paces=np.array([[1.1], [1.5]])),
        FailureMode("flap", "pause", 1 / 20000, lasts=MINUTE),
        FailureMode("corrupt", "silent", 1 / 150000, lasts=LOAD),
        FailureMode("false alarm", "alarm", 1 / 50000, repair=HOURS),
    )
    parts = (RestartPhase("stop", MINUTE, MINUTE, False), RestartPhase("load", LOAD, LOAD))
    pattern = CheckpointPattern(13.7, 80, SnapshotCost(5.0, 60.0, 0.02), SnapshotCost(1.0), 4, keep=3)
    made = LongRun(
        pattern, causes, 16, 128, goal=20_000, restart=parts if restart is None else restart,
        spares=SpareNodes(1, 1, 2, (0.0, 100.0, 1000.0), crews=2), maintenance=Maintenance(DAY, 600.0), timeout=100.0,
        straggler="checkpoint", misdiagnosis_share=0.1,
    )  # fmt: skip
    return replace(made, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_log_that_was_written_is_played_again_alike(tmp_path: Path, ending: str) -> None:
    played, rows = simulate_with_log(run_of(), seed=55)
    write_log(tmp_path / f"log.{ending}", rows)
    log = read_event_log(tmp_path / f"log.{ending}")
    assert log == event_log_from_rows(rows)
    again = replace_failures_by_log(run_of(), log)
    for same in (simulate_with_log(again, seed=55)[0], simulate_runs(again, 55, 2)):
        assert same.wall[0] == pytest.approx(played.wall[0], abs=1e-6)
        assert (same.strikes[0] == played.strikes[0]).all()
        np.testing.assert_allclose(same.fates[0], played.fates[0], rtol=0, atol=1e-6)
    assert played.strikes.min() > 0  # of every effect


def test_what_if_a_restart_took_half_as_long() -> None:
    """The same strikes: what comes of it is half of the restarts, and nothing else where nothing else is drawn."""
    plain = {
        "causes": run_of().causes[:1],
        "spares": SpareNodes(unlimited=True),
        "maintenance": None,
        "misdiagnosis_share": 0.0,
    }
    long, short = (FixedTime(seconds=text) for text in ("20 min", "10 min"))
    run = run_of((RestartPhase("all", long, long, False),), **plain)
    played, rows = simulate_with_log(run, seed=3)
    half = simulate_with_log(
        replace_failures_by_log(
            run_of((RestartPhase("all", short, short, False),), **plain), event_log_from_rows(rows)
        ),
        seed=9,
    )[0]
    count = int(played.strikes.sum())
    assert half.strikes.sum() == count > 15
    assert played.wall[0] - half.wall[0] == pytest.approx(600 * count, abs=1e-6)


def test_a_real_log_strikes_when_it_says(tmp_path: Path) -> None:
    """Times count while the job is exposed; what struck while it stood strikes as it goes on, in order."""
    path = tmp_path / "real.csv"
    path.write_text("time,cause,lasts\n10 h,gpu,30 min\n1 h,gpu,30 min\n3600,flap,42 s\n10.2 h,host,\n12 h,flap,\n")
    log = read_event_log(path)
    assert [each.cause for each in log.failures] == ["gpu", "flap", "gpu", "host", "flap"]
    run = replace_failures_by_log(run_of(), log)
    struck = {cause.name: cause.failure_log for cause in run.causes}
    loaded = 34200.0 + LOAD.mean  # of the half hour in which it stood, in which it could fail again
    assert struck["gpu"].at == pytest.approx((3600.0, loaded))  # type: ignore[union-attr]
    assert struck["flap"].at[0] == pytest.approx(3600.001)  # type: ignore[union-attr]
    assert struck["flap"].recorded_duration(0) == 42.0  # type: ignore[union-attr]
    assert struck["host"].at == pytest.approx((loaded + 1e-3,))  # type: ignore[union-attr]
    one, many = simulate_with_log(run, 0)[0], simulate_runs(run, 0, 300)
    assert one.strikes[0].tolist() == [2, 1, 0, 2, 0, 0]
    assert (many.strikes == one.strikes).all()  # all runs of them, whatever their restarts take
    assert many.wall[0] == pytest.approx(one.wall[0], abs=1e-6)
    assert many.wall.std() > 1


def test_bad_logs_are_one_message(tmp_path: Path) -> None:
    def refused(name: str, text: str, words: str) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=words):
            replace_failures_by_log(run_of(), read_event_log(tmp_path / name))

    refused("b.csv", "time,cause\n1 h,maintenance\n", "no failure")
    refused("f.jsonl", "{\n", "f.jsonl:1: is not a JSON")
    refused("g.jsonl", "[1]\n", "is not a JSON object")
    refused("h.jsonl", "\n", "has no rows")
    refused("i.jsonl", '{"begin_s": 0}\n', "has no end_s")
    with pytest.raises(InputError, match="no such file"):
        read_event_log(tmp_path / "none.csv")
    assert replace_failures_by_log(run_of(), EventLog((LoggedFailure(5.0, "gpu"),))).causes[0].failure_log is not None
