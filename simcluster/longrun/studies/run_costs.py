"""Energy and cost of simulated long runs: kWh, power and dollars, by time category and failure cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.units import HOUR, YEAR
from simcluster.longrun.events.run_record import STRIKE
from simcluster.longrun.long_run import FATES, MAINTENANCE, LongRun, RunOutcomes, cause_names
from simcluster.longrun.power import KWH, DevicePower, PowerCurve, category_watts, simulated_step_power
from simcluster.results.result import Result
from simcluster.scenario.run_section import PowerSpec, RunSpec

if TYPE_CHECKING:
    import pandas as pd

STANDING_BY = "standing by"
"""Time category of the energy of spare nodes."""
PRICES = {
    "gpus": "run.price",
    "spares": "run.spares.price",
    "storage": "run.checkpoint.price",
    "electricity": "run.power.price",
}
"""Items that may have a price, and the key that states it."""
_MONTH = YEAR / 12


@dataclass(frozen=True)
class RunEnergy:
    """Energy (kWh) and power (W) of simulated runs: the job, spare nodes, and the building's overhead (PUE).

    Training, kept or lost, draws what the healthy step does on average; spares that are hot or warm stand by idle
    (``standing_by``), cold ones are off. ``curve`` is the power of the job over its healthy step, without spares and
    ``pue``; ``low`` and ``peak`` its least and most with them, ``average`` that of all runs. ``kwh`` is that of each
    run by time category, and of spares that stand by; ``total`` the sum.
    """

    run: LongRun
    outcomes: RunOutcomes
    overrides: PowerSpec
    device_power: DevicePower
    step: Result
    pue: float = field(init=False)
    curve: PowerCurve = field(init=False)
    standing_by: float = field(init=False)
    kwh: dict[str, Floats] = field(init=False)
    total: Floats = field(init=False)
    average: float = field(init=False)
    low: float = field(init=False)
    peak: float = field(init=False)

    def __post_init__(self) -> None:
        run, pue, draw, wall = self.run, self.overrides.pue, self.device_power, self.outcomes.wall
        curve = simulated_step_power(self.step, draw)
        on = 0 if run.spares.unlimited else run.spares.hot + run.spares.warm
        standing_by = pue * on * (run.gpus / run.machines) * (draw.idle + draw.node_watts_per_gpu)
        kwh = {
            fate: np.asarray(pue * category_watts(fate, draw, curve.mean, run.gpus) * seconds / KWH)
            for fate, seconds in self.outcomes.seconds_by_category().items()
        }
        kwh[STANDING_BY] = standing_by * wall / KWH
        total = np.asarray(sum(kwh.values()), dtype=np.float64)
        vars(self).update(
            pue=pue, curve=curve, standing_by=standing_by, kwh=kwh, total=total,
            average=float(total.sum() / wall.sum()) * KWH, low=pue * float(curve.watts.min()) + standing_by,
            peak=pue * float(curve.watts.max()) + standing_by,
        )  # fmt: skip

    @cached_property
    def computation_power_curve(self) -> PowerCurve:
        """Power over a step in which only layer computation draws more than an idle GPU."""
        return simulated_step_power(self.step, self.device_power, computing=True)

    def mean_watts(self, category: str) -> float:
        """Return the job's mean power (W) in a time category such as productive or restart."""
        return self.pue * category_watts(category, self.device_power, self.curve.mean, self.run.gpus)

    def peak_to_peak(self, window: float) -> float:
        """Return the highest minus the lowest power (W) within a step, of power averaged over a window (s)."""
        return self.pue * self.curve.peak_to_peak(window)

    def assumed(self) -> Iterator[str]:
        """Yield the assumptions about power that no scenario key or measurement replaces."""
        share = self.device_power.communication
        if self.overrides.communication is None:
            yield (
                f"communication draws {share:.0%} of the range from idle to full power "
                f"({float(self.device_power.watts(share)):.0f} W per GPU): run.power.communication"
            )
        if self.device_power.node is None:
            yield "the rest of a node draws nothing, as its power is unknown: run.power.node"

    def to_dict(self, tokens: float) -> dict[str, Any]:
        """Return the runs' energy as a JSON document; ``tokens`` is the number of training tokens."""
        kwh = float(self.total.mean())
        return {
            "kwh": kwh,
            "standing_by_kwh": float(self.kwh[STANDING_BY].mean()),
            "joules_per_token": kwh * 3.6e6 / tokens if tokens else None,
            "pue": self.pue,
            "average_w": self.average,
            "step_low_w": self.low,
            "peak_w": self.peak,
            "swing_1s_w": self.peak_to_peak(1.0),
            "checkpoint_w": self.mean_watts("checkpoint") + self.standing_by,
            "restart_w": self.mean_watts("restart") + self.standing_by,
            "draw": self.device_power.model_dump(exclude={"source"}),
            "assumed": list(self.assumed()),
            "source": self.device_power.source,
        }

    def sample_power(self, log: pd.DataFrame, begin: float, end: float, every: float = 0.05) -> pd.DataFrame:
        """Return a logged run's power between two wall times (s), sampled once per ``every`` seconds.

        Columns at_s, watts, and the activity (what). In training the step's own curve, phase by phase of the checkpoint
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
        stalls = pattern.total_until("stall", nominal + every) - pattern.total_until("stall", nominal) > 0.5 * every
        what = np.where((fates[row] == "productive") & stalls, "checkpoint", fates[row])
        level = {fate: self.mean_watts(fate) for fate in np.unique(what)}
        watts = np.array([level[fate] for fate in what])
        trains = what == "productive"
        phase = pattern.total_until("steps", nominal[trains]) % 1.0 * float(self.curve.instants[-1])
        place = np.searchsorted(self.curve.instants, phase, side="right") - 1
        watts[trains] = self.pue * self.curve.watts[np.clip(place, 0, len(self.curve.watts) - 1)]
        return pd.DataFrame({"at_s": at, "watts": watts + self.standing_by, "what": what})


@dataclass(frozen=True)
class MfuShortfallCost:
    """Cost of MFU below the ``achievable`` MFU: dollars at that MFU, dollars lost, and the training they could buy."""

    achievable: float
    dollars: float
    lost: float
    more: float

    @classmethod
    def from_spending(cls, spent: float, mfu: float, achievable: float) -> MfuShortfallCost:
        """Return what training that cost ``spent`` dollars at ``mfu`` would have cost at the achievable MFU."""
        if mfu >= achievable:
            return cls(achievable, spent, 0.0, 0.0)
        return cls(achievable, spent * mfu / achievable, spent * (1 - mfu / achievable), achievable / mfu - 1)


@dataclass(frozen=True)
class RunCost:
    """Cost (dollars) of simulated runs: the job's GPUs, spare nodes, storage, and electricity.

    Each has the price that the scenario gives; what has no price is None, and in no sum. ``rates`` are dollars per
    second of the job (GPUs and their electricity) by time category; means over the runs are ``by_fate``, ``by_cause``
    (all categories together), ``failures`` (all causes but planned work) and ``parts`` (GPUs, spares, storage,
    electricity, which sum to the mean of ``total``, the dollars of each run).
    """

    run: LongRun
    outcomes: RunOutcomes
    section: RunSpec
    checkpoint_bytes: float
    energy: RunEnergy | None
    rates: dict[str, float] = field(init=False)
    by_fate: dict[str, float] = field(init=False)
    by_cause: dict[str, float] = field(init=False)
    failures: float = field(init=False)
    parts: dict[str, float] = field(init=False)
    total: Floats = field(init=False)

    def __post_init__(self) -> None:
        run, section, energy, spent = self.run, self.section, self.energy, self.outcomes.seconds_by_category()
        of_kwh = section.power.price or 0.0
        rates = dict.fromkeys(spent, run.gpus * (section.price or 0.0) / HOUR)
        if energy is not None:
            rates = {fate: gpus + energy.mean_watts(fate) / KWH * of_kwh for fate, gpus in rates.items()}
        each_cause = np.array([rates[fate] for fate in FATES]) @ self.outcomes.fates.mean(axis=0)  # [fate, cause]
        by_cause = dict(zip(cause_names(run), each_cause.tolist(), strict=True))
        # spares without a price cost as much as the job's nodes where their number is stated
        price = section.price if section.spares.price is None and section.spares.has_count else section.spares.price
        spares = (0 if run.spares.unlimited else run.spares.count) * (run.gpus / run.machines) * (price or 0.0) / HOUR
        storage = run.pattern.keep * self.checkpoint_bytes / 1e12 * (section.checkpoint.price or 0.0) / _MONTH
        standing = spares + storage
        if energy is not None:
            standing += energy.standing_by / KWH * of_kwh
        wall = float(self.outcomes.wall.mean())
        parts = {"gpus": (section.price, run.gpus * (section.price or 0.0) / HOUR * wall)}
        parts |= {"spares": (price, spares * wall), "storage": (section.checkpoint.price, storage * wall)}
        if energy is not None:
            parts["electricity"] = section.power.price, of_kwh * float(energy.total.mean())
        job = sum(rates[fate] * seconds for fate, seconds in spent.items())
        vars(self).update(
            rates=rates, by_fate={fate: rates[fate] * float(seconds.mean()) for fate, seconds in spent.items()},
            by_cause=by_cause, failures=sum(dollars for cause, dollars in by_cause.items() if cause != MAINTENANCE),
            parts={what: dollars for what, (price, dollars) in parts.items() if price is not None},
            total=np.asarray(job + standing * self.outcomes.wall, dtype=np.float64),
        )  # fmt: skip

    def to_dict(self, held: MfuShortfallCost | None) -> dict[str, Any]:
        """Return the cost as a JSON document, including the cost of MFU below the achievable MFU (``held``)."""
        return {
            **{what: self.parts.get(what) for what in PRICES},
            "lost_to_failures": self.failures,
            "price_of_mfu": None if held is None else asdict(held),
        }
