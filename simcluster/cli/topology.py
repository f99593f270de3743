"""simcluster topology: what a cluster is, in numbers and as a picture."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from simcluster.cli import common, drawing


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
