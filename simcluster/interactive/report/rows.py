"""Timeline rows of the report, one per rank, and descriptions of the spans in them.

A span's description: how its collective is done, which rank it waits for, the other end of a message, and its part of
the critical path. A rank that was not simulated is drawn from its representative's spans: it has a row, and no bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.results.contention import CallKey
from simcluster.results.result import Result
from simcluster.traffic.nccl.constants import COLLECTIVES
from simcluster.traffic.nccl.tuner_query import bus_factor

MOST_ROWS = 1024


@dataclass(frozen=True)
class RankRow:
    """A timeline row of one rank, drawn with the spans of the simulated rank that represents it.

    ``groups`` maps the source's group names to this rank's; ``peers`` has the rank at the other end of its sends by the
    stage there ("to 1", "from 0"); ``awaited_ranks`` the rank that it waits for, by the axis and the simulated rank
    that the source waits for ("tp 5"; for a send " 5"). ``slowdown_text`` describes the fault on it, "" for most.
    """

    rank: int
    source: int
    groups: Mapping[str, str] = field(default_factory=dict)
    peers: Mapping[str, int] = field(default_factory=dict)
    awaited_ranks: Mapping[str, int] = field(default_factory=dict)
    slowdown_text: str = ""


@dataclass(frozen=True)
class SpanDescriptions:
    """Details of every span in a timeline, stored as columns: collective algorithm, awaited rank, message partner.

    ``algorithm`` is an index into ``algorithms``, how the call is done ("" for all but collectives), and ``bus_factor``
    its bus bandwidth over its algorithm bandwidth, 0 if there is none; ``awaited_rank`` is the simulated rank that was
    waited for, and ``partner_span`` the number of the span at the other end of a message: -1 for none.
    ``critical_path`` is the critical path: span numbers, and the interval (s) in which each is on it.
    """

    algorithms: tuple[str, ...]
    algorithm: Ints
    bus_factor: Floats
    awaited_rank: Ints
    partner_span: Ints
    critical_path: tuple[Ints, Floats, Floats]

    def select(self, kept: Bools) -> SpanDescriptions:
        """Return the details of the spans at which a boolean mask is true, with spans renumbered."""
        number = np.where(kept, np.cumsum(kept) - 1, -1)
        mate = np.where(self.partner_span >= 0, number[self.partner_span], -1)[kept]
        spans, start, end = self.critical_path
        there = kept[spans]
        path = number[spans[there]], start[there], end[there]
        way, bus, late = self.algorithm[kept], self.bus_factor[kept], self.awaited_rank[kept]
        return SpanDescriptions(self.algorithms, way, bus, late, mate, path)


def describe_spans(result: Result) -> SpanDescriptions:
    """Return the collective algorithm, awaited rank and message partner of every span of a result."""
    path = result.critical_path
    on_path = path.number, path.start, path.end
    return SpanDescriptions(*_call_descriptions(result), _awaited_ranks(result), _message_partners(result), on_path)


def _call_descriptions(result: Result) -> tuple[tuple[str, ...], Ints, Floats]:
    call, keys = result.span_calls
    said = [_describe_collective(result, key) for key in keys]
    ways = tuple(dict.fromkeys(["", *(text for text, _ in said)]))
    of_key = np.array([*(ways.index(text) for text, _ in said), 0])
    factor = np.array([*(number for _, number in said), 0.0])
    return ways, of_key[call], factor[call]


def _describe_collective(result: Result, key: CallKey) -> tuple[str, float]:
    if key.kind not in COLLECTIVES:
        return "", 0.0
    communicators = result.folding.communicators
    members = len(communicators.member_ranks(key.communicator))
    try:
        method = communicators.method_of_call(key.communicator, key.kind, key.size)
    except KeyError:  # of uneven experts: no call of this size was planned
        return f"among {members}", bus_factor(key.kind, members)
    text = f"{method.algorithm.replace('_', ' ')} {method.protocol}".strip()
    return f"{text} among {members}", bus_factor(key.kind, members)


def _awaited_ranks(result: Result) -> Ints:
    spans, ops = result.spans, result.record.ops
    last = result.record.times.last_arrival[spans.op]
    waited = (spans.ready < spans.start) & (last != spans.op) & (spans.kind != spans.word_code("recv"))
    return np.where(waited, ops.lane_rank[ops.lane[last]] - result.ranks.start, -1)


def _message_partners(result: Result) -> Ints:
    spans, times = result.spans, result.record.times
    found = np.full(len(spans), -1, dtype=np.int64)
    received = np.flatnonzero(spans.kind == spans.word_code("recv"))
    send, receiver = result.record.ops.receives
    if not len(send) or len(send) != len(received):
        return found
    received = received[np.lexsort((spans.end[received], spans.start[received], spans.op[received]))]
    send = send[np.lexsort((times.end[send], times.start[send], receiver))]
    sent = np.flatnonzero(spans.kind == spans.word_code("send"))
    of_op = np.full(len(result.record.ops), -1, dtype=np.int64)
    of_op[spans.op[sent]] = sent
    found[received] = of_op[send]
    there = of_op[send] >= 0
    found[of_op[send][there]] = received[there]
    return found


# --- rows -------------------------------------------------------------------------------------------------------------


def make_rank_rows(result: Result, facts: SpanDescriptions, ranks: Sequence[int]) -> tuple[RankRow, ...]:
    """Return the report's timeline rows, one for each of these ranks."""
    return tuple(_RowMaker(result, facts).make_row(rank) for rank in ranks)


_SourcePartners = tuple[dict[str, str], list[tuple[str, int]], list[tuple[str, int]]]


class _RowMaker:
    def __init__(self, result: Result, facts: SpanDescriptions) -> None:
        self._result, self._facts = result, facts
        self._first = result.ranks.start
        self._communicators = result.folding.communicators
        self._stages = result.job.plan.stage_of_every_rank()
        self._slow = describe_slow_ranks(result)
        self._known: dict[int, _SourcePartners] = {}  # a cache of the method would hold this in a cycle, with all of it

    def make_row(self, rank: int) -> RankRow:
        source = self._result.representative_of(rank)
        if source not in self._known:
            self._known[source] = self._partners_of_source(source)
        groups, ends, late = self._known[source]
        own = {name: self._communicators.group_name(axis, self._first + rank) for name, axis in groups.items()}
        peers = {f"{way} {stage}": one for way, stage in ends if (one := self._peer_rank(rank, way, stage)) is not None}
        others = {f"{axis} {culprit}": self._awaited_rank_of(rank, axis, culprit) for axis, culprit in late}
        return RankRow(rank, source, own, peers, others, self._slow.get(rank, ""))

    def _partners_of_source(self, source: int) -> _SourcePartners:
        spans, facts = self._result.spans, self._facts
        low, high = np.searchsorted(spans.rank, [source, source + 1])
        names = [spans.words[code] for code in np.unique(spans.group[low:high])]
        groups = {name: name.rstrip("0123456789") for name in names if name}
        mates = np.flatnonzero(facts.partner_span[low:high] >= 0) + low
        sent = spans.kind[mates] == spans.word_code("send")
        stages = spans.stage[facts.partner_span[mates]]
        pairs = sorted(set(zip(sent.tolist(), stages.tolist(), strict=True)))
        ends = [("to" if to else "from", stage) for to, stage in pairs]
        waited = np.flatnonzero(facts.awaited_rank[low:high] >= 0) + low
        whom = sorted(set(zip(spans.group[waited].tolist(), facts.awaited_rank[waited].tolist(), strict=True)))
        return groups, ends, [(spans.words[group].rstrip("0123456789"), culprit) for group, culprit in whom]

    def _peer_rank(self, rank: int, direction: str, stage: int) -> int | None:
        own, there = int(self._stages[rank]), self._first + rank
        ends = (own, stage) if direction == "to" else (stage, own)
        try:
            pair = self._communicators.member_ranks(self._communicators.find_communicator(("send", *ends), there))
        except KeyError:
            return None
        return pair[1 if direction == "to" else 0] - self._first if there in pair else None

    def _awaited_rank_of(self, rank: int, axis: str, culprit: int) -> int:
        simulated = self._result.representative_of
        if not axis:
            stage = int(self._stages[culprit])
            peers = (self._peer_rank(rank, "to", stage), self._peer_rank(rank, "from", stage))
            return next((peer for peer in peers if peer is not None and simulated(peer) == culprit), culprit)
        try:
            members = self._communicators.member_ranks(self._communicators.find_communicator(axis, self._first + rank))
        except KeyError:
            return culprit
        own = [member - self._first for member in members]
        if culprit in own:
            return culprit
        return next((member for member in own if member != rank and simulated(member) == culprit), culprit)


def describe_slow_ranks(result: Result) -> dict[int, str]:
    """Return the ranks that a fault slows down, each with a description such as "slow × 1.2"."""
    hosts = result.scenario.cluster.built.host_of[: result.facts.ranks]
    found: dict[int, float] = {}
    for fault in result.scenario.faults:
        if fault.slowdown_factor() > 1 and not fault.affects_all_ranks:
            for rank in fault.affected_ranks(hosts):
                found[rank] = found.get(rank, 1.0) * fault.slowdown_factor()
    return {rank: f"slow × {factor:.3g}" for rank, factor in found.items()}
