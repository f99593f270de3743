"""Loss laws: the loss of N parameters on D tokens, the best N for a budget, and the cheapest model for a loss.

    L(N, D) = E + (A / N^alpha + B / D^beta)^power          C = 6 N D FLOP          (power is 1 but for Kaplan's law)

Losses are in nats per token, comparable only for the same text and tokenizer. Built-in laws are data
(``documents/catalogue/loss_laws.yaml``), with the range of the runs that each was fitted on; ``beyond`` reports what
lies outside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from simcluster.base.counts import format_count
from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.documents.catalogue import load_presets
from simcluster.documents.diagnostics import did_you_mean, validate_mapping

DEFAULT_LAW = "besiroglu"
FLOP_PER_TOKEN = 6.0
"""Training FLOP per parameter and token; serving takes 2."""
SERVING_FLOP = 2.0

Number = Annotated[float, Field(strict=False, gt=0, le=1e30)]
Exponent = Annotated[float, Field(strict=False, ge=0.05, le=5)]
Interval = tuple[Annotated[float, Field(strict=False, ge=0)], Annotated[float, Field(strict=False, gt=0)]]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Model size (``parameters``), number of training ``tokens``, and ``loss`` (None if the law gives no loss)."""

    parameters: float
    tokens: float
    loss: float | None = None

    @property
    def compute(self) -> float:
        """Training compute in FLOP, excluding attention."""
        return FLOP_PER_TOKEN * self.parameters * self.tokens

    @property
    def tokens_per_parameter(self) -> float:
        """Training tokens per parameter; about 20 is compute-optimal by rule of thumb."""
        return self.tokens / self.parameters


class RepetitionDecay(Spec):
    """Decay constants of a loss law: R_D* for repeated ``tokens``, R_N* for surplus ``parameters``."""

    tokens: Number
    parameters: Number


class LossLaw(Spec):
    """Loss law: constants, their published standard errors, and the range of runs that the law was fitted on.

    ``counts`` is how the law counts parameters: all, or without embeddings. ``rounded``: constants of two digits.
    """

    name: str = "own"
    form: Literal["NDC"] = "NDC"
    E: Annotated[float, Field(strict=False, ge=0, le=100)]
    A: Number
    alpha: Exponent
    B: Number
    beta: Exponent
    power: Exponent = 1.0
    errors: dict[str, float] = Field(default_factory=dict)
    parameters: Interval | None = None
    tokens: Interval | None = None
    repeated: RepetitionDecay | None = None
    counts: Literal["all", "non-embedding"] = "all"
    rounded: StrictBool = False
    also: tuple[str, ...] = ()
    source: str = ""

    def formula(self) -> str:
        """Return the formula of the law with all constants, as one line of text."""
        both = f"{self.A:.5g} / N^{self.alpha:.4g} + {self.B:.5g} / D^{self.beta:.4g}"
        ahead = f"{self.E:.5g} + " if self.E else ""
        return f"L = {ahead}{both}" if self.power == 1 else f"L = {ahead}({both})^{self.power:.4g}"

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss (nats per token) of a model of N parameters after D tokens; D may be infinite."""
        return float(self.E + (self.A / parameters**self.alpha + self.B / tokens**self.beta) ** self.power)

    def lowest_loss(self, parameters: float) -> float:
        """Return the lowest loss that a model of this size can reach with any number of tokens."""
        return self.loss(parameters, math.inf)

    def tokens_to_loss(self, loss: float, parameters: float) -> float:
        """Return the number of tokens at which a model of this size reaches a loss; infinity if never."""
        return _invert_power_law(self.B, self._loss_above_floor(loss) - self.A / parameters**self.alpha, self.beta)

    def compute_optimal_size(self, compute: float) -> ModelSize:
        """Return the model of lowest loss for C FLOP of compute: N = G (C/6)^(beta / (alpha + beta))."""
        both = self.alpha + self.beta
        pairs = compute / FLOP_PER_TOKEN
        found = (self.alpha * self.A / (self.beta * self.B)) ** (1 / both) * pairs ** (self.beta / both)
        return ModelSize(found, pairs / found, self.loss(found, pairs / found))

    def optimal_parameters(self, tokens: float) -> float:
        """Return the model size for which training on ``tokens`` tokens is compute-optimal."""
        return _invert_power_law(self.alpha * self.A, self.beta * self.B / tokens**self.beta, self.alpha)

    def cheapest_size(self, loss: float, served: float = 0.0) -> ModelSize | None:
        """Return the model that reaches a loss with least training and serving compute; None if no model can.

        Minimises 6 N D(N, L) + 2 N served. Without serving this is the optimum, in closed form; with it the model is
        smaller and trained longer, and the zero of the derivative is found by bisection.
        """
        room = self._loss_above_floor(loss)
        if room <= 0:
            return None
        share = self.alpha / (self.alpha + self.beta)  # of the loss left to the token term

        def model_with_token_loss(left: float) -> ModelSize:
            tokens = _invert_power_law(self.B, left, self.beta)
            return ModelSize(_invert_power_law(self.A, room - left, self.alpha), tokens, loss)

        low, high = 0.0, room * share
        if not 0 < model_with_token_loss(high).compute < math.inf:
            return None
        if served <= 0:
            return model_with_token_loss(high)
        for _ in range(200):  # below the optimum's share the slope is negative where too little loss is left to tokens
            left = math.sqrt(low * high) if low else high / 16
            tokens = model_with_token_loss(left).tokens
            slope = FLOP_PER_TOKEN * tokens * (1 - self.alpha * (room - left) / (self.beta * left))
            low, high = (left, high) if slope + SERVING_FLOP * served < 0 else (low, left)
        return model_with_token_loss(high)

    def describe_extrapolation(self, size: ModelSize) -> str:
        """Describe how far a model lies outside the law's range, as in "N x 3.3, D x 12"; empty if inside."""
        return _describe_distance_from_range({"N": (size.parameters, self.parameters), "D": (size.tokens, self.tokens)})

    def describe_range(self) -> str:
        """Return the range of model sizes and tokens that the law was fitted on, as text."""
        return _describe_range({"parameters": self.parameters, "tokens": self.tokens})

    def _loss_above_floor(self, loss: float) -> float:
        above = loss - self.E
        return float(above ** (1 / self.power)) if above > 0 else -1.0


class TokenLaw(Spec):
    """Law of the compute-optimal number of tokens, A C^alpha with C in FLOP; a law of this kind gives no loss."""

    name: str = "own"
    form: Literal["tokens"]
    A: Number
    alpha: Exponent
    compute: Interval | None = None
    rounded: StrictBool = False
    also: tuple[str, ...] = ()
    source: str = ""

    def formula(self) -> str:
        """Return the formula of the law with all constants, as one line of text."""
        return f"D = {self.A:.4g} C^{self.alpha:.4g}"

    def compute_optimal_size(self, compute: float) -> ModelSize:
        """Return the compute-optimal model for C FLOP: D tokens by the law, C / (6 D) parameters."""
        tokens = self.A * compute**self.alpha
        return ModelSize(compute / (FLOP_PER_TOKEN * tokens), tokens)

    def describe_extrapolation(self, size: ModelSize) -> str:
        """Describe how far a model's training compute lies outside the law's range; empty if inside."""
        return _describe_distance_from_range({"C": (size.compute, self.compute)})

    def describe_range(self) -> str:
        """Return the range of compute that the law was fitted on, as text."""
        return _describe_range({"FLOP": self.compute})


class KaplanConstants(Spec):
    """Constants of Kaplan's law, L = ((Nc / N)^(alpha_n / alpha_d) + Dc / D)^alpha_d."""

    name: str = "own"
    form: Literal["kaplan"]
    Nc: Number
    alpha_n: Exponent
    Dc: Number
    alpha_d: Exponent
    parameters: Interval | None = None
    tokens: Interval | None = None
    counts: Literal["all", "non-embedding"] = "non-embedding"
    also: tuple[str, ...] = ()
    source: str = ""

    def to_loss_law(self) -> LossLaw:
        """Return the equivalent ``LossLaw``, L = E + (A / N^alpha + B / D^beta)^power."""
        ratio = self.alpha_n / self.alpha_d
        same = {name: getattr(self, name) for name in ("name", "parameters", "tokens", "counts", "also", "source")}
        return LossLaw(E=0.0, A=self.Nc**ratio, alpha=ratio, B=self.Dc, beta=1.0, power=self.alpha_d, **same)


_FORMS: dict[str, type[LossLaw | TokenLaw | KaplanConstants]] = {
    "NDC": LossLaw, "tokens": TokenLaw, "kaplan": KaplanConstants,
}  # fmt: skip


def load_law(spec: str | Mapping[str, Any] | LossLaw | TokenLaw) -> LossLaw | TokenLaw:
    """Return a loss law or token law, by name or from a mapping that has its form and constants."""
    if isinstance(spec, LossLaw | TokenLaw):
        return spec
    if isinstance(spec, str):
        known = load_presets("loss_laws.yaml")
        named = {other: name for name, entry in known.items() for other in (name, *entry.get("also", ()))}
        if spec.lower() not in named:
            raise InputError(
                f"there is no loss law {spec!r}{did_you_mean(spec.lower(), named)}; built-in laws: "
                f"{', '.join(known)}; or give your own: {_OWN}"
            )
        name = named[spec.lower()]
        return _law_from_document({"name": name, **known[name]})
    if not isinstance(spec, Mapping):
        raise InputError(f"loss law: {spec!r} must be a name or a mapping, as in {_OWN}")
    return _law_from_document(spec)


def loss_law(what: str | Mapping[str, Any] | LossLaw | TokenLaw) -> LossLaw:
    """Return a loss law by name or from a mapping; raise InputError for a law of token counts without loss."""
    law = load_law(what)
    if isinstance(law, TokenLaw):
        raise InputError(f"the law {law.name} ({law.formula()}) gives token counts but no loss; use {DEFAULT_LAW}")
    return law


def list_law_names() -> tuple[str, ...]:
    """Return the names of the built-in loss laws, in the order of the catalogue."""
    return tuple(load_presets("loss_laws.yaml"))


_OWN = "{form: NDC, E: 1.8, A: 480, alpha: 0.35, B: 2100, beta: 0.37}"


def _law_from_document(document: Mapping[str, Any]) -> LossLaw | TokenLaw:
    form = document.get("form", "NDC")
    if form not in _FORMS:
        raise InputError(f"loss law: form {form!r} must be NDC, tokens or kaplan; as in {_OWN}")
    law = validate_mapping(_FORMS[form], document, "loss law: ", f"; as in {_OWN}")
    return law.to_loss_law() if isinstance(law, KaplanConstants) else law


def _invert_power_law(constant: float, left: float, exponent: float) -> float:
    """Return x with constant / x^exponent = left; infinite if ``left`` is not positive."""
    if left <= 0:
        return math.inf
    try:
        return float((constant / left) ** (1 / exponent))
    except OverflowError:
        return math.inf


def _describe_distance_from_range(values: Mapping[str, tuple[float, Interval | None]]) -> str:
    found = []
    for name, (value, fitted) in values.items():
        if fitted is not None and value > fitted[1]:
            found.append(f"{name} x {value / fitted[1]:.3g}")
        elif fitted is not None and value < fitted[0]:
            found.append(f"{name} x {value / fitted[0]:.2g}")
    return ", ".join(found)


def _describe_range(ranges: Mapping[str, Interval | None]) -> str:
    words = []
    for name, fitted in ranges.items():
        if fitted is not None:
            low, high = (f"{end:.3g}" if name == "FLOP" else format_count(end) for end in fitted)
            words.append(f"{low} to {high} {name}" if fitted[0] else f"up to {high} {name}")
    return " and ".join(words) or "an unknown range"
