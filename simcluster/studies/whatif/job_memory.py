"""Simulated memory of a job by category and pipeline stage, and its memory under each other ZeRO stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.tables import rows_to_frame
from simcluster.documents.argument_types import check_arguments
from simcluster.planning.block_memory import block_memory_table
from simcluster.planning.footprint import Footprint
from simcluster.planning.peak_tensors import PeakTensor, list_peak_tensors
from simcluster.results.result import Result
from simcluster.scenario.memory_plan import recipe_document, shape_of
from simcluster.scenario.scenario import BaseScenario, Scenario
from simcluster.step.simulate import ResultLike, simulate_scenario, to_result

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("parameters", "gradients", "optimizer", "activations", "other")


def memory_by_category(footprint: Footprint) -> dict[str, float]:
    """Return the bytes of a memory footprint by category, such as gradients; together they are the footprint's total.

    The category other includes buffers of libraries and parameters that ZeRO 3 has gathered.
    """
    state = {name: float(getattr(footprint, name)) for name in PARTS[:4]}
    return {**state, "other": footprint.total - sum(state.values())}


@dataclass(frozen=True, slots=True)
class ZeroStageMemory:
    """A job under one ZeRO stage: bytes of the fullest GPU and step time, or the reason why the stage is invalid."""

    zero: int
    own: bool
    footprint: Footprint | None
    step_time: float | None
    fits: bool
    refused: str = ""


@dataclass(frozen=True, slots=True)
class JobMemory(Displayable):
    """Peak memory (bytes) of a job: the fullest rank of each pipeline stage, and the fullest GPU by ZeRO stage.

    ``capacity`` is the GPU's. No ``rungs`` (ZeRO stages) where one replica has nothing to shard over. ``kept`` are the
    tensors that make up the activations of the ``fullest`` stage, by the plan; none where part of them is in the host's
    memory.
    """

    scenario: Scenario = field(repr=False)
    stages: tuple[Footprint, ...] = field(repr=False)
    capacity: float
    rungs: tuple[ZeroStageMemory, ...] = field(repr=False)
    fullest: int = 0
    kept: tuple[PeakTensor, ...] = field(default=(), repr=False)

    @property
    def table(self) -> pd.DataFrame:
        """Table with one row per pipeline stage: bytes of the stage's fullest rank by category and in total."""
        return rows_to_frame(
            ({"stage": stage, **_footprint_as_row(held)} for stage, held in enumerate(self.stages)), index="stage"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the memory as JSON-ready values, documented in CONTRACT.md under "Walls and states"."""
        return {
            "bytes_per_parameter": recipe_document(self.scenario),
            "capacity_bytes": self.capacity,
            "stages": [_footprint_as_row(held) for held in self.stages],
            "zero": [
                {"zero": rung.zero, "own": rung.own,
                 "memory_bytes": rung.footprint and _footprint_as_row(rung.footprint),
                 "fits": rung.fits, "step_time_s": rung.step_time, "refused": rung.refused}
                for rung in self.rungs
            ],
            "fullest_stage": self.fullest,
            "kept": [asdict(part) for part in self.kept],
        }  # fmt: skip


@check_arguments
def job_memory(scenario: ResultLike) -> JobMemory:
    """Simulate the memory of a job; if dp x cp is above 1, simulate every other ZeRO stage too."""
    result = to_result(scenario, "job_memory")
    scenario = result.scenario
    sharded = scenario.dp * scenario.parallel.cp > 1
    rungs = tuple(_simulate_zero_stage(scenario, zero, result) for zero in range(4 if sharded else 0))
    fullest_of: dict[int, Footprint] = {}  # by stage
    for rank in sorted(result.weights):
        stage, held = result.memory_peak_of(rank).stage, result.memory_of(rank)
        if stage not in fullest_of or held.total > fullest_of[stage].total:
            fullest_of[stage] = held
    stages = tuple(fullest_of[stage] for stage in sorted(fullest_of))
    fullest = max(range(len(stages)), key=lambda stage: stages[stage].total)
    kept: tuple[PeakTensor, ...] = ()
    if not scenario.memory.offload.activations:
        blocks = block_memory_table(scenario.model, shape_of(scenario))
        kept = tuple(list_peak_tensors(blocks, result.job.schedule, result.job.slices, fullest))
    return JobMemory(scenario, stages, scenario.cluster.device.memory, rungs, fullest, kept)


def _simulate_zero_stage(scenario: Scenario, zero: int, result: Result) -> ZeroStageMemory:
    own = zero == scenario.parallel.zero
    if not own:
        changes = (("parallel.zero", zero), *([] if zero else [("overlap.param_gather", False)]))  # nothing to gather
        try:
            result = simulate_scenario(BaseScenario(scenario.document()).with_changes(changes))
        except InputError as problem:
            return ZeroStageMemory(zero, own, None, None, fits=False, refused=str(problem))
    return ZeroStageMemory(zero, own, result.memory, result.step_time, result.fits)


def _footprint_as_row(footprint: Footprint) -> Mapping[str, float]:
    return {**memory_by_category(footprint), "total": footprint.total}
