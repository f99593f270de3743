"""simcluster check: a launch checklist, each point with its number and what would fix it; a small version to try."""

from __future__ import annotations

import argparse

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.overrides import overrides_of
from simcluster.cli.terminal import Style, styled
from simcluster.longrun.launch.check import LaunchCheck, check
from simcluster.studies.whatif.remedies import Verdict

_STYLES: dict[Verdict, Style] = {"warn": "yellow", "fail": "red"}


def run(args: argparse.Namespace) -> None:
    """Simulate, go through the points, print them; write the small version."""
    found = check(args.scenario, overrides_of(args, args.scenario))
    small = found.small if args.small else None
    document = found.to_dict() | ({} if small is None else {"small": small.to_dict()})
    common.answer(args, lambda: _text(found, args), lambda: document)
    if small is not None:
        common.write_text(args.small, small.text())
    if args.strict and found.failed:
        raise InputError(
            f"{found.result.scenario.name}: not ready to launch with --strict, which needs every point to pass: "
            f"{', '.join(found.failed)}; "
            "take the remedies above"
        )


def _text(found: LaunchCheck, args: argparse.Namespace) -> str:
    own = [*args.set, *args.overrides]
    told = found.summary(_coloured, own)
    return f"{told}\n\n{common.wrote(args, args.small)}: {found.small.summary()}" if args.small else told


def _coloured(word: str, verdict: Verdict) -> str:
    return styled(word, _STYLES[verdict]) if verdict in _STYLES else word
