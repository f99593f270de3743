"""``simcluster budget walls``: estimate memory, time and cost of a run from its numbers of parameters and tokens."""

from __future__ import annotations

import argparse

from simcluster.cli import common
from simcluster.cli.answers import build_text_blocks
from simcluster.longrun.budget.training_estimate import estimate_training

_OPTIONS = ("device", "precision", "gpus", "mfu", "achievable", "price", "days", "budget", "recipe", "zero")


def run(args: argparse.Namespace) -> None:
    """Estimate memory, time and cost of a training run, and print them."""
    options = {name: getattr(args, name) for name in _OPTIONS}
    found = estimate_training(args.parameters, args.tokens, bytes_per_parameter=args.bytes, **options)
    common.print_answer(args, lambda: build_text_blocks(found), found.to_dict)
