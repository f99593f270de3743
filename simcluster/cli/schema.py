"""simcluster schema: the JSON schema of a scenario file, for editors."""

from __future__ import annotations

import argparse

from simcluster.cli import common
from simcluster.scenario.schema import scenario_schema


def run(args: argparse.Namespace) -> None:
    """Print it, or write it."""
    if args.output:
        common.write_json(args.output, scenario_schema())
        common.answer(args, lambda: f"wrote {args.output}", lambda: {"wrote": str(args.output)})
    else:
        common.write_json("-", scenario_schema())
