"""What an outer step of workers that train apart adds to training: played once, beside the same steps without."""

from __future__ import annotations

from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import replay

_NEVER = 10**9


def outer_seconds(scenario: Scenario, step: float | None = None) -> float:
    """Seconds by which an outer step holds training up, all its parts one after the other; 0 for a scenario without.

    ``step`` are the seconds of a step without one, if they are known.

    One part is played: after the first step that leaves ``beside`` others between it and the last one, which waits for
    it, and the same steps without.  With nothing beside, that is a single step, and the sum is all exposed.
    """
    outer = scenario.training.outer
    if outer is None:
        return 0.0
    apart = outer.beside + 1
    steps = outer.beside + apart

    def seconds(every: int) -> float:
        training = scenario.training.model_copy(update={"outer": outer.model_copy(update={"every": every})})
        return replay(scenario.model_copy(update={"training": training, "steps": steps})).step_time * steps

    alone = step if step is not None and steps == scenario.steps else seconds(_NEVER)
    return max(0.0, seconds(apart * outer.parts) - alone) * outer.parts


def played_apart(scenario: Scenario) -> bool:
    """Is the outer step too rare to be among the steps that are played?"""
    outer = scenario.training.outer
    return outer is not None and outer.every > scenario.steps
