"""The first part of the page: the answer, where the time went, and why runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from simcluster.base.units import format_seconds
from simcluster.results.metrics import BREAKDOWN
from simcluster.results.numbers import columns_of
from simcluster.scenario.likely import Likely
from simcluster.scenario.scenario import Scenario
from simcluster.show.blocks import Fact, Figures
from simcluster.show.cells import PARTS, written
from simcluster.show.report.entry import Entry
from simcluster.show.report.html import Markup, block_html, element, html_of, joined, table
from simcluster.show.report.verdict import verdict
from simcluster.show.step_answer import job_lines, measured_words, padding_facts, rate_facts, state_facts
from simcluster.show.study_answers import causes_table, settings_lines
from simcluster.studies.whatif.difference import Difference, settings_between

_TO_COME = ("bubble", "exposed", "memory")
_FIGURES = ("real_tokens_per_s_per_gpu", "mfu", "bubble_fraction", "exposed_communication_s", "peak_memory_bytes")
"""Metrics that are among the facts of a step."""


def what_was_run(entry: Entry) -> list[str]:
    """Return the job in a few lines, as far as its scenario can be read."""
    return [f"{entry.numbers['gpus']:,} GPUs"] if entry.scenario is None else job_lines(entry.scenario)[1:]


def answer(entries: Sequence[Entry]) -> Markup:
    """Return the verdict, the numbers that people ask for (of several runs as a table), and remarks."""
    shown = figures(entries[0]) if len(entries) == 1 else side_by_side(entries)
    return joined(verdict(entries), shown, remarks(entries))


def remarks(entries: Sequence[Entry]) -> Markup:
    """Return warnings and notes of each run, and what a saved one lacks."""
    said = [
        element("li", element("strong", f"{kind}: "), f"{entry.name}: {text}" if len(entries) > 1 else text)
        for kind in ("Warning", "Note")
        for entry in entries
        for text in _texts(entry.numbers.get(f"{kind.lower()}s"))
    ]
    said += [
        element("li", f"{entry.origin or entry.name} is a saved result and lacks {' and '.join(entry.lacks)}.")
        for entry in entries
        if entry.lacks
    ]
    return element("ul", said, class_="notes") if said else Markup()


def _texts(values: object) -> list[str]:
    """Return warnings, which are texts, or notes, which have one; a saved result may hold anything."""
    found = values if isinstance(values, list) else []
    return [str(each.get("text", "")) if isinstance(each, Mapping) else str(each) for each in found]


# --- numbers ----------------------------------------------------------------------------------------------------------


def figures(entry: Entry) -> Markup:
    """Return the numbers that people ask for, large."""
    numbers = entry.shown_numbers
    facts = [*_rates(numbers, entry.scenario, entry.likely), *padding_facts(numbers)]
    slowdown = float(numbers.get("straggler_slowdown", 1.0))
    if slowdown != 1:
        facts.append(Fact("stragglers", f"{slowdown:.3f} ×", " the step without faults"))
    exposed = Fact("exposed", format_seconds(numbers["exposed_communication_s"]), " of communication")
    more = [
        Fact(metric.heading, written(metric.unit, numbers[name]))
        for name, metric in columns_of("report").items()
        if name not in _FIGURES
    ]
    return block_html(Figures([*facts, exposed, *state_facts(numbers, entry.capacity), *more]))


def first_figures(scenario: Scenario, numbers: Mapping[str, Any]) -> Markup:
    """Return the numbers that follow from the step time; the others are to come."""
    return block_html(Figures([*_rates(numbers, scenario, None), *(Fact(name, "…", "to come") for name in _TO_COME)]))


def _rates(numbers: Mapping[str, Any], scenario: Scenario | None, likely: Likely | None) -> list[Fact]:
    first, *others = rate_facts(numbers, scenario, likely)
    return [first if first.aside else Fact(first.name, first.value, aside="predicted, not measured"), *others]


def side_by_side(entries: Sequence[Entry]) -> Markup:
    """Return the numbers in a table, a row for each run."""
    first, columns = entries[0].numbers["step_time_s"], columns_of("report")
    measured = any(entry.scenario and entry.scenario.measured_step_time for entry in entries)
    rows = []
    for at, entry in enumerate(entries):
        numbers, seconds = entry.shown_numbers, entry.numbers["step_time_s"]
        near = measured_words(entry.scenario, seconds, source=False) or "not measured"
        room = f" of {entry.capacity / 1e9:,.1f} GB" if entry.capacity else ""
        room += "" if numbers.get("fits") else " (does not fit)"
        rows.append([
            entry.name,
            format_seconds(seconds),
            f"{seconds / first - 1:+.1%}" if at else "",
            *([near] if measured else []),
            _likely(entry),
            *(written(each.unit, numbers[name]) + room * (each.unit == "bytes") for name, each in columns.items()),
        ])  # fmt: skip
    header = ["run", "step time", "difference", *["measured"] * measured, "likely"]
    header += [metric.heading for metric in columns.values()]
    return table(header, rows, caption="The runs side by side", class_="large")


def _likely(entry: Entry) -> str:
    found = entry.likely
    if found is None:
        return "not known"
    return "no promise" if found.far else f"{format_seconds(found.low)} to {format_seconds(found.high)}"


# --- where the time went ----------------------------------------------------------------------------------------------


def where(entries: Sequence[Entry]) -> Markup:
    """Return each run's step as one bar on one scale, and its parts as numbers."""
    several = len(entries) > 1
    longest = max(entry.account.step_time for entry in entries)
    bars = [
        element("div", element("span", entry.name, class_="of") if several else "", _bar(entry, longest), class_="bar")
        for entry in entries
    ]
    header = ["part of the step"]
    for entry in entries:
        header += [entry.name if several else "seconds", "of its step"]
    rows: list[list[str]] = []
    for name in BREAKDOWN:
        if any(entry.account.breakdown[name] > 0 for entry in entries):
            swatch = element("span", class_=f"swatch k-{name}", aria_hidden="true")
            rows.append([joined(swatch, PARTS[name]), *chain.from_iterable(_share(entry, name) for entry in entries)])
    rows.append(
        ["the step", *(cell for entry in entries for cell in (format_seconds(entry.account.step_time), "100.0%"))]
    )
    caption = "Where the time of a step went, mean over ranks"
    return joined(element("div", bars, class_="bars"), table(header, rows, caption=caption, class_="total"))


def _share(entry: Entry, name: str) -> tuple[str, str]:
    seconds = entry.account.breakdown[name]
    return format_seconds(seconds), f"{seconds / entry.account.step_time:.1%}"


def _bar(entry: Entry, longest: float) -> Markup:
    parts, at = list[Markup](), 0.0
    for name in BREAKDOWN:
        seconds = entry.account.breakdown[name]
        if seconds > 0:
            place = {"x": at, "y": 0.0, "width": 1000 * seconds / longest, "height": 24.0}
            says = f"{PARTS[name]}: {', '.join(_share(entry, name))}"
            parts.append(element("rect", element("title", says), **place, class_=f"k-{name}"))
            parts += [element("rect", **place, fill="url(#hatch)")] if name == "straggler_wait" else []
            at += place["width"]
    return element(
        "svg", parts, viewBox="0 0 1000 24", preserveAspectRatio="none", role="img",
        aria_label=f"{entry.name}: {format_seconds(entry.account.step_time)}; the table below has the parts",
    )  # fmt: skip


# --- why runs differ --------------------------------------------------------------------------------------------------


def differences(entries: Sequence[Entry]) -> Markup:
    """Return every run against the first: in words, what differs in the scenario, and cause by cause."""
    return joined(_difference(entries[0], other) for other in entries[1:])


def _difference(first: Entry, other: Entry) -> Markup:
    names = (first.name, other.name) if first.name != other.name else ("the first run", "the other run")
    settings = tuple(settings_between(first.document, other.document))
    found = Difference(names, first.account, other.account, settings)
    head = element("h3", f"{names[1]} against {names[0]}")
    changed = [settings_lines(settings)] if settings else []
    return element("article", head, element("p", found.in_words()), html_of([*changed, *causes_table(found)]))
