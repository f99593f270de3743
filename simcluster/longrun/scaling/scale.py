"""From a budget to a loss and back: the best model, one's own beside it, what a loss takes, and on how many GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.documents.argument_types import checked
from simcluster.documents.own_words import own_words
from simcluster.longrun.budget.loss_laws import DEFAULT_LAW, LossLaw, TokenLaw, loss_law
from simcluster.longrun.scaling import tables, words
from simcluster.longrun.scaling.answer import LossAnswer
from simcluster.longrun.scaling.asked import asked_of_counts, asked_of_scenario, critical_of
from simcluster.longrun.scaling.batches import play_batches
from simcluster.scenario.given import ScenarioLike, scenario_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Scaling(LossAnswer, Shown):
    """What a law of loss says of a budget, a model or a loss: numbers, and tables as DataFrames."""

    def __repr__(self) -> str:
        return words.one_line(self)

    def __str__(self) -> str:
        return self.summary()

    @cached_property
    def laws(self) -> pd.DataFrame:
        """Each law's best model for the budget: parameters, tokens, tokens_per_parameter, loss, own_loss, beyond."""
        return tables.laws(self)

    @cached_property
    def isoflop(self) -> pd.DataFrame:
        """Loss over parameters at five budgets about one's own: compute, parameters, tokens, loss, beyond."""
        return tables.isoflop(self)

    @cached_property
    def costs(self) -> pd.DataFrame:
        """What losses cost some sizes of model: parameters, tokens, loss, compute, gpu_hours, days, dollars,
        beyond."""
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

    def summary(self) -> str:
        """The answer in some lines of text."""
        return words.summary(self)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, "From a budget to a loss"."""
        return words.document(self)


@checked
def scaling(
    scenario: ScenarioLike | None = None,
    *,
    compute: float | str | None = None,
    gpus: int | str | None = None,
    days: float | str | None = None,
    mfu: float | str | None = None,
    device: str = "h100",
    parameters: float | str | None = None,
    tokens: float | str | None = None,
    loss: float | str | None = None,
    serve: float | str | None = None,
    unique: float | str | None = None,
    law: str | Mapping[str, Any] | LossLaw | TokenLaw | None = None,
    price: float | str | None = None,
    critical_batch: float | str = "kaplan",
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
    job = None if scenario is None else scenario_of(scenario, "scaling")
    run = None if job is None else job.run
    found = loss_law(law or (run and run.law) or DEFAULT_LAW)
    given = {
        "compute": compute, "gpus": gpus, "days": days, "mfu": mfu, "parameters": parameters, "tokens": tokens,
        "loss": loss, "serve": serve, "unique": unique, "price": price,
    }  # fmt: skip
    if batch not in ("grows", "same"):
        raise InputError(f"batch {batch!r}: it grows with the machines, or stays the same")
    if job is None:
        if vary:
            raise InputError("vary asks for a scenario whose step is simulated")
        asked = asked_of_counts(found, given, device)
        return Scaling(asked, *critical_of(critical_batch, asked))
    asked, step = asked_of_scenario(found, given, job)
    played = play_batches(job, step, own_words(vary or {}), grows=batch == "grows")
    return Scaling(asked, *critical_of(critical_batch, asked), played)
