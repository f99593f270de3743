"""One-line ``repr`` texts of objects, made without simulating.

To add one, write a function here and list it by the name of its class; other objects show their plain fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.display import clip_line
from simcluster.base.units import format_bytes, format_bytes_per_second, format_seconds
from simcluster.show.table_cells import describe_gpus, describe_layout

if TYPE_CHECKING:
    from simcluster.results.critical_path import CriticalPath
    from simcluster.results.distribution import Distribution
    from simcluster.results.result import Result
    from simcluster.results.simulated_run import Run
    from simcluster.scenario.scenario import Scenario
    from simcluster.schedules.comparison import TimedSchedule
    from simcluster.studies.bench.collective import CollectiveTime
    from simcluster.studies.search.plan import PlanResult, RankedLayout
    from simcluster.studies.whatif.difference import RunDifference
    from simcluster.studies.whatif.straggling import StragglerCosts
    from simcluster.topology import Cluster

NAME = 70  # characters of a name


def repr_line(instance: object, name: str, *parts: str) -> str:
    """Return the ``repr`` text of an object: "Class(name: part, part)"."""
    return f"{type(instance).__name__}({clip_line(name, NAME)}: {', '.join(part for part in parts if part)})"


def _step_time_text(seconds: float) -> str:
    return f"{format_seconds(seconds)} per step"


def _run_line(run: Run) -> str:
    steps = f"{run.steps:,} steps" if run.steps > 1 else ""
    return repr_line(run, _step_time_text(run.step_time), f"{len(run.ranks):,} rank{'s' * (len(run.ranks) > 1)}", steps)


def _result_line(result: Result) -> str:
    facts, seconds = result.facts, result.step_time
    rates = f"{facts.tokens / seconds:,.0f} tokens/s", f"MFU {result.mfu:.1%}"
    return repr_line(result, result.scenario.title, _step_time_text(seconds), *rates, f"{facts.ranks:,} GPUs")


def _scenario_line(scenario: Scenario) -> str:
    gpus = clip_line(describe_gpus(scenario), 50)
    return repr_line(scenario, scenario.title, f"{gpus} | {describe_layout(scenario)}")


def _cluster_line(cluster: Cluster) -> str:
    machines = len(set(cluster.host_of))
    gpus = f"{len(cluster.host_of):,} GPUs in {machines:,} node{'s' * (machines > 1)}"
    return repr_line(cluster, cluster.name, gpus, f"{len(cluster.capacity):,} links")


def _difference_line(found: RunDifference) -> str:
    sides = (
        f"{clip_line(name, NAME // 2)} {format_seconds(each.step_time)}"
        for name, each in zip(found.names, (found.base, found.other), strict=True)
    )
    return f"RunDifference({' -> '.join(sides)}: {found.seconds / found.base.step_time:+.1%})"


def _critical_path_line(path: CriticalPath) -> str:
    kind, seconds = next(iter(path.by_kind().items()), ("nothing", 0.0))
    most = f"mostly {kind} ({seconds / path.seconds:.1%})" if path.seconds else ""
    return repr_line(path, _step_time_text(path.seconds), f"{len(path.number):,} spans", most)


def _distribution_line(found: Distribution) -> str:
    low, high = found.interval
    interval = f"{low:.6g} to {high:.6g} s" if len(found) > 1 else "unknown"
    mean = f"{format_seconds(found.mean)} per step on average"
    return repr_line(found, f"{len(found):,} replicas", mean, f"95 % interval {interval}",
                  f"{format_seconds(found.planned)} without randomness")  # fmt: skip


def _ranked_layout_line(each: RankedLayout) -> str:
    place = each.layout
    return repr_line(each, f"tp {place.tp}, pp {place.pp}, dp {place.dp}, micro batch {place.micro_batch}",
                  _step_time_text(each.step_time), f"{each.memory / 1e9:.1f} GB per GPU")  # fmt: skip


def _collective_line(time: CollectiveTime) -> str:
    rate = f"bus bandwidth {format_bytes_per_second(time.busbw)}" if time.duration > 0 else ""
    what = f"{time.kind} of {format_bytes(time.size)} on {len(time.gpus):,} GPUs"
    return repr_line(time, what, format_seconds(time.duration), rate, time.algorithm)


def _schedule_line(timed: TimedSchedule) -> str:
    schedule = timed.schedule
    counts = f"{schedule.num_stages} stages, {schedule.num_microbatches} microbatches"
    return repr_line(timed, schedule.name, counts, f"makespan {float(timed.timing.makespan):.6g}",
                  f"bubble {float(timed.timing.bubble_over_total):.1%}")  # fmt: skip


def _layout_search_line(found: PlanResult) -> str:
    counts = f"{found.num_simulated:,} of {found.num_combinations:,} combinations simulated"
    if not found.best:
        return repr_line(found, found.base.name, counts)
    place = found.best[0].layout
    best = f"best tp {place.tp}, pp {place.pp}, dp {place.dp}, micro batch {place.micro_batch}"
    return repr_line(found, found.base.name, best, _step_time_text(found.best[0].step_time), counts)


def _stragglers_line(found: StragglerCosts) -> str:
    dearest = f"most costly: {found.causes[0].what}" if found.causes else "no stragglers"
    slowdown = f"{found.slowdown:.4f} x the step without faults"
    return repr_line(found, _step_time_text(found.step_time), slowdown, clip_line(dearest, 80))


def _records_line(found: Sequence[object]) -> str:
    kinds = " and ".join(dict.fromkeys(type(each).__name__ for each in found)) or "nothing"
    first = f": {found[0]!r}{', ...' if len(found) > 1 else ''}" if found else ""
    return f"Records({len(found):,} x {kinds}{first})"


REPR_LINES: Mapping[str, Callable[[Any], str]] = {
    "Cluster": _cluster_line,
    "CollectiveTime": _collective_line,
    "CriticalPath": _critical_path_line,
    "RunDifference": _difference_line,
    "Distribution": _distribution_line,
    "PlanResult": _layout_search_line,
    "TimedSchedule": _schedule_line,
    "RankedLayout": _ranked_layout_line,
    "Records": _records_line,
    "Result": _result_line,
    "Run": _run_line,
    "Scenario": _scenario_line,
    "StragglerCosts": _stragglers_line,
}
"""Functions that return the ``repr`` text of an object, by its class name."""
