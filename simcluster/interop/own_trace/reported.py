"""A recorded trace as a report shows it: sentences, tables and the first step, next to the only run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simcluster.interop.kineto import load_profiles
from simcluster.interop.kineto.kernel_kinds import KernelNames
from simcluster.interop.own_trace.difference import TraceDifference, diff_trace
from simcluster.interop.own_trace.text import tables
from simcluster.interop.own_trace.timelines import recorded_step
from simcluster.results.result import Result
from simcluster.show.report.entry import ReportedTrace
from simcluster.show.report.html import Markup, element, joined, table


def read_trace(path: str | Path, kernels: str | None) -> Callable[[Result], ReportedTrace]:
    """Read a trace, and return a function that compares a result with it; InputError for files that cannot be read."""
    KernelNames(kernels)  # rejects a table that cannot be read
    recorded = load_profiles(path)
    return lambda result: reported(diff_trace(result, recorded, kernels=kernels))


def reported(found: TraceDifference) -> ReportedTrace:
    """Return a trace as a page shows it."""
    return ReportedTrace(found.names[1], tuple(sorted(found.computed)), own_trace(found), recorded_step(found))


def own_trace(found: TraceDifference) -> Markup:
    """Sentences first, the largest on top; then the tables of the command."""
    said = element("ul", [element("li", sentence) for sentence in found.sentences()])
    shown = [
        joined(element("h3", each.title[:1].upper() + each.title[1:]),
               table(each.header, each.rows, caption=each.title, class_="large"))
        for each in tables(found)
    ]  # fmt: skip
    notes = [element("p", f"Note: {note}", class_="quiet") for note in found.notes]
    return joined(said, shown, notes)
