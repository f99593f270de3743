"""Tables that explain a step time: communication, critical path, steps without a kind of op, and replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simcluster.base.units import format_bytes
from simcluster.results.overlap import CommKey, OverlapSeconds
from simcluster.show.blocks import Answer, Fact, Figures, Lines, TableBar, TableBlock
from simcluster.show.cells import cause_css_class, format_short_seconds

if TYPE_CHECKING:
    from simcluster.results.critical_path import CriticalPath
    from simcluster.results.distribution import Distribution, MeanDifference
    from simcluster.results.played import Run
    from simcluster.results.traffic import AxisTraffic
    from simcluster.studies.whatif.free import Free

_MOST_RANKS = 16


def explain_run(run: Run, free: Sequence[Free]) -> Answer:
    """Return tables that explain a run's step time; ``free`` has the step times without each kind of op."""
    parts = [critical_path_table(run.critical_path), _what_if_table(free, run.step_time)]
    if run.overlap.mean[CommKey()].calls:
        parts = [_overlap_table(run.overlap.mean), *_traffic_tables(run.traffic), _rank_table(run), *parts]
    return parts


def _overlap_table(mean: Mapping[CommKey, OverlapSeconds]) -> TableBlock:
    header = ["communication (a step, mean over ranks)", "calls", *_TIMES, "shared"]
    rows = []
    for key, value in mean.items():
        name = "all" if not key.axis else key.axis if not key.kind else f"  {key.kind} {key.name}"
        rows.append([name, f"{value.calls:,.4g}", *_overlap_cells(value), format_short_seconds(value.contention)])
    notes = [
        "  on the wire: last arrival to end, overlapped with compute or exposed; waiting: own arrival to last arrival;",
        "  shared: the part on the wire that free links would spare",
    ]
    return TableBlock(header, rows, notes=notes, indent=2)


def _traffic_tables(traffic: Sequence[AxisTraffic]) -> list[TableBlock]:
    header = ["traffic (a step, mean GPU)", "calls", "buffers", "sent", "across machines", "on the wire", "hidden"]
    rows = [
        [each.axis or "all", f"{each.calls:,.4g}", *(format_bytes(size) for size in (each.buffer, each.sent)),
         f"{format_bytes(each.across)} ({each.across / each.sent:.0%})" if each.sent else "-",
         format_short_seconds(each.wire), f"{each.hidden / each.wire:.1%}" if each.wire else "-"]
        for each in traffic
        if not each.kind
    ]  # fmt: skip
    note = "  buffers: full sizes of what calls carry; sent: bytes that a GPU sends for them, by how they are done"
    return [TableBlock(header, rows, notes=[note], indent=2)] if rows else []


def _rank_table(run: Run) -> TableBlock:
    weights, of_rank = run.weights, run.overlap.of_rank
    stages = dict(zip(run.spans.rank.tolist(), run.spans.stage.tolist(), strict=True))
    on_path = run.critical_path.by_rank()
    longest = sorted(weights, key=lambda rank: (-of_rank[rank][CommKey()].exposed, rank))[:_MOST_RANKS]
    rows = []
    for rank in sorted(longest):
        value = of_rank[rank][CommKey()]
        overlap = f"{value.hidden / value.wire:.1%}" if value.wire else "-"
        place = [str(rank), str(weights[rank]), str(stages[rank])]
        rows.append([*place, *_overlap_cells(value), overlap, format_short_seconds(on_path.get(rank, 0.0))])
    header = ["rank", "represents", "stage", *_TIMES, "overlap", "critical path"]
    left = len(weights) - len(rows)
    return TableBlock(header, rows, notes=[f"  {left} more ranks expose less"] if left else [], indent=2)


def _what_if_table(free: Sequence[Free], step_time: float) -> TableBlock:
    rows = [
        [each.kind, *map(format_short_seconds, (each.on_path, each.estimate, each.step_time)),
         f"{each.step_time / step_time - 1:+.1%}"]
        for each in free
    ]  # fmt: skip
    header = ["without", "on the path", "step less that", "step, simulated", "change"]
    return TableBlock(header, rows, notes=[f"  {each.kind} free: {each.note}" for each in free if each.note], indent=2)


_TIMES = ("on the wire", "hidden", "exposed", "waiting")


def _overlap_cells(value: OverlapSeconds) -> list[str]:
    return [format_short_seconds(seconds) for seconds in (value.wire, value.hidden, value.exposed, value.waiting)]


# --- replicas and paths -----------------------------------------------------------------------------------------------


def describe_distribution(found: Distribution, off: Sequence[float] = ()) -> Answer:
    """Return the printed blocks about the step times of replicas (one simulation per random seed).

    ``off`` has the error of the fast replicas against event simulation, as a fraction of the step.
    """
    mean, (low, high) = found.mean, found.interval
    parts = {"p5": 0.05, "median": 0.5, "p95": 0.95}
    how = "longest paths through the step above, with other times of kernels"
    some = " and ".join(f"{each:+.2%}" for each in off)
    facts = [
        Fact(
            "step time", f"{mean:.6g} s", f" on average, {mean / found.planned - 1:+.2%}",
            f"95 % interval of the mean {low:.6g} to {high:.6g} s",
        ),
        Fact("", ", ".join(f"{name} {found.quantile(part):.6g} s" for name, part in parts.items())),
        Fact("simulated by", how if found.method == "sweep" else "events, one after the other"),
    ]  # fmt: skip
    if any(off):
        facts.append(Fact("", f"links and interference as without randomness: {some} from events with the same draws"))
    title = f"{len(found):,} replicas with different random draws (above: the step without randomness)"
    return [Figures(facts, title)]


def describe_mean_difference(found: MeanDifference) -> Answer:
    """Return the printed blocks about the difference between the mean step times of two sets of replicas."""
    low, high = found.interval
    return [
        Lines([
            f"{found.mean:+.6g} s a step on average (95 % interval {low:+.6g} to {high:+.6g} s); common random numbers "
            f"made that {found.noise_saved:.3g} times narrower"
        ])
    ]  # fmt: skip


def critical_path_table(path: CriticalPath) -> TableBlock:
    """Return a table of the seconds that each kind of op spends on the critical path."""
    kinds = path.by_kind()
    rows = [[kind, format_short_seconds(seconds), f"{seconds / path.seconds:.1%}"] for kind, seconds in kinds.items()]
    bars = [TableBar(0.0, seconds, cause_css_class(kind)) for kind, seconds in kinds.items()]
    return TableBlock(["critical path of the step", "seconds", "share"], rows, indent=2, bars=bars)


def describe_critical_path(path: CriticalPath) -> Answer:
    """Return the printed blocks about a critical path."""
    return [critical_path_table(path)]
