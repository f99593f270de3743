"""Extra simulated steps for events that most steps lack: checkpoint writes, and outer steps of DiLoCo."""

from __future__ import annotations

import math

from simcluster.scenario.checkpoint_plan import checkpoint_cost, step_checkpoint_spec
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate_scenario

MAX_EXTRA_STEPS = 32
"""Most steps that are added; a longer write is not simulated to its end."""
_NEVER = 10**9


def add_overlapped_steps(scenario: Scenario) -> Scenario:
    """Return the scenario with enough extra steps to cover the time of writing its checkpoint (at least one).

    A scenario with several steps keeps them. The step without a checkpoint is simulated for it.
    """
    if scenario.checkpoint is None or scenario.steps > 1:
        return scenario
    write = checkpoint_cost(scenario, step_checkpoint_spec(scenario)).write
    alone = simulate_scenario(scenario.model_copy(update={"checkpoint": None})).step_time
    overlapped = min(MAX_EXTRA_STEPS, max(1, math.ceil(write / alone)))
    return scenario.model_copy(update={"steps": scenario.checkpoint.after + 1 + overlapped})


def simulate_outer_step(scenario: Scenario, step: float | None = None) -> float:
    """Simulate the delay (s) of training by a DiLoCo outer step; return 0 if the scenario has no outer steps.

    All its parts in series. ``step`` are the seconds of a step without one, if they are known. One part is simulated:
    after the first step that leaves ``beside`` others between it and the last one, which waits for it, and the same
    steps without. With none between, that is a single step, and the sum is all exposed.
    """
    outer = scenario.training.outer
    if outer is None:
        return 0.0
    apart = outer.beside + 1
    steps = outer.beside + apart

    def simulate_seconds(every: int) -> float:
        training = scenario.training.model_copy(update={"outer": outer.model_copy(update={"every": every})})
        return simulate_scenario(scenario.model_copy(update={"training": training, "steps": steps})).step_time * steps

    alone = step if step is not None and steps == scenario.steps else simulate_seconds(_NEVER)
    return max(0.0, simulate_seconds(apart * outer.parts) - alone) * outer.parts


def is_outer_step_rare(scenario: Scenario) -> bool:
    """Return whether DiLoCo's first outer step comes after the last simulated step."""
    outer = scenario.training.outer
    return outer is not None and outer.every > scenario.steps
