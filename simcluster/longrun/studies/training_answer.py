"""Printed answers of ``simcluster train`` for runs with one stage or several."""

from __future__ import annotations

import math
from collections.abc import Iterator

from simcluster.base.counts import format_tokens, format_whole_dollars
from simcluster.base.units import DAY, format_bytes, format_seconds
from simcluster.longrun.run_feasibility import job_stop_rate, mean_outage_seconds
from simcluster.longrun.scaling.request import expected_loss
from simcluster.longrun.studies.run_builder import require_run_section
from simcluster.longrun.studies.run_costs import PRICES, RunCost
from simcluster.longrun.studies.staged_training import StagedTraining
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.longrun.text_formats import (
    format_cells,
    format_energy,
    format_power,
    format_remarks,
    row_to_dict,
    rows_to_dicts,
    table_blocks,
)
from simcluster.scenario.checkpoint_plan import checkpoint_bytes
from simcluster.show.output_blocks import HeadlineValues, NamedValue, OutputBlocks, TableBar, TableBlock, TextLines

_CAUSES = 8
FATE_WORDS = {
    "productive": "productive",
    "checkpoint": "checkpoints, stopped",
    "write": "checkpoints, slower",
    "verification": "verification",
    "validation": "validations",
    "lost": "redone work",
    "slow": "slow devices",
    "detection": "detection",
    "diagnosis": "wrong diagnoses",
    "waiting": "waiting for nodes",
    "restart": "restarts",
    "pause": "pauses",
    "maintenance": "maintenance",
}


def training_answer(training: TrainingRun) -> OutputBlocks:
    """Return the printed answer for runs with one stage: results, time breakdown, closed forms, cluster states."""
    scenario, known = training.scenario, training.parts["each_s"].items()
    each = ", ".join(f"{part} {format_seconds(seconds)}" for part, seconds in known)
    simulated = "; ".join(f"{words} {format_seconds(seconds)}" for words, seconds in training.states.items())
    count = len(training.states)
    head = [scenario.title, f"{scenario.gpus:,} GPUs of {scenario.cluster.built.name}; {_describe_runs(training)}"]
    facts = [
        fact
        for part in (_job_facts, _time_facts, _cost_facts, _checkpoint_facts, _failure_facts, _energy_facts)
        for fact in part(training)
    ]
    return [
        TextLines(head, "head"),
        HeadlineValues(facts),
        *_breakdown_table(training),
        *_causes_table(training),
        TextLines([f"  a restart: {each}"] if each else []),
        *_closed_forms_table(training),
        TextLines([f"  {count} state{'s' * (count > 1)} of the cluster simulated, one step each: {simulated}"]),
        format_remarks(training.assumed, training.notes),
    ]


def _describe_runs(training: TrainingRun | StagedTraining) -> str:
    stages = f" of {len(training.stages)} stages" if isinstance(training, StagedTraining) else ""
    count = training.played
    return f"{count:,} run{'s' * (count > 1)}{stages} simulated, seed {training.scenario.seed}"


def _format_mean_and_range(
    training: TrainingRun | StagedTraining, name: str, spec: str, least: float = 1e-6
) -> tuple[str, str]:
    row = row_to_dict(training.numbers, name)
    mean, low, high = (spec.format(row[each]) for each in ("mean", "p5", "p95"))
    varies = row["p95"] - row["p5"] > least * row["mean"]
    return mean, f" ({low} to {high} in 90 % of runs)" if varies else ""


def _job_facts(training: TrainingRun) -> Iterator[NamedValue]:
    scenario, of = training.scenario, training.scenario.training
    steps = row_to_dict(training.numbers, "steps")["mean"]
    yield NamedValue(
        "batch",
        f"{scenario.tokens_per_step:,} tokens",
        f" per step ({of.global_batch:,} = micro batch {of.micro_batch} x {scenario.microbatches:,} x dp {scenario.dp})"
        f"; {steps:,.0f} steps, {format_tokens(training.tokens)} tokens",
    )
    if scenario.data is not None and scenario.data.unique:
        epochs, unique = training.tokens / scenario.data.unique, format_tokens(scenario.data.unique)
        yield NamedValue("data", f"{epochs:.3g} epochs", f" of {unique} tokens")
    if (bought := expected_loss(scenario, training.tokens)) is not None:
        yield NamedValue("loss", f"{bought.loss:.4f}", f" by {bought.law_words}")
        yield from (NamedValue("", note) for note in bought.notes)


def _time_facts(training: TrainingRun) -> Iterator[NamedValue]:
    step = training.run.pattern.step
    days, spread = _format_mean_and_range(training, "days", "{:,.0f}" if training.days >= 9999.5 else "{:.4g}")
    steps = row_to_dict(training.numbers, "steps")["mean"] * step / DAY
    healthy = f"{steps:,.0f}" if steps >= 9999.5 else f"{steps:.4g}"
    yield NamedValue("time", f"{days} days", f"{spread}, of which {healthy} days of steps at {format_seconds(step)}")


def _checkpoint_facts(training: TrainingRun) -> Iterator[NamedValue]:
    pattern, section = training.run.pattern, require_run_section(training.scenario)
    saving, validation = pattern.storage, section.validation
    if pattern.keep:
        behind = f", is written asynchronously in {format_seconds(saving.write)}" if saving.write else ""
        every = f"every {pattern.steps:,} step{'s' * (pattern.steps > 1)}"
        every += f" = {format_seconds(pattern.steps * pattern.step_with_validation)}"
        if pattern.memory is not None:
            every += f" to peers' memory, one in {pattern.snapshots_per_stored} to storage"
        size = format_bytes(checkpoint_bytes(training.scenario, section.checkpoint))
        yield NamedValue("checkpoint", size, f", stops training for {format_seconds(saving.stall)}{behind}; {every}")
        best = ", ".join(
            f"{row['closed_form'].removeprefix('best interval, ')} {format_seconds(row['value'])}"
            for row in rows_to_dicts(training.expected.query("unit == 's'"))
        )
        yield from [NamedValue("", f"best interval by closed form: {best}")] * bool(best)
    else:
        yield NamedValue("checkpoint", "none", " is written: nothing fails")
    if validation is not None:
        seconds = format_seconds(pattern.validation * validation.every)
        yield NamedValue("validation", seconds, f" every {validation.every:,} steps, spread evenly over them")


def _failure_facts(training: TrainingRun) -> Iterator[NamedValue]:
    run, rate, row = training.run, job_stop_rate(training.run), row_to_dict(training.numbers, "goodput")
    if rate:
        failures, outages = (row_to_dict(training.numbers, name) for name in ("failures", "outages"))
        own = training.causes.loc[[cause.name for cause in run.causes if cause.stops_job]]
        lost = float(own["lost_s"].sum()) / max(float(own["outages"].sum()), 1e-12) / 60
        yield NamedValue(
            "failures",
            f"MTBF {1 / rate / 3600:.4g} h",
            f" ({run.gpus / rate / 3600:,.0f} h per GPU): {failures['mean']:,.1f} "
            f"({failures['p5']:,.0f} to {failures['p95']:,.0f} in 90 % of runs); "
            f"{outages['mean']:,.1f} outages including planned ones",
        )
        back = sum(mean_outage_seconds(run)) / 60
        yield NamedValue("", f"each loses {lost:.3g} min of work and takes {back:.3g} min to detect and restart")
    else:
        yield NamedValue("failures", "none", ": nothing stops the job")
    half = f"+- {100 * (row['high'] - row['mean']):.2g} points"
    spread = f" ({half}; {row['p5']:.2%} to {row['p95']:.2%} in 90 % of runs); ETTR {training.ettr:.2%}"
    yield NamedValue("goodput", f"{row['mean']:.2%}", spread)
    healthy = f"the healthy step's {training.step_mfu:.1%} x goodput"
    yield NamedValue("", f"effective MFU {training.effective_mfu:.1%} over the wall time: {healthy}")


def _cost_facts(training: TrainingRun) -> Iterator[NamedValue]:
    hours = f"{training.gpu_hours:,.0f} GPU-hours"
    spares = f", plus {training.spare_gpu_hours:,.0f} for spares" if training.spare_gpu_hours else ""
    money, total = training.money, training.dollars or 0.0
    if money is None:
        yield NamedValue("money", hours, f"{spares}; set run.price for dollars")
        return
    spread = _format_mean_and_range(training, "dollars", "${:,.0f}", 1e-3)[1]
    at = f" at ${training.price:.2f} per GPU-hour" if training.price is not None else ""
    yield NamedValue("money", format_whole_dollars(total), f"{spread}{at} ({hours}{spares})")
    named = {"GPUs" if what == "gpus" else what: dollars for what, dollars in money.parts.items() if dollars}
    without = ", ".join(path for what, path in PRICES.items() if what not in money.parts)
    parts = ", ".join(f"{what} {format_whole_dollars(dollars)}" for what, dollars in named.items())
    yield NamedValue("", f"{parts}{f'; without a price, so not included: {without}' if without else ''}")
    yield from (NamedValue("", words) for words in _describe_lost_dollars(training, money, total))


def _describe_lost_dollars(training: TrainingRun, money: RunCost, total: float) -> Iterator[str]:
    if money.failures > 0:
        count = row_to_dict(training.numbers, "failures")["mean"]
        each = f", {format_whole_dollars(money.failures / count)} per failure" if count >= 1 else ""
        yield f"lost to failures {format_whole_dollars(money.failures)} ({money.failures / total:.2%}{each})"
    if (held := training.price_of_mfu) is None:
        return
    if not held.lost:
        yield f"no money is lost, compared with an MFU of {held.achievable:.0%}"
        return
    lost = f"{format_whole_dollars(held.dollars)}: {format_whole_dollars(held.lost)} is lost ({held.lost / total:.1%};"
    yield f"at an MFU of {held.achievable:.0%} the same tokens cost {lost} {held.more:.1%} more training for the money)"
    own = max(0.0, total * training.goodput * (1 - training.step_mfu / held.achievable))
    rest = format_whole_dollars(held.lost - own)
    yield f"of that {format_whole_dollars(own)} in the step, {rest} in unproductive time"


def _energy_facts(training: TrainingRun) -> Iterator[NamedValue]:
    if training.energy is None:
        yield NamedValue("energy", "?", ": unknown for these GPUs; set run.power.idle and run.power.full, in W")
        return
    found = training.energy.to_dict(training.tokens)
    joules, pue = found["joules_per_token"], found["pue"]
    of_token = "" if joules is None else f", {joules:.3g} J per token"
    watts = {name.removesuffix("_w"): format_power(value) for name, value in found.items() if name.endswith("_w")}
    building = f"PUE {pue:.2f}" if pue != 1 else "nodes alone: PUE 1"
    used = f" ({building}): {watts['average']} on average, {watts['peak']} peak{of_token}"
    yield NamedValue("energy", format_energy(found["kwh"]), used)
    swing = f"{watts['swing_1s']} from peak to peak in means of {format_seconds(1.0)}"
    yield NamedValue("", f"within a step between {watts['step_low']} and {watts['peak']}, {swing}")
    yield NamedValue("", f"at a checkpoint that stops the job {watts['checkpoint']}, in a restart {watts['restart']}")
    yield from (NamedValue("", f"assumed: {words}") for words in found["assumed"])


def _breakdown_table(training: TrainingRun) -> OutputBlocks:
    mega = training.energy is not None and float(training.energy.total.mean()) >= 1e4
    productive, *rows = (
        {"what": FATE_WORDS[row["fate"]], **row, "energy": row["kwh"] / (1e3 if mega else 1.0)}
        for row in rows_to_dicts(training.breakdown.query("share > 1e-9"))
    )
    columns = [("wall-clock breakdown", "{what}"), ("per run", "{mean_s:hours} h"), ("share", "{share:.2%}")]
    columns += [("costs", "{dollars:dollars}")] * (training.money is not None)
    columns += [("energy", f"{{energy:,.2f}} {'MWh' if mega else 'kWh'}")] * (training.energy is not None)
    kept = ", ".join(format_cells(productive, columns)[1:])
    title = [f"  wall-clock breakdown (mean of the runs): productive {kept}"]
    bars = [TableBar(0.0, row["share"]) for row in rows]
    return [*table_blocks(rows, columns, title=title, indent=4, bars=bars, chart=True)] or [TextLines(title)]


def _causes_table(training: TrainingRun) -> list[TableBlock]:
    table = training.causes[training.causes["all_s"] > 0]
    rest, rows = table.iloc[_CAUSES:], rows_to_dicts(table.iloc[:_CAUSES])
    if len(rest):
        rows.append({"cause": f"{len(rest)} others", **{str(name): float(rest[name].sum()) for name in rest}})
    columns = [("cause", "{cause}"), ("failures", "{strikes:.1f}"), ("outages", "{outages:.1f}")]
    columns += [(f"{fate} h", f"{{{fate}_s:hours}}") for fate in ("lost", "detection", "waiting", "restart", "all")]
    columns += [("of wall time", "{share:.2%}")]
    return table_blocks(rows, [*columns, *[("costs", "{dollars:dollars}")] * (training.money is not None)])


def _closed_forms_table(training: TrainingRun) -> list[TableBlock]:
    rows = []
    for row in rows_to_dicts(training.expected.query("unit != 's'")):
        share = row["unit"] == "fraction"
        half = row["half_width"] * (100 if share else 1)
        form = "{:.2%}" if share else f"{{:.4g}} {row['unit']}".rstrip()
        both = {name: form.format(row[name]) for name in ("value", "simulated")}
        rows.append({**row, **both, "noise": f"+- {half:.2g}" if math.isfinite(half) else "one run"})
    columns = [("by closed form", "{closed_form}"), ("value", "{value}"), ("simulated", "{simulated}"), ("", "{noise}")]
    return table_blocks(rows, columns, notes=[f"  {row['closed_form']}: {row['why']}" for row in rows if row["why"]])


def staged_answer(training: StagedTraining) -> OutputBlocks:
    """Return the printed answer for runs with several stages."""
    scenario = training.scenario
    head = [scenario.title, f"{scenario.cluster.built.name}; {_describe_runs(training)}"]
    return [
        TextLines(head, "head"),
        HeadlineValues([*_total_facts(training)]),
        *_stages_table(training),
        format_remarks(training.assumed),
    ]


def _total_facts(training: StagedTraining) -> Iterator[NamedValue]:
    days, spread = _format_mean_and_range(training, "days", "{:.4g}")
    yield NamedValue("time", f"{days} days", f"{spread}, for {format_tokens(training.tokens)} tokens")
    hours = "{} GPU-hours{}".format(*_format_mean_and_range(training, "gpu_hours", "{:,.0f}"))
    hours += f", plus {training.spare_gpu_hours:,.0f} for spares" if training.spare_gpu_hours else ""
    if training.dollars is None:
        yield NamedValue("money", hours, "; set run.price for dollars")
    else:
        lost = f", {format_whole_dollars(training.lost_to_failures or 0.0)} of it lost to failures; {hours}"
        yield NamedValue("money", format_whole_dollars(float(training.dollars.mean())), lost)
    yield NamedValue("failures", *_format_mean_and_range(training, "failures", "{:,.0f}"))
    effective = f"; effective MFU {training.effective_mfu:.1%} over the wall time"
    yield NamedValue("goodput", f"{training.goodput:.2%}", f" of all GPU-hours{effective}")
    if training.kwh is not None:
        kwh = float(training.kwh.mean())
        average = format_power(kwh * 3.6e6 / float(training.wall.mean()))
        yield NamedValue("energy", format_energy(kwh), f": {average} on average")


def _stages_table(training: StagedTraining) -> list[TableBlock]:
    columns = [
        ("stage", "{stage}"), ("tokens", "{tokens:tokens}"), ("per step", "{tokens_per_step:tokens}"),
        ("sequence", "{sequence_length:,}"), ("GPUs", "{gpus:,}"), ("step", "{step_time_s:seconds}"),
        ("MFU", "{step_mfu:.1%}"), ("steps", "{steps:,.0f}"), ("days", "{days:.2f}"), ("goodput", "{goodput:.2%}"),
        ("failures", "{failures:.1f}"), ("million GPU-hours", "{millions:.3f}"),
        *[("costs", "{dollars:dollars}")] * (training.dollars is not None),
        *[("MWh", "{kwh:MWh}")] * (training.kwh is not None),
    ]  # fmt: skip
    rows = rows_to_dicts(training.table.assign(millions=training.table["gpu_hours"] / 1e6))
    notes = []
    for number, stage in enumerate(training.specs, 1):
        said = ", ".join(f"{path}: {_format_value(value)}" for path, value in stage.set.items()) or "as the scenario"
        change = f", after {format_seconds(stage.change)} for the change" if stage.change else ""
        notes.append(f"  stage {number}: {said}{change}")
    if not any(stage.change for stage in training.specs):
        notes.append("  stages follow each other without a pause (run.stages.change)")
    return table_blocks(rows, columns, notes=[*notes, "  each stage begins with parts of initial age and all spares"])


def _format_value(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_format_value(each)}" for name, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
