"""What a person may say beside a file that is imported: how many of it, which NICs, which figures to take instead.

In a scenario ``cluster: {topology: host.xml, nodes: 16, device: h200}``; as a file of its own ``kind: import`` with
``files``, which ``simcluster topology`` describes like any other.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import BytesPerSecond, Seconds
from simcluster.documents.spec import ONE_OR_MORE, Count, Spec
from simcluster.importers.graph_document import Wire
from simcluster.topology.links import Fraction, Name

Words = Annotated[tuple[Name, ...], ONE_OR_MORE]
"""One text or a list of them."""


class LinkChange(Spec):
    """Figures to take instead of those of the file, or of the GPU's generation where the file has none."""

    line_rate: BytesPerSecond | None = None
    efficiency: Fraction | None = None
    latency: Seconds | None = None

    def changed(self, wire: Wire) -> Wire:
        """Return the wire with what is given here in place of its own."""
        if self == LinkChange():
            return wire
        given = [f"{name.replace('_', ' ')} given by hand" for name in type(self).model_fields if getattr(self, name)]
        own = self.model_dump(exclude_none=True)
        return replace(wire, **own, source="; ".join([*given, wire.source]))


class FabricParameters(Spec):
    """The fat tree that joins imported machines: leaves per unit of ``nodes_per_unit`` machines, spines above them.

    ``rails``: NIC i of every machine of a unit on leaf i (rail-optimised); else all NICs of a unit on one leaf.
    ``nodes_per_unit`` left out: all machines are one unit.  A leaf's uplinks together carry the line rate of its NICs
    (of the fullest unit's) over ``oversubscription``; there are as many spines as fastest NICs fit in that.
    """

    rails: Annotated[bool, Field(strict=True)] = True
    nodes_per_unit: Count | None = None
    oversubscription: Annotated[float, Field(gt=0)] = 1.0
    leaf_to_spine_latency: Seconds = 0.6e-6


class ImportSpec(Spec):
    """A cluster that files of other tools describe.

    ``nodes`` identical copies of the one machine that a file describes, or several ``files`` with one machine each,
    are joined by ``fabric``.  ``nics`` and ``hosts`` keep only what matches one of these patterns (mlx5_*).
    ``nvlinks_per_gpu`` (0: none), ``nvswitch`` and ``gpus_per_nic`` say what a format leaves open; ``nvlink`` has the
    figures of a single NVLink, ``pcie`` of a PCIe link, ``socket`` between NUMA nodes, ``nic`` of a NIC's port.
    """

    kind: Literal["import"]
    files: Annotated[Words, Field(min_length=1, max_length=4096)]
    name: Name | None = None
    device: Name | dict[str, object] | None = None
    nodes: Count = 1
    fabric: FabricParameters | None = None
    nics: Words = ()
    hosts: Words = ()
    gpus_per_nic: Count = 1
    nvlinks_per_gpu: Annotated[int, Field(strict=True, ge=0, le=72)] | None = None
    nvswitch: Annotated[bool, Field(strict=True)] | None = None
    nvlink: LinkChange = LinkChange()
    pcie: LinkChange = LinkChange()
    socket: LinkChange = LinkChange()
    nic: LinkChange = LinkChange()

    @model_validator(mode="after")
    def _copies_of_one(self) -> Self:
        if len(self.files) > 1 and self.nodes > 1:
            raise InputError(
                f"nodes is {self.nodes} and there are {len(self.files)} files; give one file and how many nodes are "
                "like it, or one file for each machine and leave nodes out"
            )
        return self

    def accept(self, form: str, known: tuple[str, ...]) -> None:
        """Raise InputError for a parameter that this form of file has no use for, so that none is silently ignored."""
        always = ("kind", "files", "name", "device")
        for key in ImportSpec.model_fields:  # in this order, so that the message does not depend on a set
            if key in self.model_fields_set and key not in always and key not in known:
                raise InputError(f"{key} means nothing for {form}; its parameters are device, name, {', '.join(known)}")


def is_kept(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a NIC (or a machine) of this name matches one of ``nics`` (``hosts``), if there are any."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
