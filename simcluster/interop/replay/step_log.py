"""Reader of step times by rank: tables (CSV, Parquet), and logs of Megatron-LM and FlagScale.

Formats of logs, as their programs write them:

* Megatron-LM's ``--timing-log-option all``: ``times across ranks (ms):``, a line per timer, a line per rank below it
  (NVIDIA/Megatron-LM@00caa53a:megatron/core/timers.py), after a line with the iteration.
* Megatron-LM's ``minmax``, the default, and ``--log-straggler`` (@358e5f07:megatron/core/README_STRAGGLER.md): the
  fastest and the slowest rank alone.
* FlagScale's straggler reports (flagos-ai/FlagScale@6e1319ef:flagscale/runner/straggler/report.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.counts import float_or_nan
from simcluster.base.errors import InputError
from simcluster.documents.compressed_files import read_parquet
from simcluster.documents.csv_tables import read_csv_texts
from simcluster.documents.input_files import missing_file_hint, unreadable_file_error

COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    "rank": ("rank", "global_rank", "process_index", "worker", "gpu"),
    "step": ("step", "iteration", "iter", "global_step"),
    "seconds": ("seconds", "time", "step_time", "duration", "elapsed"),
    "compute": ("compute", "compute_time", "clean_step"),
    "node": ("node", "host", "hostname", "node_name"),
    "microbatch": ("microbatch", "micro_batch", "mb", "mb_id"),
}
"""Names that a column may have, by its content; ``seconds`` and ``compute`` may end in a unit, as in step_time_ms."""

MIN_RANKS = MIN_STEPS = 3
"""Fewer ranks have no typical one, and fewer steps cannot separate persistent from transient."""

_UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6}
_UNIT = re.compile(r"(.+?)_?\(?(?<=[_(])(s|sec|seconds|ms|us)\)?")
_SECTIONS = (("forward-compute", "backward-compute"), ("forward", "backward"), ("forward-backward", "forward_backward"))
"""Sections of a log that are added: the first pair of which it has one; those with waits come last."""
_STEP = re.compile(r"(?:\biteration\s+(\d+)\s*/|Straggler Report at Step (\d+))")
_SECTION = re.compile(r"(\w[\w-]*):\s*$")
_RANK = re.compile(r"\brank\s+(\d+):\s*(\d+\.?\d*)\s*(?:ms)?\s*$", re.IGNORECASE)
_MIN_MAX = re.compile(r"(\w[\w-]*) \.+: \((\d+\.?\d*), (\d+\.?\d*)\)\s*$")
_DETECTOR = re.compile(r"MnRtt/Rnk:\s*(\d+\.?\d*)ms/\d+\s*\|\s*MxRtt/Rnk:\s*(\d+\.?\d*)ms/(\d+)")


@dataclass(frozen=True)
class StepTable:
    """Times of a job's steps by rank: ``seconds[rank, step]``, with the name of what was timed.

    ``whole_steps`` are whole steps, waits included, where the table has both; ``nodes`` each rank's node, if known.
    """

    name: str
    timed: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    seconds: Floats
    whole_steps: Floats | None = None
    nodes: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepExtremes:
    """Times (s) of the fastest and of the slowest rank in every report of a log, and the latter's number if known."""

    name: str
    timed: str
    fastest: Floats
    slowest: Floats
    slowest_ranks: tuple[int, ...]


def read_step_times(path: str | Path) -> StepTable | StepExtremes:
    """Read step times by rank from a table (.csv, .parquet) or a log (any other ending).

    Raises InputError, with the row, for a file that is neither, and for fewer than three ranks or steps.
    """
    path = Path(path)
    if path.suffix == ".csv":
        header, rows = read_csv_texts(path)
        return _parse_columns(str(path), dict(zip(header, zip(*rows, strict=True), strict=True)))
    if path.suffix == ".parquet":
        table = read_parquet(path)
        return _parse_columns(str(path), {name: table.column(name).to_pylist() for name in table.column_names})
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return _parse_log(str(path), lines)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{missing_file_hint(path, path.suffix or '.csv')}") from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        if isinstance(problem, InputError):
            raise
        raise unreadable_file_error(path, problem) from None


# --- tables -----------------------------------------------------------------------------------------------------------


def _parse_columns(name: str, columns: Mapping[str, Sequence[Any]]) -> StepTable:
    found = _find_columns(name, columns)
    missing = [what for what in ("rank", "step") if what not in found]
    missing += ["seconds"] * (not {"seconds", "compute"} & set(found))
    if missing:
        names = f"{missing[0]} (or {', '.join(COLUMN_NAMES[missing[0]][1:])})"
        raise InputError(f"{name}: has no column {names}; it has {', '.join(columns)}: rename one")
    times, counts = {}, {}
    for what, (column, unit) in found.items():
        if what in ("seconds", "compute"):
            times[what] = unit * _parse_numbers(name, column, columns[column], whole=False)
        elif what != "node":
            counts[what] = _parse_numbers(name, column, columns[column], whole=True).astype(np.int64)
    if len(times) == 2 and (late := np.flatnonzero(times["compute"] > times["seconds"] * (1 + 1e-9))).size:
        raise InputError(
            f"{name}: row {late[0] + 1}: {found['compute'][0]} is longer than {found['seconds'][0]}, of which it is a "
            "part; correct the row, or the units in the names of both columns"
        )
    timed = "compute" if "compute" in times else "seconds"
    part = counts.get("microbatch", np.zeros_like(counts["rank"]))
    seconds = (times[each] for each in ("compute", "seconds") if each in times)
    table = _make_table(name, found[timed][0], counts["rank"], counts["step"], part, *seconds)
    if "node" not in found:
        return table
    nodes: dict[int, str] = {}
    for rank, node in zip(counts["rank"].tolist(), map(str, columns[found["node"][0]]), strict=True):
        if nodes.setdefault(rank, node) != node:
            both = " and ".join(sorted((nodes[rank], node)))
            raise InputError(f"{name}: rank {rank} is on two nodes, {both}; keep the rows between two restarts")
    return replace(table, nodes=tuple(nodes[rank] for rank in table.ranks))


def _find_columns(name: str, columns: Iterable[str]) -> dict[str, tuple[str, float]]:
    """Return the column and its unit (s) by content."""
    known = {alias: what for what, aliases in COLUMN_NAMES.items() for alias in aliases}
    found: dict[str, tuple[str, float]] = {}
    for column in columns:
        word = re.sub(r"[\s-]+", "_", column.strip().lower())
        what, unit = known.get(word), 1.0
        if what is None and (cut := _UNIT.fullmatch(word)) and known.get(cut[1]) in ("seconds", "compute"):
            what, unit = known[cut[1]], _UNITS[cut[2]]
        if what is not None:
            if what in found:
                raise InputError(
                    f"{name}: columns {found[what][0]} and {column} both mean {what}; rename the one not to be read"
                )
            found[what] = column, unit
    return found


def _parse_numbers(name: str, column: str, cells: Sequence[Any], *, whole: bool) -> Floats:
    try:
        values: Floats = np.array(cells, dtype=float)
    except (ValueError, TypeError):
        values = np.array([float_or_nan(str(cell)) for cell in cells])
    good = (values >= 0) & (values < 2**53) & (values % 1 == 0) if whole else (values >= 1e-9) & (values <= 1e9)
    if not good.all():  # not a number is not good
        row = int(np.argmin(good))
        rule = "a whole number of 0 or more" if whole else "a time above 0 (1e-9 to 1e9)"
        works = "one" if whole else f"seconds without a unit, or name the column {column}_ms"
        raise InputError(f"{name}: row {row + 1}: {column}: {cells[row]!r} is not {rule}; write {works}")
    return values


def _make_table(name: str, timed: str, rank: Ints, step: Ints, part: Ints, *times: Floats) -> StepTable:
    """Arrange rows of times, and of whole steps, as matrices [rank, step]; a step's parts are added.

    Parts are microbatches, or sections of a log.
    """
    order = np.lexsort((part, step, rank))  # sums do not depend on the order of the rows
    rank, step, part = rank[order], step[order], part[order]
    twice = np.flatnonzero((np.diff(rank) == 0) & (np.diff(step) == 0) & (np.diff(part) == 0))
    if twice.size:
        raise InputError(
            f"{name}: rank {rank[twice[0]]} has two times in step {step[twice[0]]}; write one row per rank and step, "
            "or a column microbatch"
        )
    (ranks, row), (steps, column) = (np.unique(each, return_inverse=True) for each in (rank, step))
    counts, *totals = np.zeros((1 + len(times), len(ranks), len(steps)))
    np.add.at(counts, (row, column), 1)
    for total, seconds in zip(totals, times, strict=True):
        np.add.at(total, (row, column), seconds[order])
    full = (counts == counts.max(axis=0, initial=0)).all(axis=0)
    notes = [] if full.all() else [f"{(~full).sum()} of {full.size} steps lack times of some ranks and do not count"]
    if len(ranks) < MIN_RANKS or full.sum() < MIN_STEPS:
        raise InputError(
            f"{name}: has {len(ranks)} ranks, and {full.sum()} steps with times of all of them; at least {MIN_RANKS} "
            f"ranks and {MIN_STEPS} steps are needed: log more, or keep the rows of ranks that ran all the time"
        )
    seconds, whole = totals[0][:, full], totals[1][:, full] if len(totals) > 1 else None
    return StepTable(
        name, timed, tuple(ranks.tolist()), tuple(steps[full].tolist()), seconds, whole, None, tuple(notes)
    )


# --- logs -------------------------------------------------------------------------------------------------------------


def _parse_log(name: str, lines: Iterable[str]) -> StepTable | StepExtremes:
    step, section = 0, ""
    rows: dict[str, list[tuple[int, int, float]]] = {}  # (rank, step, seconds) by section
    spans: dict[str, list[tuple[float, float]]] = {}  # (fastest, slowest) by section
    reports: list[tuple[float, float, int]] = []  # (fastest, slowest, slowest rank)
    for line in lines:
        if found := _STEP.search(line):
            step, section = int(found[1] or found[2]), ""
        elif found := _RANK.search(line):
            rows.setdefault(section, []).append((int(found[1]), step, float(found[2]) / 1e3))
        elif found := _MIN_MAX.search(line):
            spans.setdefault(found[1], []).append((float(found[2]) / 1e3, float(found[3]) / 1e3))
        elif found := _DETECTOR.search(line):
            reports.append((float(found[1]) / 1e3, float(found[2]) / 1e3, int(found[3])))
        elif found := _SECTION.search(line):
            section = found[1]
    if rows:
        return _table_of_sections(name, rows)
    if reports:
        fastest, slowest, ranks = zip(*reports, strict=True)
        return StepExtremes(name, "MnRtt, MxRtt", np.array(fastest), np.array(slowest), ranks)
    if chosen := _choose_sections(name, spans):
        count = min(len(spans[each]) for each in chosen)
        both = np.sum([spans[each][:count] for each in chosen], axis=0)
        return StepExtremes(name, " + ".join(chosen), both[:, 0], both[:, 1], ())
    raise InputError(
        f"{name}: has no times of ranks; it must be a table (.csv, .parquet), a log of Megatron-LM with "
        "--log-straggler or --timing-log-level 2 --timing-log-option all, or of FlagScale with straggler reports"
    )


def _choose_sections(name: str, known: Mapping[str, Any]) -> list[str]:
    chosen = next(([each for each in group if each in known] for group in _SECTIONS if set(group) & set(known)), [])
    if known and not chosen:
        raise InputError(
            f"{name}: has times of ranks for {', '.join(known)}, none of which is computation; Megatron-LM logs "
            "forward-compute and backward-compute with --timing-log-level 2"
        )
    return chosen


def _table_of_sections(name: str, rows: Mapping[str, list[tuple[int, int, float]]]) -> StepTable:
    chosen = _choose_sections(name, rows)
    cells = [(rank, step, part, time) for part, each in enumerate(chosen) for rank, step, time in rows[each]]
    rank, step, part, seconds = (np.array(column) for column in zip(*cells, strict=True))
    return _make_table(name, " + ".join(chosen), rank, step, part, seconds)
