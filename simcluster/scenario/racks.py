"""Racks of trays whose GPUs share one NVLink domain: a machine of such a topology is a rack, as for NCCL.

Public tables count trays, and jobs that span racks of 72 GPUs mostly take 64 of each, which powers of two fill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcluster.topology.machine_parts import MachineSpec

if TYPE_CHECKING:
    from simcluster.scenario.fields import ScenarioFields
    from simcluster.topology import TopologySpec

_SPARE_TRAYS = 2  # of 18, which jobs leave out


def rack_of(topology: TopologySpec) -> MachineSpec | None:
    """Return the machine of a topology whose machines are racks of trays."""
    machine = getattr(topology, "machine", None)
    return machine if isinstance(machine, MachineSpec) and machine.trays > 1 else None


def trays_filled_by(rack: MachineSpec, gpus: int) -> int:
    """Return the largest number of trays per rack that these GPUs fill completely; 0 if there is none."""
    most = range(rack.trays, max(1, rack.trays - _SPARE_TRAYS) - 1, -1)
    return next((trays for trays in most if gpus % (trays * rack.gpus) == 0), 0)


def racks_in_words(topology: TopologySpec) -> str:
    """Return what ``cluster.nodes`` counts, where that is racks; "" elsewhere."""
    rack = rack_of(topology)
    return (
        "" if rack is None else f"a machine of {topology.name} is a rack of {rack.num_gpus} GPUs in {rack.trays} trays"
    )


def uneven_racks(scenario: ScenarioFields) -> str:
    """Return a warning about a job that fills its last rack in part; "" for none."""
    topology, gpus = scenario.cluster.topology, scenario.gpus
    rack = rack_of(topology)
    if rack is None or gpus <= rack.num_gpus or not (last := gpus % rack.num_gpus):
        return ""
    trays = trays_filled_by(rack, gpus)
    fix = f"cluster.machine.trays: {trays} with cluster.nodes: {gpus // (trays * rack.gpus)} takes {trays * rack.gpus} "
    fix += "of each rack, as most jobs do"
    return (
        f"racks are filled unevenly: the last has {last} of {rack.num_gpus} GPUs, so groups are cut at other places "
        f"there; {racks_in_words(topology)}, and cluster.nodes counts racks; "
        + (fix if trays else f"use a multiple of {rack.num_gpus} GPUs, or fewer trays (cluster.machine.trays)")
    )
