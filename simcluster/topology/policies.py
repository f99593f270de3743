"""Routing policies, which choose among equally short paths: the ``routing`` key of a topology.

To add a policy: a spec with ``kind`` and ``path_choices``, and its name in ``RoutingSpec``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from simcluster.documents.base_spec import Spec

Pick: TypeAlias = Callable[[int, int], int]
"""``pick(node, k)``: index of the next hop among k candidates at this graph node (numbered in order of names)."""


@dataclass(frozen=True, slots=True)
class RoutingInputs:
    """Inputs of a routing choice: source and destination GPU, index of the destination NIC, flow number.

    Policies do arithmetic with them, so that they work on arrays, of many flows, as well (``batch_routing``).
    """

    src: int
    dst: int
    order: int
    number: int


class _RoutingPolicy(Spec):
    """Base of routing policies, with the option to use NCCL's PXN."""

    depends_on_flow: ClassVar[bool] = False  # does the way depend on the destination alone, or on sender and flow, too?
    pxn: bool | None = None
    """Whether traffic between rails first goes over NVLink to the GPU on the destination's rail (NCCL's PXN): wherever
    that GPU is fewer switches away (true), or never (false); default: only if no other path exists."""

    def path_choices(self, flow: RoutingInputs) -> tuple[Pick, ...]:
        """Return one chooser of next hops per path of the flow; empty if the flow uses all shortest paths."""
        raise NotImplementedError


class ShortestPathSpec(_RoutingPolicy):
    """Routing over one fixed shortest path, the first by name, as in a network without load balancing."""

    kind: Literal["shortest"]

    def path_choices(self, flow: RoutingInputs) -> tuple[Pick, ...]:
        del flow
        return (lambda node, k: 0,)


class StaticRoutingSpec(_RoutingPolicy):
    """Static routing by destination (D-Mod-K), as in InfiniBand fat trees: next hop d mod k for NIC number d.

    D-Mod-K; E. Zahavi, "Fat-tree routing and node ordering providing contention free traffic for MPI global
    collectives", JPDC 72, 2012.
    """

    kind: Literal["static"]

    def path_choices(self, flow: RoutingInputs) -> tuple[Pick, ...]:
        return (lambda node, k: flow.order % k,)


class EcmpRoutingSpec(_RoutingPolicy):
    """Hash-based routing (ECMP), as in Ethernet switches: each flow keeps one random next hop per switch.

    A flow is a channel from one GPU to another. Switches hash independently of each other (no polarisation).
    """

    depends_on_flow = True
    kind: Literal["ecmp"]
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    """Random seed of the routing hashes."""
    queue_pairs: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    """Number of connections (queue pairs) of a flow, each hashed separately, that share its bytes evenly."""

    def path_choices(self, flow: RoutingInputs) -> tuple[Pick, ...]:
        of_flow = self.seed
        for part in (flow.src, flow.dst, flow.number):
            of_flow = mix_bits(of_flow ^ mix_bits(part))
        return tuple(_hash_choice(mix_bits(of_flow ^ mix_bits(pair))) for pair in range(self.queue_pairs))


class AdaptiveRoutingSpec(_RoutingPolicy):
    """Adaptive routing (packet spraying): the packets of a flow spread evenly over all shortest paths.

    As InfiniBand's adaptive routing: k parallel links are one link of k times the capacity.
    """

    kind: Literal["adaptive"]

    def path_choices(self, flow: RoutingInputs) -> tuple[Pick, ...]:
        del flow
        return ()


_AnyPolicy: TypeAlias = ShortestPathSpec | StaticRoutingSpec | EcmpRoutingSpec | AdaptiveRoutingSpec
RoutingSpec: TypeAlias = Annotated[_AnyPolicy, Field(discriminator="kind")]
STATIC = StaticRoutingSpec(kind="static")


_64_BITS = 2**64 - 1


def mix_bits(value: int) -> int:
    """Return a pseudo-random 64-bit hash of an integer (splitmix64: Steele et al., OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _64_BITS
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return value ^ (value >> 31)


def _hash_choice(path_index: int) -> Pick:
    return lambda node, k: mix_bits(path_index ^ mix_bits(node)) % k if k > 1 else 0
