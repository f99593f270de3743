"""Time and memory of whole commands, measured and printed.

``python -m pytest -m benchmark -s tests/test_benchmark.py``

Not part of the suite: a machine's mood is no reason for a red test.  Figures with the machine named are in the README.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

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


# A process starts with its parent's peak memory, so the command is started by a small one that measures it.
LAUNCHER = """
import resource, subprocess, sys, time
begun = time.perf_counter()
subprocess.run([sys.executable, "-m", "simcluster", *sys.argv[1:]], stdout=subprocess.DEVNULL, check=True)
print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def _measure(arguments: list[str]) -> tuple[float, float]:
    """Wall seconds and peak resident bytes of one command."""
    command = [sys.executable, "-c", LAUNCHER, *arguments]
    seconds, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), float(peak)
