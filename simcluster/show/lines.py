"""One-line ``repr`` texts of objects, from numbers that are known without simulating.

To add one, write a function here and list it by the name of its class; other objects show their plain fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.shown import clip_line
from simcluster.base.units import format_bytes, format_bytes_per_second, format_seconds
from simcluster.show.cells import describe_gpus, describe_layout

if TYPE_CHECKING:
    from simcluster.results.critical_path import CriticalPath
    from simcluster.results.distribution import Distribution
    from simcluster.results.played import Run
    from simcluster.results.result import Result
    from simcluster.scenario.scenario import Scenario
    from simcluster.schedules.comparison import TimedSchedule
    from simcluster.studies.bench.collective import CollectiveTime
    from simcluster.studies.search.plan import Found, Ranked
    from simcluster.studies.whatif.difference import Difference
    from simcluster.studies.whatif.straggling import Stragglers
    from simcluster.topology import Cluster

NAME = 70  # characters of a name


def object_line(it: object, name: str, *parts: str) -> str:
    """Return a one-line text of the form "Class(name: part, part)"."""
    return f"{type(it).__name__}({clip_line(name, NAME)}: {', '.join(part for part in parts if part)})"


def _step_time(seconds: float) -> str:
    return f"{format_seconds(seconds)} a step"


def _run_line(run: Run) -> str:
    steps = f"{run.steps:,} steps" if run.steps > 1 else ""
    return object_line(run, _step_time(run.step_time), f"{len(run.ranks):,} rank{'s' * (len(run.ranks) > 1)}", steps)


def _result_line(result: Result) -> str:
    facts, seconds = result.facts, result.step_time
    rate = f"{facts.tokens / seconds:,.0f} tokens/s"
    return object_line(
        result, result.scenario.title, _step_time(seconds), rate, f"MFU {result.mfu:.1%}", f"{facts.ranks:,} GPUs"
    )


def _scenario_line(scenario: Scenario) -> str:
    return object_line(
        scenario, scenario.title, f"{clip_line(describe_gpus(scenario), 50)} | {describe_layout(scenario)}"
    )


def _cluster_line(cluster: Cluster) -> str:
    machines = len(set(cluster.host_of))
    gpus = f"{len(cluster.host_of):,} GPUs in {machines:,} machine{'s' * (machines > 1)}"
    return object_line(cluster, cluster.name, gpus, f"{len(cluster.capacity):,} links")


def _difference_line(found: Difference) -> str:
    sides = (
        f"{clip_line(name, NAME // 2)} {format_seconds(each.step_time)}"
        for name, each in zip(found.names, (found.base, found.other), strict=True)
    )
    return f"Difference({' -> '.join(sides)}: {found.seconds / found.base.step_time:+.1%})"


def _critical_path_line(path: CriticalPath) -> str:
    kind, seconds = next(iter(path.by_kind().items()), ("nothing", 0.0))
    most = f"most of it {kind}, {seconds / path.seconds:.1%}" if path.seconds else ""
    return object_line(path, _step_time(path.seconds), f"{len(path.number):,} spans", most)


def _distribution_line(found: Distribution) -> str:
    low, high = found.interval
    interval = f"{low:.6g} to {high:.6g} s" if len(found) > 1 else "unknown"
    mean = f"{format_seconds(found.mean)} a step on average"
    return object_line(found, f"{len(found):,} replicas", mean, f"95 % interval {interval}",
                  f"{format_seconds(found.planned)} without chance")  # fmt: skip


def _ranked_line(each: Ranked) -> str:
    place = each.layout
    return object_line(each, f"tp {place.tp}, pp {place.pp}, dp {place.dp}, micro batch {place.micro_batch}",
                  _step_time(each.step_time), f"{each.memory / 1e9:.1f} GB per GPU")  # fmt: skip


def _collective_line(time: CollectiveTime) -> str:
    rate = f"bus bandwidth {format_bytes_per_second(time.busbw)}" if time.duration > 0 else ""
    what = f"{time.kind} of {format_bytes(time.size)} on {len(time.gpus):,} GPUs"
    return object_line(time, what, format_seconds(time.duration), rate, time.algorithm)


def _schedule_line(played: TimedSchedule) -> str:
    schedule = played.schedule
    counts = f"{schedule.num_stages} stages, {schedule.num_microbatches} microbatches"
    return object_line(played, schedule.name, counts, f"makespan {float(played.timing.makespan):.6g}",
                  f"bubble {float(played.timing.bubble_over_total):.1%}")  # fmt: skip


def _found_line(found: Found) -> str:
    counts = f"{found.played:,} of {found.total:,} combinations simulated"
    if not found.best:
        return object_line(found, found.base.name, counts)
    place = found.best[0].layout
    best = f"best tp {place.tp}, pp {place.pp}, dp {place.dp}, micro batch {place.micro_batch}"
    return object_line(found, found.base.name, best, _step_time(found.best[0].step_time), counts)


def _stragglers_line(found: Stragglers) -> str:
    dearest = f"dearest {found.causes[0].what}" if found.causes else "nothing straggles"
    return object_line(
        found, _step_time(found.step_time), f"{found.slowdown:.4f} x the step without", clip_line(dearest, 80)
    )


def _records_line(found: Sequence[object]) -> str:
    kinds = " and ".join(dict.fromkeys(type(each).__name__ for each in found)) or "nothing"
    first = f": {found[0]!r}{', ...' if len(found) > 1 else ''}" if found else ""
    return f"Records({len(found):,} x {kinds}{first})"


SHOWN: Mapping[str, Callable[[Any], str]] = {
    "Cluster": _cluster_line,
    "CollectiveTime": _collective_line,
    "CriticalPath": _critical_path_line,
    "Difference": _difference_line,
    "Distribution": _distribution_line,
    "Found": _found_line,
    "TimedSchedule": _schedule_line,
    "Ranked": _ranked_line,
    "Records": _records_line,
    "Result": _result_line,
    "Run": _run_line,
    "Scenario": _scenario_line,
    "Stragglers": _stragglers_line,
}
"""By the name of the class."""
