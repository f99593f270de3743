"""Schedules as text, one line per stage, with marks below a line for errors."""

from __future__ import annotations

from collections.abc import Mapping

from simcluster.schedules.actions import Schedule

_MOST_STAGES = 8
_ACTIONS_AROUND = 8


def order_lines(schedule: Schedule) -> list[str]:
    """Return one line per stage, such as ``r0 F0 [F1|B0] B1``; ``F3.1`` is microbatch 3, chunk 1."""
    return [_stage_label(schedule, stage) + row for stage, row in enumerate(format_rows(schedule))]


def format_rows(schedule: Schedule) -> list[str]:
    """Return each stage's row as text, in the format that ``actions.parse_row`` reads."""
    return ["".join(_action_words(schedule, stage)).rstrip() for stage in range(schedule.num_stages)]


def format_marked_rows(schedule: Schedule, marks: Mapping[int, tuple[int, str]]) -> str:
    """Return a schedule's rows as text, with a caret and a note below one action of each stage in ``marks``.

    ``marks`` maps a stage to the position in its row (the row's length marks its end) and a note. Large schedules are
    cut down to the marked stages and to the neighbourhood of the marks.
    """
    stages = range(schedule.num_stages) if schedule.num_stages <= _MOST_STAGES else sorted(marks)[:_MOST_STAGES]
    lines = []
    for stage in stages:
        pieces = _action_words(schedule, stage)
        position, note = marks.get(stage, (0, ""))
        begin = max(0, position - _ACTIONS_AROUND)
        end = position + _ACTIONS_AROUND if stage in marks else 2 * _ACTIONS_AROUND
        head = "  " + _stage_label(schedule, stage) + ("... " if begin else "")
        tail = "..." if end < len(pieces) else ""
        lines.append((head + "".join(pieces[begin:end]) + tail).rstrip())
        if stage in marks:
            caret = "^" * max(1, len(pieces[position].strip(" |[]"))) if position < len(pieces) else "^"
            indent = len(head + "".join(pieces[begin:position]))
            indent += position < len(pieces) and pieces[position].startswith("[")
            lines.append(f"{' ' * indent}{caret} <-- here{note and ', ' + note}")
    if len(stages) < schedule.num_stages:
        lines.append(f"  ({schedule.num_stages - len(stages)} more stages are not shown)")
    return "\n".join(lines)


def _stage_label(schedule: Schedule, stage: int) -> str:
    return f"r{stage}".ljust(len(f"r{schedule.num_stages - 1}")) + " "


def _action_words(schedule: Schedule, stage: int) -> list[str]:
    pieces = [action.label(schedule.num_chunks) + " " for action in schedule.rows[stage]]
    for position in schedule.fused_positions(stage):
        if position + 1 < len(pieces):
            pieces[position] = "[" + pieces[position].strip() + "|"
            pieces[position + 1] = pieces[position + 1].strip() + "] "
    return pieces
