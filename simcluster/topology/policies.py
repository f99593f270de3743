"""Choice of a path where several are equally short: the ``routing`` section of a topology.

To add a policy: a spec with ``kind`` and ``picks``, and its name in ``RoutingSpec``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from simcluster.documents.spec import Spec

Pick: TypeAlias = Callable[[int, int], int]
"""``pick(node, k)``: which of the k ways to go at the node of that number (numbers in natural order of names)."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Inputs of a routing choice: source and destination GPU, destination NIC's place in tree order, flow number.

    Policies do arithmetic with them, so that they work on arrays, of many flows, as well (``crowd``).
    """

    src: int
    dst: int
    order: int
    number: int


class _Policy(Spec):
    """A routing policy, with or without NCCL's PXN."""

    by_flow: ClassVar[bool] = False  # does the way depend on the sender and the flow, too, or on the destination alone?
    pxn: bool | None = None
    """Whether traffic between rails first goes over NVLink to the GPU on the destination's rail (NCCL's PXN): wherever
    that GPU is fewer switches away (true), or never (false); default: only if no other path exists."""

    def picks(self, flow: Flow) -> tuple[Pick, ...]:
        """Return for each path of a flow its choice among next hops; paths share the bytes evenly; empty: all paths."""
        raise NotImplementedError


class ShortestSpec(_Policy):
    """Routing over one fixed shortest path, the first by name, as in a network without load balancing."""

    kind: Literal["shortest"]

    def picks(self, flow: Flow) -> tuple[Pick, ...]:
        """Return the choice of the first next hop at every switch."""
        del flow
        return (lambda node, k: 0,)


class StaticSpec(_Policy):
    """Routing by destination, as in InfiniBand fat trees: next hop d mod k to NIC d; NICs are numbered leaf by leaf.

    D-Mod-K; E. Zahavi, "Fat-tree routing and node ordering providing contention free traffic for MPI global
    collectives", JPDC 72, 2012.
    """

    kind: Literal["static"]

    def picks(self, flow: Flow) -> tuple[Pick, ...]:
        """Return the choice of next hop d mod k."""
        return (lambda node, k: flow.order % k,)


class EcmpSpec(_Policy):
    """Routing by hash (ECMP), as in Ethernet switches: a flow keeps one random next hop at every switch.

    A flow is a channel from one GPU to another. Switches hash independently of each other (no polarisation).
    """

    by_flow = True
    kind: Literal["ecmp"]
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    """Random seed of the routing hashes."""
    queue_pairs: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    """Number of connections (queue pairs) of a flow, each hashed separately, that share its bytes evenly."""

    def picks(self, flow: Flow) -> tuple[Pick, ...]:
        """Return one hashed choice per queue pair."""
        of_flow = self.seed
        for part in (flow.src, flow.dst, flow.number):
            of_flow = mix_bits(of_flow ^ mix_bits(part))
        return tuple(_hash_choice(mix_bits(of_flow ^ mix_bits(pair))) for pair in range(self.queue_pairs))


class AdaptiveSpec(_Policy):
    """Routing of each packet separately (adaptive routing, spraying): flows spread evenly over all shortest paths.

    As InfiniBand's adaptive routing: k parallel links are one link of k times the capacity.
    """

    kind: Literal["adaptive"]

    def picks(self, flow: Flow) -> tuple[Pick, ...]:
        """Return no choice: a flow uses every path."""
        del flow
        return ()


RoutingSpec: TypeAlias = Annotated[ShortestSpec | StaticSpec | EcmpSpec | AdaptiveSpec, Field(discriminator="kind")]
STATIC = StaticSpec(kind="static")


_64_BITS = 2**64 - 1


def mix_bits(value: int) -> int:
    """Return a well-spread 64-bit number from any other (splitmix64: Steele et al., OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _64_BITS
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return value ^ (value >> 31)


def _hash_choice(of_path: int) -> Pick:
    return lambda node, k: mix_bits(of_path ^ mix_bits(node)) % k if k > 1 else 0
