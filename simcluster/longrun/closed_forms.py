"""Closed-form formulas for long runs: best checkpoint interval, efficiency, and shortage of spare nodes.

Each states when it is valid. Times are in seconds, rates in 1/s. C: a checkpoint that stops training; mu = 1/rate: mean
time between failures of the job; R: a recovery in which it may fail again; D: a downtime in which it cannot; work (w):
seconds of training between two checkpoints. Asynchronous checkpoints stop training for S, then are written for B
seconds, in which training is slower by the share x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_LARGEST = 709.0  # largest exponent whose power of e is a float


def exp_or_inf(exponent: float) -> float:
    """Return e to the exponent, or infinity if that overflows."""
    return math.exp(exponent) if exponent < _LARGEST else math.inf


def expm1_or_inf(exponent: float) -> float:
    """Return e to the exponent minus 1, exact for small exponents; infinity if that overflows."""
    return math.expm1(exponent) if exponent < _LARGEST else math.inf


@dataclass(frozen=True, slots=True)
class SegmentMoments:
    """Mean (s) and variance (s^2) of the time to finish a work segment, and its expected number of failures."""

    mean: float
    variance: float
    failures: float


def young_interval(checkpoint: float, mu: float) -> float:
    """Return Young's (1974) best checkpoint interval (s), valid if a checkpoint takes far less than the MTBF ``mu``."""
    return math.sqrt(2 * checkpoint * mu)


def daly_interval(checkpoint: float, mu: float) -> float:
    """Return Daly's (2006, eq. 37) best checkpoint interval (s); the MTBF ``mu`` if a checkpoint takes 2 mu or more."""
    if checkpoint >= 2 * mu:
        return mu
    half = checkpoint / (2 * mu)
    return math.sqrt(2 * checkpoint * mu) * (1 + math.sqrt(half) / 3 + half / 9) - checkpoint


def best_interval(checkpoint: float, mu: float) -> float:
    """Return the exact best checkpoint interval (s) for exponentially distributed failures with MTBF ``mu``.

    mu (1 + W0(-exp(-C/mu - 1))); neither R nor D matters. Near the branch point of W, where C/mu is lost next to 1, W's
    series is used.
    """
    from scipy.special import lambertw

    if checkpoint < 1e-6 * mu:
        p = math.sqrt(-2 * math.expm1(-checkpoint / mu))
        return mu * (p - p**2 / 3 + 11 * p**3 / 72)
    return mu * (1 + float(lambertw(-math.exp(-checkpoint / mu - 1)).real))


def mean_segment_time(work: float, checkpoint: float, recovery: float, down: float, rate: float) -> float:
    """Return the mean time (s) to finish ``work`` s of work and a checkpoint, with exponential failures."""
    return (1 / rate + down) * exp_or_inf(rate * recovery) * expm1_or_inf(rate * (work + checkpoint))


def kept_share(work: float, checkpoint: float, recovery: float, down: float, rate: float) -> float:
    """Return the share of time spent on work that no failure undoes; exact for exponential failures."""
    if not rate:
        return work / (work + checkpoint)
    return work / mean_segment_time(work, checkpoint, recovery, down, rate)


def first_order_efficiency(work: float, checkpoint: float, restart: float, mu: float) -> float:
    """Return the first-order share of kept work in all time: 1 - checkpoint/work - (work/2 + restart)/mu."""
    return 1 - checkpoint / work - (work / 2 + restart) / mu


def _time_to_failure(length: float, rate: float) -> tuple[float, float]:
    """Return mean and variance (s, s^2) of the time to a failure that occurs within ``length`` s."""
    kept, failed = math.exp(-rate * length), -math.expm1(-rate * length)
    mean = 1 / rate - length * kept / failed
    return mean, 2 / rate**2 - kept * (length**2 + 2 * length / rate) / failed - mean**2


def _time_until_success(length: float, failure_cost: tuple[float, float], rate: float) -> SegmentMoments:
    """Return the moments of the time until ``length`` s pass without a failure, given the cost of each failure."""
    kept = math.exp(-rate * length)
    times, spread = (1 - kept) / kept, (1 - kept) / kept**2
    mean, variance = _time_to_failure(length, rate)
    mean, variance = mean + failure_cost[0], variance + failure_cost[1]
    return SegmentMoments(length + times * mean, times * variance + spread * mean**2, times)


def segment_moments(work: float, checkpoint: float, recovery: float, down: float, rate: float) -> SegmentMoments:
    """Return the moments of the time for a work segment and its checkpoint, exact for exponential failures."""
    again = _time_until_success(recovery, (down, 0.0), rate) if recovery else SegmentMoments(0.0, 0.0, 0.0)
    whole = _time_until_success(work + checkpoint, (down + again.mean, again.variance), rate)
    return SegmentMoments(whole.mean, whole.variance, whole.failures * (1 + again.failures))


def meta_ettr(rate: float, restart: float, interval: float) -> float:
    """Return the effective training time ratio by Meta's formula (arXiv:2410.21680); negative where it is invalid."""
    return 1 - rate * (restart + interval / 2)


def best_snapshots_per_stored(memory: float, storage: float, memory_rate: float, storage_rate: float) -> float:
    """Return the best number of snapshots in memory for each on storage, to first order.

    Failures at ``memory_rate`` are survived by copies in memory, those at ``storage_rate`` only by storage (Benoit,
    Cavelan, Robert and Sun).
    """
    return math.sqrt(memory_rate / storage_rate * storage / memory)


def async_interval(stall: float, write: float, slowed: float, mu: float) -> float:
    """Return the first-order best interval (s) of asynchronous checkpoints, at least the time of a ``write``."""
    return max(write, math.sqrt(2 * (stall + slowed * write) * mu))


def async_efficiency(work: float, stall: float, write: float, slowed: float, mu: float, restart: float) -> float:
    """Return the share of kept work in all time, async checkpoints; exact if restarts never fail and work >= write."""
    exponent = (work + stall + slowed * write) / mu
    return work * math.exp(-exponent - write / mu) / (-math.expm1(-exponent) * (mu + restart))


def kept_work_share(
    work: float, stall: float, write: float, slowed: float, recovery: float, down: float, rate: float
) -> float:
    """Return the share of time spent on work that no failure undoes; ``write`` = 0 means blocking checkpoints."""
    if not rate:
        return work / (work + stall + slowed * write)
    if not write:
        return kept_share(work, stall, recovery, down, rate)
    outage = (down and down * exp_or_inf(rate * recovery)) + expm1_or_inf(rate * recovery) / rate
    return async_efficiency(work, stall, write, slowed, 1 / rate, outage)


def async_lost_share(work: float, stall: float, write: float, slowed: float, mu: float, restart: float) -> float:
    """Return the first-order share of time lost to async checkpoints, restarts and redone work."""
    return (stall + slowed * write) / work + (restart + work / 2 + write) / mu


def verified_interval(verify: float, checkpoint: float, silent_rate: float, rate: float) -> float:
    """Return the best interval (s) between checkpoints if each is verified before it is written."""
    return math.sqrt((verify + checkpoint) / (silent_rate + rate / 2))


def erlang_b(servers: int, load: float) -> float:
    """Return the share of time in which all servers are busy (Erlang 1917); the service time distribution is free."""
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = load * blocked / (server + load * blocked)
    return blocked


def shortage_share(spares: int, rate: float, repair: float, crews: int | None = None) -> float:
    """Return the share of time in which more nodes are in repair than a job has spares.

    The job and its failures stop meanwhile. ``rate`` is that of the whole job, ``repair`` the mean (s). Exact with
    unlimited crews (Erlang B with one server more than spares) for any law, with fewer for exponential ones (a
    birth-death chain).
    """
    if crews is None:
        return erlang_b(spares + 1, rate * repair)
    weights = [1.0]
    for out in range(spares + 1):
        weights.append(weights[-1] * rate * repair / min(out + 1, crews))
    return weights[-1] / sum(weights)


def shortage_probability(spares: int, load: float) -> float:
    """Return the probability of more than ``spares`` failures, Poisson-distributed with mean ``load``, no repair."""
    from scipy.stats import poisson

    return float(poisson.sf(spares, load))


def poisson_interval(count: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact (Garwood) confidence interval of the mean of a Poisson count."""
    from scipy.stats import chi2

    tail = (1 - level) / 2
    low = float(chi2.ppf(tail, 2 * count)) / 2 if count else 0.0
    return low, float(chi2.ppf(1 - tail, 2 * (count + 1))) / 2
