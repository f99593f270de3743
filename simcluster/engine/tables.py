"""Input of the compiled engine as flat arrays: ops of the ranks, groups, traffic and links.

Ranks that run the same program share a *template* of its ops; an *instance* is one simulated rank (or, of an explicit
program, all of them). Op ``k`` of instance ``i`` has number ``InstanceColumns.op_first[i] + k``. Integers are int32,
numbers float64, all arrays contiguous; ``*_first`` arrays have one entry more than what they index, so that the part of
``i`` lies between ``first[i]`` and ``first[i + 1]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints, Numbers
from simcluster.base.clock import Profile
from simcluster.traffic.traffic import Traffic


class TemplateColumns(NamedTuple):
    """Ops of all templates (programs that equal ranks share), one template after the other.

    Per op: ``seconds`` alone at full speed (0 for communication), and ``sensitivity`` to concurrent communication; -1
    for what neither a slow rank nor communication slows down.  A communication has a ``slot`` (-1: none), which names
    the group among those of its instance; its ``place`` is that of the rendezvous among the group's, equal for all
    members; ``work`` its row among the kinds of the group, -1 for an op that only takes part in another's (a receive).

    An op waits for the op before it on its lane and for those in ``wait_op``: numbers within the template of the
    awaited instance, its own where ``wait_peer`` is -1, else that of its peer with this number.

    ``lane_op`` lists the ops of each lane in order (numbers within the template); ``lane_rank`` is the place of the
    lane's rank among those of its instance (0 unless the program is explicit).
    """

    op_first: Int32s
    seconds: Floats
    sensitivity: Floats
    slot: Int32s
    work: Int32s
    place: Int32s
    wait_first: Int32s
    wait_op: Int32s
    wait_peer: Int32s
    lane_first: Int32s
    lane_op_first: Int32s
    lane_op: Int32s
    lane_rank: Int32s


class InstanceColumns(NamedTuple):
    """Simulated ranks as arrays: template, groups, peers and slowness of each.

    ``group[i, slot]`` and ``peer[i, number]`` are -1 where an instance has none; ``position[i, slot]`` is its place in
    the group, which only collectives in rounds ask for. ``op_first``, ``lane_first`` and ``rank_first`` count ops,
    lanes and ranks of all instances; ``slowness`` multiplies the computation of each of these ranks, ``number`` is what
    the job calls it (of ranks that arrive last at one instant the lowest number is named).

    ``own_seconds[i]`` is -1, or where the instance's own ``TemplateColumns.seconds`` begin in ``seconds``.
    """

    template: Int32s
    group: Int32s
    peer: Int32s
    position: Int32s
    op_first: Int32s
    lane_first: Int32s
    rank_first: Int32s
    number: Int32s
    slowness: Floats
    own_seconds: Int32s
    seconds: Floats


class GroupColumns(NamedTuple):
    """Groups as arrays: the number of each group's first rendezvous, and its kinds of communication."""

    place_first: Int32s
    kind_first: Int32s
    kinds: Int32s


class CommunicationKindColumns(NamedTuple):
    """Kinds of communication as arrays, one ``CommunicationKind`` per row.

    ``traffic`` lists places among the traffics. ``rounds`` is -1, or for a kind that is simulated hop by hop its place
    in ``EngineTables.collectives``: these are in the order of their kinds, and the traffics are those of the hops.
    """

    parties: Int32s
    pressure: Floats
    drag: Floats
    traffic_first: Int32s
    traffic: Int32s
    rank_first: Int32s
    rank: Int32s
    rounds: Int32s


class TrafficColumns(NamedTuple):
    """Traffics as arrays: traffic i puts ``flows[k]`` flows on ``link[k]``, for k in first[i] .. first[i + 1] - 1."""

    first: Int32s
    link: Int32s
    flows: Floats
    round_bytes: Floats
    rounds: Floats
    latency: Floats
    bound: Floats


class TrafficTuple(tuple[Traffic, ...]):
    """Tuple of traffics that several tables share; their arrays are computed once."""

    @cached_property
    def columns(self) -> TrafficColumns:
        """All traffics as arrays."""
        usage = np.array([pair for each in self for pair in each.usage], dtype=np.float64).reshape(-1, 2)
        numbers = [(each.round_bytes, each.rounds, each.latency_seconds, each.bound) for each in self]
        columns = np.array(numbers, dtype=np.float64).reshape(-1, 4).T
        first = csr_offsets([len(each.usage) for each in self])
        return TrafficColumns(first, usage[:, 0].astype(np.int32), usage[:, 1].copy(), *columns)


class CommunicationKind(NamedTuple):
    """Kind of communication, which begins when ``parties`` ops have arrived, and ends for all these ops at once.

    Its ``traffics`` follow one another. While it moves, a computation on ``ranks`` takes (1 + sensitivity x
    ``pressure``) times as long, and a round of it (1 + ``drag``) times as long while one of these ranks computes. With
    ``hops`` it is simulated hop by hop instead: then ``traffics`` are those of the hops, and every member begins at its
    own arrival. A row of ``hops`` is one hop: the number of its block (blocks follow each other) and how often that
    repeats, the positions of source and target in the group, and its channel.
    """

    parties: int
    traffics: Sequence[Traffic]
    ranks: Sequence[int] = ()
    pressure: float = 0.0
    drag: float = 0.0
    hops: Int32s | None = None


class EngineTables(NamedTuple):
    """Complete input of the engine; ``capacity`` is in B/s per link.

    ``speeds`` (by place of the rank among those of all instances) and ``capacities`` (by link) are what multiplies
    seconds of computation, and the capacity, over time. ``ops`` are the TemplateOps of these templates and
    instances; None: read them.
    """

    templates: TemplateColumns
    instances: InstanceColumns
    groups: GroupColumns
    kinds: CommunicationKindColumns
    traffics: Sequence[Traffic]
    collectives: Sequence[Int32s]
    capacity: Floats
    speeds: Mapping[int, Profile]
    capacities: Mapping[int, Profile]
    ops: Any = None


def tabulate_communication(
    kinds: Sequence[CommunicationKind],
) -> tuple[CommunicationKindColumns, TrafficTuple, list[Int32s]]:
    """Tabulate the kinds of communication, their distinct traffic, and the hops of hop-by-hop collectives."""
    moved = {id(traffic): traffic for kind in kinds for traffic in kind.traffics}
    number = dict(zip(moved, range(len(moved)), strict=True))
    in_rounds = np.array([kind.hops is not None for kind in kinds], dtype=bool)
    columns = CommunicationKindColumns(
        parties=to_int32([kind.parties for kind in kinds]),
        pressure=np.array([kind.pressure for kind in kinds], dtype=np.float64),
        drag=np.array([kind.drag for kind in kinds], dtype=np.float64),
        traffic_first=csr_offsets([len(kind.traffics) for kind in kinds]),
        traffic=to_int32([number[id(traffic)] for kind in kinds for traffic in kind.traffics]),
        rank_first=csr_offsets([len(kind.ranks) for kind in kinds]),
        rank=to_int32([rank for kind in kinds for rank in kind.ranks]),
        rounds=to_int32(np.where(in_rounds, np.cumsum(in_rounds) - 1, -1)),
    )
    return columns, TrafficTuple(moved.values()), [kind.hops for kind in kinds if kind.hops is not None]


def make_single_template(
    lane: Numbers, lane_rank: Sequence[int], waiting: Numbers, awaited: Numbers, **columns: Any
) -> TemplateColumns:  # fmt: skip
    """Return one template with ops on lanes of these ranks; op ``waiting[i]`` waits for op ``awaited[i]``.

    ``columns`` are the others of ``TemplateColumns`` that have a value per op.
    """
    return TemplateColumns(
        op_first=to_int32([0, len(lane)]),
        wait_first=csr_offsets(np.bincount(waiting, minlength=len(lane))),
        wait_op=to_int32(awaited[np.argsort(waiting, kind="stable")]),
        wait_peer=np.full(len(awaited), -1, dtype=np.int32),
        lane_first=to_int32([0, len(lane_rank)]),
        lane_op_first=csr_offsets(np.bincount(lane, minlength=len(lane_rank))),
        lane_op=to_int32(np.argsort(lane, kind="stable")),
        lane_rank=to_int32(lane_rank),
        **columns,
    )


def make_single_instance(templates: TemplateColumns, numbers: Sequence[int], slots: int = 1) -> InstanceColumns:
    """Return one instance of a template, which contains all ranks; all its slots are in one group."""
    return InstanceColumns(
        template=to_int32([0]),
        group=np.zeros((1, slots), dtype=np.int32),
        peer=np.zeros((1, 0), dtype=np.int32),
        position=np.arange(slots, dtype=np.int32)[None],
        op_first=templates.op_first,
        lane_first=templates.lane_first,
        rank_first=to_int32([0, len(numbers)]),
        number=to_int32(numbers),
        slowness=np.ones(len(numbers)),
        own_seconds=to_int32([-1]),
        seconds=np.zeros(0),
    )


def to_int32(values: Sequence[int] | Numbers) -> Int32s:
    """Convert integers to an int32 array."""
    return np.array(values, dtype=np.int32)


def csr_offsets(sizes: Sequence[int] | Numbers) -> Int32s:
    """Return CSR offsets from part sizes: the first index of each part, and finally the total size."""
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))]).astype(np.int32)


def csr_part_indices(first: Numbers, parts: Numbers) -> Ints:
    """Return the indices of all entries of the selected ``parts`` of a CSR layout, part by part."""
    counts = np.diff(first)[parts]
    ends = np.cumsum(counts, dtype=np.int64)
    return np.repeat(first[parts] - ends + counts, counts) + np.arange(ends[-1] if len(ends) else 0)
