"""The whole page: its sections in order, the script, the styles, and the data for both.

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
from simcluster.show.report.colours import MOST_ACTIONS, MOST_SPANS, bare_run, ideal_spans, page_paints, with_paints
from simcluster.show.report.entry import Entry, MemoryCurve, ReportedTrace
from simcluster.show.report.html import Markup, asset, concatenate, element, fill_asset, json_block
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


def page(entries: Sequence[Entry], *, title: str = "", against: ReportedTrace | None = None) -> str:
    """Return the HTML page about some runs; the others are compared with the first.

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
    script, sheet = script_of(), style_sheet()
    blob = Blob()
    data, notes = data_of(entries, blob, against)
    return "<!doctype html>\n" + fill_asset(
        "page.html",
        policy=content_policy(script, sheet),
        heading=title or _heading(entries), style=Markup(sheet), told=run_descriptions(entries),
        contents=(element("a", name, href=f"#{place}") for place, name in _contents(entries, against)),
        sections=_sections(entries, notes, against), version=str(entries[0].numbers.get("version", "")),
        data=json_block("data", data), columns=Markup(blob.text()), script=Markup(script),
    ) + "\n"  # fmt: skip


def _heading(entries: Sequence[Entry]) -> str:
    """Return a heading for the runs: the scenario that all of them vary, or their names."""
    if len(entries) == 1:
        return entries[0].scenario.title if entries[0].scenario else entries[0].name
    scenarios = {entry.scenario.name if entry.scenario else entry.name for entry in entries}
    if len(scenarios) == 1:
        return scenarios.pop()
    names = ", ".join(entry.name for entry in entries)
    return names if len(names) <= _LONG_HEADING else f"{entries[0].name} and {len(entries) - 1} more"


# --- sections ---------------------------------------------------------------------------------------------------------


def run_descriptions(entries: Sequence[Entry]) -> list[Markup]:
    """Return lines below the heading that describe the runs."""
    if len(entries) == 1:
        return [element("p", line) for line in summary.what_was_run(entries[0])]
    lines = [(entry, summary.what_was_run(entry)) for entry in entries]
    return [element("p", element("strong", entry.name), ": ", "; ".join([own[0], *own[2:]])) for entry, own in lines]


def _contents(entries: Sequence[Entry], against: ReportedTrace | None) -> list[tuple[str, str]]:
    without = {"differences": len(entries) == 1, "trace": against is None}
    return [pair for pair in CONTENTS if not without.get(pair[0])]


CONTENTS = (("answer", "Answer"), ("where", "Where the time went"), ("differences", "Differences"),
            ("trace", "Your trace"), ("timeline", "Timeline"), ("memory", "Memory"), ("links", "Links"),
            ("stragglers", "Stragglers"), ("schedule", "Schedule"), ("accuracy", "Accuracy"),
            ("scenario", "Scenario"))  # fmt: skip
"""The sections of a page, in their order, and what they are called."""


def _sections(entries: Sequence[Entry], notes: Sequence[str], against: ReportedTrace | None) -> Markup:
    made = section_contents(entries, notes, against)
    parts = []
    for place, name in _contents(entries, against):
        if place == "memory" and len(entries) > 1:
            options = [element("option", entry.name, value=str(at)) for at, entry in enumerate(entries)]
            pick = element("label", "Details of ", element("select", options, id="pick"))
            parts.append(element("div", pick, class_="picker", hidden=""))
        parts.append(element("section", element("h2", name), made[place], id=place))
    return concatenate(parts)


def section_contents(
    entries: Sequence[Entry], notes: Sequence[str], against: ReportedTrace | None = None
) -> dict[str, Markup]:
    """Return the content of each section; ``notes`` are remarks below the timeline."""
    numbered = list(enumerate(entries))
    return {
        "answer": summary.answer(entries),
        "where": summary.time_section(entries),
        "differences": summary.differences(entries) if len(entries) > 1 else Markup(),
        "trace": against.section if against else Markup(),
        "timeline": _timeline(entries, notes),
        "memory": _one_per_run([details.memory(entry, at) for at, entry in numbered], entries),
        "links": _one_per_run([details.links(entry, at) for at, entry in numbered], entries),
        "stragglers": _one_per_run([details.stragglers(entry) for entry in entries], entries),
        "schedule": _one_per_run([details.schedule(entry, at, schedule_frame()) for at, entry in numbered], entries),
        "accuracy": details.accuracy(entries),
        "scenario": _one_per_run([details.scenario(entry, at) for at, entry in numbered], entries),
    }


def _one_per_run(parts: Sequence[Markup], entries: Sequence[Entry]) -> Markup:
    """Return parts of all runs; the script shows the selected run's."""
    if len(entries) == 1:
        return parts[0]
    return concatenate(
        element("div", element("h3", entry.name), part, data_run=str(at))
        for at, (entry, part) in enumerate(zip(entries, parts, strict=True))
    )


def _timeline(entries: Sequence[Entry], notes: Sequence[str]) -> Markup:
    if not any(entry.result for entry in entries):
        return details.remark("A saved result has no timeline; give the scenario instead.")
    return concatenate(
        element("p", id="trouble", hidden="", role="alert"),
        element("noscript", details.remark("The timeline needs JavaScript; everything else on this page does not.")),
        element("div", timeline_frame(len(entries)), id="gantt", class_="gantt"),
        [details.remark(note) for note in notes],
    )


def schedule_frame() -> Markup:
    """Return the frame in which a schedule is drawn: buttons, and a canvas in a scroller."""
    return fill_asset("gantt.html", name="Schedule", help=_HELP, search="", table="")


def timeline_frame(runs: int = 1) -> Markup:
    """Return the frame in which a timeline is drawn, with search, legend and table."""
    chosen = Markup(' selected=""')
    search = fill_asset("gantt_search.html", every=chosen if runs == 1 else "", one=chosen if runs > 1 else "")
    below = fill_asset("gantt_table.html", help=_HELP, touch=_TOUCH)
    return fill_asset("gantt.html", name="Timeline", help=_HELP, search=search, table=below)


# --- data -------------------------------------------------------------------------------------------------------------


def data_of(
    entries: Sequence[Entry],
    blob: Blob,
    against: ReportedTrace | None = None,
    *,
    most_spans: int = MOST_SPANS,
    parts: frozenset[str] = EVERY_PART,
    chosen_by: str = "--ranks",
) -> tuple[dict[str, Any], list[str]]:
    """Return the script's data (some ``parts`` of it) as JSON, with columns of numbers in the ``blob``, and remarks.

    The remarks name what timelines omit; all of them have ``most_spans`` spans together.
    """
    runs, notes = [], []
    paints: dict[tuple[str, str, int], int] = {}
    for entry in entries:
        timeline = grid = None
        if entry.result is not None and "timeline" in parts:
            timeline, left_out = _timeline_of(entry, most_spans // len(entries), blob)
            timeline = with_paints(timeline, paints, blob)
            notes += _notes(entry, left_out, chosen_by, several=len(entries) > 1)
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
                "memory": [_curve(curve, entry, blob) for curve in entry.memory] if "memory" in parts else [],
                "capacity": entry.result.facts.memory if entry.result else 0.0,
                "links": None if full is None else {"bins": full.shape[1], "matrix": blob.integers(full.ravel())},
            }
        )  # fmt: skip
    if against is not None:
        run, missing = bare_run(f"recorded: {against.name}", against.step, {}, MOST_SPANS, paints, blob)
        runs.append(run)
        notes += [f"{missing} more recorded ranks are omitted to keep the page small."] if missing else []
    return {"runs": runs, "paints": page_paints(paints)}, notes


def _timeline_of(entry: Entry, most: int, blob: Blob) -> tuple[dict[str, Any], int]:
    """Return an entry's timeline from the spans of its representatives, and the number of omitted ranks."""
    assert entry.result is not None
    every = entry.result.spans
    own = np.isin(every.rank, sorted({row.source for row in entry.rows}))
    spans, missing = choose_ranks(select_spans(every, own), most)
    facts = entry.facts.only(own & ~np.isin(every.rank, missing))
    rows = [row for row in entry.rows if row.source not in missing]
    if len(rows) > MOST_ROWS:
        rows = [rows[place] for place in evenly_spaced(list(range(len(rows))), MOST_ROWS)]
    return pack_timeline(spans, blob, weights=entry.weights, facts=facts, rows=rows), len(entry.rows) - len(rows)


def _notes(entry: Entry, left_out: int, chosen_by: str, *, several: bool) -> list[str]:
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


def _curve(curve: MemoryCurve, entry: Entry, blob: Blob) -> dict[str, Any]:
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


def script_of(*more: str) -> str:
    """Return the page's script, followed by ``more`` assets."""
    return in_private_scope("\n".join(asset(name) for name in (*SCRIPTS, *more)))


def in_private_scope(parts: str) -> str:
    """Return a script wrapped in a function, so that its names are private."""
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


def style_sheet() -> str:
    """Return the page's style sheet, light and dark."""
    light, dark = colours.variables()
    theme = asset("style.css").replace("/*LIGHT*/", light).replace("/*DARK*/", dark)
    return f"{theme}\n{colours.classes()}\n"


def content_policy(script: str, styles: str, more: str = "") -> str:
    """Return the content security policy that allows one inline script, one style sheet, and ``more``."""
    script, styles = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, styles))
    return f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{styles}'; img-src data:{more}"
