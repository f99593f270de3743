"""A run's log: written and read to the bit, and played again as failures that strike at given times, with what-ifs."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simcluster.base.errors import InputError
from simcluster.longrun.eventlog import COLUMNS, EventLog, Incident, log_of, read_log
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.events.record import RunRow
from simcluster.longrun.pattern import CheckpointPattern, Saving
from simcluster.longrun.run import Bad, FailureMode, LongRun, Maintenance, Part, Spares
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.replayed import replay_log
from simcluster.scenario.run_times import ExponentialTime, FixedTime, LognormalTime

DAY = 86400.0


def write_log(path: Path, rows: Sequence[RunRow]) -> None:
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


def run_of(restart: tuple[Part, ...] | None = None, **changed: object) -> LongRun:
    """Days with one cause of every effect, spares that run out, and planned work."""
    causes = (
        FailureMode("gpu", "stop", 1 / 12000, 64, detect=MINUTE, repair=HOURS, bad=Bad(4, 5.0, 0.5)),
        FailureMode("host", "stop", 1 / 40000, 8, detect=LOAD, repair=HOURS, survives=1),
        FailureMode("heat", "slow", 1 / 20000, 64, lasts=LOAD, shares=(0.5, 0.5), paces=np.array([[1.1], [1.5]])),
        FailureMode("flap", "pause", 1 / 20000, lasts=MINUTE),
        FailureMode("corrupt", "silent", 1 / 150000, lasts=LOAD),
        FailureMode("false alarm", "alarm", 1 / 50000, repair=HOURS),
    )
    parts = (Part("stop", MINUTE, MINUTE, False), Part("load", LOAD, LOAD))
    pattern = CheckpointPattern(13.7, 80, Saving(5.0, 60.0, 0.02), Saving(1.0), 4, keep=3)
    made = LongRun(
        pattern, causes, 16, 128, goal=20_000, restart=parts if restart is None else restart,
        spares=Spares(1, 1, 2, (0.0, 100.0, 1000.0), crews=2), maintenance=Maintenance(DAY, 600.0), timeout=100.0,
        straggler="checkpoint", wrong=0.1,
    )  # fmt: skip
    return replace(made, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_log_that_was_written_is_played_again_alike(tmp_path: Path, ending: str) -> None:
    played, rows = simulate_with_log(run_of(), seed=55)
    write_log(tmp_path / f"log.{ending}", rows)
    log = read_log(tmp_path / f"log.{ending}")
    assert log == log_of(rows)
    again = replay_log(run_of(), log)
    for same in (simulate_with_log(again, seed=55)[0], simulate_runs(again, 55, 2)):
        assert same.wall[0] == pytest.approx(played.wall[0], abs=1e-6)
        assert (same.strikes[0] == played.strikes[0]).all()
        np.testing.assert_allclose(same.fates[0], played.fates[0], rtol=0, atol=1e-6)
    assert played.strikes.min() > 0  # of every effect


def test_what_if_a_restart_took_half_as_long() -> None:
    """The same strikes: what comes of it is half of the restarts, and nothing else where nothing else is drawn."""
    plain = {"causes": run_of().causes[:1], "spares": Spares(unlimited=True), "maintenance": None, "wrong": 0.0}
    long, short = (FixedTime(seconds=text) for text in ("20 min", "10 min"))
    run = run_of((Part("all", long, long, False),), **plain)
    played, rows = simulate_with_log(run, seed=3)
    half = simulate_with_log(replay_log(run_of((Part("all", short, short, False),), **plain), log_of(rows)), seed=9)[0]
    count = int(played.strikes.sum())
    assert half.strikes.sum() == count > 15
    assert played.wall[0] - half.wall[0] == pytest.approx(600 * count, abs=1e-6)


def test_a_real_log_strikes_when_it_says(tmp_path: Path) -> None:
    """Times count while the job is exposed; what struck while it stood strikes as it goes on, in order."""
    path = tmp_path / "real.csv"
    path.write_text("time,cause,lasts\n10 h,gpu,30 min\n1 h,gpu,30 min\n3600,flap,42 s\n10.2 h,host,\n12 h,flap,\n")
    log = read_log(path)
    assert [each.cause for each in log.incidents] == ["gpu", "flap", "gpu", "host", "flap"]
    run = replay_log(run_of(), log)
    struck = {cause.name: cause.struck for cause in run.causes}
    loaded = 34200.0 + LOAD.mean  # of the half hour in which it stood, in which it could fail again
    assert struck["gpu"].at == pytest.approx((3600.0, loaded))  # type: ignore[union-attr]
    assert struck["flap"].at[0] == pytest.approx(3600.001)  # type: ignore[union-attr]
    assert struck["flap"].lasted(0) == 42.0  # type: ignore[union-attr]
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
            replay_log(run_of(), read_log(tmp_path / name))

    refused("b.csv", "time,cause\n1 h,maintenance\n", "nothing that struck")
    refused("f.jsonl", "{\n", "f.jsonl:1: is no JSON")
    refused("g.jsonl", "[1]\n", "is no object")
    refused("h.jsonl", "\n", "has no rows")
    refused("i.jsonl", '{"begin_s": 0}\n', "has no end_s")
    with pytest.raises(InputError, match="no such file"):
        read_log(tmp_path / "none.csv")
    assert replay_log(run_of(), EventLog((Incident(5.0, "gpu"),))).causes[0].struck is not None
