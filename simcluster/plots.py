"""Plot functions that return matplotlib figures of results without opening a window; ``savefig`` writes one.

matplotlib is imported when the first one is drawn, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcluster.base.old_names import current_name
from simcluster.base.satellites import load_object
from simcluster.interactive.notebook.figures import enable_figure_display
from simcluster.show.plot_registry import PICTURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure  # whom it is drawn for need not know matplotlib

    from simcluster.evidence.validation_plot import validation_errors as validation_errors
    from simcluster.interactive.notebook.gantt_cell import gantt_html as gantt_html
    from simcluster.longrun.pictures.lost_time_plot import lost_time as lost_time
    from simcluster.longrun.pictures.policies_plots import advice as advice
    from simcluster.longrun.pictures.policies_plots import policies as policies
    from simcluster.longrun.pictures.run_calendar_plot import run_calendar as run_calendar
    from simcluster.longrun.pictures.run_plots import goodput as goodput
    from simcluster.longrun.pictures.run_plots import power as power
    from simcluster.longrun.pictures.scaling_plots import costs as costs
    from simcluster.longrun.pictures.scaling_plots import isoflop as isoflop
    from simcluster.show.bar_plots import critical_path as critical_path
    from simcluster.show.bar_plots import overlap as overlap
    from simcluster.show.bar_plots import sensitivity as sensitivity
    from simcluster.show.bar_plots import waterfall as waterfall
    from simcluster.show.figure_files import save_figure as save_figure
    from simcluster.show.gantt import compare_gantts as compare_gantts
    from simcluster.show.gantt import gantt as gantt
    from simcluster.show.heatmaps import heatmap as heatmap
    from simcluster.show.heatmaps import stragglers as stragglers
    from simcluster.show.heatmaps import waits as waits
    from simcluster.show.link_plots import link_levels as link_levels
    from simcluster.show.link_plots import links as links
    from simcluster.show.memory_plot import memory as memory
    from simcluster.show.roofline_plot import roofline as roofline
    from simcluster.show.schedule_plot import schedules as schedules
    from simcluster.show.study_plots import pareto as pareto
    from simcluster.show.study_plots import replicas as replicas
    from simcluster.show.study_plots import scaling as scaling
    from simcluster.show.topology_plot import topology as topology

_MODULE_OF_PLOT = {**PICTURES, "save_figure": "show.figure_files"}
__all__ = list(_MODULE_OF_PLOT)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF_PLOT:
        name = current_name("plots", name)
    enable_figure_display()
    return load_object(f"{_MODULE_OF_PLOT[name]}:{name}")


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
