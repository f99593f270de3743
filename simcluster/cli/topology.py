"""simcluster topology: describe a cluster, and draw it."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from simcluster.cli import common
from simcluster.cli.common import read_cluster_overrides
from simcluster.scenario.document_resolution import load_cluster
from simcluster.show.plot_registry import load_plot
from simcluster.studies.bench.cluster_measurement import measure_cluster


def run(args: argparse.Namespace) -> None:
    """Build the cluster, then print, draw and write its description."""
    cluster = load_cluster(args.topology, read_cluster_overrides(args))
    report = measure_cluster(cluster)
    counts = {"nodes": dict(report.nodes), "oversubscription": dict(report.oversubscription)}
    common.print_answer(args, report.format, lambda: {**asdict(report), **counts})
    common.draw_pictures(args, (args.plot, lambda: load_plot("topology")(cluster)))
