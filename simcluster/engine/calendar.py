"""The calendar of a run: what goes on now and what is due at instants to come, with as few SimPy events as do.

Whatever is due at one instant is one event, however much it is; what happens at the present instant needs none.
(Llama 3 405B on 16,384 GPUs: 13,833 events for 8,464 ops; on 512 ranks, each played by itself, 14,134 for 274,432.)
Nothing here keeps what it calls: a run that is over is no circle, for the collector.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Generic, TypeVar

import simpy
from simpy.events import EventPriority

_LAST = EventPriority(2)  # after SimPy's URGENT (0) and NORMAL (1): the end of an instant

Item = TypeVar("Item")

Lane = Generator[None, None, None]
"""An in-order queue of a rank, which stops at every op until that is over."""


class Lanes:
    """Lets lanes go on, one after the other, however they come to be able to."""

    __slots__ = ("_awake", "_going")

    def __init__(self) -> None:
        self._awake: list[Lane] = []
        self._going = False

    def go_on(self, lanes: Iterable[Lane]) -> None:
        """These can go on now; if a lane says so they do when it has come to a stop."""
        awake = self._awake
        awake += lanes
        if self._going:
            return
        self._going = True
        for lane in awake:  # it grows on the way
            next(lane, None)
        awake.clear()
        self._going = False


class Instant(simpy.Event):
    """An event that comes whatever happens."""

    __slots__ = ("instant",)

    _ok = True
    _value = None

    def __init__(self, instant: float, action: Callable[[Instant], None]) -> None:
        self.instant = instant
        self.callbacks = [action]


class Agenda(Generic[Item]):
    """Items that are put down for instants."""

    __slots__ = ("_due", "_env")

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._due: dict[float, list[Item]] = {}

    def put(self, instant: float, item: Item, action: Callable[[Instant], None]) -> None:
        """Put an item down for an instant, now or to come: ``action`` takes all of that instant when it has come."""
        due = self._due.get(instant)
        if due is not None:
            due.append(item)
            return
        self._due[instant] = [item]
        env = self._env
        env.schedule(Instant(instant, action), delay=instant - env._now)

    def take(self, instant: float) -> list[Item]:
        """What was put down for the instant, in that order."""
        return self._due.pop(instant)


def at_end_of_instant(env: simpy.Environment, action: Callable[[Instant], None]) -> None:
    """Do this after all else of the present instant."""
    env.schedule(Instant(env._now, action), _LAST)


class Timer:
    """An event that comes again and again, each time so many seconds after it was asked for."""

    __slots__ = ("_callbacks", "_env", "_event")

    def __init__(self, env: simpy.Environment, action: Callable[[Instant], None]) -> None:
        self._env = env
        self._event = Instant(0.0, action)
        self._callbacks = self._event.callbacks

    def wait(self, seconds: float) -> None:
        """Let it come so many seconds from now; it is not under way at present."""
        self._event.callbacks = self._callbacks
        self._env.schedule(self._event, delay=seconds)
