"""Conditions under which fields of a scenario have an effect, as one table.

A field whose feature is disabled by another choice is rejected; one without effect because of a degree, a precision or
a varied value is noted. Pure functions of a scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from simcluster.documents.diagnostics import Complaint, RuleError, shown
from simcluster.model.choices import CONTEXT_METHODS
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.scenario.sections import Collectives, Fsdp, HostMemory
from simcluster.scenario.training_section import Muon

if TYPE_CHECKING:
    from simcluster.documents.spec import Spec
    from simcluster.faults import FaultSpec
    from simcluster.scenario.fields import ScenarioFields

Test = Callable[["ScenarioFields"], object]


@dataclass(frozen=True)
class Condition:
    """Condition that must be ``met`` for ``fields`` of a scenario to have an effect.

    ``on`` are the fields that it depends on. ``why`` explains a missing effect; by default the values of ``on``. With a
    ``remedy`` the field is rejected, and ``what`` explains its purpose. Without one it is noted. ``values`` limits the
    condition to these values.
    """

    fields: tuple[str, ...]
    met: Test
    on: tuple[str, ...]
    why: str = ""
    what: str = ""
    remedy: str = ""
    values: tuple[object, ...] = ()

    def reason(self, scenario: ScenarioFields) -> str:
        """Return why the condition's fields have no effect in the scenario."""
        return self.why or " and ".join(f"{path} is {_format_value(_field_value(scenario, path))}" for path in self.on)


@dataclass(frozen=True)
class IdleField:
    """A scenario field that is set but has no effect, and the condition that is not met."""

    path: str
    condition: Condition
    why: str

    @property
    def complaint(self) -> Complaint:
        """Return the field's key path, and an error message with what would work."""
        what = f"{self.condition.what}, and {self.why}"
        return tuple(self.path.split(".")), f"{what}; {self.condition.remedy}, or remove {self.path.split('.')[-1]}"


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


def _section_fields(section: str, spec: type[Spec], *but: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in spec.model_fields if name not in but)


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# --- what conditions ask --------------------------------------------------------------------------------------------


def _has_replicas(scenario: ScenarioFields) -> bool:
    plan = plan_of(scenario, schedule_of(scenario))
    return plan.replicas > 1 or plan.expert_replicas > 1 or bool(plan.copies)


def _has_slices(scenario: ScenarioFields) -> bool:
    return len(schedule_of(scenario).routes[0]) > 1


def _order_matters(scenario: ScenarioFields) -> bool:
    if scenario.parallel.pp > 1:
        return True
    plain = scenario.pipeline.model_copy(update={"schedule": "1f1b"})
    return schedule_of(scenario).rows != schedule_of(scenario.model_copy(update={"pipeline": plain})).rows


def _is_reordered(scenario: ScenarioFields) -> bool:
    parallel = scenario.parallel
    given, usual = (
        [axis for axis in order if getattr(parallel, axis) > 1]
        for order in (parallel.order, type(parallel).model_fields["order"].default)
    )
    return given != usual


def _is_random(scenario: ScenarioFields) -> bool:
    data = scenario.data
    drawn = data is not None and (data.documents is not None or (data.loader is not None and data.loader.by_chance))
    return drawn or scenario.run is not None or any(fault.by_chance for fault in scenario.faults)


def _has_traffic(scenario: ScenarioFields) -> bool:
    return scenario.gpus > 1 or scenario.memory.offload != HostMemory() or scenario.checkpoint is not None


def _reruns_core(scenario: ScenarioFields) -> bool:
    training, software = scenario.training, scenario.software
    only_core = training.recompute == "selective" and training.recompute_modules == ("core_attn",)
    spared = software is not None and software.selective == "unfused-core" and training.attention == "fused"
    return not (only_core and spared)


def _has_overlap(scenario: ScenarioFields) -> bool:
    parallel, overlap, outer = scenario.parallel, scenario.overlap, scenario.training.outer
    in_layers = (
        (parallel.tp > 1 and (parallel.sequence_parallel or overlap.tensor or overlap.tensor_pieces > 1))
        or (parallel.cp > 1 and _overlaps_pieces(scenario))
        or (parallel.ep > 1 and overlap.experts)
        or (overlap.pairs and max(parallel.tp, parallel.cp, parallel.ep) > 1)
    )
    of_parameters = overlap.grad_reduce or overlap.param_gather or parallel.zero == 3
    return in_layers or parallel.pp > 1 or bool(outer and outer.beside) or (of_parameters and _has_replicas(scenario))


def _overlaps_pieces(scenario: ScenarioFields) -> bool:
    parallel, model, software = scenario.parallel, scenario.model, scenario.software
    method = CONTEXT_METHODS[parallel.cp_comm]
    if method.traders(model.heads // parallel.tp, max(model.kv_heads // parallel.tp, 1), parallel.cp) == parallel.cp:
        return False  # whole sequences of fewer heads
    if software is not None and software.ring == "torch":
        return software.kernels != "compiled"
    return method.keys == "ring"


_DISPATCH = "parallel.expert_dispatch"
_SHARDED = (
    "overlap.grad_reduce",
    "overlap.param_gather",
    "overlap.bucket_size",
    "parallel.zero",
    *_section_fields("fsdp", Fsdp),
)

CONDITIONS: tuple[Condition, ...] = (
    # features that are absent by another choice
    Condition(
        (*_split("parallel.ep parallel.etp overlap.experts"), *_section_fields(_DISPATCH, ExpertDispatch)),
        lambda s: s.model.moe, ("model.moe",), "the model is dense",
        "is for the experts of model.moe", "set model.moe",
    ),
    Condition(
        _split("training.recompute_modules"), lambda s: s.training.recompute == "selective", ("training.recompute",),
        what="lists what a selective recompute repeats", remedy="set recompute to selective",
    ),
    Condition(
        _split("training.recompute_every"), lambda s: s.training.recompute != "none", ("training.recompute",),
        what="selects the layers to recompute", remedy="set recompute to selective or full",
    ),
    Condition(
        _split("memory.offload.ahead memory.offload.modules"), lambda s: s.memory.offload.activations,
        ("memory.offload.activations",), what="is for offloaded activations", remedy="set it to a share",
    ),
    Condition(
        _split("memory.offload.bucket"), lambda s: s.memory.offload.optimizer != "none",
        ("memory.offload.optimizer",), what="is for an offloaded optimizer", remedy="set it to stream or host",
    ),
    Condition(
        _split("memory.offload.buffers"), lambda s: s.memory.offload.optimizer == "stream",
        ("memory.offload.optimizer",), what="is for a streamed optimizer state", remedy="set it to stream",
    ),
    Condition(
        _split("memory.offload.host_update"), lambda s: s.memory.offload.optimizer == "host",
        ("memory.offload.optimizer",), what="is the rate of updates by the host", remedy="set it to host",
    ),
    Condition(
        _section_fields("training.muon", Muon), lambda s: s.training.optimizer == "muon", ("training.optimizer",),
        what="is a setting of Muon", remedy="set it to muon",
    ),
    Condition(
        _section_fields("fsdp", Fsdp, "sync_every_microbatch"), lambda s: s.parallel.zero == 3, ("parallel.zero",),
        what="is for parameters sharded by FSDP", remedy="set zero to 3",
    ),
    Condition(
        _split("fsdp.sync_every_microbatch"), lambda s: s.parallel.zero > 1, ("parallel.zero",),
        what="is for gradients sharded by FSDP", remedy="set zero to 2 or 3",
    ),
    Condition(
        _split("overlap.param_gather"), lambda s: s.parallel.zero, ("parallel.zero",),
        what="is for sharded parameters", remedy="set zero to 1",
    ),
    # degrees
    Condition(
        _split("pipeline.p2p pipeline.scatter_gather overlap.pipeline"), lambda s: s.parallel.pp > 1, ("parallel.pp",)
    ),
    Condition(_split("pipeline.schedule"), _order_matters, ("parallel.pp",)),
    Condition(_split("pipeline.layers_per_stage"), _has_slices, ("parallel.pp",)),
    Condition(
        _split("pipeline.scatter_gather overlap.tensor overlap.tensor_pieces training.muon.tp_mode"),
        lambda s: s.parallel.tp > 1, ("parallel.tp",),
    ),
    Condition(_split("memory.logits"), lambda s: s.parallel.tp > 1, ("parallel.tp",), values=("gathered",)),
    Condition(_split("parallel.cp_comm parallel.cp_shares"), lambda s: s.parallel.cp > 1, ("parallel.cp",)),
    Condition(
        (*_split("overlap.experts"), *_section_fields(_DISPATCH, ExpertDispatch, "kind")), lambda s: s.parallel.ep > 1,
        ("parallel.ep",),
    ),
    Condition(
        (f"{_DISPATCH}.kind",), lambda s: s.parallel.ep > 1, ("parallel.ep",), values=("allgather", "deepep"),
    ),
    Condition(_SHARDED, _has_replicas, ("parallel.dp", "parallel.cp")),
    Condition(_split("training.muon.distribute"), _has_replicas, ("parallel.dp", "parallel.cp")),
    Condition(
        (
            *_section_fields("collectives", Collectives), *_split("overlap.interference"),
            *(f"cluster.scale.{name}" for name in ("nvlink", "network", "pcie", "between_machines", "latency")),
        ),
        _has_traffic, ("gpus",),
    ),
    Condition(_split("memory.communication_buffers"), lambda s: s.gpus > 1, ("gpus",), values=("auto",)),
    Condition(_split("parallel.order"), _is_reordered, (), "the axes that it exchanges have size 1"),
    # other values of the scenario
    Condition(
        _split("model.position"), lambda s: not s.model.mla, ("model.mla",), "model.mla has its own rotary part",
        values=("none",),
    ),
    Condition(_split("training.muon.distribute"), lambda s: s.parallel.zero, ("parallel.zero",)),
    Condition(
        _split("pipeline.scatter_gather"), lambda s: not s.parallel.sequence_parallel,
        ("parallel.sequence_parallel",),
    ),
    Condition(_split("overlap.pipeline"), lambda s: s.pipeline.p2p == "async", ("pipeline.p2p",)),
    Condition(_split("overlap.bucket_size"), lambda s: s.overlap.grad_reduce, ("overlap.grad_reduce",)),
    Condition(_split("overlap.bucket_size"), lambda s: s.parallel.zero != 3, ("parallel.zero",)),
    Condition(
        _split("overlap.interference"), lambda s: s.collectives.detail != "steps", ("collectives.detail",),
        values=("none",),
    ),
    Condition(_split("overlap.interference"), _has_overlap, (), "no communication overlaps with compute"),
    Condition(
        _split("training.recompute training.recompute_every"), _reruns_core, (),
        "the software does not recompute a fused attention",
    ),
    Condition(_split("model.clamped_activation"), lambda s: s.model.moe, ("model.moe",), "the model is dense"),
    Condition(_split("data.unique"), lambda s: s.run, ("run",), "there is no run of weeks"),
    Condition(_split("data"), lambda s: s.data and (s.data.documents or s.data.unique or s.data.loader), ("data",),
         "it sets no documents, unique or loader"),
    Condition(_split("seed replicas"), _is_random, ("faults", "data"), "nothing is random"),
)  # fmt: skip
"""Ordered: the first unmet condition of a field gives the reason."""
_REJECTING = tuple(condition for condition in CONDITIONS if condition.remedy)
assert CONDITIONS[: len(_REJECTING)] == _REJECTING, "of a field's conditions those with a remedy come first"


_DEFAULTS: dict[tuple[type, str], Any] = {}  # of fields, by the section's class


def find_idle_fields(
    scenario: ScenarioFields, conditions: Sequence[Condition] = CONDITIONS
) -> list[IdleField]:  # fmt: skip
    """Return the fields that are set to non-default values but have no effect."""
    found: dict[str, IdleField] = {}
    for condition in conditions:
        paths = [path for path in condition.fields if path not in found and _is_given(scenario, path, condition.values)]
        if paths and not condition.met(scenario):
            found |= {path: IdleField(path, condition, condition.reason(scenario)) for path in paths}
    return list(found.values())


def idle_field_notes(scenario: ScenarioFields) -> Iterator[str]:
    """Yield one sentence for each reason why fields have no effect, with the fields."""
    reasons: dict[str, list[str]] = {}
    for each in find_idle_fields(scenario):
        reasons.setdefault(each.why, []).append(each.path)
    drawn = [place for place, fault in enumerate(scenario.faults) if not fault.by_chance and _is_seeded(fault, place)]
    if drawn:
        reasons["nothing in these faults is random"] = [f"faults.{place}.seed" for place in drawn]
    for why, paths in reasons.items():
        yield f"without effect: {', '.join(paths)}, since {why}"


def _is_seeded(fault: FaultSpec, place: int) -> bool:
    return getattr(fault, "seed", None) not in (None, place)


def reject_idle_fields(scenario: ScenarioFields, changes: Sequence[tuple[str, Any]]) -> None:
    """Raise RuleError for fields of features that another choice disables.

    Where a later change, as of a sweep, disabled the feature, the field is only noted.
    """
    found = find_idle_fields(scenario, _REJECTING)
    told = [each.complaint for each in found if not _was_disabled(each, changes)]
    if told:
        raise RuleError(told)


def _was_disabled(each: IdleField, changes: Sequence[tuple[str, Any]]) -> bool:
    return max(_last_change(path, changes) for path in each.condition.on) > _last_change(each.path, changes)


def _last_change(path: str, changes: Sequence[tuple[str, Any]]) -> int:
    places = (
        number
        for number, (changed, _) in enumerate(changes, 1)
        if f"{path}.".startswith(f"{changed}.") or changed.startswith(f"{path}.")
    )
    return max(places, default=0)


def effective_document(scenario: ScenarioFields) -> dict[str, Any]:
    """Return a scenario's document without fields that a reader would reject for having no effect."""
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


def _is_given(scenario: ScenarioFields, path: str, values: tuple[object, ...]) -> bool:
    section, _, name = path.rpartition(".")
    owner = _field_value(scenario, section) if section else scenario
    if owner is None:
        return False
    value = getattr(owner, name)
    known = type(owner), name
    if known not in _DEFAULTS:
        _DEFAULTS[known] = type(owner).model_fields[name].get_default(call_default_factory=True)
    return value != _DEFAULTS[known] and (not values or value in values)
