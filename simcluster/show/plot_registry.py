"""Registry of all plot functions by name, in the core and in satellite packages.

matplotlib and the picture's module are imported when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from simcluster.base.satellites import load_object

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure  # re-exported: callers need not import matplotlib

PICTURES: Mapping[str, str] = {
    "compare_gantts": "show.gantt",
    "critical_path": "show.bar_plots",
    "gantt": "show.gantt",
    "heatmap": "show.heatmaps",
    "link_levels": "show.link_plots",
    "links": "show.link_plots",
    "memory": "show.memory_plot",
    "overlap": "show.bar_plots",
    "pareto": "show.study_plots",
    "replicas": "show.study_plots",
    "roofline": "show.roofline_plot",
    "scaling": "show.study_plots",
    "schedules": "show.schedule_plot",
    "sensitivity": "show.bar_plots",
    "stragglers": "show.heatmaps",
    "topology": "show.topology_plot",
    "waits": "show.heatmaps",
    "waterfall": "show.bar_plots",
    # of satellites
    "advice": "longrun.pictures.policies_plots",
    "costs": "longrun.pictures.scaling_plots",
    "validation_errors": "evidence.validation_plot",
    "lost_time": "longrun.pictures.lost_time_plot",
    "gantt_html": "interactive.notebook.gantt_cell",
    "goodput": "longrun.pictures.run_plots",
    "isoflop": "longrun.pictures.scaling_plots",
    "policies": "longrun.pictures.policies_plots",
    "power": "longrun.pictures.run_plots",
    "run_calendar": "longrun.pictures.run_calendar_plot",
}
"""Module below ``simcluster`` that defines each plot function, by the function's name."""


def load_plot(name: str) -> Callable[..., Figure]:
    """Import and return the plot function that ``PICTURES`` lists under this name."""
    draw: Callable[..., Figure] = load_object(f"{PICTURES[name]}:{name}")
    return draw
