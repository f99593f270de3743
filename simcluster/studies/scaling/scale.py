"""From a budget to a loss and back: the best model, one's own beside it, what a loss takes, and on how many GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import format_count, parse_count
from simcluster.base.errors import InputError
from simcluster.budget.critical_batch import CriticalBatch, kaplan_critical_batch
from simcluster.budget.loss_laws import DEFAULT_LAW, FLOP_PER_TOKEN, LossLaw, ModelSize, TokenLaw, loss_law
from simcluster.budget.repetition import RepeatedData
from simcluster.scenario.scenario import Scenario, load
from simcluster.studies.scaling import tables, words
from simcluster.studies.scaling.asked import (
    Asked,
    budget_of,
    counted_parameters,
    rate_of_device,
    rate_of_step,
    run_tokens,
)
from simcluster.studies.scaling.batches import Played, play_batches

if TYPE_CHECKING:
    import pandas as pd

KAPLAN = "kaplan"


@dataclass(frozen=True)
class Scaling:
    """What a law of loss says of a budget, a model or a loss; tables are DataFrames, "never" is an infinite number."""

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

    @cached_property
    def laws(self) -> pd.DataFrame:
        """Each law's best model for the budget: parameters, tokens, tokens_per_parameter, loss, own_loss, beyond."""
        return tables.laws(self)

    @cached_property
    def isoflop(self) -> pd.DataFrame:
        """Loss over parameters at five budgets about one's own: compute, parameters, tokens, loss."""
        return tables.isoflop(self)

    @cached_property
    def costs(self) -> pd.DataFrame:
        """What losses cost some sizes of model: parameters, tokens, loss, compute, gpu_hours, days, dollars."""
        return tables.costs(self)

    @cached_property
    def serving(self) -> pd.DataFrame:
        """The cheapest model for the loss by how many tokens it serves: parameters, tokens, training and all FLOP."""
        return tables.serving(self)

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """What repeated data are worth, in fresh tokens: epochs, tokens, worth, of_fresh."""
        return tables.epochs(self)

    @cached_property
    def batches(self) -> pd.DataFrame:
        """Steps and tokens to the loss by batch: one row a variant that was played, or parts of the critical batch."""
        return tables.batches(self)

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
        return (*self.asked.notes, *words.extrapolated(self))

    def summary(self) -> str:
        """The answer in some lines of text."""
        return words.summary(self)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, "From a budget to a loss"."""
        return words.document(self)


def scaling(
    scenario: Scenario | str | None = None,
    *,
    compute: float | str | None = None,
    gpus: int | str | None = None,
    days: float | str | None = None,
    mfu: float | str | None = None,
    device: str = "h100",
    parameters: float | str | None = None,
    tokens: float | str | None = None,
    loss: float | None = None,
    serve: float | str | None = None,
    unique: float | str | None = None,
    law: str | Mapping[str, Any] | LossLaw | TokenLaw | None = None,
    price: float | str | None = None,
    critical_batch: float | str = KAPLAN,
    vary: Mapping[str, Sequence[Any]] | None = None,
    batch: str = "grows",
) -> Scaling:
    """What a law of loss says of a budget, a model or a loss.

    A budget is ``compute`` (FLOP), or ``gpus``, ``days`` and ``mfu`` of a ``device``; a model is a scenario, whose step
    is simulated, or ``parameters``, with its ``tokens``; ``loss`` is what is to be reached, ``serve`` how many tokens
    it serves afterwards, ``unique`` how many there are to train on.  ``vary`` plays variants of the scenario, whose
    ``batch`` grows with the machines or stays the "same".  Counts may be texts: "70B".  InputError for what is no
    question, or cannot be.
    """
    scenario = load(scenario) if isinstance(scenario, str) else scenario
    run = None if scenario is None else scenario.run
    found = loss_law(law or (run and run.law) or DEFAULT_LAW)
    played: tuple[Played, ...] = ()
    if scenario is None:
        if vary:
            raise InputError("vary asks for a scenario whose step is simulated")
        size = None if parameters is None else parse_count(parameters, "parameters")
        name, notes = "" if size is None else f"{format_count(size)} parameters", ()
        rate = rate_of_device(device, gpus, mfu)
    else:
        given = {"parameters": parameters, "gpus": gpus, "mfu": mfu}
        if wrong := [key for key, value in given.items() if value is not None]:
            raise InputError(f"{', '.join(wrong)}: the scenario says it; give one or the other")
        price = run.price if price is None and run is not None else price
        name, (size, notes) = scenario.name, counted_parameters(scenario, found)
        tokens = run_tokens(scenario) if tokens is None and compute is None and days is None else tokens
        loss = run.loss if loss is None and run is not None else loss
        rate, step = rate_of_step(scenario, size)
        played = play_batches(scenario, step, vary or {}, grows=_grows(batch))
    asked = Asked(
        law=found,
        model=name,
        parameters=size,
        tokens=None if tokens is None else parse_count(tokens, "tokens"),
        compute=budget_of({"compute": compute, "days": days}, rate),
        loss=None if loss is None else parse_count(loss, "loss"),
        served=0.0 if serve is None else parse_count(serve, "serve"),
        unique=None if unique is None else parse_count(unique, "unique"),
        price=None if price is None else parse_count(price, "price"),
        rate=rate,
        notes=notes,
    )
    _check(asked)
    return Scaling(asked, *_critical(critical_batch, asked), played)


def _grows(batch: str) -> bool:
    if batch not in ("grows", "same"):
        raise InputError(f"batch {batch!r}: it grows with the machines, or stays the same")
    return batch == "grows"


def _check(asked: Asked) -> None:
    if asked.compute is not None and asked.tokens is not None:
        raise InputError("tokens and a budget: one follows from the other; give one of them")
    if asked.compute is None and asked.loss is None and (asked.parameters is None or asked.tokens is None):
        raise InputError(
            "what is asked?  Give a budget (compute, or gpus and days), a loss, or a model with its tokens, "
            "as in --compute 3.15e23, --gpus 1024 --days 30, --loss 2.0 or --parameters 7B --tokens 2T"
        )
    if asked.served and asked.loss is None:
        raise InputError("serve: the cheapest model to train and serve is one that reaches a loss; give it, as in 2.0")


def _critical(given: float | str, asked: Asked) -> tuple[float | None, str]:
    """(tokens of the critical batch, whose they are)."""
    if given != KAPLAN:
        return parse_count(given, "critical_batch"), "as given"
    if asked.loss is not None:
        return kaplan_critical_batch(asked.loss), f"by Kaplan et al. 2020 at a loss of {asked.loss:.4g}"
    if asked.parameters is not None:
        floor = loss_law(KAPLAN).floor(asked.parameters)
        return kaplan_critical_batch(floor), f"by Kaplan et al. 2020 at the least loss of its size, {floor:.4g}"
    return None, ""
