"""Checker of pipeline schedules: the rules that any schedule must obey to be runnable. Pure."""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Action, Hop, Schedule
from simcluster.schedules.text import marked_lines
from simcluster.schedules.timing import time_actions

_ORDER = {"F": (), "B": ("F",), "I": ("F",), "W": ("I",)}


def check_schedule(schedule: Schedule) -> Schedule:
    """Return the schedule if it can run; raise InputError otherwise, with its rows printed and the fault marked.

    Valid: routes stay inside the grid, and all of them pass through the whole model, so that a chunk is the same slice
    of it on every route; every microbatch has, on every hop of its route and nowhere else, one F and either one B or
    one I and one W; on its stage F comes before B or I, and I before W; a fused pair is one F and one B or I; and a dry
    run ends without deadlock.
    """
    _check_shape(schedule)
    for stage in range(schedule.num_stages):
        _check_row(schedule, stage, _find_positions(schedule, stage))
        _check_pairs(schedule, stage)
    time_actions(schedule, lambda kind, stage, chunk: 1.0)  # its own error tells who waits for what
    return schedule


def require_counts(name: str, num_stages: int, num_microbatches: int, num_chunks: int) -> None:
    """Raise InputError unless stages, microbatches and chunks are integers of at least 1."""
    counts = {"stages": num_stages, "microbatches": num_microbatches, "chunks": num_chunks}
    for what, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise InputError(f"schedule {name!r}: {what} is {count!r}; it must be a whole number of at least 1")


def require_one_chunk(name: str, num_chunks: int) -> None:
    """Raise InputError if several chunks are requested of a schedule whose stages have one."""
    if num_chunks != 1:
        raise InputError(
            f"schedule {name!r} has one chunk per stage, not {num_chunks}; remove chunks, or use "
            f"schedule 'interleaved' for several"
        )


def require_fixed_chunks(name: str, num_chunks: int, own: int, why: str = "") -> None:
    """Raise InputError unless the requested chunks are 1 (the default) or the schedule's fixed number."""
    if num_chunks not in (1, own):
        has = f"{own} chunks per stage" + (f" ({why})" if why else "")
        raise InputError(f"schedule {name!r} has {has}, not {num_chunks}; remove chunks")


def _check_shape(schedule: Schedule) -> None:
    where = f"schedule {schedule.name!r}"
    require_counts(schedule.name, schedule.num_stages, schedule.num_microbatches, schedule.num_chunks)
    if len(schedule.route_of) != schedule.num_microbatches:
        raise InputError(f"{where}: route_of names {len(schedule.route_of)} routes; one for each of its "
                         f"{schedule.num_microbatches} microbatches is needed")  # fmt: skip
    for microbatch, route in enumerate(schedule.route_of):
        if not 0 <= route < len(schedule.routes):
            raise InputError(f"{where}: microbatch {microbatch} takes route {route}; there are {len(schedule.routes)}")
    if schedule.fused and len(schedule.fused) != schedule.num_stages:
        raise InputError(f"{where}: fused has {len(schedule.fused)} rows; {schedule.num_stages} or none are needed")
    for index, hops in enumerate(schedule.routes):
        if not hops or len(set(hops)) < len(hops):
            raise InputError(f"{where}: route {index} {list(hops)} must visit at least one hop, and none of them twice")
        for stage, chunk in hops:
            if not (0 <= stage < schedule.num_stages and 0 <= chunk < schedule.num_chunks):
                raise InputError(
                    f"{where}: route {index} visits chunk {chunk} of stage {stage}; there are {schedule.num_stages} "
                    f"stages of {schedule.num_chunks} chunk(s), counted from 0"
                )
    _check_slices(schedule)


def _check_slices(schedule: Schedule) -> None:
    where = f"schedule {schedule.name!r}"
    slice_of: dict[Hop, tuple[int, int]] = {}
    for index, hops in enumerate(schedule.routes):
        if len(hops) != len(schedule.routes[0]):
            raise InputError(
                f"{where}: route {index} has {len(hops)} hops and route 0 has {len(schedule.routes[0])}; every route "
                f"goes through the whole model, slice by slice"
            )
        for place, hop in enumerate(hops):
            other, there = slice_of.setdefault(hop, (index, place))
            if there != place:
                raise InputError(
                    f"{where}: chunk {hop[1]} of stage {hop[0]} is slice {there} of the model on route {other} and "
                    f"slice {place} on route {index}; a chunk holds one slice: use another chunk for the other route"
                )


def _find_positions(schedule: Schedule, stage: int) -> dict[Action, int]:
    """Return the position of each action of a row; raise InputError for duplicates and misplaced actions."""
    positions: dict[Action, int] = {}
    for position, action in enumerate(schedule.rows[stage]):
        label = action.label(schedule.num_chunks)
        if action.kind not in _ORDER:
            raise _error(schedule, stage, position, f"{label} has an unknown kind", "the kinds are F, B, I and W")
        if not 0 <= action.microbatch < schedule.num_microbatches:
            rule = f"there are {schedule.num_microbatches} microbatches, counted from 0"
            raise _error(schedule, stage, position, f"{label} names a microbatch that does not exist", rule)
        if not schedule.visits(action.microbatch, stage, action.chunk):
            rule = f"its route (stage, chunk) is {_route_text(schedule.route(action.microbatch))}"
            raise _error(schedule, stage, position, f"microbatch {action.microbatch} does not visit this chunk", rule)
        if action in positions:
            rule = f"every action occurs once; the first is at position {positions[action]} of the row"
            raise _error(schedule, stage, position, f"{label} occurs twice", rule)
        positions[action] = position
    return positions


def _check_row(schedule: Schedule, stage: int, positions: dict[Action, int]) -> None:
    """Check that every visiting microbatch has an F and a whole or split backward, in a legal order."""
    end = len(schedule.rows[stage])
    for microbatch, chunk in _list_visits(schedule, stage):
        found = {kind: positions.get(Action(kind, microbatch, chunk)) for kind in ("F", "B", "I", "W")}
        label = Action("F", microbatch, chunk).label(schedule.num_chunks)[1:]
        if found["B"] is not None and (found["I"] is not None or found["W"] is not None):
            rule = "a backward is either one B or one I and one W"
            raise _error(schedule, stage, found["B"], f"B{label} occurs together with I{label} or W{label}", rule)
        whole = found["I"] is None and found["W"] is None
        for kind in ("F", "B") if whole else ("F", "I", "W"):
            position = found[kind]
            if position is None:
                rule = "every microbatch needs F and either B or both I and W on every hop of its route"
                raise _error(schedule, stage, end, f"{kind}{label} is missing; add it to this row", rule)
            for earlier in _ORDER[kind]:
                before = found[earlier]
                if before is not None and before > position:
                    rule = "F comes before B or I, and I before W"
                    raise _error(schedule, stage, position, f"{kind}{label} comes before {earlier}{label}", rule)


def _check_pairs(schedule: Schedule, stage: int) -> None:
    row = schedule.rows[stage]
    last = -2
    for position in schedule.fused_at(stage):
        pair = row[position : position + 2] if position >= 0 else ()
        kinds = "".join(action.kind for action in pair)
        if kinds not in ("FB", "FI") or position < last + 2:
            rule = "a fused pair is one F followed by one B or I; pairs are listed in order and do not overlap"
            raise _error(schedule, stage, min(max(position, 0), len(row)), "this is not a fused pair", rule)
        if pair[0][1:] == pair[1][1:]:
            rule = "the backward needs the end of the forward, which a pair reaches together"
            raise _error(schedule, stage, position, "a pair of one microbatch with itself", rule)
        last = position


def _list_visits(schedule: Schedule, stage: int) -> list[tuple[int, int]]:
    chunks = [[chunk for there, chunk in route if there == stage] for route in schedule.routes]
    return [(m, chunk) for m in range(schedule.num_microbatches) for chunk in chunks[schedule.route_of[m]]]


def _route_text(route: tuple[Hop, ...]) -> str:
    shown = " ".join(map(str, route[:12]))
    return shown if len(route) <= 12 else f"{shown} ... ({len(route)} hops)"


def _error(schedule: Schedule, stage: int, position: int, what: str, rule: str) -> InputError:
    marks = {stage: (position, what)}
    return InputError(f"schedule {schedule.name!r}, stage {stage}: {what}; {rule}\n{marked_lines(schedule, marks)}")
