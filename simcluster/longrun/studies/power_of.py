"""What a step that was played draws: the utilisation of its spans, and the power of the whole job over it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.devices.device import TilesMatmul
from simcluster.longrun.power import DrawSpec, PowerCurve, draw_of, power_curve
from simcluster.results.result import Result

_PRODUCTS = ("forward", "backward", "recompute")


def drawn_by(result: Result, draw: DrawSpec | None = None) -> PowerCurve:
    """The power of a played step, W; without ``draw`` that of the scenario's device (InputError if it is not known).

    Computation of layers has the step's FLOP over their seconds as its share of the rate at which the chip meets its
    power limit (``power`` x ``sustained`` of the device's peak: there it draws ``full``).  A collective takes
    ``waiting`` until its peers are there, then ``communication``, as does what waits for memory (the optimizer).
    """
    found = draw_of(result.scenario.cluster.device.name) if draw is None else draw
    return _DrawnSpans.of(result).curve(found, found.communication, found.waiting)


def computing_of(result: Result, draw: DrawSpec) -> PowerCurve:
    """The same if nothing but the computation of layers drew more than an idle GPU."""
    return _DrawnSpans.of(result).curve(draw, 0.0, 0.0)


@dataclass(frozen=True)
class _DrawnSpans:
    """The spans of a played step as its power asks: rank, seconds, which are ``products`` and ``collectives``, the
    products' utilisation (``busy``), and how many GPUs a rank stands for."""

    rank: Ints
    ready: Floats
    start: Floats
    end: Floats
    products: Bools
    collectives: Bools
    weights: dict[int, float]
    flops: float

    @staticmethod
    def of(result: Result) -> _DrawnSpans:
        """Those of a step."""
        spans, device = result.spans, result.scenario.cluster.device
        compute = spans.stream == spans.code("compute")
        matmul, fp8 = device.matmul, device.peak.fp8 == result.facts.peak_flops
        share = 1.0
        if isinstance(matmul, TilesMatmul):
            power, kept = (matmul.power_fp8, matmul.sustained_fp8) if fp8 else (matmul.power, matmul.sustained)
            share = (power or matmul.power) * (kept or matmul.sustained)
        return _DrawnSpans(
            rank=spans.rank,
            ready=spans.ready,
            start=spans.start,
            end=spans.end,
            products=compute & np.isin(spans.kind, [spans.code(kind) for kind in _PRODUCTS]),
            collectives=~compute,
            weights={rank: float(weight) for rank, weight in result.weights.items()},
            flops=result.facts.hardware_flops * result.steps / (result.facts.peak_flops * share),
        )

    @cached_property
    def busy(self) -> float:
        """The utilisation of the products: their FLOP at the rate of the power limit, over their seconds."""
        each = np.zeros(max(self.weights) + 1)
        each[list(self.weights)] = list(self.weights.values())
        seconds = float((each[self.rank] * (self.end - self.start))[self.products].sum())
        return min(1.0, self.flops / seconds)

    def curve(self, draw: DrawSpec, communication: float, waiting: float) -> PowerCurve:
        """Their power, where collectives that move bytes, and those that wait, take these shares."""
        waits = self.collectives & (self.start > self.ready)
        return power_curve(
            draw,
            np.concatenate([self.rank, self.rank[waits]]),
            np.concatenate([self.start, self.ready[waits]]),
            np.concatenate([self.end, self.start[waits]]),
            np.concatenate(
                [np.where(self.products, self.busy, communication), np.full(np.count_nonzero(waits), waiting)]
            ),
            self.weights,
            step=float(self.end.max()),
        )
