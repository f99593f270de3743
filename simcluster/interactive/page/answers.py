"""Content of the studio's page for its current scenario, part by part; or the problem and valid alternatives.

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
from simcluster.base.gc_paused import pause_gc
from simcluster.documents.composing import edit_yaml
from simcluster.documents.overrides import change_in_place
from simcluster.documents.reading import parse_document, read_document
from simcluster.interactive.controls.offers import describe_controls, valid_settings
from simcluster.interactive.controls.settings import PRICE, controls, in_words, settings_overrides
from simcluster.interactive.page.hints import hint_for, missing_hints, replace_options
from simcluster.interactive.page.kept import ResultCache
from simcluster.interactive.page.states import Folder, StudioState, state_scenario
from simcluster.longrun.studies.train import train
from simcluster.results.numbers import step_time_metrics
from simcluster.results.result import Result
from simcluster.scenario.scenario import Origin, Scenario
from simcluster.show.report import ReportEntry, details, make_entry, report_page, summary
from simcluster.show.report.colours import timelines_data
from simcluster.show.report.html import Markup, concatenate, element
from simcluster.show.report.packing import Blob
from simcluster.show.report.page import script_data, timeline_frame
from simcluster.show.report.summary import verdict_html
from simcluster.show.step_answer import describe_job, quick_metrics
from simcluster.show.yaml_text import yaml_text
from simcluster.studies.variations import scenario_labels

_LEVEL = 1  # of deflating: what stays on this machine is made small in little time
_RUNS = 50  # of weeks: enough for the mean to be of use, few enough to wait for


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A request of the studio's page: the current state, the pinned one, and the folder of files.

    It also has the control that was changed last, for which the nearest valid value is sought.
    """

    live: StudioState
    pinned: StudioState | None
    folder: Path
    changed: str = ""


def answer_part(asked: PageQuery, part: str) -> dict[str, Any]:
    """Return one part of the page's content as JSON, or ``problem`` and valid alternatives if invalid."""
    with pause_gc():
        try:
            results = [_plays.result(scenario) for scenario in _shown_scenarios(asked)]
        except InputError as problem:
            return _problem_part(asked, str(problem))
        return {"part": part, **(PARTS[part] if part in PARTS else partial(_hint_part, part))(asked, results)}


def report_html(asked: PageQuery) -> str:
    """Return the HTML report about the current state, or about the pinned and the current one."""
    names = scenario_labels(scenarios := _shown_scenarios(asked))
    return report_page([
        make_entry(_plays.result(scenario), name=name)
        for scenario, name in zip(scenarios, names, strict=True)
    ])  # fmt: skip


def scenario_text(state: StudioState, folder: Path) -> str:
    """Return a state as the text of a scenario file: the base file with changed keys, comments kept.

    Everything is written out if that text, in the studio's folder, would mean another scenario: a built-in one that
    names files next to it.
    """
    scenario, path = state_scenario(state, Folder(folder)), Folder(folder).scenario_path(state.base)
    wanted = {**scenario.document(), "name": scenario.title}
    text = path.read_text(encoding="utf-8")
    changes = settings_overrides(state.settings, read_document(path).data)
    if scenario.measured and scenario.measured.changed:  # the measured step is that of the base
        changes.append(("measured.changed", [*scenario.measured.changed]))
    if changes:
        text = edit_yaml(text, lambda document: change_in_place(document, [*changes, ("name", scenario.title)]))
    try:
        same = Origin(parse_document(text, folder=folder)).with_changes({}).document() == wanted
    except InputError:
        same = False
    return text if same else yaml_text(wanted)


# --- results ----------------------------------------------------------------------------------------------------------

_plays = ResultCache()


def _shown_scenarios(asked: PageQuery) -> list[Scenario]:
    folder = Folder(asked.folder)
    states = [asked.live] if asked.pinned is None else [asked.pinned, asked.live]
    return [state_scenario(state, folder) for state in states]


def _quick_entries(results: list[Result]) -> list[ReportEntry]:
    names = "AB" if len(results) > 1 else [results[0].scenario.title]
    found = []
    for name, result in zip(names, results, strict=True):
        numbers = _quick_numbers(quick_metrics(result), result)
        found.append(ReportEntry(name=name, numbers=numbers, scenario=result.scenario, result=result,
                                 account=result.account, weights=dict(result.weights)))  # fmt: skip
    return found


def _run_names(results: list[Result]) -> list[str]:
    one, other = results[0].scenario, results[-1].scenario
    if len(results) == 1:
        return [one.name]
    return ["as B", "as A"] if one == other else scenario_labels([one, other])


def _quick_numbers(numbers: Mapping[str, Any], result: Result) -> dict[str, Any]:
    memory = result.memory
    parts = {name: getattr(memory, name) for name in ("parameters", "gradients", "optimizer", "activations")}
    return {**numbers, "memory_bytes": {**parts, "other": memory.other + memory.buffers}}


def _base_scenario(asked: PageQuery) -> Scenario:
    return state_scenario(StudioState(asked.live.base), Folder(asked.folder))


# --- parts ------------------------------------------------------------------------------------------------------------


def _headline_part(asked: PageQuery, results: list[Result]) -> dict[str, Any]:
    live = results[-1]
    scenario = live.scenario
    numbers = {**step_time_metrics(live), "hfu": live.hfu}
    sections = {
        "figures": summary.first_headline_html(scenario, numbers),
        "dollars": _cost_html(asked.live, live),
        "told": concatenate(element("p", line) for line in describe_job(scenario)[1:]),
    }
    return {
        "sections": sections,
        "name": scenario.title,
        "link": asked.live.link(),
        "changes": in_words(asked.live.settings),
        "controls": describe_controls(scenario, _base_scenario(asked)),
        "gpus": scenario.gpus,
        "step": live.step_time,
        "has_run": scenario.run is not None,
    }


def _summary_part(asked: PageQuery, results: list[Result]) -> dict[str, Any]:
    entries = _quick_entries(results)
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
    return concatenate(told, verdict_html(entries), summary.comparison_table(entries))


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
    blob = Blob()
    data, notes = script_data(entries, blob, parts=frozenset((part,)), chosen_by="")
    return data, blob.text(_LEVEL), notes


def _timeline_part(asked: PageQuery, results: list[Result]) -> dict[str, Any]:
    blob = Blob(planes=False)
    data = timelines_data([*zip(_run_names(results), results, strict=True)], blob)
    return {"sections": {"timeline": _timeline_frame_html(len(results), [])}, "data": data, "columns": blob.raw()}


def _detail_part(asked: PageQuery, results: list[Result]) -> dict[str, Any]:
    entries = [
        replace(each, name=text) for each, text in zip(_quick_entries(results), _run_names(results), strict=True)
    ]
    data, columns, notes = _script_columns(entries, "timeline")
    return {"sections": {"timeline": _timeline_frame_html(len(entries), notes)}, "data": data, "columns": columns}


def _timeline_frame_html(runs: int, notes: list[str]) -> Markup:
    frame = element("div", timeline_frame(runs), id="gantt", class_="gantt")
    return concatenate(frame, [details.remark(note) for note in notes])


def _chart_part(
    part: str, draw: Callable[[ReportEntry, int], Markup], asked: PageQuery, results: list[Result]
) -> dict[str, Any]:
    entries = _quick_entries(results[-1:])
    data, columns, _ = _script_columns(entries, part)
    return {"sections": {part: draw(entries[0], 0)}, "data": data, "columns": columns}


def _advice_part(asked: PageQuery, results: list[Result]) -> dict[str, Any]:
    full = replace(_quick_entries(results[-1:])[0], numbers=results[-1].to_dict())
    told, ideas = replace_options(concatenate(verdict_html([full]), summary.warnings_html([full])), asked.live.settings)
    return {
        "sections": {"figures": summary.headline_html(full), "advice": told},
        "ideas": [each.to_dict() for each in ideas],
    }


def _run_part(asked: PageQuery, results: list[Result]) -> dict[str, Any]:
    scenario = results[-1].scenario
    if scenario.run is None:
        return {"sections": {"run": Markup()}}
    price = dict(asked.live.settings).get(PRICE)
    try:
        priced = scenario if price is None else scenario.with_({"run.price": price})
        told = train(priced, played=_RUNS).summary().replace("run.price", f"the control “{controls()[PRICE].label}”")
    except InputError as problem:
        return {"sections": {"run": details.remark(f"Not available: {problem}")}}
    text = element("pre", told, tabindex="0", role="region", aria_label="Long run", class_="scenario")
    return {"sections": {"run": text}}


def _hint_part(part: str, asked: PageQuery, results: list[Result]) -> dict[str, Any]:
    live, folder = asked.live, Folder(asked.folder)
    found = hint_for(
        part, results[-1], live.settings, lambda tried: state_scenario(StudioState(live.base, tried), folder)
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
    "run": _run_part,
    "hints": lambda asked, results: {"sections": {}, "hints": missing_hints()},  # of other controls: ``hint_parts``
}
"""Parts of the page: functions of the request and its results."""
QUICK = ("figures", "timeline", "answer", "memory", "detail")
"""Parts that follow every change, in order."""
AHEAD_OF = {"timeline": "detail"}
"""Parts that a later part replaces, and that are skipped once that is cached."""
SLOW = ("advice", "links", "run", "hints")
"""Parts that follow when the user pauses, since they simulate again or visit every link; ``hint_parts`` come last."""


# --- invalid states ---------------------------------------------------------------------------------------------------


def _problem_part(asked: PageQuery, problem: str) -> dict[str, Any]:
    live, folder = asked.live, Folder(asked.folder)
    try:
        base = _base_scenario(asked)
    except InputError:
        return {"problem": problem.splitlines(), "remedies": []}
    found = valid_settings(
        base, live.settings, asked.changed, problem, lambda tried: state_scenario(StudioState(live.base, tried), folder)
    )
    return {"problem": problem.splitlines(), "remedies": [each.to_dict() for each in found]}
