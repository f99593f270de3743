"""Boundaries between stages whose messages have given times and meet at a rendezvous.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simcluster.planning.boundaries import Boundaries, Key
from simcluster.planning.fixed_costs import StageCosts
from simcluster.planning.ops import Need
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.works import Transfer
from simcluster.schedules import Action, Schedule


@dataclass(frozen=True, slots=True)
class Meetings:
    """Boundaries at which sender and receiver wait for each other and for the end (as ``boundaries.BoundaryRules``)."""

    schedule: Schedule
    rendezvous: bool = True
    overlap_sends: bool = False
    gather_boundary: bool = False
    send_bytes: float = 0.0


class FixedBoundaries(Boundaries):
    """The boundaries of one stage, each message as long as the costs of its slice say."""

    def __init__(self, costs: StageCosts, schedule: Schedule, lanes: ProgramBuilder) -> None:
        super().__init__(Meetings(schedule), lanes)
        self._costs, self._schedule = costs, schedule

    def arrivals(self, actions: Sequence[Action], step: int) -> tuple[Need, ...]:
        """What actions wait for of other stages."""
        return tuple(
            need for action in actions if self._comes_from(action) is not None for need in self.needs(action, step)
        )

    def _transfer(self, target: int, key: Key) -> Transfer:
        made, _, microbatch, place = key
        stage, chunk = self._schedule.route(microbatch)[place]
        return Transfer(target, 0.0, self._costs.of(stage, chunk).sending(made), rendezvous=True)
