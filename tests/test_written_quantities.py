"""Quantities as documents write them: readable, and exactly what they were when they are read."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simcluster
from simcluster.base.errors import InputError
from simcluster.base.units import (
    format_exact_quantity,
    parse_bytes,
    parse_bytes_per_second,
    parse_flop_per_second,
    parse_seconds,
)
from simcluster.scenario.scenario import load
from simcluster.show.registry.entry_texts import entry_text

READ = {"s": parse_seconds, "B": parse_bytes, "B/s": parse_bytes_per_second, "FLOP/s": parse_flop_per_second}
ROUND = st.builds(lambda digits, power: digits * 10.0**power, st.integers(0, 99_999), st.integers(-12, 18))
TEXTS = [
    (5_184_000.0, "s", "60 d"), (43_200.0, "s", "12 h"), (129_600.0, "s", "36 h"), (120.0, "s", "2 min"),
    (90.0, "s", "90 s"), (13.75, "s", "13.75 s"), (1.7e-6, "s", "1.7 us"), (6e-7, "s", "600 ns"), (0.0, "s", "0 s"),
    (450e9, "B/s", "450 GB/s"), (5e10, "B/s", "50 GB/s"), (2e12, "B", "2 TB"), (80 * 2.0**30, "B", "80 GiB"),
    (5_184_000.0, "B", "5.184 MB"), (512.0, "B", "512 B"), (989e12, "FLOP/s", "989 TFLOP/s"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "unit", "text"), TEXTS)
def test_a_quantity_is_written_as_people_write_it(number: float, unit: str, text: str) -> None:
    assert format_exact_quantity(number, unit) == text


@given(unit=st.sampled_from(sorted(READ)), number=st.one_of(st.floats(0, 1e30), ROUND))
def test_what_is_written_reads_back_to_the_bit(unit: str, number: float) -> None:
    back = READ[unit](format_exact_quantity(number, unit))
    assert math.copysign(1, back) == math.copysign(1, number) or not number
    assert back == number


@pytest.mark.parametrize("name", ["week_64xa100", "llama3_405b_15t", "deepseek_v3_2048xh800", "gpt3_175b_64xa100"])
def test_a_whole_scenario_is_readable_and_reads_back(name: str) -> None:
    document = load(name).document()
    assert load(document) == load(name)
    long = [text for text in texts(document) if text.endswith((" B", " B/s", ".0 s")) and len(text) > 8]
    assert long == []


def texts(value: Any) -> list[str]:
    """Return every text of plain data."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [value] if isinstance(value, str) else [text for each in inner for text in texts(each)]


def test_show_writes_days_and_rates() -> None:
    text = entry_text("week_64xa100", full=True)
    for words in ('days: "7 d"', 'line_rate: "300 GB/s"', 'size: "2 TB"', 'to: "100 GB/s"', 'every: "2 h"'):
        assert words.replace('"', "") in text.replace('"', "")


@pytest.mark.parametrize("days", [60, 60.0, "60 d", "1440 h"])
def test_a_bare_number_of_days_is_days(days: object) -> None:
    run = load("tiny_dp", {"run.days": days}).run
    assert run is not None
    assert run.days == 60 * 86400.0
    assert load("tiny_dp", {"run.days": days}).document()["run"]["days"] == "60 d"


def test_a_bare_number_of_seconds_is_seconds_where_the_key_says_so() -> None:
    validation = {"every": 100, "seconds": 12}
    run = load("tiny_dp", {"run": {"days": 1, "validation": validation, "detection": {"seconds": 90}}}).run
    assert run is not None
    assert run.validation is not None
    assert (run.validation.seconds, run.detection.mean) == (12.0, 90.0)
    pause = load("tiny_dp", {"faults": [{"kind": "host_stall", "cause": "data_loading", "rank": 0, "seconds": 0.5}]})
    assert pause.document()["faults"][0]["seconds"] == "500 ms"


@pytest.mark.parametrize("days", [-1, 0, True, "60", "60 days", float("inf")])
def test_what_is_no_number_of_days_is_refused(days: object) -> None:
    with pytest.raises(InputError, match="days"):
        simcluster.scenario("tiny_dp", {"run.days": days})


def test_other_durations_need_their_unit() -> None:
    with pytest.raises(InputError, match="has no unit"):
        load("tiny_dp", {"run": {"days": 1, "maintenance": {"every": 24, "lasts": "10 min"}}})
