"""simcluster collective --measured: an nccl-tests log beside what the machine should reach.  No command of its own."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from simcluster.base.errors import InputError
from simcluster.base.units import format_bytes, format_seconds
from simcluster.cli import common
from simcluster.nccl.log import health, overall, read_log
from simcluster.nccl.platforms import load_platform, platform_names


def run(args: argparse.Namespace) -> None:
    """Read the log, print a line a size and the verdict."""
    if args.platform is None:
        raise InputError(f"--measured needs --platform, one of {', '.join(platform_names())}")
    platform = load_platform(args.platform)
    log = read_log(args.measured)
    collective = args.name.replace("-", "_") if args.name else None
    readings = health(log, platform, args.machines, args.per_machine, collective)
    ratio, verdict = overall(readings)

    def text() -> str:
        rows = [
            [
                format_bytes(reading.size),
                format_seconds(reading.measured),
                format_seconds(reading.expected),
                f"{reading.ratio:.2f} x",
                reading.expected_by,
                reading.verdict + (f"; looks like {reading.looks_like}" if reading.looks_like else ""),
            ]
            for reading in readings
        ]
        table = common.format_table(["size", "measured", "expected", "ratio", "NCCL picks", "verdict"], rows)
        return f"{table}\n\nfrom 1 MiB up: {ratio:.2f} x the expected time (geometric mean): {verdict}"

    document = {"ratio": ratio, "verdict": verdict, "rows": [asdict(reading) for reading in readings]}
    common.answer(args, text, lambda: document)
