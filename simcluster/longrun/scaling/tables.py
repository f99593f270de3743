"""The tables of an answer: laws side by side, isoFLOP curves, costs of losses, serving, epochs, batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from simcluster.longrun.scaling.answer import LossAnswer

if TYPE_CHECKING:
    import pandas as pd


BUDGETS = (0.1, 0.3, 1.0, 3.0, 10.0)
SERVED = (0.0, 1e12, 1e13, 1e14)
EPOCHS = (1, 2, 4, 8, 16, 40)
OF_CRITICAL = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
TWENTY = "20 tokens a parameter"
_SIZES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)


def middle(found: LossAnswer) -> float:
    """The budget about which pictures are drawn: one's own, or what the loss takes."""
    if found.compute is not None:
        return found.compute
    if found.to_loss is not None and math.isfinite(found.to_loss.tokens):
        return found.to_loss.compute
    if found.cheapest is not None:
        return found.cheapest.compute
    return 1e23


def laws(found: LossAnswer) -> pd.DataFrame:
    """Each law's best model for the budget; empty without one."""
    import pandas as pd

    compute, columns = found.compute, ["parameters", "tokens", "tokens_per_parameter", "loss", "own_loss", "beyond"]
    rows: dict[str, list[Any]] = {}
    if compute is not None:
        known = {name: any_law(name) for name in law_names()} | {found.law.name: found.law}
        own = found.own
        for name, law in known.items():
            best = law.optimum(compute)
            reached = math.nan
            if own is not None and isinstance(law, LossLaw):
                unique = found.asked.unique or math.inf
                reached = RepeatedData(law, unique).loss(own.parameters, own.tokens)
            loss = math.nan if best.loss is None else best.loss
            rows[name] = [best.parameters, best.tokens, best.tokens_per_parameter, loss, reached, law.beyond(best)]
        size = math.sqrt(compute / FLOP_PER_TOKEN / 20)
        thumb = ModelSize(size, 20 * size)
        loss = found.law.loss(size, 20 * size)
        rows[TWENTY] = [size, 20 * size, 20.0, loss, math.nan, found.law.beyond(thumb)]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("law")


def isoflop(found: LossAnswer, points: int = 61) -> pd.DataFrame:
    """Loss over parameters at each of ``BUDGETS`` times one's own, from a thirtieth of the best model to thirty."""
    import pandas as pd

    rows = []
    for factor in BUDGETS:
        compute = factor * middle(found)
        for size in found.law.optimum(compute).parameters * np.geomspace(1 / 30, 30, points):
            tokens = compute / (FLOP_PER_TOKEN * size)
            beyond = found.law.beyond(ModelSize(float(size), tokens))
            rows.append([compute, float(size), tokens, found.loss_of(float(size), tokens), beyond])
    return pd.DataFrame(rows, columns=["compute", "parameters", "tokens", "loss", "beyond"])


def costs(found: LossAnswer, points: int = 61) -> pd.DataFrame:
    """What losses cost: sizes about the best one, and one's own, each trained on more and more tokens."""
    import pandas as pd

    compute, rate, price = middle(found), found.asked.rate, found.asked.price
    rows = []
    for size in _sizes(found):
        for tokens in found.law.optimum(compute).tokens * np.geomspace(1 / 30, 300, points):
            flops = FLOP_PER_TOKEN * size * float(tokens)
            hours = rate.gpu_hours(flops)
            dollars = math.nan if price is None else hours * price
            loss = found.loss_of(size, float(tokens))
            beyond = found.law.beyond(ModelSize(size, float(tokens)))
            rows.append([size, float(tokens), loss, flops, hours, rate.days(flops), dollars, beyond])
    columns = ["parameters", "tokens", "loss", "compute", "gpu_hours", "days", "dollars", "beyond"]
    return pd.DataFrame(rows, columns=columns)


def _sizes(found: LossAnswer) -> list[float]:
    """Sizes to draw: round numbers about the best one, and one's own."""
    best = found.law.optimum(middle(found)).parameters
    own = found.asked.parameters
    sizes = {float(f"{best * factor:.1g}") for factor in _SIZES}
    return sorted({size for size in sizes if own is None or not 0.8 < size / own < 1.25} | ({own} if own else set()))


def serving(found: LossAnswer) -> pd.DataFrame:
    """The cheapest model for the loss, trained and served, by tokens served; empty where no model reaches it."""
    import pandas as pd

    goal, rows = found.asked.loss, []
    for served in sorted({*SERVED, found.asked.served}):
        size = None if goal is None else found.law.cheapest(goal, served)
        if size is not None:
            flops = size.compute + SERVING_FLOP * size.parameters * served
            rows.append([served, size.parameters, size.tokens, size.tokens_per_parameter, size.compute, flops,
                         found.law.beyond(size)])  # fmt: skip
    columns = ["served", "parameters", "tokens", "tokens_per_parameter", "training_flop", "all_flop", "beyond"]
    return pd.DataFrame(rows, columns=columns).set_index("served")


def epochs(found: LossAnswer) -> pd.DataFrame:
    """What so many passes over the unique tokens are worth; one T of them where it is not said how many there are."""
    import pandas as pd

    data = found.repeated or RepeatedData(found.law, 1e12)
    rows = [[many, many * data.unique, data.tokens(many * data.unique)] for many in (*EPOCHS, math.inf)]
    frame = pd.DataFrame(rows, columns=["epochs", "tokens", "worth"])
    frame["of_fresh"] = frame["worth"] / frame["tokens"]
    return frame.set_index("epochs")


def batches(found: LossAnswer) -> pd.DataFrame:
    """By batch: steps and tokens to the loss; of variants that were played also step time, days and dollars."""
    import pandas as pd

    critical = found.critical_batch
    columns = ["gpus", "batch", "of_critical", "step_time_s", "steps", "tokens", "days", "dollars", "refused"]
    rows = {} if critical is None else dict(_batch_rows(found, critical))
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("variant")


def _batch_rows(found: LossAnswer, critical: CriticalBatch) -> Iterator[tuple[str, list[Any]]]:
    price = found.asked.price
    if not found.played:
        for part in OF_CRITICAL:
            batch = part * critical.tokens
            both = critical.steps_at(batch), critical.tokens_at(batch)
            yield f"{part:g} x critical", [found.asked.rate.gpus, batch, part, math.nan, *both, math.nan, math.nan, ""]
    for each in found.played:
        if each.refused:
            yield each.name, [0, *[math.nan] * 7, each.refused]
            continue
        steps = critical.steps_at(each.batch)
        seconds = steps * each.step_time
        dollars = math.nan if price is None else seconds / 3600 * each.gpus * price
        yield each.name, [each.gpus, each.batch, each.batch / critical.tokens, each.step_time, steps,
                          critical.tokens_at(each.batch), seconds / DAY, dollars, ""]  # fmt: skip
