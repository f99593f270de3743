"""Printed answer of ``simcluster budget loss``: best model for a budget, cost of a loss, tables, and notes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from simcluster.base.counts import format_count, format_dollars
from simcluster.base.units import DAY, format_seconds
from simcluster.longrun.budget.loss_laws import SERVING_FLOP, ModelSize
from simcluster.longrun.scaling.scaling_result import RULE_OF_THUMB, ScalingResult
from simcluster.longrun.text_formats import format_flop, rows_to_dicts, table_blocks
from simcluster.show.output_blocks import HeadlineValues, NamedValue, OutputBlocks, TableBlock, TextLines


def scaling_answer(found: ScalingResult) -> OutputBlocks:
    """Return the printed answer of a loss law: best model for a budget, cost of a loss, tables, and notes."""
    return [
        TextLines([f"{found.law.formula()}   (law {found.law.name})"], "head"),
        HeadlineValues([*_budget_facts(found), *_target_loss_facts(found)]),
        *_loss_laws_table(found),
        *_serving_table(found),
        *_batches_table(found),
        *_epochs_table(found),
        TextLines(found.notes),
    ]


def _describe_model(size: ModelSize) -> tuple[str, str]:
    ratio = f"{size.tokens_per_parameter:,.3g} per parameter"
    return f"{format_count(size.parameters)} parameters", f" on {format_count(size.tokens)} tokens ({ratio})"


def _describe_cost(found: ScalingResult, compute: float) -> tuple[str, str]:
    rate, price, days = found.request.rate, found.request.price, found.request.rate.days(compute)
    where = f"on {rate.gpus:,} {rate.device}" if rate.gpus else f"on one {rate.device}"
    money = "" if price is None else f", {format_dollars(rate.gpu_hours(compute) * price)}"
    return format_flop(compute), f", {_format_days(days)} {where}{money}"


def _format_days(days: float) -> str:
    return f"{days:,.4g} days" if days >= 0.1 else format_seconds(days * DAY)


def _budget_facts(found: ScalingResult) -> Iterator[NamedValue]:
    best, own = found.best, found.own
    if best is None or best.loss is None:
        return
    flop, takes = _describe_cost(found, best.compute)
    yield NamedValue("budget", flop, f"{takes}; {found.request.rate.description}")
    size, on = _describe_model(best)
    yield NamedValue("best", size, f"{on}: loss {best.loss:.4f}")
    if own is None or own.loss is None:
        return
    size, on = _describe_model(own)
    yield NamedValue("yours", size, f"{on}: loss {own.loss:.4f}", found.request.model if found.variants else "")
    same = found.law.cheapest_size(own.loss)
    if same is not None and same.compute < 0.995 * own.compute:
        yield NamedValue(
            "",
            f"the same loss takes {same.compute / own.compute:.0%} of the FLOP with {''.join(_describe_model(same))}",
        )


def _target_loss_facts(found: ScalingResult) -> Iterator[NamedValue]:
    loss, own, cheapest = found.request.loss, found.to_loss, found.cheapest
    if loss is None:
        return
    name = f"loss {loss:.4g}"
    if cheapest is None:
        yield NamedValue(name, f"never: no model gets below {found.law.E:.4g}")
        return
    if own is not None:
        yield NamedValue(name, _describe_own_model_at_loss(found, own))
        name = "cheapest"
    if found.best is None:
        yield NamedValue("rate", found.request.rate.description)
    size, on = _describe_model(cheapest)
    yield NamedValue(name, size, f"{on}: {''.join(_describe_cost(found, cheapest.compute))}")
    many = found.request.served
    if many and (size_to_serve := found.law.cheapest_size(loss, many)) is not None:
        both, instead = (each.compute + SERVING_FLOP * each.parameters * many for each in (size_to_serve, cheapest))
        less = f"{1 - both / instead:.0%} less than with the model that is cheapest to train"
        size, on = _describe_model(size_to_serve)
        yield NamedValue("to serve", size, f"{on}: {format_flop(both)} with {format_count(many)} tokens served, {less}")
    if (critical := found.request.critical) is not None:
        yield NamedValue("batch", f"critical: {format_count(critical)} tokens", f", {found.request.critical_words}")


def _describe_own_model_at_loss(found: ScalingResult, own: ModelSize) -> str:
    data, model = found.repeated, found.request.model
    if math.isfinite(own.tokens):
        epochs = "" if data is None else f" ({own.tokens / data.unique:.3g} epochs)"
        small = "; at small batches; by batch below" if found.variants else ""
        return (
            f"{model}: {format_count(own.tokens)} tokens{epochs}, {''.join(_describe_cost(found, own.compute))}{small}"
        )
    if data is not None and found.law.tokens_to_loss(own.loss or 0.0, own.parameters) < math.inf:
        least = data.loss(own.parameters, math.inf)
        return f"{model}: never on {format_count(data.unique)} unique tokens, whose lowest loss is {least:.4f}"
    return f"{model}: never: its lowest loss is {found.law.lowest_loss(own.parameters):.4f}, for any number of tokens"


# --- tables -----------------------------------------------------------------------------------------------------------

_MODEL = ("parameters", "{parameters:count}"), ("tokens", "{tokens:count}")


def _loss_laws_table(found: ScalingResult) -> list[TableBlock]:
    rows = rows_to_dicts(found.laws.rename(lambda name: f"{name}{' *' * (name == found.law.name)}"))
    columns = [
        ("best by", "{law}"), *_MODEL, ("per parameter", "{tokens_per_parameter:.3g}"), ("loss", "{loss:.4f}"),
        *[("yours", "{own_loss:.4f}")] * (found.own is not None), ("outside its range", "{beyond}"),
    ]  # fmt: skip
    return table_blocks(rows, columns, notes=[f"  *: the law used, also for the loss of {RULE_OF_THUMB}"])


def _serving_table(found: ScalingResult) -> list[TableBlock]:
    columns = [
        ("served", "{served:count}"), *_MODEL, ("per parameter", "{tokens_per_parameter:,.3g}"),
        ("to train", "{training_flop:.3g}"), ("total", "{all_flop:.3g}"), ("outside its range", "{beyond}"),
    ]  # fmt: skip
    return table_blocks(rows_to_dicts(found.serving) if found.request.served else [], columns)


def _batches_table(found: ScalingResult) -> list[TableBlock]:
    table, critical = found.batches.reset_index(), found.critical_batch
    if critical is None:
        return []
    batch = ("batch", "{batch:count}")
    if not found.variants:
        least = {name: table[name] / getattr(critical, f"least_{name}") for name in ("steps", "tokens")}
        rows = rows_to_dicts(table.assign(least_steps=least["steps"], least_tokens=least["tokens"]))
        return table_blocks(rows, [
            batch, ("of critical", "{of_critical:g}"), ("steps", "{steps:,.0f}"), ("tokens", "{tokens:count}"),
            ("least steps", "{least_steps:.4g} x"), ("least tokens", "{least_tokens:.4g} x"),
        ])  # fmt: skip
    simulated, refused = (rows_to_dicts(table[(table["refused"] == "") == good]) for good in (True, False))
    columns = [
        ("to the loss", "{variant}"), ("GPUs", "{gpus:,}"), batch, ("of critical", "{of_critical:.3g}"),
        ("step", "{step_time_s:seconds}"), ("steps", "{steps:,.0f}"), ("tokens", "{tokens:count}"), ("time", "{time}"),
        *[("dollars", "{dollars:short dollars}")] * (found.request.price is not None),
    ]  # fmt: skip
    notes = [f"  {row['variant']}: {row['refused']}" for row in refused]
    notes += ["  steps are S_min (1 + B_crit / B), without failures (for these: simcluster train, with run.loss)"]
    return table_blocks([{**row, "time": _format_days(row["days"])} for row in simulated], columns, notes=notes)


def _epochs_table(found: ScalingResult) -> list[TableBlock]:
    data = found.repeated
    if data is None:
        return []
    rows = rows_to_dicts(found.epochs.assign(unique=found.epochs["worth"] / data.unique))
    endless = [{**row, "epochs": "endless", "of_fresh": math.nan} for row in rows[-1:]]
    columns = [("epochs", "{epochs}"), ("worth", "{worth:count}"), ("x unique", "{unique:.4g}"),
               ("of fresh", "{of_fresh:.0%}")]  # fmt: skip
    rows = [{**row, "epochs": f"{row['epochs']:g}"} for row in rows[:-1]] + endless
    notes = [f"  {data.law.name} lacks constants for repetition: uses muennighoff's"] * data.has_borrowed_constants
    return table_blocks(rows, columns, notes=notes)
