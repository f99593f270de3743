"""A few runs that only stops strike are played in floats, one by one, and come to what arrays over runs come to."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest

from simcluster.longrun.pattern import CheckpointPattern, Saving
from simcluster.longrun.replicas import few, play_replicas
from simcluster.longrun.replicas.state import RunsState
from simcluster.longrun.run import Bad, FailureMode, LongRun, Part, Spares
from simcluster.longrun.streams import CounterStreams
from simcluster.longrun.times import ExponentialTime, FixedTime, StagedTime

STAGED = StagedTime.model_validate(StagedTime.EXAMPLE)


def fixed(seconds: float) -> FixedTime:
    return FixedTime(seconds=f"{seconds!r} s")


def stopped_run(rng: random.Random) -> LongRun:
    """A run that only stops strike, with spares enough or not."""
    machines, cured = rng.choice([1, 2]), rng.choice([0.3, 1.0])
    causes = tuple(
        FailureMode(f"cause {number}", "stop", 1 / rng.choice([2e3, 9e3]), detect=fixed(rng.choice([0.0, 7.7])),
                    repair=rng.choice([None, ExponentialTime(kind="exponential", mean="11 h"), fixed(5e3), STAGED]),
                    machines=machines, bad=rng.choice([None, Bad(3, 4.0, cured), Bad(9, 1.0, cured)]))
        for number in range(rng.choice([1, 3]))
    )  # fmt: skip
    parts = (Part("stop", fixed(30.1), fixed(30.1), False), Part("load", fixed(7.3), fixed(7.3), False))
    return LongRun(
        CheckpointPattern(13.7, rng.choice([3, 9]), Saving(rng.choice([0.0, 5.3]), rng.choice([0.0, 20.0]), 0.1)),
        causes,
        machines=64,
        goal=rng.choice([2777, 9000]),
        restart=parts[: rng.choice([0, 1, 2])],
        spares=rng.choice([Spares(unlimited=True), Spares(hot=5), Spares(hot=99), Spares(30, 20, crews=40)]),
        week=rng.choice([5e3, 7e4]),
    )


def test_a_few_runs_in_floats_are_those_in_arrays_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether machines are waited for (in arrays alone) or not."""
    waited, weeks = [], 0
    for seed in range(14):
        monkeypatch.setattr(few, "FEW", 100)
        run, streams = stopped_run(random.Random(seed)), CounterStreams(seed, 2, 3)
        assert few.fits(run, 3)
        waited.append(not few.play_few(RunsState(run, streams)))
        found = play_replicas(run, seed, 3, 2).columns()
        monkeypatch.setattr(few, "FEW", 0)
        for name, expected in play_replicas(run, seed, 3, 2).columns().items():
            assert found[name].tobytes() == expected.tobytes(), (seed, name)
        weeks += found["weekly"].shape[1]
    assert 2 < sum(waited) < 12
    assert weeks > 30


def test_nothing_of_a_run_is_ignored() -> None:
    """A new field is played in floats too, or ``few.fits`` refuses runs that have it; then it is named here."""
    known = {
        LongRun: "pattern causes machines gpus goal until restart spares short running straggler noticed wrong timeout "
        "maintenance week",
        FailureMode: "name effect rate devices lives struck bad detect repair machines survives lasts shares paces "
        "column label",
        Bad: "machines times cured retire window rule replaced",
    }
    for kind, names in known.items():
        assert [field.name for field in fields(kind)] == names.split()
