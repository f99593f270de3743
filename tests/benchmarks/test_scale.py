"""What a simulation costs as the cluster grows: Llama 3 405B on 16,384 and 131,072 H100, with and without slow parts.

``python -m pytest -m benchmark -s tests/benchmarks/test_scale.py``

Prints a table: processor seconds (so that a busy machine tells the same), peak memory, events, and ratios to the clean
run on 16,384 GPUs and to as many bare SimPy timeouts in the same process.  Every case is a process of its own.  Red
only where a case fails; the aim stands beside each.  ``SCALE_LARGE=1`` adds what takes minutes: 16 slow GPUs, 131,072
GPUs, and every one of 16,384 ranks by itself.
"""
# ruff: noqa: T201

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.benchmark

SCENARIO = "scenarios/llama3_405b_16384xh100.yaml"
LARGE = {"gpus": 131072, "cluster.nodes": 16384, "parallel.dp": 1024, "training.global_batch": 16384}
SLOW = {"kind": "slow_gpu", "factor": 1.2}
SIXTEEN = [{**SLOW, "rank": 1031 * number + 5} for number in range(16)]
CABLE = {"kind": "slow_link", "between": ["node300.gpu3", "node300.nic3"], "factor": 0.5}

# name: what is set, folded, the aim (a ratio is to the clean run)
CASES: dict[str, tuple[dict[str, object], bool, str]] = {
    "16,384 GPUs": ({}, True, "0.5 s, 300 MB, 3 x bare"),
    "one slow GPU": ({"faults": [{**SLOW, "rank": 5000}]}, True, "2 x"),
    "one slow link": ({"faults": [CABLE]}, True, "2 x"),
}
if os.environ.get("SCALE_LARGE"):
    CASES["16 slow GPUs"] = ({"faults": SIXTEEN}, True, "8 x")
    CASES["131,072 GPUs"] = (dict(LARGE), True, "1.2 x")
    CASES["16,384 unfolded"] = ({}, False, "40 s, 8 GB")

MEASURED = """
import json, resource, sys, time
import simpy
from simcluster import load, simulate
path, changes, folded = json.loads(sys.argv[1])
begun = time.process_time()
scenario = load(path, list(changes.items()))
scenario.cluster.built
loaded = time.process_time()
result = simulate(scenario, folded=folded)
done = time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def bare(env, count):
    for _ in range(count):
        yield env.timeout(1.0)
env = simpy.Environment()
env.process(bare(env, result.record.events))
begin = time.process_time()
env.run()
seconds = time.process_time() - begin
figures = [loaded - begun, done - loaded, peak, result.record.events, len(result.weights), seconds, result.step_time]
print(json.dumps(figures))
"""
STARTS = {"import simcluster": ["-c", "import simcluster"], "simcluster --help": ["-m", "simcluster", "--help"]}


def test_scale() -> None:
    """Every case runs; what it costs is printed."""
    print(f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'case':18s} {'load s':>7s} {'run s':>7s} {'MB':>6s} {'events':>8s} {'classes':>7s} {'x clean':>7s} "
          f"{'x bare':>7s}  aim")  # fmt: skip
    clean = 0.0
    for name, (changes, folded, aim) in CASES.items():
        load, run, peak, events, classes, bare, step = _measure(changes, folded=folded)
        clean = clean or run
        assert step > 0
        print(f"{name:18s} {load:7.2f} {run:7.2f} {peak:6.0f} {events:8d} {classes:7d} {run / clean:7.2f} "
              f"{run / bare:7.1f}  {aim}")  # fmt: skip


def test_start_up() -> None:
    """The seconds that ``-X importtime`` counts; 0.3 is the aim."""
    for name, arguments in STARTS.items():
        command = [sys.executable, "-X", "importtime", *arguments]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
        own = [
            int(line.split(":")[1].split("|")[0])
            for line in lines
            if line.startswith("import time:") and "[us]" not in line
        ]
        print(f"{name:18s} {sum(own) / 1e6:.3f} s")
        assert len(own) > 10


def _measure(changes: dict[str, object], *, folded: bool) -> tuple[float, float, float, int, int, float, float]:
    command = [sys.executable, "-c", MEASURED, json.dumps([SCENARIO, changes, folded])]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    load, run, peak, events, classes, bare, step = found
    return load, run, peak, events, classes, bare, step
