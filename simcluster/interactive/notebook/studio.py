"""The studio as a notebook widget: ``simcluster.studio(scenario)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.documents.argument_types import check_arguments
from simcluster.scenario.scenario_arguments import ScenarioLike, to_scenario

if TYPE_CHECKING:
    from simcluster.interactive.notebook.widget import StudioWidget


@check_arguments
def studio(scenario: ScenarioLike) -> StudioWidget:
    """Return a notebook widget with controls that change a scenario; every change simulates the step again.

    The controls cover schedule, layout, batches, overlap, cluster and faults. The widget shows numbers and timeline;
    its ``settings`` can also be set from Python, and ``scenario`` and ``result`` are those shown. InputError without
    anywidget.
    """
    given = to_scenario(scenario, "studio")
    try:
        from simcluster.interactive.notebook.widget import StudioWidget
    except ImportError as problem:
        if problem.name not in ("anywidget", "traitlets"):
            raise
        raise InputError("studio: the widget needs anywidget; pip install 'simcluster[notebooks]'") from None
    return StudioWidget(given)
