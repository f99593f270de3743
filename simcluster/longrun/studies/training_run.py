"""Simulated long training runs of one stage: their results as numbers, tables and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.shown import Displayable
from simcluster.base.units import DAY
from simcluster.longrun.defaults import list_assumptions
from simcluster.longrun.ending import stop_rate
from simcluster.longrun.eventlog import COLUMNS, simulated_incidents
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.run import FATES, LongRun, Outcomes, cause_names
from simcluster.longrun.scaling.request import expected_loss
from simcluster.longrun.studies.build import run_section
from simcluster.longrun.studies.expected import compare_closed_forms
from simcluster.longrun.studies.run_costs import PriceOfMfu, RunEnergy, RunMoney
from simcluster.longrun.text import frame_rows, json_value, make_frame
from simcluster.results.distribution import half_width
from simcluster.results.result import VERSION, Result
from simcluster.scenario.checkpoint_plan import checkpoint_bytes
from simcluster.scenario.job import facts_of, real_tokens_per_step
from simcluster.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.longrun.events.record import RunRow


def means_table(measured: Mapping[str, Floats | None]) -> pd.DataFrame:
    """Return a table with a row per measure: mean, low, high (95 %), p5, p50 and p95 over the runs."""
    rows = [
        [name, *_mean_interval(values), *np.quantile(values, (0.05, 0.5, 0.95))]
        for name, values in measured.items()
        if values is not None
    ]
    return make_frame(rows, "what mean low high p5 p50 p95", "what")


def _mean_interval(values: Floats) -> tuple[float, float, float]:
    mean = float(values.mean())
    half = half_width(values) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class TrainingRun(Displayable):
    """Simulated long runs of a scenario without stages: outcomes, means, tables and costs.

    ``run`` is the scenario's run in numbers, ``states`` the states of the cluster that the step simulator simulated (by
    name, seconds per step), ``outcomes`` the outcome of each run, ``step`` the whole healthy step, ``first`` the number
    of the first run (not 0 for the runs of a stage), ``notes`` the assumptions made.

    Of the runs there are ``played``; means over them are ``days`` of wall time, ``goodput`` (the share of the wall time
    that is productive: what the kept steps take on the healthy cluster), ``ettr`` (the effective training time ratio:
    the share that goes into kept steps, slow ones too), ``step_mfu`` of the healthy step and ``effective_mfu`` of the
    whole run, ``tokens`` of the kept steps, ``gpu_hours`` of the job and ``spare_gpu_hours`` of spare nodes. ``price``
    is dollars per GPU-hour, if the scenario states it. Of each run there are ``wall`` seconds, ``goodput_by_run``,
    ``shares`` of the wall by time category, and ``failures_by_run``, the number of failures that stopped the job.
    ``numbers`` has the 95 % intervals and percentiles of the means.
    """

    scenario: Scenario
    run: LongRun
    states: Mapping[str, float]
    outcomes: Outcomes
    step: Result | None = field(default=None, repr=False)
    first: int = 0
    notes: tuple[str, ...] = ()
    played: int = field(init=False)
    wall: Floats = field(init=False, repr=False)
    shares: dict[str, Floats] = field(init=False, repr=False)
    goodput_by_run: Floats = field(init=False, repr=False)
    failures_by_run: Floats = field(init=False, repr=False)
    days: float = field(init=False)
    goodput: float = field(init=False)
    ettr: float = field(init=False)
    step_mfu: float = field(init=False)
    effective_mfu: float = field(init=False)
    tokens: float = field(init=False)
    gpu_hours: float = field(init=False)
    spare_gpu_hours: float = field(init=False)
    price: float | None = field(init=False)

    def __post_init__(self) -> None:
        run, outcomes, wall = self.run, self.outcomes, self.outcomes.wall
        shares = {fate: seconds / wall for fate, seconds in outcomes.seconds_by_category().items()}
        stops = [number for number, cause in enumerate(run.causes) if cause.stops]
        days, goodput = float(wall.mean()) / DAY, float(shares["productive"].mean())
        facts = facts_of(self.scenario, self.scenario.cluster.device)
        step_mfu = facts.model_flops / run.pattern.step / (facts.ranks * facts.peak_flops)
        spares = 0.0 if run.spares.unlimited else run.spares.count * (run.gpus / run.machines) * days * 24
        vars(self).update(
            played=len(wall), wall=wall, shares=shares, goodput_by_run=shares["productive"],
            failures_by_run=np.asarray(outcomes.strikes[:, stops].sum(axis=1), dtype=np.float64),
            days=days, goodput=goodput,
            ettr=float(sum(shares[fate].mean() for fate in ("productive", "slow", "write"))),
            step_mfu=step_mfu, effective_mfu=step_mfu * goodput,
            tokens=float(outcomes.steps.mean()) * real_tokens_per_step(self.scenario),
            gpu_hours=days * 24 * run.gpus, spare_gpu_hours=spares, price=run_section(self.scenario).price,
        )  # fmt: skip

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions that the results depend on and the scenario does not state."""
        return tuple(list_assumptions(run_section(self.scenario), self.run))

    @property
    def loss(self) -> float | None:
        """Expected loss after the run's tokens; None if the run names neither a loss law nor a loss."""
        found = expected_loss(self.scenario, self.tokens)
        return None if found is None else found.loss

    @cached_property
    def energy(self) -> RunEnergy | None:
        """Energy by time category, and power of the job; None if the power of its GPUs is unknown."""
        return RunEnergy.of_runs(self.run, self.outcomes, run_section(self.scenario).power, self.step)

    @cached_property
    def money(self) -> RunMoney | None:
        """Cost in dollars by time category and by cause; None if nothing has a price."""
        section = run_section(self.scenario)
        size = checkpoint_bytes(self.scenario, section.checkpoint)
        return RunMoney.of_runs(self.run, self.outcomes, section, size, self.energy)

    @property
    def dollars(self) -> float | None:
        """Mean cost (dollars) of everything that has a price in the scenario; None if nothing has."""
        return None if self.money is None else float(self.money.total.mean())

    @property
    def dollars_by_run(self) -> Floats | None:
        """Cost of each run (dollars); None if nothing has a price."""
        return None if self.dollars is None else self.dollars / self.days / DAY * self.wall

    @property
    def price_of_mfu(self) -> PriceOfMfu | None:
        """Cost of the run at its achievable MFU; None if that or a price is not stated."""
        achievable = run_section(self.scenario).achievable_mfu
        if achievable is None or self.dollars is None:
            return None
        return PriceOfMfu.of_dollars(self.dollars, self.effective_mfu, achievable)

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """Table over runs of days, steps, goodput, failures, dollars and kWh: mean, interval, percentiles."""
        outcomes = self.outcomes
        return means_table({
            "days": self.wall / DAY,
            "steps": outcomes.steps,
            "goodput": self.goodput_by_run,
            "failures": self.failures_by_run,
            "strikes": outcomes.strikes.sum(axis=1).astype(np.float64),
            "outages": outcomes.outages.sum(axis=1).astype(np.float64),
            "dollars": None if self.money is None else self.money.total,
            "kwh": None if self.energy is None else self.energy.total,
        })  # fmt: skip

    @cached_property
    def breakdown(self) -> pd.DataFrame:
        """Table of the mean wall time, share and cost by time category.

        Columns mean_s (which sum to the mean wall time), share, low and high of its 95 % interval, p10, p90; dollars
        and kwh (nan if not known).
        """
        spent, money, energy = self.outcomes.seconds_by_category(), self.money, self.energy
        rows = [
            [fate, float(spent[fate].mean()), *_mean_interval(share), *np.quantile(share, (0.1, 0.9)),
                   math.nan if money is None else money.by_fate[fate],
                   math.nan if energy is None else float(energy.kwh[fate].mean())]
            for fate, share in self.shares.items()
        ]  # fmt: skip
        return make_frame(rows, "fate mean_s share low high p10 p90 dollars kwh", "fate")

    @cached_property
    def causes(self) -> pd.DataFrame:
        """Table of failures, outages, lost time and cost by cause, the most expensive first.

        Columns strikes (failures), outages, seconds of each time category (``lost_s``, ...), ``all_s``, ``share`` of
        the wall time, dollars (nan if not known).
        """
        import pandas as pd

        outcomes, names = self.outcomes, cause_names(self.run)
        seconds = outcomes.fates.mean(axis=0)  # [fate, cause]
        strikes = np.zeros(len(names))
        strikes[: outcomes.strikes.shape[1]] = outcomes.strikes.mean(axis=0)
        table = {
            "strikes": strikes,
            "outages": outcomes.outages.mean(axis=0),
            **{f"{fate}_s": seconds[number] for number, fate in enumerate(FATES)},
            "all_s": seconds.sum(axis=0),
            "share": seconds.sum(axis=0) / self.wall.mean(),
            "dollars": math.nan if self.money is None else list(self.money.by_cause.values()),
        }
        known = pd.DataFrame(table, index=pd.Index(names, name="cause"))
        return known.sort_values("all_s", ascending=False, kind="stable")

    @cached_property
    def parts(self) -> pd.DataFrame:
        """Table of mean seconds by phase of a restart: mean_s per run, each_s per restart."""
        seconds = self.outcomes.parts.mean(axis=0).tolist()
        count = max(float(self.outcomes.outages.sum(axis=1).mean()), 1e-12)
        known = zip(self.run.restart, seconds, strict=True)
        return make_frame([(part.name, mean, mean / count) for part, mean in known], "part mean_s each_s", "part")

    @cached_property
    def weeks(self) -> pd.DataFrame:
        """Table of goodput by week: mean, p10, p90, and the number of runs that began the week.

        The last week of a run is as long as the run continues in it. Work that is lost to a failure counts against the
        week in which it occurs.
        """
        rows = []
        goodput, seconds = self.outcomes.weekly_goodput()
        for number, (good, lasts) in enumerate(zip(goodput.T, seconds.T, strict=True), 1):
            begun = good[lasts > 1e-6 * self.run.week]
            if len(begun):
                rows.append([number, float(begun.mean()), *np.quantile(begun, (0.1, 0.9)), len(begun)])
        return make_frame(rows, "week goodput p10 p90 runs").astype({"week": int, "runs": int})

    @cached_property
    def expected(self) -> pd.DataFrame:
        """Table of closed forms with the simulated results, their validity, and why the two differ."""
        return compare_closed_forms(self.run, self.outcomes)

    @cached_property
    def log(self) -> pd.DataFrame:
        """Event log of run 0 as a table.

        Columns begin_s, end_s, what, cause, which (part, by name), at_s (on the nominal clock); and the steps and
        snapshots of a stretch of training.
        """
        return make_frame(self._log_rows, " ".join(COLUMNS))

    @cached_property
    def incidents(self) -> pd.DataFrame:
        """Failures in run 0 as a table whose CSV can be replayed: time, lasts (s; or nan), cause, device."""
        return make_frame(map(astuple, simulated_incidents(self.run, self._log_rows)), "time cause device lasts")

    @cached_property
    def _log_rows(self) -> list[RunRow]:
        return simulate_with_log(self.run, self.scenario.seed, self.first)[1]

    def restart_for(self, ettr: float) -> float:
        """Return the restart time (s) that an effective training time ratio allows, including detection.

        All outages become longer (or shorter) by the same time, in which nothing fails; may be negative.
        """
        outages = float(self.outcomes.outages.sum(axis=1).mean())
        if not outages:
            raise InputError(
                f"{self.scenario.name}: nothing stopped the job in {self.played} runs; simulate more of them, "
                "or longer ones"
            )
        fates = ["detection", "diagnosis", "restart", "waiting"]
        now = float(self.breakdown.loc[fates, "mean_s"].sum()) / outages
        return now + (self.ettr / ettr - 1) * float(self.wall.mean()) / outages

    def to_dict(self) -> dict[str, Any]:
        """Return the runs as a JSON document (CONTRACT.md, "A run of weeks")."""
        pattern, rate, scenario = self.run.pattern, stop_rate(self.run), self.scenario
        money, energy, keep = self.money, self.energy, pattern.keep

        def values_of(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        found = {
            "name": scenario.name,
            "gpus": self.run.gpus,
            "played": self.played,
            "seed": scenario.seed,
            **values_of("days", "goodput", "ettr"),
            "step_time_s": pattern.step,
            **values_of("step_mfu", "effective_mfu", "tokens", "loss", "gpu_hours", "spare_gpu_hours"),
            "price_per_gpu_hour": self.price,
            "dollars": self.dollars,
            "money": None if money is None else money.to_dict(self.price_of_mfu),
            "energy": None if energy is None else energy.to_dict(self.tokens),
            "mtbf_s": 1 / rate if rate else None,
            "checkpoint": {
                "size_bytes": checkpoint_bytes(scenario, run_section(scenario).checkpoint),
                "stall_s": pattern.storage.stall,
                "write_s": pattern.storage.write,
                "steps": pattern.steps if keep else None,
                "interval_s": pattern.steps * pattern.step_with_validation if keep else None,
            },
            "numbers": self.numbers.to_dict(orient="index"),
            "breakdown": self.breakdown.to_dict(orient="index"),
            "causes": frame_rows(self.causes),
            "restart_parts": frame_rows(self.parts),
            "weeks": frame_rows(self.weeks),
            "expected": frame_rows(self.expected),
            "states": [{"state": words, "step_time_s": seconds} for words, seconds in self.states.items()],
            "assumed": list(self.assumed),
            "notes": list(self.notes),
            "scenario": scenario.document(),
            "version": VERSION,
        }
        return dict(json_value(found))
