"""simcluster check: a launch checklist, each point with its number and what would fix it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from simcluster.cli.common import add_override_arguments
from simcluster.cli.terminal import Style, styled
from simcluster.errors import InputError

if TYPE_CHECKING:
    from simcluster.result import Result
    from simcluster.whatif.preflight import Point

EXAMPLE = """examples:
  simcluster check gpt3_175b_64xa100
  simcluster check gpt3_175b_64xa100 --pipeline.schedule 1f1b --strict
"""
_MARKS = {"pass": "pass", "warn": "WARN", "fail": "FAIL"}
_STYLES: dict[str, Style] = {"warn": "yellow", "fail": "red"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's arguments."""
    parser = subparsers.add_parser(
        "check",
        help="go through a launch checklist",
        description="What to look at before a job gets its GPUs: each point with its number, and a remedy as played.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", help="a scenario file, or the name of one that ships")
    add_override_arguments(parser, "change the scenario; also --a.b c")
    parser.add_argument("--strict", action="store_true", help="exit status 2 if a point fails")
    parser.add_argument("--json", metavar="FILE", help='write the list as JSON; "-" prints it alone')


def run(args: argparse.Namespace) -> int:
    """Simulate, go through the points, print them."""
    from simcluster.cli import common
    from simcluster.scenario.scenario import load
    from simcluster.simulate import simulate
    from simcluster.whatif.preflight import preflight, worst

    common.check_json_path(args.json)
    result = simulate(load(args.scenario, common.overrides_of(args)))
    points = preflight(result)
    if args.json != "-":
        print(_text(result, points))
    if args.json:
        listed = [point.to_dict() for point in points]
        common.write_json(args.json, {"verdict": worst(points), "step_time_s": result.step_time, "points": listed})
    failed = [point.name for point in points if point.verdict == "fail"]
    if args.strict and failed:
        raise InputError(f"{result.scenario.name}: not ready to launch: {', '.join(failed)}")
    return 0


def _text(result: Result, points: list[Point]) -> str:
    from simcluster.units import format_seconds

    width = max(len(point.name) for point in points)
    lines = [f"{result.scenario.name}: {format_seconds(result.step_time)} a step", ""]
    for point in points:
        mark = _MARKS[point.verdict]
        if point.verdict in _STYLES:
            mark = styled(mark, _STYLES[point.verdict])
        lines.append(f"{mark}  {point.name.ljust(width)}  {point.found}")
        if point.verdict != "pass":
            lines += [f"{' ' * (width + 8)}{line}" for line in _why(result, point)]
    counts = {mark: sum(point.verdict == mark for point in points) for mark in _MARKS}
    return "\n".join([*lines, "", f"{counts['pass']} pass, {counts['warn']} warn, {counts['fail']} fail"])


def _why(result: Result, point: Point) -> list[str]:
    from simcluster.units import format_seconds
    from simcluster.whatif.preflight import written

    lines = [f"rule: {point.rule}"]
    if point.remedy:
        change = f"{point.remedy.step_time / result.step_time - 1:+.1%}"
        options = " ".join(f"--set {text}" for text in written(point.remedy.values))
        lines.append(f"fix, as played: {options}   {format_seconds(point.remedy.step_time)} a step ({change})")
    elif point.advice:
        lines.append(f"look at: {point.advice}")
    return lines
