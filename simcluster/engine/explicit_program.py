"""Programs given op by op (recorded jobs, execution traces, single collectives) as tables for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import Profile
from simcluster.engine import tables
from simcluster.engine.tables import CommunicationKind, EngineTables, GroupColumns, to_int32


@dataclass
class ExplicitProgram:
    """Program given op by op, with each op on a lane (in-order op queue) of a rank.

    Per op: its ``lane``; its ``seconds``, 0 for communication; its ``sensitivity`` to communication, -1 if that does
    not slow it down; ``meeting``, the index of its communication in ``meetings``, or -1; its ``position`` among the
    members of a collective in hops; and the ops that it waits for, except the previous one on its lane.
    """

    lane_rank: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sensitivity: list[float] = field(default_factory=list)
    meeting: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    after: list[Sequence[int]] = field(default_factory=list)
    meetings: list[CommunicationKind] = field(default_factory=list)

    def add_lane(self, rank: int) -> int:
        """Add a lane (in-order op queue) to a rank and return its number."""
        self.lane_rank.append(rank)
        return len(self.lane_rank) - 1

    def add_op(
        self,
        lane: int,
        seconds: float = 0.0,
        *,
        sensitivity: float = -1.0,
        rendezvous: int = -1,
        position: int = 0,
        after: Sequence[int] = (),
    ) -> int:
        """Append an op to a lane and return the op's number."""
        self.lane.append(lane)
        self.seconds.append(seconds)
        self.sensitivity.append(sensitivity)
        self.meeting.append(rendezvous)
        self.position.append(position)
        self.after.append(after)
        return len(self.lane) - 1

    def make_tables(
        self,
        capacity: Sequence[float] | Floats,
        *,
        speeds: Mapping[int, Profile] = MappingProxyType({}),
        capacities: Mapping[int, Profile] = MappingProxyType({}),
    ) -> EngineTables:
        """Return the program as engine tables; ``speeds`` are by rank, ``capacities`` by link."""
        kinds = {id(each): each for each in self.meetings}  # equal objects are one
        number = dict(zip(kinds, range(len(kinds)), strict=True))
        ranks = sorted({*self.lane_rank, *chain.from_iterable(each.ranks for each in kinds.values())})
        place = dict(zip(ranks, range(len(ranks)), strict=True))
        placed = [each._replace(ranks=[place[rank] for rank in each.ranks]) for each in kinds.values()]
        # each position in a collective has a slot, all are of group 0, and every meeting is a place in this group
        meeting, meetings = to_int32(self.meeting), to_int32([0, len(self.meetings)])
        templates = tables.make_single_template(
            to_int32(self.lane),
            [place[rank] for rank in self.lane_rank],
            np.repeat(np.arange(len(self.after)), [*map(len, self.after)]),
            to_int32([*chain.from_iterable(self.after)]),
            seconds=np.array(self.seconds, dtype=np.float64),
            sensitivity=np.array(self.sensitivity, dtype=np.float64),
            slot=to_int32(np.where(meeting >= 0, self.position, -1)),
            work=meeting,
            place=meeting,
        )
        return EngineTables(
            templates,
            tables.make_single_instance(templates, ranks, max(self.position, default=0) + 1),
            GroupColumns(meetings, meetings, to_int32([number[id(each)] for each in self.meetings])),
            *tables.tabulate_communication(placed),
            np.asarray(capacity, dtype=np.float64),
            {place[rank]: profile for rank, profile in speeds.items() if rank in place},
            capacities,
        )
