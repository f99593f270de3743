"""What a training run meets before it begins: the memory, the time and the cost wall, from two counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simcluster.base.counts import parse_count, parse_share, parse_whole
from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.devices.device import load_device
from simcluster.documents.argument_types import checked
from simcluster.longrun.budget.counted import CountedRun
from simcluster.longrun.budget.words import describe
from simcluster.model.recipes import recipe_named
from simcluster.studies.state_ladder import DEFAULT_RECIPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls(CountedRun, Shown):
    """The walls of a run: its numbers, the same in words, and for JSON."""

    def summary(self) -> str:
        """In about ten lines, for people."""
        return describe(self)

    def __str__(self) -> str:
        return self.summary()

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, "Walls and states"; null where an input is missing."""
        named = {
            "parameters": self.parameters, "tokens": self.tokens, "device": self.device, "precision": self.precision,
            "peak_flops": self.peak, "device_memory_bytes": self.memory, "gpus": self.gpus, "zero": self.zero,
            "mfu": self.mfu, "at_peak": self.at_peak, "achievable_mfu": self.achievable, "price": self.price,
            "recipe": self.recipe.name if self.recipe else None, "bytes_per_parameter": self.bytes_per_parameter,
        }  # fmt: skip
        memory = {
            "state_bytes": self.state_bytes, "least_gpus": self.least_gpus,
            "state_bytes_a_gpu": self.state_bytes_a_gpu, "fits": self.fits,
        }  # fmt: skip
        days = {
            "flops": self.flops, "gpu_hours": self.gpu_hours, "days": self.days,
            "days_wanted": self.days_wanted, "gpus_needed": self.gpus_needed,
        }  # fmt: skip
        cost = {
            "dollars": self.dollars, "wasted": self.wasted, "lost_dollars": self.lost_dollars,
            "more_training": self.more_training, "budget": self.budget, "bought_gpu_hours": self.bought_gpu_hours,
            "bought_flops": self.bought_flops, "bought_tokens": self.bought_tokens, "bought_days": self.bought_days,
        }  # fmt: skip
        return {**named, "memory": memory, "time": days, "cost": cost}


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
    """The walls of a run of "70B" parameters on "15T" tokens; counts as numbers or as text with k, M, B, T.

    ``device`` is one of the catalogue or a file of one's own, which give peak and memory.  Neither an MFU nor a price
    is ever assumed.  InputError for an input that is no number, or that another one needs.
    """
    _check(tokens, mfu, achievable, price, days, budget)
    _check_state(recipe, bytes_per_parameter, zero)
    known = load_device(device)
    chosen = None if bytes_per_parameter is not None else recipe_named(recipe or DEFAULT_RECIPE)
    total = chosen.total if chosen else parse_count(bytes_per_parameter, "bytes")

    return Walls(
        parameters=parse_count(parameters, "parameters"),
        tokens=_count(tokens, "tokens"),
        device=device,
        precision=precision,
        peak=known.peak_flops(precision),
        memory=known.memory,
        bytes_per_parameter=total,
        recipe=chosen,
        recipe_by_default=recipe is None and chosen is not None,
        zero=zero,
        gpus=None if gpus is None else parse_whole(gpus, "gpus"),
        mfu=_share(mfu, "mfu"),
        achievable=_share(achievable, "achievable"),
        price=_count(price, "price"),
        days_wanted=_count(days, "days"),
        budget=_count(budget, "budget"),
    )


def _share(value: float | str | None, what: str) -> float | None:
    return None if value is None else parse_share(value, what)


def _count(value: float | str | None, what: str) -> float | None:
    return None if value is None else parse_count(value, what)


def _check(tokens: object, mfu: object, achievable: object, price: object, days: object, budget: object) -> None:
    """Is there what each input needs?"""
    if days is not None and tokens is None:
        raise InputError("how many GPUs are needed in so many days depends on the tokens; give them, as in 2T")
    if achievable is not None and mfu is None:
        raise InputError(
            "what is lost against an achievable MFU depends on the MFU that is reached; give it, as in 35%"
        )
    if budget is not None and price is None:
        raise InputError(
            "a budget buys GPU-hours at a price; give it, in dollars a GPU and hour, as in --price 2 (Python: price=2)"
        )


def _check_state(recipe: str | None, total: float | None, zero: int) -> None:
    """Do the bytes of a parameter say what that stage of ZeRO shards?"""
    if recipe is not None and total is not None:
        raise InputError("recipe and bytes both say what is kept for a parameter; give one of them")
    if zero not in (0, 1, 2, 3):
        raise InputError(f"zero {zero!r} is not a ZeRO stage; use 0 (nothing sharded), 1, 2 or 3")
    if total is not None and zero in (1, 2):
        raise InputError(
            f"zero {zero} shards a part of the {total} bytes of a parameter, and a total does not say which; name a "
            "recipe instead, as in mixed-16 (2 + 2 + 12) or bf16-12 (2 + 2 + 8)"
        )
