"""Interference: how communication and computation on one GPU slow each other down.

A computation that overlaps with a communication progresses at the rate 1 / (1 + sensitivity x slowdown): the slowdown
is what the communication causes to a fully sensitive kernel (``compute_slowdown``), ``sensitivity`` the computation's
share of it (``sensitivity.py``). The communication's transfer progresses at 1 / (1 + drag). When either ends,
the other continues at its full rate. Of several concurrent communications the strongest counts: sources measured one at
a time. A communication lasts from the arrival of its last member to its end; its waiting for peers is not counted.

Three mechanisms, each a separate kind (MODELLING.md C.5). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from simcluster.documents.base_spec import Count, Spec

Slowdown = Annotated[float, Field(ge=0, le=100)]
"""How much longer something takes: 0.189 is 18.9 % longer."""


class ConcurrentCommunication(NamedTuple):
    """Communication that overlaps with compute: whether it leaves the node, and the GPU's send rate (B/s).

    ``relays``: kernels of a library that relays tokens to experts, which hold separate multiprocessors.
    """

    between_nodes: bool
    bytes_per_second: float
    relays: bool = False


class FactorInterference(Spec):
    """Interference model with one factor: communication slows down all compute equally.

    Sources: 18.9 % longer on average during communication in a node, at most 40 % (arXiv:2507.03114); Calculon's
    ``processor_usage`` u takes that share of the GPU, 1 / (1 - u) - 1 longer: u = 0.15 over NVLink, 0.02 over
    InfiniBand (calculon-ai/calculon).
    """

    kind: Literal["factor"]
    compute: Slowdown
    """Additional compute time during communication, as a share: 0.189 for 18.9 %."""
    compute_between_nodes: Slowdown | None = None
    """Additional compute time during communication between nodes; default: the value of compute."""
    communication: Slowdown = 0.0
    """Additional communication time during compute, as a share: 0.1 for 10 %."""
    source: str = ""

    def compute_slowdown(self, comm: ConcurrentCommunication, multiprocessors: int, memory_bandwidth: float) -> float:
        """Return the relative slowdown of computation during the communication (0.2: 20 % longer)."""
        far = comm.between_nodes and self.compute_between_nodes is not None
        return (self.compute_between_nodes or 0.0) if far else self.compute


class MultiprocessorInterference(Spec):
    """Interference model in which each of ``channels`` communication channels occupies one SM.

    Sources: NCCL runs one block per channel, 16 to 32 of them; DeepSeek-V3 reserves 20 of 132 (arXiv:2412.19437). A
    matmul then runs in ceil(tiles / what is left) waves, and on what is left of the power: 24 of 132 cost one at the
    power limit 22 % (18.9 % measured on average, arXiv:2507.03114, which sees overlap contend for resources and draw
    more power). Kernels that memory bandwidth holds back are not slowed down.
    """

    kind: Literal["sms"]
    channels: Count = 24
    """Number of multiprocessors (SMs) that communication occupies, one per channel."""
    communication: Slowdown = 0.0
    """Additional communication time during compute, as a share: 0.1 for 10 %."""
    source: str = ""

    def compute_slowdown(self, comm: ConcurrentCommunication, multiprocessors: int, memory_bandwidth: float) -> float:
        """Return the relative slowdown of work that scales with the number of free SMs."""
        return self.channels / (multiprocessors - self.channels)


class BandwidthInterference(Spec):
    """Interference model in which each byte sent causes ``bytes_per_byte`` bytes of memory traffic.

    A kernel that memory bandwidth limits takes 1 / (1 - bytes_per_byte x rate / bandwidth) as long. Source: 2 to 3
    bytes (a maintainer in NVIDIA/nccl issue 1428; 3 gives the 1.8 x measured there on A100 over NVLink). ``rate`` is
    what the communication sends alone on its links. Compute keeps at least half of the bandwidth.
    """

    kind: Literal["hbm"]
    bytes_per_byte: Annotated[float, Field(ge=0, le=100)] = 3.0
    """Bytes of GPU memory traffic for each byte that is sent."""
    communication: Slowdown = 0.0
    """Additional communication time during compute, as a share: 0.1 for 10 %."""
    source: str = ""

    def compute_slowdown(self, comm: ConcurrentCommunication, multiprocessors: int, memory_bandwidth: float) -> float:
        """Return the relative slowdown of a kernel that memory bandwidth limits."""
        taken = min(0.5, self.bytes_per_byte * comm.bytes_per_second / memory_bandwidth)
        return taken / (1.0 - taken)


_AnyInterference = FactorInterference | MultiprocessorInterference | BandwidthInterference
InterferenceSpec = Annotated[_AnyInterference, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Interference:
    """An interference model on a GPU with given SMs and memory bandwidth (B/s).

    Without a ``spec`` only kernels that relay tokens to experts interfere, which hold ``dispatcher`` multiprocessors.
    """

    spec: FactorInterference | MultiprocessorInterference | BandwidthInterference | None
    multiprocessors: int
    memory_bandwidth: float
    dispatcher: int = 0

    def compute_slowdown(self, comm: ConcurrentCommunication) -> float:
        """Return the relative slowdown that this communication causes in a fully sensitive computation."""
        if comm.relays and self.dispatcher:
            return self.dispatcher / (self.multiprocessors - self.dispatcher)
        return self.spec.compute_slowdown(comm, self.multiprocessors, self.memory_bandwidth) if self.spec else 0.0

    @property
    def depends_on_rate(self) -> bool:
        """Return whether the slowdown depends on the B/s that a communication sends."""
        return isinstance(self.spec, BandwidthInterference)

    @property
    def communication_slowdown(self) -> float:
        """Relative slowdown of a communication that overlaps with computation."""
        return self.spec.communication if self.spec else 0.0
