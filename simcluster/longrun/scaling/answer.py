"""An answer in numbers and tables: the best model, the user's own, what a loss takes, what is extrapolated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.units import DAY
from simcluster.longrun.budget.critical_batch import CriticalBatch, RepeatedData
from simcluster.longrun.budget.loss_laws import (
    FLOP_PER_TOKEN,
    SERVING_FLOP,
    LossLaw,
    ModelSize,
    any_law,
    law_names,
)
from simcluster.longrun.scaling.asked import Asked, Played

if TYPE_CHECKING:
    import pandas as pd

BUDGETS = (0.1, 0.3, 1.0, 3.0, 10.0)
SERVED = (0.0, 1e12, 1e13, 1e14)
EPOCHS = (1, 2, 4, 8, 16, 40)
OF_CRITICAL = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_SIZES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
TWENTY = "20 tokens a parameter"
_POINTS = 61  # of a curve


@dataclass(frozen=True)
class LossAnswer:
    """What a law of loss says of a budget, a model or a loss: numbers ("never" is an infinite one), and DataFrames.

    ``critical`` are the tokens of the critical batch, if a loss is known, and ``critical_words`` their source.

    ``compute`` is the FLOP of the budget, or of the user's own model and its tokens; ``best`` the model of the lowest
    loss for it; ``own`` the user's model on the given tokens, or on those that the budget leaves it; ``to_loss`` the
    same on the tokens that it takes to the loss; ``cheapest`` the model that reaches the loss for the least training;
    ``repeated`` the law on the unique tokens; ``critical_batch`` that of the user's model on its way to the loss.
    """

    asked: Asked
    critical: float | None
    critical_words: str
    played: tuple[Played, ...] = ()
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
        data, own, to_loss = repeated or law, None, None
        if size is not None and (tokens is not None or compute is not None):
            tokens = tokens or (compute or 0.0) / (FLOP_PER_TOKEN * size)
            own = ModelSize(size, tokens, data.loss(size, tokens))
        if size is not None and goal is not None:
            to_loss = ModelSize(size, data.tokens_to(goal, size), goal)
        reached = to_loss is not None and self.critical is not None and to_loss.tokens < math.inf
        vars(self).update(
            law=law, compute=compute, best=None if compute is None else law.optimum(compute), own=own, to_loss=to_loss,
            cheapest=None if goal is None else law.cheapest(goal), repeated=repeated,
            critical_batch=CriticalBatch(self.critical, to_loss.tokens) if reached and to_loss and self.critical
            else None,
        )  # fmt: skip

    def loss_of(self, parameters: float, tokens: float) -> float:
        """Return the loss of a model, with its data repeated where they do not last."""
        return (self.repeated or self.law).loss(parameters, tokens)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is assumed, and what lies beyond the range that the law was fitted on."""
        fresh = "best and cheapest models are those of fresh data; one's own is on the tokens that there are"
        return (*self.asked.notes, *([fresh] if self.repeated is not None else []), *self._extrapolated())

    def _extrapolated(self) -> Iterator[str]:
        law, served, goal = self.law, self.asked.served, self.asked.loss
        models = {
            "the best model": self.best,
            self.asked.model: self.own,
            "the way to the loss": self.to_loss,
            "the cheapest model": self.cheapest,
            "the model to serve": law.cheapest(goal, served) if served and goal is not None else None,
        }
        seen = [
            f"{name} {beyond}"
            for name, size in models.items()
            if size is not None and math.isfinite(size.tokens) and (beyond := law.beyond(size))
        ]
        if seen:
            yield f"extrapolated: {law.name} was fitted on {law.range_words()}: {'; '.join(seen)}"
        if law.parameters is None and law.tokens is None:
            yield f"the law {law.name} names no runs (parameters: [LEAST, MOST], tokens: ...): it may be extrapolated"
        if law.rounded:
            yield (
                f"rounded: {law.name} has exponents of two digits; they move the best model of a large budget by a "
                "factor"
            )
        yield f"source: {law.source}" if law.source else "source: one's own constants"

    # --- tables -------------------------------------------------------------------------------------------------------

    @property
    def middle(self) -> float:
        """The budget about which pictures are drawn: the user's own, or what the loss takes."""
        if self.compute is not None:
            return self.compute
        if self.to_loss is not None and math.isfinite(self.to_loss.tokens):
            return self.to_loss.compute
        return 1e23 if self.cheapest is None else self.cheapest.compute

    @cached_property
    def laws(self) -> pd.DataFrame:
        """Each law's best model for the budget: parameters, tokens, tokens_per_parameter, loss, own_loss, beyond."""
        compute, own, rows = self.compute, self.own, []
        if compute is not None:
            for name, law in ({name: any_law(name) for name in law_names()} | {self.law.name: self.law}).items():
                best, reached = law.optimum(compute), math.nan
                if own is not None and isinstance(law, LossLaw):
                    reached = RepeatedData(law, self.asked.unique or math.inf).loss(own.parameters, own.tokens)
                loss = math.nan if best.loss is None else best.loss
                sizes = best.parameters, best.tokens, best.tokens_per_parameter
                rows.append([name, *sizes, loss, reached, law.beyond(best)])
            size = math.sqrt(compute / FLOP_PER_TOKEN / 20)
            thumb = self.law.beyond(ModelSize(size, 20 * size))
            rows.append([TWENTY, size, 20 * size, 20.0, self.law.loss(size, 20 * size), math.nan, thumb])
        return _table(rows, "law parameters tokens tokens_per_parameter loss own_loss beyond").set_index("law")

    @cached_property
    def isoflop(self) -> pd.DataFrame:
        """Loss over parameters at five budgets about the user's own, from a thirtieth of the best model to thirty
        times it: compute, parameters, tokens, loss, beyond."""
        rows = []
        for factor in BUDGETS:
            compute = factor * self.middle
            for size in (self.law.optimum(compute).parameters * np.geomspace(1 / 30, 30, _POINTS)).tolist():
                tokens = compute / (FLOP_PER_TOKEN * size)
                beyond = self.law.beyond(ModelSize(size, tokens))
                rows.append([compute, size, tokens, self.loss_of(size, tokens), beyond])
        return _table(rows, "compute parameters tokens loss beyond")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """What losses cost: round sizes about the best one, and the user's own, each trained on more and more tokens:
        parameters, tokens, loss, compute, gpu_hours, days, dollars, beyond."""
        rate, price, own = self.asked.rate, self.asked.price, self.asked.parameters
        best = self.law.optimum(self.middle)
        sizes = {float(f"{best.parameters * factor:.1g}") for factor in _SIZES}
        if own:
            sizes = {size for size in sizes if not 0.8 < size / own < 1.25} | {own}
        rows = []
        for size in sorted(sizes):
            for tokens in (best.tokens * np.geomspace(1 / 30, 300, _POINTS)).tolist():
                flops = FLOP_PER_TOKEN * size * tokens
                hours = rate.gpu_hours(flops)
                dollars = math.nan if price is None else hours * price
                beyond = self.law.beyond(ModelSize(size, tokens))
                rows.append([size, tokens, self.loss_of(size, tokens), flops, hours, rate.days(flops), dollars, beyond])
        return _table(rows, "parameters tokens loss compute gpu_hours days dollars beyond")

    @cached_property
    def serving(self) -> pd.DataFrame:
        """The cheapest model for the loss by the tokens it serves: parameters, tokens, training and all FLOP; empty if
        no model reaches it."""
        goal, rows = self.asked.loss, []
        for served in sorted({*SERVED, self.asked.served}):
            size = None if goal is None else self.law.cheapest(goal, served)
            if size is not None:
                flops = size.compute + SERVING_FLOP * size.parameters * served
                sizes = size.parameters, size.tokens, size.tokens_per_parameter
                rows.append([served, *sizes, size.compute, flops, self.law.beyond(size)])
        columns = "served parameters tokens tokens_per_parameter training_flop all_flop beyond"
        return _table(rows, columns).set_index("served")

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """What passes over the unique tokens (default: 1T) are worth, in fresh tokens: epochs, tokens, worth,
        of_fresh."""
        data = self.repeated or RepeatedData(self.law, 1e12)
        rows = [[many, many * data.unique, data.tokens(many * data.unique)] for many in (*EPOCHS, math.inf)]
        frame = _table(rows, "epochs tokens worth").set_index("epochs")
        return frame.assign(of_fresh=frame["worth"] / frame["tokens"])

    @cached_property
    def batches(self) -> pd.DataFrame:
        """Steps and tokens to the loss by batch: a row per simulated variant, with step time, days and dollars, or
        parts of the critical batch."""
        columns = "variant gpus batch of_critical step_time_s steps tokens days dollars refused"
        critical, price, rows = self.critical_batch, self.asked.price, list[list[Any]]()
        if critical is None:
            return _table([], columns).set_index("variant")
        for part in () if self.played else OF_CRITICAL:
            batch = part * critical.tokens
            both = critical.steps_at(batch), critical.tokens_at(batch)
            name = f"{part:g} x critical"
            rows.append([name, self.asked.rate.gpus, batch, part, math.nan, *both, math.nan, math.nan, ""])
        for each in self.played:
            if each.refused:
                rows.append([each.name, 0, *[math.nan] * 7, each.refused])
                continue
            steps, tokens = critical.steps_at(each.batch), critical.tokens_at(each.batch)
            seconds = steps * each.step_time
            dollars = math.nan if price is None else seconds / 3600 * each.gpus * price
            rows.append([each.name, each.gpus, each.batch, each.batch / critical.tokens, each.step_time, steps, tokens,
                         seconds / DAY, dollars, ""])  # fmt: skip
        return _table(rows, columns).set_index("variant")


def _table(rows: Sequence[Sequence[Any]], columns: str) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=columns.split())
