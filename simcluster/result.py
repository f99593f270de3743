"""The result of a run: numbers at once, the timeline when somebody looks.  Imports the timeline and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simcluster.engine import Record
from simcluster.footprint import Footprint
from simcluster.lower import Lowered
from simcluster.metrics import StepTime, step_time
from simcluster.timeline import Spans, expand
from simcluster.waits import Wait, waits

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.scenario import Scenario

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
        return expand(program, record.ready, record.start, record.end, group_name).only(self.ranks)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row per span of every simulated rank; ``timeline_of`` gives any other rank's."""
        return self.spans.frame()

    def timeline_of(self, rank: int) -> pd.DataFrame:
        """The timeline of any rank: that of the rank which was simulated for it, under its own name and groups."""
        classes, first = self.lowered.classes, self.ranks.start
        representative = classes.rank_representatives[classes.of_rank[first + rank]]
        frame = self.timeline[self.timeline["rank"] == representative - first].reset_index(drop=True)
        frame["rank"] = rank
        axes = {name: name.rstrip("0123456789") for name in frame["group"].unique()}
        names = {name: self.lowered.communicators.group_name(axis, first + rank) for name, axis in axes.items()}
        frame["group"] = frame["group"].map(names)
        return frame

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
    def step_time(self) -> float:
        """Seconds per step."""
        program = self.lowered.program
        lanes = zip(program.lanes, program.lane_rank, strict=True)
        last = [ops[-1] for ops, rank in lanes if ops and rank in self.ranks]
        return float(self.record.end[last].max()) / self.steps

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

    @property
    def memory(self) -> Footprint:
        """Bytes on the rank that holds most."""
        return max(self.facts.footprints, key=lambda footprint: footprint.total)

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
            found.append(f"tight: needs {memory / capacity:.0%} of a GPU's memory, before fragmentation and buffers")
        plan = self.scenario.parallel
        hosts = self.scenario.cluster.built.host_of
        if any(
            len({hosts[rank] for rank in each.ranks}) > 1
            for each in self.lowered.communicators.all
            if each.kind == "tp"
        ):
            found.append(f"tp {plan.tp} crosses machines: its collectives leave the NVLink domain")
        return found

    def to_dict(self) -> dict[str, Any]:
        """The result JSON of the contract; nothing in it depends on the clock or the machine."""
        times, facts, memory = self.times, self.facts, self.memory
        per_gpu = facts.model_flops / self.step_time / facts.ranks
        return {
            "step_time_s": self.step_time,
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
            "fits": memory.total <= facts.memory,
            "breakdown_s": dict(times.breakdown),
            "memory_bytes": {
                "parameters": memory.parameters,
                "gradients": memory.gradients,
                "optimizer": memory.optimizer,
                "activations": memory.activations,
                "other": memory.other,
            },
            "collectives": self.collectives,
            "engine": {
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
