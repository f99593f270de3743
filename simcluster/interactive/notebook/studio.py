"""The studio in a notebook: ``simcluster.studio(scenario)``, controls over a scenario, played on every change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.documents.argument_types import checked
from simcluster.scenario.given import ScenarioLike, scenario_of

if TYPE_CHECKING:
    from simcluster.interactive.notebook.widget import StudioWidget


@checked
def studio(scenario: ScenarioLike) -> StudioWidget:
    """A widget with the controls of ``simcluster studio`` (schedule, split, batches, overlap, cluster, faults), which
    plays the step in the kernel on every change and shows its numbers and timeline.

    Its ``settings`` may be set from Python, too; ``scenario`` and ``result`` are those of what is shown.  InputError
    where anywidget is not there.
    """
    given = scenario_of(scenario, "studio")
    try:
        from simcluster.interactive.notebook.widget import StudioWidget
    except ImportError as problem:
        if problem.name not in ("anywidget", "traitlets"):
            raise
        raise InputError("studio: the widget needs anywidget; pip install 'simcluster[notebooks]'") from None
    return StudioWidget(given)
