"""A ``kind: graph`` topology document being written node by node and link by link."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from simcluster.base.units import write_quantity


@dataclass(frozen=True, slots=True)
class Wire:
    """One direction of a link: B/s of the standard, the fraction that payload gets, seconds, and who says so."""

    line_rate: float
    efficiency: float
    latency: float
    medium: str
    source: str

    def times(self, count: int) -> Wire:
        """``count`` of them side by side."""
        return replace(self, line_rate=self.line_rate * count)

    def fields(self) -> dict[str, Any]:
        """As a topology file writes them; the numbers in full, so that they come back to the last digit."""
        medium = {"medium": self.medium} if self.medium else {}  # else what is usual between such nodes
        return {
            "line_rate": write_quantity(self.line_rate, "B/s"),
            "efficiency": self.efficiency,
            "latency": write_quantity(self.latency, "s"),
            "source": self.source,
            **medium,
        }


@dataclass(frozen=True, slots=True)
class GraphDocument:
    """Nodes and edges in the order in which they are added."""

    name: str
    device: str | dict[str, object]
    nodes: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)

    def node(self, name: str, kind: str, **more: int | str | None) -> None:
        """A node, with what is given of ``host`` (of a gpu), ``tier`` (of a switch) and ``network`` (nic or switch)."""
        known = {key: value for key, value in more.items() if value is not None}
        self.nodes.append({"name": name, "kind": kind, **known})

    def link(self, a: str, b: str, wire: Wire, **more: bool) -> None:
        """Return a link, both ways alike, or (``one_way=True``) from ``a`` to ``b`` only."""
        self.edges.append({"between": [a, b], **more, **wire.fields()})

    def document(self) -> dict[str, Any]:
        """Return the topology document."""
        return {"kind": "graph", "name": self.name, "device": self.device, "nodes": self.nodes, "edges": self.edges}
