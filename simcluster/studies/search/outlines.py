"""Stage bounds: a stage's seconds in outline, the least seconds of its calls, and what layouts share."""

from __future__ import annotations

from typing import NamedTuple

from simcluster.studies.search.free_links import Call, Way
from simcluster.studies.search.pass_times import LayerShape, LeastPassTimes, Sums
from simcluster.studies.search.pipelines import PipelineRoute
from simcluster.studies.search.space import Layout


class Stage(NamedTuple):
    """What a stage does in a step, as the outline has it: seconds before and during its passes and behind, its layers,
    and whether it holds the ends of the model."""

    fill: float
    work: float
    drain: float
    layers: int
    first: bool
    last: bool

    @property
    def seconds(self) -> float:
        return self.fill + self.work + self.drain


class Least(dict[Call, float]):
    """Least seconds of a stage's calls over dp and of its sends, worked out when they are asked for."""

    def __init__(self, way: Way, stage: int) -> None:
        super().__init__()
        self._way, self._stage = way, stage

    def __missing__(self, call: Call) -> float:
        self[call] = self._way.seconds(self._stage, call)
        return self[call]


def grid_of(layout: Layout) -> object:
    """What decides which ranks talk to which."""
    return layout.gpus, layout.tp, layout.pp, layout.order


def slice_times(pipeline: PipelineRoute, times: LeastPassTimes) -> list[Sums]:
    """Least seconds of the passes of every slice."""
    last = len(pipeline.counts) - 1
    return [
        times.of(pipeline.layers(number), embedding=number == 0, lm_head=number == last) for number in range(last + 1)
    ]


def shape_of_layout(layout: Layout) -> LayerShape:
    """What decides its passes."""
    return LayerShape(layout.micro_batch, layout.sequence_parallel, layout.recompute)
