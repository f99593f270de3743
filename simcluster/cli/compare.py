"""simcluster compare: scenarios, or variations of one, side by side, with the difference attributed and priced."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import whole_dollars
from simcluster.base.errors import InputError
from simcluster.base.units import HOUR, format_seconds
from simcluster.cli import common
from simcluster.cli.common import on_one_line
from simcluster.cli.overrides import overrides_of
from simcluster.documents.overrides import expand_vary
from simcluster.model.recipes import recipe_named
from simcluster.results.assumptions import assumed_lines, merge_assumptions
from simcluster.results.raised import HeldBack, held_between
from simcluster.results.result import Result
from simcluster.scenario.memory_plan import change_words
from simcluster.show.blocks import Block, Lines, TableBlock
from simcluster.show.cells import NO_TIME, cells, change, gpus_of_cluster, headings, layout
from simcluster.show.pictures import picture
from simcluster.studies.variations import Outcomes, attribution, compare, differences, play_all, possible_variations
from simcluster.studies.whatif.only_faster import slower_although_faster, told

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.show.pictures import Figure

DOLLARS = "dollars_per_1t_tokens"
"""The column of the table."""
ASSUMED = "a price is of healthy steps: no failures, restarts, checkpoints or spares (simcluster train has them)"


def dollars_per_trillion_tokens(gpus: float, price: float, tokens_per_s: float) -> float:
    """Return the dollars of 1e12 tokens on that many GPUs at a price per GPU and hour."""
    return 1e12 * gpus * price / tokens_per_s / HOUR


def reject_price_key(overrides: Sequence[tuple[str, Any]]) -> None:
    """Raise InputError for a price that is set as if a scenario had one at its top."""
    for path, value in overrides:
        if path == "price":
            raise InputError(
                f"--set price: a scenario has no price; compare takes --price {value}, in dollars per GPU and hour "
                f"(simcluster train --run.price {value} costs a whole run)"
            )


def read_prices(text: str, scenario_of: Mapping[str, int]) -> dict[str, float]:
    """Return the price of each variant; ``scenario_of`` has the number of its scenario.

    InputError for text that is not one price above zero, one per scenario or one per variant.
    """
    try:
        prices = [float(each) for each in text.split(",")]
    except ValueError:
        prices = []
    if not prices or not all(0 < price < math.inf for price in prices):
        raise InputError(f"--price {text!r} must be dollars per GPU and hour above 0; write 2.5, or 2.5,4.5 for two")
    scenarios = max(scenario_of.values()) + 1
    if len(prices) == 1:
        return dict.fromkeys(scenario_of, prices[0])
    if len(prices) == scenarios:
        return {name: prices[number] for name, number in scenario_of.items()}
    if len(prices) == len(scenario_of):
        return dict(zip(scenario_of, prices, strict=True))
    counts = sorted({1, scenarios, len(scenario_of)})
    raise InputError(f"--price {text!r} has {len(prices)} prices; write {' or '.join(map(str, counts))}: one for all, "
                     "one per scenario or one per variant")  # fmt: skip


def add_dollars(table: pd.DataFrame, prices: Mapping[str, float]) -> pd.DataFrame:
    """Return the table with the dollars of a trillion tokens, those of padding not counted."""
    rows = zip(table.index, table["gpus"], table["real_tokens_per_s"], strict=True)
    return table.assign(
        **{DOLLARS: [dollars_per_trillion_tokens(g, prices[str(name)], rate) for name, g, rate in rows]}
    )


def run(args: argparse.Namespace) -> None:
    """Replay all variants that can be; print the table; draw."""
    vary = [expand_vary(text) for text in args.vary]
    overrides = overrides_of(args, *args.scenarios)
    reject_price_key(overrides)
    each = [possible_variations(path, overrides, vary) for path in args.scenarios]
    variants = [pair for of_one in each for pair in of_one.items()]
    scenario_of = {name: number for number, of_one in enumerate(each) for name in of_one}
    prices = read_prices(args.price, scenario_of) if args.price else {}
    scenarios = [scenario for _, scenario in variants if not isinstance(scenario, InputError)]
    if args.scaling and len({scenario.gpus for scenario in scenarios}) < 2:
        raise InputError("--scaling draws sizes: give scenarios of several numbers of GPUs, as with --vary gpus=64,128")
    if args.waterfall and len(scenarios) < 2:
        raise InputError("--waterfall draws differences: give at least two scenarios, or one and --vary")
    played = play_all(variants)
    results = {name: result for name, result in played.items() if not isinstance(result, InputError)}
    table = compare(list(results.values()), list(results))
    table = add_dollars(table, prices) if prices else table
    causes = differences(list(results.values()), list(results))
    first = next(iter(results.values()))
    held = {name: held_between(first.scenario, result.scenario, result) for name, result in results.items()}
    rows = dict(zip(results, table.to_dict("records"), strict=True))
    longer = {
        name: slower_although_faster(first, result, first.scenario, result.scenario) for name, result in results.items()
    }
    for name, holds in held.items():
        rows[name].update(results[name].times.breakdown.items())  # keys of earlier versions
        rows[name]["held_back"] = holds and holds.to_dict()
        rows[name]["assumed"] = [*results[name].assumed, *([ASSUMED] if prices else [])]
        rows[name]["longer_on_path"] = [part.to_dict() for part in longer[name]]
        rows[name]["notes"] = [*results[name].without_effect()]
    common.answer(
        args,
        lambda: [
            *_blocks(table, causes, played),
            Lines(_held(held)),
            *(Lines([f"{name}: {told(each)}"]) for name, each in longer.items() if each),
            Lines(assumed_lines(merge_assumptions({name: row["assumed"] for name, row in rows.items()}))),
        ],
        lambda: [{"variant": name, **_status(each), **rows.get(name, {})} for name, each in played.items()],
    )
    common.draw(
        args,
        (args.gantt, lambda: _gantt(args, results)),
        (args.waterfall, lambda: picture("waterfall")(dict(table["step_time_s"]), causes)),
        (args.overlap, lambda: picture("overlap")(list(results.items()))),
        (args.scaling, lambda: picture("scaling")(table)),
    )
    if args.csv:
        common.write_table(args.csv, _with_refused(table, played).reset_index())


def _gantt(args: argparse.Namespace, results: Mapping[str, Result]) -> Figure:
    """Draw all timelines under each other; what does not fit its GPU says so."""
    named = []
    for name, result in results.items():
        need, have = result.memory.total, result.facts.memory
        lacks = "" if need <= have else f"  (does not fit: {need / 1e9:.1f} of {have / 1e9:.1f} GB)"
        named.append((f"{name}{lacks}", result))
    scenarios = {result.scenario.name for result in results.values()}
    what = f"{min(scenarios)}: {len(named)} variants" if len(scenarios) == 1 else f"{len(named)} scenarios"
    return picture("compare_gantts")(named, title=f"{what}, one step of each", **common.inches(args))


def _status(played: Result | InputError) -> dict[str, str]:
    return {"status": "refused", "error": str(played)} if isinstance(played, InputError) else {"status": "ok"}


def _with_refused(table: pd.DataFrame, played: Outcomes) -> pd.DataFrame:
    """Return a row for every variant, with its status and, of one that was refused, the reason."""
    whole = table.assign(status="ok", error="")
    if len(table) < len(played):
        whole = whole.convert_dtypes().reindex(list(played))  # whole numbers stay whole beside what is missing
    for name, reason in played.items():
        if isinstance(reason, InputError):
            whole.loc[name, ["status", "error"]] = ["refused", str(reason)]
    return whole


def _blocks(table: pd.DataFrame, causes: pd.DataFrame, played: Outcomes) -> Iterator[Block]:
    """Yield how variants are laid out, numbers of every one, then where each one's difference from the first went."""
    yield Lines(_layouts(played))
    yield _numbers(table, played)
    yield Lines(_refused(played))
    yield Lines(_without_effect(played))
    if len(table) > 1:
        title = f"where the difference from {table.index[0]!r} went (a step, mean over ranks)"
        yield _differences(attribution(table), title, total="sum")
        yield from _communication(causes, f"{table.index[0]!r}")


def _numbers(table: pd.DataFrame, played: Outcomes) -> TableBlock:
    found = {
        str(name): [
            str(name),
            format_seconds(row["step_time_s"]),
            f"{row['difference']:+.1%}" if index else "",
            *cells("compare", row.to_dict()),
            *([whole_dollars(row[DOLLARS])] if DOLLARS in row else []),
        ]
        for index, (name, row) in enumerate(table.iterrows())
    }
    columns = [*headings("compare"), *(["$/1T tokens"] if DOLLARS in table else [])]
    notes = []
    if table["schedule_bubble_fraction"].any():
        notes.append("bubble: of the step, waiting for other stages; schedule's: what it has alone, with equal passes")
    if not table["fits"].all():
        notes.append("! does not fit on its GPU; simcluster run of that variant says which changes would make it fit")
    if (table["mfu_bf16"] != table["mfu"]).any():
        over = ", ".join(f"{name} {value:.1%}" for name, value in table["mfu_bf16"].items())
        notes.append(f"MFU: of the peak in each variant's precision; of the peak in bf16: {over}")
    refused = ["refused", *[""] * (len(columns) + 1)]
    rows = [found.get(name, [name, *refused]) for name in played]
    return TableBlock(["variant", "step", "difference", *columns], rows, notes=[*notes, *_recipes(table)])


def _recipes(table: pd.DataFrame) -> Iterator[str]:
    """Bytes a parameter, where they are not those of the first variant: they follow from the precision if not named."""
    first = recipe_named(table["recipe"].iloc[0])
    for name, recipe in table["recipe"].items():
        if recipe != first.name:
            yield f"recipe of {name!r}: {recipe} for {first.name}, {change_words(first, recipe_named(recipe))}"


def _held(held: Mapping[str, HeldBack | None]) -> list[str]:
    """Of every variant with faster links than the first one's: what is in series with them and holds."""
    lines = [f"  {name}: {each.in_words()}" for name, each in held.items() if each]
    return [f"links that are faster than those of {next(iter(held))!r}", *lines] if lines else []


def _layouts(played: Outcomes) -> list[str]:
    lines = {
        name: f"{gpus_of_cluster(result.scenario)} | {layout(result.scenario)}"
        for name, result in played.items()
        if not isinstance(result, InputError)
    }
    if len(set(lines.values())) == 1:
        return list(lines.values())[:1]
    return [f"{name}: {line}" for name, line in lines.items()]


def _refused(played: Outcomes) -> list[str]:
    reasons = [f"  {name}: {on_one_line(str(why))}" for name, why in played.items() if isinstance(why, InputError)]
    return ["refused", *reasons] if reasons else []


def _without_effect(played: Outcomes) -> list[str]:
    """Return which fields have no effect, with the variants in which they have none."""
    variants: dict[str, list[str]] = {}
    for name, result in played.items():
        for note in () if isinstance(result, InputError) else result.without_effect():
            variants.setdefault(note, []).append(name)
    return [
        f"note: {note}" + ("" if len(of) == len(played) else f" ({', '.join(of)})") for note, of in variants.items()
    ]


def _communication(causes: pd.DataFrame, first: str) -> list[TableBlock]:
    """Return the change of exposed communication, and of its effect on concurrent computation if that differs."""
    reasons = ("_traffic", "_hiding", "_contention")
    parts = causes[[name for name in causes.columns if name.endswith(reasons) or name == "interference"]]
    if not (parts.abs() > NO_TIME).any(axis=None):
        return []
    title = f"why exposed communication differs from that of {first} (a step, mean over ranks)"
    notes = [
        "traffic: time on free links (bytes, algorithm, link rates); hiding: the part beside compute;",
        "contention: links shared with others; interference: compute slowed by communication beside it",
    ]
    return [_differences(parts.rename(columns=lambda name: name.replace("_", " ")), title, notes=notes)]


def _differences(parts: pd.DataFrame, title: str, *, total: str = "", notes: Sequence[str] = ()) -> TableBlock:
    """Columns that differ anywhere, a line for every variant but the first; with their sum if that has a name."""
    shown = [name for name in parts.columns if (parts[name].abs() > NO_TIME).any()]
    rows = [
        [str(name), *map(change, [*row[shown], *([float(row.sum())] if total else [])])]
        for name, row in parts.iloc[1:].iterrows()
    ]
    return TableBlock(["variant", *shown, *([total] if total else [])], rows, title=[title], notes=notes)
