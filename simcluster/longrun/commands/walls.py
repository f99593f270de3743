"""simcluster walls: what a run of so many parameters and tokens meets in memory, time and cost."""

from __future__ import annotations

import argparse

from simcluster.cli import common
from simcluster.longrun.budget.walls import walls


def run(args: argparse.Namespace) -> None:
    """Count, and say it."""
    found = walls(
        args.parameters,
        args.tokens,
        device=args.device,
        precision=args.precision,
        gpus=args.gpus,
        mfu=args.mfu,
        achievable=args.achievable,
        price=args.price,
        days=args.days,
        budget=args.budget,
        recipe=args.recipe,
        bytes_per_parameter=args.bytes,
        zero=args.zero,
    )
    common.answer(args, found.summary, found.to_dict)
