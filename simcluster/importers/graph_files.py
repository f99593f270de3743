"""Import of a cluster from a networkx graph, stored as node-link JSON or GraphML.

The graph follows the conventions of ``topology.cluster``: nodes have a ``kind`` (a gpu may have ``host``, a switch
``tier``, a nic or switch ``network``), edges have ``bandwidth`` (B/s as a number, or text with a unit), or
``line_rate`` with ``efficiency``, and ``latency`` (s, or text). ``name`` and ``device`` may be attributes of the graph.
Other attributes are ignored. An undirected edge is a link both ways; parallel edges are one link with their sum.

``node_link_data`` writes an edge's ends as ``source`` and ``target``, over an attribute of that name: the source of the
numbers is lost, and the importer writes "imported graph" instead.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import networkx as nx

from simcluster.base.errors import InputError
from simcluster.base.units import parse_bytes_per_second, parse_seconds
from simcluster.documents.diagnostics import did_you_mean, quote_value
from simcluster.importers.cluster_document import GraphDocument, ImportedLink, ImportSpec
from simcluster.importers.xml_tree import XmlElement

PARAMETERS = ()
KINDS = ("gpu", "nvswitch", "pcie", "nic", "switch", "host")
_MAX_NODES = 500_000


def is_node_link_graph(data: object) -> bool:
    """Return whether a value parsed from JSON is a graph in networkx's node-link format."""
    return isinstance(data, dict) and "nodes" in data and ("edges" in data or "links" in data) and "kind" not in data


def refuse_non_finite_number(name: str) -> None:
    """Raise InputError for NaN or Infinity in a JSON graph file."""
    raise InputError(f"has {name}, which is not a valid number for a link")


def graph_from_node_link(data: Mapping[str, Any], source: str) -> nx.Graph[str]:
    """Build a networkx graph from node-link JSON; its edges are under "edges" (networkx >= 3.4) or "links"."""
    directed, attributes = data.get("directed", False), data.get("graph", {})
    if isinstance(attributes, list):  # very old files: pairs
        attributes = dict(pair for pair in attributes if isinstance(pair, list) and len(pair) == 2)
    if not isinstance(attributes, dict) or not isinstance(directed, bool):
        raise InputError(f"{source}: 'graph' must be an object, and 'directed' true or false, as networkx writes them")
    graph: nx.Graph[str] = nx.MultiDiGraph() if directed else nx.MultiGraph()
    graph.graph |= attributes
    for where, entry in _list_graph_entries(data, "nodes", source):
        if entry.get("id") is None:
            raise InputError(f"{where}: has no id; a node has an id, as in {{'id': 'a', 'kind': 'gpu'}}")
        if (name := _node_id_to_name(entry["id"], where)) in graph:
            raise InputError(f"{where}: node {name!r} occurs twice; each node must have a unique id: rename one")
        graph.add_nodes_from([(name, entry)])
    for where, entry in _list_graph_entries(data, "edges" if "edges" in data else "links", source):
        if entry.get("source") is None or entry.get("target") is None:
            raise InputError(f"{where}: an edge has source and target, as in {{'source': 'a', 'target': 'b'}}")
        a, b = _node_id_to_name(entry["source"], where), _node_id_to_name(entry["target"], where)
        if unknown := next((end for end in (a, b) if end not in graph), ""):
            near = did_you_mean(unknown, list(graph)[:2000])
            raise InputError(f"{where}, {a!r} to {b!r}: there is no node {unknown!r}{near}")
        graph.add_edges_from([(a, b, entry)])
    return graph


def _list_graph_entries(data: Mapping[str, Any], key: str, source: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects in a list of a JSON graph, each with its location for error messages."""
    value = data[key]
    if not isinstance(value, list):
        raise InputError(f"{source}: {key} is {quote_value(value)}; a list is expected")
    if len(value) > _MAX_NODES:
        raise InputError(f"{source}: {key} has {len(value):,} items; at most {_MAX_NODES:,} can be imported")
    found = [(f"{source}: {key}[{number}]", entry) for number, entry in enumerate(value)]
    if wrong := next((f"{where}: is {quote_value(item)}" for where, item in found if not isinstance(item, dict)), ""):
        raise InputError(f"{wrong}; an object is expected")
    return found


def _node_id_to_name(value: object, where: str) -> str:
    """Convert a graph node's id to a name; an id that is a list becomes its items joined by dots."""
    if isinstance(value, list) and value:
        return ".".join(_node_id_to_name(part, where) for part in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise InputError(f"{where}: {quote_value(value)} is not a node name; a text or a number is expected")
    return str(value)


def graph_from_graphml(raw: bytes, root: XmlElement) -> nx.Graph[str]:
    """Build a networkx graph from a GraphML file; raise InputError if it is not GraphML."""
    seen: dict[str, None] = {}
    for node in root.descendants("node"):
        if (name := node.require_attribute("id")) in seen:
            raise node.error(f"node {name!r} occurs twice; each node must have a unique id: rename one")
        seen[name] = None
    try:
        graph: nx.Graph[str] = nx.read_graphml(io.BytesIO(raw))
    except (nx.NetworkXException, ValueError, TypeError, LookupError, AttributeError) as problem:
        raise root.error(f"is not GraphML as networkx reads it: {problem}; write it with write_graphml") from None
    if unknown := next((node for node in graph if node not in seen), ""):
        raise root.error(f"there is no node {unknown!r}, which an edge names{did_you_mean(unknown, seen)}")
    return graph


def build_graph_document(graph: nx.Graph[str], source: str, file_format: str, spec: ImportSpec) -> GraphDocument:
    """Return the topology document of a networkx graph; raise InputError for a missing or invalid attribute."""
    spec.check_parameters(file_format, PARAMETERS)
    device = spec.device or graph.graph.get("device")
    if not (isinstance(device, dict) or (isinstance(device, str) and device)):
        raise InputError(f"{source}: the graph has no attribute 'device'; name the GPU in the import: device: h100")
    name = spec.name or _text_attribute(graph.graph, "name", f"{source}: graph") or "imported graph"
    document = GraphDocument(name, device)
    for node, data in graph.nodes(data=True):
        _add_graph_node(document, node, data, f"{source}: node {node!r}")
    wires: dict[tuple[str, str], ImportedLink] = {}
    for a, b, data in graph.edges(data=True):
        where = f"{source}: edge {a!r} to {b!r}"
        if a == b:
            raise InputError(f"{where}: both ends are the same node; change one end, or remove the edge")
        wire = _edge_to_link(data, where)
        for way in ((a, b),) if graph.is_directed() else ((a, b), (b, a)):
            have = wires.get(way)
            wires[way] = wire if have is None else _sum_parallel_links(have, wire)
    written: set[tuple[str, str]] = set()
    for (a, b), wire in wires.items():
        if wires.get((b, a)) != wire:
            document.add_link(a, b, wire, one_way=True)
        elif (b, a) not in written:
            document.add_link(a, b, wire)
            written.add((a, b))
    return document


def _add_graph_node(document: GraphDocument, node: str, data: Mapping[str, Any], where: str) -> None:
    kind, host, kinds = _text_attribute(data, "kind", where), data.get("host"), ", ".join(KINDS)
    if kind is None:
        raise InputError(f"{where}: has no attribute 'kind'; set it to one of {kinds}")
    if kind not in KINDS:
        raise InputError(f"{where}: kind is {quote_value(kind)}{did_you_mean(kind, KINDS)}; write one of {kinds}")
    if kind == "gpu":
        if host is not None and (isinstance(host, bool) or not isinstance(host, int) or host < 0):
            what = f"host is {quote_value(host)}; it must be the number of the GPU's node: write 0 or more"
            raise InputError(f"{where}: {what}")
        document.add_node(node, kind, host=host)
        return
    network = _text_attribute(data, "network", where) if kind in ("nic", "switch") else None
    tier = _text_attribute(data, "tier", where) if kind == "switch" else None
    document.add_node(node, kind, tier=tier, network=network)


def _text_attribute(data: Mapping[str, Any], key: str, where: str) -> str | None:
    value = data.get(key)
    if value is None or (isinstance(value, str) and value):
        return value
    raise InputError(f"{where}: {key} is {quote_value(value)}; a text is expected")


def _edge_to_link(data: Mapping[str, Any], where: str) -> ImportedLink:
    """Convert a graph edge to a link; an attribute ``bandwidth`` overrides ``line_rate`` and ``efficiency``."""
    bandwidth = _quantity_attribute(data, "bandwidth", parse_bytes_per_second, where)
    line_rate = _quantity_attribute(data, "line_rate", parse_bytes_per_second, where)
    efficiency, latency = (
        data.get("efficiency"),
        _quantity_attribute(data, "latency", parse_seconds, where, zero_ok=True),
    )
    if efficiency is not None and not (_is_number(efficiency) and 0 < efficiency <= 1):
        raise InputError(f"{where}: efficiency is {quote_value(efficiency)}; it must be a number above 0 and at most 1")
    if bandwidth is None and line_rate is None:
        raise InputError(f"{where}: has no attribute 'bandwidth'; add it in B/s, or as text such as '400 Gbit/s'")
    if latency is None:
        what = "has no attribute 'latency'; add it in seconds, or as text such as '2 us' (0 is allowed)"
        raise InputError(f"{where}: {what}")
    share = 1.0 if efficiency is None else float(efficiency)
    if bandwidth is not None and (line_rate is None or line_rate * share != bandwidth):
        line_rate, share = bandwidth, 1.0
    assert line_rate is not None
    return ImportedLink(line_rate, share, latency, _text_attribute(data, "medium", where) or "", "imported graph")


def _quantity_attribute(
    data: Mapping[str, Any], key: str, parse: Callable[[object], float], where: str, *, zero_ok: bool = False
) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    try:
        number = float(value) if _is_number(value) else parse(value)
    except (InputError, OverflowError) as problem:
        raise InputError(f"{where}: {key}: {problem}") from None
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero_ok):
        what = f"{key} is {quote_value(value)}; it must be {'0 or more' if zero_ok else 'greater than zero'}"
        raise InputError(f"{where}: {what}")
    return number


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _sum_parallel_links(a: ImportedLink, b: ImportedLink) -> ImportedLink:
    """Merge two parallel links: the sum of their rates, the longer of their latencies."""
    line_rate = a.line_rate + b.line_rate
    payload = a.line_rate * a.efficiency + b.line_rate * b.efficiency
    same = a.efficiency == b.efficiency
    latency = max(a.latency, b.latency)
    return ImportedLink(line_rate if same else payload, a.efficiency if same else 1.0, latency, a.medium, a.source)
