"""Kinds of work that an op can do: computation, collectives, sends and receives, copies, and host work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from simcluster.planning.ops import Direction, Group, Work


@dataclass(frozen=True, slots=True)
class Compute(Work):
    """Kernels on one GPU with their time (s) at full speed, and their ``sensitivity`` to communication.

    Of sensitivity 1 they take (1 + pressure) x seconds during a communication of that pressure (interference.py).
    ``attention`` is the part of the seconds that grows with the squares of the lengths of documents (faults/data.py).
    """

    seconds: float = field()
    sensitivity: float = 1.0
    attention: float = 0.0

    def slowed(self, factor: float, added: float = 0.0, load: float = 1.0) -> Compute:
        seconds = (self.seconds + (load - 1.0) * self.attention) * factor + added
        return Compute(seconds, self.sensitivity, self.attention * load * factor)


@dataclass(frozen=True, slots=True)
class Collective(Work):
    """Collective of type ``kind`` with ``size`` bytes (the full buffer) over the rank's group on ``axis``.

    ``load`` times as many travel: more than the library, which chooses by the size, knows of.
    """

    kind: str = field()
    axis: str = field()
    size: float = field()
    load: float = 1.0

    def free(self) -> FixedCollective:
        return FixedCollective(self.axis, 0.0)


@dataclass(frozen=True, slots=True)
class FixedCollective(Work):
    """Collective of known duration over the rank's group on ``axis``: it waits for all, then takes ``seconds``."""

    axis: str = field()
    seconds: float = field()


@dataclass(frozen=True, slots=True)
class Transfer(Work):
    """Send of ``size`` bytes to the matching rank of ``to_stage``.

    The rank has the same coordinates on the other axes. ``seconds``, if not -1, is its known duration: then no link is
    used. ``rendezvous``: it begins when the receiver has posted its Receive, too; otherwise the receiver is always
    ready.
    """

    kind = "send"
    to_stage: int
    size: float = field()
    seconds: float = -1.0
    rendezvous: bool = False

    def group(self, stage: int) -> Group:
        return "send", stage, self.to_stage

    def parties(self, members: int) -> int:
        return 1 + self.rendezvous

    def slows_compute(self, lane: str) -> bool:
        return True

    def shifted(self, stages: int) -> Transfer:
        return replace(self, to_stage=self.to_stage + stages)


@dataclass(frozen=True, slots=True)
class Receive(Work):
    """Receiver's side of a blocking Transfer from the matching rank of ``from_stage``.

    The rank has the same coordinates on the other axes. The key of its item is ("receive", the key of the sender's
    item); both items have no other op. It leaves no span: what the receiver sees of a transfer belongs to the op that
    waits for it.
    """

    joins = True
    from_stage: int

    def group(self, stage: int) -> Group:
        return "send", self.from_stage, stage

    def shifted(self, stages: int) -> Receive:
        return Receive(self.from_stage + stages)

    def free(self) -> Receive:
        return self  # it ends with what it receives


@dataclass(frozen=True, slots=True)
class Copy(Work):
    """Copy of ``size`` bytes between a GPU and its host's memory, storage or peers, over the rank's links.

    Links are ``Cluster.host_way``. ``direction`` is "d2h" to the host, "h2d" from it, "storage" or "peers" from there
    on. A copy engine or the host's NIC does it: no SM is taken, nor is HBM counted. It goes no faster than ``bound``
    (B/s). ``seconds``, if not -1, is its known duration: then no link is used.
    """

    kind = "copy"
    direction: Direction
    size: float = field()
    seconds: float = -1.0
    bound: float = math.inf

    def group(self, stage: int) -> Group:
        return "copy", self.direction


@dataclass(frozen=True, slots=True)
class HostWork(Work):
    """Work of the host's CPUs for a rank, in seconds; a slow GPU does not slow it down."""

    seconds: float = field()


WORKS: dict[type[Work], Work] = {
    Compute: Compute(2e-3), Collective: Collective("all_gather", "dp", 4e6),
    FixedCollective: FixedCollective("dp", 1e-3), Transfer: Transfer(1, 4e6, rendezvous=True), Receive: Receive(0),
    Copy: Copy("d2h", 4e6), HostWork: HostWork(1e-3),
}  # fmt: skip
"""Every kind of work, with an example (a Receive answers the Transfer) that all tests of kinds simulate."""
