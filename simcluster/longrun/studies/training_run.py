"""Simulated runs of one stage: what comes of a scenario's ``run:`` section, as numbers, text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simcluster.base.counts import format_tokens, whole_dollars
from simcluster.base.shown import Shown
from simcluster.base.units import DAY, format_bytes, format_seconds
from simcluster.longrun.ending import restart_seconds, stop_rate
from simcluster.longrun.scaling.asked import loss_bought
from simcluster.longrun.studies.build import section_of
from simcluster.longrun.studies.cost_text import columns_of, cost_document, energy_lines, money_lines
from simcluster.longrun.studies.run_numbers import RunNumbers
from simcluster.longrun.text import in_columns, plain, row_of, text_of_blocks
from simcluster.results.file import assumed_lines
from simcluster.results.result import VERSION
from simcluster.scenario.checkpoint_plan import checkpoint_bytes

_BAR = 30  # characters of the longest bar
_CAUSES = 8
FATE_WORDS = {
    "productive": "productive",
    "checkpoint": "checkpoints, stopped",
    "write": "checkpoints, slower",
    "verification": "verification",
    "validation": "validations",
    "lost": "lost and done again",
    "slow": "slow devices",
    "detection": "detection",
    "diagnosis": "wrong diagnoses",
    "waiting": "waiting for machines",
    "restart": "restarts",
    "pause": "pauses",
    "maintenance": "maintenance",
}


@dataclass(frozen=True)
class TrainingRun(RunNumbers, Shown):
    """Simulated runs: their numbers, text and JSON."""

    def summary(self) -> str:
        """Return a text that is read in half a minute: the result, a wall-clock breakdown, closed forms, states."""
        head = [line for part in (_job, _time, money_lines, _checkpoint, _failures, _goodput) for line in part(self)]
        notes = [*assumed_lines(self.assumed), *(f"note: {note}" for note in self.notes)]
        lines = [*head, *energy_lines(self)]
        return text_of_blocks(lines, _where(self), _causes(self), _restart(self), _expected(self), _states(self), notes)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document: CONTRACT.md, "A run of weeks"."""
        pattern, rate, scenario = self.run.pattern, stop_rate(self.run), self.scenario
        found = {
            "name": scenario.name,
            "gpus": self.run.gpus,
            "played": self.played,
            "seed": scenario.seed,
            "days": self.days,
            "goodput": self.goodput,
            "ettr": self.ettr,
            "step_time_s": pattern.step,
            "step_mfu": self.step_mfu,
            "effective_mfu": self.effective_mfu,
            "tokens": self.tokens,
            "loss": self.loss,
            "gpu_hours": self.gpu_hours,
            "spare_gpu_hours": self.spare_gpu_hours,
            "price_per_gpu_hour": self.price,
            "dollars": self.dollars,
            **cost_document(self),
            "mtbf_s": 1 / rate if rate else None,
            "checkpoint": {
                "size_bytes": checkpoint_bytes(scenario, section_of(scenario).checkpoint),
                "stall_s": pattern.storage.stall,
                "write_s": pattern.storage.write,
                "steps": pattern.steps if pattern.keep else None,
                "interval_s": pattern.steps * pattern.each if pattern.keep else None,
            },
            "numbers": self.numbers.to_dict(orient="index"),
            "breakdown": self.breakdown.to_dict(orient="index"),
            "causes": self.causes.reset_index().to_dict(orient="records"),
            "restart_parts": self.parts.reset_index().to_dict(orient="records"),
            "weeks": self.weeks.to_dict(orient="records"),
            "expected": self.expected.to_dict(orient="records"),
            "states": [{"state": words, "step_time_s": seconds} for words, seconds in self.states.items()],
            "assumed": list(self.assumed),
            "notes": list(self.notes),
            "scenario": scenario.document(),
            "version": VERSION,
        }
        return dict(plain(found))


Training = TrainingRun
"""A shorter name; ``scenario.sections.Training`` is the section of a document."""


# --- the answer -------------------------------------------------------------------------------------------------------


def _job(training: RunNumbers) -> Iterator[str]:
    scenario, of, count = training.scenario, training.scenario.training, training.played
    yield scenario.title
    runs = f"{count:,} run{'s' * (count > 1)}"
    yield f"{scenario.gpus:,} GPUs of {scenario.cluster.built.name}; {runs} played, seed {scenario.seed}"
    yield (
        f"  batch        {scenario.tokens_per_step:,} tokens a step ({of.global_batch:,} = micro batch "
        f"{of.micro_batch} x {scenario.microbatches:,} x dp {scenario.dp}); "
        f"{row_of(training.numbers, 'steps')['mean']:,.0f} steps, {format_tokens(training.tokens)} tokens"
    )
    if scenario.data is not None and scenario.data.unique:
        epochs, unique = training.tokens / scenario.data.unique, format_tokens(scenario.data.unique)
        yield f"  data         {epochs:.3g} epochs of {unique} tokens"
    if (bought := loss_bought(scenario, training.tokens)) is not None:
        yield f"  loss         {bought.loss:.4f} by {bought.words}"
        yield from (f"               {note}" for note in bought.notes)


def _days(number: float) -> str:
    """Four digits, and all of those before the point: 54, 682.1, 18,230."""
    return f"{number:,.0f}" if number >= 9999.5 else f"{number:.4g}"


def _time(training: RunNumbers) -> Iterator[str]:
    step, row = training.run.pattern.step, row_of(training.numbers, "days")
    steps = row_of(training.numbers, "steps")["mean"] * step / DAY
    varies = row["p95"] - row["p5"] > 1e-6 * row["mean"]
    spread = f" ({_days(row['p5'])} to {_days(row['p95'])} in nine runs of ten)" if varies else ""
    days = f"{_days(row['mean'])} days{spread}"
    yield f"  time         {days}, of which {_days(steps)} days of steps at {format_seconds(step)}"


def _checkpoint(training: RunNumbers) -> Iterator[str]:
    pattern, section = training.run.pattern, section_of(training.scenario)
    saving, validation = pattern.storage, section.validation
    if pattern.keep:
        size = format_bytes(checkpoint_bytes(training.scenario, section.checkpoint))
        takes = f"stops training for {format_seconds(saving.stall)}"
        if saving.write:
            takes += f", is written in {format_seconds(saving.write)} behind it"
        seconds = format_seconds(pattern.steps * pattern.each)
        every = f"every {pattern.steps:,} step{'s' * (pattern.steps > 1)} = {seconds}"
        if pattern.memory is not None:
            every += f" to peers' memory, one in {pattern.cycles} to storage"
        yield f"  checkpoint   {size}, {takes}; {every}"
        best = training.expected.query("unit == 's'")
        said = (
            f"{name.removeprefix('best interval, ')} {format_seconds(value)}"
            for name, value in zip(best["closed_form"], best["value"], strict=True)
        )
        if len(best):
            yield f"               best interval by closed form: {', '.join(said)}"
    else:
        yield "  checkpoint   none is written: nothing fails"
    if validation is not None:
        seconds = format_seconds(pattern.validation * validation.every)
        yield f"  validation   {seconds} every {validation.every:,} steps, spread evenly over them"


def _failures(training: RunNumbers) -> Iterator[str]:
    run, rate = training.run, stop_rate(training.run)
    if not rate:
        yield "  failures     nothing stops the job"
        return
    failures, outages = (row_of(training.numbers, name) for name in ("failures", "outages"))
    own = training.causes.loc[[cause.name for cause in run.causes if cause.stops]]
    lost = float(own["lost_s"].sum()) / max(float(own["outages"].sum()), 1e-12)
    yield (
        f"  failures     MTBF {1 / rate / 3600:.4g} h ({run.gpus / rate / 3600:,.0f} h a GPU): {failures['mean']:,.1f} "
        f"({failures['p5']:,.0f} to {failures['p95']:,.0f} in nine runs of ten); "
        f"{outages['mean']:,.1f} outages with what is planned"
    )
    back = sum(restart_seconds(run)) / 60
    yield f"               each loses {lost / 60:.3g} min of work and takes {back:.3g} min to detect and restart"


def _goodput(training: RunNumbers) -> Iterator[str]:
    row = row_of(training.numbers, "goodput")
    half, low, high = 100 * (row["high"] - row["mean"]), row["p5"], row["p95"]
    spread = f"+- {half:.2g} points; {low:.2%} to {high:.2%} in nine runs of ten"
    yield f"  goodput      {row['mean']:.2%} ({spread}); ETTR {training.ettr:.2%}"
    effective, healthy = training.effective_mfu, training.step_mfu
    yield f"               effective MFU {effective:.1%} over the wall: the healthy step's {healthy:.1%} x goodput"


# --- tables -----------------------------------------------------------------------------------------------------------


def _where(training: RunNumbers) -> Iterator[str]:
    shown = training.breakdown.query("share > 1e-9")
    most = max(shown["share"].drop("productive", errors="ignore"), default=1.0)
    yield "  where the wall went (mean of the runs; bars: what is not productive)"
    for fate in map(str, shown.index):
        row = row_of(shown, fate)
        bar = "" if fate == "productive" else "█" * round(_BAR * row["share"] / most) or "▏"
        hours = f"{row['mean_s'] / 3600:,.2f} h"
        cost = columns_of(training, fate)
        yield f"    {FATE_WORDS[fate]:<20} {hours:>12} {row['share']:>8.2%}{cost}  {bar}".rstrip()


def _causes(training: RunNumbers) -> list[str]:
    table = training.causes[training.causes["all_s"] > 0]
    rest, priced = table.iloc[_CAUSES:], training.money is not None
    named = [(str(cause), row_of(table, cause)) for cause in table.index[:_CAUSES]]
    named += [(f"{len(rest)} others", {str(name): float(rest[name].sum()) for name in rest})] if len(rest) else []
    rows = []
    for cause, row in named:
        counts = [f"{row[name]:.1f}" for name in ("strikes", "outages")]
        hours = [f"{row[f'{name}_s'] / 3600:.2f}" for name in ("lost", "detection", "waiting", "restart", "all")]
        rows.append([cause, *counts, *hours, f"{row['share']:.2%}", *([whole_dollars(row["dollars"])] * priced)])
    header = ["cause", "strikes", "outages", "lost h", "detection h", "waiting h", "restart h", "all h", "of the wall"]
    return in_columns([*header, *(["costs"] * priced)], rows)


def _restart(training: RunNumbers) -> list[str]:
    known = zip(training.parts.index, training.parts["each_s"], strict=True)
    each = ", ".join(f"{part} {format_seconds(seconds)}" for part, seconds in known)
    return [f"  a restart: {each}"] if each else []


def _expected(training: RunNumbers) -> list[str]:
    rows = []
    for row in training.expected.query("unit != 's'").to_dict(orient="records"):
        percent, both = row["unit"] == "fraction", (row["value"], row["simulated"])
        numbers = [f"{value:.2%}" if percent else f"{value:.4g} {row['unit']}".rstrip() for value in both]
        half = float(row["half_width"]) * (100 if percent else 1)
        noise = f"+- {half:.2g}" if math.isfinite(half) else "one run"
        rows.append([row["closed_form"], *numbers, noise, row["why"]])
    return in_columns(["by closed form", "value", "simulated", "", "why it differs"], rows)


def _states(training: RunNumbers) -> list[str]:
    count = len(training.states)
    each = "; ".join(f"{words} {format_seconds(seconds)}" for words, seconds in training.states.items())
    return [f"  {count} state{'s' * (count > 1)} of the cluster played, a step each: {each}"]


__all__ = ["Training", "TrainingRun"]
