"""``simcluster check``: launch checklist that gives a number, a rule and remedies for each point."""

from __future__ import annotations

import argparse
import re

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.answers import build_text_blocks
from simcluster.cli.common import read_overrides
from simcluster.cli.terminal import style_text
from simcluster.longrun.launch.launch_check import check
from simcluster.show.output_blocks import TextLines, render_as_text


def run(args: argparse.Namespace) -> None:
    """Simulate the scenario, print its launch checklist, and write the small version if requested."""
    found = check(args.scenario, read_overrides(args, args.scenario))
    small = found.small if args.small else None
    document = found.to_dict() | ({} if small is None else {"small": small.to_dict()})

    def answer_text() -> str:
        more = (
            [] if small is None else [TextLines([f"{common.report_written_file(args, args.small)}: {small.summary()}"])]
        )
        text = render_as_text([*build_text_blocks(found), *more], bold=common.make_bold)
        return re.sub("^(WARN|FAIL)", _colour_matched_verdict, text, flags=re.M)

    common.print_answer(args, answer_text, lambda: document)
    if small is not None:
        common.write_text_atomic(args.small, small.text())
    if args.strict and found.failed:
        raise InputError(
            f"{found.result.scenario.name}: not ready to launch: --strict requires that no point fails; these do: "
            f"{', '.join(found.failed)}; apply the remedies above"
        )


def _colour_matched_verdict(verdict: re.Match[str]) -> str:
    return style_text(verdict[0], "yellow" if verdict[0] == "WARN" else "red")
