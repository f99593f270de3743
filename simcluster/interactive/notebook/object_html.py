"""HTML that notebooks show for simcluster objects (``_repr_html_``), by class; other objects appear as text.

An object that a command prints (``cli.answers``) shows that output, with its drawings below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.satellites import load_object
from simcluster.cli.answers import ANSWERS
from simcluster.interactive.notebook.cell_drawings import cell_html, histogram_html, timeline_html
from simcluster.interactive.report.colours import ideal_schedule_spans
from simcluster.interactive.report.html import blocks_html, element, shorten_text
from simcluster.scenario.job_conversion import job_of
from simcluster.show.output_blocks import FoldedText, HtmlDrawing, OutputBlock, TableBlock, TextLines
from simcluster.show.yaml_text import yaml_text

if TYPE_CHECKING:
    from simcluster.results.critical_path import CriticalPath
    from simcluster.results.distribution import Distribution
    from simcluster.results.simulated_run import Run
    from simcluster.scenario.scenario import Scenario

_MOST_DRAWN = 20_000  # actions of a schedule
_MOST_ROWS = 100


# --- drawings below answers -------------------------------------------------------------------------------------------


def _gantt_blocks(run: Run) -> list[OutputBlock]:
    return [HtmlDrawing(lambda: timeline_html(run.timeline, len(run.ranks)))] if len(run.timeline) else []


def _scenario_blocks(scenario: Scenario) -> list[OutputBlock]:
    whole = FoldedText("whole document", yaml_text(scenario.document()))
    if scenario.parallel.pp == 1:
        return [whole]
    schedule = job_of(scenario, scenario.cluster.device).schedule
    if sum(map(len, schedule.rows)) > _MOST_DRAWN:
        return [whole]
    frame = ideal_schedule_spans(schedule).to_frame()
    what = f"The schedule {schedule.name} with forward 1, backward 2 and instant sends."
    drawn = HtmlDrawing(lambda: timeline_html(frame, schedule.num_stages, noun="stage", seconds=False))
    return [TextLines([what]), drawn, whole]


def _critical_path_blocks(path: CriticalPath) -> list[OutputBlock]:
    at, stage = path.number, path.spans.stage[path.number]
    frame = path.spans.to_frame().iloc[at].reset_index(drop=True)
    frame = frame.assign(rank=stage, ready=path.start, start=path.start, end=path.end)  # it goes to and fro in a stage
    count = f"{len(at):,} spans, each starting at the end of the previous one"
    return [
        TextLines([count]),
        HtmlDrawing(lambda: timeline_html(frame, len(np.unique(stage)), noun="stage", one_lane=True)),
    ]


def _distribution_blocks(found: Distribution) -> list[OutputBlock]:
    spread = float(np.ptp(found.step_times))
    near = abs(found.planned - found.mean) <= 4 * spread or not spread
    marks = [("mean", found.mean, False), *([("without randomness", found.planned, True)] if near else [])]
    return [HtmlDrawing(lambda: histogram_html(found.step_times, marks))]


OBJECT_BLOCKS: Mapping[str, Callable[[Any], list[OutputBlock]]] = {
    "CriticalPath": _critical_path_blocks,
    "Distribution": _distribution_blocks,
    "Result": _gantt_blocks,
    "Run": _gantt_blocks,
    "Scenario": _scenario_blocks,
}


def _object_html(name: str, instance: object) -> str:
    drawings = OBJECT_BLOCKS[name](instance) if name in OBJECT_BLOCKS else []
    return cell_html(blocks_html([*load_object(ANSWERS[name])(instance), *drawings]))


# --- tables ----------------------------------------------------------------------------------------------------------


def _records_html(found: Any) -> str:
    frame = found.table
    rows = [[_text_html(value) for value in row] for row in frame.head(_MOST_ROWS).itertuples(index=False)]
    more = [f"and {len(frame) - _MOST_ROWS:,} more"] if len(frame) > _MOST_ROWS else []
    return cell_html(
        blocks_html([TableBlock([str(name).replace("_", " ") for name in frame.columns], rows, notes=more)])
    )


def _text_html(value: object) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


OBJECT_HTML: Mapping[str, Callable[[Any], str]] = {
    "": lambda it: cell_html(element("pre", shorten_text(str(it)))),
    **{name: partial(_object_html, name) for name in ANSWERS},
    "Records": _records_html,
}
"""Functions that return the HTML of an object, by its class name; "" is for all other classes."""
