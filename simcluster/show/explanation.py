"""Why a step takes as long as it does, as text: communication, the critical path, the step if a kind were free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simcluster.base.units import format_bytes, format_seconds
from simcluster.results.overlap import Key, OverlapSeconds

if TYPE_CHECKING:
    from simcluster.results.critical_path import CriticalPath
    from simcluster.results.played import Run
    from simcluster.results.traffic import AxisTraffic
    from simcluster.studies.whatif.free import Free

_MOST_RANKS = 16


def explanation(run: Run, free: Sequence[Free]) -> str:
    """All tables; ``free`` is what ``whatif.what_if_free`` found."""
    parts = [path_table(run.critical_path), _what_if(free, run.step_time)]
    if run.overlap.mean[Key()].calls:
        parts = [_overlap(run.overlap.mean), *_traffic(run.traffic), _ranks(run), *parts]
    return "\n\n".join(parts)


def _overlap(mean: Mapping[Key, OverlapSeconds]) -> str:
    header = [
        "communication (a step, mean over ranks)",
        "calls",
        "on the wire",
        "hidden",
        "exposed",
        "waiting",
        "shared",
    ]
    rows = []
    for key, value in mean.items():
        name = "all" if not key.axis else key.axis if not key.kind else f"  {key.kind} {key.name}"
        rows.append([name, f"{value.calls:,.4g}", *_times(value), _seconds(value.contention)])
    notes = (
        "  on the wire: last arrival to end, hidden beside compute or exposed; waiting: own arrival to last arrival;",
        "  shared: the part on the wire that free links would spare",
    )
    return "\n".join([_table(header, rows), *notes])


def _traffic(traffic: Sequence[AxisTraffic]) -> list[str]:
    """Bytes by axis; nothing where durations were given."""
    header = ["traffic (a step, mean GPU)", "calls", "buffers", "sent", "across machines", "on the wire", "hidden"]
    rows = [
        [each.axis or "all", f"{each.calls:,.4g}", *(format_bytes(size) for size in (each.buffer, each.sent)),
         f"{format_bytes(each.across)} ({each.across / each.sent:.0%})" if each.sent else "-", _seconds(each.wire),
         f"{each.hidden / each.wire:.1%}" if each.wire else "-"]
        for each in traffic
        if not each.kind
    ]  # fmt: skip
    note = "  buffers: full sizes of what calls carry; sent: bytes that a GPU sends for them, by how they are done"
    return [f"{_table(header, rows)}\n{note}"] if rows else []


def _ranks(run: Run) -> str:
    weights, of_rank = run.weights, run.overlap.of_rank
    stages = dict(zip(run.spans.rank.tolist(), run.spans.stage.tolist(), strict=True))
    on_path = run.critical_path.by_rank()
    longest = sorted(weights, key=lambda rank: (-of_rank[rank][Key()].exposed, rank))[:_MOST_RANKS]
    rows = []
    for rank in sorted(longest):
        value = of_rank[rank][Key()]
        overlap = f"{value.hidden / value.wire:.1%}" if value.wire else "-"
        standing = [str(rank), str(weights[rank]), str(stages[rank])]
        rows.append([*standing, *_times(value), overlap, _seconds(on_path.get(rank, 0.0))])
    header = ["rank", "stands for", "stage", "on the wire", "hidden", "exposed", "waiting", "overlap", "critical path"]
    left = len(weights) - len(rows)
    more = f"\n  {left} more ranks expose less" if left else ""
    return _table(header, rows) + more


def path_table(path: CriticalPath) -> str:
    """Seconds of every kind of op on the critical path."""
    rows = [[kind, _seconds(seconds), f"{seconds / path.seconds:.1%}"] for kind, seconds in path.by_kind().items()]
    return _table(["critical path of the step", "seconds", "share"], rows)


def _what_if(free: Sequence[Free], step_time: float) -> str:
    rows = [
        [each.kind, _seconds(each.on_path), _seconds(each.estimate), _seconds(each.step_time),
         f"{each.step_time / step_time - 1:+.1%}"]
        for each in free
    ]  # fmt: skip
    header = ["if this were free", "on the path", "step less that", "step, played", "change"]
    return "\n".join([_table(header, rows), *(f"  {each.kind} free: {each.note}" for each in free if each.note)])


def _times(value: OverlapSeconds) -> list[str]:
    return [_seconds(seconds) for seconds in (value.wire, value.hidden, value.exposed, value.waiting)]


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds > 1e-12 else "-"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(cells))
        for cells in (zip(row, widths, strict=True) for row in (header, *rows))
    ]
    return "\n".join(f"  {line}".rstrip() for line in lines)
