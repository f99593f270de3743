"""Where and when a fault is: on which ranks, on which links, in which windows of time.  Imports spec and windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from simcluster.clock import on_grid
from simcluster.documents.spec import Spec
from simcluster.errors import InputError
from simcluster.units import Seconds
from simcluster.windows import Window

Number = Annotated[int, Field(strict=True, ge=0)]
"""Of a rank, a machine or a step, from 0."""
SHORTEST_PERIOD = 1e-6


class OnRanks(Spec):
    """Ranks: one (``rank``), several (``ranks``), or all that the job has on a machine (``node``, its number)."""

    rank: Number | None = None
    ranks: Annotated[tuple[Number, ...], Field(min_length=1)] | None = None
    node: Number | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        named = [name for name in ("rank", "ranks", "node") if getattr(self, name) is not None]
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} both say where it is; keep one")
        return self

    @property
    def named(self) -> tuple[int, ...] | None:
        """The ranks that are named one by one; None where a machine is, or nothing."""
        return (self.rank,) if self.rank is not None else self.ranks

    def chosen(self, host_of: Sequence[int]) -> list[int]:
        """The ranks that it is on; ``host_of[rank]`` is the rank's machine.  All of them where none is named."""
        if self.named is not None:
            return list(dict.fromkeys(self.named))
        return [rank for rank, host in enumerate(host_of) if self.node is None or host == self.node]


class OnLinks(Spec):
    """Links, in both directions.

    ``between`` names two neighbours in the cluster's graph, as ``simcluster topology FILE`` prints them; ``nic_of`` is
    a rank: the ports of its NICs; ``uplinks_of`` a machine's number: all links with which it leaves for the fabric.
    """

    between: tuple[str, str] | None = None
    nic_of: Number | None = None
    uplinks_of: Number | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        named = [name for name in ("between", "nic_of", "uplinks_of") if getattr(self, name) is not None]
        if len(named) != 1:
            what = f"{' and '.join(named)} both say" if named else "nothing says"
            raise InputError(
                f"{what} which links it is on; give one of between: [node, neighbour], nic_of: a rank, or "
                "uplinks_of: a machine's number"
            )
        if self.between and self.between[0] == self.between[1]:
            raise InputError(f"between: a link has two different ends, got {self.between[0]!r} twice")
        return self


class During(Spec):
    """When: from ``start`` to ``end``, counted from the first step's begin; left out: from the begin, to the end.

    With a ``period`` only in the first ``duty`` (0 to 1) of each, as a GPU that throttles again and again.
    """

    start: Seconds | None = None
    end: Seconds | None = None
    period: Seconds | None = None
    duty: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end is not None and self.end <= (self.start or 0.0):
            raise InputError(f"end {self.end:g} s must be later than start {self.start or 0.0:g} s")
        if (self.period is None) != (self.duty is None):
            given, other = ("period", 'duty, as in "duty: 0.2"') if self.duty is None else ("duty", "a period")
            raise InputError(f"{given} needs {other}: which part of every period it lasts")
        if self.period is not None and self.period < SHORTEST_PERIOD:
            raise InputError(f"period {self.period:g} s is too short to be followed; at least 1 us")
        return self

    def window(self, value: float) -> Window | None:
        """The factor ``value`` over time; None where it is there for ever."""
        return window(value, self.start, self.end, self.period, self.duty)


def window(
    value: float, start: float | None, end: float | None, period: float | None, duty: float | None
) -> Window | None:
    """The profile of these times in seconds; None where it is there from the begin for ever."""
    if not start and end is None and period is None:
        return None
    ends = math.inf if end is None else on_grid(end)
    if period is None or duty is None:
        return Window(value, on_grid(start or 0.0), ends)
    return Window(value, on_grid(start or 0.0), ends, on_grid(period), on_grid(duty * period))
