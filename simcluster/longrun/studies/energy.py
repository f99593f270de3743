"""Energy of simulated steps and runs: utilisation, kWh by fate, and the mean, highest and swinging power."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.devices.device import TilesMatmul
from simcluster.documents.catalogue import presets
from simcluster.longrun.outcome import Outcomes
from simcluster.longrun.power import KWH, DrawSpec, PowerCurve, draw_of, draw_with, energy_kwh, power_curve, watts_of
from simcluster.longrun.run import FATES, LongRun
from simcluster.results.result import Result
from simcluster.scenario.run_section import PowerSpec

if TYPE_CHECKING:
    import pandas as pd

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


STANDING_BY = "standing by"
"""What the energy of spare machines is counted under."""

_STRIKE = "strike"


def energy_of(run: LongRun, outcomes: Outcomes, own: PowerSpec, step: Result | None) -> RunEnergy | None:
    """The energy of runs whose healthy step was ``step``; None where neither catalogue nor run knows what a GPU draws.

    InputError where the run says a part of it, and nobody the rest.
    """
    draw = None if step is None else draw_in(step.scenario.cluster.device.name, own)
    return None if step is None or draw is None else RunEnergy(run, outcomes, own, draw, step)


def draw_in(device: str, own: PowerSpec) -> DrawSpec | None:
    """What a device draws in a run; None where neither catalogue nor run says it.

    InputError where the run says a part of it, and nobody the rest.
    """
    if device not in presets("power.yaml") and own.idle is None and own.full is None:
        return None
    return draw_with(device, own)


@dataclass(frozen=True)
class RunEnergy:
    """Energy and power of runs, all with ``pue``: what the building draws for the job and its spares.

    Training, kept or lost, draws what the healthy step does on average; spares that are hot or warm stand by idle, cold
    ones are off.  Watts, kWh.
    """

    run: LongRun
    outcomes: Outcomes
    own: PowerSpec
    draw: DrawSpec
    step: Result

    @property
    def pue(self) -> float:
        """What the building draws over what its machines do."""
        return self.own.pue

    @cached_property
    def curve(self) -> PowerCurve:
        """The power of the job over its healthy step, without spares and ``pue``."""
        return drawn_by(self.step, self.draw)

    @cached_property
    def computing(self) -> PowerCurve:
        """The same if nothing but the computation of layers drew more than an idle GPU."""
        return computing_of(self.step, self.draw)

    @cached_property
    def standing_by(self) -> float:
        """What spare machines draw all along, W."""
        spares = self.run.spares
        on = 0 if spares.unlimited else spares.hot + spares.warm
        each = self.run.gpus / self.run.machines
        return self.pue * on * each * (self.draw.idle + self.draw.beside)

    def watts(self, fate: str) -> float:
        """Of the job while its seconds have that fate, on average."""
        return self.pue * watts_of(fate, self.draw, self.curve.mean, self.run.gpus)

    @cached_property
    def kwh(self) -> dict[str, Floats]:
        """Of each run, by fate, and of spares that stand by."""
        job = energy_kwh(self.outcomes.spent(), self.draw, self.curve.mean, gpus=self.run.gpus, pue=self.pue)
        return job | {STANDING_BY: self.standing_by * self.outcomes.wall / KWH}

    @cached_property
    def total(self) -> Floats:
        """kWh of each run."""
        return np.asarray(sum(self.kwh.values()), dtype=np.float64)

    @property
    def average(self) -> float:
        """W, over all runs."""
        return float(self.total.sum() / self.outcomes.wall.sum()) * KWH

    @property
    def low(self) -> float:
        """The least in a step, W."""
        return self.pue * float(self.curve.watts.min()) + self.standing_by

    @property
    def peak(self) -> float:
        """The most in a step, W."""
        return self.pue * float(self.curve.watts.max()) + self.standing_by

    def swing(self, window: float) -> float:
        """Peak to peak in a step, W, of means over so many seconds."""
        return self.pue * self.curve.swing(window)

    def assumed(self) -> Iterator[str]:
        """What neither the run says nor a measurement that could be found."""
        if self.own.communication is None:
            yield (
                f"communication takes {self.draw.communication:.0%} of the way from idle to full "
                f"({float(self.draw.watts(self.draw.communication)):.0f} W a GPU): run.power.communication"
            )
        if self.draw.node is None:
            yield "the rest of a machine draws nothing, for nobody says how much it does: run.power.node"

    def over(self, log: pd.DataFrame, begin: float, end: float, every: float = 0.05) -> pd.DataFrame:
        """Power from ``begin`` to ``end`` (wall seconds) of the run that ``log`` is of: at_s, watts, what (a fate).

        A sample ``every`` so often: where the job trains the step's own curve, phase by phase of the checkpoint
        pattern, slower where something slows it.
        """
        import pandas as pd

        rows = log[(log["what"] != _STRIKE) & (log["end_s"] > log["begin_s"])]
        starts = rows["begin_s"].to_numpy(np.float64)
        at = np.arange(begin, min(end, float(rows["end_s"].max())), every)
        row = np.clip(np.searchsorted(starts, at, side="right") - 1, 0, None)
        fates = np.where(np.isin(rows["what"].to_numpy(str), FATES), rows["what"].to_numpy(str), "productive")
        nominal = _nominal(rows, row, at)
        pattern = self.run.pattern
        stalls = pattern.spent("stall", nominal + every) - pattern.spent("stall", nominal) > 0.5 * every
        what = np.where((fates[row] == "productive") & stalls, "checkpoint", fates[row])
        level = {fate: self.watts(fate) for fate in np.unique(what)}
        watts = np.array([level[fate] for fate in what])
        trains = what == "productive"
        phase = pattern.spent("steps", nominal[trains]) % 1.0 * float(self.curve.instants[-1])
        place = np.searchsorted(self.curve.instants, phase, side="right") - 1
        watts[trains] = self.pue * self.curve.watts[np.clip(place, 0, len(self.curve.watts) - 1)]
        return pd.DataFrame({"at_s": at, "watts": watts + self.standing_by, "what": what})


def _nominal(rows: pd.DataFrame, row: np.ndarray, at: Floats) -> Floats:
    """Where on the nominal clock a run was at these wall seconds, each in that row of its log."""
    begin, end, done = (rows[name].to_numpy(np.float64) for name in ("begin_s", "end_s", "at_s"))
    before = np.concatenate([[0.0], done[:-1]])
    plain = rows["cause"].to_numpy(str) == ""
    first = np.where(plain, done - (end - begin), before)
    return np.asarray(first[row] + (done - first)[row] * (at - begin[row]) / (end - begin)[row])
