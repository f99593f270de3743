"""Questions to a profiled job: the same steps with something changed.

A question is written KEY=VALUE, several at once with + between them: ``worker=2+links=2x``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from simcluster.base.arrays import Bools
from simcluster.base.errors import InputError
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.rebuild import Profiled
from simcluster.interop.recorded.graph import HOST, StepGraph, computing, having, is_comm
from simcluster.interop.recorded.whatif import (
    ReplayAnswer,
    ReplayQuestion,
    answered,
    changed_by,
    faster,
    typical_of_type,
    typical_where,
    where,
)


def ask(job: ProfiledJob, question: str) -> ReplayAnswer:
    """The answer to one question; InputError for one that cannot be read or that this job has no answer to."""
    return answered(job, question, changed(job, question))


def changed(job: ProfiledJob, question: str) -> ProfiledJob:
    """The job with what a question changes."""
    return changed_by(job, question, {**QUESTIONS, "rank": QUESTIONS["worker"]}, "ask profiles")


def _worker(job: ProfiledJob, value: str, part: str) -> ProfiledJob:
    """All but collectives, which are no rank's own."""
    if not value.isdecimal() or int(value) not in job.ranks:
        known = ", ".join(map(str, job.ranks[:8])) + (", ..." if len(job.ranks) > 8 else "")
        raise InputError(f"what-if {part!r}: give a rank that has a profile: {known}")
    worker = job.ranks.index(int(value))
    return typical_where(job, lambda graph: np.asarray((graph.worker == worker) & ~is_comm(graph)))


def _layer(job: ProfiledJob, value: str, part: str) -> ProfiledJob:
    known = list(dict.fromkeys(label.layer for graph in job.steps_of_ranks for label in graph.labels if label.layer))
    if value not in known:
        raise InputError(f"what-if {part!r}: no op is of that layer; the profiles name {', '.join(known) or 'none'}")

    def own(graph: StepGraph) -> Bools:
        assert isinstance(graph, Profiled)
        return np.array([label.layer == value for label in graph.labels], dtype=bool) & computing(graph)

    return where(job, own, lambda graph: np.zeros_like(graph.seconds))


QUESTIONS = {
    "links": ReplayQuestion(
        "links=2x: collectives and messages twice as fast, from the last arrival on", partial(faster, chosen=is_comm)
    ),
    "compute": ReplayQuestion(
        "compute=1.1x: kernels (on a CPU: operators) 1.1 times as fast", partial(faster, chosen=computing)
    ),
    "host": ReplayQuestion("host=2x: the host launches twice as fast", partial(faster, chosen=having("types", HOST))),
    "worker": ReplayQuestion("worker=RANK: what is typical instead of what that rank took", _worker),
    "type": ReplayQuestion("type=OPTYPE: what is typical instead of what ops of this type took", typical_of_type),
    "layer": ReplayQuestion("layer=NAME: compute of this layer takes no time", _layer),
}
"""What can be asked, by key."""
