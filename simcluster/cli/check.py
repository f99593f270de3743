"""simcluster check: a launch checklist, each point with its number and what would fix it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.terminal import Style, styled
from simcluster.results.result import Result
from simcluster.scenario.scenario import load
from simcluster.simulate import simulate
from simcluster.studies.whatif.preflight import Checklist, Point, checklist
from simcluster.studies.whatif.remedies import Remedy

_TIGHT = 0.9  # of a GPU's memory: a remedy that holds more says so
_MARKS = {"pass": "pass", "warn": "WARN", "fail": "FAIL"}
_STYLES: dict[str, Style] = {"warn": "yellow", "fail": "red"}


def run(args: argparse.Namespace) -> None:
    """Simulate, go through the points, print them."""
    overrides = common.overrides_of(args, args.scenario)
    result = simulate(load(args.scenario, overrides))
    found = checklist(result, lambda values: load(args.scenario, [*overrides, *values.items()]))
    own = [*args.set, *args.overrides]
    common.answer(args, lambda: _text(result, found, own), lambda: {"step_time_s": result.step_time, **found.to_dict()})
    failed = [point.name for point in found.points if point.verdict == "fail"]
    if args.strict and failed:
        raise InputError(f"{result.scenario.name}: not ready to launch: {', '.join(failed)}")


def _text(result: Result, found: Checklist, own: Sequence[str]) -> str:
    points = found.points
    width = max(len(point.name) for point in points)
    lines = [f"{result.scenario.name}: {format_seconds(result.step_time)} a step", ""]
    for point in points:
        mark = _MARKS[point.verdict]
        if point.verdict in _STYLES:
            mark = styled(mark, _STYLES[point.verdict])
        lines.append(f"{mark}  {point.name.ljust(width)}  {point.found}")
        if point.verdict != "pass":
            lines += [f"{' ' * (width + 8)}{line}" for line in _why(point, result, own)]
    counts = {mark: sum(point.verdict == mark for point in points) for mark in _MARKS}
    lines += ["", f"{counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail"]
    if found.fastest:
        lines += ["", "what makes the step shortest, as played (behind simcluster run SCENARIO)"]
        lines += [f"  {_command(remedy, own)}   {_step(remedy, result)}" for remedy in found.fastest]
    return "\n".join(lines)


def _why(point: Point, result: Result, own: Sequence[str]) -> list[str]:
    lines = [f"rule: {point.rule}"]
    for place, remedy in enumerate(point.remedies):
        what = "or" if place else "fix, as played" if point.for_time else "what keeps the rule, as played"
        lines.append(f"{what}: {_command(remedy, own)}   {_step(remedy, result)}")
        if remedy.then:
            lines.append(f"    then {_MARKS[remedy.then[0]]}: {remedy.then[1]}")
    if not point.remedies and point.advice:
        tried = " (no change that was tried helps and fits)" if point.tries else ""
        lines.append(f"look at: {point.advice}{tried}")
    return lines


def _command(remedy: Remedy, own: Sequence[str]) -> str:
    """All options of a command that gives the remedy's step: the user's own too, as far as it leaves them."""
    kept = [text for text in own if text.partition("=")[0].strip() not in remedy.values]
    return " ".join([*(f"--set {shlex.quote(text)}" for text in kept), remedy.options()])


def _step(remedy: Remedy, result: Result) -> str:
    held, capacity = remedy.memory, result.facts.memory
    slower = ": it keeps the rule, and is slower" if remedy.change > 0 else ""
    tight = f", tight: {held / 1e9:.1f} of {capacity / 1e9:.1f} GB" if held > _TIGHT * capacity else ""
    return f"{format_seconds(remedy.step_time)} a step ({remedy.change:+.1%}{slower}){tight}"
