"""The closed forms beside a run's simulated shares of time: their inputs, taken from the run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simcluster.longrun import closed_forms
from simcluster.longrun.run import LongRun


@dataclass(frozen=True, slots=True)
class Interruption:
    """A mean interruption of a run: ``rate`` of stops (1/s of exposed time), ``detect``, ``ready`` (until a spare is),
    what wrong diagnoses take (``again``), and a restart's seconds in which the job can fail again (``exposed``) and in
    which it cannot (``sheltered``)."""

    rate: float
    detect: float
    ready: float
    again: float
    exposed: float
    sheltered: float

    @property
    def restart(self) -> float:
        """Seconds of its parts."""
        return self.exposed + self.sheltered

    @property
    def down(self) -> float:
        """Seconds in which the job cannot fail again."""
        return self.detect + self.ready + self.again + self.sheltered

    @property
    def whole(self) -> float:
        """From the stop until training goes on; what is lost comes on top."""
        return self.down + self.exposed


def interruption_of(run: LongRun) -> Interruption:
    """That of a run: laws at their means, causes by how often they strike, wrong diagnoses gone through again."""
    stops = [cause for cause in run.causes if cause.stops]
    rate = sum(cause.rate for cause in stops)
    detect = sum(cause.rate * cause.detect.mean for cause in stops) / rate if rate else 0.0
    seconds = [(part.exposed, _loaded(run, part.memory.mean, part.storage.mean)) for part in run.restart]
    exposed = sum(each for open_to, each in seconds if open_to)
    sheltered = sum(each for open_to, each in seconds if not open_to)
    again = (run.wrong / (1 - run.wrong) if run.wrong < 1 else math.inf) * (detect + exposed + sheltered)
    taken = Repairs.of(run)
    ready = ready_of(run, round(taken.rate * taken.repair)) * taken.rate / rate if rate else 0.0
    return Interruption(rate, detect, ready, again, exposed, sheltered)


def ready_of(run: LongRun, out: int) -> float:
    """Seconds until the spare is ready that is taken with so many machines out already."""
    spares = run.spares
    times = [
        time
        for time, count in zip(spares.ready, (spares.hot, spares.warm, spares.cold), strict=True)
        for _ in range(count)
    ]
    return times[min(out, len(times) - 1)] if times and not spares.unlimited else 0.0


@dataclass(frozen=True, slots=True)
class Repairs:
    """What takes machines away from a run: its ``rate`` (1/s of exposed time), the mean ``repair`` (s of machines), the
    numbers of the causes, and ``single``: each failure takes one node, without which Erlang's formulas do not hold."""

    rate: float
    repair: float
    causes: tuple[int, ...]
    single: bool

    @classmethod
    def of(cls, run: LongRun) -> Repairs:
        """Those of a run; rate 0 if no failure takes one."""
        known = [(n, cause, cause.repair.mean) for n, cause in enumerate(run.causes) if cause.stops and cause.repair]
        rate = sum(cause.rate for _, cause, _ in known)
        repair = sum(cause.rate * cause.machines * mean for _, cause, mean in known) / rate if rate else 0.0
        single = all(cause.machines == 1 for _, cause, _ in known)
        return cls(rate, repair, tuple(number for number, _, _ in known), single)


def short_share(run: LongRun, count: int) -> float:
    """The share of time for which a run with so many spares is short of machines: Erlang B (``closed_forms.stalled``)
    at the rate of failures over all time in which it is not, outages in which nothing strikes included."""
    stop, taken = interruption_of(run), Repairs.of(run)
    rate = taken.rate / (1 + stop.rate * stop.down)
    return closed_forms.stalled(count, rate, taken.repair, run.spares.crews) if rate else 0.0


def _loaded(run: LongRun, memory: float, storage: float) -> float:
    """A part's mean: from storage where nothing is kept in memory, else from memory."""
    return storage if run.pattern.memory is None else memory


def efficiency_of(run: LongRun) -> float:
    """The share of time that is work which is kept, by ``closed_forms``.

    Exact for stops by exponential laws and one level of checkpoints, but for what being short of machines takes
    (``short_share``), which is as if it came on top; nan with copies in memory, of which there is none.
    """
    pattern, stop = run.pattern, interruption_of(run)
    if pattern.memory is not None:
        return math.nan
    work, saving = pattern.steps * pattern.each, pattern.storage
    stall, down, exposed = saving.stall + pattern.verify, stop.down, stop.exposed
    there = 1.0 if run.spares.unlimited else 1 - short_share(run, run.spares.count)
    there *= pattern.step / pattern.each
    if not stop.rate:
        return there * work / (work + stall + saving.slowed * saving.write)
    if not saving.write:
        return there * closed_forms.efficiency(work, stall, exposed, down, stop.rate)
    recovery = math.expm1(stop.rate * exposed) / stop.rate + down * math.exp(stop.rate * exposed)
    return there * closed_forms.behind_efficiency(work, stall, saving.write, saving.slowed, 1 / stop.rate, recovery)


def two_levels_of(run: LongRun) -> float:
    """The same with copies in memory, to first order: stalls, half of what lies between two snapshots of the level that
    survives, and restarts, all of them much below the time between failures."""
    pattern, stop = run.pattern, interruption_of(run)
    memory = sum(cause.rate for cause in run.causes if cause.stops and not cause.survives)
    stalls = sum({what: s for what, s, _ in cycle}["stall"] + pattern.verify for cycle in pattern.phases)
    slowed = float(pattern.spent("write", np.array([pattern.period]))[0])
    work = pattern.steps * pattern.step
    whole = work * pattern.cycles
    lost = memory * work / 2 + (stop.rate - memory) * whole / 2
    there = 1.0 if run.spares.unlimited else 1 - short_share(run, run.spares.count)
    return there * (1 - (stalls + slowed) / whole - lost - stop.rate * stop.whole)


def left_out(run: LongRun) -> tuple[str, ...]:
    """What a run has that ``efficiency_of`` does not: why the two may differ by more than noise."""
    effects = {cause.effect for cause in run.causes}
    known = {
        "ages of parts": any(cause.lives is not None for cause in run.causes),
        "bad batches": any(cause.bad is not None for cause in run.causes),
        "slow devices": "slow" in effects,
        "pauses": "pause" in effects,
        "silent errors": "silent" in effects,
        "false alarms": "alarm" in effects,
        "machines missing, with which the job goes on": bool(run.short),
        "several machines lost at once": not run.spares.unlimited and any(each.machines > 1 for each in run.causes),
        "planned maintenance": run.maintenance is not None,
    }
    return tuple(what for what, there in known.items() if there)


def slow_cost(slower: float, hours: float, gpus: int) -> float:
    """GPU-hours that a job loses which is slower by that share for so many hours of its work: slower x hours x GPUs."""
    return slower * hours * gpus


def break_even_hours(restart: float, slower: float) -> float:
    """Hours of work after which replacing what is slow has paid for the restart (s): restart / slower."""
    return restart / slower / 3600 if slower > 0 else math.inf
