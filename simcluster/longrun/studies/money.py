"""Energy and money of simulated runs: kWh and power by fate, and dollars by fate and cause of what has a price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.units import HOUR, YEAR
from simcluster.devices.device import TilesMatmul
from simcluster.documents.catalogue import presets
from simcluster.longrun.events.record import STRIKE
from simcluster.longrun.outcome import MAINTENANCE, Outcomes, names_of
from simcluster.longrun.power import KWH, DrawSpec, PowerCurve, draw_of, draw_with, energy_kwh, power_curve, watts_of
from simcluster.longrun.run import FATES, LongRun
from simcluster.results.result import Result
from simcluster.scenario.run_section import PowerSpec, RunSpec

if TYPE_CHECKING:
    import pandas as pd


def drawn_by(result: Result, draw: DrawSpec | None = None, *, computing: bool = False) -> PowerCurve:
    """Return the power of a simulated step, W; ``draw`` defaults to that of the scenario's device (InputError if it is
    not known).

    Computation of layers has the step's FLOP over their seconds as its share of the rate at which the chip meets its
    power limit (``power`` x ``sustained`` of the device's peak: there it draws ``full``).  A collective takes
    ``waiting`` until its peers are there, then ``communication``, as do ops that wait for memory (the optimizer); only
    ``computing``: both as an idle GPU.
    """
    spans, device = result.spans, result.scenario.cluster.device
    draw = draw_of(device.name) if draw is None else draw
    communication, waiting = (0.0, 0.0) if computing else (draw.communication, draw.waiting)
    matmul, fp8, share = device.matmul, device.peak.fp8 == result.facts.peak_flops, 1.0
    if isinstance(matmul, TilesMatmul):
        power, kept = (matmul.power_fp8, matmul.sustained_fp8) if fp8 else (matmul.power, matmul.sustained)
        share = (power or matmul.power) * (kept or matmul.sustained)
    weights = {rank: float(weight) for rank, weight in result.weights.items()}
    each = np.zeros(max(weights) + 1)
    each[list(weights)] = list(weights.values())
    on_compute = spans.stream == spans.code("compute")
    matmuls = on_compute & np.isin(spans.kind, [spans.code(kind) for kind in ("forward", "backward", "recompute")])
    flops = result.facts.hardware_flops * result.steps / (result.facts.peak_flops * share)
    busy = min(1.0, flops / float((each[spans.rank] * (spans.end - spans.start))[matmuls].sum()))
    waits = ~on_compute & (spans.start > spans.ready)
    return power_curve(
        draw,
        np.concatenate([spans.rank, spans.rank[waits]]),
        np.concatenate([spans.start, spans.ready[waits]]),
        np.concatenate([spans.end, spans.start[waits]]),
        np.concatenate([np.where(matmuls, busy, communication), np.full(np.count_nonzero(waits), waiting)]),
        weights,
        step=float(spans.end.max()),
    )


STANDING_BY = "standing by"
"""What the energy of spare machines is counted under."""


def energy_of(run: LongRun, outcomes: Outcomes, own: PowerSpec, step: Result | None) -> RunEnergy | None:
    """Return the energy of runs whose healthy step was ``step``; None if the power of a GPU is not known."""
    draw = None if step is None else draw_in(step.scenario.cluster.device.name, own)
    return None if step is None or draw is None else RunEnergy(run, outcomes, own, draw, step)


def draw_in(device: str, own: PowerSpec) -> DrawSpec | None:
    """Return the power of a device in a run; None if neither catalogue nor run states it.

    InputError if the run states a part of it, and the catalogue does not know the rest.
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
        return drawn_by(self.step, self.draw, computing=True)

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

        rows = log[(log["what"] != STRIKE) & (log["end_s"] > log["begin_s"])]
        starts = rows["begin_s"].to_numpy(np.float64)
        at = np.arange(begin, min(end, float(rows["end_s"].max())), every)
        row = np.clip(np.searchsorted(starts, at, side="right") - 1, 0, None)
        fates = np.where(np.isin(rows["what"].to_numpy(str), FATES), rows["what"].to_numpy(str), "productive")
        ends, done = (rows[name].to_numpy(np.float64) for name in ("end_s", "at_s"))
        plain = rows["cause"].to_numpy(str) == ""
        first = np.where(plain, done - (ends - starts), np.concatenate([[0.0], done[:-1]]))
        nominal = first[row] + (done - first)[row] * (at - starts[row]) / (ends - starts)[row]
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


_MONTH = YEAR / 12


def money_of(
    run: LongRun, outcomes: Outcomes, section: RunSpec, checkpoint_bytes: float, energy: RunEnergy | None
) -> RunMoney | None:
    """The money of runs with checkpoints of so many bytes; None where nothing has a price."""
    known = section.price, section.spares.price, section.checkpoint.price, section.power.price
    if all(price is None for price in known):
        return None
    return RunMoney(run, outcomes, section, checkpoint_bytes, energy)


@dataclass(frozen=True)
class PriceOfMfu:
    """What the same FLOP would cost at an MFU that is ``achievable``: ``dollars``, ``lost`` above them, and how much
    ``more`` training (a share) the money would have bought."""

    achievable: float
    dollars: float
    lost: float
    more: float


def price_of_mfu(spent: float, mfu: float, achievable: float) -> PriceOfMfu:
    """Dollars spent at an MFU, held to another; nothing is lost where the MFU is as high.  Both above 0."""
    if mfu >= achievable:
        return PriceOfMfu(achievable, spent, 0.0, 0.0)
    return PriceOfMfu(achievable, spent * mfu / achievable, spent * (1 - mfu / achievable), achievable / mfu - 1)


@dataclass(frozen=True)
class RunMoney:
    """Dollars of runs: GPUs of the job, spares that stand by, what is kept on storage, electricity.

    Each has the price that the scenario gives; what has none is None, and in no sum.
    """

    run: LongRun
    outcomes: Outcomes
    section: RunSpec
    checkpoint_bytes: float
    energy: RunEnergy | None

    @property
    def spares_price(self) -> float | None:
        """Dollars per GPU and hour of spare nodes; None without a price of theirs where their number is assumed."""
        spares = self.section.spares
        return self.section.price if spares.price is None and spares.stated else spares.price

    @cached_property
    def rates(self) -> dict[str, float]:
        """Dollars a second of the job, by the fate of the second: its GPUs, and their electricity."""
        gpus = self.run.gpus * (self.section.price or 0.0) / HOUR
        kwh = self.section.power.price or 0.0
        fates = self.outcomes.spent()
        if self.energy is None:
            return dict.fromkeys(fates, gpus)
        return {fate: gpus + self.energy.watts(fate) / KWH * kwh for fate in fates}

    @cached_property
    def by_fate(self) -> dict[str, float]:
        """What the job's seconds cost, by fate: a mean over the runs."""
        return {fate: self.rates[fate] * float(seconds.mean()) for fate, seconds in self.outcomes.spent().items()}

    @cached_property
    def by_cause(self) -> dict[str, float]:
        """What each cause costs, all fates together: a mean over the runs."""
        each = self.outcomes.fates.mean(axis=0)  # [fate, cause]
        rates = np.array([self.rates[fate] for fate in FATES])
        return dict(zip(names_of(self.run), (rates @ each).tolist(), strict=True))

    @property
    def failures(self) -> float:
        """Lost to all that fails: what causes cost, but for planned work."""
        return sum(dollars for cause, dollars in self.by_cause.items() if cause != MAINTENANCE)

    @cached_property
    def total(self) -> Floats:
        """Dollars of each run, of everything that has a price."""
        job = sum(self.rates[fate] * seconds for fate, seconds in self.outcomes.spent().items())
        standing = self._standing["spares"] + self._standing["storage"]
        if self.energy is not None:
            standing += self.energy.standing_by / KWH * (self.section.power.price or 0.0)
        return np.asarray(job + standing * self.outcomes.wall, dtype=np.float64)

    @cached_property
    def _standing(self) -> dict[str, float]:
        """Dollars per second of spare nodes (those of an unlimited pool are free) and of the checkpoints on storage."""
        run, each = self.run, self.run.gpus / self.run.machines
        spares = (0 if run.spares.unlimited else run.spares.count) * each * (self.spares_price or 0.0) / HOUR
        kept = run.pattern.keep * self.checkpoint_bytes / 1e12
        return {"spares": spares, "storage": kept * (self.section.checkpoint.price or 0.0) / _MONTH}

    @cached_property
    def parts(self) -> dict[str, float]:
        """Dollars of GPUs, spares, storage and electricity, as far as they have a price; they sum to the mean total."""
        section, wall = self.section, float(self.outcomes.wall.mean())
        found = {}
        if section.price is not None:
            found["gpus"] = self.run.gpus * section.price / HOUR * wall
        if self.spares_price is not None:
            found["spares"] = self._standing["spares"] * wall
        if section.checkpoint.price is not None:
            found["storage"] = self._standing["storage"] * wall
        if section.power.price is not None and self.energy is not None:
            found["electricity"] = section.power.price * float(self.energy.total.mean())
        return found
