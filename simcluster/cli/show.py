"""simcluster show: a shipped file, or an entry of a catalogue, printed; a scenario also with every key."""

from __future__ import annotations

import argparse
import sys

from simcluster.cli import common
from simcluster.documents.reading import parse_document
from simcluster.registry.shown import shown


def run(args: argparse.Namespace) -> None:
    """Print it."""
    text = shown(args.shipped, args.kind, full=args.full, changes=common.overrides_of(args))
    if args.json != "-":
        sys.stdout.write(text)
    if args.json:
        common.write_json(args.json, parse_document(text, source=args.shipped).data)
