"""simcluster topology: what a cluster is, in numbers and as a picture."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from simcluster.cli import common, drawing
from simcluster.cli.common import add_override_arguments

HELP = "describe a cluster: counts, bandwidths, bisection, longest path; draw it"
DESCRIPTION = "Build the cluster that a topology file describes, say what it is, and draw it by its hierarchy."
EXAMPLES = """examples:
  simcluster topology dgx_h100 --set nodes=128 --plot cluster.png
  simcluster topology dgx_a100 nodes=40 --fabric.oversubscription 2
  simcluster topology my_cluster.yaml --json -
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("topology", metavar="FILE", help="a topology file, or the name of one that ships")
    add_override_arguments(parser, "change the file; also nodes=128")
    parser.add_argument("--plot", metavar="FILE", help="draw the cluster (.png, .svg or .pdf)")
    parser.add_argument("--json", metavar="FILE", help='write the report as JSON (B/s, s); "-" prints it alone')


def run(args: argparse.Namespace) -> int:
    """Build, describe, draw, write."""
    from simcluster.bench.describe import describe
    from simcluster.scenario.files import load_cluster
    from simcluster.show.plots import save_figure, topology

    picture = drawing.figure_path(args.plot) if args.plot else None
    cluster = load_cluster(args.topology, common.cluster_overrides_of(args))
    report = describe(cluster)
    if args.json != "-":
        print(report.format())
    if picture:
        save_figure(topology(cluster), picture)
    if args.json:
        document = {**asdict(report), "nodes": dict(report.nodes), "oversubscription": dict(report.oversubscription)}
        common.write_json(args.json, document)
    return 0
