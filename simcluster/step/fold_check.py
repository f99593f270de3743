"""Check of folding: where that is cheap, every rank is simulated and compared with its representative."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Ints, Numbers
from simcluster.base.compilation import engine_is_compiled
from simcluster.base.telling import note
from simcluster.engine.job_record import simulate_job
from simcluster.reference.record import OpTimes, Record
from simcluster.scenario.scenario import Scenario
from simcluster.step.engine_choice import count_ops
from simcluster.step.planned import FoldedStep, Planned, tabulate_step

CHECKED_OPS = 200_000
"""The most ops on all ranks for which a step is checked, in 0.3 us per op: 0.06 s at most, of the 0.9 s that
``simcluster run`` takes with nothing to simulate.  64 ranks of GPT-3 175B have 1.4 million ops and would take 0.3 s."""


def check_folding(scenario: Scenario, planned: Planned, step: FoldedStep, record: Record) -> tuple[FoldedStep, Record]:
    """Check a folded step and return it with its record; return those of all ranks if folding is wrong.

    The compiled engine simulates every rank.  Each must have the op times of its representative, to the bit.  An
    engine that is not compiled does not check: it would take 40 times as long.
    """
    communicators, classes = step.folding
    unfolded = len(communicators.stage_of) == len(classes.rank_representatives)
    large = count_ops(planned.programs, communicators.stage_of) > CHECKED_OPS
    if unfolded or large or not engine_is_compiled():
        return step, record
    whole = step._replace(folding=planned.symmetry.unfolded(len(step.cluster.link_capacity)))
    tables = tabulate_step(scenario, planned, whole)
    every = simulate_job(tables, "folding would change op times, a bug in simcluster")
    first, class_of = tables.tables.instances.op_first, np.asarray(classes.of_rank)
    ops = _representative_ops(first, class_of, classes.rank_representatives)
    if ops is not None and _equal(record.times, every.times, ops):
        return step, record
    note(f"{scenario.name}: ranks that folding takes as equal are not, a bug in simcluster; every rank is simulated")
    return whole, every


def _representative_ops(first: Numbers, class_of: Ints, representatives: tuple[int, ...]) -> Ints | None:
    """Return the representative's op for every op of all ranks; None if ranks of a class have different numbers of ops.

    Ops of rank r begin at ``first[r]``; those of representatives follow one another.
    """
    counts = np.diff(first)
    own = counts[list(representatives)]
    if not np.array_equal(own[class_of], counts):
        return None
    return np.arange(first[-1]) + np.repeat((np.cumsum(own) - own)[class_of] - first[:-1], counts)


def _equal(folded: OpTimes, every: OpTimes, ops: Ints) -> bool:
    """Return whether ops of all ranks are ready, begin and end when those of their representatives do."""
    return all(np.array_equal(one[ops], other) for one, other in zip(folded[:3], every[:3], strict=True))
