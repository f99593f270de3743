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
from simcluster.longrun.text import in_columns, plain, row_of
from simcluster.results.assumptions import assumed_lines
from simcluster.results.result import VERSION
from simcluster.scenario.checkpoint_plan import checkpoint_bytes

_BAR = 30  # characters of the longest bar
_CAUSES = 8
_BOTH = ("value", "simulated")
_HOURS = ("lost_s", "detection_s", "waiting_s", "restart_s", "all_s")
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
        head = [line for part in _HEAD for line in part(self)]
        blocks = [head, *(part(self) for part in (_where, _causes, _parts, _expected, _states))]
        blocks.append([*assumed_lines(self.assumed), *(f"note: {note}" for note in self.notes)])
        return "\n\n".join("\n".join(lines) for lines in blocks if lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document: CONTRACT.md, "A run of weeks"."""
        return _document(self)


Training = TrainingRun
"""A shorter name; ``scenario.sections.Training`` is the section of a document."""


# --- the answer -------------------------------------------------------------------------------------------------------


def _job(training: RunNumbers) -> Iterator[str]:
    scenario, training_of = training.scenario, training.scenario.training
    yield scenario.title
    cluster, count = scenario.cluster.built.name, training.played
    runs = f"{count:,} run{'s' * (count > 1)}"
    yield f"{scenario.gpus:,} GPUs of {cluster}; {runs} played, seed {scenario.seed}"
    yield (
        f"  batch        {scenario.tokens_per_step:,} tokens a step ({training_of.global_batch:,} = micro batch "
        f"{training_of.micro_batch} x {scenario.microbatches:,} x dp {scenario.dp}); "
        f"{row_of(training.numbers, 'steps')['mean']:,.0f} steps, {format_tokens(training.tokens)} tokens"
    )
    if scenario.data is not None and scenario.data.unique:
        epochs, unique = training.tokens / scenario.data.unique, format_tokens(scenario.data.unique)
        yield f"  data         {epochs:.3g} epochs of {unique} tokens"


def _loss(training: RunNumbers) -> Iterator[str]:
    bought = loss_bought(training.scenario, training.tokens)
    if bought is not None:
        yield f"  loss         {bought.loss:.4f} by {bought.words}"
        yield from (f"               {note}" for note in bought.notes)


def _days(number: float) -> str:
    """Four digits, and all of those before the point: 54, 682.1, 18,230."""
    return f"{number:,.0f}" if number >= 9999.5 else f"{number:.4g}"


def _time(training: RunNumbers) -> Iterator[str]:
    step, row = training.run.pattern.step, row_of(training.numbers, "days")
    steps = row_of(training.numbers, "steps")["mean"] * step / DAY
    days = f"{_days(row['mean'])} days"
    if row["p95"] - row["p5"] > 1e-6 * row["mean"]:
        days += f" ({_days(row['p5'])} to {_days(row['p95'])} in nine runs of ten)"
    yield f"  time         {days}, of which {_days(steps)} days of steps at {format_seconds(step)}"
    yield from money_lines(training)


def _checkpoint(training: RunNumbers) -> Iterator[str]:
    pattern, scenario = training.run.pattern, training.scenario
    if not pattern.keep:
        yield "  checkpoint   none is written: nothing fails"
        return
    size = checkpoint_bytes(scenario, section_of(scenario).checkpoint)
    saving = pattern.storage
    takes = f"stops training for {format_seconds(saving.stall)}"
    if saving.write:
        takes += f", is written in {format_seconds(saving.write)} behind it"
    every = f"every {pattern.steps:,} step{'s' * (pattern.steps > 1)} = {format_seconds(pattern.steps * pattern.each)}"
    if pattern.memory is not None:
        every = f"{every} to peers' memory, one in {pattern.cycles} to storage"
    yield f"  checkpoint   {format_bytes(size)}, {takes}; {every}"
    best = training.expected.query("unit == 's'")
    if len(best):
        said = (
            f"{name.removeprefix('best interval, ')} {format_seconds(value)}"
            for name, value in zip(best["closed_form"], best["value"], strict=True)
        )
        yield f"               best interval by closed form: {', '.join(said)}"


def _validation(training: RunNumbers) -> Iterator[str]:
    validation = section_of(training.scenario).validation
    if validation is not None:
        seconds = format_seconds(training.run.pattern.validation * validation.every)
        yield f"  validation   {seconds} every {validation.every:,} steps, spread evenly over them"


def _failures(training: RunNumbers) -> Iterator[str]:
    run, rate = training.run, stop_rate(training.run)
    if not rate:
        yield "  failures     nothing stops the job"
        return
    failures, outages = (row_of(training.numbers, name) for name in ("failures", "outages"))
    stops = [cause.name for cause in run.causes if cause.stops]
    own = training.causes.loc[stops]
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


def _where(training: RunNumbers) -> list[str]:
    table = training.breakdown
    shown = table[table["share"] > 1e-9]
    most = max(shown["share"].drop("productive", errors="ignore"), default=1.0)
    lines = ["  where the wall went (mean of the runs; bars: what is not productive)"]
    for fate in shown.index:
        row = row_of(shown, fate)
        bar = "" if fate == "productive" else "█" * round(_BAR * row["share"] / most) or "▏"
        hours = f"{row['mean_s'] / 3600:,.2f} h"
        cost = columns_of(training, str(fate))
        lines.append(f"    {FATE_WORDS[fate]:<20} {hours:>12} {row['share']:>8.2%}{cost}  {bar}".rstrip())
    return lines


def _causes(training: RunNumbers) -> list[str]:
    table = training.causes[training.causes["all_s"] > 0]
    if not len(table):
        return []
    rest, priced = table.iloc[_CAUSES:], training.money is not None
    named = [(str(cause), row_of(table, cause)) for cause in table.index[:_CAUSES]]
    named += [(f"{len(rest)} others", {str(name): float(rest[name].sum()) for name in rest})] if len(rest) else []
    rows = []
    for cause, row in named:
        counts = [f"{row[name]:.1f}" for name in ("strikes", "outages")]
        hours = [f"{row[name] / 3600:.2f}" for name in _HOURS]
        rows.append([cause, *counts, *hours, f"{row['share']:.2%}", *([whole_dollars(row["dollars"])] * priced)])
    header = ["cause", "strikes", "outages", "lost h", "detection h", "waiting h", "restart h", "all h", "of the wall"]
    return in_columns([*header, *(["costs"] * priced)], rows)


def _parts(training: RunNumbers) -> list[str]:
    if not len(training.parts):
        return []
    known = zip(training.parts.index, training.parts["each_s"], strict=True)
    each = ", ".join(f"{part} {format_seconds(seconds)}" for part, seconds in known)
    return [f"  a restart: {each}"]


def _expected(training: RunNumbers) -> list[str]:
    table = training.expected[training.expected["unit"] != "s"]
    rows = []
    for row in table.to_dict(orient="records"):
        percent = row["unit"] == "fraction"
        both = (f"{row[name]:.2%}" if percent else f"{row[name]:.4g} {row['unit']}".rstrip() for name in _BOTH)
        half = float(row["half_width"]) * (100 if percent else 1)
        noise = f"+- {half:.2g}" if math.isfinite(half) else "one run"
        rows.append([row["closed_form"], *both, noise, row["why"]])
    return in_columns(["by closed form", "value", "simulated", "", "why it differs"], rows) if rows else []


def _states(training: RunNumbers) -> list[str]:
    count = len(training.states)
    each = "; ".join(f"{words} {format_seconds(seconds)}" for words, seconds in training.states.items())
    return [f"  {count} state{'s' * (count > 1)} of the cluster played, a step each: {each}"]


_HEAD = (_job, _loss, _time, _checkpoint, _validation, _failures, _goodput, energy_lines)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _document(training: RunNumbers) -> dict[str, Any]:
    pattern, section = training.run.pattern, section_of(training.scenario)
    found = {
        "name": training.scenario.name,
        "gpus": training.run.gpus,
        "played": training.played,
        "seed": training.scenario.seed,
        "days": training.days,
        "goodput": training.goodput,
        "ettr": training.ettr,
        "step_time_s": pattern.step,
        "step_mfu": training.step_mfu,
        "effective_mfu": training.effective_mfu,
        "tokens": training.tokens,
        "loss": training.loss,
        "gpu_hours": training.gpu_hours,
        "spare_gpu_hours": training.spare_gpu_hours,
        "price_per_gpu_hour": training.price,
        "dollars": training.dollars,
        **cost_document(training),
        "mtbf_s": 1 / stop_rate(training.run) if stop_rate(training.run) else None,
        "checkpoint": {
            "size_bytes": checkpoint_bytes(training.scenario, section.checkpoint),
            "stall_s": pattern.storage.stall,
            "write_s": pattern.storage.write,
            "steps": pattern.steps if pattern.keep else None,
            "interval_s": pattern.steps * pattern.each if pattern.keep else None,
        },
        "numbers": training.numbers.to_dict(orient="index"),
        "breakdown": training.breakdown.to_dict(orient="index"),
        "causes": training.causes.reset_index().to_dict(orient="records"),
        "restart_parts": training.parts.reset_index().to_dict(orient="records"),
        "weeks": training.weeks.to_dict(orient="records"),
        "expected": training.expected.to_dict(orient="records"),
        "states": [{"state": words, "step_time_s": seconds} for words, seconds in training.states.items()],
        "assumed": list(training.assumed),
        "notes": list(training.notes),
        "scenario": training.scenario.document(),
        "version": VERSION,
    }
    return dict(plain(found))


__all__ = ["Training", "TrainingRun"]
