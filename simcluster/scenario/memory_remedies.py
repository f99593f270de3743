"""Search for the fewest changes to a scenario that make it fit in GPU memory, cheapest first.

Every combination is checked against all rules of a scenario and the bytes of its stages, so each remedy really fits.
The time cost of a change is a rough guess that only orders combinations of equal length. Planning: nothing is
simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import format_value_inline
from simcluster.documents.suggestions import divisors
from simcluster.model.kernel_choices import RecomputeModule
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.memory_plan import ELEMENT_BYTES
from simcluster.scenario.rules import find_broken_rules
from simcluster.scenario.schedule_plan import schedule_of
from simcluster.schedules import SCHEDULES, Schedule

if TYPE_CHECKING:
    from simcluster.planning.footprint import Footprint
    from simcluster.scenario.scenario import Scenario

MOST_CHANGES = 3
_MOST_LISTS = 3  # that are offered
_WORTH = 0.5  # of the cheapest list's step: costlier ones are not offered beside it
_MOST_TRIALS = 500  # about a second's work; the cheapest lists come first
_MOST_BY_PASS = 50  # where each pass has its own rows of experts, and each trial takes 20 times as long
_RECOMPUTE_EVERY = (4, 2, 1)


@dataclass(frozen=True, slots=True)
class ScenarioChange:
    """Change of a scenario: new values at dotted paths, and a rough guess of the relative increase in step time."""

    values: Mapping[str, Any]
    time_cost: float


@dataclass(frozen=True, slots=True)
class MemoryRemedy:
    """Set of scenario changes that makes a job fit in memory, and the bytes of the fullest GPU afterwards."""

    values: Mapping[str, Any]
    changes: int
    memory: float

    def overrides(self) -> list[str]:
        """Return the changes as command-line overrides, such as "training.recompute=full"."""
        return [f"{path}={format_value_inline(value)}" for path, value in self.values.items()]

    def to_dict(self) -> dict[str, Any]:
        """Return the remedy as a dict for the result JSON."""
        return {"set": dict(self.values), "changes": self.changes, "peak_memory_bytes": self.memory}


@dataclass(frozen=True, slots=True)
class MemoryRemedies:
    """Smallest sets of changes that make a job fit in memory; if none does, the closest set and the shortage."""

    capacity: float
    found: tuple[MemoryRemedy, ...]
    closest: MemoryRemedy | None
    shortage: str

    def to_dict(self) -> dict[str, Any]:
        """Return the remedies as a dict for the result JSON."""
        closest = self.closest.to_dict() if self.closest and not self.found else None
        return {"remedies": [each.to_dict() for each in self.found], "closest": closest, "short": self.shortage}


def find_memory_remedies(scenario: Scenario, capacity: float | None = None) -> MemoryRemedies:
    """Return the smallest sets of changes that make the scenario fit in GPU memory."""
    capacity = scenario.cluster.device.memory if capacity is None else capacity
    most = _MOST_BY_PASS if any(fault.draws_per_pass for fault in scenario.faults) else _MOST_TRIALS
    options = _list_change_options(scenario)
    trials = 0
    closest = None
    fullest = _fullest_stage(scenario)
    best = peak_memory_bytes(scenario)
    for number in range(1, MOST_CHANGES + 1):
        found: list[MemoryRemedy] = []
        limit = float("inf")
        for cost, values in _combine_changes(options, number):
            if trials == most or len(found) == _MOST_LISTS or cost > limit:
                break
            changed = try_changes(scenario, values)
            if changed is None:
                continue
            trials += 1
            size = peak_memory_bytes(changed)
            dp = {} if changed.dp == scenario.dp else {"parallel.dp": changed.dp}  # the file may say it
            full = {**values, **dp}
            if size <= capacity:
                found.append(MemoryRemedy(full, number, size))
                limit = min(limit, cost + _WORTH)
            elif size < best:
                best, fullest, closest = size, _fullest_stage(changed), MemoryRemedy(full, number, size)
        if found:
            return MemoryRemedies(capacity, tuple(found), None, "")
    return MemoryRemedies(capacity, (), closest, _describe_shortage(fullest, best, capacity))


def try_changes(scenario: Scenario, values: Mapping[str, Any]) -> Scenario | None:
    """Return the scenario with changed values and a new dp; None if the changed scenario is invalid."""
    sections: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        name, key = path.split(".")
        sections.setdefault(name, {})[key] = value
    parallel = scenario.parallel.model_copy(update=sections.pop("parallel", {}))
    each = parallel.tp * parallel.pp * parallel.cp
    if scenario.gpus % each:
        return None
    parallel = parallel.model_copy(update={"dp": scenario.gpus // each})
    updates = {name: getattr(scenario, name).model_copy(update=keys) for name, keys in sections.items()}
    changed = scenario.model_copy(update={**updates, "parallel": parallel})
    try:
        return None if find_broken_rules(changed) else changed
    except InputError:
        return None


# --- what can be changed ----------------------------------------------------------------------------------------------


def _list_change_options(scenario: Scenario) -> list[list[ScenarioChange]]:
    parallel = scenario.parallel
    free: list[tuple[bool, str, object]] = [  # cost nothing
        (parallel.tp > 1 and not parallel.sequence_parallel, "parallel.sequence_parallel", True),
        (scenario.memory.logits != "in-place", "memory.logits", "in-place"),
        (scenario.training.attention == "unfused", "training.attention", "fused"),
    ]
    sequence, loss, kernel = ([ScenarioChange({path: value}, 0.0)] if able else [] for able, path, value in free)
    before = (_yield_recompute_changes, _yield_zero_changes, _yield_reshard_changes)
    layouts = (_yield_microbatch_changes, _yield_tp_changes, _yield_pp_changes, _yield_schedule_changes)
    behind = (*layouts, _yield_number_format_changes)
    kinds = [*(list(kind(scenario)) for kind in before), sequence, *(list(kind(scenario)) for kind in behind)]
    return [kind for kind in (*kinds, loss, kernel) if kind]


def _combine_changes(options: list[list[ScenarioChange]], number: int) -> list[tuple[float, dict[str, Any]]]:
    found = []
    for kinds in combinations(options, number):
        for changes in product(*kinds):
            values: dict[str, Any] = {}
            for change in changes:
                values |= change.values
            found.append((sum(change.time_cost for change in changes), values))
    return sorted(found, key=lambda item: item[0])


def _yield_recompute_changes(scenario: Scenario) -> Iterator[ScenarioChange]:
    """Yield changes that recompute more activations; full recomputation is assumed to add 33 % to the step time."""
    training = scenario.training
    if training.recompute == "none" and training.attention == "unfused":
        yield ScenarioChange({"training.recompute": "selective"}, 0.02)
    parts = _recompute_modules(scenario)
    if training.recompute == "none" and parts:
        yield ScenarioChange({"training.recompute": "selective", "training.recompute_modules": parts}, 0.03)
    every = training.recompute_every if training.recompute == "full" else 1 << 30
    for number in _RECOMPUTE_EVERY:
        if number < every:
            values = {"training.recompute": "full", "training.recompute_every": number}
            if number == 1 == training.recompute_every:
                del values["training.recompute_every"]
            yield ScenarioChange(values, 0.33 / number)


def _recompute_modules(scenario: Scenario) -> tuple[RecomputeModule, ...]:
    experts: tuple[RecomputeModule, ...] = ("moe_act", "layernorm") if scenario.model.moe else ()
    return (*experts, "mla_up_proj") if scenario.model.mla else experts


def _yield_zero_changes(scenario: Scenario) -> Iterator[ScenarioChange]:
    for zero, cost in ((1, 0.01), (2, 0.05), (3, 0.15)):
        if scenario.dp * scenario.parallel.cp > 1 and zero > scenario.parallel.zero:
            yield ScenarioChange({"parallel.zero": zero}, cost)


def _yield_reshard_changes(scenario: Scenario) -> Iterator[ScenarioChange]:
    if scenario.parallel.zero == 3 and not scenario.fsdp.reshard_after_forward:
        yield ScenarioChange({"fsdp.reshard_after_forward": True}, 0.1)
    if scenario.parallel.zero == 3 and scenario.fsdp.prefetch > 0 and scenario.overlap.param_gather:
        yield ScenarioChange({"fsdp.prefetch": 0}, 0.1)


def _yield_microbatch_changes(scenario: Scenario) -> Iterator[ScenarioChange]:
    size = scenario.training.micro_batch
    for smaller in reversed(divisors(size)[:-1]):
        yield ScenarioChange({"training.micro_batch": smaller}, 0.04 * (size / smaller - 1))


def _yield_tp_changes(scenario: Scenario) -> Iterator[ScenarioChange]:
    tp, hosts = scenario.parallel.tp, scenario.cluster.built.host_of[: scenario.gpus]
    machine = hosts.count(hosts[0])
    for wider in (2 * tp, 4 * tp, 8 * tp):
        if wider <= scenario.gpus:
            yield ScenarioChange({"parallel.tp": wider}, 0.08 * wider / tp + (1.0 if wider > machine else 0.0))


def _yield_pp_changes(scenario: Scenario) -> Iterator[ScenarioChange]:
    pp, batch = scenario.parallel.pp, scenario.training.global_batch / scenario.training.micro_batch
    for factor in (2, 4, 8):
        stages = pp * factor
        if stages <= min(scenario.gpus, scenario.model.layers):
            bubble = (stages - 1) / (batch * factor / scenario.dp)
            yield ScenarioChange({"parallel.pp": stages}, 0.01 + bubble - (pp - 1) / scenario.microbatches)


def _yield_schedule_changes(scenario: Scenario) -> Iterator[ScenarioChange]:
    pp, name = scenario.parallel.pp, scenario.pipeline.schedule_name
    if pp == 1:
        return
    bubble = (pp - 1) / scenario.microbatches
    chunks = {"pipeline.chunks": 1} if scenario.pipeline.chunks > 1 else {}
    if name != "1f1b":
        yield ScenarioChange({"pipeline.schedule": "1f1b", **chunks}, bubble * (1 - 1 / scenario.pipeline.chunks))
    for other, each in SCHEDULES.items():
        if each.bubble_cost_of_low_memory is not None and name != other:
            yield ScenarioChange({"pipeline.schedule": other, **chunks}, 0.05 + each.bubble_cost_of_low_memory * bubble)


def _yield_number_format_changes(scenario: Scenario) -> Iterator[ScenarioChange]:
    """Yield changes to other number formats, the last resort because they affect training itself."""
    if scenario.training.precision == "fp32":
        yield ScenarioChange({"training.precision": "bf16-mixed"}, 2.0)
    if scenario.training.memory_recipe != "bf16-12" and scenario.training.precision == "bf16-mixed":
        yield ScenarioChange({"training.memory_recipe": "bf16-12"}, 3.0)


# --- what is held -----------------------------------------------------------------------------------------------------


def _fullest_stage(scenario: Scenario) -> Footprint:
    return max(plan_footprints(scenario), key=lambda footprint: footprint.total)


def peak_memory_bytes(scenario: Scenario) -> float:
    """Return the bytes of the fullest GPU, including activations that may queue between pipeline stages."""
    return _fullest_stage(scenario).total + queued_activation_bytes(scenario)


def queued_activation_bytes(scenario: Scenario) -> float:
    """Return the maximum bytes of activations that wait in queues between pipeline stages.

    A schedule that does all forwards first may have them all waiting; others two per chunk.
    """
    if scenario.parallel.pp == 1:
        return 0.0
    schedule = schedule_of(scenario)
    parallel, model = scenario.parallel, scenario.model
    tokens = scenario.training.micro_batch * model.sequence_length / parallel.cp
    boundary = ELEMENT_BYTES[scenario.training.precision] * tokens * model.hidden_size * model.num_streams
    if parallel.tp > 1 and (parallel.sequence_parallel or scenario.pipeline.scatter_gather):
        boundary /= parallel.tp
    return boundary * scenario.memory.fragmentation * _count_queued_tensors(schedule)


def _count_queued_tensors(schedule: Schedule) -> int:
    first = [action.kind for action in schedule.rows[0]]
    warm_up = next(index for index, kind in enumerate(first) if kind != "F")
    all_first = warm_up == first.count("F")
    return warm_up if all_first else 2 * schedule.num_chunks


def _describe_shortage(footprint: Footprint, held: float, capacity: float) -> str:
    state = footprint.parameters + footprint.gradients + footprint.optimizer
    if state + footprint.buffers > capacity:
        why = f"model state alone needs {state / 1e9:.1f} GB per GPU: use more GPUs"
    else:
        rest = held - state
        why = f"model state {state / 1e9:.1f} GB, other {rest / 1e9:.1f} GB: use more GPUs or shorter sequences"
    return f"{(held - capacity) / 1e9:.1f} GB more than the {capacity / 1e9:.1f} GB of a GPU; {why}"
