"""Mutual interference: computation slows communication down, too; two rates that change when either starts or ends.

A transfer takes (1 + drag) times as long while one of its ranks computes (MODELLING.md C.5); so computations are
followed change by change, and looked at whenever they begin or cease to compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import simpy

from simcluster.engine.calendar import Instant, Lane, Lanes
from simcluster.engine.compute_tasks import Flight, RankState, Task
from simcluster.engine.interference import Pacing
from simcluster.engine.network import Network
from simcluster.engine.varying_speed import Followed
from simcluster.programs.program import Meeting, Program


class Dragging(Pacing):
    """As ``Pacing``, where communication and computation slow each other down."""

    _drags = True

    def __init__(self, env: simpy.Environment, network: Network, program: Program, lanes: Lanes) -> None:
        super().__init__(env, program, lanes)
        self._network = network

    def begin(self, meeting: Meeting, lanes: Sequence[Lane]) -> Flight:
        """The meeting's transfer is under way from now on."""
        flight = super().begin(meeting, lanes)
        self._touch_all(flight.places)
        return flight

    def finish(self, flight: Flight) -> None:
        """The meeting is over."""
        super().finish(flight)
        self._touch_all(flight.places)

    def _touch_all(self, places: Iterable[RankState | None]) -> None:
        for place in places:
            if place is not None:
                self._touch(place)

    def _follow(self, task: Followed) -> None:
        self._touch_all(place for place in task.places if place and place.flights)
        super()._follow(task)

    def _end(self, task: Task, now: float, over: list[Lane]) -> None:
        turning = [place for place in task.places if place and place.flights]
        super()._end(task, now, over)
        self._touch_all(turning)  # it may have turned from computing to communicating or back

    def _settle(self, event: Instant) -> None:
        touched = list(self._touched)
        super()._settle(event)
        self._turn(touched, self._env._now)

    def _turn(self, touched: Iterable[RankState], now: float) -> None:
        """Bring what computation does to transfers in line."""
        dragging: dict[Flight, None] = {}
        for place in touched:
            turning = [flight for flight in place.flights if flight.meeting.drag]
            dragging |= dict.fromkeys(turning)
            for task in place.watching:
                assert isinstance(task, Followed)
                self._wake(task, task.turn(now) if turning else task.next_look)
        for flight in dragging:
            self._drag(flight, now)

    def _drag(self, flight: Flight, now: float) -> None:
        """Slow the transfer down while one of its ranks computes."""
        tasks = [task for place in flight.places for task in place.watching]
        dragged = any(isinstance(task, Followed) and task.computes(now) for task in tasks)
        if dragged != flight.dragged:
            flight.dragged = dragged
            if flight.activity is not None:
                self._network.set_drag(flight.activity, 1.0 + flight.meeting.drag if dragged else 1.0)
