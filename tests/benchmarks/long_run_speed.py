"""Time and memory of long runs: policies on two processes, ten thousand runs, one run, AIReSim's case.

``python tests/benchmarks/long_run_speed.py [CASE ...]`` (default: policies, runs, one, log, airesim), each in its own
process.  Wall time is what the machine gives; processor time (of this process and its children) is what it costs.
"""
# ruff: noqa: T201

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import simcluster
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.long_run import LongRun
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.policy_comparison import Policy
from simcluster.longrun.studies.run_builder import build_long_run
from simcluster.scenario.scenario import load

sys.path.insert(0, str(Path(__file__).parent))
from long_run_peers import published_case

SCENARIO = "llama3_405b_54_days"


def measured(words: str, call: Callable[[], object]) -> None:
    """Prints what a call takes."""
    begun, before = time.perf_counter(), _processor()
    call()
    own, others = (resource.getrusage(who).ru_maxrss / 1e3 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    beside = f" ({others:.0f} MB beside)" if others else ""
    seconds = f"{time.perf_counter() - begun:7.2f} s, processor {_processor() - before:7.2f} s"
    print(f"{words:<52s} {seconds}, memory {own:.0f} MB{beside}")


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _run() -> LongRun:
    scenario = load(SCENARIO)
    return build_long_run(scenario, ClusterStateSimulator(scenario))


def policies() -> None:
    """Intervals and detection, 10 x 10, 1,000 runs each."""
    found: dict[str, Policy] = {"as it is": load(SCENARIO)}
    for minutes in range(4, 24, 2):
        for detection in range(1, 11):
            changes = {"run.checkpoint.every": f"{minutes} min", "run.detection": f"{detection} min"}
            found[f"{minutes} min, {detection} min"] = changes
    found.popitem()
    measured(
        f"{len(found)} policies x 1,000 runs, states included",
        lambda: simcluster.compare_policies(found, played=1000, workers=2),
    )


def runs() -> None:
    """10,000 of the 54 days, after their states."""
    run = _run()
    measured("10,000 runs of 54 days", lambda: simulate_runs(run, 0, 10_000))


def one() -> None:
    """Simulate one of the 54 days, after their states."""
    run = _run()
    measured("one run of 54 days", lambda: simulate_runs(run, 0, 1))


def log() -> None:
    """One run with its log, after its states."""
    run = _run()
    measured("one run of 54 days with its log", lambda: simulate_with_log(run, 0))


def airesim() -> None:
    """Its default case, 30 runs."""
    run = published_case()
    measured("AIReSim's default case x 30", lambda: simulate_runs(run, 1, 30))


CASES = {"policies": policies, "runs": runs, "one": one, "log": log, "airesim": airesim}

if __name__ == "__main__":
    asked = sys.argv[1:] or list(CASES)
    if len(asked) == 1:
        CASES[asked[0]]()
    else:
        for each in asked:
            subprocess.run([sys.executable, __file__, each], check=True)
