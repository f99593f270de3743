"""Closed forms for long runs, each with its validity. Times are in seconds, rates in 1/s.

C: a checkpoint that stops training; mu = 1/rate: mean time between failures of the job; R: a recovery in which it may
fail again; D: a downtime in which it cannot; work: seconds of training between two checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_LARGEST = 709.0  # largest exponent whose power of e is a float


def exp_or_inf(exponent: float) -> float:
    """Return e to the exponent; infinite on overflow, for a segment so long that it never succeeds."""
    return math.exp(exponent) if exponent < _LARGEST else math.inf


def expm1_or_inf(exponent: float) -> float:
    """Return e to the exponent minus 1, exact for small exponents."""
    return math.expm1(exponent) if exponent < _LARGEST else math.inf


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of a time (s, s^2), and the expected number of failures during it."""

    mean: float
    variance: float
    failures: float


def young(checkpoint: float, mu: float) -> float:
    """Return the work between checkpoints (s) of least loss, to first order (Young 1974); for C much below mu."""
    return math.sqrt(2 * checkpoint * mu)


def daly(checkpoint: float, mu: float) -> float:
    """Return the work between checkpoints (s) by Daly's higher order (2006, eq. 37), for C < 2 mu; mu beyond."""
    if checkpoint >= 2 * mu:
        return mu
    half = checkpoint / (2 * mu)
    return math.sqrt(2 * checkpoint * mu) * (1 + math.sqrt(half) / 3 + half / 9) - checkpoint


def best_interval(checkpoint: float, mu: float) -> float:
    """Return the exact best work between checkpoints (s) for exponential failures.

    mu (1 + W0(-exp(-C/mu - 1))); neither R nor D matters. Near the branch point of W, where C/mu is lost next to 1, W's
    series is used.
    """
    from scipy.special import lambertw

    if checkpoint < 1e-6 * mu:
        p = math.sqrt(-2 * math.expm1(-checkpoint / mu))
        return mu * (p - p**2 / 3 + 11 * p**3 / 72)
    return mu * (1 + float(lambertw(-math.exp(-checkpoint / mu - 1)).real))


def segment_time(work: float, checkpoint: float, recovery: float, down: float, rate: float) -> float:
    """Return the mean time (s) of a segment: (mu + D) e^(rate R) (e^(rate (w + C)) - 1). Exact, exponential."""
    return (1 / rate + down) * exp_or_inf(rate * recovery) * expm1_or_inf(rate * (work + checkpoint))


def efficiency(work: float, checkpoint: float, recovery: float, down: float, rate: float) -> float:
    """Return the share of time that is kept work. Exact for exponential failures."""
    if not rate:
        return work / (work + checkpoint)
    return work / segment_time(work, checkpoint, recovery, down, rate)


def first_order_efficiency(work: float, checkpoint: float, restart: float, mu: float) -> float:
    """Return the share of kept work to first order: 1 - C/w - (w/2 + R + D)/mu, for all much below mu."""
    return 1 - checkpoint / work - (work / 2 + restart) / mu


def _lost(length: float, rate: float) -> tuple[float, float]:
    """Return mean and variance of the time to a failure, given that it occurs within ``length``."""
    kept, failed = math.exp(-rate * length), -math.expm1(-rate * length)
    mean = 1 / rate - length * kept / failed
    return mean, 2 / rate**2 - kept * (length**2 + 2 * length / rate) / failed - mean**2


def _until(length: float, extra: tuple[float, float], rate: float) -> Moments:
    """Return the time until ``length`` passes without a failure; each costs what was lost and ``extra``."""
    kept = math.exp(-rate * length)
    times, spread = (1 - kept) / kept, (1 - kept) / kept**2
    mean, variance = _lost(length, rate)
    mean, variance = mean + extra[0], variance + extra[1]
    return Moments(length + times * mean, times * variance + spread * mean**2, times)


def segment_moments(work: float, checkpoint: float, recovery: float, down: float, rate: float) -> Moments:
    """Return mean, variance and failures of a segment and its recoveries. Exact for exponential failures."""
    again = _until(recovery, (down, 0.0), rate) if recovery else Moments(0.0, 0.0, 0.0)
    whole = _until(work + checkpoint, (down + again.mean, again.variance), rate)
    return Moments(whole.mean, whole.variance, whole.failures * (1 + again.failures))


def ettr(rate: float, restart: float, interval: float) -> float:
    """Return Meta's effective training time ratio (arXiv:2410.21680), to first order; negative if it fails."""
    return 1 - rate * (restart + interval / 2)


@dataclass(frozen=True, slots=True)
class TwoLevels:
    """Checkpoint pattern: overhead (share), copies in memory for each one on storage, and period (s)."""

    overhead: float
    cycles: float
    pattern: float


def two_levels(memory: float, storage: float, memory_rate: float, storage_rate: float) -> TwoLevels:
    """Return the best pattern of checkpoints in memory and on storage.

    Failures at ``memory_rate`` are survived by copies in memory, those at ``storage_rate`` only by storage. First order
    (Benoit, Cavelan, Robert and Sun): overhead sqrt(2 l1 C1) + sqrt(2 l2 C2).
    """
    overhead = math.sqrt(2 * memory_rate * memory) + math.sqrt(2 * storage_rate * storage)
    cycles = math.sqrt(memory_rate / storage_rate * storage / memory)
    pattern = math.sqrt(2 * (cycles * memory + storage) / (memory_rate / cycles + storage_rate))
    return TwoLevels(overhead, cycles, pattern)


def async_interval(stall: float, write: float, slowed: float, mu: float) -> float:
    """Return the best interval (s) of asynchronous checkpoints, to first order: max(B, sqrt(2 (S + x B) mu))."""
    return max(write, math.sqrt(2 * (stall + slowed * write) * mu))


def async_efficiency(work: float, stall: float, write: float, slowed: float, mu: float, restart: float) -> float:
    """Return the share of kept work with asynchronous checkpoints. Exact without failures in restarts, w >= B."""
    exponent = (work + stall + slowed * write) / mu
    return work * math.exp(-exponent - write / mu) / (-math.expm1(-exponent) * (mu + restart))


def kept_work_share(
    work: float, stall: float, write: float, slowed: float, recovery: float, down: float, rate: float
) -> float:
    """Return the share of kept work; ``write`` 0 is blocking. Exact for exponential failures."""
    if not rate:
        return work / (work + stall + slowed * write)
    if not write:
        return efficiency(work, stall, recovery, down, rate)
    outage = (down and down * exp_or_inf(rate * recovery)) + expm1_or_inf(rate * recovery) / rate
    return async_efficiency(work, stall, write, slowed, 1 / rate, outage)


def async_waste(work: float, stall: float, write: float, slowed: float, mu: float, restart: float) -> float:
    """Return the share lost with asynchronous checkpoints, to first order: (S + x B)/w + (U + w/2 + B)/mu."""
    return (stall + slowed * write) / work + (restart + work / 2 + write) / mu


def verified_interval(verify: float, checkpoint: float, silent_rate: float, rate: float) -> float:
    """Return the best interval (s) if a verification precedes each checkpoint: sqrt((V + C)/(ls + lf/2))."""
    return math.sqrt((verify + checkpoint) / (silent_rate + rate / 2))


def erlang_b(servers: int, load: float) -> float:
    """Return the share of time in which all servers are busy, for any service law (Erlang 1917)."""
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = load * blocked / (server + load * blocked)
    return blocked


def shortage_share(spares: int, rate: float, repair: float, crews: int | None = None) -> float:
    """Return the share of time in which a job is short of nodes, which stops it and its failures.

    ``rate`` is that of the whole job, ``repair`` the mean. Exact with unlimited crews (Erlang B with one server more
    than spares) for any law, with fewer for exponential ones (a birth-death chain).
    """
    if crews is None:
        return erlang_b(spares + 1, rate * repair)
    weights = [1.0]
    for out in range(spares + 1):
        weights.append(weights[-1] * rate * repair / min(out + 1, crews))
    return weights[-1] / sum(weights)


def none_left(spares: int, load: float) -> float:
    """Return the probability of more failures than spares, for a Poisson count of mean ``load`` without repair."""
    from scipy.stats import poisson

    return float(poisson.sf(spares, load))


def poisson_interval(count: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact (Garwood) interval of the mean of a Poisson count."""
    from scipy.stats import chi2

    tail = (1 - level) / 2
    low = float(chi2.ppf(tail, 2 * count)) / 2 if count else 0.0
    return low, float(chi2.ppf(1 - tail, 2 * (count + 1))) / 2
