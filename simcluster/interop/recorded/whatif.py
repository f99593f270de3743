"""Questions to a recorded job: the same steps with something changed.

A question is written KEY=VALUE, several at once with + between them: ``last-stage=mean+links=2x``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.base.errors import InputError
from simcluster.interop.recorded.graph import (
    Chosen,
    StepGraph,
    is_communication,
    of_replica,
    of_stage,
    of_type,
    of_workers,
)
from simcluster.interop.recorded.recorded import Recorded
from simcluster.interop.recorded.reschedule import common, microbatches_of, rescheduled
from simcluster.interop.recorded.trace import BACKWARD, FORWARD
from simcluster.schedules import make_schedule, schedules_with

QUESTIONS = {
    "last-stage": "last-stage=mean: passes of the last stage scaled to the mean of the other stages (no head, no loss)",
    "stage": "stage=N: what is typical instead of what stage N took",
    "worker": "worker=DP,STAGE: what is typical instead of what that worker took",
    "dp": "dp=N: what is typical instead of what all stages of dp rank N took",
    "type": "type=OPTYPE: what is typical instead of what ops of this type took",
    "links": "links=2x: messages and collectives twice as fast",
    "compute": "compute=1.1x: all compute 10 % faster",
    "schedule": "schedule=NAME or NAME:CHUNKS: the same measured times in another order",
}
"""What can be asked, by key."""

Job = TypeVar("Job", bound=Recorded)
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


def ask(job: Recorded, question: str) -> ReplayAnswer:
    """The answer to one question; InputError for one that cannot be read or that this job has no answer to."""
    changed, order = job, ""
    for part in question.split("+"):
        key, value = key_and_value(part, QUESTIONS, "ask")
        if key == "schedule":
            order = value
        else:
            changed = _CHANGES[key](changed, value, part)
    return answered(job, question, in_order(changed, order) if order else changed)


def key_and_value(part: str, known: Mapping[str, str], ask: str) -> tuple[str, str]:
    """One change of a question, KEY=VALUE; InputError with what can be asked for any other."""
    key, _, value = part.strip().partition("=")
    if key not in known or not value:
        near = difflib.get_close_matches(key, known, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"what-if {part!r}: {guess}{ask} one of\n  " + "\n  ".join(known.values()))
    return key, value


def factor(value: str, part: str) -> float:
    """How many times as fast, as in 2x; InputError for what is none."""
    match = _FACTOR.fullmatch(value)
    if match is None or float(match[1]) <= 0:
        raise InputError(f"what-if {part!r}: give how many times as fast, as in 2x")
    return float(match[1])


def in_order(job: Recorded, name: str) -> Recorded:
    """The job on another schedule, NAME or NAME:CHUNKS."""
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
    """The name of the schedule that was recorded, "" where none is known."""
    return common(job.graphs)


def where(job: Job, chosen: Chosen, seconds: Callable[[StepGraph], Floats]) -> Job:
    """The job in which the chosen ops take other seconds."""
    graphs = (
        replace(graph, seconds=np.where(chosen(graph)[:, None], seconds(graph), graph.seconds)) for graph in job.graphs
    )
    return replace(job, graphs=tuple(graphs))


def typical_where(job: Job, chosen: Chosen) -> Job:
    """The job in which the chosen ops take what is typical."""
    return where(job, chosen, job.typical_of)


def typical_of_type(job: Job, value: str, part: str) -> Job:
    """The job in which ops of a type take what is typical; InputError for a type that it has none of."""
    if value not in job.typical:
        raise InputError(f"what-if {part!r}: the job has no ops of that type; it has {', '.join(job.typical)}")
    return typical_where(job, of_type(value))


def faster(job: Job, value: str, part: str, chosen: Chosen) -> Job:
    """The job in which the chosen ops are so many times as fast."""
    times = factor(value, part)
    return where(job, chosen, lambda graph: graph.seconds / times)


def is_comm(graph: StepGraph) -> Bools:
    """Which ops are messages and collectives."""
    return np.array([is_communication(optype) for optype in graph.optype], dtype=bool)


def answered(job: Recorded, question: str, changed: Recorded) -> ReplayAnswer:
    """The answer to a question that changes the job to another."""
    before, after = (float(each.times(lambda graph: graph.seconds).mean()) for each in (job, changed))
    return ReplayAnswer(question, before, after)


def _number(value: str, count: int, part: str, what: str) -> int:
    if not value.strip().isdecimal() or int(value) >= count:
        raise InputError(f"what-if {part!r}: give a {what} from 0 to {count - 1}")
    return int(value)


def _last_stage(job: Recorded, value: str, part: str) -> Recorded:
    """Scaled, so that it keeps its jitter and its sequences."""
    if value != "mean" or job.stages == 1:
        raise InputError(f"what-if {part!r}: only last-stage=mean can be asked, of a job with several stages")
    factors = {}
    for optype in (FORWARD, BACKWARD):
        pools: tuple[list[Floats], list[Floats]] = [], []
        for graph in job.graphs:
            passes, last = np.array(graph.optype) == optype, graph.stage == graph.stages - 1
            pools[0].append(graph.seconds[passes & ~last].ravel())
            pools[1].append(graph.seconds[passes & last].ravel())
        others, own = (float(np.concatenate(pool).mean()) for pool in pools)
        factors[optype] = others / own

    def seconds(graph: StepGraph) -> Floats:
        factor = np.array([factors.get(optype, 1.0) for optype in graph.optype])
        return np.asarray(graph.seconds * factor[:, None])

    return where(job, of_stage(job.stages - 1), seconds)


def _stage(job: Recorded, value: str, part: str) -> Recorded:
    number = _number(value, job.stages, part, "stage")
    return typical_where(job, of_stage(number))


def _dp(job: Recorded, value: str, part: str) -> Recorded:
    number = _number(value, job.replicas, part, "dp rank")
    return typical_where(job, of_replica(number))


def _worker(job: Recorded, value: str, part: str) -> Recorded:
    dp, comma, stage = value.partition(",")
    if not comma:
        raise InputError(f"what-if {part!r}: give a dp rank and a stage, as in worker=8,1")
    number = _number(dp, job.replicas, part, "dp rank") * job.stages + _number(stage, job.stages, part, "stage")
    return typical_where(job, of_workers(number))


_CHANGES: dict[str, Callable[[Recorded, str, str], Recorded]] = {
    "last-stage": _last_stage,
    "stage": _stage,
    "worker": _worker,
    "dp": _dp,
    "type": typical_of_type,
    "links": partial(faster, chosen=is_comm),
    "compute": partial(faster, chosen=lambda graph: ~is_comm(graph)),
}
