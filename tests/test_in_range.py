"""No study has a number that is none (NaN, infinite) or a duration below zero: long runs, sweeps, searches, draws.

``test_longer.py`` says the same of a step.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
from conftest import Tiny
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_longer import numbers_of
from test_same_answer import documents

from simcluster.longrun.studies.training import train
from simcluster.step.simulate import simulate
from simcluster.studies.search.plan import plan
from simcluster.studies.sweep.sweep import sweep
from simcluster.studies.whatif.straggling import stragglers

DIFFERENCES = ("cost", "estimated_cost", "gain")
"""What a step takes more without or with something: below zero where that saves time."""


def below_zero(value: Any, name: str = "") -> list[tuple[str, float]]:
    """The durations of a document, keys in ``_s`` with all that is under them, that are below zero."""
    if isinstance(value, dict):
        timed = name if name.endswith("_s") else ""
        return [bad for key, inner in value.items() for bad in below_zero(inner, timed or str(key))]
    if isinstance(value, list | tuple):
        return [bad for inner in value for bad in below_zero(inner, name)]
    is_time = name.endswith("_s") and name.removesuffix("_s") not in DIFFERENCES
    return [(name, value)] if is_time and isinstance(value, int | float) and value < 0 else []


def in_range(document: dict[str, Any]) -> None:
    json.dumps(document, allow_nan=False)
    numbers = numbers_of(document)
    assert numbers
    assert all(math.isfinite(each) for each in numbers)
    assert below_zero(document) == []


def rows_in_range(frame: pd.DataFrame) -> None:
    """Numbers of rows that were played; a number that a row does not have is left out."""
    numbers = frame.select_dtypes("number")
    assert len(numbers.columns) > 0
    assert not numbers.isin([math.inf, -math.inf]).any(axis=None)
    assert below_zero({name: column.dropna().tolist() for name, column in numbers.items()}) == []


def test_what_is_out_of_range_is_seen() -> None:
    assert below_zero({"step_s": -1.0, "parts_s": {"bubble": [0.0, -2.0]}, "cost_s": -1.0, "bytes": -1}) == [
        ("step_s", -1.0), ("parts_s", -2.0),
    ]  # fmt: skip


RUNS = st.fixed_dictionaries(
    {
        "days": st.sampled_from(["1 h", "9 h", "6 d"]),
        "failures": st.fixed_dictionaries(
            {
                "also": st.lists(
                    st.sampled_from(
                        [
                            {"name": "host", "of": "host", "count": 30, "within": "2 d", "repair": "6 h"},
                            {
                                "name": "hot",
                                "effect": "slow",
                                "count": 40,
                                "within": "9 d",
                                "by": [1.2],
                                "lasts": "3 h",
                            },
                            {
                                "name": "flap",
                                "of": "nic",
                                "effect": "pause",
                                "count": 60,
                                "within": "9 d",
                                "lasts": "2 min",
                            },
                        ]
                    ),
                    unique_by=lambda each: each["name"],
                    min_size=1,
                )
            }
        ),
        "checkpoint": st.sampled_from([{"stall": "20 s", "every": "2 h"}, {"stall": "30 s", "every": "30 min"}]),
        "restart": st.just([{"part": "warm up", "takes": "4 min"}]),
        "spares": st.fixed_dictionaries({"warm": st.integers(0, 2)}),
        "wrong_diagnosis": st.sampled_from([0.0, 0.3]),
        "maintenance": st.sampled_from([{"every": "3 d", "lasts": "30 min"}, {"every": "5 h", "lasts": "1 h"}]),
    }
)


@settings(max_examples=6, phases=[Phase.generate])
@given(run=RUNS, played=st.integers(1, 8))
def test_a_long_run(tiny: Tiny, run: dict[str, Any], played: int) -> None:
    found = train(tiny(run=run), played=played)
    in_range(found.to_dict())
    for table in (found.breakdown, found.causes, found.parts, found.weeks):
        if len(table):
            rows_in_range(table)
            numbers = table.drop(columns=["low", "high"], errors="ignore").select_dtypes("number")  # bounds of a mean
            assert (numbers.fillna(0) >= 0).all(axis=None)


@settings(max_examples=2, phases=[Phase.generate])
@given(document=documents())
def test_sweeps_and_searches(tiny: Tiny, document: dict[str, Any]) -> None:
    base = tiny(**document)
    frame = sweep(base, {"training.micro_batch": [1, 2, 3], "parallel.zero": [0, 1]})
    played = frame[frame["status"] == "ok"]
    if len(played):
        rows_in_range(played)
        assert played["step_time_s"].gt(0).all()
    in_range(plan(base, top=2, vary={"training.micro_batch": [1], "parallel.zero": [0, 1]}).to_dict())


LAWS = st.sampled_from(
    [
        {"kind": "lognormal", "sigma": 0.4},
        {"kind": "lognormal", "sigma": 1e-6},
    ]
)


@settings(max_examples=4, phases=[Phase.generate])
@given(document=documents(), law=LAWS, kind=st.sampled_from(["jitter", "speeds"]), replicas=st.integers(1, 4))
def test_draws_and_what_faults_cost(
    tiny: Tiny, document: dict[str, Any], law: dict[str, Any], kind: str, replicas: int
) -> None:
    fault = {"kind": kind, "factor" if kind == "jitter" else "law": law}
    document = {**document, "faults": [*document["faults"], fault]}
    in_range(simulate(tiny(**document, replicas=replicas)).to_dict())
    in_range(stragglers(tiny(**document)).to_dict())


def test_a_gpu_that_is_slow_for_a_while_is_not_slowed_by_communication(tiny: Tiny) -> None:
    """What its kernels would take by themselves is no whole number of ticks: rounding is no interference."""
    slow = {"kind": "slow_gpu", "factor": 1.7, "rank": 0, "start": "0.1 ms", "end": "0.7 ms"}
    assert simulate(tiny(faults=[slow])).account.states["interference"] == 0
