"""Text and JSON output of simcluster schedule: one schedule in full, or a comparison."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from fractions import Fraction

from simcluster.schedules import Schedule
from simcluster.schedules.comparison import StageTimes, TimedSchedule, chunk_share, describe_extra_activations
from simcluster.schedules.text import format_rows, order_lines
from simcluster.schedules.text_grid import draw_grid, find_common_unit
from simcluster.schedules.zb_auto import OptimizedSchedule
from simcluster.show.output_blocks import OutputBlocks, TableBlock, TextLines

_MOST_PRINTED_ACTIONS = 4_096
_MOST_COLUMNS = 4_000
_MOST_GRID_LINES = 100
_MOST_PEAKS = 8
_WIDTH_OF_A_FILE = 200


def schedule_text_blocks(timed: TimedSchedule) -> OutputBlocks:
    """Return the printed report of one schedule: order, timeline, metrics, and metrics by stage."""
    schedule, timing = timed.schedule, timed.timing
    chunks = f", {schedule.num_chunks} chunks per stage" if schedule.num_chunks > 1 else ""
    columns = zip(timing.busy, timing.idle, timing.spans, timing.peak_in_flight, timed.peak_activations, strict=True)
    rows = [
        (f"r{stage}", *map(format_fraction, (busy, idle, span)), str(peak), format_fraction(of_stage))
        for stage, (busy, idle, span, peak, of_stage) in enumerate(columns)
    ]
    share = chunk_share(schedule)
    what = "microbatches" if share == 1 else f"chunks, each {share} of a stage's layers"
    notes = [
        f"(span: first start to last end on the stage; peak in flight: most activations at once, in {what};",
        " per stage: the same in microbatches of all its layers)",
        *_schedule_notes([timed]),
    ]
    return [
        TextLines([
            f"{schedule.name}: {schedule.num_stages} stages, {schedule.num_microbatches} microbatches{chunks}",
            f"assumed: {describe_assumed_times(timed.times, [schedule])}",
        ], "head"),
        TextLines(_order_lines(schedule), "layout"),
        TextLines(_time_grid(timed), "layout"),
        TextLines(_metric_lines(timed), "layout"),
        TableBlock(("stage", "busy", "idle", "span", "peak in flight", "per stage"), rows, notes=notes),
    ]  # fmt: skip


def comparison_blocks(
    shown: Sequence[TimedSchedule], rejected: Sequence[tuple[str, str]], *, grids: bool = True
) -> OutputBlocks:
    """Return the printed comparison of schedules: a table row for each, and timelines if ``grids``."""
    schedules = [played.schedule for played in shown]
    counts = {(schedule.num_stages, schedule.num_microbatches) for schedule in schedules}
    stages, microbatches = min(counts)
    head = f"{stages} stages, {microbatches} microbatches; " if len(counts) == 1 else ""
    header = ("schedule", "chunks", "makespan", "bubble/total", "bubble/ideal", "bubble of span", "weights", "peak",
              "peak by stage")  # fmt: skip
    notes = [
        "(bubble/total: idle / makespan; bubble/ideal: idle / busy, the ideal being M (F + B) on every stage; both are",
        " means over stages.  bubble of span: 1 - busy / longest span of a stage, the bubble if each stage enters",
        " the next step when it finishes.  weights: copies of the model's parameters.  peak: most activations alive at",
        " once, in microbatches of a whole stage)",
        *_schedule_notes(shown),
        *(f"invalid: {name}: {why.partition(': ')[2] or why}" for name, why in rejected),
    ]
    return [
        TextLines([f"{head}assumed: {describe_assumed_times(shown[0].times, schedules)}"]),
        TableBlock(header, [_comparison_row(played) for played in shown], notes=notes),
        *(TextLines([played.schedule.name, *_time_grid(played)], "layout") for played in shown if grids),
    ]


def describe_assumed_times(times: StageTimes, schedules: Sequence[Schedule]) -> str:
    """Describe the assumed times of F, B, I and W and the latency between stages in one line."""
    kinds = {action.kind for schedule in schedules for row in schedule.rows for action in row}
    backward = f"B = {format_fraction(times.backward)}"
    if "I" in kinds:
        backward += f" (I = {format_fraction(times.input)}, W = {format_fraction(times.weight)})"
    if times.pair is not None and any(schedule.fused for schedule in schedules):
        backward += f", a pair {format_fraction(times.pair)}"
    shares = sorted({chunk_share(schedule) for schedule in schedules} - {Fraction(1)}, reverse=True)
    parts = f" ({' or '.join(map(str, shares))} of that per chunk)" if shares else ""
    return (
        f"F = {format_fraction(times.forward)}, {backward} for one microbatch through one stage{parts}, "
        f"latency {format_fraction(times.latency)} between stages, all stages equal"
    )


def schedule_json(timed: TimedSchedule) -> dict[str, object]:
    """Return a schedule as JSON values: times in the user's unit, actions as text."""
    schedule, timing, times = timed.schedule, timed.timing, timed.times
    return {
        "schedule": schedule.name,
        "stages": schedule.num_stages,
        "microbatches": schedule.num_microbatches,
        "chunks": schedule.num_chunks,
        "forward": float(times.forward),
        "backward": float(times.backward),
        "input": float(times.input),
        "weight": float(times.weight),
        "latency": float(times.latency),
        "makespan": float(timing.makespan),
        "ideal": float(timed.ideal_time),
        "longest_span": float(timed.longest_span),
        "bubble_over_total": float(timing.bubble_over_total),
        "bubble_over_ideal": float(timing.bubble_over_ideal),
        "bubble_of_span": float(timed.span_bubble),
        "busy": [float(time) for time in timing.busy],
        "idle": [float(time) for time in timing.idle],
        "spans": [float(time) for time in timing.spans],
        "peak_in_flight": list(timing.peak_in_flight),
        "peak_of_a_stage": [float(peak) for peak in timed.peak_activations],
        "copies_of_weights": timed.weight_copies,
        "rows": format_rows(schedule),
        "notes": _schedule_notes([timed]),
        **({"goal": _goal_json(timed.optimization)} if timed.optimization else {}),
    }


def _goal_json(made: OptimizedSchedule) -> dict[str, object]:
    return {"name": made.goal, "value": float(made.value), "bound": float(made.bound), "proved": made.is_proved_optimal}


def format_fraction(value: Fraction) -> str:
    """Format a fraction: whole numbers exactly, others with six digits."""
    return str(value) if value.denominator == 1 else f"{float(value):.6g}"


def _comparison_row(played: TimedSchedule) -> tuple[str, ...]:
    timing, peaks = played.timing, [format_fraction(peak) for peak in played.peak_activations]
    shown = peaks if len(peaks) <= _MOST_PEAKS else [*peaks[: _MOST_PEAKS - 2], "..", peaks[-1]]
    return (
        played.schedule.name,
        str(played.schedule.num_chunks // played.weight_copies),
        format_fraction(timing.makespan),
        f"{float(timing.bubble_over_total):.2%}",
        f"{float(timing.bubble_over_ideal):.2%}",
        f"{float(played.span_bubble):.2%}",
        f"{played.weight_copies}x",
        format_fraction(max(played.peak_activations)),
        " ".join(shown),
    )


def _order_lines(schedule: Schedule) -> list[str]:
    actions = sum(map(len, schedule.rows))
    if actions > _MOST_PRINTED_ACTIONS:
        return [f"order: too long to print, {actions:,} actions; --json FILE writes it"]
    example = "F0.1: forward of microbatch 0, chunk 1" if schedule.num_chunks > 1 else "F0: forward of microbatch 0"
    return [f"order ({example}; each stage runs its row strictly in order)", *order_lines(schedule)]


def _time_grid(timed: TimedSchedule) -> list[str]:
    schedule, timing, times = timed.schedule, timed.timing, timed.times
    costs = times.chunk_times(schedule)
    kinds = sorted({action.kind for row in schedule.rows for action in row})
    durations = [costs(kind, 0, 0) for kind in kinds] + [times.latency]
    if times.pair is not None and schedule.fused:
        durations.append(times.pair * chunk_share(schedule))
    unit = find_common_unit(durations)
    if timing.makespan / unit <= _MOST_COLUMNS and sum(map(len, schedule.rows)) <= _MOST_PRINTED_ACTIONS:
        width = shutil.get_terminal_size((_WIDTH_OF_A_FILE, 24)).columns
        lines = draw_grid(schedule, timing, unit=unit, width=width)
        if len(lines) <= _MOST_GRID_LINES:
            return [f"time (one column = {format_fraction(unit)}, a dot is idle)", *lines]
    return ["time: too large to print"]


def _metric_lines(timed: TimedSchedule) -> list[str]:
    timing = timed.timing
    return [
        f"makespan           {format_fraction(timing.makespan)}",
        f"without bubble     {format_fraction(timed.ideal_time)}  (microbatches x (F + B))",
        f"bubble over total  {float(timing.bubble_over_total):.2%}  (idle / makespan, mean over stages)",
        f"bubble over ideal  {float(timing.bubble_over_ideal):.2%}  (idle / busy, mean over stages)",
        f"bubble of span     {float(timed.span_bubble):.2%}  (1 - busy / the longest span of a stage, "
        f"{format_fraction(timed.longest_span)})",
    ]


def _schedule_notes(shown: Sequence[TimedSchedule]) -> list[str]:
    goals = [text for played in shown if played.optimization for text in _zb_auto_lines(played, played.optimization)]
    if any(played.schedule.name == "interleaved" and played.schedule.num_chunks == 1 for played in shown):
        return [*goals, "note: one chunk per stage is not interleaved; try --chunks 2"]
    return goals


def _zb_auto_lines(timed: TimedSchedule, made: OptimizedSchedule) -> list[str]:
    more = describe_extra_activations(timed.schedule)
    usual = min(timed.schedule.num_stages, timed.schedule.num_microbatches)
    held = [f"zb-auto: {more}; --memory-limit {usual} holds no more than 1F1B"] if more else []
    return [_goal_line(made), *held]


def _goal_line(made: OptimizedSchedule) -> str:
    what = {"span": "the longest span of a stage", "step": "one step whose optimizer waits for all"}[made.goal]
    if made.is_proved_optimal:
        return f"zb-auto: {what}, {format_fraction(made.value)}, is optimal within the memory limit"
    return (
        f"zb-auto: {what} takes {format_fraction(made.value)}; the lower bound at this memory limit is "
        f"{format_fraction(made.bound)}, and not all values between were tried"
    )
