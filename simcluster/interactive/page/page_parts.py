"""Parts of the studio page for the current scenario; if it is invalid, the problem and valid alternatives.

Parts are requested one by one, the quick ones first; results are cached between them. This runs in a process of the
pool: everything that goes in can be pickled, everything that comes out is JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.gc_pause import pause_gc
from simcluster.documents.overrides import apply_overrides_in_place
from simcluster.documents.yaml_documents import parse_document, read_document
from simcluster.documents.yaml_syntax import edit_yaml
from simcluster.interactive.controls.offered_values import describe_controls, find_valid_settings
from simcluster.interactive.controls.settings import PRICE, all_controls, describe_settings, settings_overrides
from simcluster.interactive.page.hints import make_hint, missing_hints, replace_options
from simcluster.interactive.page.result_cache import ResultCache
from simcluster.interactive.page.studio_state import StudioFolder, StudioState, load_state_scenario
from simcluster.interactive.report import ReportEntry, details, make_entry, report_page, summary
from simcluster.interactive.report.colours import timelines_data
from simcluster.interactive.report.html import Markup, element, join_html
from simcluster.interactive.report.packing import BinaryColumns
from simcluster.interactive.report.page import script_data, timeline_frame
from simcluster.interactive.report.summary import verdict_html
from simcluster.longrun.studies.training import train
from simcluster.results.result import Result
from simcluster.results.step_metrics import step_time_metrics
from simcluster.scenario.scenario import Scenario, ScenarioOrigin
from simcluster.show.step_answer import describe_job, metrics_without_slowdown
from simcluster.show.yaml_text import yaml_text
from simcluster.studies.variations import label_scenarios

_LEVEL = 1  # of deflating: what stays on this machine is made small in little time
_RUNS = 50  # of weeks: enough for the mean to be of use, few enough to wait for


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A request by the studio page: current state, pinned state, and folder of scenario files.

    It also has the control that was changed last, for which the nearest valid value is sought.
    """

    current: StudioState
    pinned: StudioState | None
    folder: Path
    changed: str = ""


def compute_page_part(query: PageQuery, part: str) -> dict[str, Any]:
    """Compute a part of the page as JSON; if the scenario is invalid, the problem and valid alternatives."""
    with pause_gc():
        try:
            results = [_result_cache.result(scenario) for scenario in _shown_scenarios(query)]
        except InputError as problem:
            return _problem_part(query, str(problem))
        return {"part": part, **(PARTS[part] if part in PARTS else partial(_hint_part, part))(query, results)}


def report_html(query: PageQuery) -> str:
    """Return the HTML report about the current state, or about the pinned state and the current state."""
    names = label_scenarios(scenarios := _shown_scenarios(query))
    return report_page([
        make_entry(_result_cache.result(scenario), name=name)
        for scenario, name in zip(scenarios, names, strict=True)
    ])  # fmt: skip


def scenario_text(state: StudioState, folder: Path) -> str:
    """Return a studio state as scenario file text: the base file with changed keys and with its comments.

    Everything is written out if that text, in the studio's folder, would mean another scenario: a built-in one that
    names files next to it.
    """
    scenario, path = load_state_scenario(state, StudioFolder(folder)), StudioFolder(folder).scenario_path(state.base)
    wanted = {**scenario.document(), "name": scenario.title}
    text = path.read_text(encoding="utf-8")
    changes = settings_overrides(state.settings, read_document(path).data)
    if scenario.measured and scenario.measured.changed:  # the measured step is that of the base
        changes.append(("measured.changed", [*scenario.measured.changed]))
    if changes:
        text = edit_yaml(text, lambda data: apply_overrides_in_place(data, [*changes, ("name", scenario.title)]))
    try:
        same = ScenarioOrigin(parse_document(text, folder=folder)).with_changes({}).document() == wanted
    except InputError:
        same = False
    return text if same else yaml_text(wanted)


# --- results ----------------------------------------------------------------------------------------------------------

_result_cache = ResultCache()


def _shown_scenarios(query: PageQuery) -> list[Scenario]:
    folder = StudioFolder(query.folder)
    states = [query.current] if query.pinned is None else [query.pinned, query.current]
    return [load_state_scenario(state, folder) for state in states]


def _make_quick_entries(results: list[Result]) -> list[ReportEntry]:
    names = "AB" if len(results) > 1 else [results[0].scenario.title]
    found = []
    for name, result in zip(names, results, strict=True):
        memory = result.memory
        parts = {name: getattr(memory, name) for name in ("parameters", "gradients", "optimizer", "activations")}
        of_memory = {**parts, "other": memory.other + memory.buffers}
        numbers = {**metrics_without_slowdown(result), "memory_bytes": of_memory}
        found.append(ReportEntry(name=name, numbers=numbers, scenario=result.scenario, result=result,
                                 account=result.account, weights=dict(result.weights)))  # fmt: skip
    return found


def _run_names(results: list[Result]) -> list[str]:
    one, other = results[0].scenario, results[-1].scenario
    if len(results) == 1:
        return [one.name]
    return ["as B", "as A"] if one == other else label_scenarios([one, other])


def _base_scenario(query: PageQuery) -> Scenario:
    return load_state_scenario(StudioState(query.current.base), StudioFolder(query.folder))


# --- parts ------------------------------------------------------------------------------------------------------------


def _headline_part(query: PageQuery, results: list[Result]) -> dict[str, Any]:
    live = results[-1]
    scenario = live.scenario
    numbers = {**step_time_metrics(live), "hfu": live.hfu}
    sections = {
        "figures": summary.first_headline_html(scenario, numbers),
        "dollars": _cost_html(query.current, live),
        "told": join_html(element("p", line) for line in describe_job(scenario)[1:]),
    }
    return {
        "sections": sections,
        "name": scenario.title,
        "link": query.current.to_link(),
        "changes": describe_settings(query.current.settings),
        "controls": describe_controls(scenario, _base_scenario(query)),
        "gpus": scenario.gpus,
        "step": live.step_time,
        "has_run": scenario.run is not None,
    }


def _summary_part(query: PageQuery, results: list[Result]) -> dict[str, Any]:
    entries = _make_quick_entries(results)
    several = len(entries) > 1
    sections = {
        "figures": summary.headline_html(entries[-1]),
        "compared": _comparison_html(results, entries) if several else Markup(),
        "where": summary.time_section(entries),
        "differences": summary.differences_section(entries) if several else Markup(),
    }
    return {"sections": sections}


def _comparison_html(results: list[Result], entries: list[ReportEntry]) -> Markup:
    told = [
        element("p", element("strong", letter), f"  {text}")
        for letter, text in zip("AB", _run_names(results), strict=True)
    ]
    return join_html(told, verdict_html(entries), summary.comparison_table(entries))


def _cost_html(state: StudioState, result: Result) -> Markup:
    scenario = result.scenario
    price = dict(state.settings).get(PRICE, scenario.run.price if scenario.run is not None else None)
    if not isinstance(price, int | float):
        return Markup()
    dollars = price * scenario.gpus * result.step_time / 3600
    per_million = 1e6 * dollars / scenario.tokens_per_step
    told = f"A step costs {_format_dollars(dollars)} dollars at {price:g} per GPU-hour"
    return element("p", f"{told}: {_format_dollars(per_million)} per million tokens.", class_="quiet")


def _format_dollars(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.2g}"


def _script_columns(entries: list[ReportEntry], part: str) -> tuple[dict[str, Any], str, list[str]]:
    blob = BinaryColumns()
    data, notes = script_data(entries, blob, parts=frozenset((part,)), chosen_by="")
    return data, blob.compressed_text(_LEVEL), notes


def _timeline_part(query: PageQuery, results: list[Result]) -> dict[str, Any]:
    blob, frame = BinaryColumns(planes=False), _timeline_frame_html(len(results), [])
    data = timelines_data([*zip(_run_names(results), results, strict=True)], blob)
    return {"sections": {"timeline": frame}, "data": data, "columns": blob.uncompressed()}


def _detail_part(query: PageQuery, results: list[Result]) -> dict[str, Any]:
    named = zip(_make_quick_entries(results), _run_names(results), strict=True)
    entries = [replace(each, name=text) for each, text in named]
    data, columns, notes = _script_columns(entries, "timeline")
    return {"sections": {"timeline": _timeline_frame_html(len(entries), notes)}, "data": data, "columns": columns}


def _timeline_frame_html(runs: int, notes: list[str]) -> Markup:
    frame = element("div", timeline_frame(runs), id="gantt", class_="gantt")
    return join_html(frame, [details.small_print(note) for note in notes])


def _chart_part(
    part: str, draw: Callable[[ReportEntry, int], Markup], query: PageQuery, results: list[Result]
) -> dict[str, Any]:
    entries = _make_quick_entries(results[-1:])
    data, columns, _ = _script_columns(entries, part)
    return {"sections": {part: draw(entries[0], 0)}, "data": data, "columns": columns}


def _advice_part(query: PageQuery, results: list[Result]) -> dict[str, Any]:
    full = replace(_make_quick_entries(results[-1:])[0], numbers=results[-1].to_dict())
    told, tips = replace_options(join_html(verdict_html([full]), summary.warnings_html([full])), query.current.settings)
    sections = {"figures": summary.headline_html(full), "advice": told}
    return {"sections": sections, "ideas": [each.to_dict() for each in tips]}


def _long_run_part(query: PageQuery, results: list[Result]) -> dict[str, Any]:
    scenario = results[-1].scenario
    if scenario.run is None:
        return {"sections": {"run": Markup()}}
    price = dict(query.current.settings).get(PRICE)
    try:
        job = scenario if price is None else scenario.with_({"run.price": price})
        told = train(job, played=_RUNS).summary().replace("run.price", f"the control “{all_controls()[PRICE].label}”")
    except InputError as problem:
        return {"sections": {"run": details.small_print(f"Not available: {problem}")}}
    text = element("pre", told, tabindex="0", role="region", aria_label="Long run", class_="scenario")
    return {"sections": {"run": text}}


def _hint_part(part: str, query: PageQuery, results: list[Result]) -> dict[str, Any]:
    live, folder = query.current, StudioFolder(query.folder)
    found = make_hint(
        part, results[-1], live.settings, lambda tried: load_state_scenario(StudioState(live.base, tried), folder)
    )
    return {"sections": {}, "hints": found}


PARTS: Mapping[str, Callable[[PageQuery, list[Result]], dict[str, Any]]] = {
    "figures": _headline_part,
    "timeline": _timeline_part,
    "answer": _summary_part,
    "memory": partial(_chart_part, "memory", details.memory_section),
    "detail": _detail_part,
    "advice": _advice_part,
    "links": partial(_chart_part, "links", details.links_section),
    "run": _long_run_part,
    "hints": lambda asked, results: {"sections": {}, "hints": missing_hints()},  # of other controls: ``hint_parts``
}
"""Parts of the page: functions of the request and its results."""
QUICK_PARTS = ("figures", "timeline", "answer", "memory", "detail")
"""Parts that follow every change, in order."""
REPLACED_BY = {"timeline": "detail"}
"""Parts that a later part replaces; a part is skipped if the later one is cached."""
SLOW_PARTS = ("advice", "links", "run", "hints")
"""Parts that follow when the user pauses, since they simulate again or visit every link; ``hint_parts`` come last."""


# --- invalid states ---------------------------------------------------------------------------------------------------


def _problem_part(query: PageQuery, problem: str) -> dict[str, Any]:
    now, folder = query.current, StudioFolder(query.folder)
    try:
        base = _base_scenario(query)
    except InputError:
        return {"problem": problem.splitlines(), "remedies": []}
    found = find_valid_settings(
        base, now.settings, query.changed, problem, lambda new: load_state_scenario(StudioState(now.base, new), folder)
    )
    return {"problem": problem.splitlines(), "remedies": [each.to_dict() for each in found]}
