"""A validation as the step simulator plays it: forward passes of a step's batch."""

from __future__ import annotations

from simcluster.results.result import Result
from simcluster.scenario.loading import without_loader
from simcluster.scenario.scenario import Scenario
from simcluster.step.planned import plan
from simcluster.step.simulate import replay


def validation_pass(scenario: Scenario) -> Result:
    """The scenario's batch, forward only, as a validation goes through it: a program of F alone, with its own bubble,
    its faults, and no gradients, optimizer, loader or checkpoint."""
    alone = without_loader(scenario).model_copy(update={"steps": 1, "checkpoint": None})
    return replay(alone, planned=plan(alone, trains=False))
