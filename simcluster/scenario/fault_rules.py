"""Rules between the faults of a scenario and the rest of it: ranks, machines and links that are there.

Pure functions of a scenario.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.documents.complaints import Complaint
from simcluster.errors import InputError
from simcluster.faults import ExpertImbalance, HostStall, SequenceLengths
from simcluster.faults.by_effect import LinkFault, by_effect
from simcluster.faults.experts import expert_loads
from simcluster.faults.where import OnLinks, OnRanks
from simcluster.planning.disturbed_links import capacity_profiles, links_of

if TYPE_CHECKING:
    from simcluster.scenario.fields import ScenarioFields


def fault_rules(scenario: ScenarioFields) -> Iterator[Complaint]:
    """Every rule that a fault of the scenario breaks."""
    packed = [place for place, fault in enumerate(scenario.faults) if isinstance(fault, SequenceLengths)]
    for place, fault in enumerate(scenario.faults):
        if isinstance(fault, OnRanks):
            yield from _ranks(scenario, place, fault)
        if isinstance(fault, OnLinks):
            yield from _links(scenario, place, fault)
        try:
            by_effect([fault])
        except InputError as unplayed:
            yield ("faults", place, "kind"), str(unplayed)
        if isinstance(fault, ExpertImbalance):
            yield from _experts(scenario, place, fault)
        if isinstance(fault, HostStall) and isinstance(fault.first, int) and fault.first >= scenario.steps:
            what = f"step {fault.first} is not played: the scenario has {scenario.steps} steps, numbered from 0"
            yield ("faults", place, "first"), f"{what}; set steps to {fault.first + 1} or more"
    for place in packed:
        if scenario.training.attention != "fused":
            what = "unfused attention works on the whole square, whatever is packed"
            yield ("faults", place), f"{what}; set training.attention to fused, or leave sequence_lengths out"
    for place in packed[1:]:
        yield ("faults", place), f"the data have one law of lengths, faults.{packed[0]} has it already; keep one"


def _experts(scenario: ScenarioFields, place: int, fault: ExpertImbalance) -> Iterator[Complaint]:
    """There are experts, and as many fractions as there are."""
    moe = scenario.model.moe
    if moe is None:
        what = "the model is dense: it has no experts that could get unequally many tokens"
        yield ("faults", place), f"{what}; leave expert_imbalance out, or use sequence_lengths for uneven attention"
        return
    if scenario.memory.offload.activations and not fault.neutral:
        what = "what a rank's experts keep goes with the rows they get, and memory.offload takes an even share of it"
        yield ("faults", place), f"{what}; set memory.offload.activations to 0, or leave expert_imbalance out"
    try:
        expert_loads(fault, seed=0, experts=moe.experts, ep=1, layer=0)
    except InputError as error:
        yield ("faults", place, "tokens"), str(error)


def _ranks(scenario: ScenarioFields, place: int, fault: OnRanks) -> Iterator[Complaint]:
    """Its ranks are in the job."""
    gpus = scenario.gpus
    for rank in fault.named or ():
        if rank >= gpus:
            name = "rank" if fault.rank is not None else "ranks"
            yield ("faults", place, name), f"there is no rank {rank}: the job has {gpus} GPUs, so ranks 0 to {gpus - 1}"
    hosts = scenario.cluster.built.host_of[:gpus]
    if fault.node is not None and fault.node not in hosts:
        yield ("faults", place, "node"), f"the job has no machine {fault.node}: it is on 0 to {max(hosts, default=0)}"


def _links(scenario: ScenarioFields, place: int, fault: OnLinks) -> Iterator[Complaint]:
    """Its links are in the cluster."""
    cluster, gpus = scenario.cluster.built, scenario.gpus
    if fault.nic_of is not None and fault.nic_of >= gpus:
        what = f"there is no rank {fault.nic_of}: the job has {gpus} GPUs, so ranks 0 to {gpus - 1}"
        yield ("faults", place, "nic_of"), what
        return
    if fault.uplinks_of is not None and fault.uplinks_of not in cluster.host_of:
        what = f"the cluster has no machine {fault.uplinks_of}: they are 0 to {max(cluster.host_of)}"
        yield ("faults", place, "uplinks_of"), what
        return
    try:
        links_of(fault, cluster)
        if isinstance(fault, LinkFault):
            capacity_profiles([fault], cluster, scenario.seed)
    except InputError as error:
        yield ("faults", place), str(error)
