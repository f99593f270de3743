"""The memory, time and cost of a training run, from counts alone.

    work = 6 x parameters x tokens         seconds = work / (GPUs x peak x MFU)         dollars = GPU-hours x price

Training FLOP are 2 a parameter and token forward and 4 backward, attention not counted (arXiv:2001.08361 section 2.1);
of a mixture of experts give the active parameters for time, all of them for memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from simcluster.base.counts import format_count, format_dollars, parse_count, parse_share, parse_whole
from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.base.units import DAY, HOUR, format_bytes
from simcluster.devices.device import load_device
from simcluster.documents.argument_types import checked
from simcluster.model.recipes import Recipe, recipe_named, state_bytes
from simcluster.studies.state_ladder import DEFAULT_RECIPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls(Shown):
    """A run in counts, and its limits as properties: bytes, seconds, GPU-hours, dollars; None if an input is missing.

    ``peak`` is dense FLOP/s of one GPU, ``memory`` its bytes.  Without ``mfu`` all times and costs are those at peak,
    which no run reaches (``at_peak``).  ``recipe`` is None if only a total of bytes per parameter was given.
    ``achievable`` is the MFU that is held to be possible: what falls short of it is money lost.  ``price`` is dollars
    per GPU-hour, ``budget`` dollars.
    """

    parameters: float
    tokens: float | None
    device: str
    precision: str
    peak: float
    memory: float
    bytes_per_parameter: float
    recipe: Recipe | None
    recipe_by_default: bool = False
    zero: int = 3
    gpus: int | None = None
    mfu: float | None = None
    achievable: float | None = None
    price: float | None = None
    days_wanted: float | None = None
    budget: float | None = None

    @property
    def at_peak(self) -> bool:
        """Whether times and costs are those at peak, since no MFU was given."""
        return self.mfu is None

    @property
    def rate(self) -> float:
        """Model FLOP/s of a GPU."""
        return self.peak * (1.0 if self.mfu is None else self.mfu)

    # --- memory

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and optimizer of the whole model, once."""
        return self.parameters * self.bytes_per_parameter

    @property
    def least_gpus(self) -> int:
        """GPUs that hold the model state with all of it sharded, before activations."""
        return math.ceil(self.state_bytes / self.memory)

    @property
    def state_bytes_a_gpu(self) -> float | None:
        """Bytes of model state per GPU, where all ``gpus`` are replicas, under that stage of ZeRO."""
        if self.gpus is None:
            return None
        if self.recipe is None:
            return self.state_bytes / (self.gpus if self.zero == 3 else 1)
        return state_bytes(self.parameters, self.recipe, zero=self.zero, dp=self.gpus).total

    @property
    def fits(self) -> bool | None:
        """Whether a GPU holds its part of the model state."""
        held = self.state_bytes_a_gpu
        return None if held is None else held <= self.memory

    # --- time

    @property
    def flops(self) -> float | None:
        """6 x parameters x tokens."""
        return None if self.tokens is None else 6.0 * self.parameters * self.tokens

    @property
    def gpu_hours(self) -> float | None:
        """Of all GPUs together; the number of GPUs does not matter as long as the MFU stays."""
        return None if self.flops is None else self.flops / self.rate / HOUR

    @property
    def days(self) -> float | None:
        """On the ``gpus``."""
        return None if self.gpu_hours is None or self.gpus is None else self.gpu_hours / 24 / self.gpus

    @property
    def gpus_needed(self) -> int | None:
        """To be done in ``days_wanted``."""
        if self.flops is None or self.days_wanted is None:
            return None
        return math.ceil(self.flops / self.rate / DAY / self.days_wanted)

    # --- cost

    @property
    def dollars(self) -> float | None:
        """At ``price``."""
        return None if self.gpu_hours is None or self.price is None else self.gpu_hours * self.price

    @property
    def wasted(self) -> float | None:
        """The part of the money that an achievable MFU would save: (achievable - mfu) / achievable; 0 above it."""
        return None if self.mfu is None or self.achievable is None else max(0.0, 1 - self.mfu / self.achievable)

    @property
    def more_training(self) -> float | None:
        """By what part more the same money trains at the achievable MFU: achievable / mfu - 1."""
        return None if self.mfu is None or self.achievable is None else max(0.0, self.achievable / self.mfu - 1)

    @property
    def lost_dollars(self) -> float | None:
        """What is ``wasted`` of the budget, or without one of what the run costs."""
        spent = self.dollars if self.budget is None else self.budget
        return None if self.wasted is None or spent is None else self.wasted * spent

    @property
    def bought_gpu_hours(self) -> float | None:
        """By the budget."""
        return None if self.budget is None or self.price is None else self.budget / self.price

    @property
    def bought_flops(self) -> float | None:
        """Model FLOP that the budget buys."""
        return None if self.bought_gpu_hours is None else self.bought_gpu_hours * HOUR * self.rate

    @property
    def bought_tokens(self) -> float | None:
        """Tokens that the budget trains these parameters on."""
        return None if self.bought_flops is None else self.bought_flops / (6.0 * self.parameters)

    @property
    def bought_days(self) -> float | None:
        """For which the budget pays the ``gpus``."""
        return None if self.bought_gpu_hours is None or self.gpus is None else self.bought_gpu_hours / 24 / self.gpus

    # --- text and JSON

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Return about ten lines: memory, time, cost and budget as far as the inputs allow, with all assumptions."""
        tokens = "" if self.tokens is None else f" on {format_count(self.tokens)} tokens"
        number = "" if self.gpus is None else f"{self.gpus:,} x "
        lines = [
            f"{format_count(self.parameters)} parameters{tokens}, {number}{self.device} "
            f"({self.memory / 1e9:.4g} GB, {self.peak / 1e12:.4g} TFLOP/s in {self.precision})"
        ]
        for name, part in (("memory", _memory), ("time", _time), ("cost", _cost), ("budget", _budget)):
            lines += [f"  {name if not place else '':<8} {line}" for place, line in enumerate(part(self))]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document: CONTRACT.md, "Walls and states"; null where an input is missing."""

        def values(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        return {
            **values("parameters", "tokens", "device", "precision"),
            "peak_flops": self.peak, "device_memory_bytes": self.memory,
            **values("gpus", "zero", "mfu", "at_peak"), "achievable_mfu": self.achievable, "price": self.price,
            "recipe": self.recipe.name if self.recipe else None, "bytes_per_parameter": self.bytes_per_parameter,
            "memory": values("state_bytes", "least_gpus", "state_bytes_a_gpu", "fits"),
            "time": values("flops", "gpu_hours", "days", "days_wanted", "gpus_needed"),
            "cost": values("dollars", "wasted", "lost_dollars", "more_training", "budget", "bought_gpu_hours",
                           "bought_flops", "bought_tokens", "bought_days"),
        }  # fmt: skip


@checked
def walls(
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
) -> Walls:
    """Return the limits of a run of "70B" parameters on "15T" tokens; counts as numbers or as text with k, M, B, T.

    ``device`` is one of the catalogue or a file, which state peak and memory.  Neither an MFU nor a price is ever
    assumed.  InputError for an input that is not a number, or that another one needs.
    """
    needs = (
        (days, tokens, "how many GPUs are needed in so many days depends on the tokens; give them, as in 2T"),
        (achievable, mfu, "what is lost against an achievable MFU depends on the MFU that is reached; give it, as in "
                          "35%"),
        (budget, price, "a budget buys GPU-hours at a price; give it, in dollars a GPU and hour, as in --price 2 "
                        "(Python: price=2)"),
    )  # fmt: skip
    for given, needed, problem in needs:
        if given is not None and needed is None:
            raise InputError(problem)
    _check_state(recipe, bytes_per_parameter, zero)
    known = load_device(device)
    chosen = None if bytes_per_parameter is not None else recipe_named(recipe or DEFAULT_RECIPE)
    total = chosen.total if chosen else parse_count(bytes_per_parameter, "bytes")
    size = parse_count(parameters, "parameters")
    counts = {"tokens": tokens, "price": price, "days": days, "budget": budget}
    shares = {"mfu": mfu, "achievable": achievable}
    given_gpus = None if gpus is None else parse_whole(gpus, "gpus")
    found = {name: None if value is None else parse_share(value, name) for name, value in shares.items()}
    found |= {name: None if value is None else parse_count(value, name) for name, value in counts.items()}
    days_wanted = found.pop("days")
    return Walls(
        parameters=size, device=device, precision=precision, peak=known.peak_flops(precision), memory=known.memory,
        bytes_per_parameter=total, recipe=chosen, recipe_by_default=recipe is None and chosen is not None, zero=zero,
        gpus=given_gpus, days_wanted=days_wanted, **found,
    )  # fmt: skip


def _check_state(recipe: str | None, total: float | None, zero: int) -> None:
    """Raise InputError if the bytes per parameter do not state what that stage of ZeRO shards."""
    if recipe is not None and total is not None:
        raise InputError("recipe and bytes both say what is kept for a parameter; give one of them")
    if zero not in (0, 1, 2, 3):
        raise InputError(f"zero {zero!r} is not a ZeRO stage; use 0 (nothing sharded), 1, 2 or 3")
    if total is not None and zero in (1, 2):
        raise InputError(
            f"zero {zero} shards a part of the {total} bytes of a parameter, and a total does not say which; name a "
            "recipe instead, as in mixed-16 (2 + 2 + 12) or bf16-12 (2 + 2 + 8)"
        )


def _memory(run: Walls) -> list[str]:
    recipe, kept = run.recipe, f"{run.bytes_per_parameter:g} B a parameter"
    if recipe is not None:
        name = recipe.name + (", by default" if run.recipe_by_default else "")
        parts = f"weights {recipe.weight:g}, gradients {recipe.gradient:g}, optimizer {recipe.optimizer:g}"
        kept += f" ({parts}: {name})"
    least = "1 GPU holds" if run.least_gpus == 1 else f"{run.least_gpus:,} GPUs hold"
    lines = [
        f"{format_bytes(run.state_bytes)} of model state: {kept}",
        f"at least {least} it, with all of it sharded, before activations",
    ]
    if run.state_bytes_a_gpu is not None:
        how = f"ZeRO-{run.zero}" if run.zero else "without ZeRO"
        verdict = "fits" if run.fits else f"does not fit in {run.memory / 1e9:.4g} GB"
        where = f"over {run.gpus:,} GPUs" if run.gpus != 1 else "on 1 GPU"
        lines.append(f"{how} {where}: {format_bytes(run.state_bytes_a_gpu)} of it a GPU, {verdict}")
    return lines


def _time(run: Walls) -> list[str]:
    if run.flops is None or run.gpu_hours is None:
        return []
    days = "" if run.days is None else f"; {_days(run.days)} on {_gpus(run.gpus)}"
    lines = [f"{_plain(run.flops, 4)} FLOP (6 x parameters x tokens; attention not counted)"]
    lines.append(f"{_how(run)}: {run.gpu_hours / 24:,.1f} GPU-days{days}")
    if run.gpus_needed is not None:
        lines.append(f"in {run.days_wanted:g} days: {_gpus(run.gpus_needed)}")
    return lines


def _cost(run: Walls) -> list[str]:
    if run.gpu_hours is None:
        return []
    hours = f"{run.gpu_hours:,.0f} GPU-hours"
    if run.dollars is None:
        return [f"{hours}; dollars with a price a GPU-hour (--price)"]
    lines = [f"{hours} at ${run.price:.2f}: {format_dollars(run.dollars)}{', at peak' if run.at_peak else ''}"]
    return lines + (_lost(run) if run.budget is None else [])


def _budget(run: Walls) -> list[str]:
    if run.budget is None or run.bought_gpu_hours is None:
        return []
    days = "" if run.bought_days is None else f"; {_days(run.bought_days)} of {_gpus(run.gpus)}"
    share = "" if run.dollars is None else f", {run.budget / run.dollars:.1%} of the run"
    tokens = format_count(run.bought_tokens or 0.0)
    return [
        f"{format_dollars(run.budget)} at ${run.price:.2f} buys {run.bought_gpu_hours:,.0f} GPU-hours{days}",
        f"{_how(run)}: {_plain(run.bought_flops or 0.0, 5)} FLOP, {tokens} tokens{share}",
        *_lost(run),
    ]


def _lost(run: Walls) -> list[str]:
    """Return what falls short of the achievable MFU, in money and in training."""
    if run.wasted is None or run.lost_dollars is None or run.achievable is None:
        return []
    if not run.wasted:
        return [f"nothing lost against {_percent(run.achievable)} MFU"]
    return [
        f"at {_percent(run.achievable)} MFU the same for {format_dollars(run.lost_dollars)} less "
        f"({run.wasted:.1%} is lost), or {run.more_training:.1%} more training for the same"
    ]


def _how(run: Walls) -> str:
    return "at peak, which no run reaches (give --mfu)" if run.at_peak else f"at {_percent(run.mfu or 0.0)} MFU"


def _gpus(number: int | None) -> str:
    return "1 GPU" if number == 1 else f"{number:,} GPUs"


def _days(days: float) -> str:
    years = f" ({days / 365.25:.1f} years)" if days > 730 else ""
    return f"{days:,.2f} days{years}" if days < 100 else f"{days:,.1f} days{years}"


def _percent(part: float) -> str:
    return f"{100 * part:.4g}%"


def _plain(number: float, digits: int) -> str:
    """Return a number as papers print it: 3.15e23."""
    return f"{number:.{digits}g}".replace("e+", "e")
