"""``simcluster new``: write a commented first scenario for a model on a cluster, with a layout that fits in memory."""

from __future__ import annotations

import argparse
import json

from simcluster.cli import common
from simcluster.cli.answers import build_text_blocks
from simcluster.longrun.launch.first_scenario import first_scenario
from simcluster.scenario.memory_plan import parse_headroom
from simcluster.scenario.schema import SCHEMA_FILE, scenario_schema
from simcluster.show.output_blocks import TextLines


def run(args: argparse.Namespace) -> None:
    """Find a layout that fits in memory, then print the new scenario or write it to a file."""
    found = first_scenario(
        args.model,
        args.cluster,
        args.gpus,
        batch=args.batch,
        sequence_length=args.sequence_length,
        headroom=parse_headroom(args.headroom),
    )
    document = {"scenario": dict(found.document), "held_bytes": found.layout.peak_bytes}
    if not args.output:
        common.print_answer(args, lambda: build_text_blocks(found), lambda: document)
        return
    common.write_text_atomic(args.output, found.text(schema=not args.no_schema, folder=args.output.parent))
    beside = args.output.with_name(SCHEMA_FILE)
    if not args.no_schema:
        common.write_text_atomic(beside, json.dumps(scenario_schema(), indent=1, ensure_ascii=False) + "\n")
    path, schema = args.output, f"wrote {beside}: editors use it to complete and check {args.output.name}"
    lines = [f"wrote {path}: {found.summary()}", *([] if args.no_schema else [schema])]
    lines.append(f"simcluster run {path} simulates it; simcluster plan {path} finds the best layout")
    common.print_answer(args, lambda: [TextLines(lines)], lambda: document)
