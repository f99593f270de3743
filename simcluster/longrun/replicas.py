"""Many runs of a run at once, in arrays: an accelerator of ``events``, which it equals run by run.

Every pass takes each run to the next thing that happens to it, over as many steps and checkpoints as lie before that;
an outage is one pass, however many parts it has.
"""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.longrun.run import FATES, LongRun
from simcluster.longrun.each import LawOfEach, Laws
from simcluster.longrun.hazards import Hazards
from simcluster.longrun.outcome import MAINTENANCE, REGROWTH, Outcomes, names_of
from simcluster.longrun.pattern import MEMORY, STORAGE
from simcluster.longrun.pool import Pool
from simcluster.longrun.streams import CounterStreams
from simcluster.longrun.times import TimeSpec

_TOGETHER = 2500
_FATE = {name: number for number, name in enumerate(FATES)}


def play_replicas(run: LongRun, seed: int, count: int, first: int = 0) -> Outcomes:
    """The runs ``first`` to ``first + count`` of a seed."""
    done: Outcomes | None = None
    for begin in range(first, first + count, _TOGETHER):
        runs = _Runs(run, CounterStreams(seed, begin, min(_TOGETHER, first + count - begin)))
        runs.play()
        done = runs.outcomes() if done is None else done.joined(runs.outcomes())
    assert done is not None
    return done


class _Runs:
    """The state of runs: ``now`` wall seconds, ``at`` on the nominal clock, ``held[level]`` where they would go back to."""

    def __init__(self, run: LongRun, streams: CounterStreams) -> None:
        count = streams.count
        self.run, self.streams = run, streams
        self.names = names_of(run)
        self.hazards = Hazards(run.causes, run.machines, streams)
        self.pool = Pool(run.spares, count)
        self.now, self.at = np.zeros(count), np.zeros(count)
        self.held = np.zeros((2, count))
        self.alive: Bools = np.ones(count, dtype=bool)
        self.fates = np.zeros((count, len(FATES), len(self.names)))
        self.parts = np.zeros((count, len(run.restart)))
        self.strikes = np.zeros((count, len(self.names)), dtype=np.int64)
        self.outages = np.zeros((count, len(self.names)), dtype=np.int64)
        self.end_at, self.goal_at = run.end_at, run.goal_at
        self.week = np.full(count, run.week)
        self.weekly: list[Floats] = []
        every = run.maintenance.every if run.maintenance else np.inf
        self.due = np.full(count, every)
        self.laws = Laws(run)
        self._planned()
        self._silent()
        self._spells()

    def _planned(self) -> None:
        """Outages after the next snapshot: when, under which cause, and whether maintenance is among them."""
        count = self.streams.count
        self.plan_at = np.full(count, np.inf)
        self.plan_cause = np.full(count, -1)
        self.plan_replaces = np.full(count, -1)
        self.plan_maintains = np.zeros(count, dtype=bool)
        self.back_at = np.full(count, np.inf)  # when a machine is back that the job has too few

    def _silent(self) -> None:
        """What is wrong with the weights: since when (nominal), found when (wall, or nominal where it is verified)."""
        count = self.streams.count
        self.wrong_since = np.full(count, np.inf)
        self.wrong_cause = np.full(count, -1)
        self.found_at, self.verified_at = np.full(count, np.inf), np.full(count, np.inf)

    def _spells(self) -> None:
        """Slow devices: until when, at which pace, noticed when, under which cause; and the pace that comes of it."""
        count = self.streams.count
        self.spell_end = np.full((count, 2), np.inf)
        self.spell_noticed = np.full((count, 2), np.inf)
        self.spell_pace = np.ones((count, 2))
        self.spell_cause = np.full((count, 2), -1)
        self.pace, self.paced_by = np.ones(count), np.full(count, -1)
        self.missing = np.zeros(count, dtype=np.int64)

    # --- the loop -------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """To the end of all."""
        while self.alive.any():
            until = self.hazards.until()
            column = until.argmin(axis=1)
            strikes = until[np.arange(len(column)), column]
            nominal = np.minimum(np.minimum(self.plan_at, self.verified_at), self.end_at)
            reached = np.maximum(0.0, nominal - self.at) * self.pace
            instant = self._instant()
            clock = np.maximum(0.0, instant - self.now)
            passed = np.where(self.alive, np.minimum(np.minimum(strikes, reached), clock), 0.0)
            by_clock: Bools = self.alive & (clock <= passed)
            by_work: Bools = self.alive & ~by_clock & (reached <= passed)
            self._advance(passed, np.where(by_work, nominal, self.at + passed / self.pace))
            self.now = np.where(by_clock, np.maximum(self.now, instant), self.now)
            self._on_clock(np.flatnonzero(by_clock))
            self._on_work(np.flatnonzero(by_work))
            self._on_strike(np.flatnonzero(self.alive & ~by_clock & ~by_work), column)

    def _instant(self) -> Floats:
        """The next thing that happens at a time of the wall clock."""
        found = np.minimum(np.minimum(self.due, self.found_at), np.minimum(self.week, self.back_at))
        if self.laws.slows:
            found = np.minimum(found, np.minimum(self.spell_end, self.spell_noticed).min(axis=1))
        return np.minimum(found, self.run.until)

    def _advance(self, passed: Floats, at: Floats) -> None:
        slowed = passed - (at - self.at)
        slow = np.flatnonzero((slowed > 0) & (self.paced_by >= 0))
        self.fates[slow, _FATE["slow"], self.paced_by[slow]] += slowed[slow]
        self.now = self.now + passed
        self.at = at
        self.hazards.left -= self.hazards.rate * passed[:, None]

    def _on_clock(self, who: Ints) -> None:
        """Things of the wall clock, one kind after the other."""
        now = self.now
        while len(weeks := who[now[who] >= self.week[who]]):
            self._weeks(weeks)
        self.alive[who[now[who] >= self.run.until]] = False
        who = who[self.alive[who]]
        if self.laws.slows:
            self._forget(who, self.spell_end[who] <= now[who, None])
            self._pace(who)
        if self.run.maintenance is not None:
            due = who[now[who] >= self.due[who]]
            self.due[due] += self.run.maintenance.every * np.ceil(
                (now[due] - self.due[due]) / self.run.maintenance.every + 1e-9
            )
            self.plan_maintains[due] = True
            self._plan(due, self.names.index(MAINTENANCE))
        back = who[now[who] >= self.back_at[who]]
        self.back_at[back] = np.inf
        self._plan(back, self.names.index(REGROWTH))
        if self.laws.slows and self.run.straggler != "leave":
            self._notice(who[(self.spell_noticed[who] <= now[who, None]).any(axis=1)])
        found = who[now[who] >= self.found_at[who]]
        self._outage(found, self.wrong_cause[found], self._clean(found))

    def _on_work(self, who: Ints) -> None:
        """Things of the nominal clock: the end, a verification that fails, what is planned after a snapshot."""
        at = self.at
        over = at[who] >= self.end_at
        self.alive[who[over]] = False
        who = who[~over]
        failed = at[who] >= self.verified_at[who]
        found, who = who[failed], who[~failed]
        self._outage(found, self.wrong_cause[found], self._target(found, MEMORY))
        self._outage(who, self.plan_cause[who], self.at[who], planned=True)

    def _on_strike(self, who: Ints, column: Ints) -> None:
        """A cause strikes: hazard is given for its next time, and what it does is done."""
        for each in np.flatnonzero(np.bincount(column[who], minlength=len(self.hazards.cause))):
            chosen = who[column[who] == each]
            cause = self.run.causes[self.hazards.cause[each]]
            self.hazards.strike(chosen, int(each))
            if cause.bad is not None:
                occurrence = self.strikes[chosen, self.hazards.cause[each]]
                self.hazards.on_bad(chosen, int(each), self._uniform(cause.name, "bad", occurrence, 3, chosen))
        number = self.hazards.cause[column[who]]
        self.strikes[who, number] += 1
        stops = self.laws.stops[number]
        for each in np.unique(number[~stops]):
            self._disturb(who[number == each], int(each))
        who, number = who[stops], number[stops]
        self._outage(who, number, self._survivor(who, number))

    def _disturb(self, who: Ints, number: int) -> None:
        cause, occurrence = self.run.causes[number], self.strikes[who, number] - 1
        if cause.effect == "slow":
            self._begin_spell(who, number, occurrence)
        elif cause.effect == "silent":
            self._corrupt(who, number, occurrence)
        elif cause.effect == "alarm":
            self._plan(who, number)
        else:
            self._pause(who, number, occurrence)

    # --- what strikes ---------------------------------------------------------------------------------------------

    def _uniform(self, name: str, what: str, occurrence: Ints, draws: int, who: Ints) -> Floats:
        return self.streams.uniform(f"{name}.{what}", occurrence, draws, who)

    def _draw(self, law: TimeSpec, name: str, what: str, occurrence: Ints, who: Ints) -> Floats:
        """Seconds of that occurrence in each of these runs."""
        return law.quantile(self._uniform(name, what, occurrence, law.draws, who))

    def _begin_spell(self, who: Ints, number: int, occurrence: Ints) -> None:
        cause = self.run.causes[number]
        uniform = self._uniform(cause.name, "spell", occurrence, 2, who)
        level = np.searchsorted(np.cumsum(cause.shares)[:-1], uniform[:, 0], side="right")
        device = np.minimum((uniform[:, 1] * cause.devices).astype(np.int64), cause.devices - 1)
        assert cause.paces is not None
        pace = cause.paces[level, cause.column(device) if cause.column else 0]
        free = self.spell_cause[who] < 0
        if not free.any(axis=1).all():
            self._more_spells()
            free = self.spell_cause[who] < 0
        slot = free.argmax(axis=1)
        self.spell_end[who, slot] = self.now[who] + self._draw(cause.lasts, cause.name, "lasts", occurrence, who)
        self.spell_pace[who, slot] = pace
        self.spell_cause[who, slot] = number
        if self.run.straggler != "leave":
            noticed = self._draw(self.run.noticed, cause.name, "noticed", occurrence, who)
            self.spell_noticed[who, slot] = self.now[who] + noticed
        self._pace(who)

    def _more_spells(self) -> None:
        for name, empty in (("end", np.inf), ("noticed", np.inf), ("pace", 1.0), ("cause", -1)):
            rows = getattr(self, f"spell_{name}")
            setattr(self, f"spell_{name}", np.concatenate([rows, np.full_like(rows, empty)], axis=1))

    def _forget(self, who: Ints, over: Bools) -> None:
        """Spells that are over."""
        rows, slots = np.nonzero(over)
        rows = who[rows]
        self.spell_end[rows, slots] = self.spell_noticed[rows, slots] = np.inf
        self.spell_pace[rows, slots] = 1.0
        self.spell_cause[rows, slots] = -1

    def _pace(self, who: Ints) -> None:
        """The pace of the worst that slows the job, and its cause."""
        worst = self.spell_pace[who].argmax(axis=1)
        pace = self.spell_pace[who, worst]
        short = np.array([1.0, *self.run.short])[self.missing[who]]
        self.pace[who] = np.maximum(pace, short)
        self.paced_by[who] = np.where(short > pace, len(self.names) - 1, self.spell_cause[who, worst])

    def _notice(self, who: Ints) -> None:
        """A slow device has been found: its machine is replaced, at once or after the next snapshot."""
        slot = self.spell_noticed[who].argmin(axis=1)
        cause = self.spell_cause[who, slot]
        self.spell_noticed[who, slot] = np.inf
        if self.run.straggler == "replace":
            self._outage(who, cause, self._survivor(who, cause))
            return
        for number in np.unique(cause):
            self._plan(who[cause == number], int(number))

    def _corrupt(self, who: Ints, number: int, occurrence: Ints) -> None:
        cause = self.run.causes[number]
        fresh = who[np.isinf(self.wrong_since[who])]
        self.wrong_since[fresh] = self.at[fresh]
        self.wrong_cause[fresh] = number
        if self.run.pattern.verify:
            verified = self.run.pattern.next_verified(self.at[fresh])
            self.verified_at[fresh] = verified
            self.wrong_since[fresh] = np.maximum(self.at[fresh], self.run.pattern.begun(verified))
        else:
            lasts = self._draw(cause.lasts, cause.name, "lasts", occurrence, who)
            self.found_at[fresh] = (self.now[who] + lasts)[np.isin(who, fresh)]

    def _clean(self, who: Ints) -> Floats:
        """Where a run goes back to whose weights are wrong: the latest snapshot from before that is still kept."""
        pattern = self.run.pattern
        before = pattern.taken(self.wrong_since[who]) // pattern.cycles * pattern.cycles
        oldest = pattern.taken(self._target(who, STORAGE)) - (pattern.keep - 1) * pattern.cycles
        return np.where(before >= oldest, pattern.end(before), 0.0)

    def _pause(self, who: Ints, number: int, occurrence: Ints) -> None:
        """The job stands for a while; where that is longer than the timeout, it is a stop."""
        cause = self.run.causes[number]
        lasts = self._draw(cause.lasts, cause.name, "lasts", occurrence, who)
        stops = lasts > self.run.timeout
        self._spend(who, np.minimum(lasts, self.run.timeout), "pause", number)
        chosen = who[stops & (self.now[who] < self.run.until)]
        numbers = np.full(len(chosen), number)
        self._outage(chosen, numbers, self._survivor(chosen, numbers))

    # --- outages --------------------------------------------------------------------------------------------------

    def _plan(self, who: Ints, number: int) -> None:
        """An outage after the next snapshot; what is planned already is done in the same."""
        new = np.isinf(self.plan_at[who])
        self.plan_cause[who[new]] = number
        self.plan_at[who[new]] = self.run.pattern.next_end(self.at[who[new]])
        if number < len(self.run.causes):
            self.plan_replaces[who] = number

    def _target(self, who: Ints, level: int) -> Floats:
        """The end of the latest snapshot that survives."""
        pattern = self.run.pattern
        snapshot = pattern.safe(self.at[who], level)
        if np.isfinite(self.run.goal):
            snapshot = np.minimum(snapshot, int(self.run.goal // pattern.steps))
        return np.maximum(pattern.end(snapshot), self.held[level, who])

    def _survivor(self, who: Ints, number: Ints) -> Floats:
        """The end of the latest snapshot that survives a cause."""
        found = self._target(who, MEMORY)
        if self.run.pattern.memory is None:
            return found
        return np.where(self.laws.survives[number] == STORAGE, self._target(who, STORAGE), found)

    def _spend(self, who: Ints, seconds: Floats, fate: str, number: Ints | int) -> Floats:
        """Time passes without training, not beyond the end of the run; returns what has passed."""
        spent = np.minimum(seconds, np.maximum(0.0, self.run.until - self.now[who]))
        self.now[who] += spent
        self.fates[who, _FATE[fate], number] += spent
        return spent

    def _outage(self, who: Ints, number: Ints, target: Floats, planned: bool = False) -> None:
        """The job stops, for a cause, and goes on from the target (nominal seconds)."""
        if not len(who):
            return
        occurrence = self.outages[who, number]
        self.outages[who, number] += 1
        level = self._go_back(who, number, target, planned)
        detected = np.zeros(len(who))
        if not planned:
            detected = self._draws(self.laws.detect, number, occurrence, who)
            self._spend(who, detected, "detection", number)
        seconds = [self._draws(laws[0], number, occurrence, who) for laws in self.laws.restart]
        if self.run.pattern.memory is not None:
            stored = [self._draws(laws[1], number, occurrence, who) for laws in self.laws.restart]
            pairs = zip(seconds, stored, strict=True)
            seconds = [np.where(level == STORAGE, later, sooner) for sooner, later in pairs]
        if self.run.wrong and not planned:
            uniform = self._each("wrong", number, occurrence, who)
            again = np.floor(np.log(uniform) / np.log(self.run.wrong))
            self._spend(who, again * (detected + np.sum(seconds, axis=0)), "diagnosis", number)
        self._replace(who, number, occurrence, planned)
        self._restart(who, number, seconds)
        if self.laws.slows or self.run.short:
            self._pace(who)

    def _draws(self, law: LawOfEach, number: Ints, occurrence: Ints, who: Ints) -> Floats:
        """Seconds by a law that may differ from cause to cause."""
        found = law.fixed[number]
        for each in law.drawn:
            chosen = np.flatnonzero(number == each)
            if len(chosen):
                found[chosen] = self._draw(law.of[each], self.names[each], law.what, occurrence[chosen], who[chosen])
        return found

    def _each(self, what: str, number: Ints, occurrence: Ints, who: Ints) -> Floats:
        """One uniform number each, of the cause that stops the run."""
        found = np.empty(len(who))
        for each in np.unique(number):
            chosen = np.flatnonzero(number == each)
            found[chosen] = self._uniform(self.names[each], what, occurrence[chosen], 1, who[chosen])[:, 0]
        return found

    def _go_back(self, who: Ints, number: Ints, target: Floats, planned: bool) -> Ints:
        """Training is set back; returns where the snapshots are that are loaded."""
        self.fates[who, _FATE["lost"], number] += self.at[who] - target
        one = self.run.pattern.memory is None
        level = np.full(len(who), STORAGE) if one else np.where(planned, MEMORY, self.laws.survives[number])
        if one or planned:
            stored = target
        else:
            stored = np.where(level == STORAGE, target, np.minimum(target, self._target(who, STORAGE)))
        self.at[who] = self.held[MEMORY, who] = target
        self.held[STORAGE, who] = stored
        if self.laws.silent:
            clean = who[self.wrong_since[who] >= target]
            self.wrong_since[clean] = self.found_at[clean] = self.verified_at[clean] = np.inf
        return level

    def _replace(self, who: Ints, number: Ints, occurrence: Ints, planned: bool) -> None:
        """RepairShop leave, spares take their places, planned work is done; slow ones that were found are gone."""
        leaves = self.plan_replaces[who] if planned else number
        if not self.run.spares.unlimited:
            for each in self.laws.repaired:
                chosen = leaves == each
                if chosen.any():
                    self._send(who[chosen], each, occurrence[chosen], number[chosen])
            self._wait(who, number)
        if planned and self.run.maintenance is not None:
            maintained = self.plan_maintains[who]
            lasts = np.full(int(maintained.sum()), self.run.maintenance.lasts)
            self._spend(who[maintained], lasts, "maintenance", number[maintained])
        if planned:
            self.plan_maintains[who] = False
            self.plan_at[who], self.plan_replaces[who] = np.inf, -1
        else:
            waiting = who[self.plan_at[who] < np.inf]
            if len(waiting):
                self.plan_at[waiting] = self.run.pattern.next_end(self.at[waiting])
        if self.laws.slows and self.run.straggler != "leave":
            noticed = self.spell_noticed[who]
            self._forget(who, (self.spell_cause[who] >= 0) & (np.isinf(noticed) | (noticed <= self.now[who, None])))

    def _send(self, who: Ints, leaves: int, occurrence: Ints, number: Ints) -> None:
        """The machines of a cause go to repair, and spares are made ready."""
        cause, pool = self.run.causes[leaves], self.pool
        assert cause.repair is not None
        ready = pool.ready(who, self.now[who], cause.machines)
        for machine in range(cause.machines):
            pool.send(who, self.now[who], self._draw(cause.repair, cause.name, f"repair.{machine}", occurrence, who))
        self._spend(who, ready, "waiting", number)

    def _wait(self, who: Ints, number: Ints) -> None:
        """Until there are machines enough, or few enough missing."""
        short = len(self.run.short)
        lacks = self.pool.out(who, self.now[who]) > self.run.spares.count
        self.missing[who], self.back_at[who] = 0, np.inf
        who, number = who[lacks], number[lacks]
        if not len(who):
            return
        self._spend(who, self.pool.enough(who, self.now[who], short) - self.now[who], "waiting", number)
        self.missing[who] = np.minimum(self.pool.missing(who, self.now[who]), short)
        self.back_at[who] = np.where(self.missing[who] > 0, self.pool.next_back(who, self.now[who]), np.inf)

    def _restart(self, who: Ints, number: Ints, seconds: list[Floats]) -> None:
        """The parts of a restart; where a cause strikes in an exposed one, it ends there."""
        stops = np.flatnonzero(self.hazards.stops)
        exposed = np.array([part.exposed for part in self.run.restart], dtype=bool)
        limit = np.full(len(who), np.inf)
        if exposed.any() and len(stops):
            rate = self.hazards.rate[np.ix_(who, stops)]
            left = self.hazards.left[np.ix_(who, stops)]
            with np.errstate(divide="ignore", invalid="ignore"):
                limit = np.where(rate > 0, np.maximum(left, 0.0) / rate, np.inf).min(axis=1)
        used, goes_on = np.zeros(len(who)), np.ones(len(who), dtype=bool)
        for place, part in enumerate(self.run.restart):
            wanted = np.where(goes_on, seconds[place], 0.0)
            spent = self._spend(who, np.minimum(wanted, limit - used) if part.exposed else wanted, "restart", number)
            self.parts[who, place] += spent
            if part.exposed:
                used += spent
                goes_on &= spent >= wanted
        if used.any():
            self.hazards.left[np.ix_(who, stops)] = left - rate * used[:, None]

    # --- what came of them ----------------------------------------------------------------------------------------

    def _kept(self, who: Ints) -> Floats:
        """Steps that are done."""
        return np.minimum(self.run.pattern.spent("steps", np.minimum(self.at[who], self.goal_at)), self.run.goal)

    def _weeks(self, who: Ints) -> None:
        number = np.rint(self.week[who] / self.run.week).astype(np.int64) - 1
        while len(self.weekly) <= number.max():
            self.weekly.append(np.full(self.streams.count, np.nan))
        for each in np.unique(number):
            chosen = who[number == each]
            self.weekly[each][chosen] = self._kept(chosen)
        self.week[who] += self.run.week

    def outcomes(self) -> Outcomes:
        """All runs, once they have ended."""
        everyone = np.arange(self.streams.count)
        weekly = np.array(self.weekly).T if self.weekly else np.empty((len(everyone), 0))
        return Outcomes(
            self.run,
            self.now,
            self.at,
            self._kept(everyone),
            self.fates,
            self.parts,
            self.strikes[:, : len(self.run.causes)],
            self.outages,
            weekly,
        )
