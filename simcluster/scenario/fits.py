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
from simcluster.documents.suggestions import divisors
from simcluster.model.choices import RecomputeModule
from simcluster.scenario.job import planned_footprints
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
class Change:
    """Change of a scenario: values at dotted paths, and a guess of the relative increase of the step time."""

    values: Mapping[str, Any]
    cost: float


@dataclass(frozen=True, slots=True)
class MemoryRemedy:
    """Changes after which a job fits in memory, and the bytes of its fullest GPU then."""

    values: Mapping[str, Any]
    changes: int
    memory: float

    def overrides(self) -> list[str]:
        """Return the changes as command-line overrides: ["training.recompute=full"]."""
        return [f"{path}={_format_value(value)}" for path, value in self.values.items()]

    def to_dict(self) -> dict[str, Any]:
        """Return the remedy as in the result JSON."""
        return {"set": dict(self.values), "changes": self.changes, "peak_memory_bytes": self.memory}


@dataclass(frozen=True, slots=True)
class Remedies:
    """Smallest sets of changes that make a job fit in memory; if none does, the closest and what it lacks."""

    capacity: float
    found: tuple[MemoryRemedy, ...]
    closest: MemoryRemedy | None
    short: str

    def to_dict(self) -> dict[str, Any]:
        """Return the remedies as in the result JSON."""
        closest = self.closest.to_dict() if self.closest and not self.found else None
        return {"remedies": [each.to_dict() for each in self.found], "closest": closest, "short": self.short}


def find_memory_remedies(scenario: Scenario, capacity: float | None = None) -> Remedies:
    """Return the smallest sets of changes that make the scenario fit in ``capacity`` bytes per GPU."""
    capacity = scenario.cluster.device.memory if capacity is None else capacity
    by_pass = any(fault.by_pass for fault in scenario.faults)
    most, options = _MOST_BY_PASS if by_pass else _MOST_TRIALS, _list_options(scenario)
    trials, closest, fullest = 0, None, _fullest_stage(scenario)
    best = peak_bytes(scenario)
    for number in range(1, MOST_CHANGES + 1):
        found: list[MemoryRemedy] = []
        limit = float("inf")
        for cost, values in _combine_changes(options, number):
            if trials == most or len(found) == _MOST_LISTS or cost > limit:
                break
            changed = apply_changes(scenario, values)
            if changed is None:
                continue
            trials += 1
            size = peak_bytes(changed)
            dp = {} if changed.dp == scenario.dp else {"parallel.dp": changed.dp}  # the file may say it
            full = {**values, **dp}
            if size <= capacity:
                found.append(MemoryRemedy(full, number, size))
                limit = min(limit, cost + _WORTH)
            elif size < best:
                best, fullest, closest = size, _fullest_stage(changed), MemoryRemedy(full, number, size)
        if found:
            return Remedies(capacity, tuple(found), None, "")
    return Remedies(capacity, (), closest, _describe_shortage(fullest, best, capacity))


def apply_changes(scenario: Scenario, values: Mapping[str, Any]) -> Scenario | None:
    """Return the scenario with changed values, and dp from its GPUs; None if that breaks a rule."""
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


def _list_options(scenario: Scenario) -> list[list[Change]]:
    parallel = scenario.parallel
    free: list[tuple[bool, str, object]] = [  # cost nothing
        (parallel.tp > 1 and not parallel.sequence_parallel, "parallel.sequence_parallel", True),
        (scenario.memory.logits != "in-place", "memory.logits", "in-place"),
        (scenario.training.attention == "unfused", "training.attention", "fused"),
    ]
    sequence, loss, kernel = ([Change({path: value}, 0.0)] if able else [] for able, path, value in free)
    before, behind = (
        (_recompute_changes, _zero_changes, _reshard_changes),
        (_microbatch_changes, _tp_changes, _pp_changes, _schedule_changes, _format_changes),
    )
    kinds = [*(list(kind(scenario)) for kind in before), sequence, *(list(kind(scenario)) for kind in behind)]
    return [kind for kind in (*kinds, loss, kernel) if kind]


def _combine_changes(options: list[list[Change]], number: int) -> list[tuple[float, dict[str, Any]]]:
    found = []
    for kinds in combinations(options, number):
        for changes in product(*kinds):
            values: dict[str, Any] = {}
            for change in changes:
                values |= change.values
            found.append((sum(change.cost for change in changes), values))
    return sorted(found, key=lambda item: item[0])


def _recompute_changes(scenario: Scenario) -> Iterator[Change]:
    """Yield changes that recompute more; a forward is a third of the time, the unfused core a thirtieth."""
    training = scenario.training
    if training.recompute == "none" and training.attention == "unfused":
        yield Change({"training.recompute": "selective"}, 0.02)
    parts = _recompute_modules(scenario)
    if training.recompute == "none" and parts:
        yield Change({"training.recompute": "selective", "training.recompute_modules": parts}, 0.03)
    every = training.recompute_every if training.recompute == "full" else 1 << 30
    for number in _RECOMPUTE_EVERY:
        if number < every:
            values = {"training.recompute": "full", "training.recompute_every": number}
            if number == 1 == training.recompute_every:
                del values["training.recompute_every"]
            yield Change(values, 0.33 / number)


def _recompute_modules(scenario: Scenario) -> tuple[RecomputeModule, ...]:
    experts: tuple[RecomputeModule, ...] = ("moe_act", "layernorm") if scenario.model.moe else ()
    return (*experts, "mla_up_proj") if scenario.model.mla else experts


def _zero_changes(scenario: Scenario) -> Iterator[Change]:
    for zero, cost in ((1, 0.01), (2, 0.05), (3, 0.15)):
        if scenario.dp * scenario.parallel.cp > 1 and zero > scenario.parallel.zero:
            yield Change({"parallel.zero": zero}, cost)


def _reshard_changes(scenario: Scenario) -> Iterator[Change]:
    if scenario.parallel.zero == 3 and not scenario.fsdp.reshard_after_forward:
        yield Change({"fsdp.reshard_after_forward": True}, 0.1)
    if scenario.parallel.zero == 3 and scenario.fsdp.prefetch > 0 and scenario.overlap.param_gather:
        yield Change({"fsdp.prefetch": 0}, 0.1)


def _microbatch_changes(scenario: Scenario) -> Iterator[Change]:
    size = scenario.training.micro_batch
    for smaller in reversed(divisors(size)[:-1]):
        yield Change({"training.micro_batch": smaller}, 0.04 * (size / smaller - 1))


def _tp_changes(scenario: Scenario) -> Iterator[Change]:
    tp, hosts = scenario.parallel.tp, scenario.cluster.built.host_of[: scenario.gpus]
    machine = hosts.count(hosts[0])
    for wider in (2 * tp, 4 * tp, 8 * tp):
        if wider <= scenario.gpus:
            yield Change({"parallel.tp": wider}, 0.08 * wider / tp + (1.0 if wider > machine else 0.0))


def _pp_changes(scenario: Scenario) -> Iterator[Change]:
    pp, batch = scenario.parallel.pp, scenario.training.global_batch / scenario.training.micro_batch
    for factor in (2, 4, 8):
        stages = pp * factor
        if stages <= min(scenario.gpus, scenario.model.layers):
            microbatches = batch * factor / scenario.dp
            yield Change({"parallel.pp": stages}, 0.01 + (stages - 1) / microbatches - (pp - 1) / scenario.microbatches)


def _schedule_changes(scenario: Scenario) -> Iterator[Change]:
    pp, name = scenario.parallel.pp, scenario.pipeline.schedule_name
    if pp == 1:
        return
    bubble = (pp - 1) / scenario.microbatches
    chunks = {"pipeline.chunks": 1} if scenario.pipeline.chunks > 1 else {}
    if name != "1f1b":
        yield Change({"pipeline.schedule": "1f1b", **chunks}, bubble * (1 - 1 / scenario.pipeline.chunks))
    for narrow, entry in SCHEDULES.items():
        if entry.bubble_for_memory is not None and name != narrow:
            yield Change({"pipeline.schedule": narrow, **chunks}, 0.05 + entry.bubble_for_memory * bubble)


def _format_changes(scenario: Scenario) -> Iterator[Change]:
    """Yield changes to other number formats; they change training itself, so they come last."""
    if scenario.training.precision == "fp32":
        yield Change({"training.precision": "bf16-mixed"}, 2.0)
    if scenario.training.memory_recipe != "bf16-12" and scenario.training.precision == "bf16-mixed":
        yield Change({"training.memory_recipe": "bf16-12"}, 3.0)


# --- what is held -----------------------------------------------------------------------------------------------------


def _fullest_stage(scenario: Scenario) -> Footprint:
    return max(planned_footprints(scenario), key=lambda footprint: footprint.total)


def peak_bytes(scenario: Scenario) -> float:
    """Return the bytes of the fullest GPU, with the most activations that may wait between stages."""
    return _fullest_stage(scenario).total + waiting_bytes(scenario)


def waiting_bytes(scenario: Scenario) -> float:
    """Return the largest possible bytes of activations that wait between stages.

    A schedule that does all forwards first may have them all waiting; others two per chunk.
    """
    if scenario.parallel.pp == 1:
        return 0.0
    schedule = schedule_of(scenario)
    parallel, model = scenario.parallel, scenario.model
    tokens = scenario.training.micro_batch * model.sequence_length / parallel.cp
    boundary = ELEMENT_BYTES[scenario.training.precision] * tokens * model.hidden_size
    if parallel.tp > 1 and (parallel.sequence_parallel or scenario.pipeline.scatter_gather):
        boundary /= parallel.tp
    return boundary * scenario.memory.fragmentation * _count_waiting(schedule)


def _count_waiting(schedule: Schedule) -> int:
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
        why = f"model state {state / 1e9:.1f} GB, the rest {rest / 1e9:.1f} GB: use more GPUs or shorter sequences"
    return f"{(held - capacity) / 1e9:.1f} GB over {capacity / 1e9:.1f} GB; {why}"


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
