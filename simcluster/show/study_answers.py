"""Printed output of two studies: why two steps differ, and what stragglers cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from simcluster.base.satellites import load_satellite_object
from simcluster.base.units import format_seconds
from simcluster.show.output_blocks import HeadlineValues, NamedValue, TableBar, TableBlock, TextLines
from simcluster.show.table_cells import NO_TIME, cause_css_class, format_signed_seconds
from simcluster.show.yaml_text import setting_text
from simcluster.studies.whatif.difference import describe_cause

if TYPE_CHECKING:
    from simcluster.show.output_blocks import OutputBlock, OutputBlocks
    from simcluster.studies.whatif.difference import ChangedSetting, RunDifference
    from simcluster.studies.whatif.straggling import StragglerCause, StragglerCosts

_MOST_SETTINGS = 20
_MOST_STAGES = 32
_WORST = 5


# --- two steps --------------------------------------------------------------------------------------------------------


def describe_difference(found: RunDifference) -> OutputBlocks:
    """Return the printed output about why two steps differ."""
    names = [f"A: {found.names[0]}", f"B: {found.names[1]}"] if found.names != ("A", "B") else []
    held = [f"faster links: {found.limiting_links.describe()}"] if found.limiting_links else []
    return [
        TextLines(names), TextLines([found.describe()]), TextLines(held), describe_changed_settings(found.settings),
        *causes_table(found), *_stage_tables(found),
    ]  # fmt: skip


def describe_changed_settings(settings: Sequence[ChangedSetting]) -> TextLines:
    """Return output lines that list the settings in which two scenarios differ."""
    shown = [f"  {each.path}: {setting_text(each.before)} -> {setting_text(each.after)}" for each in settings]
    more = [f"  and {len(shown) - _MOST_SETTINGS} more"] if len(shown) > _MOST_SETTINGS else []
    head = "what differs in the scenario" if settings else "no setting differs"
    return TextLines([head, *shown[:_MOST_SETTINGS], *more], "list" if settings else "plain")


def causes_table(found: RunDifference) -> list[TableBlock]:
    """Return a table of why two step times differ; each cause's bar starts where the previous bar ends."""
    base = found.base.step_time
    causes = {name: seconds for name, seconds in found.seconds_by_cause.items() if abs(seconds) > NO_TIME}
    if not causes:
        return []
    rows = [[describe_cause(name), format_signed_seconds(own), f"{own / base:+.1%}"] for name, own in causes.items()]
    rows.append(["sum", format_signed_seconds(sum(found.seconds_by_cause.values())), f"{found.seconds / base:+.1%}"])
    levels = [*accumulate(causes.values(), initial=0.0)]
    bars = [TableBar(levels[at], levels[at + 1], cause_css_class(name)) for at, name in enumerate(causes)]
    bars.append(TableBar(0.0, found.seconds, "whole"))
    title = ["difference by cause (per step, mean over ranks)"]
    return [TableBlock(["cause", "B - A", "of A"], rows, title=title, bars=bars)]


def _stage_tables(found: RunDifference) -> list[OutputBlock]:
    stages = found.seconds_by_stage
    if len(stages) < 2:
        a, b = len(found.base.stages), len(found.other.stages)
        return [TextLines([f"no table by stage: A has {a} stages, B {b}"])] if a != b else []
    shown = [name for name in stages[0] if any(abs(stage[name]) > NO_TIME for stage in stages)]
    rows = [
        [str(number), *map(format_signed_seconds, [*(stage[name] for name in shown), sum(stage.values())])]
        for number, stage in enumerate(stages[:_MOST_STAGES])
    ]
    more = [f"and {len(stages) - len(rows)} more stages (--json)"] if len(stages) > len(rows) else []
    title = ["by stage (the mean of its ranks)"]
    return [TableBlock(["stage", *shown, "sum"], rows, title=title, notes=more)] if shown else []


# --- stragglers -------------------------------------------------------------------------------------------------------


def describe_stragglers(found: StragglerCosts) -> OutputBlocks:
    """Return the printed output about the cost of stragglers."""
    estimated = found.estimated
    facts = [
        NamedValue("step time", format_seconds(found.step_time)),
        NamedValue("T_ideal", format_seconds(found.clean_step_time), remark="simulated without the scenario's faults"),
        NamedValue("S", f"{found.slowdown:.4f}", remark="step time / T_ideal"),
        NamedValue("S, by trace", f"{estimated.slowdown:.4f}", remark="slowdown estimated from the trace alone"),
    ]
    return [HeadlineValues(facts), straggler_causes_table(found), _slow_workers_table(found)]


def straggler_causes_table(found: StragglerCosts) -> OutputBlock:
    """Return a table of what each cause of stragglers costs."""
    if not found.causes:
        return TextLines(["no stragglers: no faults, and no stage that others wait for"])

    def row(cause: StragglerCause) -> list[str]:
        estimate = cause.estimated_cost
        by_trace = ["", ""] if estimate is None else [f"{estimate:.1%}", f"{100 * (estimate - cause.cost):+.1f}"]
        alone = "" if cause.step_time_alone is None else f"+{cause.step_time_alone / found.clean_step_time - 1:.1%}"
        return [cause.what, f"{cause.cost:.1%}", *by_trace, format_seconds(cause.step_time_without), alone]

    return TableBlock(
        ["cause", "costs", "by trace", "points off", "step without", "alone"],
        [row(cause) for cause in found.causes],
        title=[
            "costs: what the step would save without the cause; by trace: the same, estimated from the trace alone;",
            "points off: its error in percentage points; alone: what the cause adds to a step without other causes",
        ],
        notes=[f"{cause.what}: {cause.note}" for cause in found.causes if cause.note],
        bars=[TableBar(0.0, cause.cost) for cause in found.causes],
    )


def _slow_workers_table(found: StragglerCosts) -> TableBlock:
    estimated = found.estimated
    types = [(name, value) for name, value in estimated.by_type.items() if value >= 1.0005][:_WORST]
    stages = [(f"stage {stage}", value) for stage, value in enumerate(estimated.by_stage)]
    replicas = sorted(enumerate(estimated.by_replica.tolist()), key=lambda entry: -entry[1])[:_WORST]
    slow = [*types, *stages, *((f"dp rank {dp}", value) for dp, value in replicas)]
    workers = estimated.worst[:_WORST]
    worst = ", ".join(f"dp {dp} stage {stage} ({estimated.by_worker[dp, stage]:.3f})" for dp, stage in workers)
    notes = [f"  the slowest 3 % of workers: {worst}", *load_satellite_object("straggling in words")(estimated)]
    title = ["where, by trace: slowdown S if only this group were slow and everything else took typical times"]
    return TableBlock(["group", "S"], [[name, f"{value:.4f}"] for name, value in slow], title=title, notes=notes)
