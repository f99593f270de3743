"""Where the throughput goes: loader, checkpoint, validation and offload have rows of their own."""

from __future__ import annotations

import re
from typing import Any

import pytest

from simcluster.results.account import Account, attribute
from simcluster.results.metrics import BREAKDOWN, SINCE
from simcluster.scenario.scenario import load
from simcluster.show.summary import summary
from simcluster.simulate import simulate


def stall(cause: str, seconds: str, **more: Any) -> dict[str, Any]:
    return {"kind": "host_stall", "cause": cause, "seconds": seconds, **more}


# --- stalls of hosts --------------------------------------------------------------------------------------------------

CAUSES = {"data_loading": ("data", 5e-3), "checkpoint": ("checkpoint", 20e-3), "validation": ("validation", 3e-3)}


def test_what_stalls_all_ranks_has_a_row_of_its_own_and_is_no_straggler() -> None:
    plain = simulate(load("tiny_dp"))
    faults = [stall(cause, f"{seconds} s") for cause, (_, seconds) in CAUSES.items()]
    result = simulate(load("tiny_dp", {"faults": faults}))
    states = result.times.breakdown
    assert {row: states[row] for row, _ in CAUSES.values()} == pytest.approx(dict(CAUSES.values()))
    assert states["other"] == states["straggler_wait"] == 0.0
    assert sum(states.values()) == pytest.approx(result.step_time, rel=1e-12)
    assert result.step_time == pytest.approx(plain.step_time + 28e-3)
    assert result.slowdown == 1.0
    told = summary(result)
    assert re.search(r"data loading, exposed +5.000 ms", told)
    assert "stragglers" not in told


@pytest.mark.parametrize("more", [{"rank": 0}, {"factor": {"kind": "normal", "sigma": 0.5}}])
def test_a_stall_of_one_rank_or_by_chance_makes_stragglers(more: dict[str, Any]) -> None:
    shared = stall("checkpoint", "20 ms")
    result = simulate(load("tiny_dp", {"faults": [shared, stall("data_loading", "5 ms", **more)]}))
    without = simulate(load("tiny_dp", {"faults": [shared]})).step_time
    assert result.without_faults == without  # what all share stays
    assert result.slowdown > 1
    assert result.times.breakdown["straggler_wait"] > 0


# --- results that were saved before -----------------------------------------------------------------------------------


def test_an_account_saved_without_the_rows_is_read_and_compared() -> None:
    result = simulate(load("tiny_dp"))
    saved = result.to_dict()
    for entries in (saved["breakdown_s"], saved["account"]["states_s"], *saved["account"]["stages_s"]):
        for row in SINCE:
            del entries[row]
    old = Account.from_result(saved)
    assert tuple(old.breakdown) == BREAKDOWN
    new = simulate(load("tiny_dp", {"faults": [stall("data_loading", "5 ms")]}))
    causes = attribute(old, new.account)
    assert causes["data"] == pytest.approx(5e-3)
    assert sum(causes.values()) == pytest.approx(new.step_time - result.step_time)
