"""simcluster show: print a built-in file, a catalogue entry, or a scenario with all keys."""

from __future__ import annotations

import argparse
import sys

from simcluster.cli.common import read_overrides
from simcluster.cli.terminal import write_json
from simcluster.documents.yaml_documents import parse_document
from simcluster.show.registry.entry_texts import entry_text, find_kinds_with_entry


def run(args: argparse.Namespace) -> None:
    """Print a built-in file or a catalogue entry."""
    text = entry_text(args.entry, args.kind, full=args.full, changes=read_overrides(args))
    if args.json != "-":
        sys.stdout.write(text)
    others = [] if args.kind else find_kinds_with_entry(args.entry)[1:]
    if others and not args.quiet:
        names = " or ".join(f"--kind {kind}" for kind in others)
        also = f"{args.entry} is also one of the {', '.join(others)}: {names}"
        print(f"note: this is the scenario; {also}", file=sys.stderr)
    if args.json:
        write_json(args.json, parse_document(text, source=args.entry).data)
