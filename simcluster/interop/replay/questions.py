"""What-if questions to a recorded job, such as ``last-stage=mean+links=2x``.

A question is written KEY=VALUE, several joined by +: ``last-stage=mean+links=2x``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.texts import nearest_words
from simcluster.interop.replay.recorded_job import Recorded
from simcluster.interop.replay.recorded_trace import BACKWARD, FORWARD
from simcluster.interop.replay.rescheduling import count_microbatches, identify_schedule, reschedule
from simcluster.interop.replay.step_graph import OpFilter, StepGraph, comm_mask, filter_ops
from simcluster.schedules import make_schedule, schedules_with

Job = TypeVar("Job", bound=Recorded)
_Column = Literal["dp_rank", "stage"]
_FACTOR = re.compile(r"([0-9]*\.?[0-9]+)x?")


@dataclass(frozen=True)
class ReplayAnswer:
    """Mean replayed seconds of a step, as recorded and with a what-if change."""

    question: str
    recorded_seconds: float
    changed_seconds: float

    @property
    def change(self) -> float:
        """Relative change of the step time (-0.1 is 10 % less)."""
        return self.changed_seconds / self.recorded_seconds - 1


class ReplayQuestion(NamedTuple):
    """A what-if question's help text, and the function that applies its value to a job."""

    text: str
    change: Callable[[Any, str, str], Any]


def answer_question(job: Recorded, question: str) -> ReplayAnswer:
    """Answer one what-if question about a recorded job; raise InputError if it is invalid."""
    return compare_with_recorded(job, question, apply_question(job, question, QUESTIONS, "choose"))


def apply_question(job: Job, question: str, known: Mapping[str, ReplayQuestion], ask: str) -> Job:
    """Return the job with a what-if question's changes applied, the schedule last."""
    orders: list[tuple[str, str]] = []
    for part in question.split("+"):
        key, _, value = part.strip().partition("=")
        if key not in known or not value:
            near = nearest_words(key, known, cutoff=0.6)
            guess = f"did you mean {near[0]!r}? " if near else ""
            texts = dict.fromkeys(each.text for each in known.values())
            raise InputError(f"what-if {part!r}: {guess}{ask} one of\n  " + "\n  ".join(texts))
        if key == "schedule":
            orders = [(value, part)]
        else:
            job = known[key].change(job, value, part)
    for value, part in orders:
        job = known["schedule"].change(job, value, part)
    return job


def apply_schedule(job: Recorded, name: str) -> Recorded:
    """Return the recorded job on another pipeline schedule, given as NAME or NAME:CHUNKS."""
    name, _, text = name.partition(":")
    if text and not text.isdecimal():
        raise InputError(f"what-if schedule={name}:{text}: chunks must be a whole number, as in interleaved:2")
    chunks = int(text) if text else 2 if name in schedules_with("takes_chunks") else 1
    graphs = []
    for graph in job.graphs:
        schedule = make_schedule(name, graph.stages, count_microbatches(graph), chunks)
        graphs.append(reschedule(graph, schedule))
    return replace(job, graphs=tuple(graphs))


def find_job_schedule(job: Recorded) -> str:
    """Return the pipeline schedule that all steps ran, or an empty string if it is unknown or differs."""
    names = set(map(identify_schedule, job.graphs))
    return names.pop() if len(names) == 1 else ""


def replace_seconds(job: Job, chosen: OpFilter, seconds: Callable[[StepGraph], Floats]) -> Job:
    """Return the job in which the selected ops take the seconds that a function returns."""
    graphs = (
        replace(graph, seconds=np.where(chosen(graph)[:, None], seconds(graph), graph.seconds)) for graph in job.graphs
    )
    return replace(job, graphs=tuple(graphs))


def set_typical_times(job: Job, chosen: OpFilter) -> Job:
    """Return the job in which the selected ops take typical times."""
    return replace_seconds(job, chosen, job.typical_seconds)


def set_type_typical_times(job: Job, value: str, part: str) -> Job:
    """Return the job in which ops of a type take typical times; raise InputError if it has none."""
    if value not in job.typical:
        raise InputError(f"what-if {part!r}: the job has no ops of that type; it has {', '.join(job.typical)}")
    return set_typical_times(job, filter_ops("types", value))


def speed_up(job: Job, value: str, part: str, chosen: OpFilter) -> Job:
    """Return the job in which the selected ops are N times as fast (``value`` is N or Nx)."""
    match = _FACTOR.fullmatch(value)
    if match is None or float(match[1]) <= 0:
        raise InputError(f"what-if {part!r}: give a speed-up factor, as in 2x")
    times = float(match[1])
    return replace_seconds(job, chosen, lambda graph: graph.seconds / times)


def compare_with_recorded(job: Recorded, question: str, changed: Recorded) -> ReplayAnswer:
    """Return the answer to a what-if question from the original and the changed job."""
    before, after = (float(each.step_seconds(lambda graph: graph.seconds).mean()) for each in (job, changed))
    return ReplayAnswer(question, before, after)


def _parse_index(job: Recorded, value: str, part: str, column: _Column) -> int:
    count = job.stages if column == "stage" else job.replicas
    if not value.strip().isdecimal() or int(value) >= count:
        raise InputError(f"what-if {part!r}: give a {column.replace('_', ' ')} from 0 to {count - 1}")
    return int(value)


def _scale_last_stage(job: Recorded, value: str, part: str) -> Recorded:
    """Scale the last stage's passes to the mean of the other stages, which keeps their jitter."""
    if value != "mean" or job.stages == 1:
        raise InputError(f"what-if {part!r}: only last-stage=mean is supported, for a job with several stages")
    last = filter_ops("stage", job.stages - 1)
    factors = {}
    for optype in (FORWARD, BACKWARD):
        pools = [
            [graph.seconds[filter_ops("types", optype)(graph) & (last(graph) == own)].ravel() for graph in job.graphs]
            for own in (False, True)
        ]
        others, own = (float(np.concatenate(pool).sum()) / max(1, sum(map(len, pool))) for pool in pools)
        if not own > 0:
            raise InputError(
                f"what-if {part!r}: {optype} takes no time on the last stage, so it cannot be scaled; remove it"
            )
        factors[optype] = others / own

    def seconds(graph: StepGraph) -> Floats:
        factor = np.array([factors.get(optype, 1.0) for optype in graph.optype])
        return np.asarray(graph.seconds * factor[:, None])

    return replace_seconds(job, last, seconds)


def _set_group_typical(job: Recorded, value: str, part: str, column: _Column) -> Recorded:
    return set_typical_times(job, filter_ops(column, _parse_index(job, value, part, column)))


def _set_worker_typical(job: Recorded, value: str, part: str) -> Recorded:
    dp, comma, stage = value.partition(",")
    if not comma:
        raise InputError(f"what-if {part!r}: give a dp rank and a stage, as in worker=8,1")
    number = _parse_index(job, dp, part, "dp_rank") * job.stages + _parse_index(job, stage, part, "stage")
    return set_typical_times(job, filter_ops("worker", number))


QUESTIONS = {
    "last-stage": ReplayQuestion(
        "last-stage=mean: passes of the last stage scaled to the mean of the other stages (no head, no loss)",
        _scale_last_stage,
    ),
    "stage": ReplayQuestion("stage=N: ops of stage N take typical times", partial(_set_group_typical, column="stage")),
    "worker": ReplayQuestion("worker=DP,STAGE: ops of that worker take typical times", _set_worker_typical),
    "dp": ReplayQuestion(
        "dp=N: ops of all stages of dp rank N take typical times", partial(_set_group_typical, column="dp_rank")
    ),
    "type": ReplayQuestion("type=OPTYPE: ops of this type take typical times", set_type_typical_times),
    "links": ReplayQuestion("links=2x: messages and collectives twice as fast", partial(speed_up, chosen=comm_mask)),
    "compute": ReplayQuestion(
        "compute=1.1x: all compute 1.1 times as fast",
        partial(speed_up, chosen=lambda graph: ~comm_mask(graph)),
    ),
    "schedule": ReplayQuestion(
        "schedule=NAME or NAME:CHUNKS: the same measured times in another order",
        lambda job, value, _: apply_schedule(job, value),
    ),
}
"""Questions by key."""
