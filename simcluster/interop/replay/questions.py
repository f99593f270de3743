"""Questions to a recorded job: the same steps with something changed.

A question is written KEY=VALUE, several at once with + between them: ``last-stage=mean+links=2x``.
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
from simcluster.base.texts import nearest
from simcluster.interop.replay.recorded_job import Recorded
from simcluster.interop.replay.recorded_trace import BACKWARD, FORWARD
from simcluster.interop.replay.rescheduling import microbatches_of, rescheduled, schedule_of
from simcluster.interop.replay.step_graph import Chosen, StepGraph, having, is_comm
from simcluster.schedules import make_schedule, schedules_with

Job = TypeVar("Job", bound=Recorded)
_Column = Literal["dp_rank", "stage"]
_FACTOR = re.compile(r"([0-9]*\.?[0-9]+)x?")


@dataclass(frozen=True)
class ReplayAnswer:
    """Mean seconds of a step as replayed, and with the change."""

    question: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """How much longer a step takes: -0.1 is 10 % less time."""
        return self.after / self.before - 1


class ReplayQuestion(NamedTuple):
    """What can be asked, as people read it, and what changes a job by a value (the whole part is for errors)."""

    text: str
    change: Callable[[Any, str, str], Any]


def ask(job: Recorded, question: str) -> ReplayAnswer:
    """Answer one question; InputError for one that cannot be read or that this job has no answer to."""
    return answered(job, question, changed_by(job, question, QUESTIONS, "ask"))


def changed_by(job: Job, question: str, known: Mapping[str, ReplayQuestion], ask: str) -> Job:
    """Return the job with what a question changes, the order of ops last; InputError with what can be asked."""
    orders: list[tuple[str, str]] = []
    for part in question.split("+"):
        key, _, value = part.strip().partition("=")
        if key not in known or not value:
            near = nearest(key, known, cutoff=0.6)
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


def in_order(job: Recorded, name: str) -> Recorded:
    """Return the job on another schedule, NAME or NAME:CHUNKS."""
    name, _, text = name.partition(":")
    if text and not text.isdecimal():
        raise InputError(f"what-if schedule={name}:{text}: chunks are a whole number, as in interleaved:2")
    chunks = int(text) if text else 2 if name in schedules_with("takes_chunks") else 1
    graphs = []
    for graph in job.graphs:
        schedule = make_schedule(name, graph.stages, microbatches_of(graph), chunks)
        graphs.append(rescheduled(graph, schedule))
    return replace(job, graphs=tuple(graphs))


def own_schedule(job: Recorded) -> str:
    """Return the name of the one schedule that all steps ran, "" where none is known or they differ."""
    names = set(map(schedule_of, job.graphs))
    return names.pop() if len(names) == 1 else ""


def where(job: Job, chosen: Chosen, seconds: Callable[[StepGraph], Floats]) -> Job:
    """Return the job in which the chosen ops take other seconds."""
    graphs = (
        replace(graph, seconds=np.where(chosen(graph)[:, None], seconds(graph), graph.seconds)) for graph in job.graphs
    )
    return replace(job, graphs=tuple(graphs))


def typical_where(job: Job, chosen: Chosen) -> Job:
    """Return the job in which the chosen ops take what is typical."""
    return where(job, chosen, job.typical_of)


def typical_of_type(job: Job, value: str, part: str) -> Job:
    """Return the job in which ops of a type take what is typical; InputError for a type that it has none of."""
    if value not in job.typical:
        raise InputError(f"what-if {part!r}: the job has no ops of that type; it has {', '.join(job.typical)}")
    return typical_where(job, having("types", value))


def faster(job: Job, value: str, part: str, chosen: Chosen) -> Job:
    """Return the job in which the chosen ops are N times as fast, value is N or Nx; InputError for another."""
    match = _FACTOR.fullmatch(value)
    if match is None or float(match[1]) <= 0:
        raise InputError(f"what-if {part!r}: give how many times as fast, as in 2x")
    times = float(match[1])
    return where(job, chosen, lambda graph: graph.seconds / times)


def answered(job: Recorded, question: str, changed: Recorded) -> ReplayAnswer:
    """Return the answer to a question that changes the job to another."""
    before, after = (float(each.times(lambda graph: graph.seconds).mean()) for each in (job, changed))
    return ReplayAnswer(question, before, after)


def _number(job: Recorded, value: str, part: str, column: _Column) -> int:
    count = job.stages if column == "stage" else job.replicas
    if not value.strip().isdecimal() or int(value) >= count:
        raise InputError(f"what-if {part!r}: give a {column.replace('_', ' ')} from 0 to {count - 1}")
    return int(value)


def _last_stage(job: Recorded, value: str, part: str) -> Recorded:
    """Scale the last stage, so that it keeps its jitter and its sequences."""
    if value != "mean" or job.stages == 1:
        raise InputError(f"what-if {part!r}: only last-stage=mean can be asked, of a job with several stages")
    last = having("stage", job.stages - 1)
    factors = {}
    for optype in (FORWARD, BACKWARD):
        pools = [
            [graph.seconds[having("types", optype)(graph) & (last(graph) == own)].ravel() for graph in job.graphs]
            for own in (False, True)
        ]
        others, own = (float(np.concatenate(pool).sum()) / max(1, sum(map(len, pool))) for pool in pools)
        if not own > 0:
            raise InputError(
                f"what-if {part!r}: {optype} takes no time on the last stage, so there is none to scale; leave it out"
            )
        factors[optype] = others / own

    def seconds(graph: StepGraph) -> Floats:
        factor = np.array([factors.get(optype, 1.0) for optype in graph.optype])
        return np.asarray(graph.seconds * factor[:, None])

    return where(job, last, seconds)


def _of(job: Recorded, value: str, part: str, column: _Column) -> Recorded:
    return typical_where(job, having(column, _number(job, value, part, column)))


def _worker(job: Recorded, value: str, part: str) -> Recorded:
    dp, comma, stage = value.partition(",")
    if not comma:
        raise InputError(f"what-if {part!r}: give a dp rank and a stage, as in worker=8,1")
    number = _number(job, dp, part, "dp_rank") * job.stages + _number(job, stage, part, "stage")
    return typical_where(job, having("worker", number))


QUESTIONS = {
    "last-stage": ReplayQuestion(
        "last-stage=mean: passes of the last stage scaled to the mean of the other stages (no head, no loss)",
        _last_stage,
    ),
    "stage": ReplayQuestion("stage=N: what is typical instead of what stage N took", partial(_of, column="stage")),
    "worker": ReplayQuestion("worker=DP,STAGE: what is typical instead of what that worker took", _worker),
    "dp": ReplayQuestion(
        "dp=N: what is typical instead of what all stages of dp rank N took", partial(_of, column="dp_rank")
    ),
    "type": ReplayQuestion("type=OPTYPE: what is typical instead of what ops of this type took", typical_of_type),
    "links": ReplayQuestion("links=2x: messages and collectives twice as fast", partial(faster, chosen=is_comm)),
    "compute": ReplayQuestion(
        "compute=1.1x: all compute 10 % faster", partial(faster, chosen=lambda graph: ~is_comm(graph))
    ),
    "schedule": ReplayQuestion(
        "schedule=NAME or NAME:CHUNKS: the same measured times in another order",
        lambda job, value, _: in_order(job, value),
    ),
}
"""What can be asked, by key."""
