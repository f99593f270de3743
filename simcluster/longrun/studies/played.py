"""Runs of weeks that were played, in numbers: what a person asks of them, as means with their noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import DAY
from simcluster.longrun.eventlog import COLUMNS, incidents_of
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.outcome import Outcomes
from simcluster.longrun.run import LongRun
from simcluster.longrun.studies import accounts, expected
from simcluster.longrun.studies.assumptions import assumptions_of
from simcluster.longrun.studies.build import section_of
from simcluster.longrun.studies.energy import RunEnergy, energy_of
from simcluster.longrun.studies.losses import loss_bought
from simcluster.longrun.studies.money import PriceOfMfu, RunMoney, money_of, price_of_mfu
from simcluster.results.numbers import mfu
from simcluster.results.result import Result
from simcluster.scenario.checkpoint_plan import checkpoint_bytes
from simcluster.scenario.job import facts_of, real_tokens_per_step
from simcluster.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.longrun.events.record import RunRow
    from simcluster.planning.footprint import Facts

LOG = list(COLUMNS)


@dataclass(frozen=True)
class _Step:
    """The healthy step, as far as its MFU asks."""

    step_time: float
    facts: Facts


@dataclass(frozen=True)
class PlayedRuns:
    """Runs that were played: of ``scenario``, which is ``run`` in numbers; ``states`` are the states of the cluster
    that the step simulator played for it (by words, seconds a step), ``outcomes`` what came of each run, ``step`` the
    healthy step, whole, ``first`` the number of the first run (that of a stage's runs is not 0), ``notes`` what was
    taken for granted.

    Days, goodput and dollars are means over the runs; ``numbers`` has their 95 % intervals and percentiles.
    """

    scenario: Scenario
    run: LongRun
    states: Mapping[str, float]
    outcomes: Outcomes
    step: Result | None = field(default=None, repr=False)
    first: int = 0
    notes: tuple[str, ...] = ()

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions that the answer depends on and the scenario does not state."""
        return assumptions_of(self.scenario, self.run)

    @property
    def played(self) -> int:
        """Runs."""
        return len(self.outcomes.wall)

    @property
    def days(self) -> float:
        """Wall time."""
        return float(self.outcomes.wall.mean()) / DAY

    @property
    def goodput(self) -> float:
        """The productive share of the wall: what the steps that are kept take on the healthy cluster."""
        return float(self.shares["productive"].mean())

    @property
    def ettr(self) -> float:
        """The effective training time ratio: of the wall, what goes into steps that are kept, however slow they are."""
        return float(sum(self.shares[fate].mean() for fate in ("productive", "slow", "write")))

    @property
    def wall(self) -> Floats:
        """Seconds of each run."""
        return self.outcomes.wall

    @property
    def goodput_by_run(self) -> Floats:
        """Of each run."""
        return self.shares["productive"]

    @cached_property
    def shares(self) -> dict[str, Floats]:
        """By fate, the share of each run's wall."""
        return {fate: seconds / self.outcomes.wall for fate, seconds in self.outcomes.spent().items()}

    @cached_property
    def step_mfu(self) -> float:
        """MFU of the healthy step."""
        return mfu(_Step(self.run.pattern.step, facts_of(self.scenario, self.scenario.cluster.device)))

    @property
    def effective_mfu(self) -> float:
        """Of the whole run: that of the healthy step x goodput."""
        return self.step_mfu * self.goodput

    @property
    def tokens(self) -> float:
        """Tokens of the steps that are kept."""
        return float(self.outcomes.steps.mean()) * real_tokens_per_step(self.scenario)

    @property
    def loss(self) -> float | None:
        """What these tokens buy, by the run's law of loss; None where the run names neither a law nor a loss."""
        found = loss_bought(self.scenario, self.tokens)
        return None if found is None else found.loss

    @property
    def gpu_hours(self) -> float:
        """Of the job's GPUs; those of spare machines are not in it."""
        return self.days * 24 * self.run.gpus

    @property
    def spare_gpu_hours(self) -> float:
        """Of the machines that stand by."""
        each = self.run.gpus / self.run.machines
        return 0.0 if self.run.spares.unlimited else self.run.spares.count * each * self.days * 24

    @property
    def price(self) -> float | None:
        """Dollars a GPU and hour, where the scenario says it."""
        return section_of(self.scenario).price

    @cached_property
    def energy(self) -> RunEnergy | None:
        """kWh by fate, and the power of the job; None where nobody says what its GPUs draw."""
        return energy_of(self.run, self.outcomes, section_of(self.scenario).power, self.step)

    @cached_property
    def money(self) -> RunMoney | None:
        """Dollars by fate and by cause; None where nothing has a price."""
        section = section_of(self.scenario)
        size = checkpoint_bytes(self.scenario, section.checkpoint)
        return money_of(self.run, self.outcomes, section, size, self.energy)

    @property
    def dollars(self) -> float | None:
        """Of all that has a price in the scenario; None where nothing has."""
        return None if self.money is None else float(self.money.total.mean())

    @property
    def price_of_mfu(self) -> PriceOfMfu | None:
        """What the run would cost at the MFU that it is held to; None without that, or without a price."""
        achievable = section_of(self.scenario).achievable_mfu
        if achievable is None or self.dollars is None:
            return None
        return price_of_mfu(self.dollars, self.effective_mfu, achievable)

    @property
    def dollars_by_run(self) -> Floats | None:
        """Dollars of each run."""
        return None if self.dollars is None else self.dollars / self.days / DAY * self.outcomes.wall

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """Days, steps, goodput, failures, strikes, outages, and dollars and kWh where they are known: mean, low and
        high (95 %), p5, p50, p95 of the runs."""
        money, energy = self.money, self.energy
        more = {} if money is None else {"dollars": money.total}
        return accounts.numbers(self.outcomes, self.shares, more | ({} if energy is None else {"kwh": energy.total}))

    @cached_property
    def breakdown(self) -> pd.DataFrame:
        """By fate: mean_s (which sum to the mean wall), share, low and high of its 95 % interval, p10, p90; dollars and
        kwh (nan where they are not known)."""
        table = accounts.breakdown(self.outcomes, self.shares)
        table["dollars"] = accounts.column(table.index, None if self.money is None else self.money.by_fate)
        kwh = None if self.energy is None else {fate: float(each.mean()) for fate, each in self.energy.kwh.items()}
        table["kwh"] = accounts.column(table.index, kwh)
        return table

    @cached_property
    def causes(self) -> pd.DataFrame:
        """By cause: strikes, outages, seconds of each fate (``lost_s``, ...), ``all_s``, ``share`` of the wall, dollars
        (nan where they are not known)."""
        table = accounts.causes(self.outcomes)
        table["dollars"] = accounts.column(table.index, None if self.money is None else self.money.by_cause)
        return table

    @cached_property
    def parts(self) -> pd.DataFrame:
        """By part of a restart: mean_s of a run, and a restart's."""
        return accounts.parts(self.outcomes)

    @cached_property
    def weeks(self) -> pd.DataFrame:
        """By week: goodput (mean), p10, p90, and how many of the runs began it.

        What is lost to a failure counts against the week in which it strikes.
        """
        return accounts.weeks(self.outcomes)

    @cached_property
    def expected(self) -> pd.DataFrame:
        """Closed forms: value, simulated, half_width of its 95 % interval, holds (for what), why (it differs)."""
        return expected.closed_forms_of(self.run, self.outcomes)

    @cached_property
    def log(self) -> pd.DataFrame:
        """Run 0, event by event: begin_s, end_s, what, cause, which (part, by name), at_s (on the nominal clock);
        and the steps and snapshots of a stretch of training."""
        import pandas as pd

        return pd.DataFrame(self._rows, columns=LOG)

    @cached_property
    def incidents(self) -> pd.DataFrame:
        """Run 0 as a log that people keep: time and lasts (s; nan: not known), cause, device.  A CSV file of it can be
        replayed."""
        import pandas as pd

        columns = ["time", "cause", "device", "lasts"]
        return pd.DataFrame([asdict(each) for each in incidents_of(self.run, self._rows)], columns=columns)

    @cached_property
    def _rows(self) -> list[RunRow]:
        return simulate_with_log(self.run, self.scenario.seed, self.first)[1]

    def restart_for(self, ettr: float) -> float:
        """Seconds from a strike to training on, detection included, that an effective training time ratio asks for.

        All outages are as much longer (or shorter) than they are, by time in which nothing strikes; may be negative.
        """
        fates = ("detection", "diagnosis", "restart", "waiting")
        outages = float(self.outcomes.outages.sum(axis=1).mean())
        if not outages:
            raise InputError(
                f"{self.scenario.name}: nothing stopped the job in {self.played} runs; play more of them, "
                "or longer ones"
            )
        now = float(self.breakdown.loc[list(fates), "mean_s"].sum()) / outages
        return now + (self.ettr / ettr - 1) * float(self.outcomes.wall.mean()) / outages
