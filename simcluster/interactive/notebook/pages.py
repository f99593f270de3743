"""Objects in a notebook's cell: what ``_repr_html_`` gives, by the name of the class; what is not here is its text.

To add one: a function here, of pieces that ``drawn`` has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.shown import line_of
from simcluster.base.units import DAY, format_seconds
from simcluster.interactive.notebook.drawn import BarRow, bars, cell, figures, head, histogram, timeline
from simcluster.results.metrics import BREAKDOWN
from simcluster.scenario.headroom import mark
from simcluster.scenario.job import job_of
from simcluster.show.cells import PARTS, cells, headings, told
from simcluster.show.palette import STREAMS
from simcluster.show.report.colours import BREAKDOWN_COLOURS
from simcluster.show.report.html import Markup, element, joined, table
from simcluster.show.report.ideal import ideal_spans
from simcluster.show.report.words import gigabytes, percent, signed_percent, signed_seconds
from simcluster.show.report.yaml_text import setting_text, yaml_text
from simcluster.show.standing import held_from_one_gpu_up, standing
from simcluster.show.summary import job_lines
from simcluster.studies.search.words import name_of, why
from simcluster.studies.whatif.difference import phrase

if TYPE_CHECKING:
    from simcluster.longrun.studies.train_stages import StagedTraining
    from simcluster.longrun.studies.training_run import TrainingRun
    from simcluster.results.critical_path import CriticalPath
    from simcluster.results.distribution import Distribution
    from simcluster.results.played import Run
    from simcluster.results.result import Result
    from simcluster.scenario.scenario import Scenario
    from simcluster.studies.search.plan import Found
    from simcluster.studies.whatif.difference import Difference
    from simcluster.studies.whatif.job_memory import JobMemory
    from simcluster.studies.whatif.straggling import Stragglers
    from simcluster.topology import Cluster

_MOST_DRAWN = 20_000  # actions of a schedule
_MOST_TEXT = 40_000  # characters
_MOST_ROWS = 100


# --- steps ------------------------------------------------------------------------------------------------------------


def _result(result: Result) -> str:
    name, *lines = job_lines(result.scenario)
    memory, capacity = result.memory.total, result.facts.memory
    numbers = figures(
        ("step time", format_seconds(result.step_time), _trust(result)),
        ("throughput", f"{result.tokens_per_s:,.0f} tokens/s", f"{result.tokens_per_s_per_gpu:,.1f} per GPU"),
        ("MFU", percent(result.mfu), f"{result.model_tflops_per_gpu:,.1f} TFLOP/s per GPU"),
        ("bubble", percent(result.bubble_fraction), "waiting for other stages"),
        ("memory", gigabytes(memory), f"of {gigabytes(capacity)} on the fullest GPU"),
    )
    said = [
        *(f"Warning: {text}" for text in result.warnings()),
        *(f"Note: {note.text}" for note in result.notes()),
    ]
    warnings = (element("div", text, class_="warning") for text in said)
    return cell(head(name, *lines), numbers, warnings, _where(result), _gantt(result))


def _trust(result: Result) -> str:
    """How near a measured step is, or where one should be."""
    measured, likely = result.measured, result.likely
    if measured is not None:
        off = result.step_time / measured.step_time - 1
        return (
            f"{percent(abs(off))} {'above' if off > 0 else 'below'} the measured {format_seconds(measured.step_time)}"
        )
    if likely.far:
        return "far from what was validated"
    return f"likely {format_seconds(likely.low)} to {format_seconds(likely.high)}"


def _run(run: Run) -> str:
    ranks = f"{len(run.ranks):,} rank{'s' * (len(run.ranks) > 1)}, {run.steps:,} step{'s' * (run.steps > 1)}"
    numbers = figures(
        ("step time", format_seconds(run.step_time), ""),
        ("bubble", percent(run.bubble_fraction), "waiting for other stages"),
    )
    return cell(head("A played program", ranks), numbers, _where(run), _gantt(run))


def _where(run: Run) -> Markup:
    """The breakdown, a bar for each part."""
    whole, parts = run.step_time, run.times.breakdown
    rows = [
        BarRow(PARTS[name], (format_seconds(parts[name]), percent(parts[name] / whole)), 0.0, parts[name], f"k-{name}")
        for name in BREAKDOWN
        if parts[name] > 0
    ]
    return bars(("where the step went", "seconds", "of it"), rows, caption="Where the step went, mean over ranks")


def _gantt(run: Run) -> Markup:
    return timeline(run.timeline, len(run.ranks)) if len(run.timeline) else Markup()


def _scenario(scenario: Scenario) -> str:
    name, *lines = job_lines(scenario)
    document = yaml_text(scenario.document())
    whole = element("details", element("summary", "all of it"), element("pre", _at_most(document)), class_="block")
    return cell(head(name, *lines), _schedule_of(scenario), whole)


def _schedule_of(scenario: Scenario) -> Markup:
    """The order of its pipeline by itself, where there is one."""
    if scenario.parallel.pp == 1:
        return Markup()
    schedule = job_of(scenario, scenario.cluster.device).schedule
    if sum(map(len, schedule.rows)) > _MOST_DRAWN:
        return Markup()
    frame = ideal_spans(schedule).frame()
    what = f"The schedule by itself, {schedule.name}: forward takes 1, backward 2, sends no time."
    return joined(
        element("div", what, class_="quiet block"), timeline(frame, schedule.num_stages, what="stage", seconds=False)
    )


def _critical_path(path: CriticalPath) -> str:
    spans, whole = path.spans, path.seconds
    rows = []
    for kind, seconds in path.by_kind().items():
        axis = kind.split()[0]
        known = f"exposed_{axis}" if axis in STREAMS else kind
        fill = f"k-{known if known in BREAKDOWN_COLOURS else 'other'}"
        rows.append(BarRow(kind, (format_seconds(seconds), percent(seconds / whole)), 0.0, seconds, fill))
    at, stage = path.number, path.spans.stage[path.number]
    frame = spans.frame().iloc[at].reset_index(drop=True)
    frame = frame.assign(rank=stage, ready=path.start, start=path.start, end=path.end)  # it goes to and fro in a stage
    spans_told = f"{len(at):,} spans, each from where the one before it ends"
    return cell(
        head(f"The critical path: {format_seconds(whole)} a step", spans_told),
        bars(("what is on it", "seconds", "of the step"), rows, caption="The critical path by kind"),
        timeline(frame, len(np.unique(stage)), what="stage", one_lane=True),
    )


def _cluster(cluster: Cluster) -> str:
    return cell(head(cluster.name, line_of(cluster)), element("pre", _at_most(str(cluster))))


# --- questions asked of a step ----------------------------------------------------------------------------------------


def _difference(found: Difference) -> str:
    base, whole = found.base.step_time, found.seconds
    names = [*found.names]
    steps = [
        BarRow(name, (format_seconds(seconds),), 0.0, seconds)
        for name, seconds in zip(names, (base, found.other.step_time), strict=True)
    ]
    parts = bars(("a step of", "seconds"), steps, caption="The two steps")
    causes = {name: seconds for name, seconds in found.causes.items() if seconds}
    if causes:
        changes = told(causes)
        levels = accumulate((seconds for _, seconds in changes), initial=0.0)  # each begins where the one before ends
        rows = [
            BarRow(_cause_name(name), (signed_seconds(seconds), signed_percent(seconds / base)), at, at + seconds,
                   "more" if seconds > 0 else "less")
            for at, (name, seconds) in zip(levels, changes, strict=False)
        ]  # fmt: skip
        rows.append(BarRow("sum", (signed_seconds(whole), signed_percent(whole / base)), 0.0, whole, "k-bubble"))
        parts = joined(parts, bars(("cause", "difference", "of the first"), rows, caption="The difference by cause"))
    return cell(element("div", found.in_words()), parts, _settings(found))


def _settings(found: Difference) -> Markup:
    """What differs in the scenario, folded."""
    if not found.settings:
        return Markup()
    count = f"{len(found.settings):,} setting{'s' * (len(found.settings) > 1)} of the scenario differ"
    lines = (f"{each.path}: {setting_text(each.before)} -> {setting_text(each.after)}" for each in found.settings)
    text = element("pre", _at_most("\n".join(lines)))
    return element("details", element("summary", count + "s" * (len(found.settings) == 1)), text, class_="block")


def _cause_name(name: str) -> str:
    return "all else" if name == "rest" else phrase(name)


def _stragglers(found: Stragglers) -> str:
    numbers = figures(
        ("step time", format_seconds(found.step_time), ""),
        ("without", format_seconds(found.clean), "the faults of the scenario"),
        ("S", f"{found.slowdown:.4f}", "the step over that"),
        ("S, by trace", f"{found.estimated.slowdown:.4f}", "as the estimator sees it"),
    )
    rows = [
        BarRow(cause.what, (percent(cause.cost), format_seconds(cause.without)), 0.0, cause.cost)
        for cause in found.causes
    ]
    nothing = element("div", "nothing straggles")
    header = ("cause", "of the step", "step without")
    return cell(numbers, bars(header, rows, caption="What stragglers cost") if rows else nothing)


def _distribution(found: Distribution) -> str:
    low, high = found.interval
    interval = f"95 % interval {low:.6g} to {high:.6g} s" if len(found) > 1 else ""
    numbers = figures(
        ("mean of the step", format_seconds(found.mean), interval),
        ("median", format_seconds(found.quantile(0.5)), ""),
        ("p5 to p95", f"{format_seconds(found.quantile(0.05))} to {format_seconds(found.quantile(0.95))}", ""),
        ("without chance", format_seconds(found.planned), "dashed, where it is in sight"),
    )
    spread = float(np.ptp(found.step_times))
    near = abs(found.planned - found.mean) <= 4 * spread or not spread
    marks = [("mean", found.mean, False), *([("without chance", found.planned, True)] if near else [])]
    return cell(head(f"{len(found):,} replicas"), numbers, histogram(found.step_times, marks))


def _found(found: Found) -> str:
    lines = [f"{found.played:,} of {found.total:,} combinations played; at most {gigabytes(found.capacity)} a GPU"]
    lines += found.left_out.in_words()
    rows = [
        BarRow(
            (f"{place}. " if place <= len(found.best) else f"({place}) ") + name_of(each),
            (f"{each.layout.gpus:,}", *cells("plan", each.row),
             gigabytes(each.memory) + mark(each.memory, found.limit.whole, found.limit.headroom),
             format_seconds(each.step_time)),
            0.0,
            each.step_time,
        )
        for place, each in enumerate((*found.best, *found.behind), 1)
    ]  # fmt: skip
    header = ("layout", "GPUs", *headings("plan"), "memory", "step")
    best = (
        bars(
            header,
            rows,
            caption="The best layouts; in brackets the next that had to be played, between which others may lie",
        )
        if rows
        else element("div", "no layout was found")
    )
    told = [*standing(found), *why(found), *held_from_one_gpu_up(found)] if rows else []
    paragraphs = [element("div", text, class_="block") for text in told]
    return cell(head(found.base.name, *lines), best, paragraphs)


def _memory(found: JobMemory) -> str:
    rows = [
        BarRow(f"stage {stage}", (gigabytes(held.total) + mark(held.total, found.capacity),), 0.0, held.total)
        for stage, held in enumerate(found.stages)
    ]
    table = bars(("the fullest rank of", "holds"), rows, caption="Memory by stage", whole=found.capacity)
    whole = f"of {gigabytes(found.capacity)}"
    return cell(head(found.scenario.title, whole), table, element("pre", _at_most(str(found)), class_="block"))


def _training(training: TrainingRun) -> str:
    return _weeks(training, {str(fate): float(seconds) for fate, seconds in training.breakdown["mean_s"].items()})


def _staged(training: StagedTraining) -> str:
    return _weeks(training, {str(fate): float(seconds) for fate, seconds in training.breakdown.items()})


def _weeks(training: TrainingRun | StagedTraining, parts: Mapping[str, float]) -> str:
    """Where the days went that were not productive, seconds by fate, and the summary."""
    wall = sum(parts.values())
    numbers = figures(
        ("days", f"{wall / DAY:,.4g}", "on average"),
        ("goodput", percent(training.goodput), "productive"),
        ("runs", f"{training.played:,}", "played"),
    )
    rows = [
        BarRow(name.replace("_", " "), (f"{seconds / 3600:,.4g} h", f"{seconds / wall:.2%}"), 0.0, seconds)
        for name, seconds in parts.items()
        if seconds > 0 and name != "productive"
    ]
    lost = bars(("what else the days went into", "of a run", "share"), rows, caption="Fates") if rows else Markup()
    text = element("details", element("summary", "all of it"), element("pre", _at_most(str(training))), class_="block")
    return cell(head(training.scenario.title), numbers, lost, text)


def _records(found: Any) -> str:
    """A list that is a table, too."""
    frame = found.table
    rows = [[_written(value) for value in row] for row in frame.head(_MOST_ROWS).itertuples(index=False)]
    more = f"and {len(frame) - _MOST_ROWS:,} more" if len(frame) > _MOST_ROWS else ""
    columns = [str(name).replace("_", " ") for name in frame.columns]
    return cell(table(columns, rows, caption="A row each"), element("div", more, class_="quiet"))


def _written(value: object) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- all others -------------------------------------------------------------------------------------------------------


def _text(it: object) -> str:
    return cell(element("pre", _at_most(str(it))))


def _at_most(text: str) -> str:
    """A text, cut where nobody would read it in a cell."""
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n... and {len(text) - _MOST_TEXT:,} characters"


SHOWN: Mapping[str, Callable[[Any], str]] = {
    "": _text,
    "Cluster": _cluster,
    "CriticalPath": _critical_path,
    "Difference": _difference,
    "Distribution": _distribution,
    "Found": _found,
    "JobMemory": _memory,
    "Records": _records,
    "Result": _result,
    "Run": _run,
    "Scenario": _scenario,
    "StagedTraining": _staged,
    "Stragglers": _stragglers,
    "TrainingRun": _training,
}
"""By the name of the class; "" for all others."""
