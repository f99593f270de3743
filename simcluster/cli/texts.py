"""What ``str`` and ``print`` give of an object: the text that its command prints, by the name of its class.

What has a ``summary`` of its own gives that; what is not here and has none gives its line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from simcluster.base.shown import Shown
from simcluster.base.units import format_bytes, format_seconds
from simcluster.show import summary
from simcluster.show.explanation import path_table

if TYPE_CHECKING:
    from simcluster.results.distribution import MeanDifference
    from simcluster.scenario.scenario import Scenario
    from simcluster.schedules.comparison import PlayedSchedule
    from simcluster.studies.bench.collective import CollectiveTime
    from simcluster.studies.search.plan import Found
    from simcluster.studies.state_ladder import StateLadder
    from simcluster.studies.whatif.difference import Difference
    from simcluster.studies.whatif.job_memory import JobMemory
    from simcluster.studies.whatif.straggling import Stragglers
    from simcluster.topology import Cluster


def _scenario(scenario: Scenario) -> str:
    model = scenario.model
    kind = f"{model.layers:,} layers of {model.hidden_size:,}, {model.heads} heads"
    head, *rest = summary.job_lines(scenario)
    return "\n".join([head, kind, *rest])


def _mean_difference(found: MeanDifference) -> str:
    low, high = found.interval
    return (
        f"{found.mean:+.6g} s a step on average (95 % interval {low:+.6g} to {high:+.6g} s); common random "
        f"numbers made that {found.noise_saved:.3g} times narrower"
    )


def _collective(time: CollectiveTime) -> str:
    busbw = f", bus bandwidth {time.busbw / 1e9:.1f} GB/s" if time.duration > 0 else ""
    return (
        f"{time.kind} of {format_bytes(time.size)} on {len(time.gpus):,} GPUs: {format_seconds(time.duration)}{busbw}; "
        f"algorithm {time.algorithm}, detail {time.detail}"
    )


# Of these the command has the text, or a bench: each is imported when it is asked.


def _cluster(cluster: Cluster) -> str:
    from simcluster.studies.bench.describe import describe

    return describe(cluster).format()


def _difference(found: Difference) -> str:
    from simcluster.cli.diff import text_of

    return text_of(found)


def _found(found: Found) -> str:
    from simcluster.cli.plan import text_of

    return text_of(found)


def _memory(found: JobMemory) -> str:
    from simcluster.cli.memory import job_text

    return job_text(found)


def _ladder(found: StateLadder) -> str:
    from simcluster.cli.memory import ladder_text

    return ladder_text(found)


def _schedule(played: PlayedSchedule) -> str:
    from simcluster.cli.schedule_report import report

    return "\n".join(report(played))


def _stragglers(found: Stragglers) -> str:
    from simcluster.cli.stragglers import text_of

    return text_of(found)


def _own_summary(it: Any) -> str | None:
    """What it says of itself; None where that would be this."""
    return str(it.summary()) if getattr(type(it), "summary", Shown.summary) is not Shown.summary else None


SHOWN: Mapping[str, Callable[[Any], str | None]] = {
    "": _own_summary,
    "Cluster": _cluster,
    "CollectiveTime": _collective,
    "CriticalPath": path_table,
    "Difference": _difference,
    "Distribution": summary.replicas,
    "Found": _found,
    "JobMemory": _memory,
    "MeanDifference": _mean_difference,
    "PlayedSchedule": _schedule,
    "Records": lambda found: "\n".join(map(repr, found)),
    "Result": summary.summary,
    "Run": summary.of_run,
    "Scenario": _scenario,
    "StateLadder": _ladder,
    "Stragglers": _stragglers,
}
"""By the name of the class; "" for all others."""
