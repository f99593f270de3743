"""How fast the longest path is: one configuration of a pipeline, thousands of them, and the same beside the engine.

``python -m pytest -m benchmark -s tests/benchmarks/test_fast_path.py``

Prints tables; red only where an answer differs from the engine's, or an aim of 2 ms a configuration is missed.  Wall
times are the best of several runs, for whoever shares the machine only adds to them.
"""
# ruff: noqa: T201

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import simcluster
from simcluster.fixed import Costs, simulate_costs
from simcluster.simulate import replay
from simcluster.simulating.encounters import Encounters
from simcluster.simulating.engine import play
from simcluster.simulating.longest_path import LongestPath
from simcluster.simulating.players import play_path
from simcluster.whatif.cost_sweep import CostSweep, cost_sweep

pytestmark = pytest.mark.benchmark

AIM = 2.0e-3  # seconds a configuration, P = 16, M = 16
RUNS = 7
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 4, "zb-h1": 1, "zb-v": 1, "dualpipe": 1}  # with their chunks


def best(action: Callable[[], object], runs: int = RUNS) -> float:
    """Wall seconds of the fastest run."""
    found = []
    for _ in range(runs):
        gc.collect()
        begun = time.perf_counter()
        action()
        found.append(time.perf_counter() - begun)
    return min(found)


def costs_of(count: int) -> list[Costs]:
    return [Costs(forward=0.010 + 1e-6 * case, backward=0.020, send=0.0001) for case in range(count)]


def machine() -> str:
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def test_a_configuration_with_given_times() -> None:
    """16 stages, 16 microbatches (zb-v and dualpipe: 32), other times in each configuration."""
    print(f"\n{machine()}; ms a configuration, warm")
    print(f"{'schedule':12} {'ops':>6} {'plan once':>10} {'one':>8} {'of 1,000':>9} {'events':>8} {'cold':>8}")
    for name, chunks in SCHEDULES.items():
        microbatches = 32 if name in ("zb-v", "dualpipe") else 16
        shape: dict[str, Any] = {"stages": 16, "microbatches": microbatches, "schedule": name, "chunks": chunks}
        planned = best(lambda shape=shape: CostSweep(**shape), 3)  # type: ignore[misc]
        sweep = cost_sweep(name, 16, microbatches, chunks)
        few, many = costs_of(1), costs_of(1000)
        # the name is looked up, the costs checked and rounded, the order replayed
        one = best(lambda few=few, key=(name, 16, microbatches, chunks): cost_sweep(*key).step_times(few))  # type: ignore[misc]
        thousand = best(partial(sweep.step_times, many), 3) / len(many)
        events = best(partial(play, simulate_costs(few[0], **shape).lowered.program, []), 3)
        cold = best(lambda shape=shape, few=few: simulate_costs(few[0], **shape), 3)  # type: ignore[misc]
        print(
            f"{name:12} {len(sweep.program.seconds):6,d} {1e3 * planned:10.1f} {1e3 * one:8.3f} {1e3 * thousand:9.4f} "
            f"{1e3 * events:8.1f} {1e3 * cold:8.1f}"
        )
        expected = [simulate_costs(each, **shape, engine="events").step_time for each in many[::250]]
        assert sweep.step_times(many).tolist()[::250] == expected
        assert one <= AIM, f"{name}: {1e3 * one:.2f} ms"


CASES = {
    "gpt3_175b_64xa100_full_recompute": {"overlap.interference": "none"},
    "slow_gpu": {"overlap.interference": "none"},
    "llama3_405b_1024xh100": {"overlap.interference": "none"},
}


@pytest.mark.parametrize("name", CASES)
def test_a_scenario_both_ways(name: str) -> None:
    """The program of a scenario as events, and as one longest path, with the check that it is one."""
    result = replay(simcluster.load(name, CASES[name]))
    program, capacity = result.lowered.program, result.lowered.capacity
    record = play(program, capacity)
    events = best(lambda: play(program, capacity), 3)
    path = best(lambda: _path_or_reason(program, capacity), 3)
    kind = _path_or_reason(program, capacity)
    print(
        f"\n{name}: {len(program.seconds):,} ops, {record.events:,} events: {1e3 * events:.1f} ms as events, "
        f"{1e3 * path:.1f} ms as a path ({events / path:.1f} x): {kind if isinstance(kind, str) else 'exact'}"
    )
    if not isinstance(kind, str):
        assert kind.end.tolist() == record.end.tolist()
        prepared = LongestPath(program, capacity), Encounters(program, capacity)
        print(
            f"  prepared: {1e3 * best(lambda: _many(prepared, record, program), 3) / 200:.2f} ms for each of 200 cases"
        )


def _path_or_reason(program: Any, capacity: Any) -> Any:
    try:
        return play_path(program, capacity)
    except simcluster.errors.InputError as error:
        return str(error)


def _many(prepared: tuple[LongestPath, Encounters], record: Any, program: Any) -> None:
    """200 cases in which the ops take a little longer, and whether transfers then hold each other back."""
    import numpy as np

    path, encounters = prepared
    factors = 1.0 + np.arange(200) / 1024
    played = path(np.array(program.seconds)[:, None] * factors)
    encounters.first(path.of_meetings(played))
