"""The record of a played program: the end of each lane, and everything else once it is asked for.

Ops that ranks do in step are played as one and told one by one (``programs.expand``), which nobody pays for who wants
the step time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Floats
from simcluster.engine.interference import rows_of
from simcluster.engine.lockstep import Expanded, Lockstep
from simcluster.engine.trajectories import TimedChain
from simcluster.programs.program import OpTimes, Program, RowTimes
from simcluster.programs.slowed import RowColumns, joined


@dataclass(frozen=True)
class Record:
    """Seconds per op of the whole program, once somebody asks: when it could have begun by itself, when it began, when
    it ended; ``last`` is the op that arrived last at its meeting, of equals the first op (itself elsewhere).

    ``lanes`` is when the last op of each lane ended (0 without any).  ``events`` counts what SimPy played.  ``slowed``
    has, for every op that communication beside it slowed down, when its rows started and ended, in seconds from its
    start.  ``kind`` is how the program was played, as "events" or as one longest "path", and ``why`` not otherwise."""

    lanes: Floats
    told: Callable[[], OpTimes]
    events: int
    slowed: Mapping[int, RowTimes] = field(default_factory=dict)
    kind: str = "events"
    why: str = ""

    @cached_property
    def columns(self) -> OpTimes:
        """Times per op."""
        return self.told()

    @property
    def ready(self) -> Floats:
        """When each op could have begun by itself."""
        return self.columns.ready

    @property
    def start(self) -> Floats:
        """When it began."""
        return self.columns.start

    @property
    def end(self) -> Floats:
        """When it ended."""
        return self.columns.end

    @property
    def last(self) -> npt.NDArray[np.int64]:
        """The op that arrived last at its meeting."""
        return self.columns.last


class Told:
    """What is told of all ops one by one: from the times of what a program ``played``, what is known of the stretches
    in it that are ``gone``, and of the ops played by one rank that were ``slowed``."""

    def __init__(self, program: Program, gone: Lockstep, slowed: Mapping[int, TimedChain], played: OpTimes) -> None:
        self._program, self._gone, self._slowed, self._played = program, gone, slowed, played

    @cached_property
    def _expanded(self) -> Expanded:
        return Expanded(self._program, self._gone, self._played)

    def columns(self) -> OpTimes:
        """Times per op."""
        return self._expanded.columns if self._program.in_step else self._played

    def slowed(self) -> RowColumns:
        """The rows of what did not go on as planned."""
        alone = rows_of(self._slowed)
        if not self._program.in_step:
            return alone
        return joined([alone._replace(ops=self._expanded.first[alone.ops]), self._expanded.slowed()])


def when_over(program: Program, end: Sequence[float]) -> Floats:
    """When each lane was over, by the ends of a program's ops."""
    return np.array([end[ops[-1]] if ops else 0.0 for ops in program.lanes], dtype=np.float64)
