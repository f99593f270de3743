"""Topology kinds ``flat`` (one ideal switch) and ``leaf_spine``, with one port per GPU and no node internals.

For tests against closed forms and for thinking; real nodes are in ``machines``.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

from simcluster.base.units import Seconds
from simcluster.documents.base_spec import Count
from simcluster.topology.cluster import Cluster, make_cluster_from_draft
from simcluster.topology.draft import ClusterDraft, RecordingGraph, check_gpu_count, check_link_count
from simcluster.topology.links import COMPUTE, RateSpec, Title, add_gpus
from simcluster.topology.spec import Fields, TopologySpec
from simcluster.topology.trees import FabricBuilder


class FlatSpec(TopologySpec):
    """GPUs with one port each on one ideal switch: the alpha-beta model of textbooks."""

    EXAMPLE: ClassVar[Fields] = {
        "gpus": 5,
        "gpus_per_host": 2,
        "link": {"line_rate": "50 GB/s"},
        "path_latency": "5 us",
    }

    kind: Literal["flat"]
    name: Title = "flat network"
    gpus: Count
    """Number of GPUs."""
    gpus_per_host: Count = 1
    """Number of GPUs that count as one node."""
    link: RateSpec
    """Link between a GPU and its switch."""
    path_latency: Seconds
    """Latency from GPU to GPU (alpha of the alpha-beta model); each of the two links has half of it."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        check_gpu_count(self.gpus)
        return self

    def build(self) -> Cluster:
        """Build the cluster: the GPUs gpu0, gpu1, ... and one switch named ``switch``."""
        draft = _draft_gpus(self.gpus, self.gpus_per_host)
        (switch,) = FabricBuilder(draft, COMPUTE).add_switches(["switch"], "leaf")
        port = self.link.edge_attributes("network", self.path_latency / 2)
        draft.connect_machines([0], np.full(self.gpus, switch), [port])
        return make_cluster_from_draft(self.name, self.device, draft, self.routing, self.nccl)


class LeafSpineSpec(TopologySpec):
    """GPUs with one port each under leaf switches, and one link from every leaf switch to every spine switch."""

    EXAMPLE: ClassVar[Fields] = {
        "leaves": 3, "gpus_per_leaf": 2, "spines": 2, "path_latency": "6 us",
        "link": {"line_rate": "50 GB/s"}, "uplink": {"line_rate": "50 GB/s"},
    }  # fmt: skip

    kind: Literal["leaf_spine"]
    name: Title = "leaf-spine network"
    leaves: Count
    """Number of leaf switches."""
    gpus_per_leaf: Count
    """Number of GPUs under each leaf switch."""
    spines: Count
    """Number of spine switches."""
    gpus_per_host: Count = 1
    """Number of GPUs that count as one node."""
    link: RateSpec
    """Link between a GPU and its switch."""
    uplink: RateSpec
    """Link between each leaf switch and each spine switch."""
    path_latency: Seconds
    """Latency from GPU to GPU through leaf, spine and leaf, a quarter per link; GPUs under one leaf are two links
    apart."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        check_gpu_count(self.leaves * self.gpus_per_leaf)
        check_link_count(self.leaves * self.spines, "leaf - spine")
        return self

    def build(self) -> Cluster:
        """Build the cluster: gpu0, ..., leaf0, ..., spine0, ...; GPUs are numbered leaf by leaf."""
        draft = _draft_gpus(self.leaves * self.gpus_per_leaf, self.gpus_per_host)
        site = FabricBuilder(draft, COMPUTE)
        leaves = np.array(site.add_switches([f"leaf{i}" for i in range(self.leaves)], "leaf"))
        spines = np.array(site.add_switches([f"spine{i}" for i in range(self.spines)], "spine"))
        leaf_of = leaves.repeat(self.gpus_per_leaf)
        draft.connect_machines([0], leaf_of, [self.link.edge_attributes("network", self.path_latency / 4)])
        uplink = self.uplink.edge_attributes("network", self.path_latency / 4)
        draft.connect_switches(leaves.repeat(self.spines), np.tile(spines, self.leaves), uplink)
        return make_cluster_from_draft(self.name, self.device, draft, self.routing, self.nccl)


def _draft_gpus(count: int, per_host: int) -> ClusterDraft:
    pattern, draft = RecordingGraph(), ClusterDraft(per_host=per_host)
    add_gpus(pattern, [("gpu0", 0, 0)])
    draft.add_machines(pattern, count, "gpu")
    return draft
