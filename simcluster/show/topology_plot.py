"""A picture of a cluster worth putting on a slide: its fabric on the left, one machine of each kind on the right."""

from __future__ import annotations

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simcluster.base.units import format_bytes_per_second, format_seconds
from simcluster.documents.argument_types import checked
from simcluster.show.palette import QUIET_TEXT, TEXT, Colour
from simcluster.show.topology_fabric import draw_fabric, fabric_of
from simcluster.show.topology_machine import draw_machine, machine_kinds
from simcluster.show.topology_parts import NODES, Explained, medium_of
from simcluster.studies.bench.describe import describe
from simcluster.studies.bench.report import TopologyReport
from simcluster.topology.cluster import Cluster
from simcluster.topology.links import compute_part

_MOST_KINDS = 2
_MACHINE_WIDTH = 5.6
"""Inches of a machine's panel."""
_LEGEND_ENTRY = 1.45
"""Inches that an entry of the legend takes."""


@checked
def topology(cluster: Cluster) -> Figure:
    """Draw a cluster by its hierarchy, readable at thousands of GPUs: the fabric with its columns left, one machine of
    each kind (two at most) on the right.  A single machine has no fabric, so none is drawn.

    Rates are payload per direction; line widths grow with the root of the bandwidth.
    """
    graph = cluster.graph
    fabric = fabric_of(cluster, compute_part(graph))
    machines = []
    for machine in (each for column in fabric.columns for each in column.machines):
        near = (other for node in machine for other in graph.adj[node] if graph.nodes[other]["kind"] == "nic")
        machines.append([*dict.fromkeys((*machine, *near))])  # with its NICs of networks other than the collectives'
    kinds = [kind for kind in machine_kinds(graph, machines) if len(kind[0]) > 1]
    panels = min(len(kinds), _MOST_KINDS)
    tall = max(len(column.tiers) for column in fabric.columns) > 1
    by_itself = panels == len(machines) == 1 and not fabric.columns[0].tiers
    widths = [_MACHINE_WIDTH] * panels
    if by_itself:
        widths = [1.5 * _MACHINE_WIDTH]  # room for the caption
    else:
        widths.insert(0, max(3.2 + 2.2 * len(fabric.drawn), 0.0 if panels else 8.0))
    figure = Figure(figsize=(sum(widths), 7.4 if tall else 6.4), layout="constrained")
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    explained = Explained()
    if not by_itself:
        draw_fabric(axes[0], fabric, explained)
    place = {gpu: i for i, gpu in enumerate(cluster.gpus)}
    for ax, (machine, alike) in zip(axes[len(axes) - panels :], kinds, strict=False):
        draw_machine(ax, graph, place, machine, alike, explained)
    for ax in axes:
        ax.set_axis_off()
    if len(kinds) > panels:
        text = f"{len(kinds) - panels} other kinds of machine not drawn"
        axes[-1].text(0.5, 0.0, text, transform=axes[-1].transAxes, ha="center", fontsize=8, color=QUIET_TEXT)
    _caption(figure, describe(cluster))
    _legend(figure, explained)
    return figure


def _caption(figure: Figure, report: TopologyReport) -> None:
    rate = format_bytes_per_second
    machines = f" in {report.machines:,} machines" if 1 < report.machines < report.gpus else ""
    inside = f"{rate(report.inside)} inside its machine, " if report.inside else ""
    facts = [f"each GPU: {inside}{rate(report.outside)} out of it"] if report.outside else [f"each GPU: {inside[:-2]}"]
    if report.bisection:
        facts.append(f"bisection {rate(report.bisection)}")
    facts += [f"{tier} {ratio:.3g}:1" for tier, ratio in report.oversubscription]
    facts.append(f"longest path {report.longest_hops} links, {format_seconds(report.longest_latency)}")
    if report.all_reduce:
        facts.append(f"ring all-reduce {rate(report.all_reduce.busbw)}")
    title = f"{report.name}: {report.gpus:,} GPU{'s' if report.gpus > 1 else ''} ({report.device}){machines}"
    beside = [f"{network.name} network, {rate(network.per_machine)} a machine" for network in report.networks]
    width = 150 if figure.get_figwidth() > 12 else 100
    lines = [facts[0]]
    for fact in facts[1:]:
        longer = f"{lines[-1]}; {fact}"
        lines[-1:] = [longer] if len(longer) <= width else [lines[-1], fact]
    lines += [f"apart from it: {'; '.join(beside)}"] if beside else []
    figure.suptitle("\n".join([title, *lines]), fontsize=11, color=TEXT)


def _legend(figure: Figure, explained: Explained) -> None:
    media: dict[Colour, list[str]] = {}
    for name, colour in map(medium_of, explained.media):
        media.setdefault(colour, []).append(name)
    entries: list[Artist] = [
        Patch(facecolor=look.colour, edgecolor=TEXT, label=look.name)
        for kind, look in NODES.items()
        if kind in explained.kinds
    ]
    entries += [
        Line2D([], [], color=colour, linewidth=3, label=f"{' or '.join(names)} link") for colour, names in media.items()
    ]
    room = max(1, int(figure.get_figwidth() / _LEGEND_ENTRY))
    figure.legend(
        handles=entries, loc="outside lower center", ncols=min(room, len(entries)), fontsize=9, frameon=False,
        title="number × payload bandwidth, each way; a wider line carries more", title_fontsize=9,
    )  # fmt: skip
