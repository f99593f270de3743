"""100,000 runs of Llama 3's 54 days, killed twice, equal undisturbed ones, byte for byte.

python -m pytest -m benchmark tests/benchmarks/test_long_run_kills.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from test_long_run_chunks import killed

PLAYED = 100_000


@pytest.mark.benchmark
def test_weeks_killed_twice(tmp_path: Path) -> None:
    killed(tmp_path, ["llama3_405b_54_days", "--played", str(PLAYED)], times=2)
