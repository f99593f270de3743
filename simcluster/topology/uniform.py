"""The textbook networks: one big switch, and one two-level tree, with nothing inside a machine.

For oracles and for thinking; real machines are in ``machines``.
"""

from __future__ import annotations

from typing import Literal, Self

import networkx as nx
from pydantic import model_validator

from simcluster.topology.cluster import Cluster, make_cluster
from simcluster.topology.links import Count, Graph, Name, RateSpec, add_gpus, add_switches, connect
from simcluster.topology.policies import RoutedSpec
from simcluster.topology.sizes import check_gpus, check_links
from simcluster.units import Seconds


class FlatSpec(RoutedSpec):
    """GPUs with one port each on one ideal switch: the alpha-beta model of the textbooks.

    ``link`` is a GPU's port, ``path_latency`` the alpha of a whole GPU to GPU path, half of it on each of its links.
    """

    kind: Literal["flat"]
    name: Name = "flat network"
    device: Name | dict[str, object]
    gpus: Count
    gpus_per_host: Count = 1
    link: RateSpec
    path_latency: Seconds

    @model_validator(mode="after")
    def _not_too_large(self) -> Self:
        check_gpus(self.gpus)
        return self

    def build(self) -> Cluster:
        """The cluster: GPUs gpu0, gpu1, ... and the node ``switch``."""
        graph: Graph = nx.DiGraph()
        names = _add_numbered_gpus(graph, self.gpus, self.gpus_per_host)
        add_switches(graph, ["switch"], "leaf")
        connect(graph, ((gpu, "switch") for gpu in names), self.link.edge("network", self.path_latency / 2))
        return make_cluster(self.name, self.device, graph, self.routing, self.nccl)


class LeafSpineSpec(RoutedSpec):
    """GPUs with one port each under leaf switches, and one ``uplink`` from every leaf to every spine.

    ``path_latency`` is that of GPU - leaf - spine - leaf - GPU, a quarter on each link; under one leaf a path has two
    of the four.  Oversubscription is gpus_per_leaf x link / (spines x uplink).
    """

    kind: Literal["leaf_spine"]
    name: Name = "leaf-spine network"
    device: Name | dict[str, object]
    leaves: Count
    gpus_per_leaf: Count
    spines: Count
    gpus_per_host: Count = 1
    link: RateSpec
    uplink: RateSpec
    path_latency: Seconds

    @model_validator(mode="after")
    def _not_too_large(self) -> Self:
        check_gpus(self.leaves * self.gpus_per_leaf)
        check_links(self.leaves * self.spines, "leaf - spine")
        return self

    def build(self) -> Cluster:
        """The cluster: gpu0, ..., leaf0, ..., spine0, ...; GPUs are numbered leaf by leaf."""
        graph: Graph = nx.DiGraph()
        names = _add_numbered_gpus(graph, self.leaves * self.gpus_per_leaf, self.gpus_per_host)
        leaves = [f"leaf{i}" for i in range(self.leaves)]
        spines = [f"spine{i}" for i in range(self.spines)]
        add_switches(graph, leaves, "leaf")
        add_switches(graph, spines, "spine")
        ports = ((gpu, leaves[i // self.gpus_per_leaf]) for i, gpu in enumerate(names))
        connect(graph, ports, self.link.edge("network", self.path_latency / 4))
        uplinks = ((leaf, spine) for leaf in leaves for spine in spines)
        connect(graph, uplinks, self.uplink.edge("network", self.path_latency / 4))
        return make_cluster(self.name, self.device, graph, self.routing, self.nccl)


def _add_numbered_gpus(graph: Graph, count: int, per_host: int) -> list[str]:
    names = [f"gpu{i}" for i in range(count)]
    add_gpus(graph, ((name, i // per_host, i % per_host) for i, name in enumerate(names)))
    return names
