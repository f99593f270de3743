"""Closed forms of long runs that tests hold simulations and published numbers against, and laws.  Seconds and 1/s."""

from __future__ import annotations

import math

from simcluster.base.arrays import Floats
from simcluster.longrun.closed_forms import best_snapshots_per_stored
from simcluster.scenario.run_times import ExponentialTime, FixedTime


def fixed(seconds: float) -> FixedTime:
    """Return a law that always gives these seconds."""
    return FixedTime(seconds=f"{seconds!r} s")


def exponential(seconds: float) -> ExponentialTime:
    """Return an exponential law of that mean."""
    return ExponentialTime(kind="exponential", mean=f"{seconds!r} s")


def is_near(values: Floats, mean: float, slack: float = 0.0) -> bool:
    """Whether the mean of values is within 4 standard errors (and ``slack``) of what it should be."""
    return bool(abs(values.mean() - mean) < 4 * values.std(ddof=1) / math.sqrt(len(values)) + slack)


def daly_first(checkpoint: float, mu: float, recovery: float = 0.0) -> float:
    """Return Daly's first-order interval, sqrt(2 C (mu + R)) - C (2006), for C and R much below mu."""
    return math.sqrt(2 * checkpoint * (mu + recovery)) - checkpoint


def duration_without_lost_work(work: float, rate: float, recovery: float, selection: float = 0.0) -> float:
    """Return AIReSim's duration, W (1 + L r) + s (1 + L W), which is too low by the redone work.

    ``selection`` of machines takes its time at the begin and at each failure; none fails meanwhile.  Exact for that.
    """
    return work * (1 + rate * recovery) + selection * (1 + rate * work)


def batch_failures(machines: int, times: float, cured: float, rate: float, exposed: float) -> float:
    """Return the failures that a bad batch adds in ``exposed`` seconds: n (x - 1)/(x c) (1 - e^(-x c rate t)).

    Its machines fail ``times`` as often as others, which do at ``rate`` each, until a repair cures one, with
    probability ``cured`` (above 0).  Exact for exponential failures, all in the job from the begin, none retired.
    """
    return -machines * (times - 1) / (times * cured) * math.expm1(-times * cured * rate * exposed)


def two_level_optimum(
    memory: float, storage: float, memory_rate: float, storage_rate: float
) -> tuple[float, float, float]:
    """Return the best overhead of two levels of checkpoints, snapshots per one on storage, and period (s).

    Overhead sqrt(2 l1 C1) + sqrt(2 l2 C2), to first order (Benoit, Cavelan, Robert and Sun).
    """
    overhead = math.sqrt(2 * memory_rate * memory) + math.sqrt(2 * storage_rate * storage)
    cycles = best_snapshots_per_stored(memory, storage, memory_rate, storage_rate)
    return overhead, cycles, math.sqrt(2 * (cycles * memory + storage) / (memory_rate / cycles + storage_rate))


def two_level_pattern(
    work: float, cycles: int, memory: float, storage: float, memory_rate: float, storage_rate: float
) -> float:
    """Return the mean time of a pattern: ``cycles`` of work and a checkpoint in memory, the last on storage as well.

    Exact for exponential failures, and no restarts: the equations of the mean times from each checkpoint to the end.
    """
    rate = memory_rate + storage_rate
    own, again = 0.0, 0.0  # from a checkpoint on: own + again * (mean time from the begin)
    for cycle in reversed(range(cycles)):
        kept = math.exp(-rate * (work + memory + (storage if cycle == cycles - 1 else 0.0)))
        stays = 1 - (1 - kept) * memory_rate / rate
        own = ((1 - kept) / rate + kept * own) / stays
        again = (kept * again + (1 - kept) * storage_rate / rate) / stays
    return own / (1 - again)


def verified_overhead(verify: float, checkpoint: float, silent_rate: float, rate: float) -> float:
    """Return the least overhead of verified checkpoints: 2 sqrt((V + C)(ls + lf/2)).  First order."""
    return 2 * math.sqrt((verify + checkpoint) * (silent_rate + rate / 2))


def verified_segment(work: float, verify: float, checkpoint: float, silent_rate: float, rate: float) -> float:
    """Return the mean time of work, its verification and its checkpoint.  Exact for exponential failures, no restarts.

    Silent errors strike at all times, are found by the next verification, and cost all since the last checkpoint.
    """
    tried = work + verify
    ended = -math.expm1(-rate * tried) / rate
    saved = math.exp(-(silent_rate + rate) * tried)
    saving = saved * -math.expm1(-rate * checkpoint) / rate
    clean = (ended + saving) / (saved * math.exp(-rate * checkpoint))
    return clean - math.expm1(-silent_rate * checkpoint) * ended  # struck while the checkpoint before it was taken


def spares_for(share: float, rate: float, repair: float, most: int = 100_000) -> int:
    """Return the fewest spares that lack machines for less than that share of time (``shortage_share``)."""
    blocked, load = 1.0, rate * repair
    for server in range(1, most + 2):
        blocked = load * blocked / (server + load * blocked)
        if blocked < share:
            return server - 1
    return most


def largest_normal(count: int) -> float:
    """Return the mean of the largest of ``count`` standard normal numbers, by integration."""
    from scipy.integrate import quad
    from scipy.stats import norm

    def density(value: float) -> float:
        return float(value * count * norm.pdf(value) * math.exp((count - 1) * norm.logcdf(value)))

    return float(quad(density, -8 if count < 8 else -2, 9, limit=400)[0])


def renewals(count: int, mean: float, shape: float, until: float, cells: int = 2000) -> float:
    """Return the failures of ``count`` new parts with Weibull lives until then, each replaced by a new one.

    The renewal equation m(t) = F(t) + int m(t - x) dF(x), on two grids and extrapolated: to 1e-4 of the number where
    the shape is 0.5 or more and ``until`` a mean or less.
    """
    import numpy as np

    scale = mean / math.gamma(1 + 1 / shape)

    def of_one(cells: int) -> float:
        ended = -np.expm1(-((np.linspace(0, until, cells + 1) / scale) ** shape))
        each, known = np.diff(ended), np.zeros(cells + 1)
        for cell in range(1, cells + 1):
            known[cell] = ended[cell] + np.dot(known[cell - 1 :: -1], each[:cell])
        return float(known[-1])

    return count * (2 * of_one(2 * cells) - of_one(cells))


def elastic_share(replicas: int, rate: float, down: float) -> float:
    """Return the mean share of replicas that are up; each is down alone for ``down`` at a failure, at the job's rate.

    Exact for any law of ``down`` where a replica that is down does not fail (alternating renewals).
    """
    return 1 / (1 + rate / replicas * down)
