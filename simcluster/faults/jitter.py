"""Kernels that take a little more or less each time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, Literal

from simcluster.base.units import Seconds
from simcluster.faults.draws import Factors, stream
from simcluster.faults.spec import Setting, retimed, with_items
from simcluster.faults.where import Number, OnRanks
from simcluster.planning.ops import Item, Segment, StageProgram


class Jitter(OnRanks):
    """Kernels that take a little more or less each time: their seconds times a factor that is drawn.

    ``factor`` is a law with mean 1 (or a measured histogram).  A draw is made ``per`` kernel (an op of the timeline),
    per pass of a microbatch, or per step; and for every ``shared_by``: ``rank``, or ``worker`` for all tp and cp ranks
    of a replica's stage alike, which they wait for anyway (and which folds).  With ``adds`` every kernel takes
    ``adds`` x draw (s) longer instead.  No rank named: all.  ``seed`` is the number of the stream of draws, beside the
    scenario's; left out, how many faults of its kind come before it.

    What a step loses is in MODELLING.md G.2: N ranks that wait for each other take the largest of N draws.
    """

    EXAMPLE: ClassVar = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}
    NEUTRAL: ClassVar = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0}}

    kind: Literal["jitter"]
    factor: Factors
    per: Literal["kernel", "pass", "step"] = "kernel"
    shared_by: Literal["rank", "worker"] = "rank"
    adds: Seconds | None = None
    seed: Number | None = None

    @property
    def neutral(self) -> bool:
        return self.adds == 0 if self.adds is not None else self.factor.neutral

    def colour(self, rank: int, setting: Setting) -> tuple[int, ...]:
        """Who draws for the rank."""
        return setting.worker[rank] if self.shared_by == "worker" else (rank,)

    def program(self, rank: int, program: StageProgram, setting: Setting) -> StageProgram:
        """With other seconds of computation."""

        def jittered(item: Item) -> Item:
            if self.per != "step":
                return item._replace(segment=self._segment(rank, item.segment, item.key, setting))
            name = self, item.segment, rank, item.step
            if name not in setting.known:
                setting.known[name] = self._segment(rank, item.segment, item.step, setting)
            return item._replace(segment=setting.known[name])

        return with_items(program, jittered)

    def _segment(self, rank: int, segment: Segment, moment: Hashable, setting: Setting) -> Segment:
        """A segment with the draws of a moment."""
        computing = [index for index, op in enumerate(segment.ops) if op.work.sensitivity is not None]
        if not computing:
            return segment
        chance = stream(setting.seed, "jitter", self.seed, self.colour(rank, setting), moment)
        draws = self.factor.draw(chance, len(computing) if self.per == "kernel" else 1).tolist()
        by_op = dict(zip(computing, draws if self.per == "kernel" else draws * len(computing), strict=True))
        if self.adds is None:
            return retimed(segment, [by_op.get(index, 1.0) for index in range(len(segment.ops))])
        added = [by_op.get(index, 0.0) * self.adds for index in range(len(segment.ops))]
        return retimed(segment, [1.0] * len(segment.ops), added)
