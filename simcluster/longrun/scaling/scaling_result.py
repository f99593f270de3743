"""Answers of a loss law: best model for a compute budget, compute to reach a loss, and training costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.units import DAY
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.trusted_text import mark_trusted_text
from simcluster.longrun.budget.critical_batch import CriticalBatch, RepeatedDataLaw
from simcluster.longrun.budget.loss_laws import (
    DEFAULT_LAW,
    FLOP_PER_TOKEN,
    SERVING_FLOP,
    LossLaw,
    ModelSize,
    TokenLaw,
    list_law_names,
    load_law,
    loss_law,
)
from simcluster.longrun.scaling.request import (
    ScalingRequest,
    ScalingVariant,
    request_from_counts,
    request_from_scenario,
    simulate_variants,
)
from simcluster.longrun.text_formats import make_frame, rows_to_dicts, to_json_value
from simcluster.scenario.scenario_arguments import ScenarioLike, to_scenario

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
class ScalingResult(Displayable):
    """Prediction of a loss law for a compute budget, a model or a target loss; infinity if the loss is never reached.

    ``compute`` is the FLOP of the budget, or of the user's own model and its tokens; ``best`` the model of the lowest
    loss for it; ``own`` the user's model on the given tokens, or on those that the budget leaves it; ``to_loss`` the
    same on the tokens that it takes to the loss; ``cheapest`` the model that reaches the loss for the least training;
    ``repeated`` the law on the unique tokens; ``critical_batch`` that of the user's model on its way to the loss.
    """

    request: ScalingRequest
    variants: tuple[ScalingVariant, ...] = ()
    law: LossLaw = field(init=False)
    compute: float | None = field(init=False)
    best: ModelSize | None = field(init=False)
    own: ModelSize | None = field(init=False)
    to_loss: ModelSize | None = field(init=False)
    cheapest: ModelSize | None = field(init=False)
    repeated: RepeatedDataLaw | None = field(init=False)
    critical_batch: CriticalBatch | None = field(init=False)

    def __post_init__(self) -> None:
        asked, law = self.request, self.request.law
        size, tokens, goal, compute = asked.parameters, asked.tokens, asked.loss, asked.compute
        if compute is None and size is not None and tokens is not None:
            compute = ModelSize(size, tokens).compute
        repeated = None if asked.unique is None else RepeatedDataLaw(law, asked.unique)
        data, own, to_loss, batch = repeated or law, None, None, None
        if size is not None and (tokens is not None or compute is not None):
            tokens = tokens or (compute or 0.0) / (FLOP_PER_TOKEN * size)
            own = ModelSize(size, tokens, data.loss(size, tokens))
        if size is not None and goal is not None:
            to_loss = ModelSize(size, data.tokens_to_loss(goal, size), goal)
            if asked.critical is not None and math.isfinite(to_loss.tokens):
                batch = CriticalBatch(asked.critical, to_loss.tokens)
        vars(self).update(
            law=law, compute=compute, best=None if compute is None else law.compute_optimal_size(compute),
            own=own, to_loss=to_loss,
            cheapest=None if goal is None else law.cheapest_size(goal), repeated=repeated, critical_batch=batch,
        )  # fmt: skip

    def model_loss(self, parameters: float, tokens: float) -> float:
        """Return a model's loss after ``tokens`` tokens; the unique tokens are repeated if they are fewer."""
        return (self.repeated or self.law).loss(parameters, tokens)

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions of the answer, and warnings about results outside the law's fitted range."""
        fresh = "best and cheapest models are on fresh data; yours is on the unique tokens"
        return (*self.request.notes, *([fresh] if self.repeated is not None else []), *self._extrapolation_notes())

    def _extrapolation_notes(self) -> Iterator[str]:
        law, served, goal = self.law, self.request.served, self.request.loss
        models = {
            "the best model": self.best,
            self.request.model: self.own,
            "your model at the loss": self.to_loss,
            "the cheapest model": self.cheapest,
            "the model to serve": law.cheapest_size(goal, served) if served and goal is not None else None,
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
            factor = "for a large budget this changes the best model by a large factor"
            yield f"rounded: {law.name} has exponents of two digits; {factor}"
        yield f"source: {law.source}" if law.source else "source: your constants"

    def _describe_extrapolation(self, size: ModelSize) -> str:
        return self.law.describe_extrapolation(size) if math.isfinite(size.tokens) else ""

    # --- tables -------------------------------------------------------------------------------------------------------

    @property
    def central_compute(self) -> float:
        """Compute (FLOP) at the centre of the plots: the user's budget, or else the compute to reach the loss."""
        if self.compute is not None:
            return self.compute
        if self.to_loss is not None and math.isfinite(self.to_loss.tokens):
            return self.to_loss.compute
        return 1e23 if self.cheapest is None else self.cheapest.compute

    @cached_property
    def laws(self) -> pd.DataFrame:
        """Table of the best model for the compute budget by each loss law.

        Columns parameters, tokens, tokens_per_parameter, loss, own_loss, beyond.
        """
        compute, own, rows = self.compute, self.own, []
        if compute is not None:
            for name, law in ({name: load_law(name) for name in list_law_names()} | {self.law.name: self.law}).items():
                best, reached = law.compute_optimal_size(compute), math.nan
                if own is not None and isinstance(law, LossLaw):
                    reached = RepeatedDataLaw(law, self.request.unique or math.inf).loss(own.parameters, own.tokens)
                loss = math.nan if best.loss is None else best.loss
                rows.append([name, *_model_size_columns(best), loss, reached, law.describe_extrapolation(best)])
            size = math.sqrt(compute / FLOP_PER_TOKEN / 20)
            thumb = ModelSize(size, 20 * size)
            loss = self.law.loss(size, 20 * size)
            rows.append([RULE_OF_THUMB, size, 20 * size, 20.0, loss, math.nan, self.law.describe_extrapolation(thumb)])
        return make_frame(rows, "law parameters tokens tokens_per_parameter loss own_loss beyond", "law")

    @cached_property
    def isoflop(self) -> pd.DataFrame:
        """Table of loss by model size, at five compute budgets around the user's budget.

        From a thirtieth of the best model to thirty times it: compute, parameters, tokens, loss, beyond.
        """
        rows = []
        for flops in (factor * self.central_compute for factor in _BUDGETS):
            for size in (self.law.compute_optimal_size(flops).parameters * np.geomspace(1 / 30, 30, _POINTS)).tolist():
                tokens = flops / (FLOP_PER_TOKEN * size)
                beyond = self.law.describe_extrapolation(ModelSize(size, tokens))
                rows.append([flops, size, tokens, self.model_loss(size, tokens), beyond])
        return make_frame(rows, "compute parameters tokens loss beyond")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """Table of loss and training cost by number of tokens, for the best model size, nearby sizes, and the user's.

        Columns parameters, tokens, loss, compute, gpu_hours, days, dollars, beyond.
        """
        rate, own = self.request.rate, self.request.parameters
        price = math.nan if self.request.price is None else self.request.price
        best = self.law.compute_optimal_size(self.central_compute)
        sizes = {float(f"{best.parameters * factor:.1g}") for factor in _SIZES}
        if own:
            sizes = {size for size in sizes if not 0.8 < size / own < 1.25} | {own}
        rows = []
        for size in sorted(sizes):
            for tokens in (best.tokens * np.geomspace(1 / 30, 300, _POINTS)).tolist():
                flops, beyond = FLOP_PER_TOKEN * size * tokens, self.law.describe_extrapolation(ModelSize(size, tokens))
                hours, days = rate.gpu_hours(flops), rate.days(flops)
                rows.append([size, tokens, self.model_loss(size, tokens), flops, hours, days, hours * price, beyond])
        return make_frame(rows, "parameters tokens loss compute gpu_hours days dollars beyond")

    @cached_property
    def serving(self) -> pd.DataFrame:
        """Table of the model that is cheapest to train and serve at the target loss, by number of tokens served.

        Columns parameters, tokens, training and all FLOP; empty if no model reaches the loss.
        """
        goal, rows = self.request.loss, []
        for served in sorted({*_SERVED, self.request.served}):
            size = None if goal is None else self.law.cheapest_size(goal, served)
            if size is not None:
                flops = size.compute + SERVING_FLOP * size.parameters * served
                beyond = self.law.describe_extrapolation(size)
                rows.append([served, *_model_size_columns(size), size.compute, flops, beyond])
        return make_frame(rows, "served parameters tokens tokens_per_parameter training_flop all_flop beyond", "served")

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """Table of how many fresh tokens N epochs of the unique tokens are worth, by N.

        Over 1T unique tokens by default. Columns epochs, tokens, worth, of_fresh.
        """
        data = self.repeated or RepeatedDataLaw(self.law, 1e12)
        rows = [[many, many * data.unique, data.fresh_equivalent_tokens(many * data.unique)] for many in _EPOCHS]
        table = make_frame(rows, "epochs tokens worth", "epochs")
        return table.assign(of_fresh=table["worth"] / table["tokens"])

    @cached_property
    def batches(self) -> pd.DataFrame:
        """Table of the steps and tokens needed to reach the loss, by batch size.

        A row per simulated variant, with step time, days and dollars, or per fraction of the critical batch.
        """
        critical, price, rows = self.critical_batch, self.request.price, list[list[Any]]()
        if critical is not None and not self.variants:
            for part in _OF_CRITICAL:
                batch = part * critical.tokens
                both = critical.steps_at(batch), critical.tokens_at(batch)
                name, gpus = f"{part:g} x critical", self.request.rate.gpus
                rows.append([name, gpus, batch, part, math.nan, *both, math.nan, math.nan, ""])
        for each in self.variants if critical is not None else ():
            if each.error:
                rows.append([each.name, 0, *[math.nan] * 7, each.error])
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
        """Return the answer as a JSON document, with null for infinity (CONTRACT.md, "From a budget to a loss")."""
        asked, rate = self.request, self.request.rate
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
            **{name: rows_to_dicts(table) for name, table in tables.items()},
            "notes": list(self.notes),
        }
        return dict(to_json_value(answer))

    def _model_document(self, size: ModelSize) -> dict[str, Any]:
        rate, price = self.request.rate, self.request.price
        hours = rate.gpu_hours(size.compute)
        return {
            "parameters": size.parameters, "tokens": size.tokens, "tokens_per_parameter": size.tokens_per_parameter,
            "loss": size.loss, "floor": self.law.lowest_loss(size.parameters), "compute_flop": size.compute,
            "gpu_hours": hours, "days": rate.days(size.compute) if rate.gpus else None,
            "dollars": None if price is None else hours * price, "beyond": self._describe_extrapolation(size),
        }  # fmt: skip


def _model_size_columns(size: ModelSize) -> tuple[float, float, float]:
    return size.parameters, size.tokens, size.tokens_per_parameter


@check_arguments
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
) -> ScalingResult:
    """Return a loss law's answer to a question about a compute budget, a model, or a target loss.

    A budget is ``compute`` (FLOP), or ``gpus``, ``days`` and ``mfu`` of a ``device``; a model is a scenario, whose step
    is simulated, or ``parameters``, with its ``tokens``; ``loss`` is the loss to reach, ``serve`` the number of tokens
    that it serves afterwards, ``unique`` the number of unique training tokens. ``vary`` simulates variants of the
    scenario, whose ``batch`` grows with the nodes or stays the "same". Counts may be texts: "70B". InputError for an
    incomplete or invalid question.
    """
    job = None if scenario is None else to_scenario(scenario, "compute_optimal")
    run = None if job is None else job.run
    found = loss_law(law or (run and run.law) or DEFAULT_LAW)
    given = {
        "compute": compute, "gpus": gpus, "days": days, "mfu": mfu, "parameters": parameters, "tokens": tokens,
        "loss": loss, "serve": serve, "unique": unique, "price": price, "critical_batch": critical_batch,
    }  # fmt: skip
    if batch not in ("grows", "same"):
        raise InputError(f"batch {batch!r} must be 'grows' (with the nodes) or 'same'")
    if job is None:
        if vary:
            raise InputError("vary changes keys of a scenario, but no scenario is given; give one")
        return ScalingResult(request_from_counts(found, given, device))
    asked, step = request_from_scenario(found, given, job)
    variants = simulate_variants(job, step, mark_trusted_text(vary or {}), grow_batch=batch == "grows")
    return ScalingResult(asked, variants)
