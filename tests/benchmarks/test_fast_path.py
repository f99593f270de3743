"""How fast the longest path is: one configuration of a pipeline in a sweep, and programs beside the engine.

``python -m pytest -m benchmark -s tests/benchmarks/test_fast_path.py``

Prints tables; red only where an answer differs from the engine's, or an aim of 2 ms a configuration is missed.  Wall
times are the best of several runs, for whoever shares the machine only adds to them.
"""
# ruff: noqa: T201

from __future__ import annotations

import gc
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from table_cases import SCHEDULES, deep, warm

import simcluster
from simcluster.engine.choose import play_path
from simcluster.engine.engine import play
from simcluster.simulate import simulate
from simcluster.step.planned import prepare
from simcluster.studies.sweep.quick import quick_step

pytestmark = pytest.mark.benchmark

AIM = 2.0e-3  # seconds a configuration, P = 16, M = 16
RUNS = 7


def best(action: Callable[[], object], runs: int = RUNS) -> float:
    """Wall seconds of the fastest run."""
    found = []
    for _ in range(runs):
        gc.collect()
        begun = time.perf_counter()
        action()
        found.append(time.perf_counter() - begun)
    return min(found)


def machine() -> str:
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def test_a_configuration_as_sweeps_play_it() -> None:
    """16 stages, 16 microbatches (zb-v: 32): the quick way, all seen before, in processor time; and in full."""
    print(f"\n{machine()}; ms a configuration, warm")
    for name, chunks, microbatches in SCHEDULES:
        variants = deep(name, chunks, microbatches)
        quick = warm(variants).cpu / len(variants)
        full = best(lambda one=variants[0]: simulate(one), 3)  # type: ignore[misc]
        print(f"{name:12} {1e3 * quick:8.3f}, in full {1e3 * full:8.1f}")
        assert quick_step(variants[0]) == simulate(variants[0]).step_time
        assert quick <= AIM, f"{name}: {1e3 * quick:.2f} ms"


CASES = {
    "gpt3_175b_64xa100_full_recompute": {"overlap.interference": "none"},
    "slow_gpu": {"overlap.interference": "none"},
    "llama3_405b_1024xh100": {"overlap.interference": "none"},
}


@pytest.mark.parametrize("name", CASES)
def test_a_scenario_both_ways(name: str) -> None:
    """The program of a scenario as events, and as one longest path, with the check that it is one."""
    lowered = prepare(simcluster.load(name, CASES[name])).lowered
    program, capacity = lowered.program, lowered.capacity
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


def _path_or_reason(program: Any, capacity: Any) -> Any:
    try:
        return play_path(program, capacity)
    except simcluster.base.errors.InputError as error:
        return str(error)
