"""Checker of pipeline schedules: the rules for a schedule that can run."""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Action, Hop, Schedule
from simcluster.schedules.text import format_marked_rows
from simcluster.schedules.timing import time_actions

_ORDER = {"F": (), "B": ("F",), "I": ("F",), "W": ("I",)}


def check_schedule(schedule: Schedule) -> Schedule:
    """Return the schedule if it can run; otherwise raise an InputError that marks the error in the schedule's rows.

    Valid: routes stay inside the grid, and all of them pass through the whole model, so that a chunk is the same slice
    of it on every route; every microbatch has, on every hop of its route and nowhere else, one F and either one B or
    one I and one W; on its stage F comes before B or I, and I before W; a fused pair is one F and one B or I, or
    two of a kind; and a dry run ends without deadlock.
    """
    _check_counts_and_routes(schedule)
    for stage in range(schedule.num_stages):
        _check_row(schedule, stage, _find_action_positions(schedule, stage))
        _check_fused_pairs(schedule, stage)
    time_actions(schedule, lambda kind, stage, chunk: 1.0)  # raises an error that shows which actions wait
    return schedule


def require_counts(name: str, num_stages: int, num_microbatches: int, num_chunks: int) -> None:
    """Raise InputError unless the numbers of stages, microbatches and chunks are integers of at least 1."""
    counts = {"stages": num_stages, "microbatches": num_microbatches, "chunks": num_chunks}
    for what, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise InputError(f"schedule {name!r}: {what} is {count!r}; it must be a whole number of at least 1")


def require_one_chunk(name: str, num_chunks: int) -> None:
    """Raise InputError if the job requests several chunks per stage of a schedule that has only one."""
    if num_chunks != 1:
        raise InputError(
            f"schedule {name!r} has one chunk per stage, not {num_chunks}; set chunks to 1, or use "
            f"schedule 'interleaved', which takes several chunks"
        )


def require_fixed_chunks(name: str, num_chunks: int, fixed: int, why: str = "") -> None:
    """Raise InputError if the job's number of chunks differs from the schedule's fixed number (1 is the default)."""
    if num_chunks not in (1, fixed):
        has = f"{fixed} chunks per stage" + (f" ({why})" if why else "")
        raise InputError(f"schedule {name!r} has {has}, not {num_chunks}; set chunks to {fixed}, or omit it")


def _check_counts_and_routes(schedule: Schedule) -> None:
    where = f"schedule {schedule.name!r}"
    require_counts(schedule.name, schedule.num_stages, schedule.num_microbatches, schedule.num_chunks)
    if len(schedule.route_of) != schedule.num_microbatches:
        raise InputError(f"{where}: route_of has {len(schedule.route_of)} entries; it must have one for each of "
                         f"the {schedule.num_microbatches} microbatches")  # fmt: skip
    for microbatch, route in enumerate(schedule.route_of):
        if not 0 <= route < len(schedule.routes):
            raise InputError(f"{where}: route_of[{microbatch}] is {route}; there are {len(schedule.routes)} routes")
    if schedule.fused and len(schedule.fused) != schedule.num_stages:
        raise InputError(f"{where}: 'fused' has {len(schedule.fused)} rows; it must have {schedule.num_stages} or none")
    for index, hops in enumerate(schedule.routes):
        if not hops or len(set(hops)) < len(hops):
            raise InputError(f"{where}: route {index} {list(hops)} must have at least one hop, and no hop twice")
        for stage, chunk in hops:
            if not (0 <= stage < schedule.num_stages and 0 <= chunk < schedule.num_chunks):
                raise InputError(
                    f"{where}: route {index} visits chunk {chunk} of stage {stage}; there are {schedule.num_stages} "
                    f"stages of {schedule.num_chunks} chunk(s), counted from 0"
                )
    _check_one_slice_per_chunk(schedule)


def _check_one_slice_per_chunk(schedule: Schedule) -> None:
    where = f"schedule {schedule.name!r}"
    slice_of: dict[Hop, tuple[int, int]] = {}
    for index, hops in enumerate(schedule.routes):
        if len(hops) != len(schedule.routes[0]):
            raise InputError(
                f"{where}: route {index} has {len(hops)} hops and route 0 has {len(schedule.routes[0])}; all must be "
                f"equally long, as each goes through every model slice"
            )
        for place, hop in enumerate(hops):
            other, there = slice_of.setdefault(hop, (index, place))
            if there != place:
                raise InputError(
                    f"{where}: chunk {hop[1]} of stage {hop[0]} is slice {there} of the model on route {other} and "
                    f"slice {place} on route {index}; a chunk holds one slice: use another chunk for the other route"
                )


def _find_action_positions(schedule: Schedule, stage: int) -> dict[Action, int]:
    """Map each action of a stage's row to its position; raise InputError for duplicate or misplaced actions."""
    positions: dict[Action, int] = {}
    for place, action in enumerate(schedule.rows[stage]):
        label = action.label(schedule.num_chunks)
        if action.kind not in _ORDER:
            raise _row_error(schedule, stage, place, f"{label} has an unknown kind", "the kinds are F, B, I and W")
        if not 0 <= action.microbatch < schedule.num_microbatches:
            rule = f"there are {schedule.num_microbatches} microbatches, counted from 0"
            raise _row_error(schedule, stage, place, f"{label} names a microbatch that does not exist", rule)
        if not schedule.visits_chunk(action.microbatch, stage, action.chunk):
            rule = f"its route (stage, chunk) is {_route_text(schedule.microbatch_route(action.microbatch))}"
            raise _row_error(schedule, stage, place, f"microbatch {action.microbatch} does not visit this chunk", rule)
        if action in positions:
            rule = f"every action occurs once; the first is at position {positions[action]} of the row"
            raise _row_error(schedule, stage, place, f"{label} occurs twice", rule)
        positions[action] = place
    return positions


def _check_row(schedule: Schedule, stage: int, positions: dict[Action, int]) -> None:
    """Check that a row has F and either B or both I and W of each of its microbatches, in a legal order."""
    end = len(schedule.rows[stage])
    for microbatch, chunk in _list_microbatch_chunks(schedule, stage):
        found = {kind: positions.get(Action(kind, microbatch, chunk)) for kind in ("F", "B", "I", "W")}
        label = Action("F", microbatch, chunk).label(schedule.num_chunks)[1:]
        if found["B"] is not None and (found["I"] is not None or found["W"] is not None):
            rule = "a backward is either one B or one I and one W"
            raise _row_error(schedule, stage, found["B"], f"B{label} occurs together with I{label} or W{label}", rule)
        whole = found["I"] is None and found["W"] is None
        for kind in ("F", "B") if whole else ("F", "I", "W"):
            position = found[kind]
            if position is None:
                rule = "every microbatch needs F and either B or both I and W on every hop of its route"
                raise _row_error(schedule, stage, end, f"{kind}{label} is missing; add it to this row", rule)
            for earlier in _ORDER[kind]:
                before = found[earlier]
                if before is not None and before > position:
                    rule = "F comes before B or I, and I before W"
                    raise _row_error(schedule, stage, position, f"{kind}{label} comes before {earlier}{label}", rule)


def _check_fused_pairs(schedule: Schedule, stage: int) -> None:
    row = schedule.rows[stage]
    last = -2
    for position in schedule.fused_positions(stage):
        pair = row[position : position + 2] if position >= 0 else ()
        kinds = "".join(action.kind for action in pair)
        if kinds not in ("FB", "FI", "FF", "BB", "II") or position < last + 2:
            rule = "a fused pair is F before B or I, or two F, B or I; pairs are listed in order and do not overlap"
            raise _row_error(schedule, stage, min(max(position, 0), len(row)), "this is not a fused pair", rule)
        if pair[0].microbatch == pair[1].microbatch and (pair[0].chunk == pair[1].chunk or kinds[0] == kinds[1]):
            rule = "passes of one microbatch wait for each other: pair it with another microbatch"
            raise _row_error(schedule, stage, position, "both passes of this pair are of the same microbatch", rule)
        last = position


def _list_microbatch_chunks(schedule: Schedule, stage: int) -> list[tuple[int, int]]:
    chunks = [[chunk for there, chunk in route if there == stage] for route in schedule.routes]
    return [(m, chunk) for m in range(schedule.num_microbatches) for chunk in chunks[schedule.route_of[m]]]


def _route_text(route: tuple[Hop, ...]) -> str:
    shown = " ".join(map(str, route[:12]))
    return shown if len(route) <= 12 else f"{shown} ... ({len(route)} hops)"


def _row_error(schedule: Schedule, stage: int, position: int, what: str, rule: str) -> InputError:
    rows = format_marked_rows(schedule, {stage: (position, what)})
    return InputError(f"schedule {schedule.name!r}, stage {stage}: {what}; {rule}\n{rows}")
