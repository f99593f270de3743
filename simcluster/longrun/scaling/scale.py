"""Loss for a compute budget and compute for a loss: the best model, yours, their costs, and the number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.errors import InputError
from simcluster.base.shown import Displayable
from simcluster.base.units import DAY
from simcluster.documents.argument_types import checked
from simcluster.documents.own_words import trust_text
from simcluster.longrun.budget.critical_batch import CriticalBatch, RepeatedData
from simcluster.longrun.budget.loss_laws import (
    DEFAULT_LAW,
    FLOP_PER_TOKEN,
    SERVING_FLOP,
    LossLaw,
    ModelSize,
    TokenLaw,
    any_law,
    law_names,
    loss_law,
)
from simcluster.longrun.scaling.request import (
    ScalingRequest,
    ScalingVariant,
    request_from_counts,
    request_from_scenario,
    simulate_variants,
)
from simcluster.longrun.text import frame_rows, json_value, make_frame
from simcluster.scenario.given import ScenarioLike, scenario_of

if TYPE_CHECKING:
    import pandas as pd

_BUDGETS = (0.1, 0.3, 1.0, 3.0, 10.0)
_SERVED = (0.0, 1e12, 1e13, 1e14)
_EPOCHS = (1, 2, 4, 8, 16, 40, math.inf)
_OF_CRITICAL = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_SIZES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
_POINTS = 61  # of a curve
RULE_OF_THUMB = "20 tokens per parameter"


@dataclass(frozen=True, repr=False)
class Scaling(Displayable):
    """Answer of a loss law about a compute budget, a model or a loss; infinite numbers mean "never".

    ``compute`` is the FLOP of the budget, or of the user's own model and its tokens; ``best`` the model of the lowest
    loss for it; ``own`` the user's model on the given tokens, or on those that the budget leaves it; ``to_loss`` the
    same on the tokens that it takes to the loss; ``cheapest`` the model that reaches the loss for the least training;
    ``repeated`` the law on the unique tokens; ``critical_batch`` that of the user's model on its way to the loss.
    """

    asked: ScalingRequest
    played: tuple[ScalingVariant, ...] = ()
    law: LossLaw = field(init=False)
    compute: float | None = field(init=False)
    best: ModelSize | None = field(init=False)
    own: ModelSize | None = field(init=False)
    to_loss: ModelSize | None = field(init=False)
    cheapest: ModelSize | None = field(init=False)
    repeated: RepeatedData | None = field(init=False)
    critical_batch: CriticalBatch | None = field(init=False)

    def __post_init__(self) -> None:
        asked, law = self.asked, self.asked.law
        size, tokens, goal, compute = asked.parameters, asked.tokens, asked.loss, asked.compute
        if compute is None and size is not None and tokens is not None:
            compute = ModelSize(size, tokens).compute
        repeated = None if asked.unique is None else RepeatedData(law, asked.unique)
        data, own, to_loss, batch = repeated or law, None, None, None
        if size is not None and (tokens is not None or compute is not None):
            tokens = tokens or (compute or 0.0) / (FLOP_PER_TOKEN * size)
            own = ModelSize(size, tokens, data.loss(size, tokens))
        if size is not None and goal is not None:
            to_loss = ModelSize(size, data.tokens_to(goal, size), goal)
            if asked.critical is not None and math.isfinite(to_loss.tokens):
                batch = CriticalBatch(asked.critical, to_loss.tokens)
        vars(self).update(
            law=law, compute=compute, best=None if compute is None else law.optimum(compute), own=own, to_loss=to_loss,
            cheapest=None if goal is None else law.cheapest(goal), repeated=repeated, critical_batch=batch,
        )  # fmt: skip

    def loss_of(self, parameters: float, tokens: float) -> float:
        """Return the loss of a model after ``tokens``, which are repeated if the unique ones do not suffice."""
        return (self.repeated or self.law).loss(parameters, tokens)

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions of the answer, and results outside the range that the law was fitted on."""
        fresh = "best and cheapest models are on fresh data; yours is on the unique tokens"
        return (*self.asked.notes, *([fresh] if self.repeated is not None else []), *self._extrapolation_notes())

    def _extrapolation_notes(self) -> Iterator[str]:
        law, served, goal = self.law, self.asked.served, self.asked.loss
        models = {
            "the best model": self.best,
            self.asked.model: self.own,
            "your model at the loss": self.to_loss,
            "the cheapest model": self.cheapest,
            "the model to serve": law.cheapest(goal, served) if served and goal is not None else None,
        }
        seen = [
            f"{name} {beyond}"
            for name, size in models.items()
            if size is not None and (beyond := self._describe_extrapolation(size))
        ]
        if seen:
            yield f"extrapolated: {law.name} was fitted on {law.describe_range()}: {'; '.join(seen)}"
        if law.parameters is None and law.tokens is None:
            yield f"the law {law.name} states no range (parameters: [LEAST, MOST], tokens: ...): it may be extrapolated"
        if law.rounded:
            factor = "for a large budget this changes the best model several times"
            yield f"rounded: {law.name} has exponents of two digits; {factor}"
        yield f"source: {law.source}" if law.source else "source: your constants"

    def _describe_extrapolation(self, size: ModelSize) -> str:
        return self.law.describe_extrapolation(size) if math.isfinite(size.tokens) else ""

    # --- tables -------------------------------------------------------------------------------------------------------

    @property
    def central_compute(self) -> float:
        """Compute budget (FLOP) at the centre of the plots: the user's budget, or the cost of the loss."""
        if self.compute is not None:
            return self.compute
        if self.to_loss is not None and math.isfinite(self.to_loss.tokens):
            return self.to_loss.compute
        return 1e23 if self.cheapest is None else self.cheapest.compute

    @cached_property
    def laws(self) -> pd.DataFrame:
        """Table of each law's best model for the compute budget.

        Columns parameters, tokens, tokens_per_parameter, loss, own_loss, beyond.
        """
        compute, own, rows = self.compute, self.own, []
        if compute is not None:
            for name, law in ({name: any_law(name) for name in law_names()} | {self.law.name: self.law}).items():
                best, reached = law.optimum(compute), math.nan
                if own is not None and isinstance(law, LossLaw):
                    reached = RepeatedData(law, self.asked.unique or math.inf).loss(own.parameters, own.tokens)
                loss = math.nan if best.loss is None else best.loss
                rows.append([name, *_size_columns(best), loss, reached, law.describe_extrapolation(best)])
            size = math.sqrt(compute / FLOP_PER_TOKEN / 20)
            thumb = ModelSize(size, 20 * size)
            loss = self.law.loss(size, 20 * size)
            rows.append([RULE_OF_THUMB, size, 20 * size, 20.0, loss, math.nan, self.law.describe_extrapolation(thumb)])
        return make_frame(rows, "law parameters tokens tokens_per_parameter loss own_loss beyond", "law")

    @cached_property
    def isoflop(self) -> pd.DataFrame:
        """Table of the loss over model size at five compute budgets around the user's.

        From a thirtieth of the best model to thirty times it: compute, parameters, tokens, loss, beyond.
        """
        rows = []
        for compute in (factor * self.central_compute for factor in _BUDGETS):
            for size in (self.law.optimum(compute).parameters * np.geomspace(1 / 30, 30, _POINTS)).tolist():
                tokens = compute / (FLOP_PER_TOKEN * size)
                beyond = self.law.describe_extrapolation(ModelSize(size, tokens))
                rows.append([compute, size, tokens, self.loss_of(size, tokens), beyond])
        return make_frame(rows, "compute parameters tokens loss beyond")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Table of loss and training cost over token counts, for the best model size, its neighbours and yours.

        Columns parameters, tokens, loss, compute, gpu_hours, days, dollars, beyond.
        """
        rate, own = self.asked.rate, self.asked.parameters
        price = math.nan if self.asked.price is None else self.asked.price
        best = self.law.optimum(self.central_compute)
        sizes = {float(f"{best.parameters * factor:.1g}") for factor in _SIZES}
        if own:
            sizes = {size for size in sizes if not 0.8 < size / own < 1.25} | {own}
        rows = []
        for size in sorted(sizes):
            for tokens in (best.tokens * np.geomspace(1 / 30, 300, _POINTS)).tolist():
                flops, beyond = FLOP_PER_TOKEN * size * tokens, self.law.describe_extrapolation(ModelSize(size, tokens))
                hours, days = rate.gpu_hours(flops), rate.days(flops)
                rows.append([size, tokens, self.loss_of(size, tokens), flops, hours, days, hours * price, beyond])
        return make_frame(rows, "parameters tokens loss compute gpu_hours days dollars beyond")

    @cached_property
    def serving(self) -> pd.DataFrame:
        """Table of the cheapest model to train and serve at the loss, by the number of tokens served.

        Columns parameters, tokens, training and all FLOP; empty if no model reaches the loss.
        """
        goal, rows = self.asked.loss, []
        for served in sorted({*_SERVED, self.asked.served}):
            size = None if goal is None else self.law.cheapest(goal, served)
            if size is not None:
                flops = size.compute + SERVING_FLOP * size.parameters * served
                rows.append([served, *_size_columns(size), size.compute, flops, self.law.describe_extrapolation(size)])
        columns = "served parameters tokens tokens_per_parameter training_flop all_flop beyond"
        return make_frame(rows, columns, "served")

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """Table of how many fresh tokens repeated passes over the unique tokens are worth.

        Over 1T unique tokens by default. Columns epochs, tokens, worth, of_fresh.
        """
        data = self.repeated or RepeatedData(self.law, 1e12)
        rows = [[many, many * data.unique, data.tokens(many * data.unique)] for many in _EPOCHS]
        table = make_frame(rows, "epochs tokens worth", "epochs")
        return table.assign(of_fresh=table["worth"] / table["tokens"])

    @cached_property
    def batches(self) -> pd.DataFrame:
        """Table of the steps and tokens needed to reach the loss, by batch size.

        A row per simulated variant, with step time, days and dollars, or per fraction of the critical batch.
        """
        critical, price, rows = self.critical_batch, self.asked.price, list[list[Any]]()
        if critical is not None and not self.played:
            for part in _OF_CRITICAL:
                batch = part * critical.tokens
                both = critical.steps_at(batch), critical.tokens_at(batch)
                name, gpus = f"{part:g} x critical", self.asked.rate.gpus
                rows.append([name, gpus, batch, part, math.nan, *both, math.nan, math.nan, ""])
        for each in self.played if critical is not None else ():
            if each.refused:
                rows.append([each.name, 0, *[math.nan] * 7, each.refused])
                continue
            assert critical is not None
            steps, tokens = critical.steps_at(each.batch), critical.tokens_at(each.batch)
            seconds = steps * each.step_time
            dollars = math.nan if price is None else seconds / 3600 * each.gpus * price
            rows.append([each.name, each.gpus, each.batch, each.batch / critical.tokens, each.step_time, steps, tokens,
                         seconds / DAY, dollars, ""])  # fmt: skip
        columns = "variant gpus batch of_critical step_time_s steps tokens days dollars refused"
        return make_frame(rows, columns, "variant")

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as a JSON document; "never" is null (CONTRACT.md, "From a budget to a loss")."""
        asked, rate = self.asked, self.asked.rate
        models = {"best": self.best, "own": self.own, "to_loss": self.to_loss, "cheapest": self.cheapest}
        tables = {"laws": self.laws, "serving": self.serving, "batches": self.batches, "epochs": self.epochs}
        answer = {
            "law": {key: value for key, value in self.law.model_dump(mode="json").items() if key != "also"},
            "compute_flop": self.compute,
            "loss": asked.loss,
            "model": asked.model,
            "gpus": rate.gpus,
            "flops_per_gpu": rate.flops,
            "price_per_gpu_hour": asked.price,
            "critical_batch_tokens": asked.critical,
            **{name: None if size is None else self._model_document(size) for name, size in models.items()},
            **{name: frame_rows(table) for name, table in tables.items()},
            "notes": list(self.notes),
        }
        return dict(json_value(answer))

    def _model_document(self, size: ModelSize) -> dict[str, Any]:
        rate, price = self.asked.rate, self.asked.price
        hours = rate.gpu_hours(size.compute)
        return {
            "parameters": size.parameters, "tokens": size.tokens, "tokens_per_parameter": size.tokens_per_parameter,
            "loss": size.loss, "floor": self.law.floor(size.parameters), "compute_flop": size.compute,
            "gpu_hours": hours, "days": rate.days(size.compute) if rate.gpus else None,
            "dollars": None if price is None else hours * price, "beyond": self._describe_extrapolation(size),
        }  # fmt: skip


def _size_columns(size: ModelSize) -> tuple[float, float, float]:
    return size.parameters, size.tokens, size.tokens_per_parameter


@checked
def compute_optimal(
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
    """Answer a question about a compute budget, a model or a loss by a loss law.

    A budget is ``compute`` (FLOP), or ``gpus``, ``days`` and ``mfu`` of a ``device``; a model is a scenario, whose step
    is simulated, or ``parameters``, with its ``tokens``; ``loss`` is the loss to reach, ``serve`` the number of tokens
    that it serves afterwards, ``unique`` the number of unique training tokens. ``vary`` simulates variants of the
    scenario, whose ``batch`` grows with the nodes or stays the "same". Counts may be texts: "70B". InputError for an
    incomplete or invalid question.
    """
    job = None if scenario is None else scenario_of(scenario, "compute_optimal")
    run = None if job is None else job.run
    found = loss_law(law or (run and run.law) or DEFAULT_LAW)
    given = {
        "compute": compute, "gpus": gpus, "days": days, "mfu": mfu, "parameters": parameters, "tokens": tokens,
        "loss": loss, "serve": serve, "unique": unique, "price": price, "critical_batch": critical_batch,
    }  # fmt: skip
    if batch not in ("grows", "same"):
        raise InputError(f"batch {batch!r}: use grows (with the nodes) or same")
    if job is None:
        if vary:
            raise InputError("vary needs a scenario, whose step is simulated")
        return Scaling(request_from_counts(found, given, device))
    asked, step = request_from_scenario(found, given, job)
    return Scaling(asked, simulate_variants(job, step, trust_text(vary or {}), grows=batch == "grows"))
