"""An answer in numbers: the best model, one's own beside it, what a loss takes, and what of it is extrapolated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from simcluster.longrun.budget.critical_batch import CriticalBatch
from simcluster.longrun.budget.loss_laws import FLOP_PER_TOKEN, LossLaw, ModelSize
from simcluster.longrun.budget.repetition import RepeatedData
from simcluster.longrun.scaling.asked import Asked
from simcluster.longrun.scaling.batches import Played


@dataclass(frozen=True)
class LossAnswer:
    """What a law of loss says of a budget, a model or a loss, in numbers; "never" is an infinite one."""

    asked: Asked
    critical: float | None
    """Tokens of the critical batch, where a loss is known."""
    critical_words: str
    played: tuple[Played, ...] = ()

    @property
    def law(self) -> LossLaw:
        """The law that answers."""
        return self.asked.law

    @property
    def compute(self) -> float | None:
        """FLOP of the budget, or of one's own model and its tokens."""
        own = self.asked
        if own.compute is not None or own.parameters is None or own.tokens is None:
            return own.compute
        return ModelSize(own.parameters, own.tokens).compute

    @property
    def best(self) -> ModelSize | None:
        """The model of the lowest loss for the budget."""
        return None if self.compute is None else self.law.optimum(self.compute)

    @property
    def own(self) -> ModelSize | None:
        """One's own model on the tokens that are given, or that the budget leaves it."""
        size, compute = self.asked.parameters, self.compute
        if size is None or (self.asked.tokens is None and compute is None):
            return None
        tokens = self.asked.tokens or (compute or 0.0) / (FLOP_PER_TOKEN * size)
        return ModelSize(size, tokens, self.loss_of(size, tokens))

    @property
    def to_loss(self) -> ModelSize | None:
        """One's own model on the tokens that it takes to the loss: infinite where it never gets there."""
        if self.asked.loss is None or self.asked.parameters is None:
            return None
        return ModelSize(
            self.asked.parameters, self._tokens_to(self.asked.loss, self.asked.parameters), self.asked.loss
        )

    @property
    def cheapest(self) -> ModelSize | None:
        """The model that reaches the loss for the least training; None where none does, or no loss is asked."""
        return None if self.asked.loss is None else self.law.cheapest(self.asked.loss)

    @property
    def repeated(self) -> RepeatedData | None:
        """The law on so many unique tokens, where they are given."""
        return None if self.asked.unique is None else RepeatedData(self.law, self.asked.unique)

    def loss_of(self, parameters: float, tokens: float) -> float:
        """Of a model, with its data repeated where they do not last."""
        return self.law.loss(parameters, tokens) if self.repeated is None else self.repeated.loss(parameters, tokens)

    def _tokens_to(self, loss: float, parameters: float) -> float:
        law = self.law if self.repeated is None else self.repeated
        return law.tokens_to(loss, parameters)

    @property
    def critical_batch(self) -> CriticalBatch | None:
        """The critical batch of one's own model on its way to the loss."""
        goal = self.to_loss
        if goal is None or self.critical is None or goal.tokens == float("inf"):
            return None
        return CriticalBatch(self.critical, goal.tokens)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is assumed, and what lies beyond the range that the law was fitted on."""
        fresh = "best and cheapest models are those of fresh data; one's own is on the tokens that there are"
        return (*self.asked.notes, *([fresh] if self.repeated is not None else []), *_extrapolated(self))


def _extrapolated(found: LossAnswer) -> Iterator[str]:
    """What of the answer lies outside the runs that the law was fitted on, one line for each model."""
    law, seen = found.law, {}
    serve = found.asked.served
    goal = found.asked.loss
    models = {
        "the best model": found.best,
        found.asked.model: found.own,
        "the way to the loss": found.to_loss,
        "the cheapest model": found.cheapest,
        "the model to serve": law.cheapest(goal, serve) if serve and goal is not None else None,
    }
    for name, size in models.items():
        if size is not None and math.isfinite(size.tokens) and (words := law.beyond(size)):
            seen[name] = words
    if seen:
        each = "; ".join(f"{name} {words}" for name, words in seen.items())
        yield f"extrapolated: {law.name} was fitted on {law.range_words()}: {each}"
    if law.parameters is None and law.tokens is None:
        yield f"the law {law.name} names no runs (parameters: [LEAST, MOST], tokens: ...): it may be extrapolated"
    if law.rounded:
        yield f"rounded: {law.name} has exponents of two digits; they move the best model of a large budget by a factor"
    yield f"source: {law.source}" if law.source else "source: one's own constants"
