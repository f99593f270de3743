"""Random numbers of long runs, one kind per purpose, drawn in blocks for a group of runs on first use.

A number depends on the seed, its stream, the run and the occurrence alone (``random_streams``), so groups may have any
size, and a block that was dropped can be drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cython
import numpy as np

from simcluster.base.arrays import Floats
from simcluster.longrun.long_run import ZERO_TIME, FailureMode, LongRun, cause_names
from simcluster.longrun.random_streams import BLOCK, fill_random_numbers
from simcluster.scenario.run_times import DurationSpec

if not cython.compiled:
    from simcluster.base.pointers import Buffers

_ROOM = 1 << 23
"""Number of cached random numbers: 64 MB."""


class Draws:
    """Random numbers of a group of ``count`` runs, drawn in blocks; each kind (purpose) has an integer identifier.

    ``add``, ``add_law`` and ``add_constant`` return the number of a kind. The runs are ``first`` to ``first + count``;
    ``draw`` returns the draw of the run at ``place`` among them.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.first = self.count = self.place = self.used = 0
        self.depth = 2
        self.sources: list[tuple[str, Sequence[int], Callable[[Floats], Floats]] | None] = []
        self.constants: list[float] = []
        self.buffers = Buffers()
        self.numbers = self.buffers.doubles("numbers", _ROOM)  # takes memory where it is written

    def add_constant(self, value: float) -> int:
        """Register a kind of draw that always returns the same value; return the identifier of the kind."""
        self.sources.append(None)
        self.constants.append(value)
        return len(self.sources) - 1

    def add(self, stream: str, columns: Sequence[int], transform: Callable[[Floats], Floats]) -> int:
        """Register a kind of draw, computed by ``transform`` from uniform numbers; return the kind's identifier."""
        self.sources.append((stream, columns, transform))
        self.constants.append(0.0)
        return len(self.sources) - 1

    def add_law(self, stream: str, law: DurationSpec) -> int:
        """Register a kind of draw, seconds from a distribution; return the identifier of the kind."""
        return self.add(stream, range(law.num_draws), law.quantile) if law.num_draws else self.add_constant(law.mean)

    def start_group(self, first: int, count: int) -> None:
        """Start a group of ``count`` runs, numbered from ``first``; drop the random numbers drawn so far."""
        self.first, self.count, self.place, self.used = first, count, 0, 0
        self.fixed = self.buffers.view_doubles("fixed", self.constants)
        self.begins = self.buffers.view_ints("begins", np.full(len(self.sources) * self.depth, -1))

    def draw(self, number: cython.int, occurrence: cython.int) -> cython.double:
        """Return the current run's random draw of kind ``number`` (an identifier), for an event's nth occurrence."""
        block: cython.int = occurrence // 64  # BLOCK, as a constant that the compiler knows
        begin: cython.int = -1
        if block < self.depth:
            begin = self.begins[number * self.depth + block]
        if begin < 0:
            if self.sources[number] is None:
                return self.fixed[number]
            begin = self.draw_block(number, block)
        return self.numbers[begin + self.place * 64 + occurrence % 64]

    def draw_block(self, number: cython.int, block: cython.int) -> cython.int:
        """Draw a block of occurrences for all runs of the group; if memory is short, for the current run alone."""
        stream, columns, transform = self.sources[number]
        if self.used + self.count * BLOCK > _ROOM:
            self.start_group(self.first + self.place, 1)
        if block >= self.depth:
            known = self.buffers.arrays["begins"].reshape(-1, self.depth)
            more = [(0, 0), (0, 2 * block - self.depth)]
            self.begins = self.buffers.view_ints("begins", np.pad(known, more, constant_values=-1))
            self.depth = 2 * block
        uniform = np.empty((len(columns), self.count, BLOCK))
        for column, numbers in zip(columns, uniform, strict=True):
            fill_random_numbers(self.seed, stream, block, column, self.first, numbers)
        values = transform(uniform.reshape(len(columns), -1).T)
        begin: cython.int = self.used
        self.used += len(values)
        self.buffers.arrays["numbers"][begin : self.used] = values
        self.begins[number * self.depth + block] = begin
        return begin


def all_causes(run: LongRun) -> list[FailureMode]:
    """Return a run's failure causes, followed by maintenance and missing nodes as causes with rate 0."""
    return [*run.causes, *(FailureMode(name, "stop", 0.0) for name in cause_names(run)[len(run.causes) :])]


def register_draws(run: LongRun, cause: FailureMode, machines: int, draws: Draws) -> None:
    """Register all kinds of random draws of a cause, in a fixed order, with repair times for ``machines`` nodes."""
    repair = first = cause.repair or ZERO_TIME
    if cause.defective_batch is not None and cause.defective_batch.replaced is not None and cause.repair is not None:
        first = cause.defective_batch.replaced  # of a machine that is retired
    draws.add_law(f"{cause.name}.detect", cause.detect)
    draws.add_law(f"{cause.name}.lasts", cause.lasts)
    draws.add_law(f"{cause.name}.noticed", run.notice_time)
    _register_pace(cause, draws)
    if run.misdiagnosis_share:
        share = np.log(run.misdiagnosis_share)
        draws.add(f"{cause.name}.wrong", (0,), lambda uniform: np.floor(np.log(uniform[:, 0]) / share))
    else:
        draws.add_constant(0.0)
    draws.add_law(f"{cause.name}.repair.0", first)
    for machine in range(machines):
        draws.add_law(f"{cause.name}.repair.{machine}", repair)
    for part in run.restart:
        for law in (part.memory, part.storage):
            draws.add_law(f"{cause.name}.restart.{part.name}", law)


def _register_pace(cause: FailureMode, draws: Draws) -> None:
    paces, of = cause.paces, cause.device_class
    if paces is None:
        draws.add_constant(1.0)
        return

    def draw_pace(uniform: Floats) -> Floats:
        level = np.searchsorted(np.cumsum(cause.shares)[: len(cause.shares) - 1], uniform[:, 0], side="right")
        device = np.minimum((uniform[:, 1] * cause.devices).astype(np.int64), cause.devices - 1)
        return np.asarray(paces[level, 0 if of is None else of[device]])

    draws.add(f"{cause.name}.spell", range(2), draw_pace)
