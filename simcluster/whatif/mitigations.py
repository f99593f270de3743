"""What can be done about a job's stragglers, and what each step would take: every answer is played.

Imports the door.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simcluster.errors import InputError
from simcluster.faults import Fault, HostStall, SequenceLengths, SlowGpu
from simcluster.faults.by_effect import LinkFault
from simcluster.faults.where import OnRanks
from simcluster.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.simulate import replay


@dataclass(frozen=True, slots=True)
class Mitigation:
    """A change of the job against its stragglers.

    ``step_time`` in seconds for ``samples`` sequences with ``gpus`` GPUs; ``pays`` is how much less time the job takes
    for the same sequences (0.1: 10 % less; negative: more), and ``pays_per_gpu`` how much less GPU time.
    """

    what: str
    step_time: float
    samples: int
    gpus: int
    pays: float
    pays_per_gpu: float
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "what": self.what,
            "step_time_s": self.step_time,
            "samples": self.samples,
            "gpus": self.gpus,
            "pays": self.pays,
            "pays_per_gpu": self.pays_per_gpu,
            "note": self.note,
        }


def what_pays(result: Result) -> list[Mitigation]:
    """Those that apply to the scenario of a result, best first; what cannot be planned is left out."""
    found = []
    for what, scenario, note in _changes(result.scenario):
        try:
            step_time = replay(scenario).step_time
        except InputError:  # a schedule that cannot be cut otherwise, for one
            continue
        found.append(_of(result, what, scenario, step_time, note))
    return sorted(found, key=lambda each: -each.pays)


def _of(result: Result, what: str, scenario: Scenario, step_time: float, note: str) -> Mitigation:
    old, new = result.scenario, scenario
    ratio = (step_time / new.training.global_batch) / (result.step_time / old.training.global_batch)
    per_gpu = ratio * new.gpus / old.gpus
    return Mitigation(what, step_time, new.training.global_batch, new.gpus, 1 - ratio, 1 - per_gpu, note)


def _changes(scenario: Scenario) -> Iterator[tuple[str, Scenario, str]]:
    """(what, the changed scenario, what is to be said of it)."""
    faults = scenario.faults
    if scenario.parallel.pp > 1 and scenario.pipeline.layers_per_stage != "auto":
        pipeline = scenario.pipeline.model_copy(update={"layers_per_stage": "auto"})
        yield "rebalance the stages (layers_per_stage: auto)", scenario.model_copy(update={"pipeline": pipeline}), ""
    for machine in slow_machines(scenario):
        healthy = tuple(fault for fault in faults if not (isinstance(fault, SlowGpu) and _on(fault, scenario, machine)))
        yield f"replace machine {machine} by a healthy one", scenario.model_copy(update={"faults": healthy}), ""
        smaller, note = without_machine(scenario, machine)
        if smaller is not None:
            yield f"drop machine {machine}, go on with dp {smaller.dp}", smaller, note
    stalls = [fault for fault in faults if isinstance(fault, HostStall) and fault.cause == "garbage_collection"]
    if stalls:
        planned = tuple(_planned(fault) if fault in stalls else fault for fault in faults)
        yield "plan the garbage collection: all ranks together, between steps", _with(scenario, planned), ""
    uneven = [fault for fault in faults if isinstance(fault, SequenceLengths) and fault.packing == "in_order"]
    if uneven:
        balanced = tuple(
            fault.model_copy(update={"packing": "balanced"}) if isinstance(fault, SequenceLengths) else fault
            for fault in faults
        )
        yield "redistribute the sequences (packing: balanced)", _with(scenario, balanced), ""


def _with(scenario: Scenario, faults: tuple[Fault, ...]) -> Scenario:
    return scenario.model_copy(update={"faults": faults})


def _planned(fault: Fault) -> Fault:
    """The same collections, but at the begin of a step and on all ranks in the same steps."""
    assert isinstance(fault, HostStall)
    return fault.model_copy(update={"cause": "data_loading", "first": 0})


def slow_machines(scenario: Scenario) -> list[int]:
    """Machines that have a slow GPU, ascending."""
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    slow = [
        hosts[rank]
        for fault in scenario.faults
        if isinstance(fault, SlowGpu) and not fault.neutral
        for rank in fault.chosen(hosts)
    ]
    return sorted(dict.fromkeys(slow))


def _on(fault: SlowGpu, scenario: Scenario, machine: int) -> bool:
    """Is a fault on this machine alone?"""
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    return {hosts[rank] for rank in fault.chosen(hosts)} == {machine}


def without_machine(scenario: Scenario, machine: int) -> tuple[Scenario | None, str]:
    """The same job with a replica less and without the machine, and what is to be said of its batch and idle GPUs.

    Ranks move up into the gap.  The global batch stays where the replicas can share it, else it is the nearest smaller
    one that they can.  None for a job of a single replica.
    """
    hosts = scenario.cluster.built.host_of[: scenario.gpus]
    parallel, training = scenario.parallel, scenario.training
    replica = parallel.tp * parallel.cp * parallel.pp
    kept = [rank for rank in range(scenario.gpus) if hosts[rank] != machine]
    dp = min(scenario.dp - 1, len(kept) // replica)
    if dp < 1:
        return None, "the job has a single replica"
    batch, together = training.global_batch, dp * training.micro_batch
    if scenario.pipeline.schedule == "interleaved":
        together *= parallel.pp
    batch = batch // together * together or together
    gpus = dp * replica
    place = {rank: number for number, rank in enumerate(kept[:gpus])}
    faults = tuple(moved for fault in scenario.faults for moved in _moved(fault, hosts, machine, place))
    notes = []
    if batch != training.global_batch:
        notes.append(f"global batch {batch:,}, as {training.global_batch:,} does not divide")
    if len(kept) > gpus:
        notes.append(f"{len(kept) - gpus:,} healthy GPUs idle")
    changed = scenario.model_copy(
        update={
            "gpus": gpus,
            "parallel": parallel.model_copy(update={"dp": dp}),
            "training": training.model_copy(update={"global_batch": batch}),
            "faults": faults,
        }
    )
    return changed, "; ".join(notes)


def _moved(fault: Fault, hosts: tuple[int, ...] | list[int], machine: int, place: dict[int, int]) -> Iterator[Fault]:
    """A fault where its ranks, its NIC's or its machine are now; nothing if none of them is left."""
    if isinstance(fault, LinkFault):
        yield from _moved_link(fault, hosts, place)
        return
    everywhere = isinstance(fault, OnRanks) and fault.named is None and fault.node is None
    if not isinstance(fault, OnRanks) or everywhere:
        yield fault
        return
    ranks = tuple(place[rank] for rank in fault.chosen(hosts) if rank in place)
    if ranks:
        yield fault.model_copy(update={"rank": None, "node": None, "ranks": ranks})


def _moved_link(fault: LinkFault, hosts: tuple[int, ...] | list[int], place: dict[int, int]) -> Iterator[LinkFault]:
    """A fault of links: that of a rank's NIC or of a machine's uplinks goes where they go, others stay."""
    if fault.nic_of is not None:
        if fault.nic_of in place:
            yield fault.model_copy(update={"nic_of": place[fault.nic_of]})
    elif fault.uplinks_of is not None and fault.uplinks_of in hosts:
        now = [hosts[place[rank]] for rank, host in enumerate(hosts) if host == fault.uplinks_of and rank in place]
        if now:
            yield fault.model_copy(update={"uplinks_of": now[0]})
    else:
        yield fault
