"""The pictures that users draw from results.  matplotlib is imported when the first one is drawn, not before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Figure  # whom it is drawn for need not know matplotlib

    from simcluster.evidence.validation.reports import Report
    from simcluster.results.distribution import Distribution
    from simcluster.results.played import Run
    from simcluster.results.result import Result
    from simcluster.schedules.comparison import PlayedSchedule
    from simcluster.studies.search.plan import Found
    from simcluster.studies.whatif.free import Free
    from simcluster.studies.whatif.sensitivities import Sensitivity
    from simcluster.studies.whatif.straggling import Stragglers
    from simcluster.topology import Cluster


class HasTimeline(Protocol):
    """A result of a simulation, or anything else that carries a timeline."""

    @property
    def timeline(self) -> pd.DataFrame: ...


def gantt(
    timeline: pd.DataFrame | HasTimeline,
    *,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    title: str | None = None,
    labels: bool = True,
    width: float = 14.0,
    max_rows: int = 24,
    rows: Literal["rank", "stage"] = "rank",
    num_ranks: int | None = None,
) -> Figure:
    """A timeline, or a result's timeline, as a Gantt chart: a row per rank (or per stage), time to the right.

    `window` is in seconds, `width` in inches.  `labels` writes microbatch numbers where they fit.  More than
    `max_rows` ranks are shown by representatives, and the caption says which; `num_ranks` is the size of the job where
    the timeline holds one rank for many equal ones.  In a .svg or .pdf boxes are vectors up to 200,000 of them, rasters
    above; the caption says so.  Raises InputError for an empty timeline and for a selection that it does not have.
    """
    from simcluster.show import gantt as drawing

    weights = getattr(timeline, "weights", None)
    if num_ranks is None and weights is not None:
        num_ranks = sum(weights.values())
    return drawing.gantt(
        _timeline_of(timeline), ranks=ranks, window=window, title=title, labels=labels, width=width,
        max_rows=max_rows, rows=rows, num_ranks=num_ranks,
    )  # fmt: skip


def compare_gantts(
    named_timelines: Sequence[tuple[str, pd.DataFrame | HasTimeline]],
    *,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    title: str | None = None,
    labels: bool = True,
    width: float = 14.0,
    max_rows: int = 8,
    rows: Literal["rank", "stage"] = "stage",
) -> Figure:
    """Gantt charts under each other on one time axis, each with its length and the difference from the first.

    Every timeline starts at its own beginning; `window` counts from there.  The rest is as in `gantt`.
    """
    from simcluster.show import gantt as drawing

    named = [(name, _timeline_of(timeline)) for name, timeline in named_timelines]
    return drawing.compare_gantts(
        named, ranks=ranks, window=window, title=title, labels=labels, width=width, max_rows=max_rows, rows=rows
    )


def topology(cluster: Cluster) -> Figure:
    """A cluster by its hierarchy, readable at thousands of GPUs: the fabric, and one machine of each kind.

    Rates are payload per direction; line widths grow with the root of the bandwidth.
    """
    from simcluster.show.topology_plot import plot_topology

    return plot_topology(cluster)


def schedules(
    played: Sequence[PlayedSchedule], *, columns: int = 1, title: str | None = None, width: float = 14.0
) -> Figure:
    """Schedules with given times (`simcluster.play_schedules`), on one time axis under each other or in columns.

    Each with its makespan, bubbles and most activations alive.  InputError for none, and for more than can be read.
    """
    from simcluster.show.schedule_plot import plot_gallery, plot_schedules

    if columns == 1:
        return plot_schedules(played, title=title, width=width)
    return plot_gallery(played, title=title, columns=columns, width=width)


def memory(result: Result, *, ranks: Sequence[int] | None = None, window: tuple[float, float] | None = None) -> Figure:
    """Memory of a result over time: a panel for each rank, its pools stacked on the model state, and its peak.

    Left out, `ranks` are the fullest and three others; `window` is in seconds.  InputError for more than 12 ranks.
    """
    from simcluster.show.memory_plot import plot_memory

    return plot_memory(result, ranks=ranks, window=window)


def overlap(named_results: Sequence[tuple[str, Run]]) -> Figure:
    """Communication that is hidden, exposed, or waits for a late member: of one result every collective, of several
    every axis side by side.  InputError where nothing communicates."""
    from simcluster.show.overlap_plot import plot_overlap

    return plot_overlap(named_results)


def critical(result: Result, free: Sequence[Free] | None = None, *, title: str | None = None) -> Figure:
    """The critical path of a result by kind of op, and its step if each kind were free.

    ``free`` is what `simcluster.what_if_free` found; left out, it is played now.
    """
    from simcluster.base.units import format_seconds
    from simcluster.show.critical_plot import plot_critical
    from simcluster.studies.whatif.free import what_if_free

    text = title or f"{result.scenario.name}: what its {format_seconds(result.step_time)} a step wait for"
    found = what_if_free(result) if free is None else free
    return plot_critical(result.critical_path.by_kind(), found, result.step_time, title=text)


def stragglers(result: Result, found: Stragglers) -> Figure:
    """The slowdown of a result by each worker over (dp rank, stage), as the trace's estimator has it; `found` is what
    `simcluster.stragglers(result)` gave."""
    from simcluster.show.straggler_heatmap import straggler_heatmap

    estimated = found.estimated
    longer = f"a step takes {found.slowdown - 1:.1%} longer than without faults"
    return straggler_heatmap(
        estimated.by_worker, by_replica=estimated.by_replica.tolist(), by_stage=estimated.by_stage.tolist(),
        title=f"{result.scenario.name}\n{longer}; by worker, from its trace", worst=estimated.worst,
    )  # fmt: skip


def waits(result: Result) -> Figure:
    """Who waited for whom in a result: every rank, or where there are too many every worker, machine or stage."""
    from simcluster.show.wait_plot import plot_waits

    return plot_waits(result.wait_matrix, title=f"{result.scenario.name}: who waits for whom")


def replicas(distribution: Distribution, *, title: str = "step time") -> Figure:
    """The step times of many replicas as a histogram, with their mean and its interval."""
    from simcluster.show.replicas_plot import plot_replicas

    return plot_replicas(distribution, title=title)


def waterfall(step_times: Mapping[str, float], causes: pd.DataFrame) -> Figure:
    """From the first variant's step time to every other's, cause by cause: `causes` is `simcluster.differences`' table,
    `step_times` are seconds by variant.  InputError without two variants."""
    from simcluster.show.waterfall import plot_waterfall

    return plot_waterfall(step_times, causes)


def sensitivity(found: Sequence[Sensitivity], title: str = "") -> Figure:
    """How much shorter the step gets for each percent of a resource, as `simcluster.sensitivity` found it."""
    from simcluster.show.sensitivity_plot import plot_sensitivity

    return plot_sensitivity(found, title)


def roofline(result: Result, *, title: str | None = None) -> Figure:
    """The roofline of a result: each kernel under the roofs of compute and memory, each kind of communication under
    those of the links (`simcluster.studies.roofline` has the numbers)."""
    from simcluster.show.roofline_plot import plot_roofline
    from simcluster.studies.roofline import roofline as limits

    return plot_roofline(limits(result), title=title or f"{result.scenario.name}: roofline of a step")


def links(result: Result, *, n: int = 20, title: str | None = None) -> Figure:
    """The `n` hottest links of a result over time, alike ones as one; InputError where nothing moves."""
    from simcluster.show.links_plot import plot_links

    return plot_links(result, n=n, title=title)


def link_levels(result: Result, *, title: str | None = None) -> Figure:
    """Link loads on the topology: kinds of node as boxes, tier over tier, and how full the links between them are.

    InputError for a single GPU, which has no links.
    """
    from simcluster.show.link_levels_plot import plot_link_levels

    return plot_link_levels(result, title=title or f"{result.scenario.name}: how full the links are over a step")


def scaling(table: pd.DataFrame, *, by: str | None = None, title: str = "scaling") -> Figure:
    """Step time and throughput of a GPU over the number of GPUs, beside the ideal, by the values of column `by`.

    `table` has rows of `simcluster.compare` or of a sweep (columns gpus, step_time_s, tokens_per_s_per_gpu); of several
    rows at one size the fastest counts.  Whether scaling is strong or weak is read off the rows.  InputError for a
    missing column, and for a line with one size only.
    """
    from simcluster.show.scaling_plot import plot_scaling

    return plot_scaling(table, by=by, title=title)


def errors(reports: Sequence[Report]) -> Figure:
    """Predicted against measured, of studies as `simcluster.evidence.validation.validate_studies` reports them."""
    from simcluster.show.validation_plot import plot_validation

    return plot_validation(reports)


def pareto(found: Found, title: str = "") -> Figure:
    """Step time against memory of the layouts that a search played (`simcluster.plan`), and the front of the best."""
    from simcluster.show.pareto_plot import plot_pareto

    return plot_pareto(found, title)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as .png, .svg or .pdf, by the ending of `path`; InputError for another one or a missing folder."""
    from simcluster.show import gantt as drawing

    drawing.save_figure(figure, path)


def _timeline_of(timeline: pd.DataFrame | HasTimeline) -> pd.DataFrame:
    import pandas as pd

    return timeline if isinstance(timeline, pd.DataFrame) else timeline.timeline
