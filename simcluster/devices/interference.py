"""What communication and computation on the same GPU do to each other: kernels slow down beside it, and it beside them.

While a computation runs beside a communication it progresses at the rate 1 / (1 + sensitivity x pressure): ``pressure``
is what the communication would do to a kernel that feels it in full, ``sensitivity`` how much of it the computation
feels (``sensitivity.py``).  The communication's transfer progresses at 1 / (1 + drag).  What is left when either ends
goes on at its own rate.  Beside several communications at once the strongest counts: sources measured one at a time.
A communication is there from the arrival of its last member to its end; its waiting for peers is not counted.

Three mechanisms, each a kind of its own (MODELLING.md C.5).  Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from simcluster.documents.spec import Count, Spec

Slowdown = Annotated[float, Field(ge=0, le=100)]
"""How much longer something takes: 0.189 is 18.9 % longer."""


class Beside(NamedTuple):
    """A communication as the GPU feels it: does it leave the node, and how many B/s does the GPU send by itself?

    ``relays``: is it kernels of a library that relays tokens to experts?  Then these hold multiprocessors of their own.
    """

    between_nodes: bool
    bytes_per_second: float
    relays: bool = False


class Factor(Spec):
    """One factor for all compute.

    Sources: 18.9 % longer on average during communication in a node, at most 40 % (arXiv:2507.03114); Calculon's
    ``processor_usage`` u takes that share of the GPU, 1 / (1 - u) - 1 longer: u = 0.15 over NVLink, 0.02 over
    InfiniBand (calculon-ai/calculon).
    """

    kind: Literal["factor"]
    compute: Slowdown
    """Additional time of compute during communication, 0.189 for 18.9 %."""
    compute_between_nodes: Slowdown | None = None
    """The same where the group spans nodes; default: as compute."""
    communication: Slowdown = 0.0
    """Additional time of the communication."""
    source: str = ""

    def pressure(self, beside: Beside, multiprocessors: int, memory_bandwidth: float) -> float:
        """What the communication does to a computation."""
        far = beside.between_nodes and self.compute_between_nodes is not None
        return (self.compute_between_nodes or 0.0) if far else self.compute


class Multiprocessors(Spec):
    """Communication holds ``channels`` multiprocessors, one for each of its channels.

    Sources: NCCL runs one block a channel, 16 to 32 of them; DeepSeek-V3 reserves 20 of 132 (arXiv:2412.19437).  A
    matmul then runs in ceil(tiles / what is left) waves, and on what is left of the power: 24 of 132 cost one at the
    power limit 22 % (18.9 % measured on average, arXiv:2507.03114, which sees overlap contend for resources and draw
    more power).  Kernels that memory bandwidth holds back are not slowed down.
    """

    kind: Literal["sms"]
    channels: Count = 24
    """Multiprocessors that communication holds, one per channel."""
    communication: Slowdown = 0.0
    """Additional time of the communication."""
    source: str = ""

    def pressure(self, beside: Beside, multiprocessors: int, memory_bandwidth: float) -> float:
        """That all work is done by the multiprocessors that are left."""
        return self.channels / (multiprocessors - self.channels)


class MemoryBandwidth(Spec):
    """Every byte on the wire costs ``bytes_per_byte`` bytes of memory traffic on the GPU.

    A kernel that memory bandwidth holds back takes 1 / (1 - bytes_per_byte x rate / bandwidth) as long.  Source: 2 to 3
    bytes (a maintainer in NVIDIA/nccl issue 1428; 3 gives the 1.8 x measured there on A100 over NVLink).  ``rate`` is
    what the communication sends with its links to itself.  At most half of the bandwidth is lost: a fair share of two.
    """

    kind: Literal["hbm"]
    bytes_per_byte: Annotated[float, Field(ge=0, le=100)] = 3.0
    """Bytes of memory traffic for each byte on the wire."""
    communication: Slowdown = 0.0
    """Additional time of the communication."""
    source: str = ""

    def pressure(self, beside: Beside, multiprocessors: int, memory_bandwidth: float) -> float:
        """What the communication does to a kernel that only moves bytes."""
        taken = min(0.5, self.bytes_per_byte * beside.bytes_per_second / memory_bandwidth)
        return taken / (1.0 - taken)


InterferenceSpec = Annotated[Factor | Multiprocessors | MemoryBandwidth, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class Interference:
    """A mechanism on GPUs with so many multiprocessors and so much memory bandwidth (B/s).

    Without a ``spec`` it is of kernels that relay tokens to experts alone, which hold ``dispatcher`` multiprocessors.
    """

    spec: Factor | Multiprocessors | MemoryBandwidth | None
    multiprocessors: int
    memory_bandwidth: float
    dispatcher: int = 0

    def pressure(self, beside: Beside) -> float:
        """How much longer a computation takes that feels this communication in full."""
        if beside.relays and self.dispatcher:
            return self.dispatcher / (self.multiprocessors - self.dispatcher)
        return self.spec.pressure(beside, self.multiprocessors, self.memory_bandwidth) if self.spec else 0.0

    @property
    def by_rate(self) -> bool:
        """Does it matter how many B/s a communication sends?"""
        return isinstance(self.spec, MemoryBandwidth)

    @property
    def drag(self) -> float:
        """How much longer a communication takes beside computation."""
        return self.spec.communication if self.spec else 0.0
