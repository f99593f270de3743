"""Questions to a loss law in numbers, and simulated scenario variants that an answer compares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from simcluster.base.counts import format_count, parse_count, parse_share, parse_whole_number
from simcluster.base.errors import InputError
from simcluster.base.units import DAY, format_seconds
from simcluster.devices.device import load_device
from simcluster.longrun.budget.critical_batch import kaplan_critical_batch
from simcluster.longrun.budget.loss_laws import DEFAULT_LAW, FLOP_PER_TOKEN, LossLaw, ModelSize, loss_law
from simcluster.longrun.text_formats import format_flop
from simcluster.model.layers import parameters as parameters_of
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.step.simulate import simulate_scenario

KAPLAN = "kaplan"
_BOUNDS = {
    "compute": (1.0, 1e40), "parameters": (1e3, 1e18), "tokens": (1e3, 1e20), "loss": (0.1, 50.0), "serve": (1.0, 1e24),
    "unique": (1e3, 1e20), "price": (1e-6, 1e6), "days": (1e-6, 1e6), "critical_batch": (1.0, 1e15),
}  # fmt: skip
"""Least and most of each input to a loss law; values outside are typing errors."""


@dataclass(frozen=True, slots=True)
class GpuTrainingRate:
    """Training rate of one GPU in FLOP/s, with 6 FLOP counted per parameter and token.

    ``gpus`` is the number of GPUs (None: unknown); ``description`` is how the rate is known.
    """

    flops: float
    gpus: int | None
    device: str
    description: str

    def gpu_hours(self, compute: float) -> float:
        """Return the GPU-hours for ``compute`` FLOP of training."""
        return compute / self.flops / 3600

    def days(self, compute: float) -> float:
        """Return the days for ``compute`` FLOP of training on all GPUs, or on one GPU if their number is unknown."""
        return compute / self.flops / (self.gpus or 1) / DAY


@dataclass(frozen=True, slots=True)
class ScalingRequest:
    """Question to a loss law in numbers: model, budget, target loss and price, each None if not given.

    ``model`` names the user's model of ``parameters``, to be trained on ``tokens``; ``critical`` is the critical batch
    in tokens, if a loss is known, and ``critical_words`` its source; ``notes`` are assumptions.
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
    rate: GpuTrainingRate
    notes: tuple[str, ...]
    critical: float | None
    critical_words: str


def _parse_bounded_count(value: object, what: str) -> float:
    number, (least, most) = parse_count(value, what), _BOUNDS[what]
    if not least <= number <= most:
        raise InputError(f"{what} {number:.4g}: must lie between {least:g} and {most:g}")
    return number


def request_from_counts(law: LossLaw, given: Mapping[str, Any], device: str) -> ScalingRequest:
    """Return the question to a loss law about a model given by parameter count, or about no model."""
    size = None if given["parameters"] is None else _parse_bounded_count(given["parameters"], "parameters")
    found = load_device(device)
    mfu = given["mfu"]
    peak, share = found.peak_flops("bf16"), 1.0 if mfu is None else parse_share(mfu, "mfu")
    count = None if given["gpus"] is None else parse_whole_number(given["gpus"], "gpus")
    known = "at peak, which no run reaches (set --mfu)" if mfu is None else f"x {share:.3g} MFU"
    rate = GpuTrainingRate(peak * share, count, found.name, f"{peak / 1e12:.4g} TFLOP/s of an {found.name} {known}")
    return _make_request(law, given, "" if size is None else f"{format_count(size)} parameters", size, rate, ())


def request_from_scenario(law: LossLaw, given: Mapping[str, Any], scenario: Scenario) -> tuple[ScalingRequest, float]:
    """Return the question to a loss law about a scenario's model, and the scenario's simulated step time (s).

    The run of the scenario supplies what is not given: tokens, or days without failures, loss, price. InputError for
    numbers that the scenario itself states.
    """
    if twice := [key for key in ("parameters", "gpus", "mfu") if given[key] is not None]:
        raise InputError(f"{', '.join(twice)}: already set by the scenario; remove this option, or the scenario")
    run, more = scenario.run, dict(given)
    if run is not None:
        if given["tokens"] is None and given["compute"] is None and given["days"] is None:
            more["tokens"] = run.tokens if run.steps is None else float(run.steps * scenario.tokens_per_step)
            more["days"] = None if run.days is None or given["loss"] is not None else run.days / DAY
        more |= {key: getattr(run, key) for key in ("loss", "price") if given[key] is None}
    size, notes = _count_parameters(scenario, law)
    step = simulate_scenario(scenario).step_time
    flops = FLOP_PER_TOKEN * size * scenario.tokens_per_step / step / scenario.gpus
    words = f"{flops / 1e12:.4g} TFLOP/s per GPU by 6 N D: the simulated step of {format_seconds(step)}"
    rate = GpuTrainingRate(flops, scenario.gpus, scenario.cluster.device.name, words)
    return _make_request(law, more, scenario.name, size, rate, notes), step


def _make_request(
    law: LossLaw, given: Mapping[str, Any], model: str, size: float | None, rate: GpuTrainingRate, said: tuple[str, ...]
) -> ScalingRequest:
    names = "compute", "tokens", "loss", "serve", "unique", "price"
    compute, tokens, loss, served, unique, price = (
        None if given[name] is None else _parse_bounded_count(given[name], name) for name in names
    )
    days = given["days"]
    if compute is not None and days is not None:
        raise InputError("a budget is either compute, or GPUs and days, but both are given; remove one of the two")
    if days is not None:
        if rate.gpus is None:
            raise InputError("days: the number of GPUs is unknown; set it, as in --gpus 1024 --days 30")
        compute = rate.flops * rate.gpus * _parse_bounded_count(days, "days") * DAY
    if compute is not None and tokens is not None:
        raise InputError("tokens and a compute budget: each determines the other; give only one of the two")
    if compute is None and loss is None and (size is None or tokens is None):
        half = " and ".join(name for name in ("gpus", "days", "parameters", "tokens") if given[name] is not None)
        raise InputError(
            f"scaling: {f'{half} alone does not define a question' if half else 'no input is given'}; give a budget "
            "(--compute 3.15e23, or --gpus 1024 --days 30), a loss (--loss 2.0), or a model with its tokens "
            "(--parameters 7B --tokens 2T)"
        )
    if served and loss is None:
        raise InputError("serve: the loss that the served model must reach is unknown; set loss, as in 2.0")
    critical: tuple[float | None, str] = None, ""
    if given["critical_batch"] != KAPLAN:
        critical = _parse_bounded_count(given["critical_batch"], "critical_batch"), "as given"
    elif loss is not None:
        words = f"by Kaplan et al. 2020 at a loss of {loss:.4g}, fitted on its own data: elsewhere a rough guess"
        critical = kaplan_critical_batch(loss), words
    elif size is not None:
        floor = loss_law(KAPLAN).lowest_loss(size)
        critical = kaplan_critical_batch(floor), f"by Kaplan et al. 2020 at the lowest loss of this size, {floor:.4g}"
    return ScalingRequest(law, model, size, tokens, compute, loss, served or 0.0, unique, price, rate, said, *critical)


def _count_parameters(scenario: Scenario, law: LossLaw) -> tuple[float, tuple[str, ...]]:
    count = parameters_of(scenario.model)
    size = float(count.active)
    notes = []
    if count.active != count.total:
        notes.append(
            f"mixture of experts: {format_count(count.active)} active of {format_count(count.total)} parameters "
            f"are counted; {law.name} is a law of dense models, so the loss is a rough guess"
        )
    if law.counts == "non-embedding":
        size -= count.embedding + count.lm_head
        notes.append(f"{law.name} counts parameters without embeddings: {format_count(size)}")
    return size, tuple(notes)


_BATCH = "training.global_batch"


@dataclass(frozen=True, slots=True)
class ScalingVariant:
    """Simulated variant of a scenario: ``name``, number of GPUs, batch (tokens), and step time (s).

    ``error`` is why an invalid variant could not be simulated.
    """

    name: str
    gpus: int = 0
    batch: float = 0.0
    step_time: float = 0.0
    error: str = ""


def simulate_variants(
    scenario: Scenario, step: float, vary: Mapping[str, Sequence[Any]], *, grow_batch: bool
) -> tuple[ScalingVariant, ...]:
    """Simulate each combination of the values in ``vary``; simulate the scenario unchanged if nothing varies.

    Where the cluster, its GPUs or dp vary, the job takes the whole cluster, and the batch grows too, if
    requested and not varied itself. InputError if no variant is valid.
    """
    if not vary:
        return (ScalingVariant(scenario.name, scenario.gpus, scenario.tokens_per_step, step),)
    names = list(vary)
    found = []
    for values in product(*vary.values()):
        pairs = dict(zip(names, values, strict=True))
        name = ", ".join(f"{key.rsplit('.', 1)[-1]} {value}" for key, value in pairs.items())
        try:
            variant = from_document(scenario.document(), _variant_changes(scenario, pairs, grow_batch=grow_batch))
        except InputError as problem:
            found.append(ScalingVariant(name, error=" ".join(str(problem).split())))
            continue
        found.append(ScalingVariant(name, variant.gpus, variant.tokens_per_step, simulate_scenario(variant).step_time))
    if all(each.error for each in found):
        raise InputError(f"no valid variant: {found[0].name}: {found[0].error}")
    return tuple(found)


def _variant_changes(scenario: Scenario, pairs: Mapping[str, Any], *, grow_batch: bool) -> list[tuple[str, Any]]:
    factor, topology = 1.0, scenario.document()["cluster"]["topology"]
    sizes: dict[str, Any] = {"gpus": scenario.gpus, "parallel.dp": scenario.dp}
    for key in ("nodes", "gpus", "machines"):
        sizes |= dict.fromkeys((f"cluster.{key}", f"cluster.topology.{key}"), topology.get(key))
    free: list[tuple[str, Any]] = []
    for path, value in pairs.items():
        now = sizes.get(path)
        if now and isinstance(now, int | float) and isinstance(value, int | float):
            factor *= value / now
            free += [(other, None) for other in ("gpus", "parallel.dp") if other != path]
    batch = scenario.training.global_batch * factor
    if not grow_batch or factor == 1 or _BATCH in pairs:
        return [*free, *pairs.items()]
    if batch != int(batch):
        raise InputError(
            f"the batch of {scenario.training.global_batch} sequences x {factor:g} is not a whole number; "
            "choose numbers of GPUs that make it one"
        )
    return [*free, (_BATCH, int(batch)), *pairs.items()]


_SMALL = 0.1  # of the critical batch: then 10 % more tokens
Law = str | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ExpectedLoss:
    """Expected final ``loss`` of a run, a description of the loss law (``law_words``), and caveats."""

    loss: float
    law_words: str
    notes: tuple[str, ...]


def tokens_to_loss(scenario: Scenario, loss: float, law: Law) -> float:
    """Return how many tokens a scenario's model needs to reach a loss, if trained at small batches."""
    found = loss_law(law or DEFAULT_LAW)
    size, _ = _count_parameters(scenario, found)
    tokens = found.tokens_to_loss(loss, size)
    if math.isinf(tokens):
        raise InputError(
            f"run.loss: {loss:g} is never reached: by {found.name} a model of {format_count(size)} parameters stays "
            f"above {found.lowest_loss(size):.4f} for any number of tokens; set a higher loss, or use a larger model"
        )
    return tokens


def expected_loss(scenario: Scenario, tokens: float) -> ExpectedLoss | None:
    """Return the loss expected of a scenario's model after ``tokens``; None if the run states no law and no loss."""
    run = scenario.run
    if run is None or (run.law is None and run.loss is None) or not tokens:
        return None
    law = loss_law(run.law or DEFAULT_LAW)
    size, notes = _count_parameters(scenario, law)
    reached = ModelSize(size, tokens, law.loss(size, tokens))
    best = law.compute_optimal_size(reached.compute).loss
    words = f"{law.name}; the best model for the same {format_flop(reached.compute)} reaches {best:.4f}"
    if beyond := law.describe_extrapolation(reached):
        notes = (f"extrapolated: {beyond} outside the fitted runs ({law.describe_range()})", *notes)
    part = scenario.tokens_per_step / kaplan_critical_batch(reached.loss or 1.0)
    if part > _SMALL:
        notes += (
            f"the batch is {part:.2g} x the critical batch (Kaplan et al. 2020); the same loss takes {1 + part:.2g} x "
            "the tokens: not included here (but in simcluster budget loss)",
        )
    return ExpectedLoss(reached.loss or 0.0, words, notes)
