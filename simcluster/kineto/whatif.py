"""Questions to a profiled job: the same steps with something changed.  Imports the profiled job.

A question is written KEY=VALUE, several at once with + between them: ``worker=2+links=2x``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from simcluster.errors import InputError
from simcluster.kineto.job import ProfiledJob
from simcluster.kineto.rebuild import COPY, HOST, Profiled
from simcluster.replay.graph import is_communication
from simcluster.replay.trace import Mask
from simcluster.replay.whatif import Answer

QUESTIONS = {
    "links": "links=2x: collectives and messages twice as fast, from the last arrival on",
    "compute": "compute=1.1x: kernels (on a CPU: operators) 1.1 times as fast",
    "host": "host=2x: the host launches twice as fast",
    "worker": "worker=RANK: what is typical instead of what that rank took",
    "type": "type=OPTYPE: what is typical instead of what ops of this type took",
    "layer": "layer=NAME: compute of this layer takes no time",
}
"""What can be asked, by key."""

_FACTOR = re.compile(r"([0-9]*\.?[0-9]+)x?")


def ask(job: ProfiledJob, question: str) -> Answer:
    """The answer to one question; InputError for one that cannot be read or that this job has no answer to."""
    before = job.times(lambda graph: graph.seconds)
    after = changed(job, question).times(lambda graph: graph.seconds)
    return Answer(question, float(before.mean()), float(after.mean()))


def changed(job: ProfiledJob, question: str) -> ProfiledJob:
    """The job with what a question changes."""
    for part in question.split("+"):
        key, equals, value = part.strip().partition("=")
        if key == "rank":
            key = "worker"
        if key not in QUESTIONS or not equals or not value:
            near = difflib.get_close_matches(key, QUESTIONS, n=1)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"what-if {part!r}: {guess}ask profiles one of\n  " + "\n  ".join(QUESTIONS.values()))
        job = _CHANGES[key](job, value, part)
    return job


def _is_compute(graph: Profiled) -> Mask:
    return np.array([not is_communication(kind) and kind not in (HOST, COPY) for kind in graph.optype], dtype=bool)


def _is_comm(graph: Profiled) -> Mask:
    return np.array([is_communication(kind) for kind in graph.optype], dtype=bool)


def _is_host(graph: Profiled) -> Mask:
    return np.array([kind == HOST for kind in graph.optype], dtype=bool)


def _faster(job: ProfiledJob, value: str, part: str, chosen: Callable[[Profiled], Mask]) -> ProfiledJob:
    match = _FACTOR.fullmatch(value)
    if match is None or float(match[1]) <= 0:
        raise InputError(f"what-if {part!r}: give how many times as fast, as in 2x")
    factor = float(match[1])
    graphs = [
        replace(graph, seconds=np.where(chosen(graph)[:, None], graph.seconds / factor, graph.seconds))
        for graph in job.steps_of_ranks
    ]
    return replace(job, graphs=tuple(graphs))


def _links(job: ProfiledJob, value: str, part: str) -> ProfiledJob:
    return _faster(job, value, part, _is_comm)


def _compute(job: ProfiledJob, value: str, part: str) -> ProfiledJob:
    return _faster(job, value, part, _is_compute)


def _host(job: ProfiledJob, value: str, part: str) -> ProfiledJob:
    return _faster(job, value, part, _is_host)


def _typical(job: ProfiledJob, chosen: Callable[[Profiled], Mask]) -> ProfiledJob:
    graphs = [
        replace(graph, seconds=np.where(chosen(graph)[:, None], job.typical_of(graph), graph.seconds))
        for graph in job.steps_of_ranks
    ]
    return replace(job, graphs=tuple(graphs))


def _worker(job: ProfiledJob, value: str, part: str) -> ProfiledJob:
    """All but collectives, which are no rank's own."""
    if not value.isdecimal() or int(value) not in job.ranks:
        known = ", ".join(map(str, job.ranks[:8])) + (", ..." if len(job.ranks) > 8 else "")
        raise InputError(f"what-if {part!r}: give a rank that has a profile: {known}")
    worker = job.ranks.index(int(value))
    return _typical(job, lambda graph: np.asarray((graph.worker == worker) & ~_is_comm(graph)))


def _type(job: ProfiledJob, value: str, part: str) -> ProfiledJob:
    if value not in job.typical:
        raise InputError(f"what-if {part!r}: the job has no ops of that type; it has {', '.join(job.typical)}")
    return _typical(job, lambda graph: np.asarray(np.array(graph.types) == value))


def _layer(job: ProfiledJob, value: str, part: str) -> ProfiledJob:
    known = list(dict.fromkeys(label.layer for graph in job.steps_of_ranks for label in graph.labels if label.layer))
    if value not in known:
        raise InputError(f"what-if {part!r}: no op is of that layer; the profiles name {', '.join(known) or 'none'}")
    graphs = []
    for graph in job.steps_of_ranks:
        own = np.array([label.layer == value for label in graph.labels], dtype=bool) & _is_compute(graph)
        graphs.append(replace(graph, seconds=np.where(own[:, None], 0.0, graph.seconds)))
    return replace(job, graphs=tuple(graphs))


_CHANGES: dict[str, Callable[[ProfiledJob, str, str], ProfiledJob]] = {
    "links": _links,
    "compute": _compute,
    "host": _host,
    "worker": _worker,
    "type": _type,
    "layer": _layer,
}
