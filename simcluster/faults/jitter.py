"""Fault of random variation in kernel times."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, Literal

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.units import Seconds
from simcluster.faults.fault_spec import JobContext
from simcluster.faults.random_factors import Factors, RandomStreams
from simcluster.faults.targets import Number, RankFault
from simcluster.planning.disturbances import ComputationColumns

_STREAMS = RandomStreams()


class Jitter(RankFault):
    """Random variation of kernel times: each time is multiplied by a random factor.

    The slowdown of a step is in MODELLING.md G.2: N ranks that wait for each other take the largest of N draws. Without
    named ranks it is on all.
    """

    EXAMPLE: ClassVar = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}
    NEUTRAL: ClassVar = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0}}

    kind: Literal["jitter"]
    factor: Factors
    """Distribution of random factors on kernel times, with mean 1, or a measured histogram."""
    per: Literal["kernel", "pass", "step"] = "kernel"
    """How often a factor is drawn: for each kernel (an op of the timeline), each pass of a microbatch, or each step."""
    shared_by: Literal["rank", "worker"] = "rank"
    """Which ranks get the same random factors: each rank its own (rank), or all tp and cp ranks of a stage (worker)."""
    adds: Seconds | None = None
    """Time that is added to each kernel, multiplied by the draw, instead of multiplying the kernel's time."""
    seed: Number | None = None

    @property
    def is_neutral(self) -> bool:
        return self.adds == 0 if self.adds is not None else self.factor.is_neutral

    def symmetry_key(self, rank: int, setting: JobContext) -> tuple[int, ...]:
        return setting.worker_of_rank[rank] if self.shared_by == "worker" else (rank,)

    def retime(self, rank: int, computations: ComputationColumns, seconds: Floats, setting: JobContext) -> Floats:
        moments = computations.steps if self.per == "step" else computations.keys
        pairs = [(moment, count) for moment, count in zip(moments, computations.counts, strict=True) if count]
        colour, known = self.symmetry_key(rank, setting), dict[Hashable, Floats]()
        for moment, count in pairs:
            if moment not in known:
                chance = _STREAMS(setting.seed, "jitter", self.seed, colour, moment)
                known[moment] = self.factor.draw(chance, count if self.per == "kernel" else 1)
        draws = np.concatenate([np.zeros(0), *(known[moment] for moment, _ in pairs)])
        if self.per != "kernel":
            draws = np.repeat(draws, [count for _, count in pairs])
        return seconds * draws if self.adds is None else seconds + draws * self.adds
