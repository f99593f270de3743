"""The HTML report as one page: its sections in order, its script and style sheet, and their data.

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
from simcluster.interactive.report import colours, details, summary
from simcluster.interactive.report.entry import MemoryCurve, ReportedTrace, ReportEntry
from simcluster.interactive.report.html import Markup, element, fill_asset, join_html, json_block, read_asset
from simcluster.interactive.report.packing import BinaryColumns, choose_shown_ranks, pack_timeline, to_ticks
from simcluster.interactive.report.rows import MOST_ROWS
from simcluster.results.memory_timeline import POOLS
from simcluster.show.gantt_rows import pick_evenly_spaced

SCRIPTS = (
    "data.js", "search.js", "gantt.js", "gantt_text.js", "gantt_marks.js", "controls.js", "controls_text.js",
    "controls_view.js", "charts.js", "page.js",
)  # fmt: skip
EVERY_PART = frozenset(("timeline", "schedule", "memory", "links"))
_MOST_ENTRIES = 12
_LONG_HEADING = 100
_HELP = (
    "Drag to pan; W and S, + and −, or Ctrl and the wheel zoom; A and D or arrow keys move; 0 shows all. Drag on the "
    "ruler or with Shift to choose a part; a double click zooms to a span. . and , walk from span to span, [ and ] "
    "from lane to lane, / searches."
)
_TOUCH = (
    "Pinch to zoom, drag sideways to move, up and down for other rows; tap a span to see what it is; drag on the ruler "
    "to choose a part."
)


def report_page(entries: Sequence[ReportEntry], *, title: str = "", against: ReportedTrace | None = None) -> str:
    """Return the HTML report about runs; every later run is compared with the first run.

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
    blob = BinaryColumns()
    data, notes = script_data(entries, blob, against)
    return "<!doctype html>\n" + fill_asset(
        "page.html",
        policy=content_policy(script, sheet),
        heading=title or _page_heading(entries), style=Markup(sheet), told=run_descriptions(entries),
        contents=(element("a", name, href=f"#{place}") for place, name in _table_of_contents(entries, against)),
        sections=_sections_html(entries, notes, against), version=str(entries[0].numbers.get("version", "")),
        data=json_block("data", data), columns=Markup(blob.compressed_text()), script=Markup(script),
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
    """Return the lines below the report's heading that describe each run's job."""
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
"""Sections of the page in order, with their headings."""


def _sections_html(entries: Sequence[ReportEntry], notes: Sequence[str], against: ReportedTrace | None) -> Markup:
    made = section_contents(entries, notes, against)
    parts = []
    for place, name in _table_of_contents(entries, against):
        if place == "memory" and len(entries) > 1:
            options = [element("option", entry.name, value=str(at)) for at, entry in enumerate(entries)]
            pick = element("label", "Details of ", element("select", options, id="pick"))
            parts.append(element("div", pick, class_="picker", hidden=""))
        parts.append(element("section", element("h2", name), made[place], id=place))
    return join_html(parts)


def section_contents(
    entries: Sequence[ReportEntry], notes: Sequence[str], against: ReportedTrace | None = None
) -> dict[str, Markup]:
    """Return the HTML of each report section by name; the notes appear below the timeline."""
    numbered, frame = list(enumerate(entries)), schedule_frame()
    return {
        "answer": summary.summary_section(entries),
        "where": summary.time_section(entries),
        "differences": summary.differences_section(entries) if len(entries) > 1 else Markup(),
        "trace": against.section if against else Markup(),
        "timeline": _timeline_section(entries, notes),
        "memory": _repeat_per_run([details.memory_section(entry, at) for at, entry in numbered], entries),
        "links": _repeat_per_run([details.links_section(entry, at) for at, entry in numbered], entries),
        "stragglers": _repeat_per_run([details.stragglers_section(entry) for entry in entries], entries),
        "schedule": _repeat_per_run([details.schedule_section(entry, at, frame) for at, entry in numbered], entries),
        "accuracy": details.accuracy_section(entries),
        "scenario": _repeat_per_run([details.scenario_section(entry, at) for at, entry in numbered], entries),
    }


def _repeat_per_run(parts: Sequence[Markup], entries: Sequence[ReportEntry]) -> Markup:
    if len(entries) == 1:
        return parts[0]
    return join_html(
        element("div", element("h3", entry.name), part, data_run=str(at))
        for at, (entry, part) in enumerate(zip(entries, parts, strict=True))
    )


def _timeline_section(entries: Sequence[ReportEntry], notes: Sequence[str]) -> Markup:
    if not any(entry.result for entry in entries):
        return details.small_print("A saved result has no timeline; give the scenario instead.")
    needs_script = details.small_print("The timeline needs JavaScript; everything else on this page does not.")
    return join_html(
        element("p", id="trouble", hidden="", role="alert"),
        element("noscript", needs_script),
        element("div", timeline_frame(len(entries)), id="gantt", class_="gantt"),
        [details.small_print(note) for note in notes],
    )


def schedule_frame() -> Markup:
    """Return the HTML frame in which the script draws a schedule: buttons, and a scrollable canvas."""
    return fill_asset("gantt.html", name="Schedule", help=_HELP, search="", table="")


def timeline_frame(runs: int = 1) -> Markup:
    """Return the HTML frame in which the script draws timelines, with search, legend and table."""
    chosen = Markup(' selected=""')
    search = fill_asset("gantt_search.html", every=chosen if runs == 1 else "", one=chosen if runs > 1 else "")
    below = fill_asset("gantt_table.html", help=_HELP, touch=_TOUCH)
    return fill_asset("gantt.html", name="Timeline", help=_HELP, search=search, table=below)


# --- data -------------------------------------------------------------------------------------------------------------


def script_data(
    entries: Sequence[ReportEntry],
    blob: BinaryColumns,
    against: ReportedTrace | None = None,
    *,
    most_spans: int = colours.MOST_SPANS,
    parts: frozenset[str] = EVERY_PART,
    chosen_by: str = "--ranks",
) -> tuple[dict[str, Any], list[str]]:
    """Return the data for the page's script as JSON, and notes about omitted ranks; columns are added to ``blob``.

    The notes say what timelines omit; all of them have ``most_spans`` spans together.
    """
    runs, notes = [], []
    paints: dict[tuple[str, str, int], int] = {}
    for entry in entries:
        timeline = grid = None
        if entry.result is not None and "timeline" in parts:
            timeline, left_out = _timeline_data(entry, most_spans // len(entries), blob)
            timeline = colours.index_paints(timeline, paints, blob)
            notes += _omission_notes(entry, left_out, chosen_by, several=len(entries) > 1)
        schedule = entry.schedule if "schedule" in parts else None
        if schedule is not None and sum(map(len, schedule.rows)) <= colours.MOST_ACTIONS:
            packed = pack_timeline(colours.ideal_schedule_spans(schedule), blob, weights={})
            grid = colours.index_paints(packed, paints, blob)
        memory = [_curve_data(curve, entry, blob) for curve in entry.memory] if "memory" in parts else []
        links = None
        if "links" in parts and entry.links is not None:
            full = np.rint(255 * np.clip(entry.links[1], 0.0, 1.0)).astype(np.int64)
            links = {"bins": full.shape[1], "matrix": blob.add_integers(full.ravel())}
        steps = entry.scenario.steps if entry.scenario else 1
        capacity = entry.result.facts.memory if entry.result else 0.0
        runs.append({"name": entry.name, "steps": steps, "timeline": timeline, "grid": grid, "memory": memory,
                     "capacity": capacity, "links": links})  # fmt: skip
    if against is not None:
        name = f"recorded: {against.name}"
        run, missing = colours.timeline_data(name, against.step, {}, colours.MOST_SPANS, paints, blob)
        runs.append(run)
        notes += [f"{missing} more recorded ranks are omitted to keep the page small."] if missing else []
    return {"runs": runs, "paints": colours.list_page_paints(paints)}, notes


def _timeline_data(entry: ReportEntry, max_spans: int, blob: BinaryColumns) -> tuple[dict[str, Any], int]:
    assert entry.result is not None
    every = entry.result.spans
    own = np.isin(every.rank, sorted({row.source for row in entry.rows}))
    spans, missing = choose_shown_ranks(every.select(own), max_spans)
    facts = entry.span_descriptions.select(own & ~np.isin(every.rank, missing))
    rows = [row for row in entry.rows if row.source not in missing]
    if len(rows) > MOST_ROWS:
        rows = [rows[place] for place in pick_evenly_spaced(list(range(len(rows))), MOST_ROWS)]
    return pack_timeline(spans, blob, weights=entry.weights, facts=facts, rows=rows), len(entry.rows) - len(rows)


def _omission_notes(entry: ReportEntry, left_out: int, chosen_by: str, *, several: bool) -> list[str]:
    of = f"{entry.name}: " if several else ""
    found = []
    drawn = len({row.source for row in entry.rows})
    shown, stand_for = len(entry.rows), sum(entry.weights.values())
    if drawn < len(entry.rows):
        found.append(f"{of}{shown:,} ranks, drawn from the {drawn:,} simulated ones: the others are identical.")
    if stand_for > shown:
        what = "rank represents" if shown == 1 else "ranks represent"
        found.append(f"{of}{shown} {what} {stand_for:,}; × is the number of identical ranks that a row represents.")
    if left_out:
        choice = f"; choose the ranks with {chosen_by}" if chosen_by else ""
        found.append(f"{of}{left_out} more ranks are omitted to keep the page small{choice}.")
    return found


def _curve_data(curve: MemoryCurve, entry: ReportEntry, blob: BinaryColumns) -> dict[str, Any]:
    assert entry.result is not None
    duration = entry.result.step_time * entry.result.steps
    return {
        "rank": curve.rank,
        "duration": duration,
        "state": {key: getattr(curve.model_state, key) for key in ("parameters", "gradients", "optimizer", "buffers")},
        "fragmentation": curve.model_state.fragmentation,
        "peak": curve.peak.describe(),
        "time": blob.add_integers(to_ticks(curve.time, duration)),
        "pools": [blob.add_floats(curve.pools[name]) for name in POOLS],
    }


# --- assets -----------------------------------------------------------------------------------------------------------


def page_script(*file_names: str) -> str:
    """Return the report's JavaScript, followed by the JavaScript of additional asset files."""
    return wrap_in_function("\n".join(read_asset(name) for name in (*SCRIPTS, *file_names)))


def wrap_in_function(script: str) -> str:
    """Wrap a script in a function, so that the script defines no global names."""
    return f'"use strict";\n(() => {{\n{script}\n}})();\n'


def style_sheet() -> str:
    """Return the report's CSS, with light and dark colours."""
    light, dark = colours.css_variables()
    theme = read_asset("style.css").replace("/*LIGHT*/", light).replace("/*DARK*/", dark)
    return f"{theme}\n{colours.css_classes()}\n"


def content_policy(script: str, styles: str, directives: str = "") -> str:
    """Return a content security policy that allows one inline script, one style sheet, and additional directives."""
    script, styles = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, styles))
    return f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{styles}'; img-src data:{directives}"
