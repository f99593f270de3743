"""AIReSim's published case as a whole: its hours and failures; ``long_run_peers.py`` prints what 30 runs of it take."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from simcluster.longrun.simulation import simulate_runs

sys.path.insert(0, str(Path(__file__).parent))
from long_run_peers import HOUR, PUBLISHED, published_case


@pytest.mark.benchmark
def test_airesim_as_published() -> None:
    """The mean of 30 runs in the 95 % intervals of both its reports, within 4 standard errors, as many failures."""
    outcomes = simulate_runs(published_case(), 1, 30)
    hours, failures = outcomes.wall / HOUR, outcomes.strikes[:, 0]
    for mean, half, count in PUBLISHED.values():
        error = math.hypot(float(hours.std(ddof=1)) / math.sqrt(len(hours)), half / 1.96)
        assert abs(hours.mean() - mean) < min(half, 4 * error)
        assert abs(failures.mean() - count) < 100
