"""As many steps as the write of a checkpoint goes on beside: what a picture of one needs."""

from __future__ import annotations

import math

from simcluster.scenario.checkpoint_plan import checkpoint_of, weight_of
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import replay

MOST = 32
"""Steps that are added for a write; a longer one is not seen to its end."""


def with_steps_beside(scenario: Scenario) -> Scenario:
    """A scenario of one step that takes a checkpoint, with the steps that its write lasts, one at least.

    One that names its number of steps keeps it.  The step without a checkpoint is played for it.
    """
    if scenario.checkpoint is None or scenario.steps > 1:
        return scenario
    write = weight_of(scenario, checkpoint_of(scenario)).write
    alone = replay(scenario.model_copy(update={"checkpoint": None})).step_time
    beside = min(MOST, max(1, math.ceil(write / alone)))
    return scenario.model_copy(update={"steps": scenario.checkpoint.after + 1 + beside})
