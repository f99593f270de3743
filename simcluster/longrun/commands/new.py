"""``simcluster new``: a first scenario for a model on a cluster, with a layout that fits and comments."""

from __future__ import annotations

import argparse
import json

from simcluster.cli import common
from simcluster.cli.answers import build_answer
from simcluster.longrun.launch.first import first_scenario
from simcluster.scenario.memory_plan import parse_headroom
from simcluster.scenario.schema import SCHEMA_FILE, scenario_schema
from simcluster.show.blocks import Lines


def run(args: argparse.Namespace) -> None:
    """Find a layout that fits, then print the new scenario or write it to a file."""
    found = first_scenario(
        args.model,
        args.cluster,
        args.gpus,
        batch=args.batch,
        sequence_length=args.sequence_length,
        headroom=parse_headroom(args.headroom),
    )
    document = {"scenario": dict(found.document), "held_bytes": found.layout.held}
    if not args.output:
        common.print_answer(args, lambda: build_answer(found), lambda: document)
        return
    common.write_text(args.output, found.text(schema=not args.no_schema, folder=args.output.parent))
    beside = args.output.with_name(SCHEMA_FILE)
    if not args.no_schema:
        common.write_text(beside, json.dumps(scenario_schema(), indent=1, ensure_ascii=False) + "\n")
    path, schema = args.output, f"wrote {beside}: editors use it to complete and check {args.output.name}"
    lines = [f"wrote {path}: {found.summary()}", *([] if args.no_schema else [schema])]
    lines.append(f"simcluster run {path} simulates it; simcluster plan {path} finds the best layout")
    common.print_answer(args, lambda: [Lines(lines)], lambda: document)
