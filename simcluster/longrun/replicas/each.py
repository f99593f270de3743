"""The causes of a run in columns: what many runs, each stopped by another cause, look up at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcluster.longrun.run import NOW, LongRun
from simcluster.longrun.times import TimeSpec


class LawOfEach:
    """A law for every cause: ``fixed[cause]`` where it is always as long (s); others are drawn.

    ``takes`` is whether any takes any time.  ``what`` names the stream of the draws; ``drawn`` are the laws that are
    drawn, and ``which[cause]`` is the place of a cause's among them (-1: it is fixed).
    """

    def __init__(self, what: str, laws: Sequence[TimeSpec]) -> None:
        self.what = what
        self.fixed = np.array([law.mean if not law.draws else 0.0 for law in laws])
        self.drawn: list[TimeSpec] = []
        for law in laws:
            if law.draws and law not in self.drawn:
                self.drawn.append(law)
        self.which = np.array([self.drawn.index(law) if law.draws else -1 for law in laws])
        self.everywhere = len(self.drawn) == 1 and not self.which.any()
        """Is one law that is drawn that of all causes?"""
        alike = not self.drawn and (self.fixed == self.fixed[0]).all()
        self.same = np.asarray(self.fixed[0]) if alike else None
        """Seconds, of no axis, where they are the same for all."""
        self.takes = bool(self.fixed.any() or self.drawn)


class Laws:
    """What stops a run, what survives it, how long it takes, by cause; outages that have none come last.

    ``leave[cause]`` machines go to repair, which takes each of them its law of ``repairs``; ``sizes`` are the numbers
    of machines that leave together.  What is retired under one of ``replaced`` takes that instead.
    """

    def __init__(self, run: LongRun) -> None:
        causes, others = run.causes, 2
        names = len(causes) + others
        self.stops = np.array([cause.stops for cause in causes] + [True] * others)
        self.all_stop = bool(self.stops.all())
        self.survives = np.array([cause.survives for cause in causes] + [0] * others)
        self.detect = LawOfEach("detect", [cause.detect for cause in causes] + [NOW] * others)
        self.restart = [
            tuple(
                LawOfEach(f"restart.{part.name}", [law] * names)
                for law in ((part.storage,) if run.pattern.memory is None else (part.memory, part.storage))
            )
            for part in run.restart
        ]
        leave = [cause.machines if cause.repair is not None else 0 for cause in causes] + [0] * others
        self.leave, self.sizes = np.array(leave), sorted(set(leave) - {0})
        laws = [cause.repair or NOW for cause in causes] + [NOW] * others
        self.repairs = [LawOfEach(f"repair.{machine}", laws) for machine in range(max(leave))]
        bad = {number: cause.bad for number, cause in enumerate(causes) if cause.repair is not None and cause.bad}
        self.replaced = {number: batch.replaced for number, batch in bad.items() if batch.replaced is not None}
        self.exposed = any(part.exposed for part in run.restart)
        self.plans = any(cause.effect in ("slow", "alarm") for cause in causes) or bool(run.maintenance or run.short)
        """Is there any outage that waits for a snapshot?"""
        self.slows = any(cause.effect == "slow" for cause in causes)
        self.silent = any(cause.effect == "silent" for cause in causes)
