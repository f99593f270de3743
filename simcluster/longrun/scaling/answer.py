"""An answer in numbers and tables: the best model, the user's own, what a loss takes, what is extrapolated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.units import DAY
from simcluster.longrun.budget.critical_batch import CriticalBatch
from simcluster.longrun.budget.loss_laws import (
    FLOP_PER_TOKEN,
    SERVING_FLOP,
    LossLaw,
    ModelSize,
    any_law,
    law_names,
)
from simcluster.longrun.budget.repetition import RepeatedData
from simcluster.longrun.scaling.asked import (
    Asked,
    Played,
)

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
    """

    asked: Asked
    critical: float | None
    critical_words: str
    played: tuple[Played, ...] = ()

    # --- models -------------------------------------------------------------------------------------------------------

    @property
    def law(self) -> LossLaw:
        """The law that answers."""
        return self.asked.law

    @property
    def compute(self) -> float | None:
        """FLOP of the budget, or of the user's own model and its tokens."""
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
        """The user's own model on the given tokens, or those that the budget leaves it."""
        size, compute = self.asked.parameters, self.compute
        if size is None or (self.asked.tokens is None and compute is None):
            return None
        tokens = self.asked.tokens or (compute or 0.0) / (FLOP_PER_TOKEN * size)
        return ModelSize(size, tokens, self.loss_of(size, tokens))

    @property
    def to_loss(self) -> ModelSize | None:
        """The user's own model on the tokens that it takes to the loss: infinite if it never gets there."""
        goal, size = self.asked.loss, self.asked.parameters
        return None if goal is None or size is None else ModelSize(size, self._data.tokens_to(goal, size), goal)

    @property
    def cheapest(self) -> ModelSize | None:
        """The model that reaches the loss for the least training; None if none does, or no loss is asked."""
        return None if self.asked.loss is None else self.law.cheapest(self.asked.loss)

    @property
    def repeated(self) -> RepeatedData | None:
        """The law on the unique tokens, if they are given."""
        return None if self.asked.unique is None else RepeatedData(self.law, self.asked.unique)

    @property
    def _data(self) -> LossLaw | RepeatedData:
        return self.law if self.repeated is None else self.repeated

    def loss_of(self, parameters: float, tokens: float) -> float:
        """Return the loss of a model, with its data repeated where they do not last."""
        return self._data.loss(parameters, tokens)

    @property
    def critical_batch(self) -> CriticalBatch | None:
        """The critical batch of the user's own model on its way to the loss."""
        goal = self.to_loss
        if goal is None or self.critical is None or goal.tokens == math.inf:
            return None
        return CriticalBatch(self.critical, goal.tokens)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is assumed, and what lies beyond the range that the law was fitted on."""
        fresh = "best and cheapest models are those of fresh data; one's own is on the tokens that there are"
        return (*self.asked.notes, *([fresh] if self.repeated is not None else []), *self._extrapolated())

    def _extrapolated(self) -> Iterator[str]:
        """Yield what of the answer lies outside the runs that the law was fitted on, one line for each model."""
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
        import pandas as pd

        compute, own, rows = self.compute, self.own, {}
        if compute is not None:
            known = {name: any_law(name) for name in law_names()} | {self.law.name: self.law}
            for name, law in known.items():
                best, reached = law.optimum(compute), math.nan
                if own is not None and isinstance(law, LossLaw):
                    data = RepeatedData(law, self.asked.unique or math.inf)
                    reached = data.loss(own.parameters, own.tokens)
                loss = math.nan if best.loss is None else best.loss
                rows[name] = [best.parameters, best.tokens, best.tokens_per_parameter, loss, reached, law.beyond(best)]
            size = math.sqrt(compute / FLOP_PER_TOKEN / 20)
            thumb = self.law.beyond(ModelSize(size, 20 * size))
            rows[TWENTY] = [size, 20 * size, 20.0, self.law.loss(size, 20 * size), math.nan, thumb]
        columns = ["parameters", "tokens", "tokens_per_parameter", "loss", "own_loss", "beyond"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("law")

    @cached_property
    def isoflop(self) -> pd.DataFrame:
        """Loss over parameters at five budgets about the user's own, from a thirtieth of the best model to thirty
        times it: compute, parameters, tokens, loss, beyond."""
        import pandas as pd

        rows = []
        for factor in BUDGETS:
            compute = factor * self.middle
            for size in (self.law.optimum(compute).parameters * np.geomspace(1 / 30, 30, _POINTS)).tolist():
                tokens = compute / (FLOP_PER_TOKEN * size)
                beyond = self.law.beyond(ModelSize(size, tokens))
                rows.append([compute, size, tokens, self.loss_of(size, tokens), beyond])
        return pd.DataFrame(rows, columns=["compute", "parameters", "tokens", "loss", "beyond"])

    @cached_property
    def costs(self) -> pd.DataFrame:
        """What losses cost: round sizes about the best one, and the user's own, each trained on more and more tokens:
        parameters, tokens, loss, compute, gpu_hours, days, dollars, beyond."""
        import pandas as pd

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
        columns = ["parameters", "tokens", "loss", "compute", "gpu_hours", "days", "dollars", "beyond"]
        return pd.DataFrame(rows, columns=columns)

    @cached_property
    def serving(self) -> pd.DataFrame:
        """The cheapest model for the loss by the tokens it serves: parameters, tokens, training and all FLOP; empty if
        no model reaches it."""
        import pandas as pd

        goal, rows = self.asked.loss, []
        for served in sorted({*SERVED, self.asked.served}):
            size = None if goal is None else self.law.cheapest(goal, served)
            if size is not None:
                flops = size.compute + SERVING_FLOP * size.parameters * served
                rows.append([served, size.parameters, size.tokens, size.tokens_per_parameter, size.compute, flops,
                             self.law.beyond(size)])  # fmt: skip
        columns = ["served", "parameters", "tokens", "tokens_per_parameter", "training_flop", "all_flop", "beyond"]
        return pd.DataFrame(rows, columns=columns).set_index("served")

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """What passes over the unique tokens (default: 1T) are worth, in fresh tokens: epochs, tokens, worth,
        of_fresh."""
        import pandas as pd

        data = self.repeated or RepeatedData(self.law, 1e12)
        rows = [[many, many * data.unique, data.tokens(many * data.unique)] for many in (*EPOCHS, math.inf)]
        frame = pd.DataFrame(rows, columns=["epochs", "tokens", "worth"])
        frame["of_fresh"] = frame["worth"] / frame["tokens"]
        return frame.set_index("epochs")

    @cached_property
    def batches(self) -> pd.DataFrame:
        """Steps and tokens to the loss by batch: a row per simulated variant, with step time, days and dollars, or
        parts of the critical batch."""
        import pandas as pd

        rows = {} if self.critical_batch is None else dict(self._batch_rows(self.critical_batch))
        columns = ["gpus", "batch", "of_critical", "step_time_s", "steps", "tokens", "days", "dollars", "refused"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("variant")

    def _batch_rows(self, critical: CriticalBatch) -> Iterator[tuple[str, list[Any]]]:
        gpus, price = self.asked.rate.gpus, self.asked.price
        for part in () if self.played else OF_CRITICAL:
            batch = part * critical.tokens
            both = critical.steps_at(batch), critical.tokens_at(batch)
            yield f"{part:g} x critical", [gpus, batch, part, math.nan, *both, math.nan, math.nan, ""]
        for each in self.played:
            if each.refused:
                yield each.name, [0, *[math.nan] * 7, each.refused]
                continue
            steps, tokens = critical.steps_at(each.batch), critical.tokens_at(each.batch)
            seconds, of_critical = steps * each.step_time, each.batch / critical.tokens
            dollars = math.nan if price is None else seconds / 3600 * each.gpus * price
            row = [each.gpus, each.batch, of_critical, each.step_time, steps, tokens, seconds / DAY, dollars, ""]
            yield each.name, row
