"""Printed tables that explain a step time: overlap, traffic, critical path, what-ifs, and replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simcluster.base.units import format_bytes
from simcluster.results.overlap import CommunicationKey, OverlapSeconds
from simcluster.show.output_blocks import HeadlineValues, NamedValue, OutputBlocks, TableBar, TableBlock, TextLines
from simcluster.show.table_cells import cause_css_class, format_seconds_or_dash

if TYPE_CHECKING:
    from simcluster.results.critical_path import CriticalPath
    from simcluster.results.distribution import Distribution, MeanDifference
    from simcluster.results.simulated_run import Run
    from simcluster.results.traffic import AxisTraffic
    from simcluster.studies.whatif.free_ops import FreeOpsResult

_MOST_RANKS = 16


def explain_run(run: Run, free: Sequence[FreeOpsResult]) -> OutputBlocks:
    """Return tables that explain a step time: overlap, traffic, critical path, and time without each kind of op."""
    parts = [critical_path_table(run.critical_path), _what_if_table(free, run.step_time)]
    if run.overlap.mean[CommunicationKey()].calls:
        parts = [_overlap_table(run.overlap.mean), *_traffic_tables(run.traffic), _exposed_by_rank_table(run), *parts]
    return parts


def _overlap_table(mean: Mapping[CommunicationKey, OverlapSeconds]) -> TableBlock:
    header = ["communication (per step, mean over ranks)", "calls", *_TIMES, "shared"]
    rows = []
    for key, value in mean.items():
        name = "all" if not key.axis else key.axis if not key.kind else f"  {key.kind} {key.name}"
        rows.append([name, f"{value.calls:,.4g}", *_overlap_cells(value), format_seconds_or_dash(value.contention)])
    notes = [
        "  on the wire: after the last rank's arrival, overlapped with compute or exposed; waiting: before it;",
        "  shared: time on the wire that is lost because other calls use the same links",
    ]
    return TableBlock(header, rows, notes=notes, indent=2)


def _traffic_tables(traffic: Sequence[AxisTraffic]) -> list[TableBlock]:
    header = ["traffic (per step, mean GPU)", "calls", "buffers", "sent", "between nodes", "on the wire", "overlapped"]
    rows = [
        [each.axis or "all", f"{each.calls:,.4g}", *(format_bytes(size) for size in (each.buffer, each.sent)),
         f"{format_bytes(each.across)} ({each.across / each.sent:.0%})" if each.sent else "-",
         format_seconds_or_dash(each.wire), f"{each.hidden / each.wire:.1%}" if each.wire else "-"]
        for each in traffic
        if not each.kind
    ]  # fmt: skip
    note = "  buffers: full buffer sizes of the calls; sent: bytes that a GPU sends, which depends on the algorithm"
    return [TableBlock(header, rows, notes=[note], indent=2)] if rows else []


def _exposed_by_rank_table(run: Run) -> TableBlock:
    weights, of_rank = run.weights, run.overlap.of_rank
    stages = dict(zip(run.spans.rank.tolist(), run.spans.stage.tolist(), strict=True))
    on_path = run.critical_path.by_rank()
    longest = sorted(weights, key=lambda rank: (-of_rank[rank][CommunicationKey()].exposed, rank))[:_MOST_RANKS]
    rows = []
    for rank in sorted(longest):
        value = of_rank[rank][CommunicationKey()]
        overlap = f"{value.hidden / value.wire:.1%}" if value.wire else "-"
        place = [str(rank), str(weights[rank]), str(stages[rank])]
        rows.append([*place, *_overlap_cells(value), overlap, format_seconds_or_dash(on_path.get(rank, 0.0))])
    header = ["rank", "represents", "stage", *_TIMES, "overlap", "critical path"]
    left = len(weights) - len(rows)
    notes = [f"  {left} more ranks have less exposed communication"] if left else []
    return TableBlock(header, rows, notes=notes, indent=2)


def _what_if_table(free: Sequence[FreeOpsResult], step_time: float) -> TableBlock:
    rows = [
        [each.kind, *map(format_seconds_or_dash, (each.on_path, each.estimate, each.step_time)),
         f"{each.step_time / step_time - 1:+.1%}"]
        for each in free
    ]  # fmt: skip
    header = ["without", "on the path", "step minus path time", "step, simulated", "change"]
    return TableBlock(header, rows, notes=[f"  without {one.kind}: {one.note}" for one in free if one.note], indent=2)


_TIMES = ("on the wire", "overlapped", "exposed", "waiting")


def _overlap_cells(value: OverlapSeconds) -> list[str]:
    return [format_seconds_or_dash(seconds) for seconds in (value.wire, value.hidden, value.exposed, value.waiting)]


# --- replicas and paths -----------------------------------------------------------------------------------------------


def describe_distribution(found: Distribution, sweep_errors: Sequence[float] = ()) -> OutputBlocks:
    """Return printed output about the step times of replicas, which are simulations with different random seeds.

    ``sweep_errors`` has the error of the fast replicas against event simulation, as a fraction of the step.
    """
    mean, (low, high) = found.mean, found.interval
    parts = {"p5": 0.05, "median": 0.5, "p95": 0.95}
    how = "the ops of the step above with random kernel times (longest path)"
    some = " and ".join(f"{each:+.2%}" for each in sweep_errors)
    facts = [
        NamedValue(
            "step time", f"{mean:.6g} s", f" on average, {mean / found.planned - 1:+.2%}",
            f"95 % interval of the mean {low:.6g} to {high:.6g} s",
        ),
        NamedValue("", ", ".join(f"{name} {found.quantile(part):.6g} s" for name, part in parts.items())),
        NamedValue("simulated by", how if found.method == "sweep" else "one full simulation per replica"),
    ]  # fmt: skip
    if any(sweep_errors):
        note = f"assumes unchanged link sharing and interference: off by {some} from full simulations, same seeds"
        facts.append(NamedValue("", note))
    title = f"{len(found):,} replicas with different random seeds (above: the step without randomness)"
    return [HeadlineValues(facts, title)]


def describe_mean_difference(found: MeanDifference) -> OutputBlocks:
    """Return printed output about how the mean step times of two scenarios differ over random seeds."""
    low, high = found.interval
    return [
        TextLines([
            f"{found.mean:+.6g} s per step on average (95 % interval {low:+.6g} to {high:+.6g} s, "
            f"{found.noise_saved:.3g} times narrower because both use the same random numbers)"
        ])
    ]  # fmt: skip


def critical_path_table(path: CriticalPath) -> TableBlock:
    """Return a table of the seconds that each kind of op takes on the critical path."""
    kinds = path.by_kind()
    rows = [[kind, format_seconds_or_dash(seconds), f"{seconds / path.seconds:.1%}"] for kind, seconds in kinds.items()]
    bars = [TableBar(0.0, seconds, cause_css_class(kind)) for kind, seconds in kinds.items()]
    return TableBlock(["critical path of the step", "seconds", "share"], rows, indent=2, bars=bars)


def describe_critical_path(path: CriticalPath) -> OutputBlocks:
    """Return printed output that lists the seconds of each kind of op on a critical path."""
    return [critical_path_table(path)]
