"""Outages of many runs at once: training is set back; detection, diagnosis, machines, and the parts of a restart."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.longrun.pattern import MEMORY, STORAGE
from simcluster.longrun.replicas.hazards import Hazards
from simcluster.longrun.replicas.planned import PlannedOutages
from simcluster.longrun.replicas.pool import Pool
from simcluster.longrun.replicas.silent import SilentErrors
from simcluster.longrun.replicas.spells import SpellsOfRuns
from simcluster.longrun.replicas.state import FATE, RunsState, Standing


class OutagesOfRuns:
    """What an outage changes: the runs, and what is slow, silent, planned, in repair or about to strike."""

    def __init__(self, state: RunsState) -> None:
        self.state, self.run, self.laws = state, state.run, state.laws
        self.hazards, self.pool = Hazards(state), Pool(state.run.spares, state.count, short=bool(state.run.short))
        self.retired = np.zeros(len(state.strikes), dtype=bool)
        """By cause and run, as what is flat: a machine is to be replaced for good."""
        self.faster, self.exposed = np.array(self.run.faster), self.run.exposed
        self.spells, self.silent, self.planned = SpellsOfRuns(state), SilentErrors(state), PlannedOutages(state)

    def begin(self, who: Ints, number: Ints, target: Floats, planned: Bools | None = None) -> None:
        """The jobs stop, each for a cause, and go on from their targets (nominal seconds); some as ``planned``."""
        if not len(who):
            return
        job = Standing(self.state, who, number)
        occurrence = self.state.outages[job.place]
        self.state.outages[job.place] += 1
        level = self._go_back(job, target, planned)
        detected = job.draws(self.laws.detect, occurrence)
        if planned is not None:
            detected = np.where(planned, 0.0, detected)
        if self.laws.detect.takes:
            job.spend(detected, "detection")
        parts = self._parts(job, occurrence, level)
        if self.run.wrong:
            uniform = self.state.of_causes("wrong", 1).at(number, who, occurrence)[:, 0]
            again = np.floor(np.log(uniform) / np.log(self.run.wrong))
            if planned is not None:
                again[planned] = 0.0
            job.spend(again * (detected + sum(parts)), "diagnosis")
        self._replace(job, number if planned is None else np.where(planned, self.planned.replaces[who], number))
        self._after(job, planned)
        self._restart(job, parts)
        job.go_on()
        if self.run.short or (self.laws.slows and self.run.straggler != "leave"):
            self.spells.look(who)

    def _parts(self, job: Standing, occurrence: Ints, level: Ints) -> list[Floats]:
        """Seconds of each part of the restart."""
        parts = []
        for laws in self.laws.restart:
            seconds = job.draws(laws[0], occurrence)
            if len(laws) > 1:
                seconds = np.where(level == STORAGE, job.draws(laws[1], occurrence), seconds)
            parts.append(seconds)
        return parts

    def _go_back(self, job: Standing, target: Floats, planned: Bools | None) -> Ints:
        """Training is set back; returns where the snapshots are that are loaded."""
        state, who = self.state, job.who
        state.fates[FATE["lost"]][job.place] += state.of(state.at, who) - target
        stored = target
        if self.run.pattern.memory is None:
            level = np.asarray(STORAGE)
        else:
            level = self.laws.survives[job.number]
            stays = level != STORAGE
            if planned is not None:
                level, stays = np.where(planned, MEMORY, level), stays & ~planned
            stored = np.where(stays, np.minimum(target, state.target(who, STORAGE)), target)
        state.at[who] = state.held[MEMORY][who] = target
        state.held[STORAGE][who] = stored
        if self.laws.silent:
            self.silent.gone_back(who, target)
        return level

    def _replace(self, job: Standing, leaves: Ints) -> None:
        """Machines leave for repair, those of the causes ``leaves``; spares take their places, or the jobs wait."""
        if self.run.spares.unlimited:
            return
        lacks = self.state.missing[job.who] > 0 if self.run.short else np.zeros(len(job.who), dtype=bool)
        leaving = self.laws.leave[leaves]
        for machines in self.laws.sizes:
            chosen = (leaving == machines).nonzero()[0]
            if len(chosen):
                repairs = self._repairs(leaves[chosen], job.who[chosen], machines)
                out = self.pool.send(job.who[chosen], job.now[chosen], repairs)
                lacks[chosen[out > self.run.spares.count]] = True
                if self.pool.made_ready:
                    job.spend(self.pool.ready(out, machines), "waiting", chosen)
        if np.count_nonzero(lacks):
            self._wait(job, lacks.nonzero()[0])

    def _repairs(self, number: Ints, who: Ints, machines: int) -> Floats:
        """Seconds that the machines which leave for these causes are in repair, shape (machines, runs)."""
        place = self.state.place(who, number)
        occurrence = self.state.repairs[place]
        self.state.repairs[place] = occurrence + 1
        seconds = np.empty((machines, len(who)))
        for machine, law in enumerate(self.laws.repairs[:machines]):
            seconds[machine] = self.state.draws(law, number, occurrence, who)
        for cause, replaced in self.laws.replaced.items():
            mine = ((number == cause) & self.retired[place]).nonzero()[0]
            if len(mine):
                self.retired[place[mine]] = False
                name = self.state.names[cause]
                seconds[0, mine] = self.state.draw(replaced, name, "repair.0", occurrence[mine], who[mine])
        return seconds

    def _wait(self, job: Standing, lacks: Ints) -> None:
        """Until there are machines enough, or few enough missing."""
        state, short, who = self.state, len(self.run.short), job.who[lacks]
        enough = self.pool.enough(who, job.now[lacks], np.full(len(who), short))
        job.spend(enough - job.now[lacks], "waiting", lacks)
        if short:
            now = job.now[lacks]
            state.missing[who] = missing = np.minimum(self.pool.missing(who, now), short)
            if self.hazards.share is not None:
                self.hazards.share[who] = self.exposed[missing]
            few = self.faster[missing]
            back = self.pool.enough(who, now, few)
            self.planned.back_at[who] = np.where((missing > 0) & (few >= 0), back, np.inf)

    def _after(self, job: Standing, planned: Bools | None) -> None:
        """Planned work is done, or put off; slow ones that were found are gone."""
        if planned is None:
            if self.laws.plans:
                self.planned.put_off(job.who)
        else:
            if self.run.maintenance is not None:
                maintained = np.flatnonzero(planned & self.planned.maintains[job.who])
                job.spend(np.full(len(maintained), self.run.maintenance.lasts), "maintenance", maintained)
            self.planned.done(job.who[planned])
            self.planned.put_off(job.who[~planned])
        if self.laws.slows and self.run.straggler != "leave":
            self.spells.repaired(job.who, job.now)

    def _restart(self, job: Standing, seconds: list[Floats]) -> None:
        """The parts of a restart; where a cause strikes in an exposed one, it ends there."""
        if not self.laws.exposed:
            for place, wanted in enumerate(seconds):
                self.state.parts[place][job.who] += job.spend(wanted, "restart")
            return
        left = self.hazards.left_to_load(job.who)
        used, goes_on = np.zeros(len(left)), np.ones(len(left), dtype=bool)
        for place, part in enumerate(self.run.restart):
            wanted = np.where(goes_on, seconds[place], 0.0)
            spent = job.spend(np.minimum(wanted, left - used) if part.exposed else wanted, "restart")
            self.state.parts[place][job.who] += spent
            if part.exposed:
                used += spent
                goes_on &= spent >= wanted
        if np.count_nonzero(used):
            self.hazards.load(job.who, used)
