"""Checks of a plan request, scenario parts that a plan ignores, and the error message if no layout fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from simcluster.base.errors import InputError
from simcluster.base.units import is_number, parse_bytes, parse_seconds
from simcluster.documents.diagnostics import did_you_mean, join_or
from simcluster.scenario.memory_plan import HEADROOM, check_headroom, parse_headroom, usable_bytes
from simcluster.scenario.memory_remedies import find_memory_remedies
from simcluster.scenario.scenario import Scenario
from simcluster.studies.fast_path_scopes import PLAN
from simcluster.studies.search.frontier import BoundCache, Frontier
from simcluster.studies.search.layout import format_value, layout_changes
from simcluster.studies.search.layout_space import LayoutSpace

Objective = Literal["step_time", "cost", "tokens_per_s_per_gpu"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def check_plan_request(base: Scenario, counts: Sequence[int], objective: str, price: float | None, top: int) -> None:
    """Raise InputError for an objective, GPU count, price or scenario that a plan cannot handle."""
    if objective not in OBJECTIVES:
        raise InputError(
            f"unknown objective {objective!r}{did_you_mean(objective, OBJECTIVES)}; use {join_or(OBJECTIVES)}"
        )
    if objective == "cost" and price is None:
        raise InputError(
            "the objective 'cost' needs a price in dollars per GPU and hour, as in --price 2.50 (Python: price=2.5)"
        )
    if price is not None and not 0 < price < float("inf"):
        raise InputError(f"the price {price!r} must be positive; give dollars per GPU and hour, as in 2.50")
    if top < 1:
        raise InputError(f"top is {top}; it must be at least 1 layout")
    obstacle = PLAN.find_obstacle(base)
    if obstacle:
        raise InputError(obstacle)
    hosts = base.cluster.built.host_of
    there, machine = len(hosts), hosts.count(hosts[0])
    for count in counts:
        if not 1 <= count <= there:
            larger = "use fewer GPUs, or a larger cluster (cluster.nodes)"
            more = larger if count > there else f"give a number from 1 to {there}"
            raise InputError(f"{count} GPUs requested: the cluster has {there}; {more}")
        if count > machine and count % machine:
            below = count // machine * machine
            near = [each for each in (below, below + machine) if each <= there]
            raise InputError(
                f"{count} GPUs are not a multiple of the {machine} GPUs per node; use {' or '.join(map(str, near))}"
            )


def make_searchable_scenario(scenario: Scenario) -> Scenario:
    """Return the scenario without the parts that a plan ignores: one step, no faults, collectives as flows."""
    flows = scenario.collectives.model_copy(update={"detail": "flow"})
    updates = {"steps": 1, "replicas": 1, "collectives": flows, "measured": None}
    return scenario.without_faults().model_copy(update=updates)


class IgnoredParts(NamedTuple):
    """Parts of a scenario that a plan ignores: kinds of faults (``faults``), and other scenario keys (``keys``)."""

    faults: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> IgnoredParts:
        """Return the parts of a scenario that ``make_searchable_scenario`` removes."""
        faults = {fault.kind for fault in scenario.faults if fault.replacement_if_removed() != fault}
        several = [key for key in ("replicas", "steps") if getattr(scenario, key) > 1]
        detail = [] if scenario.collectives.detail == "flow" else ["collectives.detail"]
        return cls(tuple(sorted(faults)), (*detail, *several))

    def describe(self) -> list[str]:
        """Return one sentence if faults are ignored and one sentence if keys are ignored."""
        what = {"sequence_lengths": "documents of different lengths (sequence_lengths)"}
        named = ", ".join(what.get(kind, kind) for kind in self.faults)
        parts = [f"times and memory exclude the scenario's faults ({named}); run the winner with them"] if named else []
        have = "have" if len(self.keys) > 1 else "has"
        keys = f"planned for one step, with collectives as flows: {', '.join(self.keys)} {have} no effect"
        return [*parts, *([keys] if self.keys else [])]


class MemoryLimit(NamedTuple):
    """Memory limit per GPU in bytes, and the fraction of it (``headroom``) that must stay free."""

    limit_bytes: float
    headroom: float

    @property
    def usable_bytes(self) -> float:
        """Bytes of memory that a layout may use on each GPU."""
        return usable_bytes(self.limit_bytes, self.headroom)

    def __str__(self) -> str:
        free = f" with {100 * self.headroom:.4g} % of it kept free" if self.headroom else ""
        return f"{self.limit_bytes / 1e9:.1f} GB per GPU{free}"


def parse_memory_limit(base: Scenario, wanted: str | float | None, headroom: float | str | None) -> MemoryLimit:
    """Return the memory limit per GPU that the user wants, or by default the GPU's memory, with its headroom.

    Raises InputError for more than the GPU has, and for a headroom that leaves nothing.
    """
    device = base.cluster.device
    if headroom is None:
        part = 0.0 if wanted is not None else HEADROOM
    else:
        part = parse_headroom(headroom) if isinstance(headroom, str) else check_headroom(headroom, headroom)
    if wanted is None:
        return MemoryLimit(device.memory, part)
    size = parse_bytes(wanted) if isinstance(wanted, str) else float(wanted)
    if not 0 < size <= device.memory:
        raise InputError(
            f"max memory {size / 1e9:.1f} GB: a {device.name} has {device.memory / 1e9:.1f} GB, which is the most"
        )
    return MemoryLimit(size, part)


def parse_time_limit(limit: str | float | None) -> float | None:
    """Parse a time limit to seconds; raise InputError unless it is positive."""
    if limit is None:
        return None
    try:
        seconds = parse_seconds(limit) if isinstance(limit, str) else limit
    except InputError:
        seconds = 0.0  # an invalid time
    if not is_number(seconds) or seconds <= 0:
        given = "60 for seconds, " if not isinstance(limit, str) else ""
        raise InputError(f"time limit {limit!r} must be a time above 0: use {given}'60 s' or '5 min'")
    return float(seconds)


def require_legal_layouts(base: Scenario, spaces: Sequence[LayoutSpace]) -> None:
    """Raise InputError if no layout is legal; the message lists the most frequent reasons."""
    if any(space.layouts_and_counts[0] for space in spaces):
        return
    counts: Counter[str] = Counter()
    for space in spaces:
        counts.update(space.layouts_and_counts[1])
    reasons = "; ".join(f"{reason} ({number:,})" for reason, number in counts.most_common(3))
    # --vary fixes an axis to one value that is not 1, where others may be legal
    fixed = [(path, values[0]) for path, values in spaces[0].values_by_path.items() if len(values) == 1]
    named = [f"{path} than {value}" for path, value in fixed if isinstance(value, int) and value > 1]
    others = f"try another {join_or(named)}, or " if named else ""
    raise InputError(
        f"no valid layout for {join_or([space.gpus for space in spaces])} GPUs: {reasons}; {others}use another number "
        f"of GPUs, or a training.global_batch other than {base.training.global_batch}"
    )


def explain_no_layout(base: Scenario, known: BoundCache, frontier: Frontier, limit: MemoryLimit) -> str:
    """Return the error message for a plan in which no layout fits: the closest layout, and possible remedies."""
    capacity = limit.usable_bytes
    closest: tuple[float, int] | None = None
    for number in sorted(range(len(known.floors)), key=lambda number: known.floors[number]):
        if closest and known.floors[number] >= closest[0]:
            break
        try:
            closest = min(closest or (float("inf"), 0), (known.planned_bytes(number), number))
        except InputError:
            continue
    if closest is None or closest[0] <= capacity:
        reasons = ", ".join(dict.fromkeys(reason for _, reason in frontier.refused))
        return f"no layout can be simulated: {reasons}"
    held, layout = closest[0], known.layouts[closest[1]]
    options = " ".join(f"{path}={format_value(value)}" for path, value in layout_changes(base, layout).items())
    text = (
        f"none of {len(known.layouts):,} legal layouts fits in {limit}; the closest needs "
        f"{held / 1e9:.1f} GB, {(held - capacity) / 1e9:.1f} GB too much: {options}"
    )
    if held <= limit.limit_bytes:
        return f"{text}; this layout fits with headroom 0 (--headroom 0)"
    if limit.limit_bytes < base.cluster.device.memory:
        return f"{text}; allow more memory, or more GPUs"
    found = find_memory_remedies(layout.apply_to(base), capacity)
    if found.found:
        return f"{text}; this layout would fit with {' '.join(found.found[0].overrides())}"
    return f"{text}; {found.shortage}"
