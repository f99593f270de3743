"""The first part of the page: what was run, the answer, where the time went, and why runs differ.  Text to HTML."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from simcluster.base.units import format_seconds
from simcluster.faults.words import all_in_words
from simcluster.results.metrics import BREAKDOWN
from simcluster.results.numbers import columns_of
from simcluster.scenario.data import data_in_words
from simcluster.scenario.memory_plan import recompute_words
from simcluster.scenario.scenario import Scenario
from simcluster.show.cells import PARTS, told
from simcluster.show.layout import gpus_of_cluster, layout
from simcluster.show.report import words
from simcluster.show.report.entry import Entry
from simcluster.show.report.html import Markup, element, joined, table
from simcluster.show.report.verdict import verdict
from simcluster.show.report.yaml_text import setting_text
from simcluster.studies.whatif.difference import Difference, phrase, settings_between

_MOST_SETTINGS = 20
_FIGURES = ("real_tokens_per_s_per_gpu", "mfu", "bubble_fraction", "exposed_communication_s", "peak_memory_bytes")
"""Metrics that are shown large with a note of their own."""


def what_was_run(entry: Entry) -> list[str]:
    """The job in a few lines, as far as its scenario can be read."""
    if entry.scenario is None:
        return [f"{entry.numbers['gpus']:,} GPUs"]
    return scenario_in_words(entry.scenario)


def scenario_in_words(scenario: Scenario) -> list[str]:
    """A job in a few lines: its GPUs and split, what it trains on, its data and faults."""
    training = scenario.training
    recompute = "no recompute" if training.recompute == "none" else f"{recompute_words(training)} recompute"
    return [
        f"{gpus_of_cluster(scenario)}; {layout(scenario)}",
        f"{scenario.model.layers:,} layers of {scenario.model.hidden_size:,}; global batch {training.global_batch:,} × "
        f"{scenario.model.sequence_length:,} tokens, micro batch {training.micro_batch}, {scenario.microbatches:,} "
        f"microbatches; {training.precision}, {recompute}",
        *([f"data: {drawn}"] if scenario.data and (drawn := data_in_words(scenario.data)) else []),
        *([f"faults: {all_in_words(scenario.given_faults)}"] if scenario.given_faults else []),
    ]


def answer(entries: Sequence[Entry]) -> Markup:
    """The verdict; the numbers that people ask for, large for one run, side by side for several; what to beware of."""
    shown = figures(entries[0]) if len(entries) == 1 else side_by_side(entries)
    return joined(verdict(entries), shown, remarks(entries))


def remarks(entries: Sequence[Entry]) -> Markup:
    """What to beware of: warnings and notes of each run, and what a saved one lacks."""
    said = [
        element("li", element("strong", f"{kind}: "), f"{entry.name}: {text}" if len(entries) > 1 else text)
        for kind, texts_of in (("Warning", _warnings), ("Note", _notes))
        for entry in entries
        for text in texts_of(entry)
    ]
    said += [
        element("li", f"{entry.origin or entry.name} is a saved result and lacks {' and '.join(entry.lacks)}.")
        for entry in entries
        if entry.lacks
    ]
    return element("ul", said, class_="notes") if said else Markup()


def figures(entry: Entry) -> Markup:
    """The numbers that people ask for, large."""
    numbers = entry.numbers
    own = {
        "bubble_fraction": _figure("bubble", words.percent(_bubble(entry)), _bubble_note(entry)),
        "exposed_communication_s": _figure(
            "exposed communication", format_seconds(numbers["exposed_communication_s"]),
            f"{words.percent(numbers['overlap_fraction'])} of {format_seconds(numbers['communication_s'])} hidden"),
        "peak_memory_bytes": _figure("memory", words.gigabytes(numbers["peak_memory_bytes"]), _memory_note(entry)),
    }  # fmt: skip
    own |= {name: _figure(metric.heading, words.number(metric.unit, numbers[name]), "")
            for name, metric in columns_of("report").items() if name not in _FIGURES}  # fmt: skip
    return _large(numbers, f"{_against_measured(entry)}; {_expected(entry)}", own)


def first_figures(scenario: Scenario, numbers: Mapping[str, Any]) -> Markup:
    """The same of a step of which only its seconds are known yet: what follows has its place, marked as to come."""
    others = {"bubble_fraction": "bubble", "exposed_communication_s": "exposed communication",
              "peak_memory_bytes": "memory"}  # fmt: skip
    others |= {name: metric.heading for name, metric in columns_of("report").items() if name not in _FIGURES}
    own = {name: _figure(heading, "…", "to come", class_="figure pending") for name, heading in others.items()}
    return _large(numbers, _measured_note(scenario, numbers) or "predicted", own)


def _large(numbers: Mapping[str, Any], beside: str, own: Mapping[str, Markup]) -> Markup:
    """Figures: those that follow from the step time, and a run's ``own``."""
    return element(
        "div",
        _figure("step time", format_seconds(numbers["step_time_s"]), beside, class_="figure first"),
        _figure("throughput", f"{numbers['tokens_per_s']:,.0f}",
                f"tokens/s; {numbers['tokens_per_s_per_gpu']:,.1f} per GPU{_padding(numbers)}"),
        _figure("MFU", words.percent(numbers["mfu"]),
                f"{numbers['model_tflops_per_gpu']:.1f} TFLOP/s per GPU; HFU {words.percent(numbers['hfu'])}"
                + _of_bf16(numbers)),
        list(own.values()),
        class_="figures",
    )  # fmt: skip


def _of_bf16(numbers: Mapping[str, Any]) -> str:
    """Return the MFU over the peak in bf16 where the job's is over another one."""
    over = numbers.get("mfu_bf16", numbers["mfu"])
    return f"; {words.percent(over)} of the peak in bf16" if over != numbers["mfu"] else ""


def _padding(numbers: Mapping[str, Any]) -> str:
    """What of the tokens is none; a result saved by an older version does not say."""
    real = numbers.get("real_token_fraction", 1.0)
    return "" if real == 1 else f"; {words.percent(1 - real)} of them padding, {numbers['real_tokens_per_s']:,.0f} real"


def _figure(name: str, value: str, note: str, class_: str = "figure") -> Markup:
    return element(
        "div", element("span", name, class_="name"), element("span", value, class_="value"),
        element("span", note, class_="note"), class_=class_,
    )  # fmt: skip


def _against_measured(entry: Entry) -> str:
    told = _measured_note(entry.scenario, entry.numbers) if entry.scenario else ""
    slowdown = float(entry.numbers.get("straggler_slowdown", 1.0))
    return told or (f"{slowdown:.3f} × the step without faults" if slowdown != 1 else "predicted, not measured")


def _measured_note(scenario: Scenario, numbers: Mapping[str, Any]) -> str:
    """How far it is from a measured step; nothing where there is none."""
    measured = scenario.measured_step_time
    if measured is None:
        return ""
    off = numbers["step_time_s"] / measured - 1
    side = "above" if off > 0 else "below"
    return f"{words.percent(abs(off))} {side} the measured {format_seconds(measured)}"


def _expected(entry: Entry) -> str:
    return f"likely {_likely(entry)}" if entry.likely and not entry.likely.far else "how near is not promised"


def _bubble(entry: Entry) -> float:
    """Its share of the step, by the breakdown that is shown below it."""
    return entry.account.breakdown["bubble"] / entry.account.step_time


def _bubble_note(entry: Entry) -> str:
    own = entry.numbers.get("schedule_bubble_fraction")  # nothing in a result that an older version has saved
    beside = f"; {words.percent(own)} by the schedule alone" if own else ""
    return f"of the step: waiting for other stages{beside}"


def _memory_note(entry: Entry) -> str:
    fits = "fits" if entry.numbers.get("fits") else "does not fit"
    of = f"of {words.gigabytes(entry.capacity)} " if entry.capacity else ""
    return f"{of}on the fullest GPU; {fits}"


def side_by_side(entries: Sequence[Entry]) -> Markup:
    """The same numbers in a table, a row a run."""
    first, columns = entries[0].numbers["step_time_s"], columns_of("report")
    measured = any(entry.scenario and entry.scenario.measured_step_time for entry in entries)
    rows = []
    for at, entry in enumerate(entries):
        numbers = {**entry.numbers, "bubble_fraction": _bubble(entry)}  # an older version has saved another one
        rows.append([
            entry.name,
            format_seconds(numbers["step_time_s"]),
            words.signed_percent(numbers["step_time_s"] / first - 1) if at else "",
            *([_measured(entry)] if measured else []),
            _likely(entry),
            *(words.number(metric.unit, numbers[name]) + _room(name, entry) for name, metric in columns.items()),
        ])  # fmt: skip
    told = ["measured"] if measured else []
    header = ["run", "step time", "difference", *told, "likely", *(metric.heading for metric in columns.values())]
    return table(header, rows, caption="The runs side by side", class_="large")


def _measured(entry: Entry) -> str:
    """The measured step, and by how much the simulated one differs from it."""
    seconds = entry.scenario.measured_step_time if entry.scenario else None
    if seconds is None:
        return "not measured"
    return f"{format_seconds(seconds)} ({words.signed_percent(entry.numbers['step_time_s'] / seconds - 1)})"


def _likely(entry: Entry) -> str:
    """Where a measured step should be."""
    found = entry.likely
    if found is None:
        return "not known"
    if found.far:
        return "no promise"
    return f"{format_seconds(found.low)} to {format_seconds(found.high)}"


def _room(name: str, entry: Entry) -> str:
    """Behind a run's memory what the GPU has, and whether it is enough."""
    if name != "peak_memory_bytes":
        return ""
    of = f" of {words.gigabytes(entry.capacity)}" if entry.capacity else ""
    return of if entry.numbers.get("fits") else f"{of} (does not fit)"


# --- where the time went ----------------------------------------------------------------------------------------------


def where(entries: Sequence[Entry]) -> Markup:
    """Each run's step as one bar on one scale, and its parts as numbers."""
    longest = max(entry.account.step_time for entry in entries)
    bars = [
        element(
            "div",
            element("span", entry.name, class_="of") if len(entries) > 1 else "",
            _bar(entry, longest),
            class_="bar",
        )
        for entry in entries
    ]
    shown = [name for name in BREAKDOWN if any(entry.account.breakdown[name] > 0 for entry in entries)]
    header = ["part of the step"]
    for entry in entries:
        header += [entry.name if len(entries) > 1 else "seconds", "of its step"]
    rows = []
    for name in shown:
        row: list[str] = [joined(_swatch(f"k-{name}"), PARTS[name])]
        for entry in entries:
            seconds = entry.account.breakdown[name]
            row += [format_seconds(seconds), words.percent(seconds / entry.account.step_time)]
        rows.append(row)
    totals = [text for entry in entries for text in (format_seconds(entry.account.step_time), "100.0 %")]
    rows.append(["the step", *totals])
    return joined(
        element("div", bars, class_="bars"),
        table(header, rows, caption="Where the time of a step went, mean over ranks", class_="total"),
    )


def _bar(entry: Entry, longest: float) -> Markup:
    parts, at = [], 0.0
    for name in BREAKDOWN:
        seconds = entry.account.breakdown[name]
        if seconds <= 0:
            continue
        share = seconds / entry.account.step_time
        says = f"{PARTS[name]}: {format_seconds(seconds)}, {words.percent(share)}"
        width = 1000 * seconds / longest
        parts.append(element("rect", element("title", says), x=at, y=0, width=width, height=24, class_=f"k-{name}"))
        parts += _hatched(f"k-{name}", x=at, y=0, width=width, height=24)
        at += width
    return element(
        "svg", parts, viewBox="0 0 1000 24", preserveAspectRatio="none", role="img",
        aria_label=f"{entry.name}: {format_seconds(entry.account.step_time)}; the table below has the parts",
    )  # fmt: skip


def _hatched(class_: str, **place: float) -> list[Markup]:
    """Over a bar of waiting, its hatch."""
    return [element("rect", **place, fill="url(#hatch)")] if class_ == "k-straggler_wait" else []


def _swatch(class_: str) -> Markup:
    return element("span", class_=f"swatch {class_}", aria_hidden="true")


# --- why runs differ --------------------------------------------------------------------------------------------------


def differences(entries: Sequence[Entry]) -> Markup:
    """Every run against the first: in words, what differs in the scenario, and the difference cause by cause."""
    first = entries[0]
    return joined(_difference(first, other) for other in entries[1:])


def _difference(first: Entry, other: Entry) -> Markup:
    names = (first.name, other.name) if first.name != other.name else ("the first run", "the other run")
    settings = tuple(settings_between(first.document, other.document))
    found = Difference(names, first.account, other.account, settings)
    parts: list[Markup] = [element("h3", f"{names[1]} against {names[0]}"), element("p", found.in_words())]
    if settings:
        changed = [
            f"{each.path} {setting_text(each.before)} → {setting_text(each.after)}"
            for each in settings[:_MOST_SETTINGS]
        ]
        changed += [f"and {len(settings) - _MOST_SETTINGS} more"] if len(settings) > _MOST_SETTINGS else []
        parts.append(element("p", f"What differs in the scenario: {'; '.join(changed)}.", class_="quiet"))
    if any(abs(seconds) > 1e-12 for seconds in found.causes.values()):
        parts.append(_waterfall(found))
    return element("article", parts)


def _waterfall(found: Difference) -> Markup:
    """From the first step time, cause by cause, to the other: a bar for each; they sum exactly."""
    changes = [(name, "all else" if name == "rest" else phrase(name), seconds) for name, seconds in told(found.causes)]
    levels = [*itertools.accumulate((seconds for *_, seconds in changes), initial=found.base.step_time)]
    low, high = min(*levels, found.other.step_time), max(*levels, found.other.step_time)
    low, high = max(0.0, low - 0.25 * (high - low)), high + 0.02 * (high - low)

    def x(seconds: float) -> float:
        return 1000 * (seconds - low) / (high - low)

    rows = [_step(found.names[0], "whole", x(low), x(levels[0]), format_seconds(found.base.step_time), "")]
    for at, (name, text, seconds) in enumerate(changes):
        share = words.signed_percent(seconds / found.base.step_time)
        rows.append(
            _step(text, _class_of(name), x(levels[at]), x(levels[at + 1]), words.signed_seconds(seconds), share)
        )
    total = words.signed_percent(found.seconds / found.base.step_time)
    rows.append(_step(found.names[1], "whole", x(low), x(levels[-1]), format_seconds(found.other.step_time), total))
    header = ["cause", f"bars from {format_seconds(low)} on" if low else "", "seconds a step", "of the first"]
    caption = f"The difference of {found.names[1]} from {found.names[0]}, cause by cause; bars do not begin at 0 s"
    return table(header, rows, caption=caption, class_="waterfall", left=2)


def _class_of(cause: str) -> str:
    axis = cause.partition("_")[0]
    if f"exposed_{axis}" in BREAKDOWN:
        return f"k-exposed_{axis}"
    return f"k-{cause}" if cause in BREAKDOWN else "k-other"


def _step(name: str, class_: str, begin: float, end: float, value: str, share: str) -> list[str]:
    left, width = min(begin, end), max(abs(end - begin), 1.5)
    drawn = [element("rect", x=left, y=2, width=width, height=12, class_=class_)]
    drawn += _hatched(class_, x=left, y=2, width=width, height=12)
    bar = element("svg", drawn, viewBox="0 0 1000 16", preserveAspectRatio="none", aria_hidden="true")
    return [name, bar, value, share]


def _warnings(entry: Entry) -> list[str]:
    values = entry.numbers.get("warnings")
    return [str(value) for value in values] if isinstance(values, list) else []


def _notes(entry: Entry) -> list[str]:
    values = entry.numbers.get("notes")
    found = values if isinstance(values, list) else []
    return [str(each["text"]) for each in found if isinstance(each, Mapping) and "text" in each]
