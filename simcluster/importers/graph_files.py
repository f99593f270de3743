"""A cluster from a graph that networkx wrote: node-link JSON (``node_link_data``) or GraphML.

The graph follows the conventions of ``topology.cluster``: nodes have a ``kind`` (a gpu may have ``host``, a switch
``tier``, a nic or switch ``network``), edges have ``bandwidth`` (B/s as a number, or text with a unit), or
``line_rate`` with ``efficiency``, and ``latency`` (s, or text).
``name`` and ``device`` may be attributes of the graph.  Other attributes are left out.  An undirected edge is a link
both ways; parallel edges are one link with their sum.

``node_link_data`` writes an edge's ends as ``source`` and ``target``, over an attribute of that name: where the numbers
come from is lost on that way, and the importer says "imported graph" in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import parse_bytes_per_second, parse_seconds
from simcluster.documents.diagnostics import did_you_mean, shown
from simcluster.importers.graph_document import GraphDocument, Wire
from simcluster.importers.import_parameters import ImportSpec
from simcluster.importers.xml_tree import Element

PARAMETERS = ()
KINDS = ("gpu", "nvswitch", "pcie", "nic", "switch", "host")
_MAX_NODES = 500_000


@dataclass(frozen=True, slots=True)
class _Item:
    """The attributes of a node or an edge, and what errors call it."""

    where: str
    data: Mapping[str, Any]

    def error(self, message: str) -> InputError:
        return InputError(f"{self.where}: {message}")

    def text(self, key: str) -> str | None:
        value = self.data.get(key)
        if value is None or (isinstance(value, str) and value):
            return value
        raise self.error(f"{key} is {shown(value)}; a text is expected")


@dataclass(frozen=True, slots=True)
class PlainGraph:
    """A graph as the file has it: attributes of the graph, nodes by name, edges (from, to, attributes)."""

    source: str
    directed: bool
    attributes: _Item
    nodes: dict[str, _Item]
    edges: list[tuple[str, str, _Item]]


def graph_document(graph: PlainGraph, form: str, spec: ImportSpec) -> GraphDocument:
    """Return the topology document of a graph; InputError naming the node or edge that lacks something."""
    spec.accept(form, PARAMETERS)
    device = spec.device or graph.attributes.data.get("device")
    if not (isinstance(device, dict) or (isinstance(device, str) and device)):
        raise InputError(
            f"{graph.source}: the graph has no attribute device; name the GPU beside the file, as in device: h100"
        )
    name = spec.name or graph.attributes.text("name") or "imported graph"
    document = GraphDocument(name, device)
    for node, item in graph.nodes.items():
        _add_node(document, node, item)
    wires: dict[tuple[str, str], Wire] = {}
    for a, b, item in graph.edges:
        for end in (a, b):
            if end not in graph.nodes:
                raise item.error(f"there is no node {end!r}{did_you_mean(end, list(graph.nodes)[:2000])}")
        if a == b:
            raise item.error("a link joins two different nodes; name another, or remove the edge")
        wire = _wire(item)
        for way in ((a, b),) if graph.directed else ((a, b), (b, a)):
            have = wires.get(way)
            wires[way] = wire if have is None else _side_by_side(have, wire)
    written: set[tuple[str, str]] = set()
    for (a, b), wire in wires.items():
        if wires.get((b, a)) != wire:
            document.link(a, b, wire, one_way=True)
        elif (b, a) not in written:
            document.link(a, b, wire)
            written.add((a, b))
    return document


def _add_node(document: GraphDocument, node: str, item: _Item) -> None:
    kind, host = item.text("kind"), item.data.get("host")
    if kind is None:
        raise item.error(f"has no attribute kind; it is one of {', '.join(KINDS)}")
    if kind not in KINDS:
        raise item.error(f"kind is {shown(kind)}{did_you_mean(kind, KINDS)}; it is one of {', '.join(KINDS)}")
    if kind != "gpu":
        tier = item.text("tier") if kind == "switch" else None
        document.node(node, kind, tier=tier, network=item.text("network") if kind in ("nic", "switch") else None)
        return
    if host is not None and (isinstance(host, bool) or not isinstance(host, int) or host < 0):
        raise item.error(f"host is {shown(host)}; it must be the number of the GPU's machine: write 0 or more")
    document.node(node, kind, host=host)


def _wire(item: _Item) -> Wire:
    """An edge's figures.  ``bandwidth`` decides; line rate and efficiency stay apart where they agree with it."""
    bandwidth = _quantity(item, "bandwidth", parse_bytes_per_second)
    line_rate = _quantity(item, "line_rate", parse_bytes_per_second)
    efficiency = item.data.get("efficiency")
    if efficiency is not None and not (_is_number(efficiency) and 0 < efficiency <= 1):
        raise item.error(f"efficiency is {shown(efficiency)}; it is a number above 0, at most 1")
    if bandwidth is None and line_rate is None:
        raise item.error('has no attribute bandwidth; it is B/s as a number, or text such as "400 Gbit/s"')
    share = 1.0 if efficiency is None else float(efficiency)
    if bandwidth is not None and (line_rate is None or line_rate * share != bandwidth):
        line_rate, share = bandwidth, 1.0
    assert line_rate is not None
    latency = _quantity(item, "latency", parse_seconds, zero=True)
    if latency is None:
        raise item.error('has no attribute latency; it is seconds as a number, or text such as "2 us" (0 is allowed)')
    medium = item.text("medium") or ""
    return Wire(line_rate, share, latency, medium, "imported graph")


def _quantity(item: _Item, key: str, parse: Callable[[object], float], *, zero: bool = False) -> float | None:
    value = item.data.get(key)
    if value is None:
        return None
    try:
        number = float(value) if _is_number(value) else parse(value)
    except (InputError, OverflowError) as problem:
        raise item.error(f"{key}: {problem}") from None
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise item.error(f"{key} is {shown(value)}; it must be {'0 or more' if zero else 'greater than zero'}")
    return number


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _side_by_side(a: Wire, b: Wire) -> Wire:
    """Two cables between the same nodes: their sum, with the longer latency."""
    line_rate = a.line_rate + b.line_rate
    payload = a.line_rate * a.efficiency + b.line_rate * b.efficiency
    same = a.efficiency == b.efficiency
    latency = max(a.latency, b.latency)
    return Wire(line_rate if same else payload, a.efficiency if same else 1.0, latency, a.medium, a.source)


# --- node-link JSON ---------------------------------------------------------------------------------------------------


def is_node_link(data: object) -> bool:
    """Return whether parsed JSON is networkx's node-link form (a topology document has a ``kind`` at the top)."""
    return isinstance(data, dict) and "nodes" in data and ("edges" in data or "links" in data) and "kind" not in data


def refuse_constant(name: str) -> None:
    """Refuses what JSON has not (NaN) when a graph is read."""
    raise InputError(f"holds {name}, which is no number that a link can have")


def graph_of_node_link(data: Mapping[str, Any], source: str) -> PlainGraph:
    """Return the graph in node-link JSON, of networkx 3.4 and later ("edges") or of before ("links")."""
    key = "edges" if "edges" in data else "links"
    nodes: dict[str, _Item] = {}
    for number, entry in enumerate(_list(data, "nodes", source)):
        where = f"{source}: nodes[{number}]"
        if not isinstance(entry, dict) or entry.get("id") is None:
            raise InputError(
                f"{where}: is {shown(entry)}; a node is an object with an id, as in {{'id': 'a', 'kind': 'gpu'}}"
            )
        name = _name(entry["id"], where)
        if name in nodes:
            raise InputError(f"{where}: node {name!r} is there twice; each node must have its own id: rename one")
        nodes[name] = _Item(f"{source}: node {name!r}", entry)
    edges = []
    for number, entry in enumerate(_list(data, key, source)):
        where = f"{source}: {key}[{number}]"
        if not isinstance(entry, dict) or entry.get("source") is None or entry.get("target") is None:
            raise InputError(
                f"{where}: is {shown(entry)}; an edge is an object with source and target, as in "
                f"{{'source': 'a', 'target': 'b'}}"
            )
        a, b = _name(entry["source"], where), _name(entry["target"], where)
        edges.append((a, b, _Item(f"{where}, {a!r} to {b!r}", entry)))
    attributes = data.get("graph", {})
    if isinstance(attributes, list):  # very old files: pairs
        attributes = dict(pair for pair in attributes if isinstance(pair, list) and len(pair) == 2)
    if not isinstance(attributes, dict) or not isinstance(data.get("directed", False), bool):
        raise InputError(f"{source}: graph must be an object and directed true or false, as networkx writes them")
    return PlainGraph(source, data.get("directed", False), _Item(f"{source}: graph", attributes), nodes, edges)


def _list(data: Mapping[str, Any], key: str, source: str) -> list[Any]:
    value = data[key]
    if not isinstance(value, list):
        raise InputError(f"{source}: {key} is {shown(value)}; a list is expected")
    if len(value) > _MAX_NODES:
        raise InputError(f"{source}: {key} has {len(value):,} items; at most {_MAX_NODES:,} can be imported")
    return value


def _name(value: object, where: str) -> str:
    """Return a node's id as a name; a tuple, which JSON has as a list, as a.b.c."""
    if isinstance(value, list) and value:
        return ".".join(_name(part, where) for part in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise InputError(f"{where}: {shown(value)} is no name of a node; a text or a number is expected")
    return str(value)


# --- GraphML ----------------------------------------------------------------------------------------------------------


def graph_of_graphml(root: Element, source: str) -> PlainGraph:
    """Return the graph in a GraphML file; errors have lines."""
    keys = {
        key.require("id"): (key.require("attr.name"), key.get("attr.type") or "string") for key in root.named("key")
    }
    graphs = list(root.named("graph"))
    if len(graphs) != 1:
        raise (graphs[1] if graphs else root).error(f"the file has {len(graphs)} graphs; one is expected")
    graph = graphs[0]
    default = graph.get("edgedefault")
    if default not in ("directed", "undirected"):
        raise graph.error(f"edgedefault is {default[:40]!r}; it is directed or undirected")
    nodes: dict[str, _Item] = {}
    for element in graph.named("node"):
        name = element.require("id")
        if name in nodes:
            raise element.error(f"node {name!r} is there twice; each node must have its own id: rename one")
        nodes[name] = _Item(f"{element.place}: node {name!r}", _data(element, keys))
    edges = []
    for element in graph.named("edge"):
        if element.get("directed") not in ("", "true" if default == "directed" else "false"):
            raise element.error(
                "an edge that is directed other than the graph is not supported; write a directed graph"
            )
        a, b = element.require("source"), element.require("target")
        edges.append((a, b, _Item(f"{element.place}: edge {a!r} to {b!r}", _data(element, keys))))
    return PlainGraph(source, default == "directed", _Item(graph.place, _data(graph, keys)), nodes, edges)


def _data(element: Element, keys: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Return the attributes of an element; ``keys``: name and type of each that is declared, by its id."""
    found: dict[str, Any] = {}
    for data in element.named("data"):
        if data.require("key") not in keys:
            raise data.error(
                f"key {data.get('key')[:40]!r} is not declared; the keys are {', '.join([*keys][:10]) or 'none'}"
            )
        name, kind = keys[data.get("key")]
        found[name] = _typed(data, kind)
    return found


def _typed(data: Element, kind: str) -> Any:
    if kind == "string":
        return data.text
    if kind == "boolean":
        return data.text.lower() in ("true", "1")
    try:
        return int(data.text) if kind in ("int", "long") else float(data.text)
    except ValueError:
        raise data.error(f"{data.text[:40]!r} is not of type {kind[:20]}, which its key declares") from None
