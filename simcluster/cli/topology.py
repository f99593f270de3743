"""simcluster topology: describe a cluster, and draw it."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from simcluster.cli import common
from simcluster.cli.common import cluster_overrides_of
from simcluster.scenario.files import load_cluster
from simcluster.show.pictures import picture
from simcluster.studies.bench.describe import describe


def run(args: argparse.Namespace) -> None:
    """Build the cluster, print, draw and write its description."""
    cluster = load_cluster(args.topology, cluster_overrides_of(args))
    report = describe(cluster)
    counts = {"nodes": dict(report.nodes), "oversubscription": dict(report.oversubscription)}
    common.answer(args, report.format, lambda: {**asdict(report), **counts})
    common.draw(args, (args.plot, lambda: picture("topology")(cluster)))
