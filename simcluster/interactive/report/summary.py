"""First sections of the HTML report: verdict, main metrics, time breakdown, and why runs differ.

The verdict names the faster run and the reason, or a change that would help, which was simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from simcluster.base.units import format_seconds
from simcluster.interactive.report.entry import MOST_WORKERS, ReportEntry
from simcluster.interactive.report.html import (
    Markup,
    block_html,
    blocks_html,
    element,
    html_table,
    join_html,
    typeset_numbers,
)
from simcluster.results.rank_time import BREAKDOWN
from simcluster.results.result import Result
from simcluster.results.step_metrics import table_metrics
from simcluster.scenario.prediction_intervals import PredictionInterval
from simcluster.scenario.scenario import Scenario
from simcluster.show.output_blocks import HeadlineValues, NamedValue
from simcluster.show.step_answer import describe_job, describe_memory_use, describe_padding, describe_rates
from simcluster.show.study_answers import causes_table, describe_changed_settings
from simcluster.show.table_cells import BREAKDOWN_LABELS, format_metric, format_signed_seconds
from simcluster.studies.whatif.checklist_points import list_checks
from simcluster.studies.whatif.difference import RunDifference, describe_cause, list_changed_settings
from simcluster.studies.whatif.remedies import ChangeTrials, Remedy

_MODEL = ("forward", "backward", "recompute")
_WORTH = 0.995  # a change that leaves more of the step than this is not worth a sentence
_NAMED = 0.01  # of the step: what is less is no loss to speak of
_MOST_PLAYED = 4  # changes that are tried for the sentence
_MOST_TRIED = 2  # of one point
_MOST_CAUSES = 3
_MOST_LOSSES = 2
_LACKING = (
    "the timeline, memory over time, loads of links, the cost of stragglers and the schedule; give the scenario instead"
)


def verdict_html(entries: Sequence[ReportEntry]) -> Markup:
    """Return the report's first paragraph: how long a step takes, or how the runs compare."""
    said = _single_run_verdict(entries[0]) if len(entries) == 1 else _several_runs_verdict(entries)
    return element("p", typeset_numbers(" ".join(said)), class_="verdict")


# --- several runs -----------------------------------------------------------------------------------------------------


def _several_runs_verdict(entries: Sequence[ReportEntry]) -> Iterator[str]:
    first, *others = entries
    able = [entry for entry in others if entry.numbers.get("fits")] or others
    best = min(able, key=lambda entry: entry.account.step_time)
    if len(entries) > 2:
        fastest = min([first, best], key=lambda entry: entry.account.step_time)
        fitting = " of those that fit" if any(not entry.numbers.get("fits") for entry in entries) else ""
        yield f"Of {len(entries)} runs {fastest.name} is the fastest{fitting}: {_format_step_time(fastest)} per step."
    yield _compare_runs(first, best)
    for entry in entries:
        if not entry.numbers.get("fits"):
            yield f"{entry.name} does not fit: {_describe_memory(entry)}."


def _compare_runs(first: ReportEntry, other: ReportEntry) -> str:
    part = other.account.step_time / first.account.step_time - 1
    if abs(part) < 5e-4:
        return f"{other.name} is as fast as {first.name}: {_format_step_time(other)} per step."
    found = RunDifference((first.name, other.name), first.account, other.account, ())
    largest = sorted(found.seconds_by_cause.items(), key=lambda cause: -abs(cause[1]))[:_MOST_CAUSES]
    causes = [f"{describe_cause(name).partition(' (')[0]} {format_signed_seconds(seconds)}" for name, seconds in largest
            if abs(seconds) > 0.05 * abs(found.seconds)]  # fmt: skip
    return (
        f"{other.name} is {abs(part):.1%} {'slower' if part > 0 else 'faster'} than {first.name} "
        f"({_format_step_time(other)} against {_format_step_time(first)} per step): {', '.join(causes)}."
    )


# --- one run ----------------------------------------------------------------------------------------------------------


def _single_run_verdict(entry: ReportEntry) -> Iterator[str]:
    whole, parts = entry.account.step_time, entry.account.breakdown
    work = sum(parts[name] for name in _MODEL)
    lost = sorted(((seconds, name) for name, seconds in parts.items() if name not in _MODEL), reverse=True)
    losses = [f"{_describe_time_part(name)} ({seconds / whole:.1%})" for seconds, name in lost[:_MOST_LOSSES]
              if seconds > _NAMED * whole]  # fmt: skip
    again = ", recompute included" if parts["recompute"] else ""
    most = f"; most of the rest is {' and '.join(losses)}" if losses else ""
    yield f"A step takes {_format_step_time(entry)}, {work / whole:.1%} of it compute{again}{most}."
    if entry.result is not None:
        if entry.result.without_faults is not None and entry.result.slowdown > 1 + _NAMED:
            yield f"Without its faults the step would take {format_seconds(entry.result.without_faults)}."
        yield from _describe_best_change(entry.result) if entry.replays else ()
    yield f"It {'fits' if entry.numbers.get('fits') else 'does not fit'}: {_describe_memory(entry)}."
    if entry.result is not None and entry.result.remedies and entry.result.remedies.found:
        options = " ".join(f"--set {text}" for text in entry.result.remedies.found[0].overrides())
        yield f"It would fit with {options}."


def _describe_time_part(name: str) -> str:
    part = BREAKDOWN_LABELS[name].removesuffix(", exposed")
    axis = name.startswith("exposed_") and name != "exposed_pp"
    return f"exposed {part}{' communication' if axis else ''}" if BREAKDOWN_LABELS[name] != part else part


def _describe_best_change(result: Result) -> Iterator[str]:
    if result.scenario.dp * result.scenario.parallel.pp > MOST_WORKERS:
        return
    trials = ChangeTrials(result, None, _MOST_PLAYED)
    found: list[Remedy] = []
    points = (check(result) for check in list_checks(result.scenario))
    slow = [point for point in points if point.verdict != "pass" and point.must_shorten_step]
    if not slow:
        yield "The launch checklist (simcluster check) finds nothing that slows down the job."
    for point in slow:
        for values in point.changes_to_try[:_MOST_TRIED]:
            tried = trials.simulate(values)
            if tried is not None:
                whole, simulated = tried
                found.append(Remedy(whole, simulated.step_time, result.step_time, simulated.memory.total))
    best = min(found, key=lambda remedy: remedy.step_time, default=None)
    if best is not None and best.step_time < _WORTH * result.step_time:
        yield (
            f"What would help: with {best.shell_options()} it takes {format_seconds(best.step_time)} "
            f"({best.change:+.1%}), simulated; simcluster check tries more."
        )


def _format_step_time(entry: ReportEntry) -> str:
    return format_seconds(entry.account.step_time)


def _describe_memory(entry: ReportEntry) -> str:
    used, capacity = entry.numbers["peak_memory_bytes"], entry.capacity
    of = f" of {capacity / 1e9:,.1f} GB" if capacity else ""
    return f"{used / 1e9:,.1f} GB{of} on the fullest GPU"


_TO_COME = ("bubble", "exposed", "memory")
_FIGURES = ("real_tokens_per_s_per_gpu", "mfu", "bubble_fraction", "exposed_communication_s", "peak_memory_bytes")
"""Metrics that ``headline_html`` shows before the others."""


def run_job_lines(entry: ReportEntry) -> list[str]:
    """Return lines that describe the job of a run; none if the saved scenario cannot be read."""
    return [f"{entry.numbers['gpus']:,} GPUs"] if entry.scenario is None else describe_job(entry.scenario)[1:]


def summary_section(entries: Sequence[ReportEntry]) -> Markup:
    """Return the report section with verdict, main metrics (a table for several runs), and notes."""
    shown = headline_html(entries[0]) if len(entries) == 1 else comparison_table(entries)
    return join_html(verdict_html(entries), shown, warnings_html(entries))


def warnings_html(entries: Sequence[ReportEntry]) -> Markup:
    """Return each run's warnings and notes as HTML, and list what is missing in a saved result."""
    said = [
        element("li", element("strong", f"{kind}: "), f"{entry.name}: {text}" if len(entries) > 1 else text)
        for kind in ("Warning", "Note")
        for entry in entries
        for text in _valid_texts(entry.numbers.get(f"{kind.lower()}s"))
    ]
    said += [
        element("li", f"{entry.origin or entry.name} is a saved result and lacks {_LACKING}.")
        for entry in entries
        if entry.result is None
    ]
    return element("ul", said, class_="notes") if said else Markup()


def _valid_texts(values: object) -> list[str]:
    found = values if isinstance(values, list) else []
    return [str(each.get("text", "")) if isinstance(each, Mapping) else str(each) for each in found]


# --- numbers ----------------------------------------------------------------------------------------------------------


def headline_html(entry: ReportEntry) -> Markup:
    """Return a run's main metrics in large type."""
    numbers = entry.shown_numbers
    facts = [*_rate_values(numbers, entry.scenario, entry.likely_interval), *describe_padding(numbers)]
    slowdown = float(numbers.get("straggler_slowdown", 1.0))
    if slowdown != 1:
        facts.append(NamedValue("stragglers", f"{slowdown:.3f} ×", " the step without faults"))
    exposed = NamedValue("exposed", format_seconds(numbers["exposed_communication_s"]), " of communication")
    more = [
        NamedValue(metric.heading, format_metric(metric.unit, numbers[name]))
        for name, metric in table_metrics("report").items()
        if name not in _FIGURES
    ]
    return block_html(HeadlineValues([*facts, exposed, *describe_memory_use(numbers, entry.capacity), *more]))


def first_headline_html(scenario: Scenario, numbers: Mapping[str, Any]) -> Markup:
    """Return the metrics that are known from the step time alone, with placeholders for the other metrics."""
    pending = (NamedValue(name, "…", "to come") for name in _TO_COME)
    return block_html(HeadlineValues([*_rate_values(numbers, scenario, None), *pending]))


def _rate_values(
    numbers: Mapping[str, Any], scenario: Scenario | None, likely: PredictionInterval | None
) -> list[NamedValue]:
    first, *others = describe_rates(numbers, scenario, likely)
    return [first if first.remark else NamedValue(first.name, first.value, remark="predicted, not measured"), *others]


def comparison_table(entries: Sequence[ReportEntry]) -> Markup:
    """Return a table of metrics with one row per run."""
    first, columns = entries[0].numbers["step_time_s"], table_metrics("report")
    measured = any(entry.scenario and entry.scenario.measured_step_time for entry in entries)
    rows = []
    for at, entry in enumerate(entries):
        numbers, seconds = entry.shown_numbers, entry.numbers["step_time_s"]
        real = entry.scenario.measured_step_time if entry.scenario else None
        near = f"{format_seconds(real)} ({seconds / real - 1:+.1%})" if real else "not measured"
        room = f" of {entry.capacity / 1e9:,.1f} GB" if entry.capacity else ""
        room += "" if numbers.get("fits") else " (does not fit)"
        rows.append([
            entry.name,
            format_seconds(seconds),
            f"{seconds / first - 1:+.1%}" if at else "",
            *([near] if measured else []),
            _likely_cell(entry),
            *(format_metric(of.unit, numbers[name]) + room * (of.unit == "bytes") for name, of in columns.items()),
        ])  # fmt: skip
    header = ["run", "step time", "difference", *["measured"] * measured, "likely"]
    header += [metric.heading for metric in columns.values()]
    return html_table(header, rows, caption="The runs side by side", class_="large")


def _likely_cell(entry: ReportEntry) -> str:
    found = entry.likely_interval
    if found is None:
        return "not known"
    return "unknown" if found.extrapolates_on else f"{format_seconds(found.low)} to {format_seconds(found.high)}"


# --- where the time went ----------------------------------------------------------------------------------------------


def time_section(entries: Sequence[ReportEntry]) -> Markup:
    """Return the report section about step time: each run's stacked bar on a common scale, and a table of parts."""
    several = len(entries) > 1
    longest = max(entry.account.step_time for entry in entries)
    bars: list[Markup] = []
    header = ["part of the step"]
    for entry in entries:
        name = element("span", entry.name, class_="of") if several else ""
        bars.append(element("div", name, _step_bar(entry, longest), class_="bar"))
        header += [entry.name if several else "seconds", "of its step"]
    rows: list[list[str]] = []
    for part in BREAKDOWN:
        if any(entry.account.breakdown[part] > 0 for entry in entries):
            swatch = element("span", class_=f"swatch k-{part}", aria_hidden="true")
            cells = chain.from_iterable(_part_cells(entry, part) for entry in entries)
            rows.append([join_html(swatch, BREAKDOWN_LABELS[part]), *cells])
    total = (cell for entry in entries for cell in (format_seconds(entry.account.step_time), "100.0%"))
    rows.append(["the step", *total])
    caption = "Time breakdown of a step, mean over ranks"
    return join_html(element("div", bars, class_="bars"), html_table(header, rows, caption=caption, class_="total"))


def _part_cells(entry: ReportEntry, name: str) -> tuple[str, str]:
    seconds = entry.account.breakdown[name]
    return format_seconds(seconds), f"{seconds / entry.account.step_time:.1%}"


def _step_bar(entry: ReportEntry, longest: float) -> Markup:
    parts: list[Markup] = []
    at = 0.0
    for name in BREAKDOWN:
        seconds = entry.account.breakdown[name]
        if seconds > 0:
            place = {"x": at, "y": 0.0, "width": 1000 * seconds / longest, "height": 24.0}
            says = f"{BREAKDOWN_LABELS[name]}: {', '.join(_part_cells(entry, name))}"
            parts.append(element("rect", element("title", says), **place, class_=f"k-{name}"))
            parts += [element("rect", **place, fill="url(#hatch)")] if name == "straggler_wait" else []
            at += place["width"]
    return element(
        "svg", parts, viewBox="0 0 1000 24", preserveAspectRatio="none", role="img",
        aria_label=f"{entry.name}: {format_seconds(entry.account.step_time)}; the table below has the parts",
    )  # fmt: skip


# --- why runs differ --------------------------------------------------------------------------------------------------


def differences_section(entries: Sequence[ReportEntry]) -> Markup:
    """Return the report section that compares each run with the first: step times, changed settings, and causes."""
    return join_html(_difference_html(entries[0], other) for other in entries[1:])


def _difference_html(first: ReportEntry, other: ReportEntry) -> Markup:
    names = (first.name, other.name) if first.name != other.name else ("the first run", "the other run")
    settings = tuple(list_changed_settings(first.document, other.document))
    found = RunDifference(names, first.account, other.account, settings)
    head = element("h3", f"{names[1]} against {names[0]}")
    changed = [describe_changed_settings(settings)] if settings else []
    return element("article", head, element("p", found.describe()), blocks_html([*changed, *causes_table(found)]))
