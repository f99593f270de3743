"""The causes of a run in columns: what many runs, each stopped by another cause, look up at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcluster.longrun.run import NOW, LongRun
from simcluster.longrun.times import TimeSpec


class LawOfEach:
    """A law for every cause: ``fixed[cause]`` where it is always as long (s); those in ``drawn`` are drawn.
    ``takes`` is whether any takes any time.

    ``what`` names the stream of the draws; ``one`` is the law of all of them where they have the same.
    """

    def __init__(self, what: str, laws: Sequence[TimeSpec]) -> None:
        self.what, self.of = what, laws
        self.fixed = np.array([law.mean if not law.draws else 0.0 for law in laws])
        self.drawn = [number for number, law in enumerate(laws) if law.draws]
        self.takes = bool(self.fixed.any() or self.drawn)
        self.one = laws[0] if all(law is laws[0] for law in laws) else None


class Laws:
    """What stops a run, what survives it, how long it takes, by cause; outages that have none come last.

    ``leave`` are the causes for which so many machines go to repair, by that number.
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
        repaired = [(number, cause) for number, cause in enumerate(causes) if cause.repair is not None]
        self.leave = {
            machines: [number for number, cause in repaired if cause.machines == machines]
            for machines in sorted({cause.machines for _, cause in repaired})
        }
        self.slows = any(cause.effect == "slow" for cause in causes)
        self.silent = any(cause.effect == "silent" for cause in causes)
