"""From a budget to a loss and back: the best model, the user's own, what a loss takes, and on how many GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simcluster.base.counts import format_count, format_dollars
from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.base.units import DAY, format_seconds
from simcluster.documents.argument_types import checked
from simcluster.documents.own_words import own_words
from simcluster.longrun.budget.loss_laws import (
    DEFAULT_LAW,
    SERVING_FLOP,
    LossLaw,
    ModelSize,
    TokenLaw,
    loss_law,
)
from simcluster.longrun.scaling.answer import TWENTY, LossAnswer
from simcluster.longrun.scaling.asked import (
    asked_of_counts,
    asked_of_scenario,
    critical_of,
    play_batches,
)
from simcluster.longrun.text import in_columns, plain
from simcluster.scenario.given import ScenarioLike, scenario_of


@dataclass(frozen=True, repr=False)
class Scaling(LossAnswer, Shown):
    """What a law of loss says of a budget, a model or a loss: numbers, tables as DataFrames, text and JSON."""

    def __repr__(self) -> str:
        asked, best = self.asked, self.best
        parts = [asked.law.name, *([asked.model] if asked.model else [])]
        if self.compute is not None and best is not None:
            parts.append(
                f"{_flop(self.compute)}: {format_count(best.parameters)} on {format_count(best.tokens)} tokens"
            )
        if asked.loss is not None:
            tokens = None if self.to_loss is None else self.to_loss.tokens
            takes = "" if tokens is None else ": never" if math.isinf(tokens) else f": {format_count(tokens)} tokens"
            parts.append(f"loss {asked.loss:.4g}{takes}")
        return f"Scaling({', '.join(parts)})"

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Return the law, the budget and what it buys, the loss and what it takes; then tables, then notes."""
        head = [f"{self.law.formula()}   (law {self.law.name})", *_budget(self), *_goal(self)]
        blocks = [head, _laws(self), _serving(self), _batches(self), _epochs(self), list(self.notes)]
        return "\n\n".join("\n".join(lines) for lines in blocks if lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document: CONTRACT.md, "From a budget to a loss"; "never" is null."""
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
            "critical_batch_tokens": self.critical,
            **{name: _model(self, size) for name, size in models.items()},
            **{name: table.reset_index().to_dict(orient="records") for name, table in tables.items()},
            "notes": list(self.notes),
        }
        return dict(plain(answer))


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
    """Answer a question about a budget, a model or a loss by a law of loss.

    A budget is ``compute`` (FLOP), or ``gpus``, ``days`` and ``mfu`` of a ``device``; a model is a scenario, whose step
    is simulated, or ``parameters``, with its ``tokens``; ``loss`` is the loss to reach, ``serve`` the number of tokens
    that it serves afterwards, ``unique`` the number of tokens to train on.  ``vary`` simulates variants of the
    scenario, whose ``batch`` grows with the machines or stays the "same".  Counts may be texts: "70B".  InputError for
    an incomplete or invalid question.
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


# --- the answer -------------------------------------------------------------------------------------------------------


def _size(size: ModelSize) -> str:
    ratio = f"{size.tokens_per_parameter:,.3g} a parameter"
    return f"{format_count(size.parameters)} parameters on {format_count(size.tokens)} tokens ({ratio})"


def _takes(found: LossAnswer, compute: float) -> str:
    rate, price = found.asked.rate, found.asked.price
    where = f"on {rate.gpus:,} {rate.device}" if rate.gpus else f"of one {rate.device}"
    money = "" if price is None else f", {format_dollars(rate.gpu_hours(compute) * price)}"
    return f"{_flop(compute)}, {_time(rate.days(compute))} {where}{money}"


def _flop(compute: float) -> str:
    return f"{compute:.4g} FLOP".replace("e+", "e")


def _time(days: float) -> str:
    return f"{days:,.4g} days" if days >= 0.1 else format_seconds(days * DAY)


def _budget(found: LossAnswer) -> Iterator[str]:
    best, own = found.best, found.own
    if best is None or best.loss is None:
        return
    yield f"  budget       {_takes(found, best.compute)}; {found.asked.rate.words}"
    yield f"  best         {_size(best)}: loss {best.loss:.4f}"
    if own is None or own.loss is None:
        return
    name = f"   ({found.asked.model})" if found.played else ""
    yield f"  yours        {_size(own)}: loss {own.loss:.4f}{name}"
    same = found.law.cheapest(own.loss)
    if same is not None and same.compute < 0.995 * own.compute:
        part = f"{same.compute / own.compute:.0%} of the FLOP"
        yield f"               the same loss takes {part} with {_size(same)}"


def _goal(found: LossAnswer) -> Iterator[str]:
    loss, own, cheapest = found.asked.loss, found.to_loss, found.cheapest
    if loss is None:
        return
    name = f"loss {loss:.4g}"
    if cheapest is None:
        yield f"  {name:<12} never: no model gets below {found.law.E:.4g}"
        return
    if own is not None:
        yield f"  {name:<12} {_own_way(found, own)}"
        name = ""
    if found.best is None:
        yield f"  {'rate':<12} {found.asked.rate.words}"
    yield f"  {name or 'cheapest':<12} {_size(cheapest)}: {_takes(found, cheapest.compute)}"
    if found.asked.served:
        yield f"  {'to serve':<12} {_to_serve(found, loss, cheapest)}"
    if found.critical is not None:
        yield f"  {'batch':<12} critical: {format_count(found.critical)} tokens, {found.critical_words}"


def _own_way(found: LossAnswer, own: ModelSize) -> str:
    data = found.repeated
    if math.isfinite(own.tokens):
        epochs = "" if data is None else f" ({own.tokens / data.unique:.3g} epochs)"
        small = "; at small batches, by batch below" if found.played else ""
        return f"{found.asked.model}: {format_count(own.tokens)} tokens{epochs}, {_takes(found, own.compute)}{small}"
    floor = found.law.floor(own.parameters)
    if data is not None and found.law.tokens_to(own.loss or 0.0, own.parameters) < math.inf:
        least = data.loss(own.parameters, math.inf)
        return f"{found.asked.model}: never on {format_count(data.unique)} unique tokens: {least:.4f} at best"
    return f"{found.asked.model}: never: its floor is {floor:.4f}, however many tokens it sees"


def _to_serve(found: LossAnswer, loss: float, cheapest: ModelSize) -> str:
    served = found.asked.served
    size = found.law.cheapest(loss, served)
    assert size is not None
    both = size.compute + SERVING_FLOP * size.parameters * served
    instead = cheapest.compute + SERVING_FLOP * cheapest.parameters * served
    return (
        f"{_size(size)}: {_flop(both)} with {format_count(served)} tokens served, "
        f"{1 - both / instead:.0%} less than with the cheapest to train"
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def _laws(found: LossAnswer) -> list[str]:
    table = found.laws
    if not len(table):
        return []
    own = found.own is not None
    rows = []
    for name, row in table.iterrows():
        mark = " *" if name == found.law.name else ""
        losses = [row["loss"], *([row["own_loss"]] if own else [])]
        cells = ["-" if math.isnan(loss) else f"{loss:.4f}" for loss in losses]
        size = [format_count(row["parameters"]), format_count(row["tokens"]), f"{row['tokens_per_parameter']:.3g}"]
        rows.append([f"{name}{mark}", *size, *cells, row["beyond"]])
    header = ["best by", "parameters", "tokens", "a parameter", "loss", *(["yours"] if own else []), "beyond its range"]
    return [*in_columns(header, rows), f"  *: the law that answers; {TWENTY}: its loss is by that law"]


def _serving(found: LossAnswer) -> list[str]:
    table = found.serving
    if not found.asked.served or not len(table):
        return []
    rows = [
        [format_count(float(served)) if served else "0", format_count(row["parameters"]), format_count(row["tokens"]),
         f"{row['tokens_per_parameter']:,.3g}", f"{row['training_flop']:.3g}", f"{row['all_flop']:.3g}", row["beyond"]]
        for served, row in zip(table.index.tolist(), table.to_dict("records"), strict=True)
    ]  # fmt: skip
    return in_columns(["served", "parameters", "tokens", "a parameter", "to train", "in all", "beyond its range"], rows)


def _batches(found: LossAnswer) -> list[str]:
    table, critical = found.batches, found.critical_batch
    if critical is None:
        return []
    if not found.played:
        parts = [
            [format_count(row["batch"]), f"{row['of_critical']:g}", f"{row['steps']:,.0f}", format_count(row["tokens"]),
             f"{row['steps'] / critical.least_steps:.4g} x", f"{row['tokens'] / critical.least_tokens:.4g} x"]
            for row in table.to_dict("records")
        ]  # fmt: skip
        return in_columns(["batch", "of critical", "steps", "tokens", "least steps", "least tokens"], parts)
    priced, rows, refused = found.asked.price is not None, [], []
    for name, row in zip(table.index.tolist(), table.to_dict("records"), strict=True):
        if row["refused"]:
            refused.append(f"  {name}: {row['refused']}")
            continue
        rows.append([str(name), f"{row['gpus']:,}", format_count(row["batch"]), f"{row['of_critical']:.3g}",
                     format_seconds(row["step_time_s"]), f"{row['steps']:,.0f}", format_count(row["tokens"]),
                     _time(row["days"]), *([format_dollars(row["dollars"])] if priced else [])])  # fmt: skip
    header = ["to the loss", "GPUs", "batch", "of critical", "step", "steps", "tokens", "time"]
    told = "steps are S_min (1 + B_crit / B); failures come on top (train, with run: {loss: ...})"
    return [*in_columns([*header, *(["dollars"] if priced else [])], rows), *refused, f"  {told}"]


def _epochs(found: LossAnswer) -> list[str]:
    data = found.repeated
    if data is None:
        return []
    table = found.epochs
    rows = [
        ["endless" if math.isinf(many) else f"{many:g}", format_count(row["worth"]),
         f"{row['worth'] / data.unique:.4g}", "-" if math.isinf(many) else f"{row['of_fresh']:.0%}"]
        for many, row in zip(table.index.tolist(), table.to_dict("records"), strict=True)
    ]  # fmt: skip
    borrowed = [f"  {data.law.name} says nothing of repetition: constants of muennighoff"] if data.borrowed else []
    return [*in_columns(["epochs", "worth", "x unique", "of fresh"], rows), *borrowed]


# --- JSON -------------------------------------------------------------------------------------------------------------


def _model(found: LossAnswer, size: ModelSize | None) -> dict[str, Any] | None:
    if size is None:
        return None
    rate, price = found.asked.rate, found.asked.price
    hours = rate.gpu_hours(size.compute)
    return {
        "parameters": size.parameters, "tokens": size.tokens, "tokens_per_parameter": size.tokens_per_parameter,
        "loss": size.loss, "floor": found.law.floor(size.parameters), "compute_flop": size.compute, "gpu_hours": hours,
        "days": rate.days(size.compute) if rate.gpus else None, "dollars": None if price is None else hours * price,
        "beyond": found.law.beyond(size) if math.isfinite(size.tokens) else "",
    }  # fmt: skip
