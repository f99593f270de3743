"""HTML of objects in a notebook cell (``_repr_html_``), by class name; other objects show their text.

An object that a command prints (``cli.answers``) shows that output, with its drawings below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.satellites import load_object
from simcluster.cli.answers import ANSWERS
from simcluster.interactive.notebook.drawn import cell_html, histogram_html, timeline_html
from simcluster.scenario.job import job_of
from simcluster.show.blocks import Block, Drawing, Folded, Lines, TableBlock
from simcluster.show.report.colours import ideal_spans
from simcluster.show.report.html import blocks_html, element, shorten_text
from simcluster.show.yaml_text import yaml_text

if TYPE_CHECKING:
    from simcluster.results.critical_path import CriticalPath
    from simcluster.results.distribution import Distribution
    from simcluster.results.played import Run
    from simcluster.scenario.scenario import Scenario

_MOST_DRAWN = 20_000  # actions of a schedule
_MOST_ROWS = 100


# --- drawings below answers -------------------------------------------------------------------------------------------


def _gantt_blocks(run: Run) -> list[Block]:
    return [Drawing(lambda: timeline_html(run.timeline, len(run.ranks)))] if len(run.timeline) else []


def _scenario_blocks(scenario: Scenario) -> list[Block]:
    whole = Folded("whole document", yaml_text(scenario.document()))
    if scenario.parallel.pp == 1:
        return [whole]
    schedule = job_of(scenario, scenario.cluster.device).schedule
    if sum(map(len, schedule.rows)) > _MOST_DRAWN:
        return [whole]
    frame = ideal_spans(schedule).frame()
    what = f"The schedule {schedule.name} with forward 1, backward 2 and instant sends."
    drawn = Drawing(lambda: timeline_html(frame, schedule.num_stages, what="stage", seconds=False))
    return [Lines([what]), drawn, whole]


def _critical_path_blocks(path: CriticalPath) -> list[Block]:
    at, stage = path.number, path.spans.stage[path.number]
    frame = path.spans.frame().iloc[at].reset_index(drop=True)
    frame = frame.assign(rank=stage, ready=path.start, start=path.start, end=path.end)  # it goes to and fro in a stage
    count = f"{len(at):,} spans, each starting at the end of the previous one"
    return [
        Lines([count]),
        Drawing(lambda: timeline_html(frame, len(np.unique(stage)), what="stage", one_lane=True)),
    ]


def _distribution_blocks(found: Distribution) -> list[Block]:
    spread = float(np.ptp(found.step_times))
    near = abs(found.planned - found.mean) <= 4 * spread or not spread
    marks = [("mean", found.mean, False), *([("without randomness", found.planned, True)] if near else [])]
    return [Drawing(lambda: histogram_html(found.step_times, marks))]


DRAWINGS: Mapping[str, Callable[[Any], list[Block]]] = {
    "CriticalPath": _critical_path_blocks,
    "Distribution": _distribution_blocks,
    "Result": _gantt_blocks,
    "Run": _gantt_blocks,
    "Scenario": _scenario_blocks,
}


def _object_html(name: str, it: object) -> str:
    drawings = DRAWINGS[name](it) if name in DRAWINGS else []
    return cell_html(blocks_html([*load_object(ANSWERS[name])(it), *drawings]))


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


SHOWN: Mapping[str, Callable[[Any], str]] = {
    "": lambda it: cell_html(element("pre", shorten_text(str(it)))),
    **{name: partial(_object_html, name) for name in ANSWERS},
    "Records": _records_html,
}
"""By the name of the class; "" for all others."""
