"""Conditions under which scenario fields have an effect, and detection of fields set without effect.

A field whose feature is disabled by another choice is rejected; one without effect because of a degree, a precision or
a varied value is noted. Pure functions of a scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from simcluster.documents.diagnostics import KeyProblem, RuleError, quote_value
from simcluster.model.documented_kind import can_pass_states
from simcluster.model.kernel_choices import QUANTIZED
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.scenario.effect_conditions import (
    has_custom_axis_order,
    has_overlap,
    has_random_draws,
    has_replicas,
    has_several_slices,
    has_traffic,
    recomputes_attention_core,
    schedule_has_effect,
)
from simcluster.scenario.sections import Collectives, Fsdp
from simcluster.scenario.training_section import MuonSpec

if TYPE_CHECKING:
    from simcluster.documents.base_spec import Spec
    from simcluster.faults import FaultSpec
    from simcluster.scenario.scenario_fields import ScenarioFields

Test = Callable[["ScenarioFields"], object]


@dataclass(frozen=True)
class EffectCondition:
    """Condition that a scenario must meet for certain fields to have an effect.

    ``depends_on`` are the fields that it depends on. ``explanation`` is of a missing effect; by default their values.
    With a ``remedy`` the field is rejected, and ``purpose`` says what it is for. Without one it is noted. ``values``
    limits the condition to these values.
    """

    fields: tuple[str, ...]
    is_met: Test
    depends_on: tuple[str, ...]
    explanation: str = ""
    purpose: str = ""
    remedy: str = ""
    values: tuple[object, ...] = ()

    def describe_reason(self, scenario: ScenarioFields) -> str:
        """Return why these fields have no effect in the scenario."""
        values = (f"{path} is {_format_value(_field_value(scenario, path))}" for path in self.depends_on)
        return self.explanation or " and ".join(values)


@dataclass(frozen=True)
class IdleField:
    """A scenario field that is set but has no effect, and the unmet condition that would give it one."""

    path: str
    condition: EffectCondition
    reason: str

    @property
    def key_problem(self) -> KeyProblem:
        """Key path of the field without effect, and an error message with the remedy."""
        what = f"{self.condition.purpose}, but {self.reason}"
        return tuple(self.path.split(".")), f"{what}; {self.condition.remedy}, or remove {self.path.split('.')[-1]}"


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else quote_value(value)


def _section_fields(section: str, spec: type[Spec], *but: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in spec.model_fields if name not in but)


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# --- what conditions ask --------------------------------------------------------------------------------------------


_DISPATCH = "parallel.expert_dispatch"
_SHARDED = (
    *_split_words("overlap.grad_reduce overlap.param_gather overlap.bucket_size parallel.zero"),
    *_section_fields("fsdp", Fsdp),
)

CONDITIONS: tuple[EffectCondition, ...] = (
    # features that are absent by another choice
    EffectCondition(
        (*_split_words("parallel.ep parallel.etp overlap.experts"), *_section_fields(_DISPATCH, ExpertDispatch)),
        lambda s: s.model.moe, ("model.moe",), "the model is dense",
        "applies only to experts (model.moe)", "set model.moe",
    ),
    EffectCondition(
        ("training.recompute_modules",), lambda s: s.training.recompute == "selective", ("training.recompute",),
        purpose="applies only to selective recomputation", remedy="set recompute to selective",
    ),
    EffectCondition(
        _split_words("training.recompute_every"), lambda s: s.training.recompute != "none", ("training.recompute",),
        purpose="applies only to recomputation", remedy="set recompute to selective or full",
    ),
    EffectCondition(
        ("training.layers_in_16_bits",), lambda s: s.training.precision in QUANTIZED, ("training.precision",),
        purpose="applies only to low precision", remedy="set precision to fp8-mixed, mxfp8-mixed or nvfp4-mixed",
    ),
    EffectCondition(
        ("training.fp8_scaling",),
        lambda s: s.training.precision == "fp8-mixed" and getattr(s.software, "kernels", "fused") == "fused",
        ("training.precision", "software"), "the job has another precision or software",
        "applies only to fp8-mixed with software.kernels fused", "set both",
    ),
    EffectCondition(
        _split_words("memory.offload.ahead memory.offload.modules"),
        lambda s: s.memory.offload.activations, ("memory.offload.activations",),
        purpose="applies only to offloaded activations", remedy="set activations above 0",
    ),
    EffectCondition(
        ("memory.offload.bucket",), lambda s: s.memory.offload.optimizer != "none", ("memory.offload.optimizer",),
        purpose="applies only to an offloaded optimizer", remedy="set optimizer to stream or host",
    ),
    EffectCondition(
        _split_words("memory.offload.buffers"), lambda s: s.memory.offload.optimizer == "stream",
        ("memory.offload.optimizer",), purpose="applies only to a streamed optimizer", remedy="set optimizer to stream",
    ),
    EffectCondition(
        _split_words("memory.offload.host_update"), lambda s: s.memory.offload.optimizer == "host",
        ("memory.offload.optimizer",), purpose="applies only to updates on the host", remedy="set optimizer to host",
    ),
    EffectCondition(
        _section_fields("training.muon", MuonSpec), lambda s: s.training.optimizer == "muon", ("training.optimizer",),
        purpose="applies only to Muon", remedy="set optimizer to muon",
    ),
    EffectCondition(
        _section_fields("fsdp", Fsdp, "sync_every_microbatch"), lambda s: s.parallel.zero == 3, ("parallel.zero",),
        purpose="applies only to FSDP (ZeRO 3)", remedy="set zero to 3",
    ),
    EffectCondition(
        _split_words("fsdp.sync_every_microbatch"), lambda s: s.parallel.zero > 1, ("parallel.zero",),
        purpose="applies only to sharded gradients (ZeRO 2 or 3)", remedy="set zero to 2 or 3",
    ),
    EffectCondition(
        _split_words("overlap.param_gather"), lambda s: s.parallel.zero, ("parallel.zero",),
        purpose="applies only under ZeRO 1 to 3", remedy="set zero to 1",
    ),
    # degrees
    EffectCondition(
        _split_words("pipeline.p2p pipeline.scatter_gather overlap.pipeline"),
        lambda s: s.parallel.pp > 1, ("parallel.pp",),
    ),
    EffectCondition(_split_words("pipeline.schedule"), schedule_has_effect, ("parallel.pp",)),
    EffectCondition(_split_words("pipeline.layers_per_stage"), has_several_slices, ("parallel.pp",)),
    EffectCondition(
        _split_words("pipeline.scatter_gather overlap.tensor overlap.tensor_pieces training.muon.tp_mode"),
        lambda s: s.parallel.tp > 1, ("parallel.tp",),
    ),
    EffectCondition(_split_words("memory.logits"), lambda s: s.parallel.tp > 1, ("parallel.tp",), values=("gathered",)),
    EffectCondition(
        _split_words("parallel.cp_comm parallel.cp_inner parallel.cp_shares parallel.cp_states"),
        lambda s: s.parallel.cp > 1, ("parallel.cp",),
    ),
    EffectCondition(("parallel.cp_inner",), lambda s: s.parallel.cp_comm == "hybrid", ("parallel.cp_comm",)),
    EffectCondition(("parallel.cp_states",), lambda s: can_pass_states(s.model), (), "no layer passes states"),
    EffectCondition(
        ("overlap.experts", *_section_fields(_DISPATCH, ExpertDispatch, "kind")),
        lambda s: s.parallel.ep > 1, ("parallel.ep",),
    ),
    EffectCondition((f"{_DISPATCH}.kind",), lambda s: s.parallel.ep > 1, ("parallel.ep",), values=("deepep",)),
    EffectCondition(
        (f"{_DISPATCH}.kind",), lambda s: s.parallel.ep * (s.parallel.etp or s.parallel.tp) > 1, (),
        "no ranks share experts", values=("allgather",),
    ),
    EffectCondition(_SHARDED, has_replicas, ("parallel.dp", "parallel.cp")),
    EffectCondition(_split_words("training.muon.distribute"), has_replicas, ("parallel.dp", "parallel.cp")),
    EffectCondition(
        (
            *_section_fields("collectives", Collectives), *_split_words("overlap.interference"),
            *(f"cluster.scale.{name}" for name in ("nvlink", "network", "pcie", "between_machines", "latency")),
        ),
        has_traffic, ("gpus",),
    ),
    EffectCondition(_split_words("memory.communication_buffers"), lambda s: s.gpus > 1, ("gpus",), values=("auto",)),
    EffectCondition(("parallel.order",), has_custom_axis_order, (), "the axes that it reorders have size 1"),
    # other values of the scenario
    EffectCondition(_split_words("training.muon.distribute"), lambda s: s.parallel.zero, ("parallel.zero",)),
    EffectCondition(
        ("pipeline.scatter_gather",), lambda s: not s.parallel.sequence_parallel, ("parallel.sequence_parallel",),
    ),
    EffectCondition(_split_words("overlap.pipeline"), lambda s: s.pipeline.p2p == "async", ("pipeline.p2p",)),
    EffectCondition(_split_words("overlap.bucket_size"), lambda s: s.overlap.grad_reduce, ("overlap.grad_reduce",)),
    EffectCondition(_split_words("overlap.bucket_size"), lambda s: s.parallel.zero != 3, ("parallel.zero",)),
    EffectCondition(
        ("overlap.interference",), lambda s: s.collectives.detail != "steps", ("collectives.detail",), values=("none",),
    ),
    EffectCondition(_split_words("overlap.interference"), has_overlap, (), "no communication overlaps with compute"),
    EffectCondition(
        _split_words("training.recompute training.recompute_every"), recomputes_attention_core, (),
        "there is no attention, or the software does not recompute a fused one",
    ),
    EffectCondition(
        ("model.clamped_activation", "model.hash_routing"), lambda s: s.model.moe, ("model.moe",), "the model is dense",
    ),
    EffectCondition(_split_words("data.unique"), lambda s: s.run, ("run",), "there is no run section"),
    EffectCondition(("data",), lambda s: s.data and (s.data.documents or s.data.unique or s.data.loader), ("data",),
         "data sets no documents, unique or loader"),
    EffectCondition(_split_words("seed replicas"), has_random_draws, ("faults", "data"), "nothing is random"),
)  # fmt: skip
"""All conditions; the first unmet one of a field gives the reason."""
_REJECTING = tuple(condition for condition in CONDITIONS if condition.remedy)
assert CONDITIONS[: len(_REJECTING)] == _REJECTING, "conditions with a remedy must come before the others"

_DEFAULTS: dict[tuple[type, str], Any] = {}  # of fields, by the section's class


def find_idle_fields(
    scenario: ScenarioFields, conditions: Sequence[EffectCondition] = CONDITIONS
) -> list[IdleField]:  # fmt: skip
    """Return the scenario fields with non-default values that have no effect."""
    found: dict[str, IdleField] = {}
    for condition in conditions:
        paths = [path for path in condition.fields if path not in found and _is_set(scenario, path, condition.values)]
        if paths and not condition.is_met(scenario):
            found |= {path: IdleField(path, condition, condition.describe_reason(scenario)) for path in paths}
    return list(found.values())


def describe_idle_fields(scenario: ScenarioFields) -> Iterator[str]:
    """Yield one sentence per reason for missing effects, naming the fields without effect."""
    reasons: dict[str, list[str]] = {}
    for each in find_idle_fields(scenario):
        reasons.setdefault(each.reason, []).append(each.path)
    idle = [place for place, each in enumerate(scenario.faults) if not each.is_random and _has_custom_seed(each, place)]
    if idle:
        reasons["nothing in these faults is random"] = [f"faults.{place}.seed" for place in idle]
    for why, paths in reasons.items():
        yield f"without effect: {', '.join(paths)}, since {why}"


def _has_custom_seed(fault: FaultSpec, place: int) -> bool:
    return getattr(fault, "seed", None) not in (None, place)


def reject_idle_fields(scenario: ScenarioFields, changes: Sequence[tuple[str, Any]]) -> None:
    """Raise RuleError if the scenario sets fields of a feature that is switched off.

    Where a later change, as of a sweep, disabled the feature, the field is only noted.
    """
    found = find_idle_fields(scenario, _REJECTING)
    told = [each.key_problem for each in found if not _was_disabled_later(each, changes)]
    if told:
        raise RuleError(told)


def _was_disabled_later(each: IdleField, changes: Sequence[tuple[str, Any]]) -> bool:
    own = _last_change_number(each.path, changes)
    return max(_last_change_number(path, changes) for path in each.condition.depends_on) > own


def _last_change_number(path: str, changes: Sequence[tuple[str, Any]]) -> int:
    touched = (f"{path}.".startswith(f"{changed}.") or changed.startswith(f"{path}.") for changed, _ in changes)
    return max((number for number, found in enumerate(touched, 1) if found), default=0)


def effective_document(scenario: ScenarioFields) -> dict[str, Any]:
    """Return a scenario's document without fields that would be rejected for having no effect."""
    document: dict[str, Any] = scenario.model_dump(mode="json", exclude_none=True)
    for each in find_idle_fields(scenario, _REJECTING):
        *sections, name = each.path.split(".")
        inner: Mapping[str, Any] = document
        for section in sections:
            inner = inner.get(section, {})
        if isinstance(inner, dict):
            inner.pop(name, None)
    return document


def _field_value(owner: Any, path: str) -> Any:
    return reduce(lambda value, name: getattr(value, name, None), path.split("."), owner)


def _is_set(scenario: ScenarioFields, path: str, values: tuple[object, ...]) -> bool:
    section, _, name = path.rpartition(".")
    owner = _field_value(scenario, section) if section else scenario
    if owner is None:
        return False
    value = getattr(owner, name)
    known = type(owner), name
    if known not in _DEFAULTS:
        _DEFAULTS[known] = type(owner).model_fields[name].get_default(call_default_factory=True)
    return value != _DEFAULTS[known] and (not values or value in values)
