"""Schedules drawn as text along a time axis, with one line per stage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Schedule
from simcluster.schedules.timing import UNIT_COSTS, ScheduleTiming, Time, time_actions

Bar = tuple[int, int, str]
"""First column, column after the last one, and label of a pass."""


def draw_grid(
    schedule: Schedule, timing: ScheduleTiming[Time] | None = None, unit: Time | int = 1, width: int | None = None
) -> list[str]:
    """Draw a schedule as text: a line per stage, a column per time unit, and a dot in each idle column.

    A line: ``F0 F1 . B0---``. Without a timing F = I = W = 1 and B = 2. A grid of over ``width`` characters continues
    in blocks below, each with a time axis. InputError where an action does not begin and end on a column.
    """
    if timing is None:
        rows = _make_bars(schedule, time_actions(schedule, UNIT_COSTS), 1)
    else:
        rows = _make_bars(schedule, timing, unit)
    columns = max(end for row in rows for _, end, _ in row)
    names = [f"r{stage}" for stage in range(schedule.num_stages)]
    margin = len(names[-1]) + 1
    cell, blocks = _choose_columns(rows, columns, None if width is None else width - margin)
    lines: list[str] = []
    for begin, end in blocks:
        lines += [""] if begin else []
        lines.append("t".ljust(margin) + _draw_axis(begin, end, cell, unit))
        lines += [name.ljust(margin) + _draw_line(row, begin, end, cell) for name, row in zip(names, rows, strict=True)]
    return [line.rstrip() for line in lines]


def find_common_unit(times: Iterable[Fraction]) -> Fraction:
    """Return the largest unit that divides all these times; 1 if all are zero."""
    unit = Fraction(0)
    for time in times:
        denominator = math.lcm(unit.denominator, time.denominator)
        unit = Fraction(math.gcd(int(unit * denominator), int(time * denominator)), denominator)
    return unit or Fraction(1)


def _make_bars(schedule: Schedule, timing: ScheduleTiming[Time], unit: Time | int) -> list[list[Bar]]:
    rows = []
    for stage, actions in enumerate(schedule.rows):
        fused = schedule.fused_positions(stage)
        bars = []
        for position, action in enumerate(actions):
            if position - 1 in fused:
                continue
            label = action.label(schedule.num_chunks)
            if position in fused:
                label = f"[{label}|{actions[position + 1].label(schedule.num_chunks)}]"
            begin = _column_of_time(timing.starts[stage][position], unit, label)
            end = _column_of_time(timing.ends[stage][position], unit, label)
            if end > begin:
                bars.append((begin, end, label))
        rows.append(bars)
    return rows


def _column_of_time(time: Time, unit: Time | int, label: str) -> int:
    column = round(time / unit)
    if abs(time / unit - column) > 1e-6:
        raise InputError(
            f"grid: {label} begins or ends at {time}, which is not a multiple of the unit {unit}; choose a unit "
            f"that divides all durations and the latency"
        )
    return column


def _choose_columns(rows: list[list[Bar]], columns: int, room: int | None) -> tuple[int, list[tuple[int, int]]]:
    """Choose a column width for the labels, and divide the columns into blocks that fit the line width.

    A bar may be cut where its label fits before the cut. If the narrowest columns allow no such cut, a column gets room
    for any label.
    """
    cell = max(math.ceil((len(label) + 1) / (end - begin)) for row in rows for begin, end, label in row)
    if room is None:
        return cell, [(0, columns)]
    bars = [bar for row in rows for bar in row]
    bad_cuts = {column for begin, _, label in bars for column in range(begin + 1, begin + math.ceil(len(label) / cell))}
    blocks = [(0, 0)]
    while blocks[-1][1] < columns:
        begin = blocks[-1][1]
        furthest = min(begin + max(1, room // cell), columns)
        cut = next((c for c in range(furthest, begin, -1) if c == columns or c not in bad_cuts), None)
        if cut is None:
            return _choose_columns([[(0, 1, max((label for *_, label in bars), key=len))]], columns, room)
        blocks.append((begin, cut))
    return cell, blocks[1:]


def _draw_line(bars: list[Bar], first: int, last: int, column_width: int) -> str:
    """Draw a stage's passes between two columns as text: each pass as its label and dashes up to its end.

    The dashes of a bar that is cut continue in the next block.
    """
    parts = []
    clock = first
    for begin, end, label in bars:
        if end <= first or begin >= last:
            continue
        parts.append(".".ljust(column_width) * (begin - clock))
        room = (min(end, last) - max(begin, first)) * column_width - (end <= last)
        parts.append((label if begin >= first else "").ljust(room, "-") + " " * (end <= last))
        clock = end
    parts.append(".".ljust(column_width) * (last - clock))
    return "".join(parts)


def _draw_axis(first: int, last: int, column_width: int, unit: Time | int) -> str:
    room = max(len(f"{float(column * unit):g}") for column in range(first, last + 1)) + 2
    steps: Iterator[int] = (factor * 10**power for power in range(12) for factor in (1, 2, 5))
    step = next(step for step in steps if step * column_width >= room)
    start = -(-first // step) * step
    ticks = (f"{float(column * unit):g}".ljust(step * column_width) for column in range(start, last, step))
    return " " * ((start - first) * column_width) + "".join(ticks)
