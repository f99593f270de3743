"""Printed answer of ``simcluster scaling``: budget and best model, cost of a loss, tables, and notes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from simcluster.base.counts import format_count, format_dollars
from simcluster.base.units import DAY, format_seconds
from simcluster.longrun.budget.loss_laws import SERVING_FLOP, ModelSize
from simcluster.longrun.scaling.scale import RULE_OF_THUMB, Scaling
from simcluster.longrun.text import format_flop, frame_rows, table_block
from simcluster.show.blocks import Answer, Fact, Figures, Lines, TableBlock


def scaling_answer(found: Scaling) -> Answer:
    """Return the printed answer: law, budget and best model, cost to reach a loss, tables, and notes."""
    return [
        Lines([f"{found.law.formula()}   (law {found.law.name})"], "head"),
        Figures([*_budget_facts(found), *_loss_goal_facts(found)]),
        *_laws_table(found),
        *_serving_table(found),
        *_batches_table(found),
        *_epochs_table(found),
        Lines(found.notes),
    ]


def _describe_model(size: ModelSize) -> tuple[str, str]:
    ratio = f"{size.tokens_per_parameter:,.3g} per parameter"
    return f"{format_count(size.parameters)} parameters", f" on {format_count(size.tokens)} tokens ({ratio})"


def _describe_cost(found: Scaling, compute: float) -> tuple[str, str]:
    rate, price, days = found.asked.rate, found.asked.price, found.asked.rate.days(compute)
    where = f"on {rate.gpus:,} {rate.device}" if rate.gpus else f"on one {rate.device}"
    money = "" if price is None else f", {format_dollars(rate.gpu_hours(compute) * price)}"
    return format_flop(compute), f", {_format_days(days)} {where}{money}"


def _format_days(days: float) -> str:
    return f"{days:,.4g} days" if days >= 0.1 else format_seconds(days * DAY)


def _budget_facts(found: Scaling) -> Iterator[Fact]:
    best, own = found.best, found.own
    if best is None or best.loss is None:
        return
    flop, takes = _describe_cost(found, best.compute)
    yield Fact("budget", flop, f"{takes}; {found.asked.rate.words}")
    size, on = _describe_model(best)
    yield Fact("best", size, f"{on}: loss {best.loss:.4f}")
    if own is None or own.loss is None:
        return
    size, on = _describe_model(own)
    yield Fact("yours", size, f"{on}: loss {own.loss:.4f}", found.asked.model if found.played else "")
    same = found.law.cheapest(own.loss)
    if same is not None and same.compute < 0.995 * own.compute:
        yield Fact(
            "",
            f"the same loss takes {same.compute / own.compute:.0%} of the FLOP with {''.join(_describe_model(same))}",
        )


def _loss_goal_facts(found: Scaling) -> Iterator[Fact]:
    loss, own, cheapest = found.asked.loss, found.to_loss, found.cheapest
    if loss is None:
        return
    name = f"loss {loss:.4g}"
    if cheapest is None:
        yield Fact(name, f"never: no model gets below {found.law.E:.4g}")
        return
    if own is not None:
        yield Fact(name, _describe_own_goal(found, own))
        name = "cheapest"
    if found.best is None:
        yield Fact("rate", found.asked.rate.words)
    size, on = _describe_model(cheapest)
    yield Fact(name, size, f"{on}: {''.join(_describe_cost(found, cheapest.compute))}")
    served = found.asked.served
    if served and (size_to_serve := found.law.cheapest(loss, served)) is not None:
        both, instead = (each.compute + SERVING_FLOP * each.parameters * served for each in (size_to_serve, cheapest))
        less = f"{1 - both / instead:.0%} less than with the model that is cheapest to train"
        size, on = _describe_model(size_to_serve)
        yield Fact("to serve", size, f"{on}: {format_flop(both)} with {format_count(served)} tokens served, {less}")
    if found.asked.critical is not None:
        yield Fact("batch", f"critical: {format_count(found.asked.critical)} tokens", f", {found.asked.critical_words}")


def _describe_own_goal(found: Scaling, own: ModelSize) -> str:
    data, model = found.repeated, found.asked.model
    if math.isfinite(own.tokens):
        epochs = "" if data is None else f" ({own.tokens / data.unique:.3g} epochs)"
        small = "; at small batches; by batch below" if found.played else ""
        return (
            f"{model}: {format_count(own.tokens)} tokens{epochs}, {''.join(_describe_cost(found, own.compute))}{small}"
        )
    if data is not None and found.law.tokens_to(own.loss or 0.0, own.parameters) < math.inf:
        least = data.loss(own.parameters, math.inf)
        return f"{model}: never on {format_count(data.unique)} unique tokens: {least:.4f} at best"
    return f"{model}: never: its floor is {found.law.floor(own.parameters):.4f}, for any number of tokens"


# --- tables -----------------------------------------------------------------------------------------------------------

_MODEL = ("parameters", "{parameters:count}"), ("tokens", "{tokens:count}")


def _laws_table(found: Scaling) -> list[TableBlock]:
    rows = frame_rows(found.laws.rename(lambda name: f"{name}{' *' * (name == found.law.name)}"))
    columns = [
        ("best by", "{law}"), *_MODEL, ("per parameter", "{tokens_per_parameter:.3g}"), ("loss", "{loss:.4f}"),
        *[("yours", "{own_loss:.4f}")] * (found.own is not None), ("outside its range", "{beyond}"),
    ]  # fmt: skip
    return table_block(rows, columns, notes=[f"  *: the law used; {RULE_OF_THUMB}: its loss is by that law"])


def _serving_table(found: Scaling) -> list[TableBlock]:
    columns = [
        ("served", "{served:count}"), *_MODEL, ("per parameter", "{tokens_per_parameter:,.3g}"),
        ("to train", "{training_flop:.3g}"), ("total", "{all_flop:.3g}"), ("outside its range", "{beyond}"),
    ]  # fmt: skip
    return table_block(frame_rows(found.serving) if found.asked.served else [], columns)


def _batches_table(found: Scaling) -> list[TableBlock]:
    table, critical = found.batches.reset_index(), found.critical_batch
    if critical is None:
        return []
    batch = ("batch", "{batch:count}")
    if not found.played:
        least = {name: table[name] / getattr(critical, f"least_{name}") for name in ("steps", "tokens")}
        rows = frame_rows(table.assign(least_steps=least["steps"], least_tokens=least["tokens"]))
        return table_block(rows, [
            batch, ("of critical", "{of_critical:g}"), ("steps", "{steps:,.0f}"), ("tokens", "{tokens:count}"),
            ("least steps", "{least_steps:.4g} x"), ("least tokens", "{least_tokens:.4g} x"),
        ])  # fmt: skip
    simulated, refused = (frame_rows(table[(table["refused"] == "") == good]) for good in (True, False))
    columns = [
        ("to the loss", "{variant}"), ("GPUs", "{gpus:,}"), batch, ("of critical", "{of_critical:.3g}"),
        ("step", "{step_time_s:seconds}"), ("steps", "{steps:,.0f}"), ("tokens", "{tokens:count}"), ("time", "{time}"),
        *[("dollars", "{dollars:short dollars}")] * (found.asked.price is not None),
    ]  # fmt: skip
    notes = [f"  {row['variant']}: {row['refused']}" for row in refused]
    notes += ["  steps are S_min (1 + B_crit / B); failures are extra (train, with run: {loss: ...})"]
    return table_block([{**row, "time": _format_days(row["days"])} for row in simulated], columns, notes=notes)


def _epochs_table(found: Scaling) -> list[TableBlock]:
    data = found.repeated
    if data is None:
        return []
    rows = frame_rows(found.epochs.assign(unique=found.epochs["worth"] / data.unique))
    endless = [{**row, "epochs": "endless", "of_fresh": math.nan} for row in rows[-1:]]
    columns = [("epochs", "{epochs}"), ("worth", "{worth:count}"), ("x unique", "{unique:.4g}"),
               ("of fresh", "{of_fresh:.0%}")]  # fmt: skip
    rows = [{**row, "epochs": f"{row['epochs']:g}"} for row in rows[:-1]] + endless
    notes = [f"  {data.law.name} has no constants of repetition: used muennighoff's"] if data.borrows_constants else []
    return table_block(rows, columns, notes=notes)
