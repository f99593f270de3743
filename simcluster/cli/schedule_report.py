"""Text and JSON of simcluster schedule: one schedule in full, or several compared."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from fractions import Fraction

from simcluster.schedules import Schedule
from simcluster.schedules.comparison import StageTimes, TimedSchedule, chunk_share, describe_extra_activations
from simcluster.schedules.grid import common_unit, draw_grid
from simcluster.schedules.text import order_lines, row_texts
from simcluster.schedules.zb_auto import OptimizedSchedule
from simcluster.show.blocks import Answer, Lines, TableBlock

_MOST_PRINTED_ACTIONS = 4_096
_MOST_COLUMNS = 4_000
_MOST_GRID_LINES = 100
_MOST_PEAKS = 8
_WIDTH_OF_A_FILE = 200


def schedule_answer(played: TimedSchedule) -> Answer:
    """Return the text blocks about one schedule: order, timeline, numbers, and numbers by stage."""
    schedule, timing = played.schedule, played.timing
    chunks = f", {schedule.num_chunks} chunks per stage" if schedule.num_chunks > 1 else ""
    columns = zip(timing.busy, timing.idle, timing.spans, timing.peak_in_flight, played.peaks, strict=True)
    rows = [
        (f"r{stage}", as_text(busy), as_text(idle), as_text(span), str(peak), as_text(of_stage))
        for stage, (busy, idle, span, peak, of_stage) in enumerate(columns)
    ]
    share = chunk_share(schedule)
    what = "microbatches" if share == 1 else f"chunks, each {share} of a stage's layers"
    notes = [
        f"(span: first start to last end on the stage; peak in flight: most activations at once, in {what};",
        " per stage: the same in microbatches of all its layers)",
        *_schedule_notes([played]),
    ]
    return [
        Lines([
            f"{schedule.name}: {schedule.num_stages} stages, {schedule.num_microbatches} microbatches{chunks}",
            f"assumed: {assumed_times(played.times, [schedule])}",
        ], "head"),
        Lines(_order_lines(schedule), "layout"),
        Lines(_time_grid(played), "layout"),
        Lines(_number_lines(played), "layout"),
        TableBlock(("stage", "busy", "idle", "span", "peak in flight", "per stage"), rows, notes=notes),
    ]  # fmt: skip


def comparison_answer(
    shown: Sequence[TimedSchedule], refused: Sequence[tuple[str, str]], *, grids: bool = True
) -> Answer:
    """Return the text blocks that compare schedules: a row for each, and timelines if ``grids``."""
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
        *(f"invalid: {name}: {why.partition(': ')[2] or why}" for name, why in refused),
    ]
    return [
        Lines([f"{head}assumed: {assumed_times(shown[0].times, schedules)}"]),
        TableBlock(header, [_comparison_row(played) for played in shown], notes=notes),
        *(Lines([played.schedule.name, *_time_grid(played)], "layout") for played in shown if grids),
    ]


def assumed_times(times: StageTimes, schedules: Sequence[Schedule]) -> str:
    """Describe the assumed times of F, B, I, W and the latency on one line."""
    kinds = {action.kind for schedule in schedules for row in schedule.rows for action in row}
    backward = f"B = {as_text(times.backward)}"
    if "I" in kinds:
        backward += f" (I = {as_text(times.input)}, W = {as_text(times.weight)})"
    pairs = "" if times.pair is None or not any(s.fused for s in schedules) else f", a pair {as_text(times.pair)}"
    shares = sorted({chunk_share(schedule) for schedule in schedules} - {Fraction(1)}, reverse=True)
    parts = f" ({' or '.join(map(str, shares))} of that per chunk)" if shares else ""
    return (
        f"F = {as_text(times.forward)}, {backward}{pairs} for one microbatch through one stage{parts}, "
        f"latency {as_text(times.latency)} between stages, all stages equal"
    )


def schedule_document(played: TimedSchedule) -> dict[str, object]:
    """Return a schedule as JSON-ready values: times in the unit of the arguments, actions as text."""
    schedule, timing, times = played.schedule, played.timing, played.times
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
        "ideal": float(played.ideal),
        "longest_span": float(played.longest_span),
        "bubble_over_total": float(timing.bubble_over_total),
        "bubble_over_ideal": float(timing.bubble_over_ideal),
        "bubble_of_span": float(played.bubble_of_span),
        "busy": [float(time) for time in timing.busy],
        "idle": [float(time) for time in timing.idle],
        "spans": [float(time) for time in timing.spans],
        "peak_in_flight": list(timing.peak_in_flight),
        "peak_of_a_stage": [float(peak) for peak in played.peaks],
        "copies_of_weights": played.copies,
        "rows": row_texts(schedule),
        "notes": _schedule_notes([played]),
        **({"goal": _goal_document(played.automatic)} if played.automatic else {}),
    }


def _goal_document(made: OptimizedSchedule) -> dict[str, object]:
    return {"name": made.goal, "value": float(made.value), "bound": float(made.bound), "proved": made.proved}


def as_text(value: Fraction) -> str:
    """Format a fraction: exact if it is a whole number, else with six digits."""
    return str(value) if value.denominator == 1 else f"{float(value):.6g}"


def _comparison_row(played: TimedSchedule) -> tuple[str, ...]:
    timing, peaks = played.timing, [as_text(peak) for peak in played.peaks]
    shown = peaks if len(peaks) <= _MOST_PEAKS else [*peaks[: _MOST_PEAKS - 2], "..", peaks[-1]]
    return (
        played.schedule.name,
        str(played.schedule.num_chunks // played.copies),
        as_text(timing.makespan),
        f"{float(timing.bubble_over_total):.2%}",
        f"{float(timing.bubble_over_ideal):.2%}",
        f"{float(played.bubble_of_span):.2%}",
        f"{played.copies}x",
        as_text(max(played.peaks)),
        " ".join(shown),
    )


def _order_lines(schedule: Schedule) -> list[str]:
    actions = sum(map(len, schedule.rows))
    if actions > _MOST_PRINTED_ACTIONS:
        return [f"order: too long to print, {actions:,} actions; --json FILE writes it"]
    example = "F0.1: forward of microbatch 0, chunk 1" if schedule.num_chunks > 1 else "F0: forward of microbatch 0"
    return [f"order ({example}; each stage runs its row strictly in order)", *order_lines(schedule)]


def _time_grid(played: TimedSchedule) -> list[str]:
    schedule, timing, times = played.schedule, played.timing, played.times
    costs = times.chunk_times(schedule)
    kinds = sorted({action.kind for row in schedule.rows for action in row})
    durations = [costs(kind, 0, 0) for kind in kinds] + [times.latency]
    if times.pair is not None and schedule.fused:
        durations.append(times.pair * chunk_share(schedule))
    unit = common_unit(durations)
    if timing.makespan / unit <= _MOST_COLUMNS and sum(map(len, schedule.rows)) <= _MOST_PRINTED_ACTIONS:
        width = shutil.get_terminal_size((_WIDTH_OF_A_FILE, 24)).columns
        lines = draw_grid(schedule, timing, unit=unit, width=width)
        if len(lines) <= _MOST_GRID_LINES:
            return [f"time (one column = {as_text(unit)}, a dot is idle)", *lines]
    return ["time: too large to print"]


def _number_lines(played: TimedSchedule) -> list[str]:
    timing = played.timing
    return [
        f"makespan           {as_text(timing.makespan)}",
        f"without bubble     {as_text(played.ideal)}  (microbatches x (F + B))",
        f"bubble over total  {float(timing.bubble_over_total):.2%}  (idle / makespan, mean over stages)",
        f"bubble over ideal  {float(timing.bubble_over_ideal):.2%}  (idle / busy, mean over stages)",
        f"bubble of span     {float(played.bubble_of_span):.2%}  (1 - busy / the longest span of a stage, "
        f"{as_text(played.longest_span)})",
    ]


def _schedule_notes(shown: Sequence[TimedSchedule]) -> list[str]:
    goals = [text for played in shown if played.automatic for text in _zb_auto_lines(played, played.automatic)]
    if any(played.schedule.name == "interleaved" and played.schedule.num_chunks == 1 for played in shown):
        return [*goals, "note: one chunk per stage is not interleaved; try --chunks 2"]
    return goals


def _zb_auto_lines(played: TimedSchedule, made: OptimizedSchedule) -> list[str]:
    more = describe_extra_activations(played.schedule)
    usual = min(played.schedule.num_stages, played.schedule.num_microbatches)
    held = [f"zb-auto: {more}; --memory-limit {usual} holds no more than 1F1B"] if more else []
    return [_goal_line(made), *held]


def _goal_line(made: OptimizedSchedule) -> str:
    what = {"span": "the longest span of a stage", "step": "one step whose optimizer waits for all"}[made.goal]
    if made.proved:
        return f"zb-auto: {what}, {as_text(made.value)}, is optimal within the memory limit"
    return (
        f"zb-auto: {what} takes {as_text(made.value)}; the lower bound at this memory limit is "
        f"{as_text(made.bound)}, and not all values between were tried"
    )
