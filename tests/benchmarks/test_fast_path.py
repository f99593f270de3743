"""How fast one configuration of a pipeline in a sweep is.

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

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from table_cases import SCHEDULES, deep, warm

from simcluster.step.simulate import simulate
from simcluster.studies.sweep.quick_steps import quick_step_time

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
        assert quick_step_time(variants[0]) == simulate(variants[0]).step_time
        assert quick <= AIM, f"{name}: {1e3 * quick:.2f} ms"
