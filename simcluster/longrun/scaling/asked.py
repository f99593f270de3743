"""What is asked of a law of loss, in numbers: a model, a budget, GPUs and their rate, a loss, a price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.counts import format_count, parse_count, parse_share, parse_whole
from simcluster.base.errors import InputError
from simcluster.base.units import DAY, format_seconds
from simcluster.devices.device import load_device
from simcluster.longrun.budget.critical_batch import kaplan_critical_batch
from simcluster.longrun.budget.loss_laws import FLOP_PER_TOKEN, LossLaw, loss_law
from simcluster.model.parameters import parameters as parameters_of
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import replay

KAPLAN = "kaplan"
_BOUNDS = {
    "compute": (1.0, 1e40), "parameters": (1e3, 1e18), "tokens": (1e3, 1e20), "loss": (0.1, 50.0), "serve": (1.0, 1e24),
    "unique": (1e3, 1e20), "price": (1e-6, 1e6), "days": (1e-6, 1e6), "critical_batch": (1.0, 1e15),
}  # fmt: skip
"""Least and most of what a law of loss is asked: beyond these it is a slip of the pen."""


@dataclass(frozen=True, slots=True)
class GpuRate:
    """What one GPU does for a run: ``flops`` by 6 N D a second, of how many (``gpus``; None: not said), and how it is
    known, in ``words``."""

    flops: float
    gpus: int | None
    device: str
    words: str

    def gpu_hours(self, compute: float) -> float:
        """Of so many FLOP."""
        return compute / self.flops / 3600

    def days(self, compute: float) -> float:
        """Of so many FLOP on all of the GPUs; on one of them where it is not said how many there are."""
        return compute / self.flops / (self.gpus or 1) / DAY


@dataclass(frozen=True, slots=True)
class Asked:
    """The question: numbers, or None for what was not given.

    ``tokens`` are those of one's own model of so many ``parameters``, called ``model``; ``notes`` are what is assumed.
    """

    law: LossLaw
    model: str
    parameters: float | None
    tokens: float | None
    compute: float | None
    loss: float | None
    served: float
    unique: float | None
    price: float | None
    rate: GpuRate
    notes: tuple[str, ...]


def _count(value: object, what: str) -> float:
    """A number from 7e9 or "7B"; InputError outside of its bounds."""
    number, (least, most) = parse_count(value, what), _BOUNDS[what]
    if not least <= number <= most:
        raise InputError(f"{what} {number:.4g}: must lie between {least:g} and {most:g}")
    return number


def asked_of_counts(law: LossLaw, given: Mapping[str, Any], device: str) -> Asked:
    """The question of a model that is known by its parameters alone, if there is one."""
    size = None if given["parameters"] is None else _count(given["parameters"], "parameters")
    name = "" if size is None else f"{format_count(size)} parameters"
    return _asked(law, given, name, size, rate_of_device(device, given["gpus"], given["mfu"]), ())


def asked_of_scenario(law: LossLaw, given: Mapping[str, Any], scenario: Scenario) -> tuple[Asked, float]:
    """(the question of a scenario's model on its GPUs, seconds of its simulated step).

    What is not given its run says: tokens, or days without failures, loss, price.  InputError for what the scenario
    itself says.
    """
    if twice := [key for key in ("parameters", "gpus", "mfu") if given[key] is not None]:
        raise InputError(f"{', '.join(twice)}: the scenario says it; give one or the other")
    run, more = scenario.run, dict(given)
    if run is not None:
        if given["tokens"] is None and given["compute"] is None and given["days"] is None:
            more["tokens"] = run.tokens if run.steps is None else float(run.steps * scenario.tokens_per_step)
            more["days"] = None if run.days is None or given["loss"] is not None else run.days / DAY
        more["loss"] = run.loss if given["loss"] is None else given["loss"]
        more["price"] = run.price if given["price"] is None else given["price"]
    size, notes = counted_parameters(scenario, law)
    rate, step = rate_of_step(scenario, size)
    return _asked(law, more, scenario.name, size, rate, notes), step


def _asked(
    law: LossLaw, given: Mapping[str, Any], model: str, size: float | None, rate: GpuRate, notes: tuple[str, ...]
) -> Asked:
    """The numbers; InputError for what is no question."""
    numbers = {
        name: None if given[name] is None else _count(given[name], name)
        for name in ("tokens", "loss", "serve", "unique", "price")
    }
    compute, tokens, loss = _budget(given, rate), numbers["tokens"], numbers["loss"]
    if compute is not None and tokens is not None:
        raise InputError("tokens and a budget: one follows from the other; give one of them")
    if compute is None and loss is None and (size is None or tokens is None):
        half = " and ".join(name for name in ("gpus", "days", "parameters", "tokens") if given[name] is not None)
        raise InputError(
            f"scaling: a question is needed, and {f'{half} alone' if half else 'nothing given'} is none: give a budget "
            "(--compute 3.15e23, or --gpus 1024 --days 30), a loss (--loss 2.0), or a model with its tokens "
            "(--parameters 7B --tokens 2T)"
        )
    if numbers["serve"] and loss is None:
        raise InputError("serve: the cheapest model to train and serve is one that reaches a loss; give it, as in 2.0")
    served = numbers["serve"] or 0.0
    return Asked(law, model, size, tokens, compute, loss, served, numbers["unique"], numbers["price"], rate, notes)


def critical_of(given: float | str, asked: Asked) -> tuple[float | None, str]:
    """(tokens of the critical batch, whose they are): as given, or "kaplan" for his equation."""
    if given != KAPLAN:
        return _count(given, "critical_batch"), "as given"
    if asked.loss is not None:
        return kaplan_critical_batch(
            asked.loss
        ), f"by Kaplan et al. 2020 at a loss of {asked.loss:.4g}, of its own text: elsewhere a guess"
    if asked.parameters is not None:
        floor = loss_law(KAPLAN).floor(asked.parameters)
        return kaplan_critical_batch(floor), f"by Kaplan et al. 2020 at the least loss of this size, {floor:.4g}"
    return None, ""


def rate_of_device(device: str, gpus: object, mfu: object) -> GpuRate:
    """GPUs of a device at a share of its peak in bf16; at peak where no MFU is given, and that is said."""
    found = load_device(device)
    peak, share = found.peak_flops("bf16"), 1.0 if mfu is None else parse_share(mfu, "mfu")
    count = None if gpus is None else parse_whole(gpus, "gpus")
    known = "at peak, which no run reaches (say --mfu)" if mfu is None else f"x {share:.3g} MFU"
    return GpuRate(peak * share, count, found.name, f"{peak / 1e12:.4g} TFLOP/s of an {found.name} {known}")


def rate_of_step(scenario: Scenario, size: float) -> tuple[GpuRate, float]:
    """(the rate of a scenario's GPUs by its simulated step, seconds of the step)."""
    step = replay(scenario).step_time
    flops = FLOP_PER_TOKEN * size * scenario.tokens_per_step / step / scenario.gpus
    words = f"{flops / 1e12:.4g} TFLOP/s a GPU by 6 N D: the simulated step of {format_seconds(step)}"
    return GpuRate(flops, scenario.gpus, scenario.cluster.device.name, words), step


def counted_parameters(scenario: Scenario, law: LossLaw) -> tuple[float, tuple[str, ...]]:
    """(parameters of the scenario's model as the law counts them, what is to be said of that)."""
    count = parameters_of(scenario.model)
    size = float(count.active)
    notes = []
    if count.active != count.total:
        notes.append(
            f"a mixture: {format_count(count.active)} active of {format_count(count.total)} parameters are taken; "
            f"{law.name} is a law of dense models, so the loss is a guess"
        )
    if law.counts == "non-embedding":
        size -= count.embedding + count.lm_head
        notes.append(f"{law.name} counts parameters without embeddings: {format_count(size)}")
    return size, tuple(notes)


def _budget(given: Mapping[str, Any], rate: GpuRate) -> float | None:
    """FLOP: as given, or those of GPUs and days; InputError for both, or for days without GPUs."""
    compute, days = given["compute"], given["days"]
    if compute is not None and days is not None:
        raise InputError("a budget is compute, or GPUs and days, and both were given; leave one out")
    if compute is not None:
        return _count(compute, "compute")
    if days is None:
        return None
    if rate.gpus is None:
        raise InputError("days of how many GPUs? --gpus 1024 --days 30")
    return rate.flops * rate.gpus * _count(days, "days") * DAY
