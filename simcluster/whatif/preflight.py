"""A launch checklist: what to look at before a job gets its GPUs, each point with the number behind it and a remedy.

A remedy is a change of the scenario that was played: what it says it gives is what the changed scenario gives.
Imports the door, results and scenarios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from simcluster.documents.near import divisors
from simcluster.measuring.metrics import EXPOSED
from simcluster.measuring.replanned import path_seconds_under
from simcluster.model.transformer import parameters
from simcluster.result import Result
from simcluster.scenario.fits import applied
from simcluster.scenario.headroom import HEADROOM
from simcluster.scenario.memory_plan import plan_of
from simcluster.scenario.pipeline_rules import schedule_of, slices_of
from simcluster.simulate import prepare, simulate
from simcluster.units import format_seconds
from simcluster.whatif.sensitivities import scaled

Verdict = Literal["pass", "warn", "fail"]
Values = Mapping[str, Any]

_MOST_TRIED = 3  # remedies of one point that are played
_WORTH = 0.999  # a remedy that makes the step no shorter than this part of it is none
_WORTH_NAMING = 0.0005  # of the step
_COMPUTE = ("forward", "backward", "recompute", "optimizer", "other")

# Kaplan et al., arXiv:2001.08361: B_crit = 2e8 tokens / L^(1/0.21) (eq. 1.4) at L = (8.8e13/N)^0.076 (eq. 1.1).
_KAPLAN_BATCH, _KAPLAN_BATCH_POWER = 2e8, 1 / 0.21
_KAPLAN_PARAMETERS, _KAPLAN_LOSS_POWER = 8.8e13, 0.076


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of the scenario that was played: the step that it gives, in seconds."""

    values: Values
    step_time: float


@dataclass(frozen=True, slots=True)
class Point:
    """One line of the checklist: ``found`` is the number behind the verdict, ``rule`` what it is held against.

    ``advice`` says what to do where no change of the scenario can be tried; ``tries`` are those that can be.
    """

    name: str
    verdict: Verdict
    found: str
    rule: str
    advice: str = ""
    tries: tuple[Values, ...] = ()
    for_time: bool = True
    """A remedy has to make the step shorter; else it has to make the job possible."""
    remedy: Remedy | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        remedy = self.remedy and {"set": dict(self.remedy.values), "step_time_s": self.remedy.step_time}
        named = {name: getattr(self, name) for name in ("name", "verdict", "found", "rule", "advice")}
        return {**named, "remedy": remedy}


def preflight(result: Result) -> list[Point]:
    """Every point of the checklist for a job that was simulated, with a remedy where one was found by playing."""
    return [_remedied(result, check(result)) for check in CHECKS]


def _remedied(result: Result, point: Point) -> Point:
    """The point with the best of its remedies: the shortest step."""
    if point.verdict == "pass":
        return point
    best: Remedy | None = None
    for values in point.tries[:_MOST_TRIED]:
        changed = applied(result.scenario, values)
        if changed is None:
            continue
        played = simulate(changed)
        worth = played.step_time < _WORTH * result.step_time if point.for_time else True
        if worth and played.fits and (best is None or played.step_time < best.step_time):
            best = Remedy(values, played.step_time)
    return replace(point, remedy=best)


def _verdict(value: float, warn: float, fail: float) -> Verdict:
    return "fail" if value > fail else "warn" if value > warn else "pass"


def _named(what: str, share: float) -> str:
    return f", most of it {what}" if share > _WORTH_NAMING else ""


# --- the points -------------------------------------------------------------------------------------------------------


def _layout(result: Result) -> Point:
    scenario = result.scenario
    plan, batch, model = scenario.parallel, scenario.training, scenario.model
    schedule = schedule_of(scenario)
    slices = slices_of(scenario, schedule)
    counts = sorted(set(slices.counts)) if slices else []
    named = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "as their times say"
    layers = f"layers a slice: {named}"
    found = (
        f"{batch.global_batch} = dp {plan.dp} x micro batch {batch.micro_batch} x {scenario.microbatches} "
        f"microbatches; {layers}; {model.heads // plan.tp} heads a rank"
    )
    few = scenario.microbatches < plan.pp
    smaller = [{"training.micro_batch": size} for size in reversed(divisors(batch.micro_batch)[:-1])]
    return Point(
        "divisibility", "warn" if few else "pass", found,
        "everything divides; at least as many microbatches as stages",
        "fewer microbatches than stages: the pipeline is never full" if few else "",
        tuple(smaller),
    )  # fmt: skip


def _memory(result: Result) -> Point:
    used = result.memory.total / result.facts.memory
    tries = tuple(each.values for each in result.remedies.found) if result.remedies else ()
    return Point(
        "memory headroom", _verdict(used, 1 - HEADROOM, 1.0),
        f"{result.memory.total / 1e9:.1f} of {result.facts.memory / 1e9:.1f} GB ({used:.0%}) on the fullest GPU",
        f"at most {100 * (1 - HEADROOM):.0f} %; above 100 % it does not fit",
        "more recomputation, or a higher ZeRO stage", tries, for_time=False,
    )  # fmt: skip


def _tensor_domain(result: Result) -> Point:
    plan, cluster = plan_of(result.scenario), result.scenario.cluster.built
    groups = plan.groups("tp")
    switch = {gpu: cluster.nvswitch(gpu) or f"machine {cluster.host_of[gpu]}" for gpu in range(result.facts.ranks)}
    crossing = sum(len({switch[int(rank)] for rank in group}) > 1 for group in groups) if plan.tp > 1 else 0
    sizes: dict[str, int] = {}
    for name in switch.values():
        sizes[name] = sizes.get(name, 0) + 1
    domain = min(sizes.values())
    return Point(
        "tp inside the NVLink domain", "fail" if crossing else "pass",
        f"tp {plan.tp}, domains of {domain} GPUs" + (f"; {crossing} of {len(groups)} groups cross" if crossing else ""),
        "no tp group leaves its NVLink domain",
        tries=tuple({"parallel.tp": size} for size in reversed(divisors(plan.tp)) if size <= domain), for_time=False,
    )  # fmt: skip


def _critical_batch(result: Result) -> Point:
    size = parameters(result.scenario.model).total
    loss = (_KAPLAN_PARAMETERS / size) ** _KAPLAN_LOSS_POWER
    critical = _KAPLAN_BATCH / loss**_KAPLAN_BATCH_POWER
    tokens = result.facts.tokens
    return Point(
        "batch against the critical batch", _verdict(tokens / critical, 1.0, 4.0),
        f"{tokens / 1e6:.2f} M tokens a step, {tokens / critical:.0%} of {critical / 1e6:.1f} M",
        "above it more samples hardly save steps (arXiv:2001.08361 eq. 1.4 at the loss of eq. 1.1: a rule of thumb)",
        "a smaller training.global_batch, or fewer GPUs",
    )  # fmt: skip


def _bubble(result: Result) -> Point:
    scenario, bubble = result.scenario, result.times.bubble_fraction
    plan, model = scenario.parallel, scenario.model
    chunks = [
        {"pipeline.schedule": "interleaved", "pipeline.chunks": count}
        for count in (2, 3, 4)
        if model.layers % (plan.pp * count) == 0 and scenario.microbatches % plan.pp == 0
        and (scenario.pipeline.schedule, scenario.pipeline.chunks) != ("interleaved", count)
    ]  # fmt: skip
    smaller = [{"training.micro_batch": size} for size in divisors(scenario.training.micro_batch)[-2:-1]]
    fewer = [{"parallel.pp": size} for size in divisors(plan.pp)[-2:-1]]
    return Point(
        "pipeline bubble", _verdict(bubble, 0.10, 0.25), f"{bubble:.1%} of the pipeline's time",
        "at most 10 %; above 25 % something is wrong", "more microbatches, more chunks, or fewer stages",
        (*chunks[-1:], *smaller, *fewer),
    )  # fmt: skip


_HIDES: Mapping[str, tuple[Values, ...]] = {
    "tp": ({"overlap.tensor": True}, {"parallel.sequence_parallel": True}),
    "pp": ({"overlap.pipeline": True},),
    "ep": ({"overlap.pairs": True}, {"overlap.experts": True}),
    "dp": ({"overlap.grad_reduce": True, "overlap.param_gather": True}, {"overlap.grad_reduce": True}),
}


def _exposed(result: Result) -> Point:
    exposed = {axis: result.times.breakdown[f"exposed_{axis}"] for axis in EXPOSED}
    share = sum(exposed.values()) / result.step_time
    most = max(exposed, key=lambda axis: exposed[axis])
    return Point(
        "exposed communication", _verdict(share, 0.15, 0.30),
        f"{share:.1%} of the step{_named(f'{most} ({exposed[most] / result.step_time:.1%})', share)}",
        "at most 15 %; above 30 % GPUs wait more than they should", "another layout, or faster links",
        _HIDES.get(most, ()),
    )  # fmt: skip


def _contention(result: Result) -> Point:
    lost = {axis: each.contention for axis, each in result.account.axes.items()}
    share = sum(lost.values()) / result.step_time
    most = max(lost, key=lambda axis: lost[axis])
    orders = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
    return Point(
        "oversubscription on the rings' way", _verdict(share, 0.02, 0.10),
        f"{share:.1%} of the step is lost to shared links{_named(most, share)}",
        "at most 2 %", "adaptive routing, or ranks placed so that rings stay below a leaf switch",
        tuple({"parallel.order": order} for order in orders if order != tuple(result.scenario.parallel.order)),
    )  # fmt: skip


def _last_stage(result: Result) -> Point:
    own = [sum(stage[name] for name in _COMPUTE) for stage in result.breakdown_of_stages]
    if len(own) < 2:
        return Point("balance of stages", "pass", "one stage", "the slowest stage at most 5 % above the mean")
    slowest = max(range(len(own)), key=lambda stage: own[stage])
    others = (sum(own) - own[slowest]) / (len(own) - 1)
    over = own[slowest] / others - 1
    last = " (it has the LM head)" if slowest == len(own) - 1 else ""
    return Point(
        "balance of stages", _verdict(over, 0.05, 0.15),
        f"stage {slowest}{last} computes {format_seconds(own[slowest])}, {over:+.1%} against the others",
        "the slowest stage at most 5 % above the others", "fewer layers on that stage",
        ({"pipeline.layers_per_stage": "auto"},),
    )  # fmt: skip


def _launches(result: Result) -> Point:
    faster = prepare(scaled(result.scenario, "launch", 1.0)).lowered  # half the time
    under = path_seconds_under(result.critical_path, result.lowered, faster)
    share = 0.0 if under is None else 2 * (result.step_time - under) / result.step_time
    micro = result.scenario.training.micro_batch
    larger = tuple({"training.micro_batch": micro * factor} for factor in (2, 4))
    return Point(
        "launch-bound microbatches", _verdict(share, 0.05, 0.20),
        "not known" if under is None else f"{share:.1%} of the step is launching kernels and host work",
        "at most 5 %", "larger microbatches, fewer and larger kernels, CUDA graphs", larger,
    )  # fmt: skip


CHECKS: tuple[Callable[[Result], Point], ...] = (
    _layout, _memory, _tensor_domain, _critical_batch, _bubble, _exposed, _contention, _last_stage, _launches,
)  # fmt: skip
"""Every point of the checklist, in the order in which it is read."""


def worst(points: list[Point]) -> Verdict:
    """The verdict of the whole list."""
    return max((point.verdict for point in points), key=("pass", "warn", "fail").index)


def written(values: Values) -> Iterator[str]:
    """A change as the command line takes it."""
    for path, value in values.items():
        text = (
            f"[{', '.join(value)}]"
            if isinstance(value, tuple)
            else str(value).lower()
            if isinstance(value, bool)
            else value
        )
        yield f"{path}={text}"
