"""The HTML report: its sections in order, its script and styles, and the data of both.

The page loads nothing: styles, script and data are inside, and its content security policy forbids other scripts and
all connections.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simcluster.base.errors import InputError
from simcluster.results.memory_timeline import POOLS
from simcluster.show.gantt_rows import evenly_spaced
from simcluster.show.report import colours, details, summary
from simcluster.show.report.colours import (
    MOST_ACTIONS,
    MOST_SPANS,
    ideal_spans,
    page_paints,
    timeline_data,
    with_paints,
)
from simcluster.show.report.entry import MemoryCurve, ReportedTrace, ReportEntry
from simcluster.show.report.html import Markup, concatenate, element, fill_asset, json_block, read_asset
from simcluster.show.report.packing import TICKS, Blob, choose_ranks, pack_timeline, select_spans
from simcluster.show.report.rows import MOST_ROWS

SCRIPTS = (
    "data.js", "search.js", "gantt.js", "gantt_text.js", "gantt_marks.js", "controls.js", "controls_text.js",
    "controls_view.js", "charts.js", "page.js",
)  # fmt: skip
EVERY_PART = frozenset(("timeline", "schedule", "memory", "links"))
_MOST_ENTRIES = 12
_LONG_HEADING = 100
_HELP = (
    "Drag to pan; W and S, + and −, or Ctrl and the wheel zoom; A and D or arrow keys move; 0 for all. Drag on the "
    "ruler or with Shift to choose a part; a double click zooms to a span. . and , walk from span to span, [ and ] "
    "from lane to lane, / searches."
)
_TOUCH = (
    "Pinch to zoom, drag sideways to move, up and down for other rows; tap a span to see what it is; drag on the ruler "
    "to choose a part."
)


def report_page(entries: Sequence[ReportEntry], *, title: str = "", against: ReportedTrace | None = None) -> str:
    """Return the HTML report about some runs; the others are compared with the first.

    ``against`` is your trace, compared with the only run. InputError for no run, and for more than 12, which no page
    makes readable.
    """
    if not entries:
        raise InputError("nothing to report: give at least one scenario or saved result")
    if len(entries) > _MOST_ENTRIES:
        raise InputError(f"{len(entries)} runs are too many for one page; give at most {_MOST_ENTRIES}")
    if against is not None and not entries[0].ranks:  # those that were recorded, whoever was simulated for them
        ranks = against.ranks
        entries = [replace(entries[0], ranks=ranks, weights=dict.fromkeys(ranks, 1)), *entries[1:]]
    script, sheet = page_script(), style_sheet()
    blob = Blob()
    data, notes = script_data(entries, blob, against)
    return "<!doctype html>\n" + fill_asset(
        "page.html",
        policy=content_policy(script, sheet),
        heading=title or _page_heading(entries), style=Markup(sheet), told=run_descriptions(entries),
        contents=(element("a", name, href=f"#{place}") for place, name in _table_of_contents(entries, against)),
        sections=_sections_html(entries, notes, against), version=str(entries[0].numbers.get("version", "")),
        data=json_block("data", data), columns=Markup(blob.text()), script=Markup(script),
    ) + "\n"  # fmt: skip


def _page_heading(entries: Sequence[ReportEntry]) -> str:
    if len(entries) == 1:
        return entries[0].scenario.title if entries[0].scenario else entries[0].name
    scenarios = {entry.scenario.name if entry.scenario else entry.name for entry in entries}
    if len(scenarios) == 1:
        return scenarios.pop()
    names = ", ".join(entry.name for entry in entries)
    return names if len(names) <= _LONG_HEADING else f"{entries[0].name} and {len(entries) - 1} more"


# --- sections ---------------------------------------------------------------------------------------------------------


def run_descriptions(entries: Sequence[ReportEntry]) -> list[Markup]:
    """Return the lines below the report's heading that describe each run."""
    if len(entries) == 1:
        return [element("p", line) for line in summary.run_job_lines(entries[0])]
    lines = [(entry, summary.run_job_lines(entry)) for entry in entries]
    return [element("p", element("strong", entry.name), ": ", "; ".join([own[0], *own[2:]])) for entry, own in lines]


def _table_of_contents(entries: Sequence[ReportEntry], against: ReportedTrace | None) -> list[tuple[str, str]]:
    without = {"differences": len(entries) == 1, "trace": against is None}
    return [pair for pair in CONTENTS if not without.get(pair[0])]


CONTENTS = (("answer", "Answer"), ("where", "Where the time went"), ("differences", "Differences"),
            ("trace", "Your trace"), ("timeline", "Timeline"), ("memory", "Memory"), ("links", "Links"),
            ("stragglers", "Stragglers"), ("schedule", "Schedule"), ("accuracy", "Accuracy"),
            ("scenario", "Scenario"))  # fmt: skip
"""The sections of a page, in their order, and what they are called."""


def _sections_html(entries: Sequence[ReportEntry], notes: Sequence[str], against: ReportedTrace | None) -> Markup:
    made = section_contents(entries, notes, against)
    parts = []
    for place, name in _table_of_contents(entries, against):
        if place == "memory" and len(entries) > 1:
            options = [element("option", entry.name, value=str(at)) for at, entry in enumerate(entries)]
            pick = element("label", "Details of ", element("select", options, id="pick"))
            parts.append(element("div", pick, class_="picker", hidden=""))
        parts.append(element("section", element("h2", name), made[place], id=place))
    return concatenate(parts)


def section_contents(
    entries: Sequence[ReportEntry], notes: Sequence[str], against: ReportedTrace | None = None
) -> dict[str, Markup]:
    """Return the content of each report section by name; ``notes`` are remarks below the timeline."""
    numbered = list(enumerate(entries))
    return {
        "answer": summary.summary_section(entries),
        "where": summary.time_section(entries),
        "differences": summary.differences_section(entries) if len(entries) > 1 else Markup(),
        "trace": against.section if against else Markup(),
        "timeline": _timeline_section(entries, notes),
        "memory": _one_per_run([details.memory_section(entry, at) for at, entry in numbered], entries),
        "links": _one_per_run([details.links_section(entry, at) for at, entry in numbered], entries),
        "stragglers": _one_per_run([details.stragglers_section(entry) for entry in entries], entries),
        "schedule": _one_per_run(
            [details.schedule_section(entry, at, schedule_frame()) for at, entry in numbered], entries
        ),
        "accuracy": details.accuracy_section(entries),
        "scenario": _one_per_run([details.scenario_section(entry, at) for at, entry in numbered], entries),
    }


def _one_per_run(parts: Sequence[Markup], entries: Sequence[ReportEntry]) -> Markup:
    if len(entries) == 1:
        return parts[0]
    return concatenate(
        element("div", element("h3", entry.name), part, data_run=str(at))
        for at, (entry, part) in enumerate(zip(entries, parts, strict=True))
    )


def _timeline_section(entries: Sequence[ReportEntry], notes: Sequence[str]) -> Markup:
    if not any(entry.result for entry in entries):
        return details.remark("A saved result has no timeline; give the scenario instead.")
    return concatenate(
        element("p", id="trouble", hidden="", role="alert"),
        element("noscript", details.remark("The timeline needs JavaScript; everything else on this page does not.")),
        element("div", timeline_frame(len(entries)), id="gantt", class_="gantt"),
        [details.remark(note) for note in notes],
    )


def schedule_frame() -> Markup:
    """Return the frame in which the script draws a schedule: buttons, and a canvas in a scroller."""
    return fill_asset("gantt.html", name="Schedule", help=_HELP, search="", table="")


def timeline_frame(runs: int = 1) -> Markup:
    """Return the frame in which the script draws a timeline, with search, legend and table."""
    chosen = Markup(' selected=""')
    search = fill_asset("gantt_search.html", every=chosen if runs == 1 else "", one=chosen if runs > 1 else "")
    below = fill_asset("gantt_table.html", help=_HELP, touch=_TOUCH)
    return fill_asset("gantt.html", name="Timeline", help=_HELP, search=search, table=below)


# --- data -------------------------------------------------------------------------------------------------------------


def script_data(
    entries: Sequence[ReportEntry],
    blob: Blob,
    against: ReportedTrace | None = None,
    *,
    most_spans: int = MOST_SPANS,
    parts: frozenset[str] = EVERY_PART,
    chosen_by: str = "--ranks",
) -> tuple[dict[str, Any], list[str]]:
    """Return the script's data (its ``parts``) as JSON, with columns of numbers in the ``blob``, and remarks.

    The remarks name what timelines omit; all of them have ``most_spans`` spans together.
    """
    runs, notes = [], []
    paints: dict[tuple[str, str, int], int] = {}
    for entry in entries:
        timeline = grid = None
        if entry.result is not None and "timeline" in parts:
            timeline, left_out = _timeline_data(entry, most_spans // len(entries), blob)
            timeline = with_paints(timeline, paints, blob)
            notes += _omission_notes(entry, left_out, chosen_by, several=len(entries) > 1)
        if "schedule" in parts and entry.schedule is not None and sum(map(len, entry.schedule.rows)) <= MOST_ACTIONS:
            grid = with_paints(pack_timeline(ideal_spans(entry.schedule), blob, weights={}), paints, blob)
        full = (
            None
            if "links" not in parts or entry.links is None
            else np.rint(255 * np.clip(entry.links[1], 0.0, 1.0)).astype(np.int64)
        )
        runs.append(
            {
                "name": entry.name,
                "steps": entry.scenario.steps if entry.scenario else 1,
                "timeline": timeline,
                "grid": grid,
                "memory": [_curve_data(curve, entry, blob) for curve in entry.memory] if "memory" in parts else [],
                "capacity": entry.result.facts.memory if entry.result else 0.0,
                "links": None if full is None else {"bins": full.shape[1], "matrix": blob.integers(full.ravel())},
            }
        )  # fmt: skip
    if against is not None:
        run, missing = timeline_data(f"recorded: {against.name}", against.step, {}, MOST_SPANS, paints, blob)
        runs.append(run)
        notes += [f"{missing} more recorded ranks are omitted to keep the page small."] if missing else []
    return {"runs": runs, "paints": page_paints(paints)}, notes


def _timeline_data(entry: ReportEntry, most: int, blob: Blob) -> tuple[dict[str, Any], int]:
    assert entry.result is not None
    every = entry.result.spans
    own = np.isin(every.rank, sorted({row.source for row in entry.rows}))
    spans, missing = choose_ranks(select_spans(every, own), most)
    facts = entry.facts.only(own & ~np.isin(every.rank, missing))
    rows = [row for row in entry.rows if row.source not in missing]
    if len(rows) > MOST_ROWS:
        rows = [rows[place] for place in evenly_spaced(list(range(len(rows))), MOST_ROWS)]
    return pack_timeline(spans, blob, weights=entry.weights, facts=facts, rows=rows), len(entry.rows) - len(rows)


def _omission_notes(entry: ReportEntry, left_out: int, chosen_by: str, *, several: bool) -> list[str]:
    of = f"{entry.name}: " if several else ""
    found = []
    drawn = len({row.source for row in entry.rows})
    shown, stand_for = len(entry.rows), sum(entry.weights.values())
    if drawn < len(entry.rows):
        found.append(f"{of}{shown:,} ranks, drawn from the {drawn:,} simulated ones: the others are identical.")
    if stand_for > shown:
        stand = "rank stands" if shown == 1 else "ranks stand"
        found.append(f"{of}{shown} {stand} for {stand_for:,}; × says for how many, which do exactly the same.")
    if left_out:
        choice = f"; {chosen_by} chooses which it has" if chosen_by else ""
        found.append(f"{of}{left_out} more ranks are omitted to keep the page small{choice}.")
    return found


def _curve_data(curve: MemoryCurve, entry: ReportEntry, blob: Blob) -> dict[str, Any]:
    assert entry.result is not None
    duration = entry.result.step_time * entry.result.steps
    ticks = np.rint(np.clip(curve.time, 0.0, duration) * (TICKS / duration)).astype(np.int64)
    return {
        "rank": curve.rank,
        "duration": duration,
        "state": {name: getattr(curve.state, name) for name in ("parameters", "gradients", "optimizer", "buffers")},
        "fragmentation": curve.state.fragmentation,
        "peak": curve.peak.describe(),
        "time": blob.integers(ticks),
        "pools": [blob.floats(curve.pools[name]) for name in POOLS],
    }


# --- assets -----------------------------------------------------------------------------------------------------------


def page_script(*more: str) -> str:
    """Return the report's script, followed by ``more`` asset files."""
    return in_private_scope("\n".join(read_asset(name) for name in (*SCRIPTS, *more)))


def in_private_scope(parts: str) -> str:
    """Return a script wrapped in a function, so that its names are private."""
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


def style_sheet() -> str:
    """Return the report's style sheet, light and dark."""
    light, dark = colours.css_variables()
    theme = read_asset("style.css").replace("/*LIGHT*/", light).replace("/*DARK*/", dark)
    return f"{theme}\n{colours.css_classes()}\n"


def content_policy(script: str, styles: str, more: str = "") -> str:
    """Return a content security policy that allows one inline script, one style sheet, and ``more``."""
    script, styles = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, styles))
    return f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{styles}'; img-src data:{more}"
