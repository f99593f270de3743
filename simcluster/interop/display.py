"""Reprs of trace objects: one-line texts (``LINES``), and the commands' full reports (``TEXTS``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.display import clip_line
from simcluster.base.units import format_seconds
from simcluster.show.repr_lines import NAME, repr_line

if TYPE_CHECKING:
    from simcluster.interop.export.trace_export import TraceFiles
    from simcluster.interop.replay.step_times import Removal, SlowPlace, StepStragglers
    from simcluster.interop.replay.straggler_metrics import StragglerMetrics
    from simcluster.interop.trace_comparison.trace_difference import TraceDifference
    from simcluster.show.output_blocks import OutputBlock, OutputBlocks


def _trace_difference_line(found: TraceDifference) -> str:
    sides = zip(found.names, (found.simulated, found.recorded), strict=True)
    text = " -> ".join(f"{clip_line(name, NAME // 2)} {format_seconds(side.seconds)}" for name, side in sides)
    return f"TraceDifference({text}: {found.seconds / found.simulated.seconds:+.1%})"


def _trace_files_line(found: TraceFiles) -> str:
    last = found.files[-1] if len(found.files) == 1 else found.files[0].parent
    return repr_line(found, str(last), f"{len(found.ranks):,} of {found.job_ranks:,} ranks")


def _straggler_metrics_line(found: StragglerMetrics) -> str:
    return f"StragglerMetrics(S {found.slowdown:.4f}: {len(found.steps)} steps, error of the replay {found.error:.1%})"


LINES: Mapping[str, Callable[[Any], str]] = {
    "StragglerMetrics": _straggler_metrics_line,
    "TraceDifference": _trace_difference_line,
    "TraceFiles": _trace_files_line,
}


def _trace_difference_text(found: TraceDifference) -> str:
    from simcluster.interop.trace_comparison.comparison_text import report_blocks
    from simcluster.show.output_blocks import render_as_text

    return render_as_text(report_blocks(found))


_SHOWN = 8
_SYNCHRONISED = (
    "the ranks agree within 0.5 %: either no rank is slow, or the times include the wait for the slowest rank, as",
    "whole steps of a synchronous job do; S and slow ranks cannot be known from them: log the time of computation,",
    "or the time until a rank waits for the others",
)
_PARTS = {"persistent": "slow ranks", "transient": "single steps of a rank", "spread": "no outlier"}


def step_straggler_blocks(found: StepStragglers) -> OutputBlocks:
    """Return the printed output about stragglers in step times by rank."""
    from simcluster.show.output_blocks import HeadlineValues, NamedValue, TextLines

    count = f"{found.steps:,} reports" if found.ranks is None else f"{found.ranks:,} ranks, {found.steps:,} steps"
    times = [("step time", found.step_s, "waits included"), ("T", found.slowest_s, "slowest rank, mean over steps"),
             ("T_ideal", found.typical_s, "median rank, mean over steps")]  # fmt: skip
    values = [NamedValue(name, format_seconds(time), remark=remark) for name, time, remark in times if time is not None]
    if found.slowdown is not None:
        values.append(NamedValue("S", f"{found.slowdown:.4f}", remark="T / T_ideal"))
    if found.most_slowdown is not None:
        values.append(NamedValue("S", f"at most {found.most_slowdown:.4f}", remark="slowest over fastest rank"))
    values += [NamedValue(f"  {name}", f"{part:+.4f}", remark=_PARTS[name]) for name, part in found.parts.items()]
    blocks: list[OutputBlock] = [TextLines([f"{found.name}: {count}; times: {found.timed}"]), HeadlineValues(values)]
    if found.synchronised:
        blocks.append(TextLines(_SYNCHRONISED))
    if found.times_slowest:
        most = ", ".join(f"{rank} ({count} of {found.steps:,})" for rank, count in found.times_slowest[:_SHOWN])
        blocks.append(TextLines([f"slowest ranks by reports: {most}"]))
    blocks += [*_slow_places_table("rank", found.by_rank), *_slow_places_table("node", found.by_node)]
    blocks += [*_removals_table(found, found.remove_ranks), *_removals_table(found, found.remove_nodes)]
    return [*blocks, TextLines(found.notes)]


def _slow_places_table(kind: str, places: Sequence[SlowPlace]) -> list[OutputBlock]:
    from simcluster.show.output_blocks import TableBlock, TextLines

    named = [place for place in places if place.slow or place.events]
    if not named:
        return [TextLines([f"no {kind} is slow in all its steps or in single ones"])] if places else []
    rows = [
        [place.name, f"{place.factor:.4f}", "persistent" if place.slow else "", f"{place.events:,}",
         f"{place.slowdown:.4f}"]
        for place in named[:_SHOWN]
    ]  # fmt: skip
    more = [f"  and {len(named) - _SHOWN:,} more (--json)"] if len(named) > _SHOWN else []
    title = [f"slow {kind}s, if all do equal work; factor: median time over the typical one;"]
    title += ["transient: steps that took unusually long; S: if it alone were slow"]
    return [TableBlock([kind, "factor", "", "transient", "S"], rows, title=title, notes=more)]


def _removals_table(found: StepStragglers, removals: Sequence[Removal]) -> list[OutputBlock]:
    from simcluster.show.output_blocks import TableBlock

    whole = found.slowest_s if found.step_s is None else found.step_s
    rows = [
        [f"+ {each.names[-1]}" if len(each.names) > 1 else each.names[0], format_seconds(each.slowest_s),
         f"{(found.slowest_s - each.slowest_s) / whole:.2%}", f"{each.excess_removed:.1%}"]
        for each in removals
    ]  # fmt: skip
    title = ["removing the slowest, one after the other: what typical times there would save at most"]
    return [TableBlock(["removed", "T", "of the step", "of T - T_ideal"], rows, title=title)] if rows else []


def _step_stragglers_text(found: StepStragglers) -> str:
    from simcluster.show.output_blocks import render_as_text

    return render_as_text(step_straggler_blocks(found))


TEXTS: Mapping[str, Callable[[Any], str]] = {
    "StepStragglers": _step_stragglers_text,
    "TraceDifference": _trace_difference_text,
}
