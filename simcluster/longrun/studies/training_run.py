"""Results of simulated long training runs with one stage: numbers, tables and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.units import DAY
from simcluster.longrun.defaults import list_assumptions
from simcluster.longrun.event_log import COLUMNS, failures_in_simulated_log
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.long_run import FATES, LongRun, RunOutcomes, cause_names
from simcluster.longrun.power import resolve_power
from simcluster.longrun.run_feasibility import job_stop_rate
from simcluster.longrun.scaling.request import expected_loss
from simcluster.longrun.studies.closed_form_comparison import compare_closed_forms
from simcluster.longrun.studies.run_builder import require_run_section
from simcluster.longrun.studies.run_costs import MfuShortfallCost, RunCost, RunEnergy
from simcluster.longrun.text_formats import make_frame, rows_to_dicts, to_json_value
from simcluster.results.distribution import confidence_half_width
from simcluster.results.result import VERSION, Result
from simcluster.scenario.checkpoint_plan import checkpoint_bytes
from simcluster.scenario.job_conversion import job_facts_of, unpadded_tokens_per_step
from simcluster.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.longrun.events.run_record import RunLogRow


def measure_table(measured: Mapping[str, Floats | None]) -> pd.DataFrame:
    """Return a table with a row per measure: mean over the runs, 95 % interval (low, high), p5, p50 and p95."""
    rows = [
        [name, *_mean_interval(values), *np.quantile(values, (0.05, 0.5, 0.95))]
        for name, values in measured.items()
        if values is not None
    ]
    return make_frame(rows, "what mean low high p5 p50 p95", "what")


def _mean_interval(values: Floats) -> tuple[float, float, float]:
    mean = float(values.mean())
    half = confidence_half_width(values) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


@dataclass(frozen=True)
class TrainingRun(Displayable):
    """Simulated long runs of a scenario with one stage: outcomes, means, tables and costs.

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
    outcomes: RunOutcomes
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
        stops = [number for number, cause in enumerate(run.causes) if cause.stops_job]
        days, goodput = float(wall.mean()) / DAY, float(shares["productive"].mean())
        facts = job_facts_of(self.scenario, self.scenario.cluster.device)
        step_mfu = facts.model_flops / run.pattern.step / (facts.ranks * facts.peak_flops)
        spares = 0.0 if run.spares.unlimited else run.spares.count * (run.gpus / run.machines) * days * 24
        vars(self).update(
            played=len(wall), wall=wall, shares=shares, goodput_by_run=shares["productive"],
            failures_by_run=np.asarray(outcomes.strikes[:, stops].sum(axis=1), dtype=np.float64),
            days=days, goodput=goodput,
            ettr=float(sum(shares[fate].mean() for fate in ("productive", "slow", "write"))),
            step_mfu=step_mfu, effective_mfu=step_mfu * goodput,
            tokens=float(outcomes.steps.mean()) * unpadded_tokens_per_step(self.scenario),
            gpu_hours=days * 24 * run.gpus, spare_gpu_hours=spares, price=require_run_section(self.scenario).price,
        )  # fmt: skip

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions that the results depend on but the scenario does not state."""
        return tuple(list_assumptions(require_run_section(self.scenario), self.run))

    @property
    def loss(self) -> float | None:
        """Expected loss after the run's tokens; None if the run states neither a loss law nor a loss."""
        found = expected_loss(self.scenario, self.tokens)
        return None if found is None else found.loss

    @cached_property
    def energy(self) -> RunEnergy | None:
        """Energy (kWh) by time category, and the job's power; None if the GPUs' power is unknown."""
        power = require_run_section(self.scenario).power
        draw = None if self.step is None else resolve_power(self.step.scenario.cluster.device.name, power)
        return None if self.step is None or draw is None else RunEnergy(self.run, self.outcomes, power, draw, self.step)

    @cached_property
    def money(self) -> RunCost | None:
        """Cost (dollars) by time category and failure cause; None if no price is set."""
        section = require_run_section(self.scenario)
        prices = section.price, section.spares.price, section.checkpoint.price, section.power.price
        size = checkpoint_bytes(self.scenario, section.checkpoint)
        if all(price is None for price in prices):
            return None
        return RunCost(self.run, self.outcomes, section, size, self.energy)

    @property
    def dollars(self) -> float | None:
        """Mean cost (dollars) of a run, of all resources that have a price; None if no price is set."""
        return None if self.money is None else float(self.money.total.mean())

    @property
    def dollars_by_run(self) -> Floats | None:
        """Cost (dollars) of each run; None if no price is set."""
        return None if self.dollars is None else self.dollars / self.days / DAY * self.wall

    @property
    def price_of_mfu(self) -> MfuShortfallCost | None:
        """Cost of the run's MFU being below its achievable MFU; None if that MFU or a price is not set."""
        achievable = require_run_section(self.scenario).achievable_mfu
        if achievable is None or self.dollars is None:
            return None
        return MfuShortfallCost.from_spending(self.dollars, self.effective_mfu, achievable)

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """Table of days, steps, goodput, failures, dollars and kWh of the runs: mean, 95 % interval, percentiles."""
        outcomes = self.outcomes
        return measure_table({
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
        """Table of the mean wall time by time category, with shares and cost.

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
        """Table with a row per failure cause, most expensive first: failures, outages, lost time, cost.

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
        """Table of the seconds in each restart phase: ``mean_s`` is the mean per run, ``each_s`` that per restart."""
        seconds = self.outcomes.parts.mean(axis=0).tolist()
        count = max(float(self.outcomes.outages.sum(axis=1).mean()), 1e-12)
        known = zip(self.run.restart, seconds, strict=True)
        return make_frame([(part.name, mean, mean / count) for part, mean in known], "part mean_s each_s", "part")

    @cached_property
    def weeks(self) -> pd.DataFrame:
        """Table of goodput by week: mean, 10th and 90th percentile, and how many runs began that week.

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
        """Table of closed forms: value, simulated value, validity, and why the two values differ."""
        return compare_closed_forms(self.run, self.outcomes)

    @cached_property
    def log(self) -> pd.DataFrame:
        """Event log of the first simulated run, as a table.

        Columns begin_s, end_s, what, cause, which (part, by name), at_s (on the nominal clock); and the steps and
        snapshots of a stretch of training.
        """
        return make_frame(self._log_rows, " ".join(COLUMNS))

    @cached_property
    def incidents(self) -> pd.DataFrame:
        """Failure log of the first run, to replay as CSV: time, duration (``lasts``, s; or nan), cause, device."""
        return make_frame(map(astuple, failures_in_simulated_log(self.run, self._log_rows)), "time cause device lasts")

    @cached_property
    def _log_rows(self) -> list[RunLogRow]:
        return simulate_with_log(self.run, self.scenario.seed, self.first)[1]

    def restart_for(self, ettr: float) -> float:
        """Return the restart time (s, with detection) at which the effective training time ratio is ``ettr``.

        All outages become longer (or shorter) by the same time, in which nothing fails; may be negative.
        """
        outages = float(self.outcomes.outages.sum(axis=1).mean())
        if not outages:
            raise InputError(
                f"{self.scenario.name}: no failure stopped the job in {self.played} runs; simulate more runs, "
                "or longer ones"
            )
        fates = ["detection", "diagnosis", "restart", "waiting"]
        now = float(self.breakdown.loc[fates, "mean_s"].sum()) / outages
        return now + (self.ettr / ettr - 1) * float(self.wall.mean()) / outages

    def to_dict(self) -> dict[str, Any]:
        """Return the runs as a JSON document (CONTRACT.md, "A run of weeks")."""
        pattern, rate, scenario = self.run.pattern, job_stop_rate(self.run), self.scenario
        money, energy, keep = self.money, self.energy, pattern.keep

        def fields_named(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        found = {
            "name": scenario.name,
            "gpus": self.run.gpus,
            "played": self.played,
            "seed": scenario.seed,
            **fields_named("days", "goodput", "ettr"),
            "step_time_s": pattern.step,
            **fields_named("step_mfu", "effective_mfu", "tokens", "loss", "gpu_hours", "spare_gpu_hours"),
            "price_per_gpu_hour": self.price,
            "dollars": self.dollars,
            "money": None if money is None else money.to_dict(self.price_of_mfu),
            "energy": None if energy is None else energy.to_dict(self.tokens),
            "mtbf_s": 1 / rate if rate else None,
            "checkpoint": {
                "size_bytes": checkpoint_bytes(scenario, require_run_section(scenario).checkpoint),
                "stall_s": pattern.storage.stall,
                "write_s": pattern.storage.write,
                "steps": pattern.steps if keep else None,
                "interval_s": pattern.steps * pattern.step_with_validation if keep else None,
            },
            "numbers": self.numbers.to_dict(orient="index"),
            "breakdown": self.breakdown.to_dict(orient="index"),
            "causes": rows_to_dicts(self.causes),
            "restart_parts": rows_to_dicts(self.parts),
            "weeks": rows_to_dicts(self.weeks),
            "expected": rows_to_dicts(self.expected),
            "states": [{"state": words, "step_time_s": seconds} for words, seconds in self.states.items()],
            "assumed": list(self.assumed),
            "notes": list(self.notes),
            "scenario": scenario.document(),
            "version": VERSION,
        }
        return dict(to_json_value(found))
