"""simcluster diff SCENARIO TRACE: one's own trace beside the simulation."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.units import format_bytes, format_seconds
from simcluster.cli import common
from simcluster.cli.common import format_difference, format_table
from simcluster.results.file import is_saved
from simcluster.scenario.scenario import load
from simcluster.studies.own_trace.difference import TraceDifference, diff_trace
from simcluster.studies.own_trace.words import phrase as phrase_of
from simcluster.studies.own_trace.words import ratios

if TYPE_CHECKING:
    from simcluster.show.plots import Figure

_MOST = 16
"""Rows of a table that people see; JSON has all."""
_WIDTH = 120


def run(args: argparse.Namespace, overrides: Sequence[tuple[str, Any]]) -> None:
    """Read the trace, play the scenario, print where they differ, draw both."""
    if is_saved(args.base):
        raise InputError(f"{args.base} is a saved result, without spans: name its scenario to compare it with a trace")
    if args.waterfall is not None:
        raise InputError("--waterfall draws two simulated steps; --gantt draws a trace beside its simulation")
    scenario = load(args.base, overrides)
    ranks = common.ranks_of(args.ranks, scenario.gpus)
    if ranks is not None and args.gantt is None:
        raise InputError(f"--ranks {args.ranks}: picks rows of a picture; name its file with --gantt")
    found = diff_trace(scenario, args.other, kernels=args.kernels, steps=_steps(args.steps))
    common.answer(args, lambda: _text(found), found.to_dict)
    common.draw((args.gantt, lambda: _gantt(found, ranks)))


def _steps(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--steps {text!r}: steps are whole numbers with commas between them, as in 16,17") from None


def _gantt(found: TraceDifference, ranks: Sequence[int] | None) -> Figure:
    from simcluster.show import plots
    from simcluster.studies.own_trace.timelines import timelines

    change = f"{found.seconds / found.played.seconds:+.1%}".replace("-", "\u2212")
    said = [(format_seconds(found.played.seconds), ""), (format_seconds(found.recorded.seconds), change)]
    title = "One step as simulated, and as recorded"
    both = list(timelines(found, ranks).items())
    return plots.compare_gantts(both, ranks=ranks, rows="rank", title=title, said=said, labels=False)


def _text(found: TraceDifference) -> str:
    ranks, of = len(found.computed), found.result.facts.ranks
    recorded = f"{len(found.steps)} step{'s' * (len(found.steps) > 1)} of {ranks} of {of} ranks"
    head = [f"simulated: {found.names[0]}", f"trace:     {found.names[1]} ({recorded})"]
    said = [
        line
        for sentence in found.sentences()
        for line in textwrap.wrap(sentence, _WIDTH, initial_indent="* ", subsequent_indent="  ")
    ]
    tables = (_causes, _kernels, _unmatched, _calls, _layers, _ranks)
    notes = [f"note: {note}" for note in found.notes]
    return common.in_blocks([head, said, *(table(found) for table in tables), notes])


def _pair(one: float, two: float) -> list[str]:
    ratio = f"{two / one:.2f} x" if one > 0 and two > 0 else "-"
    return [format_seconds(one), format_seconds(two), format_difference(two - one), ratio]


_COLUMNS = ["simulated", "trace", "difference", "ratio"]


def _causes(found: TraceDifference) -> list[str]:
    rows = [
        [phrase_of(found, name), *_pair(found.played.states.get(name, 0.0), found.recorded.states.get(name, 0.0))]
        for name in found.causes
        if found.played.states.get(name) or found.recorded.states.get(name)
    ]
    rows.append(["step", *_pair(found.played.seconds, found.recorded.seconds)])
    return ["where the step goes (mean of the recorded ranks)", *format_table(["", *_COLUMNS], rows).splitlines()]


def _kernels(found: TraceDifference) -> list[str]:
    rows = [
        [
            f"{each.kind} {each.phase}" if each.kind != each.phase else each.kind,
            f"{each.played.launches:,.4g}", f"{each.recorded.launches:,.4g}",
            *_pair(each.played.seconds, each.recorded.seconds),
        ]
        for each in found.kernels[:_MOST]
    ]  # fmt: skip
    what = "stretches of kernels" if found.stretches else "kinds of kernel"
    more = f"; {_MOST} of {len(found.kernels)}" if len(found.kernels) > _MOST else ""
    title = f"by {what}, a rank and step (what differs most first{more})"
    return [title, *format_table(["", "launches", "in trace", *_COLUMNS], rows).splitlines()]


def _unmatched(found: TraceDifference) -> list[str]:
    if not found.unmatched:
        return []
    whole = sum(each.seconds for each in found.unmatched)
    rows = [
        [
            each.name if len(each.name) <= 72 else f"{each.name[:69]}...",
            f"{each.launches:,.4g}",
            format_seconds(each.seconds),
        ]
        for each in found.unmatched[:_MOST]
    ]
    names = f"{len(found.unmatched)} name{'s' * (len(found.unmatched) > 1)}"
    return [
        f"kernels of no known kind: {format_seconds(whole)} a rank and step, {names} (--kernels FILE says what they do)",
        *format_table(["name", "launches", "time"], rows).splitlines(),
    ]


def _calls(found: TraceDifference) -> list[str]:
    rows = []
    for each in found.calls[:_MOST]:
        one, two = each.played, each.recorded
        rows.append([
            f"{each.axis} {each.kind}", f"{one.calls:,.4g}", f"{two.calls:,.4g}", format_bytes(one.bytes),
            format_bytes(two.bytes) if two.bytes else "-", format_seconds(one.seconds), format_seconds(two.seconds),
            *_pair(one.exposed, two.exposed),
        ])  # fmt: skip
    header = ["", "calls", "in trace", "bytes", "in trace", "time", "in trace", "exposed", "in trace", *_COLUMNS[2:]]
    title = "communication, a rank and step (time from the last arrival on; exposed: nothing computes beside it)"
    return [title, *format_table(header, rows).splitlines()] if rows else []


def _layers(found: TraceDifference) -> list[str]:
    rows = []
    for each in sorted(found.layers, key=lambda pair: -_apart(pair.played, pair.recorded))[:_MOST]:
        cells = [str(each.layer)]
        for place in (0, 1):
            one, two = each.played and each.played[place], each.recorded and each.recorded[place]
            cells += ["-" if value is None else format_seconds(value) for value in (one, two)]
            cells.append(f"{two / one:.2f} x" if one and two else "-")
        rows.append(cells)
    if not rows:
        return []
    more = f"; {_MOST} of {len(found.layers)}" if len(found.layers) > _MOST else ""
    header = ["layer", "forward", "in trace", "ratio", "backward", "in trace", "ratio"]
    return [f"compute by layer, of a rank that has it (what differs most first{more})",
            *format_table(header, rows).splitlines()]  # fmt: skip


def _apart(one: Iterable[float] | None, two: Iterable[float] | None) -> float:
    return abs(sum(one or ()) - sum(two or ()))


def _ranks(found: TraceDifference) -> list[str]:
    every = ratios(found)
    if len(every) < 2:
        return []
    order = sorted(every, key=lambda rank: -every[rank])[: _MOST // 2]
    rows = [[f"rank {rank}", *_pair(*found.computed[rank])] for rank in order]
    more = f"; {len(rows)} of {len(every)}" if len(rows) < len(every) else ""
    return [f"compute by rank (slowest against the simulation first{more})",
            *format_table(["", *_COLUMNS], rows).splitlines()]  # fmt: skip
