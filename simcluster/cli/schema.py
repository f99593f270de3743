"""simcluster schema: the JSON schema of a scenario file, for editors."""

from __future__ import annotations

import argparse

from simcluster.cli.terminal import write_json
from simcluster.scenario.schema import scenario_schema


def run(args: argparse.Namespace) -> None:
    """Print or write the JSON schema of scenarios."""
    write_json(args.output or "-", scenario_schema())
    if args.output:
        if args.json != "-":
            print(f"wrote {args.output}")
        if args.json:
            write_json(args.json, {"wrote": str(args.output)})
