"""The result of a run: numbers at once, the timeline when somebody looks.  Imports the timeline and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.lowering.lower import Lowered
from simcluster.measuring.account import Account
from simcluster.measuring.contention import free_seconds, slowed_seconds
from simcluster.measuring.critical_path import CriticalPath, critical_path
from simcluster.measuring.host_copies import activations_in_host, copies_of, fullest_box
from simcluster.measuring.memory_timeline import MemoryTimeline, Peak, memory_timeline
from simcluster.measuring.metrics import StepTime, mean_breakdown, step_time
from simcluster.measuring.overlap import Overlaps, overlaps
from simcluster.measuring.timeline import Spans, expand
from simcluster.measuring.wait_matrix import WaitMatrix, wait_matrix
from simcluster.measuring.waits import Wait, waits
from simcluster.planning.footprint import Footprint
from simcluster.scenario.fits import Remedies, remedies
from simcluster.scenario.likely import Likely, likely
from simcluster.scenario.memory_plan import plan_of
from simcluster.simulating.record import Record

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.scenario.scenario import Scenario

VERSION = "0.1.0"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a job before it runs: ranks, samples and tokens a step, FLOP a step, the device, memory.

    ``footprints`` are bytes per stage; ``peak_flops`` is FLOP/s of one GPU at the job's precision,
    ``memory`` its bytes.
    """

    ranks: int
    samples: int
    tokens: int
    model_flops: float
    hardware_flops: float
    peak_flops: float
    memory: float
    footprints: tuple[Footprint, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A played program: its timeline, and where the time went.

    ``ranks`` are this job's among the program's, where several jobs were played together; its own
    numbering begins at 0.
    """

    lowered: Lowered
    record: Record
    steps: int
    ranks: range

    @cached_property
    def spans(self) -> Spans:
        """The spans of the simulated ranks, as columns."""
        program, record = self.lowered.program, self.record
        group_name = self.lowered.communicators.group_name
        spans = expand(program, record.ready, record.start, record.end, group_name, record.slowed)
        return spans.only(self.ranks)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row per span of every simulated rank; ``timeline_of`` gives any other rank's."""
        return self.spans.frame()

    def timeline_of(self, rank: int) -> pd.DataFrame:
        """The timeline of any rank: that of the rank which was simulated for it, under its own name and groups."""
        first = self.ranks.start
        frame = self.timeline[self.timeline["rank"] == self.simulated_for(rank)].reset_index(drop=True)
        frame["rank"] = rank
        axes = {name: name.rstrip("0123456789") for name in frame["group"].unique()}
        names = {name: self.lowered.communicators.group_name(axis, first + rank) for name, axis in axes.items()}
        frame["group"] = frame["group"].map(names)
        return frame

    def simulated_for(self, rank: int) -> int:
        """The simulated rank that stands for any rank of the job."""
        classes, first = self.lowered.classes, self.ranks.start
        return classes.rank_representatives[classes.of_rank[first + rank]] - first

    @cached_property
    def weights(self) -> dict[int, int]:
        """How many ranks every simulated rank stands for."""
        classes = self.lowered.classes
        weights = zip(classes.rank_representatives, classes.multiplicity(), strict=True)
        return {rank - self.ranks.start: count for rank, count in weights if rank in self.ranks}

    @cached_property
    def times(self) -> StepTime:
        """Where the time went."""
        return step_time(self.spans, self.weights, steps=self.steps)

    @cached_property
    def breakdown_of_stages(self) -> list[dict[str, float]]:
        """The breakdown of the mean rank of every stage; each sums to the step time."""
        stages = self._stages
        ranks = [[rank for rank in self.weights if stages[rank] == stage] for stage in range(max(stages.values()) + 1)]
        return [mean_breakdown(self.times.of_rank, self.weights, chosen, steps=self.steps) for chosen in ranks]

    @cached_property
    def step_time(self) -> float:
        """Seconds per step."""
        ranks = np.array(self.lowered.played.lane_rank, dtype=np.int64)
        own = (ranks >= self.ranks.start) & (ranks < self.ranks.stop)
        return float(self.record.lanes[own].max()) / self.steps

    @cached_property
    def overlap(self) -> Overlaps:
        """Communication that is hidden, exposed, or waiting for a peer: per collective, per axis and per rank."""
        free = free_seconds(self.lowered, self.spans, self.ranks.start)
        return overlaps(self.spans, self.weights, free, steps=self.steps)

    @cached_property
    def account(self) -> Account:
        """Where the step went, by cause and by stage: what differences from other runs are made of."""
        program, record = self.lowered.program, self.record
        slowed = slowed_seconds(program, record.start, record.slowed, self.weights, self.ranks.start)
        slowed = {kind: seconds / self.steps for kind, seconds in slowed.items()}
        return Account.of(self.times.breakdown, self.breakdown_of_stages, slowed, self.overlap.mean)

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The chain of ops that decides how long the job takes."""
        record = self.record
        times = {"ready": record.ready, "start": record.start, "end": record.end}
        return critical_path(self.lowered.program, times, record.last, self.spans, self.ranks, steps=self.steps)

    @cached_property
    def memory_timeline(self) -> MemoryTimeline:
        """What the simulated ranks allocate and free, over time; without model state, which stays."""
        program, record = self.lowered.program, self.record
        found = memory_timeline(program, record.ready, record.start, record.end, record.slowed)
        return found.only(self.ranks)

    def peak_of(self, rank: int) -> Peak:
        """When a simulated rank holds most, without model state."""
        return self.memory_timeline.peak(rank, self._stages[rank])

    @cached_property
    def _stages(self) -> dict[int, int]:
        """The job's stage of every simulated rank."""
        program, first = self.lowered.played, self.ranks.start
        pairs = zip(program.lane_rank, program.lane_stage, strict=True)
        stages = {rank - first: stage for rank, stage in pairs if rank in self.ranks}
        lowest = min(stages.values())
        return {rank: stage - lowest for rank, stage in stages.items()}

    @cached_property
    def waits(self) -> list[Wait]:
        """Who waited for whom, longest first."""
        record = self.record
        found = waits(self.lowered.program, record.ready, record.start, record.end, record.last)
        first = self.ranks.start
        own = [wait for wait in found if wait.rank in self.ranks]
        return [replace(wait, rank=wait.rank - first, culprit=wait.culprit - first) for wait in own]


@dataclass(frozen=True, kw_only=True)
class Result(Run):
    """One replayed scenario."""

    scenario: Scenario
    facts: Facts
    without_faults: float | None = None

    @cached_property
    def memory_peak(self) -> Peak:
        """When and on which rank most memory is held, and the op that brought it there."""
        peaks = [self.peak_of(rank) for rank in sorted(self.weights)]
        return max(peaks, key=lambda peak: self.facts.footprints[peak.stage].holding(peak.pools).total)

    def memory_table(self, ranks: Sequence[int] | None = None) -> pd.DataFrame:
        """One row per change of memory, of every simulated rank or of these."""
        table = self.memory_timeline.frame()
        if ranks is None:
            return table
        import pandas as pd

        parts = [table[table["rank"] == self.simulated_for(rank)].assign(rank=rank) for rank in ranks]
        return pd.concat(parts, ignore_index=True)

    @property
    def memory(self) -> Footprint:
        """Bytes on the rank that holds most, when it does."""
        return self.facts.footprints[self.memory_peak.stage].holding(self.memory_peak.pools)

    @cached_property
    def wait_matrix(self) -> WaitMatrix:
        """Who waited for whom, for every rank of the job or gathered in larger units."""
        classes, ranks = self.lowered.classes.of_rank, slice(self.ranks.start, self.ranks.stop)
        hosts = self.scenario.cluster.built.host_of
        return wait_matrix(self.waits, plan_of(self.scenario), class_of=classes[ranks], host_of=hosts, steps=self.steps)

    @cached_property
    def host_memory(self) -> float:
        """Bytes of offloaded state and activations in the fullest host memory; every rank's own peak is counted."""
        if self.scenario.memory.offload == type(self.scenario.memory.offload)():
            return 0.0
        stages, box_of = self._stages, self.scenario.cluster.built.box_of
        held = {
            rank: activations_in_host(self.spans, rank) + self.facts.footprints[stages[rank]].host
            for rank in self.weights
        }
        return fullest_box((box_of(rank), held[self.simulated_for(rank)]) for rank in range(self.facts.ranks))

    @property
    def host_copies(self) -> dict[str, dict[str, float]]:
        """Copies to (d2h) and from the host (h2d): bytes and seconds per step of the mean rank, and what they hide."""
        found = {}
        for direction in ("d2h", "h2d"):
            copies = copies_of(self.spans, self.weights, direction, steps=self.steps)
            if copies.bytes:
                found[direction] = {"bytes": copies.bytes, "wire_s": copies.seconds, "hidden_s": copies.hidden}
        return found

    @property
    def fits(self) -> bool:
        """Does the fullest GPU hold it all?"""
        return self.memory.total <= self.facts.memory

    @cached_property
    def remedies(self) -> Remedies | None:
        """What would make it fit; None if it does."""
        return None if self.fits else remedies(self.scenario)

    @property
    def likely(self) -> Likely:
        """Where a measured step time should be, by what predictions of runs like this one were wrong by."""
        return likely(self.scenario, self.facts.model_flops, self.step_time)

    @property
    def mfu(self) -> float:
        """Model FLOP/s over peak: no recompute, causal attention at one half."""
        return self.facts.model_flops / self.step_time / (self.facts.ranks * self.facts.peak_flops)

    @property
    def collectives(self) -> list[dict[str, Any]]:
        """Every call of a collective that the job makes, once: axis, kind, size, and how it is done.

        ``free_links_s`` is what NCCL makes of it by itself; None where the links alone say how long it takes.
        """
        return [
            {
                "axis": axis,
                "kind": kind,
                "size_bytes": size,
                "algorithm": method.algorithm,
                "protocol": method.protocol,
                "free_links_s": method.pace and method.pace.latency + size / method.pace.bandwidth,
            }
            for (axis, (kind, size)), method in self.lowered.communicators.calls(self.ranks).items()
        ]

    def warnings(self) -> list[str]:
        """What a person should know before believing or launching this."""
        found = []
        memory, capacity = self.memory.total, self.facts.memory
        if memory > capacity:
            found.append(f"does not fit: needs {memory / 1e9:.1f} GB a GPU, which has {capacity / 1e9:.1f} GB")
        elif memory > 0.9 * capacity:
            counted = self.scenario.memory != type(self.scenario.memory)()
            more = "" if counted else ", before fragmentation and buffers"
            found.append(f"tight: needs {memory / capacity:.0%} of a GPU's memory{more}")
        plan = self.scenario.parallel
        hosts = self.scenario.cluster.built.host_of
        if self.lowered.communicators.span("tp", hosts):
            found.append(f"tp {plan.tp} crosses machines: its collectives leave the NVLink domain")
        return found

    def to_dict(self) -> dict[str, Any]:
        """The result JSON of the contract; nothing in it depends on the clock or the machine."""
        times, facts, memory = self.times, self.facts, self.memory
        per_gpu = facts.model_flops / self.step_time / facts.ranks
        return {
            "step_time_s": self.step_time,
            "step_time_likely": self.likely.to_dict(),
            "tokens_per_s": facts.tokens / self.step_time,
            "tokens_per_s_per_gpu": facts.tokens / self.step_time / facts.ranks,
            "samples_per_s": facts.samples / self.step_time,
            "model_flops_per_step": facts.model_flops,
            "model_tflops_per_gpu": per_gpu / 1e12,
            "mfu": self.mfu,
            "hfu": self.mfu * facts.hardware_flops / facts.model_flops,
            "gpus": facts.ranks,
            "bubble_fraction": times.bubble_fraction,
            "bubble_over_ideal": times.bubble_over_ideal,
            "exposed_communication_s": sum(
                seconds for name, seconds in times.breakdown.items() if name.startswith("exposed_")
            ),
            "communication_s": times.communication,
            "overlap_fraction": times.overlap_fraction,
            "straggler_slowdown": self.step_time / self.without_faults if self.without_faults else 1.0,
            "peak_memory_bytes": memory.total,
            "host_memory_bytes": self.host_memory,
            "fits": self.fits,
            "fits_with": None if self.remedies is None else self.remedies.to_dict(),
            "breakdown_s": dict(times.breakdown),
            "account": self.account.to_dict(),
            "overlap": self.overlap.rows(),
            "critical_path_s": self.critical_path.by_kind(),
            "memory_bytes": {
                "parameters": memory.parameters,
                "gradients": memory.gradients,
                "optimizer": memory.optimizer,
                "activations": memory.activations,
                "other": memory.other + memory.buffers,
            },
            "memory_peak": self.memory_peak.to_dict(),
            "host_copies": self.host_copies,
            "collectives": self.collectives,
            "engine": {
                "kind": self.record.kind,
                "why": self.record.why,
                "events": self.record.events,
                "ranks_simulated": len(self.weights),
                "ranks_total": facts.ranks,
            },
            "mfu_convention": "model FLOPs: 3 x forward, no recompute, causal attention at one half, LM head included",
            "warnings": self.warnings(),
            "scenario": self.scenario.document(),
            "version": VERSION,
        }


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """The flat numbers of a result JSON, breakdown included, for tables."""
    flat = {name: value for name, value in result.items() if isinstance(value, int | float)}
    return {**flat, **{f"breakdown_s.{name}": value for name, value in result["breakdown_s"].items()}}
