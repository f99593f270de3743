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
from simcluster.longrun.text import plain, rows_of, table_block
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.show.blocks import Answer, Fact, Figures, Lines, TableBlock


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
            **{name: rows_of(table) for name, table in tables.items()},
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


def scaling_answer(found: Scaling) -> Answer:
    """Return the blocks: the law, the budget and what it buys, the loss and what it takes; then tables, then notes."""
    return [
        Lines([f"{found.law.formula()}   (law {found.law.name})"], "head"),
        Figures([*_budget(found), *_goal(found)]),
        *_laws(found),
        *_serving(found),
        *_batches(found),
        *_epochs(found),
        Lines(found.notes),
    ]


def _size(size: ModelSize) -> tuple[str, str]:
    ratio = f"{size.tokens_per_parameter:,.3g} a parameter"
    return f"{format_count(size.parameters)} parameters", f" on {format_count(size.tokens)} tokens ({ratio})"


def _takes(found: LossAnswer, compute: float) -> tuple[str, str]:
    rate, price, days = found.asked.rate, found.asked.price, found.asked.rate.days(compute)
    where = f"on {rate.gpus:,} {rate.device}" if rate.gpus else f"of one {rate.device}"
    money = "" if price is None else f", {format_dollars(rate.gpu_hours(compute) * price)}"
    return _flop(compute), f", {_time(days)} {where}{money}"


def _flop(compute: float) -> str:
    return f"{compute:.4g} FLOP".replace("e+", "e")


def _time(days: float) -> str:
    return f"{days:,.4g} days" if days >= 0.1 else format_seconds(days * DAY)


def _budget(found: LossAnswer) -> Iterator[Fact]:
    best, own = found.best, found.own
    if best is None or best.loss is None:
        return
    flop, takes = _takes(found, best.compute)
    yield Fact("budget", flop, f"{takes}; {found.asked.rate.words}")
    size, on = _size(best)
    yield Fact("best", size, f"{on}: loss {best.loss:.4f}")
    if own is None or own.loss is None:
        return
    size, on = _size(own)
    yield Fact("yours", size, f"{on}: loss {own.loss:.4f}", found.asked.model if found.played else "")
    same = found.law.cheapest(own.loss)
    if same is not None and same.compute < 0.995 * own.compute:
        yield Fact("", f"the same loss takes {same.compute / own.compute:.0%} of the FLOP with {''.join(_size(same))}")


def _goal(found: LossAnswer) -> Iterator[Fact]:
    loss, own, cheapest = found.asked.loss, found.to_loss, found.cheapest
    if loss is None:
        return
    name = f"loss {loss:.4g}"
    if cheapest is None:
        yield Fact(name, f"never: no model gets below {found.law.E:.4g}")
        return
    if own is not None:
        yield Fact(name, _own_way(found, own))
        name = "cheapest"
    if found.best is None:
        yield Fact("rate", found.asked.rate.words)
    size, on = _size(cheapest)
    yield Fact(name, size, f"{on}: {''.join(_takes(found, cheapest.compute))}")
    served = found.asked.served
    if served and (size_to_serve := found.law.cheapest(loss, served)) is not None:
        both, instead = (each.compute + SERVING_FLOP * each.parameters * served for each in (size_to_serve, cheapest))
        less = f"{1 - both / instead:.0%} less than with the cheapest to train"
        size, on = _size(size_to_serve)
        yield Fact("to serve", size, f"{on}: {_flop(both)} with {format_count(served)} tokens served, {less}")
    if found.critical is not None:
        yield Fact("batch", f"critical: {format_count(found.critical)} tokens", f", {found.critical_words}")


def _own_way(found: LossAnswer, own: ModelSize) -> str:
    data, model = found.repeated, found.asked.model
    if math.isfinite(own.tokens):
        epochs = "" if data is None else f" ({own.tokens / data.unique:.3g} epochs)"
        small = "; at small batches, by batch below" if found.played else ""
        return f"{model}: {format_count(own.tokens)} tokens{epochs}, {''.join(_takes(found, own.compute))}{small}"
    if data is not None and found.law.tokens_to(own.loss or 0.0, own.parameters) < math.inf:
        least = data.loss(own.parameters, math.inf)
        return f"{model}: never on {format_count(data.unique)} unique tokens: {least:.4f} at best"
    return f"{model}: never: its floor is {found.law.floor(own.parameters):.4f}, however many tokens it sees"


# --- tables -----------------------------------------------------------------------------------------------------------

_MODEL = ("parameters", "{parameters:count}"), ("tokens", "{tokens:count}")


def _laws(found: LossAnswer) -> list[TableBlock]:
    """Return the best model by each law; a loss that a law does not know is empty."""
    rows = rows_of(found.laws.rename(lambda name: f"{name}{' *' * (name == found.law.name)}"))
    columns = [
        ("best by", "{law}"), *_MODEL, ("a parameter", "{tokens_per_parameter:.3g}"), ("loss", "{loss:.4f}"),
        *[("yours", "{own_loss:.4f}")] * (found.own is not None), ("beyond its range", "{beyond}"),
    ]  # fmt: skip
    return table_block(rows, columns, notes=[f"  *: the law that answers; {TWENTY}: its loss is by that law"])


def _serving(found: LossAnswer) -> list[TableBlock]:
    columns = [
        ("served", "{served:count}"), *_MODEL, ("a parameter", "{tokens_per_parameter:,.3g}"),
        ("to train", "{training_flop:.3g}"), ("in all", "{all_flop:.3g}"), ("beyond its range", "{beyond}"),
    ]  # fmt: skip
    return table_block(rows_of(found.serving) if found.asked.served else [], columns)


def _batches(found: LossAnswer) -> list[TableBlock]:
    table, critical = found.batches.reset_index(), found.critical_batch
    if critical is None:
        return []
    batch = ("batch", "{batch:count}")
    if not found.played:
        least = {name: table[name] / getattr(critical, f"least_{name}") for name in ("steps", "tokens")}
        rows = rows_of(table.assign(least_steps=least["steps"], least_tokens=least["tokens"]))
        return table_block(rows, [
            batch, ("of critical", "{of_critical:g}"), ("steps", "{steps:,.0f}"), ("tokens", "{tokens:count}"),
            ("least steps", "{least_steps:.4g} x"), ("least tokens", "{least_tokens:.4g} x"),
        ])  # fmt: skip
    simulated, refused = (rows_of(table[(table["refused"] == "") == good]) for good in (True, False))
    columns = [
        ("to the loss", "{variant}"), ("GPUs", "{gpus:,}"), batch, ("of critical", "{of_critical:.3g}"),
        ("step", "{step_time_s:seconds}"), ("steps", "{steps:,.0f}"), ("tokens", "{tokens:count}"), ("time", "{time}"),
        *[("dollars", "{dollars:short dollars}")] * (found.asked.price is not None),
    ]  # fmt: skip
    notes = [f"  {row['variant']}: {row['refused']}" for row in refused]
    notes += ["  steps are S_min (1 + B_crit / B); failures come on top (train, with run: {loss: ...})"]
    return table_block([{**row, "time": _time(row["days"])} for row in simulated], columns, notes=notes)


def _epochs(found: LossAnswer) -> list[TableBlock]:
    data = found.repeated
    if data is None:
        return []
    rows = rows_of(found.epochs.assign(unique=found.epochs["worth"] / data.unique))
    endless = [{**row, "epochs": "endless", "of_fresh": math.nan} for row in rows[-1:]]
    columns = [("epochs", "{epochs}"), ("worth", "{worth:count}"), ("x unique", "{unique:.4g}"),
               ("of fresh", "{of_fresh:.0%}")]  # fmt: skip
    rows = [{**row, "epochs": f"{row['epochs']:g}"} for row in rows[:-1]] + endless
    notes = [f"  {data.law.name} says nothing of repetition: constants of muennighoff"] if data.borrowed else []
    return table_block(rows, columns, notes=notes)


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
