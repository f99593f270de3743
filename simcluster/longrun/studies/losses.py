"""A run that ends by a loss, and the loss that a run's tokens buy: by its law of loss and its model's parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.counts import format_count
from simcluster.base.errors import InputError
from simcluster.longrun.budget.critical_batch import kaplan_critical_batch
from simcluster.longrun.budget.loss_laws import DEFAULT_LAW, LossLaw, ModelSize, loss_law
from simcluster.longrun.scaling.asked import counted_parameters
from simcluster.scenario.scenario import Scenario

_SMALL = 0.1  # of the critical batch: then 10 % more tokens
Law = str | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class BoughtLoss:
    """The ``loss`` of a run's model on its tokens, by which law (``words``), and what is to be doubted (``notes``)."""

    loss: float
    words: str
    notes: tuple[str, ...]


def tokens_to_loss(scenario: Scenario, loss: float, law: Law) -> float:
    """Tokens until the scenario's model reaches a loss, at batches below the critical one; InputError where it never
    does."""
    found, size, _ = _law_and_size(scenario, law)
    tokens = found.tokens_to(loss, size)
    if math.isinf(tokens):
        raise InputError(
            f"run.loss: {loss:g} is never reached: by {found.name} a model of {format_count(size)} parameters stays "
            f"above {found.floor(size):.4f}, however many tokens it sees; ask for more than that, or for a larger model"
        )
    return tokens


def loss_bought(scenario: Scenario, tokens: float) -> BoughtLoss | None:
    """What so many tokens buy; None where the run names neither a law nor a loss."""
    run = scenario.run
    if run is None or (run.law is None and run.loss is None) or not tokens:
        return None
    law, size, notes = _law_and_size(scenario, run.law)
    reached = ModelSize(size, tokens, law.loss(size, tokens))
    best = law.optimum(reached.compute)
    beyond = law.beyond(reached)
    flop = f"{reached.compute:.4g}".replace("e+", "e")
    words = f"{law.name}; the best model for its {flop} FLOP reaches {best.loss:.4f}"
    far = f"extrapolated: {beyond} beyond the runs it was fitted on ({law.range_words()})"
    return BoughtLoss(
        reached.loss or 0.0, words, (*([far] if beyond else []), *notes, *_large_batch(scenario, reached))
    )


def _large_batch(scenario: Scenario, reached: ModelSize) -> Iterator[str]:
    """What a batch near the critical one is said to take besides."""
    part = scenario.tokens_per_step / kaplan_critical_batch(reached.loss or 1.0)
    if part > _SMALL:
        yield (
            f"the batch is {part:.2g} of the critical one by Kaplan et al. 2020, which takes {1 + part:.2g} x the "
            "tokens: not counted (scaling counts it)"
        )


def _law_and_size(scenario: Scenario, law: Law) -> tuple[LossLaw, float, tuple[str, ...]]:
    found = loss_law(law or DEFAULT_LAW)
    return found, *counted_parameters(scenario, found)
