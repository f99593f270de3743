"""From an execution trace to the program that the engine simulates.

A rank has one queue for its GPU's computation, one for its processor's (``is_cpu_op``), one for each process group
(collectives of a communicator follow each other), one for what it sends to each other rank with one tag, and one for
each way between its memory and its host's (mem_store, mem_load); in each, nodes come in the order of
``ChakraTrace.in_order``.  A collective begins when all its group are there; the k-th of a group on one rank is
the k-th on the others.  A send goes out as soon as it can, and its receive is over when it has arrived: the k-th
between two ranks with one tag is the k-th on the other side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from simcluster.base.clock import on_grid
from simcluster.base.errors import InputError
from simcluster.engine.explicit import ExplicitProgram
from simcluster.engine.tables import CommunicationKind
from simcluster.interop.chakra.trace import COLLECTIVES, ChakraTrace, TraceNode
from simcluster.traffic.traffic import Traffic

Cost = Callable[[tuple[int, ...], str, float], tuple[Traffic, ...]]
"""What moves a collective (or "send", or a copy "d2h", "h2d") of so many bytes over these ranks, by nccl-tests'
convention for the size."""
GroupOf = Callable[[int, TraceNode], tuple[str, tuple[int, ...]]]
"""The name and the ranks of the group of a collective on a rank."""

_KIND = {"reduce_scatter_block": "reduce_scatter", "barrier": "all_reduce"}
COPIES = {"mem_store": "d2h", "mem_load": "h2d"}
"""Nodes that move bytes between the GPU's memory and its host's, and which way."""
_BARRIER_BYTES = 4.0
_NOTHING = (Traffic((), 0.0, 1, 0.0),)


def lower(
    trace: ChakraTrace, *, seconds: Callable[[int, TraceNode], float], group_of: GroupOf, cost: Cost
) -> tuple[ExplicitProgram, list[tuple[int, TraceNode]]]:
    """The program of a trace, and of each of its ops the rank and the node.

    ``seconds`` is the length of a node that computes.  Raises InputError naming rank and node for what cannot be
    played: gather and scatter, a send without its receive, collectives that a group does not have in common.
    """
    return _Lowering(trace, seconds, group_of, cost).lowered()


class _Lowering:
    def __init__(
        self, trace: ChakraTrace, seconds: Callable[[int, TraceNode], float], group_of: GroupOf, cost: Cost
    ) -> None:
        self._trace, self._seconds, self._group_of, self._cost = trace, seconds, group_of, cost
        self._program = ExplicitProgram()
        self._nodes: list[tuple[int, TraceNode]] = []
        self._lanes: dict[tuple[int, str], int] = {}
        self._met: dict[tuple[tuple[int, ...], str, int], tuple[int, str, float, int, TraceNode]] = {}
        self._joined: dict[int, int] = defaultdict(int)
        self._sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self._receives: dict[tuple[int, int, int], list[int]] = defaultdict(list)

    def error(self, rank: int, node: TraceNode, message: str) -> InputError:
        return InputError(f"{self._trace.name}, rank {rank}: {node.label}: {message}")

    def _add(self, rank: int) -> None:
        """All nodes of a rank."""
        number: dict[int, int] = {}
        turns: dict[tuple[str, tuple[int, ...]], int] = defaultdict(int)
        for node in self._trace.in_order(rank):
            if node.kind == "coll":
                op = self._collective(rank, node, turns)
            elif node.kind in ("send", "recv"):
                op = self._message(rank, node)
            elif node.kind in ("comp", "metadata"):
                lane = "cpu" if node.attributes.get("is_cpu_op") is True else "compute"
                seconds = self._seconds(rank, node) if node.kind == "comp" else 0.0
                lane = lane if node.kind == "comp" else f"node {node.id}"
                op = self._op(rank, node, lane, seconds=on_grid(seconds))
            elif node.kind in COPIES:
                op = self._copy(rank, node)
            else:
                raise self.error(rank, node, "is not modelled; comp, send, recv, coll and memory nodes are")
            number[node.id] = op
            self._program.after[op] = tuple(number[other] for other in node.after)

    def _op(self, rank: int, node: TraceNode, lane: str, *, seconds: float = 0.0, meeting: int = -1) -> int:
        if (rank, lane) not in self._lanes:
            self._lanes[rank, lane] = self._program.add_lane(rank)
        self._nodes.append((rank, node))
        return self._program.add_op(self._lanes[rank, lane], seconds, meeting=meeting)

    def _collective(self, rank: int, node: TraceNode, turns: dict[tuple[str, tuple[int, ...]], int]) -> int:
        type_number = node.number("comm_type")
        if type_number >= len(COLLECTIVES) or COLLECTIVES[type_number] in ("gather", "scatter"):
            raise self.error(rank, node, f"comm_type {type_number} is not modelled; 0 (all-reduce), 1, 2, 5 to 9 are")
        kind = COLLECTIVES[type_number]
        name, group = self._group_of(rank, node)
        if rank not in group:
            raise self.error(rank, node, f"is on rank {rank}, which is not in its group {list(group)[:16]}")
        size = _BARRIER_BYTES if kind == "barrier" else float(node.number("comm_size"))
        size *= len(group) if kind == "all_gather" else 1  # comm_size is what a rank puts in
        turn = turns[name, group]
        turns[name, group] += 1
        key = (group, name, turn)
        if key not in self._met:
            traffics = self._cost(group, _KIND.get(kind, kind), size) if len(group) > 1 and size > 0 else ()
            self._met[key] = (len(self._program.meetings), kind, size, rank, node)
            self._program.meetings.append(CommunicationKind(len(group), traffics or _NOTHING))
        meeting, other_kind, other_size, other_rank, other = self._met[key]
        if (kind, size) != (other_kind, other_size):
            theirs = f"rank {other_rank} has {other.label}, {other_kind} of {other_size:.0f}"
            what = f"is collective number {turn + 1} of its group, {kind} of {size:.0f} bytes, while {theirs}"
            raise self.error(rank, node, f"{what}; a group does all alike")
        self._joined[meeting] += 1
        return self._op(rank, node, f"group {name}", meeting=meeting)

    def _message(self, rank: int, node: TraceNode) -> int:
        source, target = (node.number(key, rank) for key in ("comm_src", "comm_dst"))
        own, other = (source, target) if node.kind == "send" else (target, source)
        if own != rank or other == rank or other >= len(self._trace.ranks):
            raise self.error(rank, node, f"goes from rank {source} to rank {target}; on rank {rank} that cannot be")
        key = (source, target, node.number("comm_tag", 0))
        if node.kind == "recv":
            op = self._op(rank, node, f"node {node.id}", seconds=0.0)
            self._receives[key].append(op)
            return op
        size = float(node.number("comm_size"))
        op = self._transfer(rank, node, f"to {target}, tag {key[2]}", "send", (source, target), size)
        self._sends[key].append(op)
        return op

    def _copy(self, rank: int, node: TraceNode) -> int:
        way, size = COPIES[node.kind], float(node.number("tensor_size"))
        try:
            return self._transfer(rank, node, way, way, (rank,), size)
        except InputError as problem:
            raise self.error(rank, node, str(problem)) from None

    def _transfer(self, rank: int, node: TraceNode, lane: str, what: str, ranks: tuple[int, ...], size: float) -> int:
        """Bytes that go by themselves."""
        self._program.meetings.append(CommunicationKind(1, self._cost(ranks, what, size) if size > 0 else _NOTHING))
        return self._op(rank, node, lane, meeting=len(self._program.meetings) - 1)

    def lowered(self) -> tuple[ExplicitProgram, list[tuple[int, TraceNode]]]:
        """All ranks' nodes; messages are tied, and what nobody answers is refused."""
        for rank in range(len(self._trace.ranks)):
            self._add(rank)
        program = self._program
        for key in dict.fromkeys((*self._sends, *self._receives)):
            sends, receives = self._sends.get(key, []), self._receives.get(key, [])
            if len(sends) != len(receives):
                lost: Sequence[int] = max(sends, receives, key=len)
                rank, node = self._nodes[lost[min(len(sends), len(receives))]]
                half = "a receive" if node.kind == "send" else "a send"
                what = f"has no partner: rank {key[0]} sends {len(sends)} times to rank {key[1]} with tag {key[2]}"
                raise self.error(rank, node, f"{what}, which receives {len(receives)} times; {half} is missing")
            for send, receive in zip(sends, receives, strict=True):
                program.after[receive] = [*program.after[receive], send]
        for (group, _, turn), (meeting, kind, _, rank, node) in self._met.items():
            if self._joined[meeting] < len(group):
                what = f"only {self._joined[meeting]} of the {len(group)} ranks of its group have this {kind}"
                raise self.error(rank, node, f"{what}, number {turn + 1} of the group; all of them must")
        return program, self._nodes
