"""The pictures that users draw from results, as figures that belong to no window: ``savefig`` them.

matplotlib is imported when the first one is drawn, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcluster.base.satellites import load_object
from simcluster.interactive.notebook.figures import let_cells_show_figures
from simcluster.show.pictures import PICTURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure  # whom it is drawn for need not know matplotlib

    from simcluster.evidence.validation_plot import errors as errors
    from simcluster.interactive.notebook.gantt_cell import gantt_html as gantt_html
    from simcluster.longrun.pictures.fates_plot import fates as fates
    from simcluster.longrun.pictures.policies_plots import advice as advice
    from simcluster.longrun.pictures.policies_plots import policies as policies
    from simcluster.longrun.pictures.run_plots import goodput as goodput
    from simcluster.longrun.pictures.run_plots import power as power
    from simcluster.longrun.pictures.scaling_plots import costs as costs
    from simcluster.longrun.pictures.scaling_plots import isoflop as isoflop
    from simcluster.longrun.pictures.weeks_plot import weeks as weeks
    from simcluster.show.bar_pictures import critical as critical
    from simcluster.show.bar_pictures import overlap as overlap
    from simcluster.show.bar_pictures import sensitivity as sensitivity
    from simcluster.show.bar_pictures import waterfall as waterfall
    from simcluster.show.gantt import compare_gantts as compare_gantts
    from simcluster.show.gantt import gantt as gantt
    from simcluster.show.heatmaps import heatmap as heatmap
    from simcluster.show.heatmaps import stragglers as stragglers
    from simcluster.show.heatmaps import waits as waits
    from simcluster.show.link_pictures import link_levels as link_levels
    from simcluster.show.link_pictures import links as links
    from simcluster.show.memory_plot import memory as memory
    from simcluster.show.point_pictures import pareto as pareto
    from simcluster.show.point_pictures import replicas as replicas
    from simcluster.show.point_pictures import scaling as scaling
    from simcluster.show.roofline_plot import roofline as roofline
    from simcluster.show.saving import save_figure as save_figure
    from simcluster.show.schedule_plot import schedules as schedules
    from simcluster.show.topology_plot import topology as topology

_PLACES = {**PICTURES, "save_figure": "show.saving"}

__all__ = list(_PLACES)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'simcluster.plots' has no attribute {name!r}")
    let_cells_show_figures()
    return load_object(f"{_PLACES[name]}:{name}")


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
