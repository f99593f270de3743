"""The end of an instant: all events of one time are over before any process is woken by them."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import EventPriority

from simcluster.base.clock import exact_until
from simcluster.base.effort import require_few

_EVENT = 1e-5  # processor seconds per event, about
_LAST = EventPriority(2)  # after SimPy's URGENT (0) and NORMAL (1)


def process_events(env: simpy.Environment) -> int:
    """Simulate until nothing is due any more, or the clock leaves what its grid keeps exact; return the events due."""
    until, events = exact_until(), 0
    while env.peek() < until:
        env.step()
        events += 1
        if events % 10_000 == 0:
            require_few("events", events, _EVENT, env.now)
    return int(next(env._eid))


class AtEndOfInstant:
    """An action that is taken once at the end of every instant at which it was asked for."""

    def __init__(self, env: simpy.Environment, action: Callable[[], None]) -> None:
        self._env, self._action, self._asked = env, action, False

    def ask(self) -> None:
        """Take the action when all else of this instant is over."""
        if self._asked:
            return
        self._asked = True
        event = simpy.Event(self._env)
        event._ok, event._value = True, None
        event.callbacks.append(self._take)
        self._env.schedule(event, _LAST)

    def _take(self, _: simpy.Event) -> None:
        self._asked = False
        self._action()
