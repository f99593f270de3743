"""Registry of the plot functions by name, in the core and in satellite packages.

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
    "critical": "show.bar_pictures",
    "gantt": "show.gantt",
    "heatmap": "show.heatmaps",
    "link_levels": "show.link_pictures",
    "links": "show.link_pictures",
    "memory": "show.memory_plot",
    "overlap": "show.bar_pictures",
    "pareto": "show.point_pictures",
    "replicas": "show.point_pictures",
    "roofline": "show.roofline_plot",
    "scaling": "show.point_pictures",
    "schedules": "show.schedule_plot",
    "sensitivity": "show.bar_pictures",
    "stragglers": "show.heatmaps",
    "topology": "show.topology_plot",
    "waits": "show.heatmaps",
    "waterfall": "show.bar_pictures",
    # of satellites
    "advice": "longrun.pictures.policies_plots",
    "costs": "longrun.pictures.scaling_plots",
    "errors": "evidence.validation_plot",
    "fates": "longrun.pictures.fates_plot",
    "gantt_html": "interactive.notebook.gantt_cell",
    "goodput": "longrun.pictures.run_plots",
    "isoflop": "longrun.pictures.scaling_plots",
    "policies": "longrun.pictures.policies_plots",
    "power": "longrun.pictures.run_plots",
    "weeks": "longrun.pictures.weeks_plot",
}
"""A picture: the module below ``simcluster`` whose function of that name draws it."""


def picture(name: str) -> Callable[..., Figure]:
    """Import and return the plot function with this name in ``PICTURES``."""
    draw: Callable[..., Figure] = load_object(f"{PICTURES[name]}:{name}")
    return draw
