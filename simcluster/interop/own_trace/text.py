"""A trace beside its simulation as tables of text, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from simcluster.base.units import format_bytes, format_change, format_seconds
from simcluster.interop.own_trace.difference import TraceDifference
from simcluster.interop.own_trace.words import phrase, ratios

MOST = 16
"""Rows of a table that people see; JSON has all."""
_COLUMNS = ["simulated", "trace", "difference", "ratio"]
_NAME = 72
_SEEN = 1e-12


class TextTable(NamedTuple):
    """A table: what it is of, the names of its columns, and its rows, the first column on the left."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(found: TraceDifference) -> Iterator[TextTable]:
    """By cause, kind of kernel, name of those of no known kind, communication, layer and rank; empty ones left out."""
    for table in (_causes, _kernels, _unmatched, _calls, _layers, _ranks):
        made = table(found)
        if made.rows:
            yield made


def _pair(one: float, two: float) -> list[str]:
    ratio = f"{two / one:.2f} x" if one > 0 and two > 0 else "-"
    return [format_seconds(one), format_seconds(two), _signed(two - one), ratio]


def _signed(seconds: float) -> str:
    return "0" if abs(seconds) <= _SEEN else format_change(seconds)


def _of(shown: int, count: int) -> str:
    return f"; {shown} of {count}" if shown < count else ""


def _causes(found: TraceDifference) -> TextTable:
    one, two = found.played.states, found.recorded.states
    rows = [
        [phrase(found, name), *_pair(one.get(name, 0.0), two.get(name, 0.0))]
        for name in found.causes
        if one.get(name) or two.get(name)
    ]
    rows.append(["step", *_pair(found.played.seconds, found.recorded.seconds)])
    return TextTable("where the step goes (mean of the recorded ranks)", ["", *_COLUMNS], rows)


def _kernels(found: TraceDifference) -> TextTable:
    rows = [
        [
            f"{each.kind} {each.phase}" if each.kind != each.phase else each.kind,
            f"{each.played.launches:,.4g}",
            f"{each.recorded.launches:,.4g}",
            *_pair(each.played.seconds, each.recorded.seconds),
        ]
        for each in found.kernels[:MOST]
    ]
    what = "stretches of kernels" if found.stretches else "kinds of kernel"
    title = f"by {what}, a rank and step (what differs most first{_of(len(rows), len(found.kernels))})"
    return TextTable(title, ["", "launches", "in trace", *_COLUMNS], rows)


def _unmatched(found: TraceDifference) -> TextTable:
    whole = sum(each.seconds for each in found.unmatched)
    rows = [
        [
            each.name if len(each.name) <= _NAME else f"{each.name[: _NAME - 3]}...",
            f"{each.launches:,.4g}",
            format_seconds(each.seconds),
        ]
        for each in found.unmatched[:MOST]
    ]
    names = f"{len(found.unmatched)} name{'s' * (len(found.unmatched) > 1)}"
    title = f"kernels of no known kind: {format_seconds(whole)} a rank and step, {names} (name them: --kernels FILE)"
    return TextTable(title, ["name", "launches", "time"], rows)


def _calls(found: TraceDifference) -> TextTable:
    rows = [
        [
            f"{each.axis} {each.kind}",
            f"{each.played.calls:,.4g}",
            f"{each.recorded.calls:,.4g}",
            format_bytes(each.played.bytes) if each.played.bytes else "-",
            format_bytes(each.recorded.bytes) if each.recorded.bytes else "-",
            format_seconds(each.played.seconds),
            format_seconds(each.recorded.seconds),
            *_pair(each.played.exposed, each.recorded.exposed),
        ]
        for each in found.calls[:MOST]
    ]
    header = ["", "calls", "in trace", "bytes", "in trace", "time", "in trace", "exposed", "in trace", *_COLUMNS[2:]]
    since = "of the kernels" if found.merged else "from the last arrival on"
    title = f"communication, a rank and step (time {since}; exposed: nothing computes beside it)"
    return TextTable(title, header, rows)


def _layers(found: TraceDifference) -> TextTable:
    rows = []
    for each in sorted(found.layers, key=lambda pair: -_apart(pair.played, pair.recorded))[:MOST]:
        cells = [str(each.layer)]
        for place in (0, 1):
            one, two = each.played and each.played[place], each.recorded and each.recorded[place]
            cells += ["-" if value is None else format_seconds(value) for value in (one, two)]
            cells.append(f"{two / one:.2f} x" if one and two else "-")
        rows.append(cells)
    title = f"compute by layer, of a rank that has it (what differs most first{_of(len(rows), len(found.layers))})"
    return TextTable(title, ["layer", "forward", "in trace", "ratio", "backward", "in trace", "ratio"], rows)


def _apart(one: Iterable[float] | None, two: Iterable[float] | None) -> float:
    return abs(sum(one or ()) - sum(two or ()))


def _ranks(found: TraceDifference) -> TextTable:
    every = ratios(found)
    order = sorted(every, key=lambda rank: -every[rank])[: MOST // 2] if len(every) > 1 else []
    rows = [[f"rank {rank}", *_pair(*found.computed[rank])] for rank in order]
    title = f"compute by rank (slowest against the simulation first{_of(len(rows), len(every))})"
    return TextTable(title, ["", *_COLUMNS], rows)
