"""One step of a recorded job as ops that wait for each other.  Columns over ops.

A worker has in-order lanes: "main" (compute, and the collectives that it waits for), one for each half of messages, one
for each kind of collective that runs beside compute.  Ops of a group begin together and end each on its own, its
seconds after the last of the group has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.interop.recorded.trace import COLLECTIVE, MESSAGES, SCOPES

MAIN = "main"
HOST, COPY = "host", "copy"
"""Types of ops of profiles during which a GPU computes nothing."""
Lane = tuple[int, str]
"""(worker, name)."""


@cache
def is_communication(optype: str) -> bool:
    """Is the type one whose length depends on others: a message or a collective?"""
    return optype in MESSAGES or optype in SCOPES or optype in MESSAGES.values() or optype.startswith(COLLECTIVE)


@dataclass(frozen=True)
class StepGraph:
    """Ops of one step, the same in all of ``steps``; a worker is dp_rank x ``stages`` + stage.

    ``optype`` is an op's type in the trace; ``seconds[op, step]`` what it takes by itself (a message or collective:
    from the last arrival on); ``began`` and ``ended`` are when it was recorded, 0 where it was not.
    """

    stages: int
    steps: tuple[int, ...]
    optype: tuple[str, ...]
    worker: Ints
    microbatch: Ints
    chunk: Ints  # in the whole model; -1 for none
    lanes: dict[Lane, tuple[int, ...]]
    after: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    seconds: Floats
    began: Floats
    ended: Floats

    def __len__(self) -> int:
        return len(self.optype)

    @property
    def dp_rank(self) -> Ints:
        """The dp rank of every op's worker."""
        return self.worker // self.stages

    @property
    def stage(self) -> Ints:
        """The stage of every op's worker."""
        return self.worker % self.stages

    @cached_property
    def kinds(self) -> tuple[tuple[str, ...], Ints]:
        """The op types that there are, and which of them every op is of: there are few, and questions are of types."""
        place: dict[str, int] = {}
        codes = [place.setdefault(optype, len(place)) for optype in self.optype]
        return tuple(place), np.array(codes, dtype=np.int64)

    def of_kinds(self, chosen: Callable[[str], bool]) -> Bools:
        """Which ops are of types that are chosen."""
        kinds, codes = self.kinds
        return np.array([chosen(optype) for optype in kinds], dtype=bool)[codes]

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The op types as they are reported, the two halves of a message as one."""
        return tuple([MESSAGES.get(optype, optype) for optype in self.optype])

    @property
    def measured(self) -> Floats:
        """Seconds of every step as recorded: first start to last end."""
        return np.asarray(self.ended.max(axis=0) - self.began.min(axis=0))

    def describe(self, op: int) -> str:
        """The op for a message."""
        worker = int(self.worker[op])
        return f"dp_rank {worker // self.stages}, stage {worker % self.stages}: {self.optype[op]}" + (
            f", microbatch {self.microbatch[op]}" if self.microbatch[op] >= 0 else ""
        )


Chosen = Callable[[StepGraph], Bools]
"""Which ops of a graph a question is about."""


def is_comm(graph: StepGraph) -> Bools:
    """Which ops are messages and collectives."""
    return graph.of_kinds(is_communication)


def computing(graph: StepGraph) -> Bools:
    """Which ops keep a rank's device busy."""
    return graph.of_kinds(lambda optype: not is_communication(optype) and optype not in (HOST, COPY))


def having(column: Literal["types", "dp_rank", "stage", "worker"], *values: Any) -> Chosen:
    """Ops with one of these values: of these types as they are reported, dp ranks, stages or workers."""
    if column == "types":
        return lambda graph: graph.of_kinds(lambda optype: MESSAGES.get(optype, optype) in values)
    return lambda graph: np.isin(getattr(graph, column), values)


@dataclass
class GraphMaker:
    """A graph in the making, op by op."""

    stages: int
    steps: tuple[int, ...]
    optype: list[str] = field(default_factory=list)
    worker: list[int] = field(default_factory=list)
    microbatch: list[int] = field(default_factory=list)
    chunk: list[int] = field(default_factory=list)
    lanes: dict[Lane, list[int]] = field(default_factory=dict)
    after: list[list[int]] = field(default_factory=list)
    groups: list[tuple[int, ...]] = field(default_factory=list)
    seconds: list[Floats] = field(default_factory=list)

    def add(
        self, lane: str, optype: str, worker: int, seconds: Floats, *, microbatch: int = -1, chunk: int = -1,
        after: Iterable[int] = (),
    ) -> int:  # fmt: skip
        """A new op at the end of a lane of a worker."""
        number = len(self.optype)
        self.optype.append(optype)
        self.worker.append(worker)
        self.microbatch.append(microbatch)
        self.chunk.append(chunk)
        self.after.append(list(after))
        self.seconds.append(seconds)
        self.lanes.setdefault((worker, lane), []).append(number)
        return number

    def made(self) -> StepGraph:
        """The graph; nothing of it was recorded."""
        nothing = np.zeros((len(self.optype), len(self.steps)))
        return StepGraph(
            stages=self.stages,
            steps=self.steps,
            optype=tuple(self.optype),
            worker=np.array(self.worker, dtype=np.int64),
            microbatch=np.array(self.microbatch, dtype=np.int64),
            chunk=np.array(self.chunk, dtype=np.int64),
            lanes={lane: tuple(ops) for lane, ops in self.lanes.items()},
            after=tuple(map(tuple, self.after)),
            groups=tuple(self.groups),
            seconds=np.array(self.seconds).reshape(nothing.shape),
            began=nothing,
            ended=nothing,
        )
