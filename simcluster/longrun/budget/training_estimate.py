"""Memory, time and cost of a training run, estimated without simulation from parameter and token counts.

    work = 6 x parameters x tokens         seconds = work / (GPUs x peak x MFU)         dollars = GPU-hours x price

Training takes 2 FLOP per parameter and token forward and 4 backward, without attention (arXiv:2001.08361 section 2.1);
for a mixture of experts give the active parameters for time, all of them for memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simcluster.base.counts import format_count, format_dollars, parse_count, parse_share, parse_whole_number
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.units import DAY, HOUR, format_bytes
from simcluster.devices.device import load_device
from simcluster.documents.argument_types import check_arguments
from simcluster.longrun.text_formats import format_flop
from simcluster.model.recipes import Recipe, recipe_named, state_bytes
from simcluster.show.output_blocks import HeadlineValues, NamedValue, OutputBlocks, TextLines
from simcluster.studies.state_ladder import DEFAULT_RECIPE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEstimate(Displayable):
    """Estimated memory, time and cost of a training run, with the counts they are computed from.

    A limit is None if an input is missing. ``peak`` is dense FLOP/s of one GPU, ``memory`` its bytes. Without ``mfu``
    all times and costs are those at peak, which no run reaches (``at_peak``). ``recipe`` is None if only a total of
    bytes per parameter was given. ``achievable`` is the MFU assumed to be possible: money spent below it is lost.
    ``price`` is dollars per GPU-hour, ``budget`` dollars.

    Memory: ``state_bytes`` of weights, gradients and optimizer of the whole model; ``least_gpus`` that hold them fully
    sharded, before activations; ``state_bytes_a_gpu`` with all ``gpus`` as replicas under the given ZeRO stage, and
    whether that ``fits``. Time: ``flops`` (6 x parameters x tokens), total ``gpu_hours``, ``days`` on the ``gpus``,
    ``gpus_needed`` to finish in ``days_wanted``. Cost: ``dollars`` at ``price``; the share of the money that the
    achievable MFU would save (``wasted``, of the budget or else of the cost ``lost_dollars``) and how much more the
    same money would train (``more_training``); what the budget buys (``bought_gpu_hours``, ``bought_flops``,
    ``bought_tokens`` for these parameters, ``bought_days`` of the ``gpus``).
    """

    parameters: float
    tokens: float | None
    device: str
    precision: str
    peak: float
    memory: float
    bytes_per_parameter: float
    recipe: Recipe | None
    recipe_by_default: bool
    zero: int
    gpus: int | None
    mfu: float | None
    at_peak: bool
    achievable: float | None
    price: float | None
    days_wanted: float | None
    budget: float | None

    state_bytes: float
    least_gpus: int
    state_bytes_a_gpu: float | None
    fits: bool | None
    flops: float | None
    gpu_hours: float | None
    days: float | None
    gpus_needed: int | None
    dollars: float | None
    wasted: float | None
    lost_dollars: float | None
    more_training: float | None
    bought_gpu_hours: float | None
    bought_flops: float | None
    bought_tokens: float | None
    bought_days: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the estimates as a JSON document; null where an input is missing (CONTRACT.md, "Walls and states")."""

        def fields_named(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        return {
            **fields_named("parameters", "tokens", "device", "precision"),
            "peak_flops": self.peak, "device_memory_bytes": self.memory,
            **fields_named("gpus", "zero", "mfu", "at_peak"), "achievable_mfu": self.achievable, "price": self.price,
            "recipe": self.recipe.name if self.recipe else None, "bytes_per_parameter": self.bytes_per_parameter,
            "memory": fields_named("state_bytes", "least_gpus", "state_bytes_a_gpu", "fits"),
            "time": fields_named("flops", "gpu_hours", "days", "days_wanted", "gpus_needed"),
            "cost": fields_named("dollars", "wasted", "lost_dollars", "more_training", "budget", "bought_gpu_hours",
                           "bought_flops", "bought_tokens", "bought_days"),
        }  # fmt: skip


@check_arguments
def estimate_training(
    parameters: float | str,
    tokens: float | str | None = None,
    *,
    device: str = "h100",
    precision: str = "bf16",
    gpus: int | str | None = None,
    mfu: float | str | None = None,
    achievable: float | str | None = None,
    price: float | str | None = None,
    days: float | None = None,
    budget: float | str | None = None,
    recipe: str | None = None,
    bytes_per_parameter: float | None = None,
    zero: int = 3,
) -> TrainingEstimate:
    """Estimate memory, time and cost of a training run from counts such as "70B" parameters and "15T" tokens.

    Counts are numbers, or text with k, M, B, T. ``device`` is a name from the catalogue or a file, which state peak and
    memory. No default is assumed for the MFU or the price. InputError for an input that is not a number, or that
    another input needs.
    """
    _check_inputs(tokens, mfu, achievable, price, days, budget, recipe, bytes_per_parameter, zero)
    gpu = load_device(device)
    chosen = None if bytes_per_parameter is not None else recipe_named(recipe or DEFAULT_RECIPE)
    total = chosen.total if chosen else parse_count(bytes_per_parameter, "bytes")
    size = parse_count(parameters, "parameters")
    number = None if gpus is None else parse_whole_number(gpus, "gpus")
    shares = {"mfu": mfu, "achievable": achievable}
    counts = {"tokens": tokens, "price": price, "days": days, "budget": budget}
    given: dict[str, Any] = {name: None if each is None else parse_share(each, name) for name, each in shares.items()}
    given |= {name: None if each is None else parse_count(each, name) for name, each in counts.items()}
    given["days_wanted"] = given.pop("days")
    peak = gpu.peak_flops(precision)
    state = size * total
    held = None
    if number is not None:
        held = state / (number if zero == 3 else 1)
        held = state_bytes(size, chosen, zero=zero, dp=number).total if chosen else held
    return TrainingEstimate(
        parameters=size, device=device, precision=precision, peak=peak, memory=gpu.memory, bytes_per_parameter=total,
        recipe=chosen, recipe_by_default=recipe is None and chosen is not None, zero=zero, gpus=number,
        at_peak=mfu is None, state_bytes=state, least_gpus=math.ceil(state / gpu.memory), state_bytes_a_gpu=held,
        fits=None if held is None else held <= gpu.memory, **given, **_compute_time_and_cost(size, peak, number, given),
    )  # fmt: skip


def _check_inputs(
    tokens: object, mfu: object, achievable: object, price: object, days: object, budget: object, recipe: object,
    bytes_per_parameter: object, zero: int,
) -> None:  # fmt: skip
    problems = (
        (days is not None and tokens is None,
         "days: the GPUs needed to finish in N days depend on the number of tokens; set tokens, as in 2T"),
        (achievable is not None and mfu is None,
         "achievable: the money lost depends on the actual MFU; set mfu, as in 35%"),
        (budget is not None and price is None,
         "budget: the GPU-hours that a budget buys need a price per GPU-hour; set --price 2 (Python: price=2)"),
        (recipe is not None and bytes_per_parameter is not None,
         "recipe and bytes both set the bytes per parameter; give only one of the two"),
        (zero not in (0, 1, 2, 3), f"zero {zero!r} is not a ZeRO stage; use 0 (nothing sharded), 1, 2 or 3"),
        (bytes_per_parameter is not None and zero in (1, 2),
         f"zero {zero} shards only a part of the {bytes_per_parameter} bytes per parameter, and a total does not "
         "show which; name a recipe instead, as in mixed-16 (2 + 2 + 12) or bf16-12 (2 + 2 + 8)"),
    )  # fmt: skip
    for holds, problem in problems:
        if holds:
            raise InputError(problem)


def _compute_time_and_cost(size: float, peak: float, gpus: int | None, given: dict[str, Any]) -> dict[str, Any]:
    known = {name: math.nan if value is None else value for name, value in given.items()}
    tokens, mfu, achievable, price = (known[name] for name in ("tokens", "mfu", "achievable", "price"))
    rate = peak * (1.0 if given["mfu"] is None else mfu)
    count = math.nan if gpus is None else gpus
    flops = 6.0 * size * tokens
    gpu_hours = flops / rate / HOUR
    needed = flops / rate / DAY / known["days_wanted"]
    wasted = max(1 - mfu / achievable, 0.0)
    dollars = gpu_hours * price
    hours = known["budget"] / price
    found = {
        "flops": flops,
        "gpu_hours": gpu_hours,
        "days": gpu_hours / 24 / count,
        "gpus_needed": needed if math.isnan(needed) else math.ceil(needed),
        "dollars": dollars,
        "wasted": wasted,
        "lost_dollars": wasted * (dollars if given["budget"] is None else known["budget"]),
        "more_training": max(achievable / mfu - 1, 0.0),
        "bought_gpu_hours": hours,
        "bought_flops": hours * HOUR * rate,
        "bought_tokens": hours * HOUR * rate / (6.0 * size),
        "bought_days": hours / 24 / count,
    }
    return {name: None if math.isnan(value) else value for name, value in found.items()}


def training_estimate_answer(run: TrainingEstimate) -> OutputBlocks:
    """Return the printed estimate: memory, time, cost and budget, as far as the inputs determine them."""
    tokens = "" if run.tokens is None else f" on {format_count(run.tokens)} tokens"
    number = "" if run.gpus is None else f"{run.gpus:,} x "
    gpu = f"{run.device} ({run.memory / 1e9:.4g} GB, {run.peak / 1e12:.4g} TFLOP/s in {run.precision})"
    head = f"{format_count(run.parameters)} parameters{tokens}, {number}{gpu}"
    facts = [*_memory_facts(run), *_time_and_cost_facts(run), *_budget_facts(run)]
    return [TextLines([head], "head"), HeadlineValues(facts)]


def _memory_facts(run: TrainingEstimate) -> Iterator[NamedValue]:
    recipe, kept = run.recipe, f"{run.bytes_per_parameter:g} B per parameter"
    if recipe is not None:
        name = recipe.name + (", by default" if run.recipe_by_default else "")
        parts = f"weights {recipe.weight:g}, gradients {recipe.gradient:g}, optimizer {recipe.optimizer:g}"
        kept += f" ({parts}: {name})"
    yield NamedValue("memory", format_bytes(run.state_bytes), f" of model state: {kept}")
    yield NamedValue("", f"fully sharded, it needs at least {_format_gpus(run.least_gpus)}, before activations")
    if run.state_bytes_a_gpu is not None:
        how = f"ZeRO-{run.zero}" if run.zero else "without ZeRO"
        verdict = "fits" if run.fits else f"does not fit in {run.memory / 1e9:.4g} GB"
        where = f"over {run.gpus:,} GPUs" if run.gpus != 1 else "on 1 GPU"
        yield NamedValue("", f"{how} {where}: {format_bytes(run.state_bytes_a_gpu)} per GPU, {verdict}")


def _time_and_cost_facts(run: TrainingEstimate) -> Iterator[NamedValue]:
    if run.flops is None or run.gpu_hours is None:
        return
    days = "" if run.days is None else f"; {_format_days(run.days)} on {_format_gpus(run.gpus)}"
    yield NamedValue("time", format_flop(run.flops), " (6 x parameters x tokens; without attention)")
    yield NamedValue("", f"{_describe_mfu(run)}: {run.gpu_hours / 24:,.1f} GPU-days{days}")
    if run.gpus_needed is not None:
        yield NamedValue("", f"in {run.days_wanted:g} days: {_format_gpus(run.gpus_needed)}")
    hours = f"{run.gpu_hours:,.0f} GPU-hours"
    if run.dollars is None:
        yield NamedValue("cost", hours, "; set --price (dollars per GPU-hour) for dollars")
        return
    peak = ", at peak" if run.at_peak else ""
    yield NamedValue("cost", hours, f" at ${run.price:.2f}: {format_dollars(run.dollars)}{peak}")
    if run.budget is None:
        yield from _lost_money_facts(run)


def _budget_facts(run: TrainingEstimate) -> Iterator[NamedValue]:
    if run.budget is None or run.bought_gpu_hours is None:
        return
    days = "" if run.bought_days is None else f"; {_format_days(run.bought_days)} of {_format_gpus(run.gpus)}"
    share = "" if run.dollars is None else f", {run.budget / run.dollars:.1%} of the run"
    hours = f" at ${run.price:.2f} buys {run.bought_gpu_hours:,.0f} GPU-hours{days}"
    yield NamedValue("budget", format_dollars(run.budget), hours)
    tokens = format_count(run.bought_tokens or 0.0)
    yield NamedValue("", f"{_describe_mfu(run)}: {format_flop(run.bought_flops or 0.0, 5)}, {tokens} tokens{share}")
    yield from _lost_money_facts(run)


def _lost_money_facts(run: TrainingEstimate) -> Iterator[NamedValue]:
    if run.wasted is None or run.lost_dollars is None or run.achievable is None:
        return
    at = f"{_format_percent(run.achievable)} MFU"
    less = f"{format_dollars(run.lost_dollars)} less ({run.wasted:.1%} is lost)"
    more = f"at {at} the same training for {less}, or {run.more_training or 0.0:.1%} more training for the same money"
    yield NamedValue("", more if run.wasted else f"no money is lost, compared with {at}")


def _describe_mfu(run: TrainingEstimate) -> str:
    return "at peak, which no run reaches (set --mfu)" if run.at_peak else f"at {_format_percent(run.mfu or 0.0)} MFU"


def _format_gpus(number: int | None) -> str:
    return "1 GPU" if number == 1 else f"{number:,} GPUs"


def _format_days(days: float) -> str:
    years = f" ({days / 365.25:.1f} years)" if days > 730 else ""
    return f"{days:,.2f} days{years}" if days < 100 else f"{days:,.1f} days{years}"


def _format_percent(part: float) -> str:
    return f"{100 * part:.4g}%"
