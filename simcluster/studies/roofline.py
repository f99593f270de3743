"""Roofline of a simulated step: the hardware limit of each kernel and of each kind of communication.

The roofline model (Williams, Waterman, Patterson, CACM 52(4), 2009), with a roof for the network next to those of
compute and of memory: a collective of B bytes for each FLOP of the step lets a GPU do no more than rate / B FLOP/s,
however fast it computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simcluster.devices.device import kernel_seconds
from simcluster.results.result import Result
from simcluster.scenario.memory_plan import shape_of
from simcluster.studies.bench.cluster_measurement import measure_cluster
from simcluster.studies.bench.collective import BUS_FACTOR
from simcluster.studies.kernels import PHASES, list_layer_sections


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """One kernel in a roofline: FLOP, bytes of device memory and seconds of one launch.

    ``step_seconds`` is the sum of its launches in a step, averaged over ranks.
    """

    name: str
    phase: str
    flops: float
    bytes: float
    seconds: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class CommunicationPoint:
    """One kind of communication on one parallel axis: bytes and seconds per step, averaged over ranks.

    ``bytes`` are the load of its busiest port (nccl-tests' bus bandwidth times the time), ``seconds`` the time on the
    wire.
    """

    axis: str
    kind: str
    bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Roofline of a step: limits of a GPU (FLOP/s, B/s), and the kernels and communication of the step.

    ``peak_flops`` applies to the step's matmuls, ``memory_bandwidth`` is the data sheet's; ``bandwidth_inside_node``
    and ``bandwidth_out_of_node`` are what a GPU alone can send, ``ring_bandwidth`` is the port rate of a ring over
    all GPUs, to which all NICs of a node add (0 where there is no such path). ``flops`` are executed.
    """

    peak_flops: float
    memory_bandwidth: float
    bandwidth_inside_node: float
    bandwidth_out_of_node: float
    ring_bandwidth: float
    flops: float
    step_seconds: float
    kernels: tuple[KernelPoint, ...]
    communication: tuple[CommunicationPoint, ...]


def compute_roofline(result: Result) -> Roofline:
    """Compute the roofline of a simulated step."""
    cluster, facts = measure_cluster(result.scenario.cluster.built), result.facts
    return Roofline(
        peak_flops=facts.peak_flops,
        memory_bandwidth=result.scenario.cluster.device.memory_bandwidth,
        bandwidth_inside_node=cluster.inside,
        bandwidth_out_of_node=cluster.outside,
        ring_bandwidth=cluster.all_reduce.busbw if cluster.all_reduce else 0.0,
        flops=facts.hardware_flops / facts.ranks,
        step_seconds=result.step_time,
        kernels=tuple(_kernel_points(result)),
        communication=_communication_points(result),
    )


def _kernel_points(result: Result) -> Iterator[KernelPoint]:
    scenario = result.scenario
    model, device = scenario.model, scenario.cluster.device
    shape = replace(shape_of(scenario), separate_prediction=False)
    precision = scenario.training.precision.removesuffix("-mixed")
    layers = tuple(range(model.layers))
    found: dict[tuple[str, str, float, float], KernelPoint] = {}
    for part in list_layer_sections(model, shape, layers, embedding=True, lm_head=True):
        launches = part.layers * (1 if part.once_per_step else scenario.microbatches) / scenario.parallel.pp
        for phase in PHASES:
            for kernel in getattr(part.section, phase):
                # fraction left by packed documents
                there = result.facts.attention if kernel.kind == "attention" else 1.0
                seconds = there * kernel_seconds(device, kernel, precision=precision)
                key = kernel.name, phase, there * kernel.flops, kernel.bytes
                before = found[key].step_seconds if key in found else 0.0
                found[key] = KernelPoint(*key, seconds, before + seconds * launches)
    yield from sorted(found.values(), key=lambda point: -point.step_seconds)


def _communication_points(result: Result) -> tuple[CommunicationPoint, ...]:
    parallel, ranks = result.scenario.parallel, result.facts.ranks
    sums: dict[tuple[str, str], list[float]] = {}
    table = result.timeline
    table = table[table["kind"].isin(list(BUS_FACTOR))]
    share = {rank: count / ranks / result.steps for rank, count in result.weights.items()}
    for (rank, axis, kind), rows in table.groupby(["rank", "stream", "kind"], sort=True):
        members = 2 if axis == "pp" else getattr(parallel, str(axis), 1)  # over pp: the ends that share an embedding
        part = share[rank]  # type: ignore[index]  # the stubs take what rows are grouped by for anything
        total = sums.setdefault((str(axis), str(kind)), [0.0, 0.0])
        total[0] += part * BUS_FACTOR[str(kind)](members) * float(rows["bytes"].sum())
        total[1] += part * float((rows["end"] - rows["start"]).sum())
    points = [CommunicationPoint(*name, *total) for name, total in sums.items() if all(total)]
    return tuple(sorted(points, key=lambda point: -point.seconds))
