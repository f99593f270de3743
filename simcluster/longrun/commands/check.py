"""``simcluster check``: a launch checklist with a number and remedies for each point."""

from __future__ import annotations

import argparse
import re

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.answers import build_answer
from simcluster.cli.common import read_overrides
from simcluster.cli.terminal import style_text
from simcluster.longrun.launch.check import check
from simcluster.show.blocks import Lines, blocks_text


def run(args: argparse.Namespace) -> None:
    """Simulate the scenario, print its launch checklist, and write the small version if requested."""
    found = check(args.scenario, read_overrides(args, args.scenario))
    small = found.small if args.small else None
    document = found.to_dict() | ({} if small is None else {"small": small.to_dict()})

    def answer_text() -> str:
        more = [] if small is None else [Lines([f"{common.report_written(args, args.small)}: {small.summary()}"])]
        return re.sub(
            "^(WARN|FAIL)",
            _colour_verdict,
            blocks_text([*build_answer(found), *more], bold=common.bold_line),
            flags=re.M,
        )

    common.print_answer(args, answer_text, lambda: document)
    if small is not None:
        common.write_text(args.small, small.text())
    if args.strict and found.failed:
        raise InputError(
            f"{found.result.scenario.name}: not ready to launch with --strict, which needs every point to pass: "
            f"{', '.join(found.failed)}; take the remedies above"
        )


def _colour_verdict(verdict: re.Match[str]) -> str:
    return style_text(verdict[0], "yellow" if verdict[0] == "WARN" else "red")
