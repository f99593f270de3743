"""What runs that were played cost, in dollars by fate and by cause: of what has a price in the scenario alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.units import HOUR, YEAR
from simcluster.longrun.outcome import MAINTENANCE, Outcomes, names_of
from simcluster.longrun.power import KWH
from simcluster.longrun.run import FATES, LongRun
from simcluster.longrun.studies.energy import RunEnergy
from simcluster.scenario.run_section import RunSpec

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

    @property
    def gpus(self) -> float | None:
        """Of the job's GPUs."""
        return None if self.section.price is None else self._a_second(self.run.gpus * self.section.price / HOUR)

    @property
    def spares(self) -> float | None:
        """Of machines that stand by, hot, warm or cold; those of a pool without limit are nobody's."""
        return None if self.spares_price is None else self._a_second(self._spares_rate)

    @property
    def storage(self) -> float | None:
        """Of the checkpoints that are kept on storage."""
        return None if self.section.checkpoint.price is None else self._a_second(self._storage_rate)

    @property
    def electricity(self) -> float | None:
        """Of all kWh; None as well where nobody knows how many."""
        price = self.section.power.price
        return None if price is None or self.energy is None else price * float(self.energy.total.mean())

    @cached_property
    def total(self) -> Floats:
        """Of each run, all that has a price."""
        job = sum(self.rates[fate] * seconds for fate, seconds in self.outcomes.spent().items())
        standing = self._spares_rate + self._storage_rate
        if self.energy is not None:
            standing += self.energy.standing_by / KWH * (self.section.power.price or 0.0)
        return np.asarray(job + standing * self.outcomes.wall, dtype=np.float64)

    def parts(self) -> Iterator[tuple[str, float]]:
        """(what, dollars) of those that have a price; they sum to the mean total."""
        for what in ("gpus", "spares", "storage", "electricity"):
            if (dollars := getattr(self, what)) is not None:
                yield what, dollars

    @property
    def _spares_rate(self) -> float:
        each = self.run.gpus / self.run.machines
        count = 0 if self.run.spares.unlimited else self.run.spares.count
        return count * each * (self.spares_price or 0.0) / HOUR

    @property
    def _storage_rate(self) -> float:
        kept = self.run.pattern.keep * self.checkpoint_bytes / 1e12
        return kept * (self.section.checkpoint.price or 0.0) / _MONTH

    def _a_second(self, dollars: float) -> float:
        return dollars * float(self.outcomes.wall.mean())
