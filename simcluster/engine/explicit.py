"""Programs written op by op, as tables: recorded jobs, execution traces, collectives alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import Profile
from simcluster.engine.tables import (
    CommunicationKind,
    Groups,
    Tables,
    Templates,
    communication_tables,
    firsts,
    int32s,
    one_instance,
)


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
    meetings: list[CommunicationKind] = field(default_factory=list)

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
        position: int = 0,
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
        kinds = {id(each): each for each in self.meetings}  # equal objects are one
        number = dict(zip(kinds, range(len(kinds)), strict=True))
        ranks = sorted({*self.lane_rank, *chain.from_iterable(each.ranks for each in kinds.values())})
        place = dict(zip(ranks, range(len(ranks)), strict=True))
        templates = self._template(place)
        placed = [each._replace(ranks=[place[rank] for rank in each.ranks]) for each in kinds.values()]
        meetings = int32s([0, len(self.meetings)])
        return Tables(
            templates,
            one_instance(templates, ranks, max(self.position, default=0) + 1),
            Groups(meetings, meetings, int32s([number[id(each)] for each in self.meetings])),
            *communication_tables(placed),
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
            slot=int32s(np.where(meeting >= 0, self.position, -1)),
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
