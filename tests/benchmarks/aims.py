"""Aims of speed in two source trees in turns: processor time and peak memory of each row.

``python tests/benchmarks/aims.py OLD_TREE NEW_TREE [--times 5] [--slow] [ROW ...]`` prints a Markdown table.  A figure
is the median of ``--times`` processes, each of which runs one row with ``PYTHONPATH`` set to its tree.  ``--slow`` also
runs rows in the old tree that take minutes there.  "same" compares the answers of the two trees.  Modules
that moved are imported by their old names, which both trees understand.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from table_cases import (
    CABLE,
    FSDP,
    JITTER,
    LARGE,
    LLAMA,
    MILLION,
    SIXTEEN,
    SLOW,
    SPEEDS,
    configurations,
    differing,
    peak,
)

A175B = "gpt3_175b_64xa100"
WEEKS = "llama3_405b_54_days"
CHANGES = 10  # of the studio's controls, after the first seven
Action = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One row: ``prepare`` returns the action that is measured, and the action returns the answer."""

    aim: str
    prepare: Callable[[], Action]
    unit: str = "s"  # "ms": processor time per change; "/s": layouts per second of wall time
    minutes_in_old: bool = False


def processor() -> float:
    """Return the processor time of this process and its finished children (s)."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def step(scenario: str, changes: dict[str, Any] | None = None, *, folded: bool = True, whole: bool = False) -> Action:
    """Return the simulation of a loaded scenario: its step time, or its ``whole`` breakdown as well."""
    from simcluster import simulate
    from simcluster.scenario.scenario import load

    made = load(scenario, changes or {})
    _ = made.cluster.built

    def action() -> Any:
        result = simulate(made, folded=folded)
        return [result.step_time, repr(result.breakdown)] if whole else result.step_time

    return action


def command(scenario: str, changes: dict[str, Any]) -> Action:
    """Return the run of ``simcluster run`` in a process of its own; the answer is its first line of figures."""
    sets = [word for path, value in changes.items() for word in ("--set", f"{path}={json.dumps(value)}")]

    def action() -> str:
        words = [sys.executable, "-m", "simcluster", "run", scenario, *sets]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[1]

    return action


def layouts() -> Action:
    """Return an exact sweep of 1,000 layouts on two processes."""
    from simcluster.scenario.scenario import BaseScenario
    from simcluster.studies.sweep.quick_rows import simulate_quickly
    from simcluster.studies.sweep.sweep import make_sweep, run_sweep

    document, grid = configurations()

    def action() -> Any:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "base.yaml"
            path.write_text(json.dumps(document))
            made = make_sweep(BaseScenario(str(path)), {}, rows=grid)
            rows = run_sweep(made, executor=2, store=Path(folder) / "rows", measure=simulate_quickly).rows
        return sum(row.get("step_time_s", 0.0) for row in rows)

    return action


def replicas() -> Action:
    """Return 50 replicas of a step whose kernels jitter, in one process."""
    from simcluster import monte_carlo
    from simcluster.scenario.scenario import load

    made = load(LLAMA, {**JITTER, "replicas": 50})
    _ = made.cluster.built
    return lambda: monte_carlo(made, processes=1).mean


def ring() -> Action:
    """Return a ring all-reduce of 1 GiB on 1,024 GPUs, simulated transfer by transfer."""
    sys.path.insert(0, str(Path.cwd() / "tests/benchmarks"))  # of the tree that is measured
    from fabric_cases import flat_ring

    case = flat_ring(1024, 2.0**30)
    return lambda: max(case.play("steps"))


def weeks() -> Action:
    """Return 10,000 runs of 54 days, after the steps of their states."""
    from simcluster.scenario.scenario import load

    build, states = (import_module(f"simcluster.studies.long_run.{name}") for name in ("build", "states"))
    try:
        from simcluster.longrun.simulation import simulate_runs
    except ImportError:
        from simcluster.longrun.replicas import play_replicas as simulate_runs
    scenario = load(WEEKS)
    run = build.long_run_of(scenario, states.ClusterStateSimulator(scenario))
    return lambda: float(simulate_runs(run, 0, 10_000).wall.sum())


def studio() -> Action:
    """Return what the studio's page requests after a change, up to its timeline."""
    from studio_latency import changes

    answers, pool, states = (import_module(f"simcluster.studio_page.{name}") for name in ("answers", "pool", "states"))
    settings: dict[str, Any] = {}
    walk = changes()
    pool.spare_collector()

    def change() -> None:
        key, value = next(walk)
        settings[key] = value
        asked = answers.PageQuery(states.parse_state({"base": LLAMA, "settings": settings}), None, Path())
        assert not any("problem" in answers.answer(asked, part) for part in ("figures", "timeline"))

    def action() -> None:
        for _ in range(CHANGES):
            change()

    for _ in range(7):
        change()
    return action


def sixteen_slow(seed: int) -> dict[str, Any]:
    """Return the faults of 16 slow GPUs at random ranks."""
    return {"faults": [{**SLOW, "rank": rank} for rank in sorted(Random(seed).sample(range(16384), 16))]}


ROWS: dict[str, Row] = {
    "16 slow GPUs, regular places": Row("1.5 s", lambda: step(LLAMA, {"faults": SIXTEEN})),
    "16 slow GPUs, random places 1": Row("1.5 s", lambda: step(LLAMA, sixteen_slow(1))),
    "16 slow GPUs, random places 2": Row("1.5 s", lambda: step(LLAMA, sixteen_slow(2))),
    "405B, 16,384 different speeds": Row("30 s, 3 GB", lambda: step(LLAMA, SPEEDS), minutes_in_old=True),
    "FSDP 7B, 16,384 different speeds, command": Row("no worse", lambda: command(FSDP, differing(16384))),
    "175B, 64 ranks unfolded, whole": Row("0.5 s", lambda: step(A175B, folded=False, whole=True)),
    "1,000 exact layouts, two processes": Row("", layouts),
    "exact layouts per second, two processes": Row("2,000", layouts, "/s"),
    "50 jitter replicas of 16,384 GPUs": Row("8 s", replicas),
    "one slow GPU": Row("0.3 s", lambda: step(LLAMA, {"faults": [{**SLOW, "rank": 5000}]})),
    "one slow link": Row("0.3 s", lambda: step(LLAMA, {"faults": [CABLE]})),
    "ring of 1,024 in steps": Row("1 s", ring),
    "10,000 runs of 54 days": Row("2 s", weeks),
    "16,384 equal GPUs": Row("", lambda: step(LLAMA)),
    "131,072 equal GPUs": Row("1.2 x of 16,384", lambda: step(LLAMA, LARGE)),
    "1,048,576 equal GPUs": Row("1.5 x of 16,384", lambda: step(LLAMA, MILLION)),
    "16,384 equal GPUs, command": Row("", lambda: command(LLAMA, {})),
    "131,072 equal GPUs, command": Row("1.2 x of 16,384", lambda: command(LLAMA, LARGE)),
    "1,048,576 equal GPUs, command": Row("1.5 x of 16,384", lambda: command(LLAMA, MILLION)),
    "studio, figures and timeline of 16,384 GPUs": Row("200 ms", studio, "ms"),
    "run gpt3_175b_64xa100, command": Row("1.0 s", lambda: command(A175B, {})),
}


def run_row(row: Row) -> None:
    """Measure one row in this process and print its value, peak memory (MB) and answer as JSON."""
    action = row.prepare()
    begun, wall = processor(), time.perf_counter()
    answer = action()
    seconds, wall = processor() - begun, time.perf_counter() - wall
    value = {"s": seconds, "ms": 1e3 * seconds / CHANGES, "/s": 1000 / wall}[row.unit]
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps([value, max(peak(), children), repr(answer)]))


def measure(tree: str, name: str) -> tuple[float, float, str]:
    """Return value, peak memory (MB) and answer of a row in a process of its own that imports from ``tree``."""
    words = [sys.executable, str(Path(__file__).resolve()), "--one", name]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": tree}, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        return float("nan"), float("nan"), (done.stderr.strip().splitlines() or ["no message"])[-1]
    value, memory, answer = json.loads(done.stdout.splitlines()[-1])
    return value, memory, answer


def compare(name: str, trees: list[str], times: int, *, slow: bool) -> str:
    """Return the line of a row, measured in the two trees in turns."""
    row, old = ROWS[name], trees[0]
    found: dict[str, list[tuple[float, float, str]]] = {tree: [] for tree in trees}
    for _ in range(times):
        for tree in trees:
            if slow or not (row.minutes_in_old and tree == old):
                found[tree].append(measure(tree, name))
    figures = [f"{median(run[0] for run in runs):.3g} {row.unit}" if runs else "" for runs in found.values()]
    memory = [f"{median(run[1] for run in runs):.0f}" if runs else "" for runs in found.values()]
    answers = {run[2] for runs in found.values() for run in runs}
    same = "yes" if len(answers) == 1 else "; ".join(sorted(answers))
    return f"| {' | '.join([name, row.aim, *figures, *memory, same])} |"


def main() -> None:
    """Print the table, or run one row where ``--one`` names it."""
    if sys.argv[1:2] == ["--one"]:
        run_row(ROWS[sys.argv[2]])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {'; '.join(ROWS)}")
    parser.add_argument("--times", type=int, default=5, help="processes per row and tree")
    parser.add_argument("--slow", action="store_true", help="also run rows in OLD that take minutes there")
    args = parser.parse_intermixed_args()
    trees = [str(Path(tree).resolve()) for tree in (args.old, args.new)]
    print("| row | aim | old | new | peak MB old | peak MB new | same |\n|---|---|---|---|---|---|---|")
    for name in args.rows or ROWS:
        print(compare(name, trees, args.times, slow=args.slow), flush=True)


if __name__ == "__main__":
    main()
