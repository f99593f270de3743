"""simcluster sensitivity: effect of each resource on the step time, and the value of upgrades."""

from __future__ import annotations

import argparse
import math

from simcluster.base.counts import float_or_nan
from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.scenario.scenario import Scenario, load
from simcluster.show.output_blocks import TableBar, TableBlock, TextLines
from simcluster.show.plot_registry import load_plot
from simcluster.show.table_cells import format_signed_seconds
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.whatif.sensitivities import (
    RESOURCES,
    TIME_RESOURCES,
    GapCause,
    LessRecomputation,
    Sensitivity,
    find_gap_causes,
    sensitivity,
    simulate_less_recompute,
)


def run(args: argparse.Namespace) -> None:
    """Simulate the scenario with more of each resource, and print the time saved."""
    by, prices = _parse_percent(args.by), dict(_parse_price(text) for text in args.price)
    resources = args.resources.split(",") if args.resources else ()
    scenario = load(args.scenario, read_overrides(args, args.scenario))
    base = simulate_scenario(scenario)
    found = sensitivity(base, resources, by=by, prices=prices)
    memory = simulate_less_recompute(base) if not resources or "memory" in resources else []
    rows = [{"recompute": way.recompute, "bytes": way.bytes, "step_time_s": way.step_time} for way in memory]
    measured = scenario.measured_step_time
    causes = [] if measured is None else find_gap_causes(found, measured - found[0].before)
    common.print_answer(
        args,
        lambda: [
            TextLines([f"{scenario.title}: {format_seconds(found[0].before)} per step"]),
            _sensitivity_table(found, priced=bool(prices)),
            TextLines([f"{RESOURCES[each.resource]}: {note}" for each in found if (note := each.note())]),
            TextLines(_memory_lines(memory, scenario.cluster.device.memory, found[0].before)),
            TextLines(_gap_lines(scenario, causes, found[0].before)),
        ],
        lambda: {
            "sensitivity": [each.to_dict() for each in found],
            "more_memory": rows,
            "measured": None
            if measured is None
            else {
                "step_time_s": measured,
                "gap_s": measured - found[0].before,
                "explained_by": [cause.to_dict() for cause in causes],
            },
        },
    )
    common.draw_pictures(args, (args.plot, lambda: load_plot("sensitivity")(found, title=scenario.title)))


def _parse_percent(text: str) -> float:
    value = float_or_nan(text.removesuffix("%")) / 100
    if not 0 < value <= 1:
        raise InputError(f"--by {text!r} must be a percentage above 0 and at most 100, as in 1%")
    return value


def _parse_price(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    value = float_or_nan(amount)
    if not 0 < value < math.inf:
        raise InputError(f"--price {text!r}: write RESOURCE=DOLLARS per GPU for 1 % more of it, as in network=40")
    return name, value


def _sensitivity_table(found: list[Sensitivity], *, priced: bool) -> TableBlock:
    rows = []
    for each in found:
        estimate = each.estimated_gain
        row = [
            RESOURCES[each.resource],
            _describe_change(each),
            format_signed_seconds(each.before - each.step_time),
            _format_percent(-each.gain),
            "" if each.loss is None else _format_percent(each.loss),
            "another path" if estimate is None else _format_percent(-estimate),
        ]
        if priced:
            per = each.gain_per_dollar
            row.append("" if per is None else f"{100 * per:.3f} %")
        rows.append(row)
    header = ["resource", "change", "saved per step", "step, 1 % more", "1 % less", "1 % more by critical path"]
    header += ["gain per $100 per GPU"] if priced else []
    return TableBlock(header, rows, bars=[TableBar(0.0, max(each.gain, 0.0)) for each in found])


def _format_percent(value: float) -> str:
    return f"{value + 0.0:+.3f} %" if round(value, 3) else "0.000 %"


def _describe_change(each: Sensitivity) -> str:
    return f"-{each.by / (1 + each.by):.2%}" if each.resource in TIME_RESOURCES else f"+{each.by:.2%}"


def _gap_lines(scenario: Scenario, causes: list[GapCause], simulated: float) -> list[str]:
    measured = scenario.measured_step_time
    if measured is None:
        return []
    off = f"{format_signed_seconds(measured - simulated)} per step, {measured / simulated - 1:+.1%}"
    return [
        f"measured {format_seconds(measured)}, {off}: each of these alone would explain it, to first order",
        *(f"  {cause.describe()}" for cause in causes),
    ]


def _memory_lines(ways: list[LessRecomputation], capacity: float, before: float) -> list[str]:
    lines = []
    for way in ways:
        more = f"needs {way.bytes / 1e9:.1f} GB per GPU, {way.bytes / capacity - 1:+.0%}"
        step = f"{format_seconds(way.step_time)} per step ({way.step_time / before - 1:+.1%})"
        lines.append(f"  recompute {way.recompute}: {step}, {more if way.bytes > capacity else 'fits'}")
    return ["value of more memory: less recompute", *lines] if lines else []
