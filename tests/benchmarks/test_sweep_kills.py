"""A sweep of 1,000 variants, killed five times at random, equals an undisturbed one; and what a variant costs.

python -m pytest -m benchmark -s tests/benchmarks/test_sweep_kills.py
"""

# ruff: noqa: T201

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from test_sweep import killed

from simcluster.studies.sweep.sweep import sweep

pytestmark = pytest.mark.benchmark


def test_a_thousand_variants_killed_five_times(tmp_path: Path) -> None:
    killed(tmp_path, 1000, times=5)


def test_what_a_variant_costs() -> None:
    begun = time.perf_counter()
    table = sweep("tiny_dp", {"seed": list(range(200))}, executor=2)
    seconds = time.perf_counter() - begun
    assert (table["status"] == "ok").all()
    print(f"\n200 variants of tiny_dp on 2 processes: {seconds:.1f} s, {200 / seconds:.0f} a second")
