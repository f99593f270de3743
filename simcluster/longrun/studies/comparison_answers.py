"""Printed answers of ``simcluster train --replay``, of policy comparisons, and of ``simcluster advise``."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from simcluster.base.units import DAY
from simcluster.cli.common import join_error_lines
from simcluster.longrun import text_formats
from simcluster.longrun.studies.failure_replay import FailureReplay
from simcluster.longrun.studies.logged_failures import list_failures_of_log
from simcluster.longrun.studies.policy_bench import Advice
from simcluster.longrun.studies.policy_comparison import MEASURES, Measure, PolicyComparison
from simcluster.longrun.studies.training_answer import FATE_WORDS
from simcluster.longrun.text_formats import format_remarks, format_with_half_width, rows_to_dicts, table_blocks
from simcluster.show.output_blocks import HeadlineValues, NamedValue, OutputBlocks, TableBlock, TextLines

_MOST = 5  # causes to name
_DIGITS = {"goodput": 3, "steps": 0, "strikes": 1, "outages": 1}  # of other measures two


def replay_answer(replay: FailureReplay) -> OutputBlocks:
    """Return the printed answer of a replayed failure log."""
    was, changed = replay.as_it_was, replay.changes.items()
    struck = Counter(each.cause for each in list_failures_of_log(was.run, replay.log))
    rest = len(struck) - _MOST
    named = ", ".join(f"{cause} {count}" for cause, count in struck.most_common(_MOST))
    head = f"{replay.name} simulated again: {struck.total():,} failures in {replay.log.end / DAY:.4g} days"
    changes = ", ".join(f"{path} = {value if isinstance(value, str) else json.dumps(value)}" for path, value in changed)
    facts = [NamedValue("failures", f"{named}{f', {rest} others' if rest > 0 else ''}")]
    return [
        TextLines([was.scenario.name, f"{head}; {was.played:,} run{'s' * (was.played > 1)}"], "head"),
        HeadlineValues([*facts, *[NamedValue("what if", changes)] * bool(changes)]),
        *_measures_table(replay),
        format_remarks(replay.assumed, replay.notes),
        TextLines([] if replay.what_if is None else [_describe_value_of_change(replay)]),
    ]


def _measures_table(replay: FailureReplay) -> list[TableBlock]:
    words = {**FATE_WORDS, "stood": "standstill of the job", "strikes": "failures"}
    rows, known = [], ("logged", "as_it_was", "what_if")
    for row in rows_to_dicts(replay.table):
        measure = row["measure"]
        hours, name = measure.endswith("_h"), measure.removesuffix("_h")
        if hours and not any(abs(row[each]) > 1e-6 for each in known):  # comparisons with nan are false
            continue
        digits, scale = _DIGITS.get(name, 2), 100 if measure == "goodput" else 1
        half, form = scale * row["half_width"], "{:.2%}" if measure == "goodput" else f"{{:,.{digits}f}}"
        rows.append({
            "measure": f"{words[name]}, h" if hours else words.get(name, name),
            **{each: "" if math.isnan(row[each]) else form.format(row[each]) for each in known},
            "difference": f"{scale * row['difference']:+,.{digits}f}",
            "noise": f"+- {half:,.{digits}f}" if half >= 0.5 * 10**-digits else "",
        })  # fmt: skip
    columns = [("", "{measure}"), ("logged", "{logged}"), ("as it was", "{as_it_was}")]
    then = [("what if", "{what_if}"), ("difference", "{difference}"), ("", "{noise}")]
    return table_blocks(rows, columns if replay.what_if is None else [*columns, *then])


def _describe_value_of_change(replay: FailureReplay) -> str:
    ends = math.isfinite(replay.last_training.run.until)
    row, steps = (text_formats.row_to_dict(replay.table, name) for name in ("goodput" if ends else "days", "steps"))
    gap, half = row["difference"], row["half_width"]
    scale, unit = (100, "points of goodput") if ends else (1, "days")
    noise = "" if math.isnan(half) else f" +- {scale * half:.3f}"
    known = "" if math.isnan(half) or abs(gap) > half else ": not distinguishable from zero"
    more = f", {steps['difference']:+,.0f} steps" if ends else ""
    return f"With the same failures the change is worth {scale * gap:+.3f}{noise} {unit}{more}{known}."


def policies_answer(found: PolicyComparison) -> OutputBlocks:
    """Return the printed answer of a policy comparison: the best policy, a table, and rejected policies."""
    head = f"{next(iter(found.runs))}: {len(found.runs)} policies, {found.played:,} runs of each on the same failures"
    columns, rows = [("policy", "{policy}")], [{"policy": name} for name in found.runs]
    for measure in found.tables:
        columns += _add_measure_to_rows(found, measure, rows)
    refused = [f"  {name}: {join_error_lines(why)}" for name, why in found.refused.items()]
    return [
        TextLines([head], "head"),
        TextLines([found.sentence]),
        *table_blocks(rows, columns, notes=["+-: half of the 95 % interval; ~: the interval includes zero"], indent=0),
        TextLines(["refused", *refused] if refused else []),
        format_remarks(found.assumed),
    ]


def _add_measure_to_rows(found: PolicyComparison, measure: Measure, rows: list[dict[str, str]]) -> text_formats.Columns:
    scale, unit = MEASURES[measure]
    digits, suffix = {"goodput": (2, " %"), "days": (2, ""), "dollars": (0, "")}[measure]
    fine = 0 if measure == "dollars" else 3
    records = rows_to_dicts(found.tables[measure])
    for row, known in zip(rows, records, strict=True):
        half, gap, of_gap = (scale * known[name] for name in ("half_width", "difference", "difference_half_width"))
        noise = f" +- {half:,.{digits}f}" if half > 1e-12 * abs(scale * known["mean"]) else ""
        row[measure] = f"{scale * known['mean']:,.{digits}f}{noise}{suffix}"
        row[f"{measure} gap"] = (
            f"{'~ ' * (abs(gap) <= of_gap)}{gap:+,.{fine}f} +- {of_gap:,.{fine}f}" if gap or of_gap else "0"
        )
    rows[0][f"{measure} gap"] = ""
    differ = any(abs(known["difference"]) > 1e-12 * known["mean"] for known in records)
    return [(measure, f"{{{measure}}}"), *[(f"against the first, {unit}", f"{{{measure} gap}}")] * differ]


# --- advice -----------------------------------------------------------------------------------------------------------

_HEADS = {
    "interval_s": "interval, s", "interruption_s": "interruption, s", "mean_s": "mean, s", "hours": "slow, h",
    "left": "left, GPU-h", "at_once": "at once, GPU-h", "checkpoint": "checkpoint, GPU-h", "gpus_plain": "whole GPUs",
    "gpus": "GPUs", "short": "short of nodes", "erlang_b": "Erlang B", "gain_per_min": "gain per minute",
}  # fmt: skip
_SHARES = ("goodput", "closed_form", "difference", "short", "erlang_b", "gain", "gain_per_min", "blocking", "snapshot")


def advice_answer(found: Advice) -> OutputBlocks:
    """Return the printed answer of ``simcluster advise``: sentence, tables, notes and assumptions."""
    tables = [found.table] if found.second is None else [found.table, found.second]
    wide = {"goodput": "half_width"} | {line.column: line.half_width_column for line in found.picture.lines}
    blocks = []
    for table in tables:
        halves = {column: wide.get(column, f"{column}_half_width") for column in map(str, table)}
        kept = [column for column in halves if column not in halves.values()]
        rows = [
            {column: _format_advice_cell(column, row[column], row.get(halves[column])) for column in kept}
            for row in rows_to_dicts(table)
        ]
        columns = [(_HEADS.get(column, column.replace("_", " ")), f"{{{column}}}") for column in kept]
        blocks += table_blocks(rows, columns, indent=0)
    head = f"{found.name}: {found.question}, {found.played:,} runs each"
    return [TextLines([head], "head"), TextLines([found.sentence]), *blocks, format_remarks(found.assumed, found.notes)]


def _format_advice_cell(column: str, value: Any, half: Any) -> str:
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "-"
    share = column in _SHARES or column.endswith("_closed_form")
    digits, scale = (3, 100) if share else (0 if isinstance(value, int) else 1 if abs(value) >= 100 else 3, 1)
    known = half is not None and math.isfinite(half)
    text = format_with_half_width(scale * value, scale * half, digits) if known else f"{scale * value:,.{digits}f}"
    return text + (" %" if share else "")
