"""Critical batch size of a training run, and how many fresh tokens repeated training tokens are worth.

    S = S_min (1 + B_crit / B)          E = E_min (1 + B / B_crit)          (S / S_min - 1) (E / E_min - 1) = 1
E are tokens, S steps of B tokens, B_crit = E_min / S_min (McCandlish et al. 2018, arXiv:1812.06162). What a law of loss
calls D is taken as E_min: a batch far below the critical one.
    D' = U (1 + R (1 - e^(-(D / U - 1) / R)))          D tokens of U unique ones, R = 15.39: four epochs are worth 3.73
Muennighoff et al. 2023, arXiv:2305.16264.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simcluster.longrun.budget.loss_laws import LossLaw, RepetitionDecay, loss_law

KAPLAN_TOKENS, KAPLAN_ALPHA = 2e8, 0.21
"""B_crit = B* / L^(1 / alpha_B): Kaplan et al. 2020, arXiv:2001.08361 equation 1.4, on WebText2."""


def kaplan_critical_batch(loss: float) -> float:
    """Return the critical batch size (tokens) at a loss by Kaplan et al., for a model of any size."""
    return float(KAPLAN_TOKENS / loss ** (1 / KAPLAN_ALPHA))


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """Critical batch size of a run (``tokens``), and the number of training tokens needed at small batches."""

    tokens: float
    least_tokens: float

    @property
    def least_steps(self) -> float:
        """Smallest number of steps to the loss: the limit of infinitely large batches."""
        return self.least_tokens / self.tokens

    def steps_at(self, batch: float) -> float:
        """Return the number of steps that a run needs at a batch size (tokens)."""
        return self.least_steps * (1 + self.tokens / batch)

    def tokens_at(self, batch: float) -> float:
        """Return the number of tokens that a run needs at a batch size (tokens)."""
        return self.least_tokens * (1 + batch / self.tokens)


def fresh_equivalent(seen: float, unique: float, fading: float) -> float:
    """Return how many fresh tokens are worth as much as ``seen`` tokens that repeat ``unique`` tokens."""
    if seen <= unique:
        return seen
    if math.isinf(seen):
        return unique * (1 + fading)
    return unique * (1 - fading * math.expm1(-(seen / unique - 1) / fading))


def amount_with_repeats(worth: float, unique: float, fading: float) -> float:
    """Return how many tokens, repeats included, equal ``worth`` fresh tokens; infinity if no number does."""
    if worth <= unique:
        return worth
    left = 1 - (worth / unique - 1) / fading
    return unique * (1 - fading * math.log(left)) if left > 0 else math.inf


@dataclass(frozen=True, slots=True)
class RepeatedDataLaw:
    """Loss law of a run on ``unique`` tokens, which are repeated if training takes more.

    Surplus parameters fade as well: those above the best for the unique tokens. A law without constants for this takes
    those of ``muennighoff``.
    """

    law: LossLaw
    unique: float

    @property
    def decay_constants(self) -> RepetitionDecay:
        """Decay constants: how fast repeated tokens and surplus parameters lose their value."""
        found = self.law.repeated or loss_law("muennighoff").repeated
        assert found is not None
        return found

    @property
    def has_borrowed_constants(self) -> bool:
        """Whether the decay constants are taken from another law."""
        return self.law.repeated is None

    def fresh_equivalent_tokens(self, seen: float) -> float:
        """Return the number of fresh tokens worth as much as ``seen`` tokens, repeated ones included."""
        return fresh_equivalent(seen, self.unique, self.decay_constants.tokens)

    def effective_parameters(self, count: float) -> float:
        """Return how many of a model's ``count`` parameters are effective on the unique tokens."""
        return fresh_equivalent(
            count, min(count, max(1.0, self.law.optimal_parameters(self.unique))), self.decay_constants.parameters
        )

    def loss(self, parameters: float, seen: float) -> float:
        """Return the loss (nats per token) of a model after ``seen`` tokens, repeated tokens included."""
        if seen <= self.unique:
            return self.law.loss(parameters, seen)
        return self.law.loss(self.effective_parameters(parameters), self.fresh_equivalent_tokens(seen))

    def tokens_to_loss(self, loss: float, parameters: float) -> float:
        """Return the number of training tokens at which a model reaches a loss; infinity if it never does."""
        fresh = self.law.tokens_to_loss(loss, parameters)
        if fresh <= self.unique:
            return fresh
        needed = self.law.tokens_to_loss(loss, self.effective_parameters(parameters))
        return max(self.unique, amount_with_repeats(needed, self.unique, self.decay_constants.tokens))
