"""simcluster compare: table of scenarios or variants, causes of their differences, and prices."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import float_or_nan, format_whole_dollars
from simcluster.base.errors import InputError
from simcluster.base.units import HOUR, format_seconds
from simcluster.cli import common
from simcluster.cli.common import join_error_lines, read_overrides
from simcluster.documents.overrides import parse_vary_option
from simcluster.model.recipes import recipe_named
from simcluster.results.link_upgrade import find_scenario_limit
from simcluster.results.result import Result
from simcluster.results.result_file import assumption_lines, merge_assumptions
from simcluster.scenario.memory_plan import describe_recipe_change
from simcluster.show import table_cells
from simcluster.show.output_blocks import OutputBlock, TableBlock, TextLines
from simcluster.show.plot_registry import load_plot
from simcluster.show.table_cells import NO_TIME, describe_gpus, describe_layout, format_row, format_signed_seconds
from simcluster.studies import variations
from simcluster.studies.variations import compare, differences, simulate_variants, subtract_first_breakdown
from simcluster.studies.whatif.unexpected_slowdown import describe_unexpected_slowdown, find_unexpected_slowdown

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.show.plot_registry import Figure

DOLLARS_COLUMN = "dollars_per_1t_tokens"
"""Column of the table with the price of training."""
PRICE_NOTE = (
    "dollars are for healthy steps: no failures, restarts, checkpoints or spares (simcluster train includes them)"
)


def compute_dollars_per_1t_tokens(gpus: float, price: float, tokens_per_s: float) -> float:
    """Return the dollars per 1e12 tokens at a price per GPU-hour and a throughput."""
    return 1e12 * gpus * price / tokens_per_s / HOUR


def reject_price_key(overrides: Sequence[tuple[str, Any]]) -> None:
    """Raise InputError for the override ``price=``, since the price is an option and not a scenario key."""
    for path, value in overrides:
        if path == "price":
            raise InputError(
                f"--set price: a scenario has no price; compare takes --price {value}, in dollars per GPU-hour "
                f"(simcluster train --run.price {value} costs a whole run)"
            )


def parse_prices(text: str, scenario_of: Mapping[str, int]) -> dict[str, float]:
    """Parse the value of --price; return the dollars per GPU-hour of each variant.

    ``scenario_of`` has the number of each variant's scenario. InputError unless the text has one positive price, one
    per scenario or one per variant.
    """
    prices = [float_or_nan(each) for each in text.split(",")]
    if not all(0 < price < math.inf for price in prices):
        raise InputError(f"--price {text!r} must be dollars per GPU-hour above 0; write 2.5, or 2.5,4.5 for two")
    scenarios = max(scenario_of.values()) + 1
    if len(prices) == 1:
        return dict.fromkeys(scenario_of, prices[0])
    if len(prices) == scenarios:
        return {name: prices[number] for name, number in scenario_of.items()}
    if len(prices) == len(scenario_of):
        return dict(zip(scenario_of, prices, strict=True))
    counts = sorted({1, scenarios, len(scenario_of)})
    raise InputError(f"--price {text!r} has {len(prices)} prices; write {' or '.join(map(str, counts))} prices: "
                     "one for all, one per scenario or one per variant")  # fmt: skip


def add_dollars(table: pd.DataFrame, prices: Mapping[str, float]) -> pd.DataFrame:
    """Add a column of dollars per trillion tokens to the table, without counting padding tokens."""
    rows = zip(table.index, table["gpus"], table["real_tokens_per_s"], strict=True)
    dollars = [compute_dollars_per_1t_tokens(gpus, prices[str(name)], rate) for name, gpus, rate in rows]
    return table.assign(**{DOLLARS_COLUMN: dollars})


def run(args: argparse.Namespace) -> None:
    """Simulate all valid variants, print their table, and draw pictures."""
    vary = [parse_vary_option(text) for text in args.vary]
    overrides = read_overrides(args, *args.scenarios)
    reject_price_key(overrides)
    each = [variations.make_variant_scenarios(path, overrides, vary) for path in args.scenarios]
    variants = [pair for of_one in each for pair in of_one.items()]
    scenario_of = {name: number for number, of_one in enumerate(each) for name in of_one}
    prices = parse_prices(args.price, scenario_of) if args.price else {}
    scenarios = [scenario for _, scenario in variants if not isinstance(scenario, InputError)]
    if args.scaling and len({scenario.gpus for scenario in scenarios}) < 2:
        raise InputError("--scaling needs scenarios with different numbers of GPUs, as with --vary gpus=64,128")
    if args.waterfall and len(scenarios) < 2:
        raise InputError("--waterfall compares scenarios: give at least two scenarios, or one and --vary")
    played = simulate_variants(variants)
    results = {name: result for name, result in played.items() if not isinstance(result, InputError)}
    refused = {name: str(reason) for name, reason in played.items() if isinstance(reason, InputError)}
    table = compare(list(results.values()), list(results))
    table = add_dollars(table, prices) if prices else table
    causes = differences(list(results.values()), list(results))
    rows: dict[str, dict[str, Any]] = {name: {"status": "refused", "error": reason} for name, reason in refused.items()}
    held, longer = list[str](), list[str]()
    first = next(iter(results.values()))
    for (name, result), row in zip(results.items(), table.to_dict("records"), strict=True):
        holds = find_scenario_limit(first.scenario, result.scenario, result)
        parts = find_unexpected_slowdown(first, result, first.scenario, result.scenario)
        held += [f"  {name}: {holds.describe()}"] if holds else []
        longer += [f"{name}: {describe_unexpected_slowdown(parts)}"] if parts else []
        rows[name] = {
            "status": "ok",
            **{str(column): value for column, value in row.items()},
            **result.times.breakdown,  # keys of earlier versions
            "held_back": holds and holds.to_dict(),
            "assumed": [*result.assumed, *([PRICE_NOTE] if prices else [])],
            "longer_on_path": [part.to_dict() for part in parts],
            "notes": [*result.list_idle_fields()],
        }
    head = [f"links that are faster than in {next(iter(results))!r}"]
    common.print_answer(
        args,
        lambda: [
            *_comparison_blocks(table, causes, results, refused, list(played)),
            TextLines([*head, *held] if held else []),
            *(TextLines([line]) for line in longer),
            TextLines(assumption_lines(merge_assumptions({name: rows[name]["assumed"] for name in results}))),
        ],
        lambda: [{"variant": name, **rows[name]} for name in played],
    )
    common.draw_pictures(
        args,
        (args.gantt, lambda: _draw_timelines(args, results)),
        (args.waterfall, lambda: load_plot("waterfall")(dict(table["step_time_s"]), causes)),
        (args.overlap, lambda: load_plot("overlap")(list(results.items()))),
        (args.scaling, lambda: load_plot("scaling")(table)),
    )
    if args.csv:
        common.write_table(args.csv, _add_rejected_rows(table, refused, list(played)).reset_index())


def _add_rejected_rows(table: pd.DataFrame, rejected: Mapping[str, str], order: list[str]) -> pd.DataFrame:
    whole = table.assign(status="ok", error="")
    if rejected:
        whole = whole.convert_dtypes().reindex(order)  # whole numbers stay whole next to what is missing
    for name, reason in rejected.items():
        whole.loc[name, ["status", "error"]] = ["refused", reason]
    return whole


def _draw_timelines(args: argparse.Namespace, results: Mapping[str, Result]) -> Figure:
    named = []
    for name, result in results.items():
        need, have = result.memory.total, result.facts.memory
        lacks = "" if need <= have else f"  (out of memory: needs {need / 1e9:.1f} of {have / 1e9:.1f} GB)"
        named.append((f"{name}{lacks}", result))
    scenarios = {result.scenario.name for result in results.values()}
    what = f"{min(scenarios)}: {len(named)} variants" if len(scenarios) == 1 else f"{len(named)} scenarios"
    return load_plot("compare_gantts")(named, title=f"{what}, one step of each", **common.picture_size_inches(args))


def _comparison_blocks(
    table: pd.DataFrame, causes: pd.DataFrame, results: Mapping[str, Result], refused: Mapping[str, str],
    order: Sequence[str],
) -> Iterator[OutputBlock]:  # fmt: skip
    layouts = {
        name: f"{describe_gpus(each.scenario)} | {describe_layout(each.scenario)}" for name, each in results.items()
    }
    several = len(set(layouts.values())) > 1
    yield TextLines([f"{name}: {line}" for name, line in layouts.items()] if several else [*layouts.values()][:1])
    yield _metric_table(table, order)
    reasons = [f"  {name}: {join_error_lines(reason)}" for name, reason in refused.items()]
    yield TextLines(["refused", *reasons] if reasons else [])
    without_effect: dict[str, list[str]] = {}
    for name, result in results.items():
        for note in result.list_idle_fields():
            without_effect.setdefault(note, []).append(name)
    yield TextLines([
        f"note: {note}" + ("" if len(of) == len(order) else f" ({', '.join(of)})")
        for note, of in without_effect.items()
    ])  # fmt: skip
    if len(table) > 1:
        title = f"causes of the difference from {table.index[0]!r} (per step, mean over ranks)"
        yield _difference_table(subtract_first_breakdown(table), title, total="sum")
        yield from _communication_tables(causes, f"{table.index[0]!r}")


def _metric_table(table: pd.DataFrame, order: Sequence[str]) -> TableBlock:
    columns = [*table_cells.column_headings("compare"), *(["$/1T tokens"] if DOLLARS_COLUMN in table else [])]
    rows = {name: [name, "refused", *[""] * (len(columns) + 1)] for name in order}
    for index, (variant, row) in enumerate(table.iterrows()):
        change_of = f"{row['difference']:+.1%}" if index else ""
        dollars = [format_whole_dollars(row[DOLLARS_COLUMN])] if DOLLARS_COLUMN in row else []
        step = format_seconds(row["step_time_s"])
        rows[str(variant)] = [str(variant), step, change_of, *format_row("compare", row.to_dict()), *dollars]
    notes = []
    if table["schedule_bubble_fraction"].any():
        notes.append("bubble: share of the step waiting for other stages; schedule's: if all passes took equally long")
    if not table["fits"].all():
        notes.append("! out of memory; simcluster run of that variant lists changes that would make it fit")
    if (table["mfu_bf16"] != table["mfu"]).any():
        over = ", ".join(f"{name} {value:.1%}" for name, value in table["mfu_bf16"].items())
        notes.append(f"MFU: of the peak in each variant's precision; of the peak in bf16: {over}")
    first = recipe_named(table["recipe"].iloc[0])  # bytes per parameter, which follow from the precision if not named
    for name, recipe in table["recipe"].items():
        if recipe != first.name:
            words = describe_recipe_change(first, recipe_named(recipe))
            notes.append(f"recipe of {name!r}: {recipe} for {first.name}, {words}")
    return TableBlock(["variant", "step", "difference", *columns], list(rows.values()), notes=notes)


def _communication_tables(causes: pd.DataFrame, first: str) -> list[TableBlock]:
    reasons = ("_traffic", "_hiding", "_contention")
    parts = causes[[name for name in causes.columns if name.endswith(reasons) or name == "interference"]]
    if not (parts.abs() > NO_TIME).any(axis=None):
        return []
    title = f"causes of the change in exposed communication from {first} (per step, mean over ranks)"
    notes = [
        "traffic: time on free links (bytes, algorithm, link rates); hiding: the part overlapped with compute;",
        "contention: links shared with others; interference: compute slowed by concurrent communication",
    ]
    return [_difference_table(parts.rename(columns=lambda name: name.replace("_", " ")), title, notes=notes)]


def _difference_table(parts: pd.DataFrame, title: str, *, total: str = "", notes: Sequence[str] = ()) -> TableBlock:
    shown = [name for name in parts.columns if (parts[name].abs() > NO_TIME).any()]
    rows = [
        [str(name), *map(format_signed_seconds, [*row[shown], *([float(row.sum())] if total else [])])]
        for name, row in parts.iloc[1:].iterrows()
    ]
    return TableBlock(["variant", *shown, *([total] if total else [])], rows, title=[title], notes=notes)
