"""Printed output of two studies: differences between steps, and the cost of stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from simcluster.base.satellites import load_provided
from simcluster.base.units import format_seconds
from simcluster.show.blocks import Answer, Block, Fact, Figures, Lines, TableBar, TableBlock
from simcluster.show.cells import NO_TIME, cause_css_class, signed_change
from simcluster.show.yaml_text import setting_text
from simcluster.studies.whatif.difference import describe_cause

if TYPE_CHECKING:
    from simcluster.studies.whatif.difference import ChangedSetting, Difference
    from simcluster.studies.whatif.straggling import Cause, Stragglers

_MOST_SETTINGS = 20
_MOST_STAGES = 32
_WORST = 5


# --- two steps --------------------------------------------------------------------------------------------------------


def describe_difference(found: Difference) -> Answer:
    """Return the printed blocks about the difference between two steps."""
    names = [f"A: {found.names[0]}", f"B: {found.names[1]}"] if found.names != ("A", "B") else []
    held = [f"faster links: {found.held.in_words()}"] if found.held else []
    return [
        Lines(names), Lines([found.in_words()]), Lines(held), describe_changed_settings(found.settings),
        *causes_table(found), *_stage_tables(found),
    ]  # fmt: skip


def describe_changed_settings(settings: Sequence[ChangedSetting]) -> Lines:
    """Return lines with the settings in which two scenarios differ."""
    shown = [f"  {each.path}: {setting_text(each.before)} -> {setting_text(each.after)}" for each in settings]
    more = [f"  and {len(shown) - _MOST_SETTINGS} more"] if len(shown) > _MOST_SETTINGS else []
    head = "what differs in the scenario" if settings else "no setting differs"
    return Lines([head, *shown[:_MOST_SETTINGS], *more], "list" if settings else "plain")


def causes_table(found: Difference) -> list[TableBlock]:
    """Return a table of the causes of a difference, each bar starting where the previous one ends."""
    base = found.base.step_time
    causes = {name: seconds for name, seconds in found.causes.items() if abs(seconds) > NO_TIME}
    if not causes:
        return []
    rows = [
        [describe_cause(name), signed_change(seconds), f"{seconds / base:+.1%}"] for name, seconds in causes.items()
    ]
    rows.append(["sum", signed_change(sum(found.causes.values())), f"{found.seconds / base:+.1%}"])
    levels = [*accumulate(causes.values(), initial=0.0)]
    bars = [TableBar(levels[at], levels[at + 1], cause_css_class(name)) for at, name in enumerate(causes)]
    bars.append(TableBar(0.0, found.seconds, "whole"))
    return [TableBlock(["cause", "B - A", "of A"], rows, title=["where it went (a step, mean over ranks)"], bars=bars)]


def _stage_tables(found: Difference) -> list[Block]:
    if len(found.stages) < 2:
        counts = len(found.base.stages), len(found.other.stages)
        return (
            [Lines([f"no table by stage: A has {counts[0]} stages, B {counts[1]}"])] if counts[0] != counts[1] else []
        )
    shown = [name for name in found.stages[0] if any(abs(stage[name]) > NO_TIME for stage in found.stages)]
    rows = [
        [str(number), *(signed_change(stage[name]) for name in shown), signed_change(sum(stage.values()))]
        for number, stage in enumerate(found.stages[:_MOST_STAGES])
    ]
    more = [f"and {len(found.stages) - len(rows)} more stages (--json)"] if len(found.stages) > len(rows) else []
    title = ["by stage (the mean of its ranks)"]
    return [TableBlock(["stage", *shown, "sum"], rows, title=title, notes=more)] if shown else []


# --- stragglers -------------------------------------------------------------------------------------------------------


def describe_stragglers(found: Stragglers) -> Answer:
    """Return the printed blocks about stragglers."""
    estimated = found.estimated
    facts = [
        Fact("step time", format_seconds(found.step_time)),
        Fact("T_ideal", format_seconds(found.clean), aside="simulated without the scenario's faults"),
        Fact("S", f"{found.slowdown:.4f}", aside="the step over T_ideal"),
        Fact("S, by trace", f"{estimated.slowdown:.4f}", aside="slowdown estimated from the trace alone"),
    ]
    return [Figures(facts), straggler_causes_table(found), _slow_places_table(found)]


def straggler_causes_table(found: Stragglers) -> Block:
    """Return a table of the cost of each cause of straggling."""
    if not found.causes:
        return Lines(["nothing straggles: no faults, and no stage that others wait for"])

    def row(cause: Cause) -> list[str]:
        estimate = cause.estimated_cost
        by_trace = ["", ""] if estimate is None else [f"{estimate:.1%}", f"{100 * (estimate - cause.cost):+.1f}"]
        alone = "" if cause.alone is None else f"+{cause.alone / found.clean - 1:.1%}"
        return [cause.what, f"{cause.cost:.1%}", *by_trace, format_seconds(cause.without), alone]

    return TableBlock(
        ["cause", "costs", "by trace", "points off", "step without", "alone"],
        [row(cause) for cause in found.causes],
        title=[
            "what the step would save without it (costs), what a trace's estimator makes of that, by how many points",
            "it is off, and what it adds to a step without the others (alone)",
        ],
        notes=[f"{cause.what}: {cause.note}" for cause in found.causes if cause.note],
        bars=[TableBar(0.0, cause.cost) for cause in found.causes],
    )


def _slow_places_table(found: Stragglers) -> TableBlock:
    estimated = found.estimated
    types = [(name, value) for name, value in estimated.by_type.items() if value >= 1.0005][:_WORST]
    stages = [(f"stage {stage}", value) for stage, value in enumerate(estimated.by_stage)]
    replicas = sorted(enumerate(estimated.by_replica.tolist()), key=lambda entry: -entry[1])[:_WORST]
    slow = [*types, *stages, *((f"dp rank {dp}", value) for dp, value in replicas)]
    workers = estimated.worst[:_WORST]
    worst = ", ".join(f"dp {dp} stage {stage} ({estimated.by_worker[dp, stage]:.3f})" for dp, stage in workers)
    notes = [f"  the slowest 3 % of workers: {worst}", *load_provided("straggling in words")(estimated)]
    title = ["where, by trace: S if only this took what it took, and all else what is typical"]
    return TableBlock(["group", "S"], [[name, f"{value:.4f}"] for name, value in slow], title=title, notes=notes)
