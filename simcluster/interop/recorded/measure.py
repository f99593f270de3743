"""How much a recorded job straggles, and who makes it: the what-if metrics of arXiv:2505.05713.

T is a job's replayed time, all its steps together, without delays between ops; T_ideal the same with every op taking
what is typical of its type.  S = T / T_ideal.  S of a group (an op type, a dp rank, a stage) keeps the recorded
durations of that group only; a worker's is the smaller of those of its dp rank and its stage.  M of a group is how much
of T - T_ideal goes when the group alone becomes typical; it may exceed 1, because the mean contains the group.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.interop.recorded.graph import having
from simcluster.interop.recorded.recorded import Recorded
from simcluster.interop.recorded.trace import LAUNCH

WORST = 0.03
"""The part of the workers that are looked at as the slowest (M_W of arXiv:2505.05713)."""

Worker = tuple[int, int]
"""(dp rank, stage)."""


@dataclass(frozen=True)
class StragglerCost:
    """What a group's stragglers cost: mean seconds of a step with the group typical and all else as recorded
    (``without``), and the other way about (``alone``).

    ``removed`` is M, the part of the excess over T_ideal that goes without them, ``added`` the part that they make
    alone; None where the job has no excess.
    """

    without: float
    alone: float
    removed: float | None
    added: float | None


@dataclass(frozen=True)
class Straggling:
    """The metrics of a recorded job.  ``measured``, ``replayed`` and ``ideal`` are seconds of every step; ``error`` is
    the mean of |replayed - measured| / measured, ``launch`` the sum of measured over that of replayed: the delays
    between ops that a replay leaves out."""

    steps: tuple[int, ...]
    measured: Floats
    replayed: Floats
    ideal: Floats
    slowdown: float
    launch: float
    error: float
    by_type: dict[str, float]
    by_replica: Floats
    by_stage: Floats
    worst: tuple[Worker, ...]
    worst_workers: StragglerCost
    last_stage: StragglerCost
    typical: dict[str, float]

    @property
    def by_worker(self) -> Floats:
        """S of every worker, [dp rank, stage]."""
        return np.asarray(np.minimum.outer(self.by_replica, self.by_stage))

    @property
    def by_step(self) -> Floats:
        """S of every step."""
        return self.replayed / self.ideal

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        steps = zip(self.steps, self.measured, self.replayed, self.ideal, strict=True)
        return {
            "steps": [
                {"step": step, "measured_s": float(a), "replayed_s": float(b), "ideal_s": float(c),
                 "slowdown": float(b / c)}
                for step, a, b, c in steps
            ],
            "measured_s": float(self.measured.mean()),
            "replayed_s": float(self.replayed.mean()),
            "ideal_s": float(self.ideal.mean()),
            "replay_error": self.error,
            "launch_slowdown": self.launch,
            "slowdown": self.slowdown,
            "slowdown_by_type": self.by_type,
            "slowdown_by_dp_rank": self.by_replica.tolist(),
            "slowdown_by_stage": self.by_stage.tolist(),
            "slowdown_by_worker": self.by_worker.tolist(),
            "worst_workers": {"workers": [list(worker) for worker in self.worst], **_document(self.worst_workers)},
            "last_stage": _document(self.last_stage),
            "typical_s": self.typical,
        }  # fmt: skip


def measure(job: Recorded) -> Straggling:
    """All metrics of a job: a few sweeps of many cases over all steps."""
    replayed = job.times(lambda graph: graph.seconds)
    ideal = job.times(job.typical_of)
    types = [optype for optype in job.typical if not optype.startswith(LAUNCH)]
    of_types = [having("types", optype) for optype in types]
    of_stages = [having("stage", stage) for stage in range(job.stages)]
    ratios = [_ratio(times, ideal) for times in job.keeping(*of_types, *of_stages)]
    by_type, by_stage = dict(zip(types, ratios, strict=False)), ratios[len(types) :]
    by_replica = [_ratio(times, ideal) for times in job.keeping_each_replica()]
    worst = worst_workers(np.minimum.outer(by_replica, by_stage))
    of_worst = having("worker", *(dp * job.stages + stage for dp, stage in worst))
    without_worst, worst_alone = job.keeping(lambda graph: ~of_worst(graph), of_worst)
    of_last = having("stage", job.stages - 1)
    without_last, last_alone = job.keeping(lambda graph: ~of_last(graph), of_last)
    return Straggling(
        steps=job.steps,
        measured=job.measured,
        replayed=replayed,
        ideal=ideal,
        slowdown=_ratio(replayed, ideal),
        launch=_ratio(job.measured, replayed),
        error=float(np.mean(np.abs(replayed - job.measured) / job.measured)),
        by_type=dict(sorted(by_type.items(), key=lambda entry: -entry[1])),
        by_replica=np.array(by_replica),
        by_stage=np.array(by_stage),
        worst=worst,
        worst_workers=_mitigation(without_worst, worst_alone, replayed, ideal),
        last_stage=_mitigation(without_last, last_alone, replayed, ideal),
        typical={optype: job.typical[optype] for optype in types},
    )


def worst_workers(by_worker: Floats) -> tuple[Worker, ...]:
    """The 3 % of the workers (at least one) with the highest S, worst first; of equal ones those of low numbers."""
    count = math.ceil(WORST * by_worker.size)
    order = np.argsort(-by_worker, axis=None, kind="stable")[:count]
    return tuple((int(number) // by_worker.shape[1], int(number) % by_worker.shape[1]) for number in order)


def _ratio(times: Floats, to: Floats) -> float:
    return float(times.sum() / to.sum())


def _mitigation(without: Floats, alone: Floats, replayed: Floats, ideal: Floats) -> StragglerCost:
    """Of the seconds of every step without a group's stragglers, with those alone, with all, and with none."""
    rest, own, t, best = (float(times.mean()) for times in (without, alone, replayed, ideal))
    if t - best < 1e-9 * best:
        return StragglerCost(rest, own, None, None)
    return StragglerCost(rest, own, (t - rest) / (t - best), (own - best) / (t - best))


def _document(found: StragglerCost) -> dict[str, float | None]:
    return dict(zip(("without_s", "alone_s", "excess_removed", "excess_added"), astuple(found), strict=True))
