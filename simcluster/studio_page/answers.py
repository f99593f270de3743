"""What the page shows of a state, part by part, by the code of the report; or the problem and what would go instead.

A part is asked for by itself, the quick ones first, so that nobody waits for what is slow: results are kept between the
parts.  Runs in a process of the pool: everything that goes in and out can be pickled, and out as JSON.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.controls.nearest import remedies
from simcluster.controls.offers import described
from simcluster.controls.settings import PRICE, controls, in_words
from simcluster.results.numbers import METRICS
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.show.report import Entry, details, entry_of_result, page, summary
from simcluster.show.report.blob import Blob
from simcluster.show.report.html import Markup, element, joined
from simcluster.show.report.page import data_of, timeline_frame
from simcluster.show.report.verdict import verdict
from simcluster.show.report.yaml_text import yaml_text
from simcluster.simulate import simulate
from simcluster.studies.long_run.train import train
from simcluster.studies.variations import labels
from simcluster.studies.whatif.sensitivities import TIMES, Sensitivity, sensitivity
from simcluster.studio_page.states import Folder, StudioState, scenario_of

_MOST_KEPT = 3
_MOST_GPUS = 262_144
_LEVEL = 1  # of deflating: what stays on this machine is made small in little time
_RUNS = 50  # of weeks: enough for the mean to be of use, few enough to wait for
_SCALE = "cluster.scale."
_SLOW = "straggler_slowdown"  # the step is played again for it


@dataclass(frozen=True, slots=True)
class StateAsked:
    """What a page asks about: the state that is live, the one that is pinned beside it, the folder of files, and the
    control that was changed last, for which the nearest legal value is sought."""

    live: StudioState
    pinned: StudioState | None
    folder: Path
    changed: str = ""


def answer(asked: StateAsked, part: str) -> dict[str, Any]:
    """A part of what the page shows; ``problem`` in its place, and what would go, where the scenario is refused."""
    with collector_off():
        try:
            entries = _entries(asked)
        except InputError as problem:
            return _refused(asked, str(problem))
        return {"part": part, **PARTS[part](asked, entries)}


def report_of(asked: StateAsked) -> str:
    """The report about the state, or about both: the page that is mailed."""
    folder = Folder(asked.folder)
    scenarios = [scenario_of(state, folder) for state in _states(asked)]
    names = labels(scenarios)
    return page([
        entry_of_result(_result(scenario), name=name)
        for scenario, name in zip(scenarios, names, strict=True)
    ])  # fmt: skip


def scenario_text(state: StudioState, folder: Path) -> str:
    """The state as a scenario file of its own: everything resolved."""
    return yaml_text(scenario_of(state, Folder(folder)).document())


def scenarios_of(folder: Path) -> list[str]:
    """Scenario files of the folder."""
    return Folder(folder).names()


# --- results ----------------------------------------------------------------------------------------------------------

_kept: OrderedDict[str, Entry] = OrderedDict()
"""Runs by the text of their scenarios, the last used last."""


def _states(asked: StateAsked) -> list[StudioState]:
    return [asked.live] if asked.pinned is None else [asked.pinned, asked.live]


def _entries(asked: StateAsked) -> list[Entry]:
    """The runs that are shown: A, which is pinned, and B, which is live; or that alone under its own name."""
    folder = Folder(asked.folder)
    scenarios = [scenario_of(state, folder) for state in _states(asked)]
    found = [_entry(scenario) for scenario in scenarios]
    return found if len(found) == 1 else [replace(entry, name=name) for entry, name in zip(found, "AB", strict=True)]


def _described(entries: list[Entry]) -> list[str]:
    """What A and B are, by what differs."""
    one, other = (entry.scenario for entry in entries)
    assert one is not None
    assert other is not None
    return ["as B", "as A"] if one == other else labels([one, other])


def _entry(scenario: Scenario) -> Entry:
    """A run with the numbers that are quick to have, played if it is not kept."""
    text = scenario.model_dump_json()
    found = _kept.get(text)
    if found is None:
        result = _played(scenario)
        numbers = {name: metric.of(result) for name, metric in METRICS.items()
                   if name != _SLOW or result.clean is None}  # fmt: skip
        found = Entry(name=scenario.name, numbers=_with_memory(numbers, result), scenario=scenario, result=result,
                      account=result.account, spans=result.spans, weights=dict(result.weights))  # fmt: skip
        _kept[text] = found
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(text)
    return found


def _result(scenario: Scenario) -> Result:
    result = _entry(scenario).result
    assert result is not None
    return result


def _played(scenario: Scenario) -> Result:
    if scenario.gpus > _MOST_GPUS:
        raise InputError(f"gpus: the studio plays at most {_MOST_GPUS:,} GPUs, and this has {scenario.gpus:,}")
    return simulate(scenario)


def _with_memory(numbers: Mapping[str, Any], result: Result) -> dict[str, Any]:
    """As the result JSON has them, as far as the page's quick parts read them."""
    memory = result.memory
    parts = {name: getattr(memory, name) for name in ("parameters", "gradients", "optimizer", "activations")}
    return {**numbers, "memory_bytes": {**parts, "other": memory.other + memory.buffers}}


def _base(asked: StateAsked) -> Scenario:
    return scenario_of(StudioState(asked.live.base), Folder(asked.folder))


# --- parts ------------------------------------------------------------------------------------------------------------


def _answer(asked: StateAsked, entries: list[Entry]) -> dict[str, Any]:
    """The numbers at a glance, where the time went, and the difference from what is pinned; and the controls."""
    live = entries[-1]
    assert live.scenario is not None
    several = len(entries) > 1
    sections = {
        "figures": summary.figures(live),
        "dollars": _dollars(asked.live, live),
        "compared": _compared(entries) if several else Markup(),
        "where": summary.where(entries),
        "differences": summary.differences(entries) if several else Markup(),
        "told": joined(element("p", line) for line in summary.what_was_run(live)),
    }
    return {
        "sections": sections,
        "name": live.scenario.name,
        "link": asked.live.link(),
        "changes": in_words(asked.live.settings),
        "controls": described(live.scenario, _base(asked)),
        "gpus": live.scenario.gpus,
        "step": live.account.step_time,
        "has_run": live.scenario.run is not None,
    }


def _compared(entries: list[Entry]) -> Markup:
    """What A and B are, which is faster and why, and their numbers in a table."""
    told = [
        element("p", element("strong", letter), f"  {text}")
        for letter, text in zip("AB", _described(entries), strict=True)
    ]
    return joined(told, verdict(entries), summary.side_by_side(entries))


def _dollars(state: StudioState, entry: Entry) -> Markup:
    """What a step costs, where the state or its scenario says what a GPU does; prices are asked for, never assumed."""
    scenario = entry.scenario
    assert scenario is not None
    price = dict(state.settings).get(PRICE, scenario.run.price if scenario.run is not None else None)
    if not isinstance(price, int | float):
        return Markup()
    dollars = price * scenario.gpus * entry.account.step_time / 3600
    per_million = 1e6 * dollars / scenario.tokens_per_step
    told = f"A step costs {dollars:,.2f} dollars at {price:g} a GPU and hour: {per_million:,.3f} a million tokens."
    return element("p", told, class_="quiet")


def _columns(entries: list[Entry], part: str) -> tuple[dict[str, Any], str, list[str]]:
    """What the script reads of one part: JSON, its columns of numbers, remarks on what was left out."""
    blob = Blob()
    data, notes = data_of(entries, blob, parts=frozenset((part,)))
    return data, blob.text(_LEVEL), notes


def _timeline(asked: StateAsked, entries: list[Entry]) -> dict[str, Any]:
    if len(entries) > 1:
        entries = [replace(entry, name=text) for entry, text in zip(entries, _described(entries), strict=True)]
    data, columns, notes = _columns(entries, "timeline")
    frame = element("div", timeline_frame(len(entries)), id="gantt", class_="gantt")
    told = [details.quiet(note.replace("; --ranks chooses which it has", "")) for note in notes]
    return {"sections": {"timeline": joined(frame, told)}, "data": data, "columns": columns}


def _memory(asked: StateAsked, entries: list[Entry]) -> dict[str, Any]:
    data, columns, _ = _columns(entries[-1:], "memory")
    return {"sections": {"memory": details.memory(entries[-1], 0)}, "data": data, "columns": columns}


def _links(asked: StateAsked, entries: list[Entry]) -> dict[str, Any]:
    data, columns, _ = _columns(entries[-1:], "links")
    return {"sections": {"links": details.links(entries[-1], 0)}, "data": data, "columns": columns}


def _advice(asked: StateAsked, entries: list[Entry]) -> dict[str, Any]:
    """What needs the step played once more: what faults cost, what would help, what to beware of."""
    live = entries[-1]
    assert live.result is not None
    full = replace(live, numbers=live.result.to_dict())
    return {"sections": {"figures": summary.figures(full), "advice": joined(verdict([full]), summary.remarks([full]))}}


def _run(asked: StateAsked, entries: list[Entry]) -> dict[str, Any]:
    """What a run of weeks comes to, where the scenario has one."""
    scenario = entries[-1].scenario
    if scenario is None or scenario.run is None:
        return {"sections": {"run": Markup()}}
    try:
        told = train(scenario, played=_RUNS).summary()
    except InputError as problem:
        return {"sections": {"run": details.quiet(f"Not to be had: {problem}")}}
    text = element("pre", told, tabindex="0", role="region", aria_label="The run of weeks", class_="scenario")
    return {"sections": {"run": text}}


def _hints(asked: StateAsked, entries: list[Entry]) -> dict[str, Any]:
    """What a percent more of each resource of the cluster would give, as played, by control."""
    live = entries[-1]
    assert live.result is not None
    resources = [key.removeprefix(_SCALE) for key in controls() if key.startswith(_SCALE)]
    found = {each.resource: each for each in sensitivity(live.result, resources)}
    said = {f"{_SCALE}{name}": _hint(name, each) for name, each in found.items()}
    return {"sections": {}, "hints": said}


def _hint(name: str, found: Sensitivity) -> str:
    which = "less" if name in TIMES else "more"
    change = -100 * (found.step_time - found.before) / found.before
    return f"1 % {which}: step {'−' if change >= 0 else '+'}{abs(change):.2f} %"


PARTS: Mapping[str, Callable[[StateAsked, list[Entry]], dict[str, Any]]] = {
    "answer": _answer,
    "timeline": _timeline,
    "memory": _memory,
    "advice": _advice,
    "links": _links,
    "run": _run,
    "hints": _hints,
}
"""The parts of the page: a function of what is asked and the runs of it."""
QUICK = ("answer", "timeline", "memory")
"""Those that follow every change, in their order."""
SLOW = ("advice", "links", "run", "hints")
"""Those that come when nobody has changed anything for a while: the step is played again, or every link looked at."""


# --- what cannot be ---------------------------------------------------------------------------------------------------


def _refused(asked: StateAsked, problem: str) -> dict[str, Any]:
    """The rule in words, and settings that go."""
    live, folder = asked.live, Folder(asked.folder)
    try:
        base = _base(asked)
    except InputError:
        return {"problem": problem.splitlines(), "remedies": []}
    found = remedies(
        base, live.settings, asked.changed, problem, lambda tried: scenario_of(StudioState(live.base, tried), folder)
    )
    told = [{"words": each.words, "settings": dict(each.settings)} for each in found]
    return {"problem": problem.splitlines(), "remedies": told}
