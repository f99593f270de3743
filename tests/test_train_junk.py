"""Junk in a run's section and in logs: a result or one message, never a trace, and nothing that plays for ever."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.longrun.studies.training import train
from simcluster.scenario.scenario import load

RUN: dict[str, Any] = {
    "days": "7 d",
    "failures": {
        "times": 1.0,
        "also": [
            {"name": "machine", "of": "host", "count": 40, "within": "54 d", "repair": "6 h", "machines": 1},
            {"name": "flap", "of": "nic", "effect": "pause", "mtbf": "9 d", "lasts": "2 min"},
            {"name": "alarm", "of": "job", "effect": "alarm", "count": 4, "within": "54 d", "repair": "1 h"},
        ],
    },
    "checkpoint": {"every": "1 h", "mode": "snapshot", "stall": "5 s", "write": "1 min", "slowed": 0.02, "keep": 3},
    "detection": "2 min",
    "restart": [{"part": "stop", "takes": "30 s", "exposed": False}, {"part": "warm", "takes": "2 min"}],
    "spares": {"hot": 1, "warm": 1, "crews": 2},
    "wrong_diagnosis": 0.1,
    "timeout": "10 min",
    "maintenance": {"every": "3 d", "lasts": "30 min"},
    "price": 2.0,
    "played": 3,
}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("checkpoint.every", "switch", "'switch' is not an interval; write auto, steps (83 steps) or a time (20 min)"),
        ("checkpoint.every", "0 steps", "'0 steps' is not an interval"),
        ("checkpoint.every", {"kind": "fixed"}, "is not an interval"),
        ("checkpoint.every", True, "is not an interval"),
        ("wrong_diagnosis", True, "must be a share from 0 to 1, as in 0.02 or 2 %; got 'True'"),
        ("wrong_diagnosis", "100 %", "less than 1"),
        ("failures.also.0.machines", 10_000, "less than or equal to 128"),
        ("days", "1e9 d", "years, but at most 100 can be simulated"),
        ("days", "300 d", None),
        ("failures.also.1.mtbf", "1 us", "take too long to simulate; give fewer runs"),
        ("maintenance.every", "1 ns", "must be at least 10 min, as in 24 h"),
        ("failures.also.2.bad", {"share": "10 %", "times": 1e-300}, "greater than or equal to 0.001"),
        ("failures.also.0.repair", {"kind": "weibull", "mean": "1 d", "shape": 0.001}, "greater than or equal to 0.05"),
        ("failures.times", 1e-300, None),
        ("failures.times", 1e6, None),
        ("timeout", "0 s", None),
        ("checkpoint.keep", 1000, None),
    ],
)
def test_what_was_found_to_crash_or_to_play_for_ever(path: str, value: object, words: str | None) -> None:
    run = copy.deepcopy(RUN)
    place: Any = run
    *keys, last = path.split(".")
    for key in keys:
        place = place[int(key) if key.isdigit() else key]
    place[last] = value
    if words is None:
        found = train(load("tiny_dp", {"run": run}))
        assert 0 <= found.goodput <= 1
        return
    with pytest.raises(InputError) as raised:
        train(load("tiny_dp", {"run": run}))
    assert words in str(raised.value)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where anything stands in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, each in inner for found in ((*path, key), *_places(each, (*path, key)))]


JUNK = st.sampled_from([
    0, -1, 1, 2, 1e-300, 1e300, 10**30, "", None, [], {}, "inf", float("inf"), float("nan"), "1e30 d", "0 s", "1 ns",
    "1 s", "100 y", "0 GB/s", "1 B/s", True, "auto", "1 steps", "100 %", "-5 %", "x", "1 lightyear", [1], {"a": 1},
    "1e308 s", 0.999999, 0.5,
    {"kind": "weibull", "mean": "1 d", "shape": 0.01}, {"kind": "lognormal", "median": "1 h", "sigma": 5},
    {"kind": "fixed", "seconds": "1 s", "per_gpu": "1 h"}, {"kind": "choice", "times": []}, "wait", "shrink", "memory",
])  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(_places(RUN)), JUNK | st.just("delete")), min_size=1, max_size=2))
def test_any_junk_is_a_result_or_one_message(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    run = copy.deepcopy(RUN)
    for (*keys, last), value in changes:
        place: Any = run
        try:
            for key in keys:
                place = place[key]
            if value == "delete":
                del place[last]
            else:
                place[last] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):  # gone by the change before
            continue
    try:
        found = train(load("tiny_dp", {"run": run}))
    except InputError:
        return
    assert -1e-9 <= found.goodput <= 1 + 1e-9
    assert sum(found.outcomes.seconds_by_category().values()) == pytest.approx(found.outcomes.wall)
    assert found.summary()
