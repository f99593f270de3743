"""Programs written op by op, as tables: recorded jobs, execution traces, collectives alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.profiles import Profile
from simcluster.engine.tables import (
    CommunicationKind,
    Groups,
    HopRounds,
    Kinds,
    Tables,
    Templates,
    firsts,
    int32s,
    kinds_table,
    one_instance,
)
from simcluster.traffic.traffic import Traffic


class ExplicitCommunication(NamedTuple):
    """A communication that begins when ``parties`` ops have arrived, and ends for all at once.

    Its ``traffics`` follow one another.  Where its ``ranks`` compute meanwhile, that takes (1 + sensitivity x
    ``pressure``) times as long, and a round of it (1 + ``drag``) times as long.  With ``hops`` it is simulated hop by
    hop instead: then ``traffics`` are those of the hops, and each op begins at its own arrival.
    """

    parties: int
    traffics: Sequence[Traffic]
    ranks: Sequence[int] = ()
    pressure: float = 0.0
    drag: float = 0.0
    hops: HopRounds | None = None


@dataclass
class ExplicitProgram:
    """Ops on lanes of ranks.

    Per op: ``seconds`` of what is no communication; ``sensitivity`` to communication, -1 for what it does not slow
    down; ``meeting``, the place of its communication in ``meetings``, or -1; its ``position`` among the members of a
    collective in hops; and what it waits for besides the op before it on its lane.
    """

    lane_rank: list[int] = field(default_factory=list)
    lanes: list[list[int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sensitivity: list[float] = field(default_factory=list)
    meeting: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    after: list[Sequence[int]] = field(default_factory=list)
    meetings: list[ExplicitCommunication] = field(default_factory=list)

    def add_lane(self, rank: int) -> int:
        """Add an in-order queue of a rank and return its number."""
        self.lane_rank.append(rank)
        self.lanes.append([])
        return len(self.lanes) - 1

    def add_op(
        self,
        lane: int,
        seconds: float = 0.0,
        *,
        sensitivity: float = -1.0,
        meeting: int = -1,
        position: int = -1,
        after: Sequence[int] = (),
    ) -> int:
        """Add an op at the end of a lane and return its number."""
        op = len(self.seconds)
        self.lanes[lane].append(op)
        self.seconds.append(seconds)
        self.sensitivity.append(sensitivity)
        self.meeting.append(meeting)
        self.position.append(position)
        self.after.append(after)
        return op

    def tables(
        self,
        capacity: Sequence[float] | Floats,
        *,
        speeds: Mapping[int, Profile] = MappingProxyType({}),
        capacities: Mapping[int, Profile] = MappingProxyType({}),
    ) -> Tables:
        """Return the tables that the engine reads; ``speeds`` is by rank, ``capacities`` by link."""
        ranks = sorted({*self.lane_rank, *chain.from_iterable(each.ranks for each in self.meetings)})
        place = {rank: number for number, rank in enumerate(ranks)}
        kinds, traffics, collectives, kind_of = self._kinds(place)
        templates = self._template(place)
        return Tables(
            templates,
            one_instance(templates, ranks, max([0, *self.position]) + 1),
            Groups(int32s([0, len(self.meetings)]), int32s([0, len(kind_of)]), int32s(kind_of)),
            kinds,
            traffics,
            collectives,
            np.asarray(capacity, dtype=np.float64),
            {place[rank]: profile for rank, profile in speeds.items() if rank in place},
            capacities,
        )

    def _template(self, place: Mapping[int, int]) -> Templates:
        """Return all ops as one template, with a slot for each position in a collective, all of them of group 0.

        Every meeting is a place in this group, and a row among its kinds.
        """
        meeting = int32s(self.meeting)
        waits = [other for others in self.after for other in others]
        return Templates(
            op_first=int32s([0, len(self.seconds)]),
            seconds=np.array(self.seconds, dtype=np.float64),
            sensitivity=np.array(self.sensitivity, dtype=np.float64),
            slot=np.where(meeting >= 0, np.maximum(int32s(self.position), 0), -1).astype(np.int32),
            work=meeting,
            place=meeting,
            wait_first=firsts([*map(len, self.after)]),
            wait_op=int32s(waits),
            wait_peer=np.full(len(waits), -1, dtype=np.int32),
            lane_first=int32s([0, len(self.lanes)]),
            lane_op_first=firsts([*map(len, self.lanes)]),
            lane_op=int32s([*chain.from_iterable(self.lanes)]),
            lane_rank=int32s([place[rank] for rank in self.lane_rank]),
        )

    def _kinds(self, place: Mapping[int, int]) -> tuple[Kinds, list[Traffic], list[HopRounds], list[int]]:
        """Return kinds, traffics and collectives, and the kind of every meeting: equal objects are one."""
        kinds: dict[int, ExplicitCommunication] = {id(each): each for each in self.meetings}
        number = {name: kind for kind, name in enumerate(kinds)}
        moved = {id(traffic): traffic for each in kinds.values() for traffic in each.traffics}
        traffic_number = {name: traffic for traffic, name in enumerate(moved)}
        collectives: list[HopRounds] = []
        columns: list[CommunicationKind] = []
        for each in kinds.values():
            traffics = [traffic_number[id(traffic)] for traffic in each.traffics]
            ranks = [place[rank] for rank in each.ranks]
            if each.hops:
                collectives.append(each.hops._replace(traffic=int32s(traffics)[each.hops.traffic]))
            rounds, traffics = (len(collectives) - 1, []) if each.hops else (-1, traffics)
            columns.append(CommunicationKind(each.parties, traffics, each.pressure, each.drag, ranks, rounds))
        return kinds_table(columns), [*moved.values()], collectives, [number[id(each)] for each in self.meetings]
