"""Timeline of a step as a figure or as a zoomable notebook cell, for ``result.gantt()``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.interactive.notebook.figures import enable_figure_display

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.base.display import NotebookPage, SavableFigure
    from simcluster.results.simulated_run import Run


@check_arguments
def _draw_gantt(
    run: Run, *, interactive: bool = False, ranks: Sequence[int] | None = None, title: str | None = None, **options: Any
) -> SavableFigure | NotebookPage:
    if interactive:
        if options or title is not None:
            given = ", ".join([*options, *(["title"] if title is not None else [])])
            raise InputError(f"gantt: {given} cannot be used with interactive=True, which takes only ranks; remove it")
        from simcluster.interactive.notebook.gantt_cell import gantt_html

        return gantt_html(run, ranks=ranks)
    from simcluster.show.gantt import gantt

    enable_figure_display()
    scenario = getattr(run, "scenario", None)
    step = f"{f'{scenario.title}: ' if scenario else ''}{format_seconds(run.step_time)} per step"
    heading = step if title is None else title
    return gantt(timeline_of_ranks(run, ranks), title=heading, ranks=ranks, num_ranks=len(run.ranks), **options)


def timeline_of_ranks(run: Run, ranks: Sequence[int] | None) -> pd.DataFrame:
    """Return the timeline of some ranks (default: the simulated ranks), each copied from its representative.

    InputError for a rank that the job does not have.
    """
    if ranks is None:
        return run.timeline
    from simcluster.interactive.report.entry import check_ranks
    from simcluster.results.simulated_run import spans_of_ranks

    check_ranks(run, ranks)
    return spans_of_ranks(run, list(dict.fromkeys(ranks))).to_frame()


GANTT_FUNCTIONS: Mapping[str, Callable[..., SavableFigure | NotebookPage]] = {"Run": _draw_gantt}
"""Functions that draw the Gantt chart of an object, by its class name."""
