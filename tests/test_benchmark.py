"""Time and memory of whole commands, measured and printed.

``python -m pytest -m benchmark -s tests/test_benchmark.py``

Not part of the suite: a machine's mood is no reason for a red test.  Figures with the machine named are in the README.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time

import pytest

RING = ["collective", "all_reduce", "--size", "1GiB", "--cluster", "flat"]
CASES = {
    "help": ["--help"],
    "175B on 64 A100": ["run", "gpt3_175b_64xa100"],
    "175B on 64 A100, one slow GPU": ["run", "gpt3_175b_64xa100", "faults=[{kind: slow_gpu, rank: 5, factor: 1.2}]"],
    "405B on 1,024 H100": ["run", "llama3_405b_1024xh100"],
    "ring of 1,024 in flow": [*RING, "--gpus", "1024", "--detail", "flow"],
    "ring of 256 in steps": [*RING, "--gpus", "256", "--detail", "steps"],
    "ring of 1,024 in steps": [*RING, "--gpus", "1024", "--detail", "steps"],
}


@pytest.mark.benchmark
def test_commands() -> None:
    """Every command succeeds; its wall time and peak memory are printed (median of three runs)."""
    print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for name, arguments in CASES.items():
        runs = sorted(_measure(arguments) for _ in range(3))
        seconds, peak = runs[1]
        print(f"{name:32s} {seconds:7.2f} s {peak / 1e6:7.0f} MB")


def _measure(arguments: list[str]) -> tuple[float, float]:
    """Wall seconds and peak resident bytes of one command."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "simcluster", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # it was reaped behind Popen's back
    assert process.returncode == 0, arguments
    return time.perf_counter() - begun, usage.ru_maxrss * 1024.0
