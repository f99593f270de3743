"""Picture of a cluster: its fabric on the left, the inside of one node of each kind on the right.

A machine's GPUs are in a row, with switches and bridges below and links to the fabric above. Of a rack of trays, one
tray is drawn. NICs of networks that collectives do not use are next to the host bridges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement, pairwise

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simcluster.base.units import format_bytes_per_second, format_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.show import topology_parts
from simcluster.show.bars import text_width
from simcluster.show.palette import QUIET_TEXT, TEXT, Colour, tint_colour
from simcluster.show.table_cells import join_parts
from simcluster.show.topology_fabric import draw_fabric, find_columns
from simcluster.show.topology_parts import NODES, LegendContents, Point, bundle_links, draw_box, draw_link, medium_style
from simcluster.studies.bench.cluster_measurement import measure_cluster
from simcluster.studies.bench.topology_report import TopologyReport
from simcluster.topology.cluster import Cluster
from simcluster.topology.links import COMPUTE, Graph, collective_network

_MOST_KINDS = 2
_MACHINE_WIDTH = 5.6
"""Width of a node's panel in inches."""
_LEGEND_ENTRY = 1.45
"""Width of a legend entry in inches."""


@check_arguments
def topology(cluster: Cluster) -> Figure:
    """Draw a cluster's topology tier by tier, readable even with thousands of GPUs.

    The fabric with its columns is on the left, one machine of each kind (at most two) on the right; a single machine
    has no fabric. Rates are payload per direction; line widths grow with the root of the bandwidth.
    """
    graph = cluster.graph
    fabric = find_columns(cluster, collective_network(graph))
    machines = []
    for machine in (each for column in fabric.columns for each in column.machines):
        near = (other for node in machine for other in graph.adj[node] if graph.nodes[other]["kind"] == "nic")
        machines.append([*dict.fromkeys((*machine, *near))])  # with its NICs of networks other than the collectives'
    kinds = [kind for kind in _group_equal_machines(graph, machines) if len(kind[0]) > 1]
    panels = min(len(kinds), _MOST_KINDS)
    tall = max(len(column.tiers) for column in fabric.columns) > 1
    by_itself = panels == len(machines) == 1 and not fabric.columns[0].tiers
    widths = [_MACHINE_WIDTH] * panels
    if by_itself:
        widths = [1.5 * _MACHINE_WIDTH]  # room for the caption
    else:
        widths.insert(0, max(3.2 + 2.2 * len(fabric.drawn_columns), 0.0 if panels else 8.0))
    figure = Figure(figsize=(sum(widths), 7.4 if tall else 6.4), layout="constrained")
    axes = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    explained = LegendContents()
    if not by_itself:
        draw_fabric(axes[0], fabric, explained)
    place = {gpu: i for i, gpu in enumerate(cluster.gpus)}
    for ax, (machine, alike) in zip(axes[len(axes) - panels :], kinds, strict=False):
        _draw_machine(ax, graph, place, machine, alike, explained)
    for ax in axes:
        ax.set_axis_off()
    if len(kinds) > panels:
        text = f"{len(kinds) - panels} other kinds of node not drawn"
        axes[-1].text(0.5, 0.0, text, transform=axes[-1].transAxes, ha="center", fontsize=8, color=QUIET_TEXT)
    _draw_caption(figure, measure_cluster(cluster))
    _draw_legend(figure, explained)
    return figure


def _draw_caption(figure: Figure, report: TopologyReport) -> None:
    rate = format_bytes_per_second
    machines = f" in {report.machines:,} nodes" if 1 < report.machines < report.gpus else ""
    inside = f"{rate(report.inside)} inside its node, " if report.inside else ""
    facts = [f"each GPU: {inside}{rate(report.outside)} out of it"] if report.outside else [f"each GPU: {inside[:-2]}"]
    if report.bisection:
        facts.append(f"bisection {rate(report.bisection)}")
    facts += [f"{tier} {ratio:.3g}:1" for tier, ratio in report.oversubscription]
    facts.append(f"longest path {report.longest_hops} links, {format_seconds(report.longest_latency)}")
    if report.all_reduce:
        facts.append(f"ring all-reduce {rate(report.all_reduce.busbw)}")
    title = f"{report.name}: {report.gpus:,} GPU{'s' if report.gpus > 1 else ''} ({report.device}){machines}"
    others = [f"{network.name} network, {rate(network.per_machine)} per node" for network in report.networks]
    lines = join_parts(facts, 150 if figure.get_figwidth() > 12 else 100)
    lines += [f"separate networks: {'; '.join(others)}"] if others else []
    figure.suptitle("\n".join([title, *lines]), fontsize=11, color=TEXT)


def _draw_legend(figure: Figure, explained: LegendContents) -> None:
    media: dict[Colour, list[str]] = {}
    for name, colour in map(medium_style, explained.media):
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


# --- a machine --------------------------------------------------------------------------------------------------------

_ROWS = ("nic", "host", "pcie", "gpu", "nvswitch")  # from the fabric down
_MOST_IN_ROW = 16
_PASSED = 0.11  # of the machine's width: a host bridge that NICs' links pass by
_POINTS = 175.0  # of the machine's width in a picture
_LARGEST, _SMALLEST = 7.0, 5.0  # points of a name in a box


def _group_equal_machines(graph: Graph, machines: Iterable[Sequence[str]]) -> list[tuple[Sequence[str], int]]:
    kinds: dict[tuple[object, ...], list[Sequence[str]]] = {}
    nodes = graph.nodes
    for machine in machines:
        links = sorted(
            (nodes[a]["kind"], nodes[b]["kind"], data["bandwidth"], data["medium"])
            for a in machine
            for b, data in graph.adj[a].items()
        )
        kinds.setdefault(tuple(links), []).append(machine)
    return [(equal[0], len(equal)) for equal in kinds.values()]


def _draw_machine(
    ax: Axes, graph: Graph, gpus: Mapping[str, int], machine: Sequence[str], count: int, explained: LegendContents
) -> None:
    nodes, trays = _select_one_tray(graph, machine)
    rows = {kind: [node for node in nodes if graph.nodes[node]["kind"] == kind] for kind in _ROWS}
    rows["gpu"].sort(key=gpus.__getitem__)
    rows = {kind: members for kind, members in rows.items() if members}
    compute = {kind: [node for node in found if not _is_separate_network(graph, node)] for kind, found in rows.items()}
    height = {name: float(len(rows) - i) for i, name in enumerate(rows)}
    place = _node_coordinates(graph, rows, compute, height)
    for name, own in compute.items():
        explained.kinds[name] = None
        shown = sum(node in place for node in own)
        hidden = f"\n({len(own) - shown} not drawn)" if shown < len(own) else ""
        all_trays = f"\nfor all {trays} trays" if trays > 1 and name == "nvswitch" else ""
        ports = {graph.nodes[node].get("ports", 1) for node in own}
        several = f"\nof {max(ports)} ports" if len(ports) == 1 and max(ports) > 1 else ""
        text = f"{len(own)} × {NODES[name].name}{several}{hidden}{all_trays}"
        ax.text(-0.04, height[name], text, ha="right", va="center", fontsize=9, color=TEXT)
    widest = max(data["bandwidth"] for node in place for data in graph.adj[node].values())
    for node, at in place.items():
        _draw_node(ax, graph, node, at, min(len(rows[graph.nodes[node]["kind"]]), _MOST_IN_ROW))
        for other, data in graph.adj[node].items():
            end = place.get(other)
            if graph.nodes[other]["kind"] == "switch":
                end = (at[0], at[1] + 0.32 if _is_separate_network(graph, node) else len(rows) + 0.62)
            if end is not None:
                explained.media[data["medium"]] = None
                draw_link(ax, at, end, data["medium"], 0.8 + 3.2 * data["bandwidth"] / widest)
    _label_links(ax, graph, nodes, compute, height)
    ax.set_xlim(-0.42, 1.5)
    ax.set_ylim(0.5, len(rows) + 1.0)
    title = f"one of {count:,} identical nodes" if count > 1 else "the node"
    if trays > 1:
        title = f"one of the {trays} trays of {'a' if count > 1 else 'the'} rack"
    ax.set_title(title, fontsize=10, color=TEXT)


def _select_one_tray(graph: Graph, machine: Sequence[str]) -> tuple[list[str], int]:
    trays = dict.fromkeys(graph.nodes[node]["tray"] for node in machine if "tray" in graph.nodes[node])
    if len(trays) < 2:
        return list(machine), 1
    wanted = {node for node in machine if graph.nodes[node].get("tray") == next(iter(trays))}
    stack = list(wanted)
    while stack:
        for other in graph.adj[stack.pop()]:
            kind = graph.nodes[other]["kind"]
            if other not in wanted and kind not in ("gpu", "switch"):
                wanted.add(other)
                stack += [other] * (kind != "nvswitch")
    return [node for node in machine if node in wanted], len(trays)


def _is_separate_network(graph: Graph, node: str) -> bool:
    return bool(graph.nodes[node].get("network", COMPUTE) != COMPUTE)


def _node_coordinates(
    graph: Graph, rows: Mapping[str, Sequence[str]], compute: Mapping[str, Sequence[str]], height: Mapping[str, float]
) -> dict[str, Point]:
    wish: dict[str, float] = {}
    for kind in ("gpu", "nvswitch", "pcie", "host", "nic"):
        members = compute.get(kind, ())
        for i, node in enumerate(members):
            near = [wish[other] for other in graph.adj[node] if other in wish and graph.nodes[other]["kind"] != kind]
            wish[node] = sum(near) / len(near) if near and kind != "gpu" else (i + 0.5) / len(members)
    place: dict[str, Point] = {}
    for kind, members in compute.items():
        own = sorted(members, key=wish.__getitem__)[:_MOST_IN_ROW]
        others = len(rows[kind]) - len(members)
        room = 0.8 if kind == "nic" and others and "host" not in rows else 1.0
        least = _PASSED if kind == "host" else 0.9 / max(len(own), 1)
        apart = all(wish[b] - wish[a] >= least for a, b in pairwise(own))
        as_wished = apart and (kind in ("host", "nvswitch") or len(own) == len(rows[kind]))
        for i, node in enumerate(own):
            place[node] = (wish[node] if as_wished else (i + 0.5) / len(own) * room, height[kind])
    others_of_nics = [node for node in rows.get("nic", ()) if _is_separate_network(graph, node)]
    for i, node in enumerate(others_of_nics):
        place[node] = (0.86 + 0.14 * i / len(others_of_nics), height["nic"])
        for host in graph.adj[node]:
            if graph.nodes[host]["kind"] == "host" and host in place:  # next to it, left and right of it in turn
                turn = [other for other in graph.adj[host] if _is_separate_network(graph, other)].index(node)
                step = 0.125 * (turn // 2 + 1)
                place[node] = (place[host][0] + (step if turn % 2 == 0 else -step), height["host"])
                break
    return place


def _draw_node(ax: Axes, graph: Graph, node: str, at: Point, in_row: int) -> None:
    data = graph.nodes[node]
    colour = NODES[data["kind"]].colour
    if _is_separate_network(graph, node):
        name = {"management": "mgmt"}.get(data["network"], str(data["network"])[:7])
        draw_box(ax, at, (0.115, 0.3), tint_colour(colour, 0.6), name, 5.5)
        return
    nics = (near for near in graph.adj[node] if graph.nodes[near]["kind"] == "nic")
    passed = data["kind"] == "host" and all(_is_separate_network(graph, nic) for nic in nics)
    width = min(0.9 / in_row, _PASSED if passed else 0.34)  # narrow: the NICs' links pass by
    # All of the name, or only its trailing number, after the first letter if a row has several names.
    name = node.rsplit(".", 1)[-1]
    initial = name[0] * (data["kind"] == "host")
    for text in (name, f"{initial}{name[len(name.rstrip('0123456789')) :]}"):
        size = min(_LARGEST, _LARGEST * (width * _POINTS - 2.0) / max(text_width(text, _LARGEST), 1.0))
        if text and size >= _SMALLEST:
            break
    else:
        text = ""
    draw_box(ax, at, (width, 0.34), colour, text, size if text else _LARGEST)


def _label_links(
    ax: Axes, graph: Graph, nodes: Sequence[str], compute: Mapping[str, Sequence[str]], height: Mapping[str, float]
) -> None:
    texts: dict[float, list[str]] = {}
    for upper, lower in combinations_with_replacement(compute, 2):
        for bundle in bundle_links(graph, compute[lower], compute[upper]):
            count = bundle.number // 2 if lower == upper else bundle.number
            y = height[upper] if lower == upper else max(height[lower] + 0.5, (height[lower] + height[upper]) / 2)
            ends = f"{NODES[lower].name} – {NODES[upper].name}"
            texts.setdefault(y, []).append(f"{count} × {format_bytes_per_second(bundle.bandwidth)} {ends}")
    ports: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for kind in compute:
        for node in nodes:
            switches = [other for other in graph.adj[node] if graph.nodes[other]["kind"] == "switch"]
            if graph.nodes[node]["kind"] == kind and switches:
                own, ends_of = ports.setdefault((kind, str(graph.nodes[node].get("network", COMPUTE))), ([], []))
                own.append(node)
                ends_of += switches
    for (kind, network), part in ports.items():
        for bundle in bundle_links(graph, *part):
            y = height["host" if "host" in height else kind]
            where = f"to {network}"
            if network == COMPUTE:
                y, where = len(height) + 0.45, "to the fabric"
            texts.setdefault(y, []).append(f"{where}: {bundle.describe()} {medium_style(bundle.medium).name}")
    for y, parts in texts.items():
        topology_parts.write_note(ax, (1.05, y), parts, 8.0)
