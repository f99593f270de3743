"""The critical batch: how many more tokens a larger batch takes, and how many fewer steps.

    S = S_min (1 + B_crit / B)          E = E_min (1 + B / B_crit)          (S / S_min - 1) (E / E_min - 1) = 1

E are tokens, S steps of B tokens, B_crit = E_min / S_min (McCandlish et al. 2018, arXiv:1812.06162).  What a law of
loss calls D is taken as E_min: a batch far below the critical one.
"""

from __future__ import annotations

from dataclasses import dataclass

KAPLAN_TOKENS, KAPLAN_ALPHA = 2e8, 0.21
"""B_crit = B* / L^(1 / alpha_B): Kaplan et al. 2020, arXiv:2001.08361 equation 1.4, on WebText2."""


def kaplan_critical_batch(loss: float) -> float:
    """Tokens of the critical batch at a loss; it does not ask for the size of the model."""
    return float(KAPLAN_TOKENS / loss ** (1 / KAPLAN_ALPHA))


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """A run that takes ``least_tokens`` at small batches, with its critical batch of ``tokens``."""

    tokens: float
    least_tokens: float

    @property
    def least_steps(self) -> float:
        """S_min, at endless batches."""
        return self.least_tokens / self.tokens

    def steps_at(self, batch: float) -> float:
        """Steps with a batch of so many tokens."""
        return self.least_steps * (1 + self.tokens / batch)

    def tokens_at(self, batch: float) -> float:
        """Tokens with such a batch: steps x batch."""
        return self.least_tokens * (1 + batch / self.tokens)
