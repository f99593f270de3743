"""Base of topology documents: routing policy, GPU type, and construction of the cluster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, BeforeValidator

from simcluster.base.units import Bytes
from simcluster.documents.base_spec import Spec
from simcluster.documents.catalogue.devices import device_names
from simcluster.documents.field_annotations import A_PATH, SchemaAlternatives
from simcluster.topology.cluster import Cluster
from simcluster.topology.links import Name, Title
from simcluster.topology.policies import STATIC, RoutingSpec
from simcluster.traffic.nccl.platforms import load_platform, platform_names

NcclPlatform: TypeAlias = Annotated[str, AfterValidator(lambda name: load_platform(name).name)]
"""Name of an NCCL platform (node type that NCCL's tuner knows)."""

Fields: TypeAlias = Mapping[str, Any]
"""Fields of a topology document, as the user writes them."""


class HostMemorySize(Spec):
    """CPU memory of a node."""

    size: Bytes
    """Bytes of CPU memory per node (in a rack: per tray)."""
    source: str = ""


def _parse_size(value: object) -> object:
    """Parse a size such as "2 TB"."""
    return {"size": value} if isinstance(value, str | int | float) else value


class TopologySpec(Spec):
    """Base of all topology kinds: a document that describes a cluster, and the method that builds the cluster.

    ``EXAMPLE`` are the fields of a small one, which the tests of all topologies build.
    """

    EXAMPLE: ClassVar[Fields]

    routing: RoutingSpec = STATIC
    """Routing policy: how a flow chooses among equally short paths."""
    nccl: Annotated[NcclPlatform | None, SchemaAlternatives(lambda: (tuple(platform_names()), type(None)))] = None
    """NCCL platform that sets latencies and rates of collectives (simcluster list platforms); default: none, only the
    links count."""
    host_memory: Annotated[
        HostMemorySize | None, BeforeValidator(_parse_size), SchemaAlternatives(lambda: (..., str))
    ] = None
    """CPU memory of one node; default: unknown, so that offloading is not checked against it."""
    kind: str
    name: Title
    """Name of the cluster."""
    device: Annotated[
        Name | dict[str, object], SchemaAlternatives(lambda: (tuple(device_names()), A_PATH, {"type": "object"}))
    ]
    """GPU of the cluster: a built-in name, the path of a device file, or a mapping of base and changed values."""

    @abstractmethod
    def build(self) -> Cluster:
        """Build the cluster; raise InputError if some GPUs cannot reach each other."""
