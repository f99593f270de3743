"""What is known of a run without playing it: closed forms, each with what it holds for.  Seconds and 1/s throughout.

C: a checkpoint that stops training; mu = 1/rate: mean time between failures of the job; R: a recovery in which it may
fail again; D: a downtime in which it cannot; work: seconds of training between two checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.longrun.growth import gained, grown


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of a time (s, s^2), and the failures expected in it."""

    mean: float
    variance: float
    failures: float


def young(checkpoint: float, mu: float) -> float:
    """Work between two checkpoints that loses least, to first order; for C much below mu.  Young 1974."""
    return math.sqrt(2 * checkpoint * mu)


def daly_first(checkpoint: float, mu: float, recovery: float = 0.0) -> float:
    """sqrt(2 C (mu + R)) - C.  Daly 2006, first order: for C and R much below mu."""
    return math.sqrt(2 * checkpoint * (mu + recovery)) - checkpoint


def daly(checkpoint: float, mu: float) -> float:
    """The higher order of Daly 2006 (eq. 37), for C < 2 mu; mu beyond."""
    if checkpoint >= 2 * mu:
        return mu
    half = checkpoint / (2 * mu)
    return math.sqrt(2 * checkpoint * mu) * (1 + math.sqrt(half) / 3 + half / 9) - checkpoint


def best_interval(checkpoint: float, mu: float) -> float:
    """The exact optimum for exponential failures: mu (1 + W0(-exp(-C/mu - 1))); neither R nor D matters.

    Near the branch point of W, where C/mu is lost beside 1, by W's series there.
    """
    from scipy.special import lambertw

    if checkpoint < 1e-6 * mu:
        p = math.sqrt(-2 * math.expm1(-checkpoint / mu))
        return mu * (p - p**2 / 3 + 11 * p**3 / 72)
    return mu * (1 + float(lambertw(-math.exp(-checkpoint / mu - 1)).real))


def segment(work: float, checkpoint: float, recovery: float, down: float, rate: float) -> float:
    """Mean time of work and its checkpoint: (mu + D) e^(rate R) (e^(rate (w + C)) - 1).  Exact, exponential."""
    return (1 / rate + down) * grown(rate * recovery) * gained(rate * (work + checkpoint))


def efficiency(work: float, checkpoint: float, recovery: float, down: float, rate: float) -> float:
    """The share of time that is work which is kept.  Exact for exponential failures."""
    if not rate:
        return work / (work + checkpoint)
    return work / segment(work, checkpoint, recovery, down, rate)


def first_order_efficiency(work: float, checkpoint: float, restart: float, mu: float) -> float:
    """1 - C/w - (w/2 + R + D)/mu: for all of them much below mu."""
    return 1 - checkpoint / work - (work / 2 + restart) / mu


def restart_for(share: float, checkpoint: float, mu: float) -> float:
    """The downtime with which the best interval gives that efficiency.  Exact, exponential, none fails in it.

    InputError if the share is not reached without any.
    """
    work = best_interval(checkpoint, mu)
    kept = efficiency(work, checkpoint, 0.0, 0.0, 1 / mu)
    if not 0 < share <= kept:
        raise InputError(
            f"an efficiency of {share:.4g} is out of reach: {kept:.4g} is what checkpoints of {checkpoint:.4g} s and a "
            f"failure every {mu:.4g} s leave without any restart"
        )
    return mu * (kept / share - 1)


def goodput_without_lost_work(work: float, checkpoint: float, restart: float, mu: float) -> float:
    """1 - C/w - R/mu, as MLSysIM has it: a peer's formula, too high by the w / (2 mu) that failures throw away."""
    return 1 - checkpoint / work - restart / mu


def duration_without_lost_work(work: float, rate: float, recovery: float, selection: float = 0.0) -> float:
    """W (1 + L r) + s (1 + L W), as AIReSim has it: a peer's formula, too low by all work that is done twice.

    ``selection`` of machines takes its time at the begin and at each failure; none fails meanwhile.  Exact for that.
    """
    return work * (1 + rate * recovery) + selection * (1 + rate * work)


def batch_failures(machines: int, times: float, cured: float, rate: float, exposed: float) -> float:
    """Failures that a bad batch adds in so many exposed seconds: n (x - 1)/(x c) (1 - e^(-x c rate t)).

    Its machines fail ``times`` as often as others, which do at ``rate`` each, until a repair cures one, with
    probability ``cured`` (above 0).  Exact for exponential failures, all in the job from the begin, none retired.
    """
    return -machines * (times - 1) / (times * cured) * math.expm1(-times * cured * rate * exposed)


def _lost(length: float, rate: float) -> tuple[float, float]:
    """Mean and variance of the time to a failure, given that it comes within the length."""
    kept, failed = math.exp(-rate * length), -math.expm1(-rate * length)
    mean = 1 / rate - length * kept / failed
    return mean, 2 / rate**2 - kept * (length**2 + 2 * length / rate) / failed - mean**2


def _until(length: float, extra: tuple[float, float], rate: float) -> Moments:
    """Until a length without a failure: each costs what was lost and something extra (mean, variance), then anew."""
    kept = math.exp(-rate * length)
    times, spread = (1 - kept) / kept, (1 - kept) / kept**2
    mean, variance = _lost(length, rate)
    mean, variance = mean + extra[0], variance + extra[1]
    return Moments(length + times * mean, times * variance + spread * mean**2, times)


def segment_moments(work: float, checkpoint: float, recovery: float, down: float, rate: float) -> Moments:
    """Mean, variance and failures of a segment, those in recoveries included.  Exact for exponential failures.

    Of a run of K segments all three are K times as much.
    """
    again = _until(recovery, (down, 0.0), rate) if recovery else Moments(0.0, 0.0, 0.0)
    whole = _until(work + checkpoint, (down + again.mean, again.variance), rate)
    return Moments(whole.mean, whole.variance, whole.failures * (1 + again.failures))


def ettr(rate: float, restart: float, interval: float, queue: float = 0.0, runtime: float = math.inf) -> float:
    """Meta's effective training time ratio (arXiv:2410.21680), to first order in rate (restart + interval / 2).

    ``queue`` is the wait before each start, ``runtime`` that of the whole job, which pays for the first start as well.
    Negative where it does not hold any more.
    """
    kept = 1 - rate * (restart + interval / 2)
    return kept / ((1 + restart / runtime) * (1 + rate * queue) + queue / runtime * kept)


def interval_for(share: float, rate: float, restart: float) -> float:
    """The interval of free checkpoints that leaves a job that ETTR: 2 ((1 - E)/rate - u0).  First order.

    Not above 0: not to be had at that rate and restart.
    """
    return 2 * ((1 - share) / rate - restart)


@dataclass(frozen=True, slots=True)
class TwoLevels:
    """Checkpoints in memory and on storage: overhead (share), memory ones for each on storage, seconds of a pattern."""

    overhead: float
    cycles: float
    pattern: float


def two_levels(memory: float, storage: float, memory_rate: float, storage_rate: float) -> TwoLevels:
    """The best pattern where failures at ``memory_rate`` are survived by copies in memory, at ``storage_rate`` not.

    First order (Benoit, Cavelan, Robert and Sun): overhead sqrt(2 l1 C1) + sqrt(2 l2 C2).
    """
    overhead = math.sqrt(2 * memory_rate * memory) + math.sqrt(2 * storage_rate * storage)
    cycles = math.sqrt(memory_rate / storage_rate * storage / memory)
    pattern = math.sqrt(2 * (cycles * memory + storage) / (memory_rate / cycles + storage_rate))
    return TwoLevels(overhead, cycles, pattern)


def two_level_pattern(
    work: float, cycles: int, memory: float, storage: float, memory_rate: float, storage_rate: float
) -> float:
    """Mean time of a pattern: so often work and a checkpoint in memory, the last of them on storage as well.

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


def behind_interval(stall: float, write: float, slowed: float, mu: float) -> float:
    """The best interval of checkpoints written behind training: max(B, sqrt(2 (S + x B) mu)).  First order."""
    return max(write, math.sqrt(2 * (stall + slowed * write) * mu))


def behind_efficiency(work: float, stall: float, write: float, slowed: float, mu: float, restart: float) -> float:
    """The share of work that is kept with them.  Exact for exponential failures, none in restarts, w >= B."""
    exponent = (work + stall + slowed * write) / mu
    return work * math.exp(-exponent - write / mu) / (-math.expm1(-exponent) * (mu + restart))


def behind_waste(work: float, stall: float, write: float, slowed: float, mu: float, restart: float) -> float:
    """The share lost with them, to first order: (S + x B)/w + (U + w/2 + B)/mu."""
    return (stall + slowed * write) / work + (restart + work / 2 + write) / mu


def verified_interval(verify: float, checkpoint: float, silent_rate: float, rate: float) -> float:
    """The best interval where a verification precedes each checkpoint: sqrt((V + C)/(ls + lf/2)).  First order.

    What is silent loses the whole segment, hence no half.
    """
    return math.sqrt((verify + checkpoint) / (silent_rate + rate / 2))


def verified_overhead(verify: float, checkpoint: float, silent_rate: float, rate: float) -> float:
    """What it costs at best: 2 sqrt((V + C)(ls + lf/2)).  First order."""
    return 2 * math.sqrt((verify + checkpoint) * (silent_rate + rate / 2))


def verified_segment(work: float, verify: float, checkpoint: float, silent_rate: float, rate: float) -> float:
    """Mean time of work, its verification and its checkpoint.  Exact for exponential failures, and no restarts.

    What is silent strikes all the time, is found by the next verification, and costs all since the last checkpoint.
    """
    tried = work + verify
    ended = -math.expm1(-rate * tried) / rate
    saved = math.exp(-(silent_rate + rate) * tried)
    saving = saved * -math.expm1(-rate * checkpoint) / rate
    clean = (ended + saving) / (saved * math.exp(-rate * checkpoint))
    return clean - math.expm1(-silent_rate * checkpoint) * ended  # struck while the checkpoint before it was taken


def erlang_b(servers: int, load: float) -> float:
    """The share of time in which all servers are busy; insensitive to the law of service.  Erlang 1917."""
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = load * blocked / (server + load * blocked)
    return blocked


def stalled(spares: int, rate: float, repair: float, crews: int | None = None) -> float:
    """The share of time for which a job is short of machines, which stops it and its failures.

    ``rate`` is that of the whole job, ``repair`` the mean.  Exact with as many crews as it takes (Erlang B with one
    server more than spares) for any law, with fewer for exponential ones (a birth-death chain).
    """
    if crews is None:
        return erlang_b(spares + 1, rate * repair)
    weights = [1.0]
    for out in range(spares + 1):
        weights.append(weights[-1] * rate * repair / min(out + 1, crews))
    return weights[-1] / sum(weights)


def spares_for(share: float, rate: float, repair: float, most: int = 100_000) -> int:
    """The fewest spares with which the job is short of machines for less than that share of time.  As ``stalled``."""
    blocked, load = 1.0, rate * repair
    for server in range(1, most + 2):
        blocked = load * blocked / (server + load * blocked)
        if blocked < share:
            return server - 1
    return most


def none_left(spares: int, load: float) -> float:
    """The probability of more failures than spares, of a Poisson number with that mean: no repair in the meantime."""
    from scipy.stats import poisson

    return float(poisson.sf(spares, load))


def poisson_interval(count: int, level: float = 0.95) -> tuple[float, float]:
    """The means with which so many events are not unlikely: the exact (Garwood) interval."""
    from scipy.stats import chi2

    tail = (1 - level) / 2
    low = float(chi2.ppf(tail, 2 * count)) / 2 if count else 0.0
    return low, float(chi2.ppf(1 - tail, 2 * (count + 1))) / 2


def largest_normal(count: int) -> float:
    """The mean of the largest of so many standard normal numbers: what one barrier makes of jitter.  Integrated."""
    from scipy.integrate import quad
    from scipy.stats import norm

    def density(value: float) -> float:
        return float(value * count * norm.pdf(value) * math.exp((count - 1) * norm.logcdf(value)))

    return float(quad(density, -8 if count < 8 else -2, 9, limit=400)[0])


def first_end(count: int, mean: float, shape: float) -> float:
    """When the first of so many new parts ends, lives being Weibull: mean N^(-1/k).  Exact."""
    return float(mean * count ** (-1 / shape))


def renewal_error(count: int, shape: float) -> float:
    """By what factor too often it fails who renews all parts at each failure: N^(1/k - 1).  Exact for old parts."""
    return float(count ** (1 / shape - 1))


def renewals(count: int, mean: float, shape: float, until: float, cells: int = 2000) -> float:
    """Failures of so many new parts until then, lives being Weibull and each replaced by a new one.

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


def hazard_ratio(age: float, other: float, shape: float) -> float:
    """How many times as often a part of one age fails as one of the other, lives being Weibull.  Exact."""
    return float((age / other) ** (shape - 1))


def some_of(share: float, count: int) -> float:
    """The probability that at least one of so many is hit, each by itself with probability ``share``.  Exact."""
    return -math.expm1(count * math.log1p(-share))


def pays_back(restart: float, slower: float) -> float:
    """After how long a restart has paid that rids a job of a share by which it was slower; restart / slower.  Exact."""
    return restart / slower


def worth_waiting(replicas: int, down: float) -> float:
    """How long all may wait for a spare before it is cheaper to go on with one replica fewer for ``down``: T / g.

    Where a step of fewer takes as long as one of all, and neither way costs a restart more than the other.
    """
    return down / replicas


def elastic_share(replicas: int, rate: float, down: float) -> float:
    """The mean share of replicas that are up, each down by itself for ``down`` at a failure; rate of the whole job.

    Exact for any law of ``down`` where a replica that is down does not fail (alternating renewals).
    """
    return 1 / (1 + rate / replicas * down)
