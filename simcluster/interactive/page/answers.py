"""Content of the studio's page for a state, part by part; or the problem and valid alternatives.

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
from simcluster.interactive.controls.offers import described, remedies
from simcluster.interactive.controls.settings import PRICE, controls, in_words, overrides
from simcluster.interactive.page.hints import hint, in_controls, why_not
from simcluster.interactive.page.kept import KeptPlays
from simcluster.interactive.page.states import Folder, StudioState, scenario_of
from simcluster.longrun.studies.train import train
from simcluster.results.numbers import timed_numbers
from simcluster.results.result import Result
from simcluster.scenario.scenario import Origin, Scenario
from simcluster.show.report import Entry, details, entry_of_result, page, summary
from simcluster.show.report.colours import spans_of
from simcluster.show.report.html import Markup, concatenate, element
from simcluster.show.report.packing import Blob
from simcluster.show.report.page import data_of, timeline_frame
from simcluster.show.report.summary import verdict
from simcluster.show.step_answer import job_lines, quick_numbers
from simcluster.show.yaml_text import yaml_text
from simcluster.studies.variations import labels

_LEVEL = 1  # of deflating: what stays on this machine is made small in little time
_RUNS = 50  # of weeks: enough for the mean to be of use, few enough to wait for


@dataclass(frozen=True, slots=True)
class StateAsked:
    """A request of the page: the current state, the pinned one, and the folder of files.

    It also has the control that was changed last, for which the nearest valid value is sought.
    """

    live: StudioState
    pinned: StudioState | None
    folder: Path
    changed: str = ""


def answer(asked: StateAsked, part: str) -> dict[str, Any]:
    """Return one part of the page's content, or ``problem`` and valid alternatives if the scenario is invalid."""
    with pause_gc():
        try:
            results = [_plays.result(scenario) for scenario in _scenarios(asked)]
        except InputError as problem:
            return _refusal(asked, str(problem))
        return {"part": part, **(PARTS[part] if part in PARTS else partial(_other_value, part))(asked, results)}


def report_of(asked: StateAsked) -> str:
    """Return the report about the current state, or about both states, as a page to send."""
    names = labels(scenarios := _scenarios(asked))
    return page([
        entry_of_result(_plays.result(scenario), name=name)
        for scenario, name in zip(scenarios, names, strict=True)
    ])  # fmt: skip


def scenario_text(state: StudioState, folder: Path) -> str:
    """Return the state as a scenario file: the base's text with the changed keys, its comments kept.

    Everything is written out if that text, in the studio's folder, would mean another scenario: a built-in one that
    names files next to it.
    """
    scenario, path = scenario_of(state, Folder(folder)), Folder(folder).scenario_path(state.base)
    wanted = {**scenario.document(), "name": scenario.title}
    text = path.read_text(encoding="utf-8")
    changes = overrides(state.settings, read_document(path).data)
    if scenario.measured and scenario.measured.changed:  # the measured step is that of the base
        changes.append(("measured.changed", [*scenario.measured.changed]))
    if changes:
        text = edit_yaml(text, lambda document: change_in_place(document, [*changes, ("name", scenario.title)]))
    try:
        same = Origin(parse_document(text, folder=folder)).changed({}).document() == wanted
    except InputError:
        same = False
    return text if same else yaml_text(wanted)


# --- results ----------------------------------------------------------------------------------------------------------

_plays = KeptPlays()


def _scenarios(asked: StateAsked) -> list[Scenario]:
    """Return the scenarios shown: the pinned A and the current B, or the current one."""
    folder = Folder(asked.folder)
    states = [asked.live] if asked.pinned is None else [asked.pinned, asked.live]
    return [scenario_of(state, folder) for state in states]


def _entries(results: list[Result]) -> list[Entry]:
    """Return the report's entries with the numbers that are quick to compute."""
    names = "AB" if len(results) > 1 else [results[0].scenario.title]
    found = []
    for name, result in zip(names, results, strict=True):
        numbers = _with_memory(quick_numbers(result), result)
        found.append(Entry(name=name, numbers=numbers, scenario=result.scenario, result=result, account=result.account,
                           weights=dict(result.weights)))  # fmt: skip
    return found


def _run_names(results: list[Result]) -> list[str]:
    """Return what A and B are, by their differences; or the name of a single one."""
    one, other = results[0].scenario, results[-1].scenario
    if len(results) == 1:
        return [one.name]
    return ["as B", "as A"] if one == other else labels([one, other])


def _with_memory(numbers: Mapping[str, Any], result: Result) -> dict[str, Any]:
    """Return the numbers of the result JSON that the page's quick parts read."""
    memory = result.memory
    parts = {name: getattr(memory, name) for name in ("parameters", "gradients", "optimizer", "activations")}
    return {**numbers, "memory_bytes": {**parts, "other": memory.other + memory.buffers}}


def _base(asked: StateAsked) -> Scenario:
    return scenario_of(StudioState(asked.live.base), Folder(asked.folder))


# --- parts ------------------------------------------------------------------------------------------------------------


def _figures(asked: StateAsked, results: list[Result]) -> dict[str, Any]:
    """Return the controls and the numbers that are known as soon as the step is simulated."""
    live = results[-1]
    scenario = live.scenario
    numbers = {**timed_numbers(live), "hfu": live.hfu}
    sections = {
        "figures": summary.first_figures(scenario, numbers),
        "dollars": _dollars(asked.live, live),
        "told": concatenate(element("p", line) for line in job_lines(scenario)[1:]),
    }
    return {
        "sections": sections,
        "name": scenario.title,
        "link": asked.live.link(),
        "changes": in_words(asked.live.settings),
        "controls": described(scenario, _base(asked)),
        "gpus": scenario.gpus,
        "step": live.step_time,
        "has_run": scenario.run is not None,
    }


def _answer(asked: StateAsked, results: list[Result]) -> dict[str, Any]:
    entries = _entries(results)
    several = len(entries) > 1
    sections = {
        "figures": summary.figures(entries[-1]),
        "compared": _compared(results, entries) if several else Markup(),
        "where": summary.time_section(entries),
        "differences": summary.differences(entries) if several else Markup(),
    }
    return {"sections": sections}


def _compared(results: list[Result], entries: list[Entry]) -> Markup:
    """Return the comparison of A and B: the faster one, the reasons, and a table."""
    told = [
        element("p", element("strong", letter), f"  {text}")
        for letter, text in zip("AB", _run_names(results), strict=True)
    ]
    return concatenate(told, verdict(entries), summary.side_by_side(entries))


def _dollars(state: StudioState, result: Result) -> Markup:
    """Return the cost per step, if the state or its scenario has a GPU price."""
    scenario = result.scenario
    price = dict(state.settings).get(PRICE, scenario.run.price if scenario.run is not None else None)
    if not isinstance(price, int | float):
        return Markup()
    dollars = price * scenario.gpus * result.step_time / 3600
    per_million = 1e6 * dollars / scenario.tokens_per_step
    told = (
        f"A step costs {_dollar(dollars)} dollars at {price:g} per GPU-hour: {_dollar(per_million)} per million tokens."
    )
    return element("p", told, class_="quiet")


def _dollar(amount: float) -> str:
    """Return an amount with cents, or below a dollar with two significant digits."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.2g}"


def _columns(entries: list[Entry], part: str) -> tuple[dict[str, Any], str, list[str]]:
    blob = Blob()
    data, notes = data_of(entries, blob, parts=frozenset((part,)), chosen_by="")
    return data, blob.text(_LEVEL), notes


def _timeline(asked: StateAsked, results: list[Result]) -> dict[str, Any]:
    """Return the spans of the timeline; ``_detail`` adds waits, calls and the critical path."""
    blob = Blob(planes=False)
    data = spans_of([*zip(_run_names(results), results, strict=True)], blob)
    return {"sections": {"timeline": _frame(len(results), [])}, "data": data, "columns": blob.raw()}


def _detail(asked: StateAsked, results: list[Result]) -> dict[str, Any]:
    entries = [replace(each, name=text) for each, text in zip(_entries(results), _run_names(results), strict=True)]
    data, columns, notes = _columns(entries, "timeline")
    return {"sections": {"timeline": _frame(len(entries), notes)}, "data": data, "columns": columns}


def _frame(runs: int, notes: list[str]) -> Markup:
    frame = element("div", timeline_frame(runs), id="gantt", class_="gantt")
    return concatenate(frame, [details.remark(note) for note in notes])


def _chart(part: str, draw: Callable[[Entry, int], Markup], asked: StateAsked, results: list[Result]) -> dict[str, Any]:
    """Return a section of the report about one run, with the data for its script."""
    entries = _entries(results[-1:])
    data, columns, _ = _columns(entries, part)
    return {"sections": {part: draw(entries[0], 0)}, "data": data, "columns": columns}


def _advice(asked: StateAsked, results: list[Result]) -> dict[str, Any]:
    """Return advice that needs further simulations: cost of faults, remedies, cautions."""
    full = replace(_entries(results[-1:])[0], numbers=results[-1].to_dict())
    told, ideas = in_controls(concatenate(verdict([full]), summary.remarks([full])), asked.live.settings)
    return {
        "sections": {"figures": summary.figures(full), "advice": told},
        "ideas": [each.to_dict() for each in ideas],
    }


def _run(asked: StateAsked, results: list[Result]) -> dict[str, Any]:
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


def _other_value(part: str, asked: StateAsked, results: list[Result]) -> dict[str, Any]:
    live, folder = asked.live, Folder(asked.folder)
    found = hint(part, results[-1], live.settings, lambda tried: scenario_of(StudioState(live.base, tried), folder))
    return {"sections": {}, "hints": found}


PARTS: Mapping[str, Callable[[StateAsked, list[Result]], dict[str, Any]]] = {
    "figures": _figures,
    "timeline": _timeline,
    "answer": _answer,
    "memory": partial(_chart, "memory", details.memory),
    "detail": _detail,
    "advice": _advice,
    "links": partial(_chart, "links", details.links),
    "run": _run,
    "hints": lambda asked, results: {"sections": {}, "hints": why_not()},  # of other controls: ``hint_parts``
}
"""Parts of the page: functions of the request and its results."""
QUICK = ("figures", "timeline", "answer", "memory", "detail")
"""Parts that follow every change, in order."""
AHEAD_OF = {"timeline": "detail"}
"""Parts that a later part replaces, and that are skipped once that is cached."""
SLOW = ("advice", "links", "run", "hints")
"""Parts that follow when the user pauses, since they simulate again or visit every link; ``hint_parts`` come last."""


# --- invalid states ---------------------------------------------------------------------------------------------------


def _refusal(asked: StateAsked, problem: str) -> dict[str, Any]:
    live, folder = asked.live, Folder(asked.folder)
    try:
        base = _base(asked)
    except InputError:
        return {"problem": problem.splitlines(), "remedies": []}
    found = remedies(
        base, live.settings, asked.changed, problem, lambda tried: scenario_of(StudioState(live.base, tried), folder)
    )
    return {"problem": problem.splitlines(), "remedies": [each.to_dict() for each in found]}
