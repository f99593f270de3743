"""What-if factors on a cluster: GPU compute and memory, link bandwidths and latencies.

``cluster: {topology: dgx_h100, nodes: 8, scale: {network: 0.5}}`` is the same cluster with half the network bandwidth.
Routes and NCCL's choice of algorithms stay unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from simcluster.base.link_columns import LinkValues
from simcluster.devices.device import Device
from simcluster.documents.base_spec import Spec
from simcluster.topology import Cluster
from simcluster.topology.links import resource_of_medium
from simcluster.traffic.nccl.platforms import NcclTimingFactors

Factor = Annotated[float, Field(gt=0, le=1e6)]


class ClusterScale(Spec):
    """What-if factors on a cluster's speed and memory; a factor of 1 changes nothing.

    NCCL's latency scales by ``latency``, its rates by the links that they count (NVLink in one node, the network
    between nodes).
    """

    flops: Factor = 1.0
    """Factor on the peak FLOP/s of every precision."""
    memory: Factor = 1.0
    """Factor on GPU memory capacity."""
    memory_bandwidth: Factor = 1.0
    """Factor on GPU memory bandwidth."""
    launch: Factor = 1.0
    """Factor on kernel launch times: the gap between dependent kernels, and the host's time to launch work."""
    nvlink: Factor = 1.0
    """Factor on NVLink bandwidth."""
    network: Factor = 1.0
    """Factor on the bandwidth of all links other than NVLink and PCIe."""
    pcie: Factor = 1.0
    """Factor on PCIe bandwidth."""
    between_machines: Factor = 1.0
    """Factor on PCIe and network bandwidth together; they are in series between nodes, so raising only one has no
    effect if the other is equally slow."""
    latency: Factor = 1.0
    """Factor on the latency of all links."""

    def scaled_device(self, device: Device) -> Device:
        """Return the GPU with these factors applied; the same object if all factors on GPUs are 1."""
        if self.flops == self.memory == self.memory_bandwidth == self.launch == 1.0:
            return device
        peak = {name: rate * self.flops for name, rate in device.peak.known_rates().items()}
        return device.model_copy(
            update={
                "peak": device.peak.model_copy(update=peak),
                "memory": device.memory * self.memory,
                "memory_bandwidth": device.memory_bandwidth * self.memory_bandwidth,
                "launch": device.launch * self.launch,
            }
        )

    def scaled_cluster(self, cluster: Cluster) -> Cluster:
        """Return the cluster with these factors applied to the links; the same object if all link factors are 1."""
        if self.nvlink == self.network == self.pcie == self.between_machines == self.latency == 1.0:
            return cluster
        number, media = cluster.link_media
        factors = np.array([self._link_factor(medium) for medium in media])[number]
        latency = cluster.link_latency
        if self.latency != 1.0:
            latency = LinkValues(latency.all_values * self.latency)
        return replace(cluster, link_capacity=LinkValues(cluster.capacity * factors), link_latency=latency)

    def _link_factor(self, medium: str) -> float:
        resource = resource_of_medium(medium)
        own: float = getattr(self, resource)
        return own if resource == "nvlink" else own * self.between_machines

    @property
    def nccl_factors(self) -> NcclTimingFactors:
        """Factors on the latencies and rates of NCCL's tuning tables."""
        return NcclTimingFactors(self.latency, self.nvlink, self.network * self.between_machines)
