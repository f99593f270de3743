"""Transfers that the benchmarks of the network simulate: rings on fabrics, and random flows over random links."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Literal

import numpy as np

from simcluster.base.link_columns import LinkValues
from simcluster.scenario.document_resolution import load_cluster
from simcluster.topology import Cluster, parse_topology

if TYPE_CHECKING:
    from simcluster.engine.tables import EngineTables

concurrent_times = import_module(
    "simcluster.bench.collective"
).concurrent_collective_times  # by the name that older trees have

SEED = 20240229
LATENCY = 5e-6  # s, of every path: SimGrid's CM02 weighs shares by 1 / latency


@dataclass(frozen=True)
class RingCase:
    """An all-reduce of ``size`` bytes on every group at once; each group is one ring in its own order."""

    name: str
    cluster: Cluster
    groups: tuple[tuple[int, ...], ...]
    size: float

    @property
    def rounds(self) -> int:
        """Of one ring: 2 (n - 1)."""
        return 2 * (len(self.groups[0]) - 1)

    @property
    def transfers(self) -> int:
        """In steps."""
        return sum(len(group) for group in self.groups) * self.rounds

    def play(self, detail: Literal["flow", "steps"]) -> list[float]:
        """Simulated seconds at which each ring is done."""
        times = concurrent_times(self.cluster, self.groups, "all_reduce", self.size, algorithm="ring", detail=detail)
        return [max(time.finishes) for time in times]

    def nudged(self, by: float) -> RingCase:
        """Each link's capacity changed a little, up or down, by up to this part of it."""
        factors = 1 + by * np.random.default_rng(SEED).uniform(-1, 1, len(self.cluster.capacity))
        return replace(self, cluster=replace(self.cluster, link_capacity=LinkValues(self.cluster.capacity * factors)))

    def as_text(self) -> str:
        """The same for ``simgrid_steps.cpp``."""
        cluster = self.cluster
        pairs = dict.fromkeys(
            (source, target)
            for group in self.groups
            for source, target in zip(group, (*group[1:], group[0]), strict=True)
        )
        routes = {pair: [link for link, _ in cluster.spread_route(*pair)] for pair in pairs}
        lines = [f"{len(cluster.capacity)}", " ".join(map(repr, cluster.capacity.tolist())), repr(LATENCY)]
        lines += [f"{len(cluster.gpus)}", f"{len(routes)}"]
        lines += [f"{s} {t} {len(links)} {' '.join(map(str, links))}" for (s, t), links in routes.items()]
        lines += [f"{len(self.groups)}"]
        for group in self.groups:
            part, rest = divmod(int(self.size), len(group))
            assert not rest, "SimGrid counts whole bytes"
            lines += [f"{self.rounds} {part} {len(group)} {' '.join(map(str, group))}"]
        return "\n".join(lines)


def rings_on_a_tree(num_rings: int, num_ranks: int, size: float) -> RingCase:
    """Rings of pseudo-random GPUs (of one ring all different) on the 512-GPU 2:1 tree, routes hashed."""
    cluster = load_cluster("leaf_spine_512", [("routing", {"kind": "ecmp", "seed": 1})])
    ends = [0.5 if "gpu" in a + b else 0.0 for a, b in cluster.links]
    cluster = replace(cluster, link_latency=LinkValues(LATENCY * np.array(ends)))
    draw = random.Random(SEED)
    groups = tuple(tuple(draw.sample(range(512), num_ranks)) for _ in range(num_rings))
    return RingCase(f"{num_rings} rings of {num_ranks}, 512 GPUs 2:1, hashed", cluster, groups, size)


def flat_ring(num_ranks: int, size: float) -> RingCase:
    """One ring over all GPUs of a flat network."""
    document = {"kind": "flat", "device": "h100", "gpus": num_ranks, "link": {"line_rate": "50 GB/s"}}
    cluster = parse_topology({**document, "path_latency": "5 us"}).build()
    return RingCase(f"flat ring of {num_ranks}", cluster, (tuple(range(num_ranks)),), size)


def random_flows(num_flows: int, num_links: int = 10_240, hops: int = 4) -> EngineTables:
    """Return flows of 1 to 2 GB over ``hops`` random links each, all begun at once, on links of 25 to 100 GB/s."""
    from simcluster.engine.explicit_program import ExplicitProgram
    from simcluster.engine.tables import CommunicationKind
    from simcluster.traffic.traffic import Traffic

    draw = np.random.default_rng(SEED)
    capacity = draw.choice([25e9, 50e9, 100e9], size=num_links).tolist()
    links = np.sort(draw.integers(0, num_links, size=(num_flows, hops)), axis=1).tolist()
    program = ExplicitProgram()
    for own, size in zip(links, draw.uniform(1e9, 2e9, num_flows).tolist(), strict=True):
        usage = tuple((link, 1.0) for link in dict.fromkeys(own))
        lane = program.add_lane(len(program.lane_rank))
        program.add_op(lane, rendezvous=len(program.meetings))
        program.meetings.append(CommunicationKind(1, [Traffic(usage, size, 1, 0.0)]))
    return program.make_tables(capacity)
