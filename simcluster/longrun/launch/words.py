"""A launch checklist in words, for people."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simcluster.base.units import format_seconds
from simcluster.longrun.launch.run_point import of_run
from simcluster.results.assumptions import assumed_lines
from simcluster.results.result import Result
from simcluster.studies.whatif.preflight import Checklist, Point, written
from simcluster.studies.whatif.remedies import Remedy, Verdict

Mark = Callable[[str, Verdict], str]
"""A verdict's word, as it is to be shown."""

_TIGHT = 0.9  # of a GPU's memory: a remedy that holds more says so
_MARKS: dict[Verdict, str] = {"pass": "pass", "warn": "WARN", "fail": "FAIL"}


def plain(word: str, verdict: Verdict) -> str:
    """As it is."""
    return word


def written_as(overrides: Sequence[tuple[str, Any]]) -> Iterator[str]:
    """Changes as the command line takes them."""
    return written(dict(overrides))


def summary(result: Result, found: Checklist, own: Sequence[str], mark: Mark, assumed: Sequence[str]) -> str:
    """Return every point and what is ``assumed``; ``own`` are the user's changes (A.B=C), which remedies include."""
    width = max(len(point.name) for point in found.points)
    lines = [f"{result.scenario.title}: {format_seconds(result.step_time)} a step", ""]
    for point in found.points:
        lines.append(f"{mark(_MARKS[point.verdict], point.verdict)}  {point.name.ljust(width)}  {point.found}")
        if point.verdict != "pass":
            lines += [f"{' ' * (width + 8)}{line}" for line in _why(point, result, own)]
    counts = {verdict: sum(point.verdict == verdict for point in found.points) for verdict in _MARKS}
    lines += ["", f"{counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail"]
    lines += [f"note: {text}" for text in result.without_effect()]
    if found.fastest:
        lines += ["", "what makes the step shortest, as played (behind simcluster run SCENARIO)"]
        lines += [f"  {_command(remedy, own)}   {_step(remedy, result)}" for remedy in found.fastest]
    return "\n".join([*lines, *([""] if assumed else []), *assumed_lines(assumed)])


def _why(point: Point, result: Result, own: Sequence[str]) -> list[str]:
    lines = [f"rule: {point.rule}"]
    for place, remedy in enumerate(point.remedies):
        run = of_run(remedy.values)
        how = "fix" if run else "fix, as played" if point.for_time else "what keeps the rule, as played"
        step = "" if run else f"   {_step(remedy, result)}"
        lines.append(f"{'or' if place else how}: {_command(remedy, own)}{step}")
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
