"""GPUs and hosts that are slower than they should be.  Imports spec and its parts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from simcluster.errors import InputError
from simcluster.faults.draws import Factors
from simcluster.faults.where import During, Number, OnRanks
from simcluster.units import Seconds


class SlowGpu(OnRanks, During):
    """A GPU whose every kernel takes ``factor`` times as long (1.2: 20 % slower); 1 changes nothing.

    On a ``rank``, several ``ranks`` or all of a ``node``; for ever, from ``start`` (s) to ``end``, or in the first
    ``duty`` of every ``period``: periodic throttling.  A kernel that is under way goes on at the new speed.
    """

    EXAMPLE: ClassVar = {"kind": "slow_gpu", "rank": 1, "factor": 1.5}
    NEUTRAL: ClassVar = {"kind": "slow_gpu", "rank": 1, "factor": 1.0}

    kind: Literal["slow_gpu"]
    factor: Annotated[float, Field(strict=True, ge=1, le=1e6)]

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.named is None and self.node is None:
            raise InputError("rank is required: which GPU is slow; or ranks, or node for all of a machine")
        return self

    @property
    def neutral(self) -> bool:
        """Does it change nothing?"""
        return self.factor == 1


class Jitter(OnRanks):
    """Kernels that take a little more or less each time: their seconds times a factor that is drawn.

    ``factor`` is a law with mean 1 (or a measured histogram).  A draw is made ``per`` kernel (an op of the timeline),
    per pass of a microbatch, or per step; and for every ``shared_by``: ``rank``, or ``worker`` for all tp and cp ranks
    of a replica's stage alike, which they wait for anyway (and which folds).  With ``adds`` every kernel takes
    ``adds`` x draw (s) longer instead.  No rank named: all.  ``seed`` is the number of the stream of draws, beside the
    scenario's; left out, the fault's place in the list.

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
        """Does it change nothing?"""
        return self.adds == 0 if self.adds is not None else self.factor.neutral


Cause = Literal["garbage_collection", "data_loading", "checkpoint"]


class HostStall(OnRanks):
    """The process of a rank does something else, and its GPU waits: a span of the stream ``host`` on its timeline.

    ``cause`` says where in a step: ``data_loading`` before the first forward, ``garbage_collection`` before a pass that
    each rank draws, ``checkpoint`` behind the optimizer.  It takes ``seconds``, times a draw of ``factor`` if one is
    given, in every ``every``-th step from step ``first`` on; ``first: random`` lets every rank draw its own, as
    processes do that collect garbage when each of them has made enough of it.  No rank named: all.  ``seed`` as for
    jitter.
    """

    EXAMPLE: ClassVar = {"kind": "host_stall", "cause": "data_loading", "seconds": "100 us"}
    NEUTRAL: ClassVar = {"kind": "host_stall", "cause": "data_loading", "seconds": "0 s"}

    kind: Literal["host_stall"]
    cause: Cause
    seconds: Seconds
    every: Annotated[int, Field(strict=True, ge=1)] = 1
    first: Number | Literal["random"] = 0
    factor: Factors | None = None
    seed: Number | None = None

    @property
    def neutral(self) -> bool:
        """Does it change nothing?"""
        return self.seconds == 0
