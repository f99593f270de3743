"""Where the throughput goes: loader, checkpoint, validation and offload have rows of their own."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.reference.data_loader import simulate_batch_delays
from simcluster.results.rank_time import BREAKDOWN
from simcluster.results.result import Result
from simcluster.results.step_account import RECENT_ENTRIES, StepAccount, attribute_difference
from simcluster.scenario.data_wait import tokens_per_host
from simcluster.scenario.scenario import from_document, load
from simcluster.step.simulate import WARMUP_STEPS, simulate
from simcluster.studies.whatif.monte_carlo_study import monte_carlo, remove_randomness


def stall(cause: str, seconds: str, **more: Any) -> dict[str, Any]:
    return {"kind": "host_stall", "cause": cause, "seconds": seconds, **more}


CAUSES = {"data_loading": ("data", 5e-3), "checkpoint": ("checkpoint", 20e-3), "validation": ("validation", 3e-3)}


@pytest.mark.parametrize("name", ["tiny_dp", "tiny_3d"])
def test_what_stalls_all_ranks_has_a_row_of_its_own_and_is_no_straggler(name: str) -> None:
    plain = simulate(load(name))
    faults = [stall(cause, f"{seconds} s") for cause, (_, seconds) in CAUSES.items()]
    result = simulate(load(name, {"faults": faults}))
    states = result.times.breakdown
    assert {row: states[row] for row, _ in CAUSES.values()} == pytest.approx(dict(CAUSES.values()))
    assert states["other"] == states["straggler_wait"] == 0.0
    assert states["bubble"] == pytest.approx(plain.times.breakdown["bubble"])
    assert sum(states.values()) == pytest.approx(result.step_time, rel=1e-12)
    assert result.step_time == pytest.approx(plain.step_time + 28e-3)
    assert result.slowdown == 1.0
    told = str(result)
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


def test_an_account_saved_without_the_rows_is_read_and_compared() -> None:
    result = simulate(load("tiny_dp"))
    saved = result.to_dict()
    for entries in (saved["breakdown_s"], saved["account"]["states_s"], *saved["account"]["stages_s"]):
        for row in RECENT_ENTRIES:
            del entries[row]
    old = StepAccount.from_result(saved)
    assert tuple(old.breakdown) == BREAKDOWN
    new = simulate(load("tiny_dp", {"faults": [stall("data_loading", "5 ms")]}))
    causes = attribute_difference(old, new.account)
    assert causes["data"] == pytest.approx(5e-3)
    assert sum(causes.values()) == pytest.approx(new.step_time - result.step_time)


def exposed(load: float, workers: int, step: float, prefetch: int = 2) -> float:
    """The closed form: seconds of a step that a loader exposes."""
    return max(0.0, load / workers - step) if prefetch else load


@pytest.mark.parametrize(
    ("load", "workers", "prefetch", "step", "late"),
    [
        (0.2, 1, 2, 0.500, 0.0),
        (0.8, 1, 2, 0.800, 0.3),
        (0.8, 2, 2, 0.500, 0.0),
        (1.2, 2, 2, 0.600, 0.1),
        (0.8, 1, 0, 1.300, 0.8),
        (0.8, 4, 0, 1.300, 0.8),  # nobody loads ahead
    ],
)
def test_a_loader_exposes_what_is_longer_than_the_step(
    load: float, workers: int, prefetch: int, step: float, late: float
) -> None:
    found = simulate_batch_delays(np.full((1, 300), load), workers, prefetch, 0.5)[0, WARMUP_STEPS:]
    assert 0.5 + found == pytest.approx(step)  # every one of them
    assert found == pytest.approx(late, abs=1e-12)
    assert exposed(load, workers, 0.5, prefetch) == pytest.approx(late)


@given(load=st.floats(0.01, 5), step=st.floats(0.01, 5), workers=st.integers(1, 6), prefetch=st.integers(0, 4))
@settings(max_examples=30)
def test_the_closed_form_holds_of_any_loader(load: float, step: float, workers: int, prefetch: int) -> None:
    found = simulate_batch_delays(np.full((1, 200), load), workers, prefetch, step)[0, WARMUP_STEPS:]
    assert found == pytest.approx(exposed(load, workers, step, prefetch), abs=1e-9)


def test_spread_and_several_hosts_make_a_loader_slower_and_a_longer_queue_faster() -> None:
    chance = np.random.default_rng(0)
    takes = chance.exponential(0.45, (8, 400))

    def lost(rows: np.ndarray, prefetch: int) -> float:
        return float(simulate_batch_delays(rows, 1, prefetch, 0.5).max(axis=0).mean())

    one, queue, many = lost(takes[:1], 1), lost(takes[:1], 8), lost(takes, 1)
    assert 0 < queue < one < many


def loading(batch: str, more: dict[str, Any] | None = None, name: str = "tiny_dp", **loader: Any) -> Result:
    return simulate(load(name, {"data.loader": {"batch": batch, **loader}, **(more or {})}))


@pytest.mark.parametrize("name", ["tiny_dp", "tiny_3d"])
@pytest.mark.parametrize(("times", "workers", "prefetch"), [(0.5, 1, 2), (3.0, 1, 2), (3.0, 2, 2), (0.5, 2, 0)])
def test_a_step_is_as_much_longer_as_its_loader_exposes(name: str, times: float, workers: int, prefetch: int) -> None:
    plain = simulate(load(name))
    batch = float(times * plain.step_time)
    result = loading(f"{batch!r} s", name=name, workers=workers, prefetch=prefetch)
    expected = exposed(batch, workers, plain.step_time, prefetch)
    assert result.step_time == pytest.approx(plain.step_time + expected)
    states = result.times.breakdown
    assert states["data"] == pytest.approx(expected)
    assert states["other"] == plain.times.breakdown["other"]
    assert states["bubble"] == pytest.approx(plain.times.breakdown["bubble"])
    assert sum(states.values()) == pytest.approx(result.step_time, rel=1e-12)
    assert result.slowdown == 1.0
    assert ("would hide the loading" in str(result)) == (expected > 0)


def test_the_loader_sees_the_step_without_itself() -> None:
    """A step that is longer for another reason hides more of it."""
    stalls = {"faults": [stall("checkpoint", "30 ms")]}
    result, slow = loading("60 ms"), loading("60 ms", stalls)
    assert slow.step_time == pytest.approx(result.step_time) == pytest.approx(0.06)
    assert result.times.breakdown["data"] - slow.times.breakdown["data"] == pytest.approx(0.03)
    assert slow.loading is not None
    assert slow.to_dict()["loader"]["step_s"] == simulate(load("tiny_dp", stalls)).step_time


def test_a_rate_is_of_the_tokens_that_the_replicas_of_a_host_need() -> None:
    hosts, tokens = tokens_per_host(load("tiny_3d"))
    scenario = load("tiny_3d")
    assert hosts == tuple(sorted(set(scenario.cluster.built.host_of[: scenario.gpus])))
    assert set(tokens.tolist()) <= {scenario.tokens_per_step / scenario.dp * dp for dp in range(1, scenario.dp + 1)}
    seconds = float(tokens.max()) / 2e6
    by_rate = simulate(load("tiny_3d", {"data.loader": {"rate": "2 M tokens/s"}}))
    assert by_rate.loading is not None
    assert by_rate.loading.batch == seconds
    assert by_rate.step_time == loading(f"{seconds!r} s", name="tiny_3d").step_time


def test_jitter_differs_by_host_and_step_and_all_ways_to_play_agree() -> None:
    jitter = {"kind": "lognormal", "sigma": 0.5}
    scenario = load("tiny_3d", {"data.loader": {"batch": "30 ms", "jitter": jitter}, "steps": 3})
    result = simulate(scenario)
    assert result.loading is not None
    assert result.loading.exposed_seconds > 0
    assert len({seconds for own in result.loading.batch_delays for seconds in own}) > 2
    for other in (simulate(scenario, engine="reference"), simulate(scenario, folded=False)):
        assert other.step_time == result.step_time
        assert other.times.breakdown == pytest.approx(result.times.breakdown)
    again = simulate(scenario.model_copy(update={"seed": 1}))
    assert again.step_time != result.step_time
    many = monte_carlo(scenario.model_copy(update={"replicas": 3}))
    assert many.planned == simulate(remove_randomness(scenario)).step_time
    assert len(set(many.step_times.tolist())) == 3


def test_a_scenario_with_a_loader_says_so_and_reads_its_own_document() -> None:
    for loader in ({"batch": "0.8 s", "workers": 2}, {"rate": "2 M tokens/s", "prefetch": 1}):
        scenario = load("tiny_dp", {"data.loader": loader})
        assert from_document(scenario.document()) == scenario
        assert "data: loader" in str(simulate(scenario))


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ({"workers": 2}, "load time is required"),
        ({"batch": "1 s", "rate": "2 M tokens/s"}, "got batch and rate"),
        ({"rate": "2 M bytes/s"}, "rate"),
        ({"batch": "1 s", "workers": 0}, "workers"),
    ],
)
def test_a_loader_that_cannot_be_is_told(loader: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load("tiny_dp", {"data.loader": loader})
