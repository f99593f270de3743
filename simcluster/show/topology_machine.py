"""One machine of a cluster as a picture: GPUs in a row, what joins them below, what leads out above.

Of a rack of trays one tray is drawn.  NICs of networks that collectives do not use stand beside the host bridges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes

from simcluster.base.units import format_bytes_per_second
from simcluster.show.bars import text_width
from simcluster.show.palette import TEXT, rgb, tinted
from simcluster.show.topology_parts import NODES, Point, WidthScale, box, bundles, line, medium_of, note
from simcluster.topology.links import COMPUTE, Graph

_ROWS = ("nic", "host", "pcie", "gpu", "nvswitch")  # from the fabric down
_MOST_IN_ROW = 16
_PASSED = 0.11  # of the machine's width: a host bridge that NICs' links pass by
_POINTS = 175.0  # of the machine's width in a picture
_LARGEST, _SMALLEST = 7.0, 5.0  # points of a name in a box


def machine_kinds(graph: Graph, machines: Iterable[Sequence[str]]) -> list[tuple[Sequence[str], int]]:
    """Return one machine of each kind, and how many there are: alike are the links between the same kinds of node."""
    kinds: dict[tuple[object, ...], list[Sequence[str]]] = {}
    nodes = graph.nodes
    for machine in machines:
        links = sorted(
            (nodes[a]["kind"], nodes[b]["kind"], data["bandwidth"], data["medium"])
            for a in machine
            for b, data in graph.adj[a].items()
        )
        kinds.setdefault(tuple(links), []).append(machine)
    return [(alike[0], len(alike)) for alike in kinds.values()]


def draw_machine(
    ax: Axes, graph: Graph, gpus: Mapping[str, int], machine: Sequence[str], count: int, scale: WidthScale
) -> None:
    """One machine of ``count`` alike with a title; ``gpus`` is the place of every GPU in the cluster."""
    nodes, trays = _one_tray(graph, machine)
    rows = {kind: [node for node in nodes if graph.nodes[node]["kind"] == kind] for kind in _ROWS}
    rows["gpu"].sort(key=gpus.__getitem__)
    rows = {kind: members for kind, members in rows.items() if members}
    height = {name: float(len(rows) - i) for i, name in enumerate(rows)}
    place = _places(graph, rows, height)
    for name, members in rows.items():
        scale.kinds[name] = None
        own = [node for node in members if not _apart(graph, node)]
        shown = sum(node in place for node in own)
        hidden = f"\n({len(own) - shown} not drawn)" if shown < len(own) else ""
        all_trays = f"\nfor all {trays} trays" if trays > 1 and name == "nvswitch" else ""
        ports = {graph.nodes[node].get("ports", 1) for node in own}
        several = f"\nof {max(ports)} ports" if len(ports) == 1 and max(ports) > 1 else ""
        text = f"{len(own)} × {NODES[name].name}{several}{hidden}{all_trays}"
        ax.text(-0.04, height[name], text, ha="right", va="center", fontsize=9, color=TEXT)
    _draw_links(ax, graph, place, height, scale)
    for node, at in place.items():
        _draw_node(ax, graph, node, at, max(1, min(len(rows[graph.nodes[node]["kind"]]), _MOST_IN_ROW)))
    _link_notes(ax, graph, nodes, height)
    ax.set_xlim(-0.42, 1.5)
    ax.set_ylim(0.5, len(rows) + 1.0)
    alike = f"one machine of {count:,} alike" if count > 1 else "the machine"
    if trays > 1:
        alike = f"one tray of the {trays} of {'a' if count > 1 else 'the'} rack"
    ax.set_title(alike, fontsize=10, color=TEXT)


def _one_tray(graph: Graph, machine: Sequence[str]) -> tuple[list[str], int]:
    """Return the machine's nodes, or those of its first tray; and how many trays it has."""
    trays = dict.fromkeys(graph.nodes[node]["tray"] for node in machine if "tray" in graph.nodes[node])
    if len(trays) < 2:
        return list(machine), 1
    wanted = {node: None for node in machine if graph.nodes[node].get("tray") == next(iter(trays))}
    stack = list(wanted)
    while stack:
        node = stack.pop()
        for other in graph.adj[node]:
            kind = graph.nodes[other]["kind"]
            if other not in wanted and kind not in ("gpu", "switch"):
                wanted[other] = None
                if kind != "nvswitch":
                    stack.append(other)
    return [node for node in machine if node in wanted], len(trays)


def _apart(graph: Graph, node: str) -> bool:
    return bool(graph.nodes[node].get("network", COMPUTE) != COMPUTE)


# --- where nodes stand ----------------------------------------------------------------------------------------------


def _places(graph: Graph, rows: Mapping[str, Sequence[str]], height: Mapping[str, float]) -> dict[str, Point]:
    """GPUs evenly, the others over what they are linked to, in the order that gives; 16 of a row at most."""
    wish: dict[str, float] = {}
    for kind in ("gpu", "nvswitch", "pcie", "host", "nic"):
        compute = [node for node in rows.get(kind, ()) if not _apart(graph, node)]
        for i, node in enumerate(compute):
            near = [wish[other] for other in graph.adj[node] if other in wish and graph.nodes[other]["kind"] != kind]
            wish[node] = sum(near) / len(near) if near and kind != "gpu" else (i + 0.5) / len(compute)
    place: dict[str, Point] = {}
    for kind, members in rows.items():
        inner = sorted((node for node in members if not _apart(graph, node)), key=wish.__getitem__)
        own = inner[:_MOST_IN_ROW]
        beside = kind == "nic" and any(_apart(graph, node) for node in members) and "host" not in rows
        room = 0.8 if beside else 1.0
        gaps = [wish[b] - wish[a] for a, b in pairwise(own)]
        apart = all(gap >= (_PASSED if kind == "host" else 0.9 / len(own)) for gap in gaps)
        alone = apart and (kind in ("host", "nvswitch") or len(own) == len(members))
        for i, node in enumerate(own):
            place[node] = (wish[node] if alone else (i + 0.5) / len(own) * room, height[kind])
    others = [node for node in rows.get("nic", ()) if _apart(graph, node)]
    for i, node in enumerate(others):
        place[node] = _beside(graph, node, place, height) or (0.86 + 0.14 * i / len(others), height["nic"])
    return place


def _beside(graph: Graph, nic: str, place: Mapping[str, Point], height: Mapping[str, float]) -> Point | None:
    """Next to the host bridge that the NIC hangs on; left and right of it in turn."""
    for host in graph.adj[nic]:
        if graph.nodes[host]["kind"] == "host" and host in place:
            fellows = [other for other in graph.adj[host] if _apart(graph, other)]
            turn = fellows.index(nic)
            step = 0.125 * (turn // 2 + 1)
            return place[host][0] + (step if turn % 2 == 0 else -step), height["host"]
    return None


# --- drawing --------------------------------------------------------------------------------------------------------


def _draw_node(ax: Axes, graph: Graph, node: str, at: Point, in_row: int) -> None:
    data = graph.nodes[node]
    colour = NODES[data["kind"]].colour
    if _apart(graph, node):
        name = {"management": "mgmt"}.get(data["network"], str(data["network"])[:7])
        box(ax, at, (0.115, 0.3), tinted(colour, 0.6), name, 5.5)
        return
    nics = (other for other in graph.adj[node] if graph.nodes[other]["kind"] == "nic" and not _apart(graph, other))
    passed = data["kind"] == "host" and not any(nics)
    width = min(0.9 / in_row, _PASSED if passed else 0.34)  # narrow: the NICs' links pass by
    name, size = _fitting(node.rsplit(".", 1)[-1], width, initial=data["kind"] == "host")
    box(ax, at, (width, 0.34), colour, name, size)


def _fitting(name: str, width: float, *, initial: bool) -> tuple[str, float]:
    """What of a node's name has room in a box, and how large: all of it, or only the number that it ends in, behind
    the first letter where a row has nodes of several names."""
    room = width * _POINTS - 2.0
    number = name[len(name.rstrip("0123456789")) :]
    for text in (name, f"{name[0] * initial}{number}"):
        size = min(_LARGEST, _LARGEST * room / max(text_width(text, _LARGEST), 1.0))
        if text and size >= _SMALLEST:
            return text, size
    return "", _LARGEST


def _draw_links(
    ax: Axes, graph: Graph, place: Mapping[str, Point], height: Mapping[str, float], scale: WidthScale
) -> None:
    top = max(height.values()) + 0.62
    widest = max(data["bandwidth"] for node in place for data in graph.adj[node].values())
    for node, at in place.items():
        for other, data in graph.adj[node].items():
            if graph.nodes[other]["kind"] != "switch":
                end = place.get(other)
            elif _apart(graph, node):
                end = (at[0], at[1] + 0.32)
            else:
                end = (at[0], top)
            if end is not None:
                scale.media[data["medium"]] = None
                line(ax, at, end, medium_of(data["medium"]).colour, 0.8 + 3.2 * data["bandwidth"] / widest)


def _link_notes(ax: Axes, graph: Graph, nodes: Sequence[str], height: Mapping[str, float]) -> None:
    """Beside each gap between rows, the links that cross it: between which kinds, how many, how fast."""
    texts: dict[float, list[str]] = {}
    top = max(height.values()) + 0.45
    kinds = [kind for kind in _ROWS if kind in height]
    by_kind = {kind: [n for n in nodes if graph.nodes[n]["kind"] == kind and not _apart(graph, n)] for kind in kinds}
    for i, upper in enumerate(kinds):
        for lower in kinds[i:]:
            for bundle in bundles(graph, by_kind[lower], by_kind[upper]):
                count = bundle.number // 2 if lower == upper else bundle.number
                rate = format_bytes_per_second(bundle.bandwidth)
                ends = f"{NODES[lower].name} – {NODES[upper].name}"
                y = height[upper] if lower == upper else max(height[lower] + 0.5, (height[lower] + height[upper]) / 2)
                texts.setdefault(y, []).append(f"{count} × {rate} {ends}")
    for kind in kinds:
        for network, part in _switches_by_network(graph, nodes, kind).items():
            for bundle in bundles(graph, *part):
                y = top if network == COMPUTE else height["host" if "host" in height else kind]
                where = "to the fabric" if network == COMPUTE else f"to {network}"
                texts.setdefault(y, []).append(f"{where}: {bundle.text()} {medium_of(bundle.medium).name}")
    for y, parts in texts.items():
        note(ax, (1.05, y), "\n".join(parts), rgb(TEXT), 8.0)


def _switches_by_network(graph: Graph, nodes: Sequence[str], kind: str) -> dict[str, tuple[list[str], list[str]]]:
    """For each network the machine's nodes of a kind that have a port to it, and the switches at the other end."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for node in nodes:
        data = graph.nodes[node]
        ends = [other for other in graph.adj[node] if graph.nodes[other]["kind"] == "switch"]
        if data["kind"] == kind and ends:
            own, switches = found.setdefault(str(data.get("network", COMPUTE)), ([], []))
            own.append(node)
            switches += ends
    return found
