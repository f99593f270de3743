"""Kinds of work of an op: computation, collectives, sends and receives, and copies; host work is in ``ops``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from simcluster.planning.ops import Direction, Group, HostWork, OpWork


@dataclass(frozen=True, slots=True)
class Compute(OpWork):
    """Kernels on one GPU: their time (s) at full speed, and how much concurrent communication slows them down.

    Of sensitivity 1 they take (1 + pressure) x seconds during a communication of that pressure (interference.py).
    ``attention`` is the part of the seconds that grows with documents' lengths squared (faults/sequence_lengths.py).
    """

    seconds: float = field()
    sensitivity: float = 1.0
    attention: float = 0.0

    def with_slowdown(self, factor: float, added: float = 0.0, load: float = 1.0) -> Compute:
        seconds = (self.seconds + (load - 1.0) * self.attention) * factor + added
        return Compute(seconds, self.sensitivity, self.attention * load * factor)


@dataclass(frozen=True, slots=True)
class Collective(OpWork):
    """Collective of ``size`` bytes (the full buffer) over the rank's group on one parallelism axis.

    ``load`` times as many travel: more than the library, which chooses by the size, knows of.
    """

    kind: str = field()
    axis: str = field()
    size: float = field()
    load: float = 1.0

    def without_duration(self) -> FixedCollective:
        return FixedCollective(self.axis, 0.0)


@dataclass(frozen=True, slots=True)
class FixedCollective(OpWork):
    """Collective of known duration: begins when all ranks of the group have arrived, and takes ``seconds``."""

    axis: str = field()
    seconds: float = field()


@dataclass(frozen=True, slots=True)
class StageSend(OpWork):
    """Send of ``size`` bytes to the rank's counterpart in another pipeline stage.

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

    def arrivals_needed(self, members: int) -> int:
        return 1 + self.rendezvous

    def slows_compute(self, lane: str) -> bool:
        return True

    def with_stage_offset(self, stages: int) -> StageSend:
        return replace(self, to_stage=self.to_stage + stages)


@dataclass(frozen=True, slots=True)
class StageReceive(OpWork):
    """Receiver's side of a blocking send from the rank's counterpart in another pipeline stage.

    The rank has the same coordinates on the other axes. The key of its item is ("receive", the key of the sender's
    item); both items have no other op. It leaves no span: what the receiver sees of a transfer belongs to the op that
    waits for it.
    """

    joins = True
    from_stage: int

    def group(self, stage: int) -> Group:
        return "send", self.from_stage, stage

    def with_stage_offset(self, stages: int) -> StageReceive:
        return StageReceive(self.from_stage + stages)

    def without_duration(self) -> StageReceive:
        return self  # it ends with what it receives


@dataclass(frozen=True, slots=True)
class Copy(OpWork):
    """Copy of ``size`` bytes between a GPU and its host's memory, storage or a peer node's memory.

    Links are ``Cluster.host_memory_route``. ``direction`` is "d2h" to the host, "h2d" from it, "storage" or "peers"
    from there on. A copy engine or the host's NIC does it: no SM is taken, nor is HBM counted. It goes no faster than
    ``bound`` (B/s). ``seconds``, if not -1, is its known duration: then no link is used.
    """

    kind = "copy"
    direction: Direction
    size: float = field()
    seconds: float = -1.0
    bound: float = math.inf

    def group(self, stage: int) -> Group:
        return "copy", self.direction


WORKS: dict[type[OpWork], OpWork] = {
    Compute: Compute(2e-3), Collective: Collective("all_gather", "dp", 4e6),
    FixedCollective: FixedCollective("dp", 1e-3), StageSend: StageSend(1, 4e6, rendezvous=True),
    StageReceive: StageReceive(0), Copy: Copy("d2h", 4e6), HostWork: HostWork(1e-3),
}  # fmt: skip
"""Every kind of work, with an example that tests simulate (the Receive belongs to the Transfer)."""
