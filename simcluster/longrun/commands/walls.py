"""``simcluster budget walls``: estimate memory, time and cost of a run from its numbers of parameters and tokens."""

from __future__ import annotations

import argparse

from simcluster.cli import common
from simcluster.cli.answers import build_text_blocks
from simcluster.longrun.budget.training_estimate import estimate_training


def run(args: argparse.Namespace) -> None:
    """Estimate memory, time and cost of a training run, and print them."""
    found = estimate_training(
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
    common.print_answer(args, lambda: build_text_blocks(found), found.to_dict)
