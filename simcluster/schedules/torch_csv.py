"""Reader and writer of the schedule CSV files of ``torch.distributed.pipelining`` and torchtitan.

A row per rank, a cell per action: ``<stage><op><microbatch>`` with F, B, I, W, and ``(0F7;7B3)OVERLAP_F_B`` for a fused
pair; an empty cell is idle. "Stage" there is a slice of the model, our virtual stage, and "rank" our stage. Format as
written and read by torch 2.13, ``torch/distributed/pipelining/schedules.py`` (``_dump_csv``, ``_load_csv``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate, chain
from typing import cast

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Action, Hop, Kind, Route, Schedule
from simcluster.schedules.check import check_schedule

_CELL = re.compile(r"([0-9]{1,9})(F|B|I|W)([0-9]{1,9})")
_PAIR = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_AROUND = re.compile(r"[0-9]+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*")


def to_csv(schedule: Schedule) -> str:
    """Return the schedule in torch's CSV format, one line per stage, without idle cells."""
    lines = []
    for stage, row in enumerate(schedule.rows):
        cells: list[str] = []
        second = False
        for position, action in enumerate(row):
            place = schedule.virtual_stage(action.microbatch, stage, action.chunk)
            cell = f"{place}{action.kind}{action.microbatch}"
            if second and row[position - 1].kind == action.kind:
                rule = "torch's CSV has pairs of a forward and a backward only"
                raise InputError(f"schedule {schedule.name!r}: {cells[-1]} and {cell} are a pair; {rule}")
            if second:
                cells[-1] = f"({cells[-1]};{cell})OVERLAP_F_B"
            else:
                cells.append(cell)
            second = position in schedule.fused_positions(stage)
        lines.append(",".join(cells) + "\n")
    return "".join(lines)


def torch_can_run(schedule: Schedule) -> bool:
    """Return whether each model slice is on only one rank, as torch requires (no second model copy)."""
    return len({tuple(stage for stage, _ in route) for route in schedule.routes}) == 1


def from_csv(text: str, name: str = "csv") -> tuple[Schedule, Mapping[str, int]]:
    """Parse a schedule from torch's CSV format; also count the ignored actions by kind.

    Ignored are SEND_* and RECV_*, which the simulator derives from the order itself, and UNSHARD, RESHARD and
    REDUCE_GRAD, which belong to how parameters are sharded and not to the schedule. A microbatch's route is where its
    passes are, so files with two directions are read as well. On each rank chunks are numbered by slice. InputError,
    with the line and the cell, for invalid actions, a blank line, and slices or microbatches that are missing or on two
    ranks; and as ``check_schedule``.
    """
    left_out: Counter[str] = Counter()
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    rows = [_parse_cells(line.rstrip("\r"), number, name, left_out) for number, line in enumerate(lines, start=1)]
    if not rows:
        raise InputError(f"schedule {name!r}: the file is empty; write a line for every rank")
    ranks = _find_ranks_of_slices(rows, name)
    routes, route_of, chunks = _index_routes(ranks)
    actions = tuple(
        tuple(
            Action(kind, microbatch, chunks[rank][route_of[microbatch], place])
            for cell in row
            for kind, microbatch, place in cell
        )
        for rank, row in enumerate(rows)
    )
    fused = tuple(_find_pair_positions(row) for row in rows)
    schedule = Schedule(
        name=name,
        rows=actions,
        num_microbatches=len(route_of),
        num_chunks=1 + max(chunk for route in routes for _, chunk in route),
        routes=routes,
        route_of=route_of,
        fused=fused if any(fused) else (),
    )
    return check_schedule(schedule), dict(left_out)


def _parse_cells(line: str, number: int, name: str, ignored: Counter[str]) -> list[tuple[Action, ...]]:
    """Parse one line of cells, each a pass or a fused pair of passes; ``chunk`` is the index of the model slice."""
    where = f"schedule {name!r}, line {number}"
    if not line.strip(" ,\t"):
        raise InputError(f"{where} is blank: torch reads it as an idle rank; delete it")
    row: list[tuple[Action, ...]] = []
    for column, cell in enumerate(line.split(","), start=1):
        word = cell.strip()
        pair = _PAIR.fullmatch(word)
        passes = [_CELL.fullmatch(part.strip()) for part in (pair.groups() if pair else (word,))]
        around = _AROUND.fullmatch(word)
        if around:
            ignored[around[1]] += 1
        elif word and None in passes:
            raise InputError(
                f"{where}, cell {column}: {word[:60]!r} is not an action; write <stage><op><microbatch> with F, B, I "
                f"or W, as in 0F0 or 7B3, or a pair (0F7;7B3)OVERLAP_F_B"
            )
        elif word:
            row.append(tuple(Action(cast(Kind, each[2]), int(each[3]), int(each[1])) for each in passes if each))
    return row


def _find_ranks_of_slices(rows: list[list[tuple[Action, ...]]], name: str) -> list[list[int]]:
    """Return the rank that runs each microbatch in each slice, as ``[microbatch][slice]``."""
    found: dict[tuple[int, int], int] = {}
    for rank, row in enumerate(rows):
        for _, microbatch, place in chain.from_iterable(row):
            there = found.setdefault((microbatch, place), rank)
            if there != rank:
                raise InputError(
                    f"schedule {name!r}: microbatch {microbatch} runs on stage {place} on line {there + 1} "
                    f"and again on line {rank + 1}; all its passes through a stage belong to one rank: write "
                    f"them on one line"
                )
    if not found:
        raise InputError(
            f"schedule {name!r} has no F, B, I or W at all; give a table with a row per stage, as in 0F0,0F1,0B0,0B1"
        )
    microbatches, places = 1 + max(m for m, _ in found), 1 + max(place for _, place in found)
    for microbatch in range(microbatches):
        for place in range(places):
            if (microbatch, place) not in found:
                raise InputError(
                    f"schedule {name!r}: microbatch {microbatch} never runs on stage {place}; each of the "
                    f"{microbatches} microbatches must run on all {places} stages, both counted from 0: add its passes"
                )
    return [[found[microbatch, place] for place in range(places)] for microbatch in range(microbatches)]


def _index_routes(
    ranks: list[list[int]],
) -> tuple[tuple[Route, ...], tuple[int, ...], list[dict[tuple[int, int], int]]]:
    """Return the distinct routes, each microbatch's route index, and each rank's chunk by (route, slice)."""
    ways = list(dict.fromkeys(tuple(way) for way in ranks))
    chunks: list[dict[tuple[int, int], int]] = [{} for _ in range(1 + max(max(way) for way in ways))]
    held: dict[Hop, int] = {}  # (rank, slice) -> chunk: routes that meet in a slice share its chunk
    sizes: Counter[int] = Counter()
    for index, way in enumerate(ways):
        for place, rank in enumerate(way):
            if (rank, place) not in held:
                held[rank, place] = sizes[rank]
                sizes[rank] += 1
            chunks[rank][index, place] = held[rank, place]
    routes = tuple(
        tuple((rank, chunks[rank][index, place]) for place, rank in enumerate(way)) for index, way in enumerate(ways)
    )
    return routes, tuple(ways.index(tuple(way)) for way in ranks), chunks


def _find_pair_positions(row: list[tuple[Action, ...]]) -> tuple[int, ...]:
    """Return the positions in a row, counted in passes, at which fused pairs begin."""
    begins = accumulate(map(len, row), initial=0)
    return tuple(begin for cell, begin in zip(row, begins, strict=False) if len(cell) == 2)
