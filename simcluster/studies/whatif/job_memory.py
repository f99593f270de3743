"""Simulated memory of a job's ranks by category and stage, also under the other ZeRO stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.shown import Displayable
from simcluster.base.tables import rows_to_frame
from simcluster.documents.argument_types import checked
from simcluster.planning.footprint import Footprint
from simcluster.planning.kept_parts import PeakTensor, list_peak_tensors
from simcluster.planning.residency import block_residencies
from simcluster.results.result import Result
from simcluster.scenario.memory_plan import recipe_document, shape_of
from simcluster.scenario.scenario import Base, Scenario
from simcluster.step.simulate import ResultLike, simulate_scenario, to_result

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("parameters", "gradients", "optimizer", "activations", "other")


def memory_by_part(held: Footprint) -> dict[str, float]:
    """Return the bytes of a memory footprint by category; they sum to its total.

    ``other`` includes the buffers of libraries and parameters that ZeRO 3 has gathered.
    """
    state = {name: float(getattr(held, name)) for name in PARTS[:4]}
    return {**state, "other": held.total - sum(state.values())}


@dataclass(frozen=True, slots=True)
class ZeroRung:
    """A job under one ZeRO stage: bytes of its fullest GPU and step time (s), or why it is invalid."""

    zero: int
    own: bool
    held: Footprint | None
    step_time: float | None
    fits: bool
    refused: str = ""


@dataclass(frozen=True, slots=True)
class JobMemory(Displayable):
    """Peak memory (bytes) of each stage's fullest rank, and of the job under each ZeRO stage.

    ``capacity`` is the GPU's. No ``rungs`` (ZeRO stages) where one replica has nothing to shard over. ``kept`` are the
    tensors that make up the activations of the ``fullest`` stage, by the plan; none where part of them is in the host's
    memory.
    """

    scenario: Scenario = field(repr=False)
    stages: tuple[Footprint, ...] = field(repr=False)
    capacity: float
    rungs: tuple[ZeroRung, ...] = field(repr=False)
    fullest: int = 0
    kept: tuple[PeakTensor, ...] = field(default=(), repr=False)

    @property
    def table(self) -> pd.DataFrame:
        """Table with one row per stage: bytes of its fullest rank by part, and their total."""
        return rows_to_frame(
            ({"stage": stage, **_as_row(held)} for stage, held in enumerate(self.stages)), index="stage"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the memory as JSON-ready values, documented in CONTRACT.md under "Walls and states"."""
        return {
            "bytes_per_parameter": recipe_document(self.scenario),
            "capacity_bytes": self.capacity,
            "stages": [_as_row(held) for held in self.stages],
            "zero": [
                {
                    "zero": rung.zero, "own": rung.own, "memory_bytes": rung.held and _as_row(rung.held),
                    "fits": rung.fits, "step_time_s": rung.step_time, "refused": rung.refused,
                }
                for rung in self.rungs
            ],
            "fullest_stage": self.fullest,
            "kept": [
                {"block": part.block, "tensor": part.tensor, "bytes": part.bytes, "alive": part.alive}
                for part in self.kept
            ],
        }  # fmt: skip


@checked
def job_memory(scenario: ResultLike) -> JobMemory:
    """Simulate the memory of a scenario, and of each other ZeRO stage if it has replicas to shard over."""
    result = to_result(scenario, "job_memory")
    scenario = result.scenario
    rungs = (
        tuple(_try_zero(scenario, zero, result) for zero in range(4)) if scenario.dp * scenario.parallel.cp > 1 else ()
    )
    fullest_of: dict[int, Footprint] = {}  # by stage
    for rank in sorted(result.weights):
        stage, held = result.peak_of(rank).stage, result.memory_of(rank)
        if stage not in fullest_of or held.total > fullest_of[stage].total:
            fullest_of[stage] = held
    stages = tuple(fullest_of[stage] for stage in sorted(fullest_of))
    fullest = max(range(len(stages)), key=lambda stage: stages[stage].total)
    kept: tuple[PeakTensor, ...] = ()
    if not scenario.memory.offload.activations:
        blocks = block_residencies(scenario.model, shape_of(scenario))
        kept = tuple(list_peak_tensors(blocks, result.job.schedule, result.job.slices, fullest))
    return JobMemory(scenario, stages, scenario.cluster.device.memory, rungs, fullest, kept)


def _try_zero(scenario: Scenario, zero: int, result: Result) -> ZeroRung:
    own = zero == scenario.parallel.zero
    if not own:
        changes = (("parallel.zero", zero), *([] if zero else [("overlap.param_gather", False)]))  # nothing to gather
        try:
            result = simulate_scenario(Base(scenario.document()).scenario(changes))
        except InputError as problem:
            return ZeroRung(zero, own, None, None, fits=False, refused=str(problem))
    return ZeroRung(zero, own, result.memory, result.step_time, result.fits)


def _as_row(held: Footprint) -> Mapping[str, float]:
    return {**memory_by_part(held), "total": held.total}
