"""What-if questions about a recorded job: KEY=VALUE, several joined by +, as in ``last-stage=mean+links=2x``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.texts import find_similar_words
from simcluster.interop.replay.recorded_job import RecordedJob
from simcluster.interop.replay.recorded_trace import BACKWARD, FORWARD
from simcluster.interop.replay.rescheduling import count_microbatches, identify_schedule, reschedule_step
from simcluster.interop.replay.step_graph import OpFilter, StepGraph, communication_mask, make_op_filter
from simcluster.schedules import make_schedule, schedules_with

Job = TypeVar("Job", bound=RecordedJob)
_Column = Literal["dp_rank", "stage"]
_FACTOR = re.compile(r"([0-9]*\.?[0-9]+)x?")


@dataclass(frozen=True)
class ReplayAnswer:
    """Answer to a what-if question: mean replayed step time (s) as recorded, and with the change."""

    question: str
    recorded_seconds: float
    changed_seconds: float

    @property
    def relative_change(self) -> float:
        """Relative change of the step time (-0.1 is 10 % less)."""
        return self.changed_seconds / self.recorded_seconds - 1


class ReplayQuestion(NamedTuple):
    """Kind of what-if question: its help text, and the function that applies its value to a job."""

    help_text: str
    apply: Callable[[Any, str, str], Any]


def answer_question(job: RecordedJob, question: str) -> ReplayAnswer:
    """Answer one what-if question about a recorded job; raise InputError for an invalid question."""
    return compare_with_recorded(job, question, apply_what_if(job, question, QUESTIONS, "choose"))


def apply_what_if(job: Job, what_if: str, questions: Mapping[str, ReplayQuestion], prompt: str) -> Job:
    """Apply the changes in a what-if question to a job, a schedule change last; return the changed job."""
    orders: list[tuple[str, str]] = []
    for part in what_if.split("+"):
        key, _, value = part.strip().partition("=")
        if key not in questions or not value:
            near = find_similar_words(key, questions, cutoff=0.6)
            guess = f"did you mean {near[0]!r}? " if near else ""
            texts = dict.fromkeys(each.help_text for each in questions.values())
            raise InputError(f"what-if {part!r}: unknown change; {guess}{prompt} one of\n  " + "\n  ".join(texts))
        if key == "schedule":
            orders = [(value, part)]
        else:
            job = questions[key].apply(job, value, part)
    for value, part in orders:
        job = questions["schedule"].apply(job, value, part)
    return job


def apply_schedule(job: RecordedJob, name: str) -> RecordedJob:
    """Move a recorded job to another pipeline schedule, given as NAME or NAME:CHUNKS; return the changed job."""
    name, _, text = name.partition(":")
    if text and not text.isdecimal():
        raise InputError(f"what-if schedule={name}:{text}: chunks must be a whole number, as in interleaved:2")
    chunks = int(text) if text else 2 if name in schedules_with("takes_chunks") else 1
    graphs = []
    for graph in job.graphs:
        schedule = make_schedule(name, graph.stages, count_microbatches(graph), chunks)
        graphs.append(reschedule_step(graph, schedule))
    return replace(job, graphs=tuple(graphs))


def find_job_schedule(job: RecordedJob) -> str:
    """Return the pipeline schedule of all steps, or an empty string if unknown or not the same in all steps."""
    names = set(map(identify_schedule, job.graphs))
    return names.pop() if len(names) == 1 else ""


def replace_op_seconds(job: Job, chosen: OpFilter, seconds: Callable[[StepGraph], Floats]) -> Job:
    """Return a copy of the job in which a function sets the durations (s) of the selected ops."""
    graphs = (
        replace(graph, seconds=np.where(chosen(graph)[:, None], seconds(graph), graph.seconds)) for graph in job.graphs
    )
    return replace(job, graphs=tuple(graphs))


def set_ops_to_typical_times(job: Job, chosen: OpFilter) -> Job:
    """Return a copy of the job in which each selected op takes its typical time (mean or median)."""
    return replace_op_seconds(job, chosen, job.typical_op_seconds)


def set_type_to_typical_times(job: Job, value: str, change: str) -> Job:
    """Return a copy of the job in which ops of one type take typical times; raise InputError for other types."""
    if value not in (known := job.typical_seconds_by_type):
        raise InputError(f"what-if {change!r}: the job has no ops of that type; its types are {', '.join(known)}")
    return set_ops_to_typical_times(job, make_op_filter("types", value))


def speed_up_ops(job: Job, value: str, change: str, chosen: OpFilter) -> Job:
    """Return a copy of the job in which the selected ops are N times as fast; N is given as text, as in 2 or 2x."""
    match = _FACTOR.fullmatch(value)
    if match is None or float(match[1]) <= 0:
        raise InputError(f"what-if {change!r}: the value must be a speed-up factor above 0, as in 2x")
    times = float(match[1])
    return replace_op_seconds(job, chosen, lambda graph: graph.seconds / times)


def compare_with_recorded(job: RecordedJob, question: str, changed: RecordedJob) -> ReplayAnswer:
    """Compare the replays of the recorded and the changed job; return the answer to the question."""
    before, after = (float(each.replay_step_seconds(lambda graph: graph.seconds).mean()) for each in (job, changed))
    return ReplayAnswer(question, before, after)


def _parse_index(job: RecordedJob, value: str, change: str, column: _Column) -> int:
    count = job.stages if column == "stage" else job.replicas
    if not value.strip().isdecimal() or int(value) >= count:
        raise InputError(f"what-if {change!r}: give a {column.replace('_', ' ')} from 0 to {count - 1}")
    return int(value)


def _scale_last_stage(job: RecordedJob, value: str, change: str) -> RecordedJob:
    """Scale the last stage's passes to the mean duration of the other stages' passes; keep their jitter."""
    if value != "mean" or job.stages == 1:
        raise InputError(f"what-if {change!r}: 'last-stage' must be 'mean', and the job must have several stages")
    last = make_op_filter("stage", job.stages - 1)
    factors = {}
    for optype in (FORWARD, BACKWARD):
        pools = [
            [each.seconds[make_op_filter("types", optype)(each) & (last(each) == own)].ravel() for each in job.graphs]
            for own in (False, True)
        ]
        others, own = (float(np.concatenate(pool).sum()) / max(1, sum(map(len, pool))) for pool in pools)
        if not own > 0:
            raise InputError(
                f"what-if {change!r}: {optype} takes no time on the last stage, so cannot be scaled; omit 'last-stage'"
            )
        factors[optype] = others / own

    def scaled_op_seconds(graph: StepGraph) -> Floats:
        factor = np.array([factors.get(optype, 1.0) for optype in graph.optype])
        return np.asarray(graph.seconds * factor[:, None])

    return replace_op_seconds(job, last, scaled_op_seconds)


def _set_rank_or_stage_typical(job: RecordedJob, value: str, change: str, column: _Column) -> RecordedJob:
    return set_ops_to_typical_times(job, make_op_filter(column, _parse_index(job, value, change, column)))


def _set_worker_to_typical_times(job: RecordedJob, value: str, change: str) -> RecordedJob:
    dp, comma, stage = value.partition(",")
    if not comma:
        raise InputError(f"what-if {change!r}: give a dp rank and a stage, as in worker=8,1")
    number = _parse_index(job, dp, change, "dp_rank") * job.stages + _parse_index(job, stage, change, "stage")
    return set_ops_to_typical_times(job, make_op_filter("worker", number))


QUESTIONS = {
    "last-stage": ReplayQuestion(
        "last-stage=mean: passes of the last stage scaled to the mean of the other stages (as without head and loss)",
        _scale_last_stage,
    ),
    "stage": ReplayQuestion(
        "stage=N: ops of stage N take typical times", partial(_set_rank_or_stage_typical, column="stage")
    ),
    "worker": ReplayQuestion("worker=DP,STAGE: ops of that worker take typical times", _set_worker_to_typical_times),
    "dp": ReplayQuestion(
        "dp=N: ops of all stages of dp rank N take typical times", partial(_set_rank_or_stage_typical, column="dp_rank")
    ),
    "type": ReplayQuestion("type=OPTYPE: ops of this type take typical times", set_type_to_typical_times),
    "links": ReplayQuestion(
        "links=2x: messages and collectives twice as fast", partial(speed_up_ops, chosen=communication_mask)
    ),
    "compute": ReplayQuestion(
        "compute=1.1x: all compute 1.1 times as fast",
        partial(speed_up_ops, chosen=lambda graph: ~communication_mask(graph)),
    ),
    "schedule": ReplayQuestion(
        "schedule=NAME or NAME:CHUNKS: the measured times in another schedule's order",
        lambda job, value, _: apply_schedule(job, value),
    ),
}
"""Questions by key."""
