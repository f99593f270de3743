"""An execution trace as plain data: for every rank a graph of what it computes and communicates."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from simcluster.base.errors import InputError

Value = bool | int | float | str | bytes | tuple[bool | int | float | str | bytes, ...]

KINDS = ("invalid", "metadata", "mem_load", "mem_store", "comp", "send", "recv", "coll")
"""Kinds of nodes, by their numbers in the schema (NodeType)."""

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter_block",
    "barrier",
)
"""Collectives, by their numbers in the schema (CollectiveCommType)."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node of a rank's graph; ``after`` are the ids that it waits for (data and control), ``seconds`` its length
    where the trace has one, 0 where it has none."""

    id: int
    name: str
    kind: str
    after: tuple[int, ...] = ()
    seconds: float = 0.0
    attributes: Mapping[str, Value] = field(default_factory=dict)

    def number(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number among the attributes; InputError where it is missing or something else."""
        value = self.attributes.get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**62:
            has = "has no attribute" if value is None else f"has {str(value)[:40]!r} as"
            raise InputError(f"{self.label} {has} {key}; a whole number from {least} is expected")
        return value

    @property
    def label(self) -> str:
        """The node in a message."""
        return f"node {self.id} ({self.name[:60]!r}, {self.kind})"


@dataclass(frozen=True)
class ChakraTrace:
    """The nodes of every rank, in the order of the file; ``groups`` are the ranks of each process group by name."""

    name: str
    ranks: tuple[tuple[TraceNode, ...], ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def in_order(self, rank: int) -> list[TraceNode]:
        """A rank's nodes so that each comes after what it waits for; of those that could come next the lowest id.

        Raises InputError for an id that is there twice, one that is waited for and not there, and nodes that wait for
        each other in a circle.
        """
        nodes, where = self.ranks[rank], f"{self.name}, rank {rank}"
        by_id = {node.id: node for node in nodes}
        if len(by_id) < len(nodes):
            counts = Counter(node.id for node in nodes)
            twice = next(node for node in nodes if counts[node.id] > 1)
            raise InputError(f"{where}: {twice.label}: its id is there twice; every node has its own")
        for node in nodes:
            for other in node.after:
                if other not in by_id:
                    raise InputError(f"{where}: {node.label} waits for node {other}, which is not in the trace")
        sorter = TopologicalSorter({node.id: node.after for node in nodes})
        try:
            sorter.prepare()
        except CycleError as problem:
            stuck = next(node for node in nodes if node.id in problem.args[1])
            raise InputError(
                f"{where}: {stuck.label} waits for itself by way of others; a trace has no circles"
            ) from None
        ready: list[int] = []
        found = []
        while sorter.is_active():
            for number in sorter.get_ready():
                heapq.heappush(ready, number)
            found.append(by_id[heapq.heappop(ready)])
            sorter.done(found[-1].id)
        return found
