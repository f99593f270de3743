"""The cases of the table of benchmarks, each to be run in a process of its own.

``python tests/benchmarks/table_cases.py NAME`` prints its figures as JSON: wall and processor seconds, what it counts,
and the processor seconds of as many bare SimPy timeouts in the same process.  Peak memory is the process's own.
"""
# ruff: noqa: T201

from __future__ import annotations

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario

sys.path.insert(0, str(Path(__file__).parent))

LLAMA = "llama3_405b_16384xh100"
FSDP = "fsdp_7b_64xa100"
LARGE = {"gpus": 131072, "cluster.nodes": 16384, "parallel.dp": 1024, "training.global_batch": 16384}
MILLION = {"gpus": 1048576, "cluster.nodes": 131072, "parallel.dp": 8192, "training.global_batch": 131072}
SLOW = {"kind": "slow_gpu", "factor": 1.2}
SIXTEEN = [{**SLOW, "rank": 1031 * number + 5} for number in range(16)]
CABLE = {"kind": "slow_link", "between": ["node300.gpu3", "node300.nic3"], "factor": 0.5}

LLAMAS: dict[str, dict[str, Any]] = {
    "16,384 GPUs": {},
    "131,072 GPUs": LARGE,
    "1,048,576 GPUs": MILLION,
    "one slow GPU": {"faults": [{**SLOW, "rank": 5000}]},
    "16 slow GPUs": {"faults": SIXTEEN},
    "one slow link": {"faults": [CABLE]},
}
SPEEDS = {"faults": [{"kind": "speeds", "law": {"kind": "normal", "sigma": 0.05}}]}
JITTER = {"faults": [{"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.05}}]}
OF_256 = {"gpus": 256, "cluster.nodes": 32, "parallel.dp": 2, "training.global_batch": 32}
OF_1024 = {"gpus": 1024, "cluster.nodes": 128, "parallel.dp": 8, "training.global_batch": 128}

UNFOLDED = {  # the ranks of so many replicas, everything else as in the large run
    f"{128 * dp:,} ranks unfolded": {
        "gpus": 128 * dp, "cluster.nodes": 16 * dp, "parallel.dp": dp, "training.global_batch": 16 * dp,
    }
    for dp in (4, 128)
}  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """``count`` is of ``what``: events, ops, transfers, configurations."""

    wall: float
    cpu: float
    count: int
    what: str
    bare: float = 0.0  # processor seconds of ``count`` bare SimPy timeouts; 0: not measured
    more: str = ""


class Clock:
    """Wall and processor seconds of a block."""

    def __enter__(self) -> Clock:
        self._begun = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]


def bare_timeouts(count: int) -> float:
    """Processor seconds of one SimPy process that wakes up so often."""
    import simpy

    def process(env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        for _ in range(count):
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(process(env))
    with Clock() as clock:
        env.run()
    return clock.cpu


def simulated(scenario: str, changes: dict[str, Any], *, folded: bool = True) -> Figures:
    """``simulate()`` of a scenario that has been read, its cluster built."""
    from simcluster import simulate
    from simcluster.scenario.scenario import load

    made = load(scenario, changes)
    _ = made.cluster.built
    with Clock() as clock:
        result = simulate(made, folded=folded)
    events, ops = result.record.events, len(result.record.ops)
    more = f"{len(result.weights):,} of {made.gpus:,} ranks, step {result.step_time!r} s"
    if not events:
        return Figures(clock.wall, clock.cpu, ops, "ops, path", bare_timeouts(ops), more)
    return Figures(clock.wall, clock.cpu, events, "events", bare_timeouts(events), more)


def told(scenario: str, changes: dict[str, Any]) -> Figures:
    """The result JSON of a scenario that has been simulated, without the run that has no faults."""
    from simcluster import simulate
    from simcluster.scenario.scenario import load

    result = simulate(load(scenario, changes))
    _ = result.without_faults
    with Clock() as clock:
        result.to_dict()
    return Figures(clock.wall, clock.cpu, len(result.spans), "spans", more=f"{len(result.weights):,} ranks told")


def command(scenario: str, changes: dict[str, Any]) -> Figures:
    """``simcluster run`` of a scenario, what it imports and prints included: what grows with the cluster, too."""
    from simcluster.cli import main

    printed = StringIO()
    sets = [word for path, value in changes.items() for word in ("--set", f"{path}={json.dumps(value)}")]
    with Clock() as clock, redirect_stdout(printed):
        assert main(["run", scenario, *sets]) == 0
    return Figures(clock.wall, time.process_time(), changes["gpus"], "ranks", more=printed.getvalue().splitlines()[1])


def differing(gpus: int) -> dict[str, Any]:
    """Return the changes to FSDP with no two GPUs equally fast."""
    return {"gpus": gpus, "cluster.nodes": gpus // 8, "training.global_batch": 18 * gpus, **SPEEDS}


def step_alone(scenario: str, changes: dict[str, Any]) -> Figures:
    """``simulate()`` of a scenario that has been read, its cluster built, for its step time."""
    from simcluster import simulate
    from simcluster.scenario.scenario import load

    made = load(scenario, changes)
    _ = made.cluster.built
    with Clock() as clock:
        step = simulate(made).step_time
    return Figures(clock.wall, clock.cpu, made.gpus, "ranks", more=f"step {step!r} s")


def replicas(changes: dict[str, Any], count: int) -> Figures:
    """So many replicas of a step whose kernels jitter, in this process."""
    from simcluster.scenario.scenario import load
    from simcluster.studies.whatif.monte_carlo_study import monte_carlo

    made = load(LLAMA, {**changes, **JITTER, "replicas": count})
    _ = made.cluster.built
    with Clock() as clock:
        found = monte_carlo(made, processes=1)
    return Figures(clock.wall, clock.cpu, count, "replicas", more=f"{found.method}, step {found.mean!r} s")


def frozen_against_events(changes: dict[str, Any], count: int) -> Figures:
    """So many replicas of a step, no two GPUs equally fast: in one sweep, and the same draws on the engine."""
    from simcluster.scenario.scenario import load
    from simcluster.studies.whatif.monte_carlo_study import monte_carlo

    made = load(LLAMA, {**changes, **SPEEDS})
    with Clock() as clock:
        played = monte_carlo(made, replicas=count, method="events", processes=1).step_times
    swept = monte_carlo(made, replicas=count, method="sweep", processes=1).step_times
    off = [f"{each:+.2%}" for each in sorted(swept / played - 1)]
    return Figures(clock.wall, clock.cpu, count, "replicas", more=f"the sweep by {off[0]} to {off[-1]}")


SCHEDULES = [("1f1b", 1, 16), ("interleaved", 4, 16), ("zb-h1", 1, 16), ("zb-v", 1, 32)]  # name, chunks, microbatches


def deep(schedule: str, chunks: int, microbatches: int) -> list[Scenario]:
    """Variants of a job of 16 stages that differ in what everything takes: 24, or 8 where backwards are split."""
    from simcluster.scenario.scenario import load

    base = load("gpt3_175b_64xa100", {
        "model.layers": 128, "cluster.nodes": 16, "gpus": 128, "parallel.tp": 8, "parallel.pp": 16, "parallel.dp": 1,
        "pipeline.schedule": schedule, "pipeline.chunks": chunks, "training.global_batch": microbatches,
        "overlap.interference": "none", "overlap.pipeline": True,
    })  # fmt: skip
    modes = ("none",) if schedule.startswith("zb") else ("none", "selective", "full")
    found = []
    for recompute, micro, split in product(modes, (1, 2, 4, 8), (True, False)):
        training = {"recompute": recompute, "micro_batch": micro, "global_batch": micro * microbatches}
        changed = {"training": base.training.model_copy(update=training)}
        changed["parallel"] = base.parallel.model_copy(update={"sequence_parallel": split})
        found.append(base.model_copy(update=changed))
    return found


def warm(variants: list[Scenario]) -> Clock:
    """The quick steps of variants whose parts have all been seen before."""
    from simcluster.base.gc_pause import pause_gc
    from simcluster.studies.sweep.quick_steps import quick_step_time

    with pause_gc():
        for each in variants:
            quick_step_time(each)
        with Clock() as clock:
            for each in variants:
                quick_step_time(each)
    return clock


def fast_path() -> Figures:
    """A configuration of P = 16 as sweeps simulate it, warm: the slowest schedule of those at M = 16; zb-v needs 32."""
    best, said = Figures(0.0, 0.0, 0, ""), []
    for name, chunks, microbatches in SCHEDULES:
        variants = deep(name, chunks, microbatches)
        clock = warm(variants)
        wall, cpu = clock.wall / len(variants), clock.cpu / len(variants)
        said.append(f"{name} {1e3 * cpu:.2f} ms")
        if microbatches == 16 and cpu > best.cpu:
            best = Figures(wall, cpu, 1, "configuration")
    return replace(best, more="; ".join(said))


def deep_pipeline() -> Figures:
    """P = 64, M = 512, interleaved, v = 4, with given times: planned, lowered and played."""
    from simcluster.studies.bench.fixed_durations import Costs, simulate_costs

    costs = Costs(forward=0.010, backward=0.020, send=0.0001)
    with Clock() as clock:
        run = simulate_costs(costs, stages=64, microbatches=512, schedule="interleaved", chunks=4)
    ops = len(run.record.ops)
    return Figures(clock.wall, clock.cpu, ops, f"ops, {run.record.engine}", bare_timeouts(ops))


def ring(detail: str) -> Figures:
    """A ring all-reduce of 1 GiB on a flat network of 1,024 GPUs."""
    from fabric_cases import flat_ring

    case = flat_ring(1024, 2.0**30)
    with Clock() as clock:
        last = max(case.play("steps" if detail == "steps" else "flow"))
    count = case.transfers if detail == "steps" else 1
    bare = bare_timeouts(count) if detail == "steps" else 0.0
    return Figures(clock.wall, clock.cpu, count, "transfers", bare, f"done at {last!r} s")


def streams(count: int) -> Figures:
    """Events of the engine: so many lanes of ops one after the other, against as many bare SimPy processes."""
    import simpy

    from simcluster.engine.explicit_program import ExplicitProgram
    from simcluster.engine.run import simulate_tables

    each = max(8, 65536 // count)
    program = ExplicitProgram()
    for stream in range(count):
        lane = program.add_lane(stream)
        for _ in range(each):
            program.add_op(lane, 1.0 + stream / 1024)
    tables = program.make_tables([])

    def process(env: simpy.Environment, seconds: float) -> Generator[simpy.Event, None, None]:
        for _ in range(each):
            yield env.timeout(seconds)

    best, bare = Clock(), float("inf")
    best.wall = best.cpu = float("inf")
    for _ in range(3):
        with Clock() as clock:
            record = simulate_tables(tables, str, keeps_times=False)
        best = min(best, clock, key=lambda done: done.cpu)
        env = simpy.Environment()
        for stream in range(count):
            env.process(process(env, 1.0 + stream / 1024))
        with Clock() as clock:
            env.run()
        bare = min(bare, clock.cpu)
    assert len(record.lane_end) == count
    return Figures(best.wall, best.cpu, count * each, "resumes", bare)


def configurations() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """1,000 of 175B on 1,024 A100: the document that they change, and the changes."""
    from simcluster.scenario.scenario import load

    schedules = [("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("interleaved", 4), ("interleaved", 6)]
    fixed = {"cluster.nodes": 128, "cluster.fabric.nodes_per_unit": 128, "gpus": 1024, "training.global_batch": 1536,
             "overlap.interference": "none", "overlap.pipeline": True, "parallel.sequence_parallel": False}  # fmt: skip
    base = load("gpt3_175b_64xa100", {**fixed, "parallel.dp": 16})
    grid = []
    for tp, pp, micro, recompute, (schedule, chunks), zero in product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8), ("none", "selective", "full"), schedules, (0, 1)
    ):
        dp = 1024 // tp // pp
        microbatches, left = divmod(1536, dp * micro)
        turns = schedule == "interleaved"
        if left or (turns and (pp == 1 or microbatches % pp or 96 % (pp * chunks))):
            continue
        grid.append({"parallel.tp": tp, "parallel.pp": pp, "parallel.dp": dp, "parallel.zero": zero,
                     "training.micro_batch": micro, "training.recompute": recompute,
                     "pipeline.schedule": schedule, "pipeline.chunks": chunks})  # fmt: skip
    return base.document(), [grid[each] for each in sorted(Random(1).sample(range(len(grid)), min(1000, len(grid))))]


def swept(processes: int = 1) -> Figures:
    """The 1,000 configurations, simulated in this process, or as a sweep on several with its store of rows."""
    from simcluster.base.gc_pause import pause_gc
    from simcluster.scenario.scenario import BaseScenario, ScenarioVariant
    from simcluster.studies.sweep.quick_rows import simulate_quickly
    from simcluster.studies.sweep.sweep import make_sweep, run_sweep

    document, grid = configurations()
    with TemporaryDirectory() as folder:  # the base is written out, so that it is read as a file is
        path = Path(folder) / "base.yaml"
        path.write_text(json.dumps(document))
        with pause_gc(), Clock() as clock:
            if processes == 1:
                rows = [
                    simulate_quickly(ScenarioVariant(BaseScenario(str(path)), tuple(changes.items())))
                    for changes in grid
                ]
            else:
                made = make_sweep(BaseScenario(str(path)), {}, rows=grid)
                rows = run_sweep(made, executor=processes, store=Path(folder) / "rows", measure=simulate_quickly).rows
    ways = Counter(row.get("how", row["status"]) for row in rows)
    said = ", ".join(f"{count} {way}" for way, count in sorted(ways.items()))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = clock.cpu + children.ru_utime + children.ru_stime
    if processes > 1:
        said += f"; {len(rows) / clock.wall:,.0f} a second on {processes} processes"
    return Figures(clock.wall, cpu, len(rows), "configurations", 0.0, said)


CASES: dict[str, Callable[[], Figures]] = {
    **{name: lambda changes=changes: simulated(LLAMA, changes) for name, changes in LLAMAS.items()},  # type: ignore[misc]
    **{
        name: lambda changes=changes: simulated(LLAMA, changes, folded=False)  # type: ignore[misc]
        for name, changes in UNFOLDED.items()
    },
    **{
        f"{name} folded": lambda changes=changes: simulated(LLAMA, changes)  # type: ignore[misc]
        for name, changes in UNFOLDED.items()
    },
    "4 slow GPUs, the JSON": lambda: told(LLAMA, {"faults": SIXTEEN[:4]}),
    "131,072 GPUs, the command": lambda: command(LLAMA, LARGE),
    "1,048,576 GPUs, the command": lambda: command(LLAMA, MILLION),
    "16,384 different speeds, the command": lambda: command(FSDP, differing(16384)),
    "131,072 different speeds, the step": lambda: step_alone(FSDP, differing(131072)),
    "2 replicas of 1,024 GPUs": lambda: replicas(OF_1024, 2),
    "200 replicas of 1,024 GPUs": lambda: replicas(OF_1024, 200),
    "2 replicas of 16,384 GPUs": lambda: replicas({}, 2),
    "50 replicas of 16,384 GPUs": lambda: replicas({}, 50),
    "6 replicas of 256 different speeds, events": lambda: frozen_against_events(OF_256, 6),
    "3 replicas of 1,024 different speeds, events": lambda: frozen_against_events(OF_1024, 3),
    "fast path, P=16, M=16": fast_path,
    "P=64, M=512, v=4": deep_pipeline,
    "1,000 configurations": swept,
    "1,000 configurations on 2 processes": lambda: swept(processes=2),
    "ring of 1,024 in steps": lambda: ring("steps"),
    "ring of 1,024 in flow": lambda: ring("flow"),
    "1 stream": lambda: streams(1),
    "1,000 streams": lambda: streams(1000),
    "16,000 streams": lambda: streams(16000),
}


def peak() -> float:
    """Most memory that the process has had, in MB; of no process before it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    before = peak()
    found = CASES[sys.argv[1]]()
    print(json.dumps([found.wall, found.cpu, found.count, found.what, found.bare, found.more, peak()]))
