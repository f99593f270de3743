"""Points of the launch checklist: the check of each point, and scenario changes that may help.

Only steps that a number needs are simulated here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simcluster.base.units import format_seconds
from simcluster.documents.suggestions import divisors
from simcluster.model.layers import parameters
from simcluster.results.overlap import CommunicationKey
from simcluster.results.path_estimate import estimate_path_seconds
from simcluster.results.result import Result
from simcluster.results.span_states import COMPUTE_KINDS, EXPOSED
from simcluster.scenario.memory_plan import HEADROOM
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import schedule_of, slices_of
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.whatif.remedies import (
    Remedy,
    Values,
    Verdict,
    grade_number,
    list_bubble_remedies,
    list_expert_remedies,
    list_exposure_remedies,
    list_memory_remedies,
    list_sharding_remedies,
    list_tp_domain_remedies,
)
from simcluster.studies.whatif.sensitivities import scale_resource

_WORTH_NAMING = 0.0005  # of the step
_EXPERTS_ALONE = 8  # experts that every rank may hold: Mixtral's
_UNEVEN = 0.05  # by how much the slowest stage may be above the others

# Kaplan et al., arXiv:2001.08361: B_crit = 2e8 tokens / L^(1/0.21) (eq. 1.4) at L = (8.8e13/N)^0.076 (eq. 1.1).
_KAPLAN_BATCH, _KAPLAN_BATCH_POWER = 2e8, 1 / 0.21
_KAPLAN_PARAMETERS, _KAPLAN_LOSS_POWER = 8.8e13, 0.076


@dataclass(frozen=True, slots=True)
class ChecklistPoint:
    """One point of the launch checklist: the number ``found``, the ``rule`` for this number, and a verdict.

    ``advice`` says what to do where no change of the scenario can be tried; ``changes_to_try`` are those that can be,
    most promising first.
    """

    name: str
    verdict: Verdict
    found: str
    rule: str
    advice: str = ""
    changes_to_try: tuple[Values, ...] = ()
    must_shorten_step: bool = True
    """Whether a remedy must make the step shorter; if not, it must improve the verdict, at any cost."""
    remedies: tuple[Remedy, ...] = ()
    """Changes among ``changes_to_try`` that help according to a simulation, best first."""

    @property
    def remedy(self) -> Remedy | None:
        """Best remedy of this point; None if none was found."""
        return self.remedies[0] if self.remedies else None

    def to_dict(self) -> dict[str, Any]:
        """Return the point as JSON-ready values."""
        named = {name: getattr(self, name) for name in ("name", "verdict", "found", "rule", "advice")}
        remedies = [remedy.to_dict() for remedy in self.remedies]
        return {**named, "remedy": remedies[0] if remedies else None, "remedies": remedies}


Check = Callable[[Result], ChecklistPoint]


def _main_part_text(what: str, share: float) -> str:
    return f", most of it {what}" if share > _WORTH_NAMING else ""


# --- the points -------------------------------------------------------------------------------------------------------


def _check_layout(result: Result) -> ChecklistPoint:
    scenario = result.scenario
    plan, batch, model = scenario.parallel, scenario.training, scenario.model
    schedule = schedule_of(scenario)
    slices = slices_of(scenario, schedule)
    counts = sorted(set(slices.counts)) if slices else []
    named = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "split by times"
    layers = f"layers per slice: {named}"
    found = (
        f"{batch.global_batch} = dp {plan.dp} x micro batch {batch.micro_batch} x {scenario.microbatches} "
        f"microbatches; {layers}; {model.heads // plan.tp} heads per rank"
    )
    few = scenario.microbatches < plan.pp
    smaller = [{"training.micro_batch": size} for size in reversed(divisors(batch.micro_batch)[:-1])]
    return ChecklistPoint(
        "divisibility", "warn" if few else "pass", found,
        "all sizes divide evenly; at least as many microbatches as stages",
        "fewer microbatches than stages: the pipeline is never full" if few else "",
        tuple(smaller),
    )  # fmt: skip


def _check_memory(result: Result) -> ChecklistPoint:
    used = result.memory.total / result.facts.memory
    tight = list_memory_remedies(result.scenario)
    tries = tuple(each.values for each in result.remedies.found) if result.remedies else tight
    return ChecklistPoint(
        "memory headroom", grade_number(used, 1 - HEADROOM, 1.0),
        f"{result.memory.total / 1e9:.1f} of {result.facts.memory / 1e9:.1f} GB ({used:.0%}) on the fullest GPU",
        f"at most {100 * (1 - HEADROOM):.0f} %; above 100 % is out of memory",
        "more recomputation, or a higher ZeRO stage", tries, must_shorten_step=False,
    )  # fmt: skip


def _check_tensor_domain(result: Result) -> ChecklistPoint:
    plan, cluster = result.job.plan, result.scenario.cluster.built
    groups = plan.groups("tp")
    switch = {gpu: cluster.nvswitch(gpu) or f"machine {cluster.host_of[gpu]}" for gpu in range(result.facts.ranks)}
    crossing = sum(len({switch[int(rank)] for rank in group}) > 1 for group in groups) if plan.tp > 1 else 0
    domain = min(Counter(switch.values()).values())
    return ChecklistPoint(
        "tp inside the NVLink domain", "fail" if crossing else "pass",
        f"tp {plan.tp}, NVLink domains of {domain}" + (f"; {crossing} of {len(groups)} leave it" if crossing else ""),
        "no tp group leaves its NVLink domain",
        changes_to_try=list_tp_domain_remedies(result.scenario, domain), must_shorten_step=False,
    )  # fmt: skip


def _check_critical_batch(result: Result) -> ChecklistPoint:
    size = parameters(result.scenario.model).total
    loss = (_KAPLAN_PARAMETERS / size) ** _KAPLAN_LOSS_POWER
    critical = _KAPLAN_BATCH / loss**_KAPLAN_BATCH_POWER
    tokens = result.facts.tokens
    return ChecklistPoint(
        "batch against the critical batch", grade_number(tokens / critical, 1.0, 4.0),
        f"{tokens / 1e6:.2f} M tokens per step, {tokens / critical:.0%} of {critical / 1e6:.1f} M",
        "above it, larger batches hardly save steps (rule of thumb: arXiv:2001.08361 eq. 1.4 at the loss of eq. 1.1)",
        "a smaller training.global_batch, or fewer GPUs",
    )  # fmt: skip


def _check_bubble(result: Result) -> ChecklistPoint:
    bubble, own = result.times.bubble_fraction, result.schedule_bubble
    uneven = _slowest_stage_excess(result) > _UNEVEN
    why = ", as the stages are uneven" if bubble > own.fraction and uneven else ""
    beside = f"; {own.describe()}{why}" if own.fraction else ""
    return ChecklistPoint(
        "pipeline bubble", grade_number(bubble, 0.10, 0.25), f"{bubble:.1%} of the step waits for other stages{beside}",
        "at most 10 %; above 25 % the pipeline is misconfigured", "more microbatches, more chunks, or fewer stages",
        list_bubble_remedies(result, uneven_stages=uneven),
    )  # fmt: skip


def _check_zero_under_pipeline(result: Result) -> ChecklistPoint:
    """Check that ZeRO does not reduce or gather in every microbatch of a pipeline.

    DeepSpeed (runtime/pipe/engine.py): "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"; why: its issue
    4164. Megatron-LM's distributed optimizer shards the optimizer's state. PyTorch's pipeline stages sum gradients up
    and reduce them in the last microbatch (torch/distributed/pipelining/stage.py, ``backward_maybe_with_nosync``).
    """
    scenario = result.scenario
    zero, pp = scenario.parallel.zero, scenario.parallel.pp
    every = []
    if zero > 1 and scenario.fsdp.sync_every_microbatch:
        every.append("gradients are reduced")
    if zero > 2 and scenario.fsdp.reshard_after_forward:
        every.append("parameters are gathered")
    bad = pp > 1 and bool(every)
    seconds = result.overlap.mean[CommunicationKey("dp")].wire if bad else 0.0
    how = f"; {' and '.join(every)} in each of {scenario.microbatches} microbatches"
    wire = f": {format_seconds(seconds)} of dp communication per step"
    return ChecklistPoint(
        "ZeRO under the pipeline", "warn" if bad else "pass", f"ZeRO-{zero}, pp {pp}" + (how + wire if bad else ""),
        "ZeRO-0 or 1 under a pipeline: DeepSpeed rejects 2 and 3, Megatron-LM shards only the optimizer state",
        "parallel.zero 1, or accumulate gradients and reduce them once (fsdp.sync_every_microbatch: false)",
        list_sharding_remedies(scenario), must_shorten_step=False,
    )  # fmt: skip


def _check_exposed_communication(result: Result) -> ChecklistPoint:
    exposed = {axis: result.times.breakdown[f"exposed_{axis}"] for axis in EXPOSED}
    share = sum(exposed.values()) / result.step_time
    most = max(exposed, key=lambda axis: exposed[axis])
    return ChecklistPoint(
        "exposed communication", grade_number(share, 0.15, 0.30),
        f"{share:.1%} of the step{_main_part_text(f'{most} ({exposed[most] / result.step_time:.1%})', share)}",
        "at most 15 %; above 30 % GPUs wait too long", "another layout, or faster links",
        list_exposure_remedies(result),
    )  # fmt: skip


def _check_contention(result: Result) -> ChecklistPoint:
    lost = {axis: each.contention for axis, each in result.account.axes.items()}
    share = sum(lost.values()) / result.step_time
    most = max(lost, key=lambda axis: lost[axis])
    orders = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
    return ChecklistPoint(
        "oversubscription of shared links", grade_number(share, 0.02, 0.10),
        f"{share:.1%} of the step is lost to shared links{_main_part_text(most, share)}",
        "at most 2 %", "adaptive routing, or ranks placed so that rings stay below a leaf switch",
        tuple({"parallel.order": order} for order in orders if order != tuple(result.scenario.parallel.order)),
    )  # fmt: skip


def _check_stage_balance(result: Result) -> ChecklistPoint:
    own = _compute_seconds_by_stage(result)
    if len(own) < 2:
        return ChecklistPoint("balance of stages", "pass", "one stage", "the slowest stage at most 5 % above the mean")
    slowest, over = own.index(max(own)), _slowest_stage_excess(result)
    last = " (it has the LM head)" if slowest == len(own) - 1 else ""
    return ChecklistPoint(
        "balance of stages", grade_number(over, _UNEVEN, 0.15),
        f"stage {slowest}{last} computes {format_seconds(own[slowest])}, {over:+.1%} from the mean of the others",
        "the slowest stage at most 5 % above the others", "fewer layers on that stage",
        (result.scenario.pipeline.stage_layer_changes("auto"),),
    )  # fmt: skip


def _compute_seconds_by_stage(result: Result) -> list[float]:
    return [sum(stage[name] for name in COMPUTE_KINDS) for stage in result.stage_breakdowns]


def _slowest_stage_excess(result: Result) -> float:
    own = sorted(_compute_seconds_by_stage(result))
    return own[-1] / (sum(own[:-1]) / (len(own) - 1)) - 1 if len(own) > 1 else 0.0


def _check_launch_time(result: Result) -> ChecklistPoint:
    scenario = scale_resource(result.scenario, "launch", 1.0)  # half the time
    faster = simulate_scenario(result.loading.delayed_scenario(scenario) if result.loading else scenario)
    under = estimate_path_seconds(result.critical_path, result, faster)
    share = 0.0 if under is None else 2 * (result.step_time - under) / result.step_time
    micro = result.scenario.training.micro_batch
    larger = tuple({"training.micro_batch": micro * factor} for factor in (2, 4))
    return ChecklistPoint(
        "launch-bound microbatches", grade_number(share, 0.05, 0.20),
        "not known" if under is None else f"{share:.1%} of the step is launching kernels and host work",
        "at most 5 %", "larger microbatches, fewer and larger kernels, CUDA graphs", larger,
    )  # fmt: skip


def _check_expert_parallelism(result: Result) -> ChecklistPoint:
    plan, count = result.scenario.parallel, result.job.model.moe.experts if result.job.model.moe else 0
    alone = plan.ep == 1 and plan.tp * plan.dp > 1 and count > _EXPERTS_ALONE
    return ChecklistPoint(
        "expert parallelism", "warn" if alone else "pass",
        f"ep {plan.ep}: {count // plan.ep:,} of {count:,} experts per rank",
        f"ep above 1 with more than {_EXPERTS_ALONE} experts",
        "shard experts over ranks: fewer experts per rank, more tokens each", list_expert_remedies(result.scenario),
    )  # fmt: skip


CHECKS: tuple[Check, ...] = (
    _check_layout, _check_memory, _check_tensor_domain, _check_zero_under_pipeline, _check_critical_batch,
    _check_bubble, _check_exposed_communication, _check_contention, _check_stage_balance, _check_launch_time,
)  # fmt: skip
"""Every check of the checklist, in the order of the printed list."""


def list_checks(scenario: Scenario) -> tuple[Check, ...]:
    """Return the checks that apply to a scenario; mixture-of-experts models have an additional check."""
    return (*CHECKS, _check_expert_parallelism) if scenario.model.moe else CHECKS
