"""Request of a plan: its checks, the parts of a scenario that it ignores, and errors without a result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from simcluster.base.errors import InputError
from simcluster.base.units import is_number, parse_bytes, parse_seconds
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.scenario.fits import find_memory_remedies
from simcluster.scenario.memory_plan import HEADROOM, check_headroom, parse_headroom, usable_bytes
from simcluster.scenario.scenario import Scenario
from simcluster.studies.scopes import PLAN
from simcluster.studies.search.frontier import BoundCache, Frontier
from simcluster.studies.search.layout import layout_changes, value_text
from simcluster.studies.search.space import Space

Objective = Literal["step_time", "cost", "tokens_per_s_per_gpu"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def check_request(base: Scenario, counts: Sequence[int], objective: str, price: float | None, top: int) -> None:
    """Raise InputError for an objective, numbers of GPUs or a scenario that a plan cannot search."""
    if objective not in OBJECTIVES:
        raise InputError(
            f"unknown objective {objective!r}{did_you_mean(objective, OBJECTIVES)}; use {listed(OBJECTIVES)}"
        )
    if objective == "cost" and price is None:
        raise InputError(
            "the objective cost needs a price: dollars per GPU and hour, as in --price 2.50 (Python: price=2.5)"
        )
    if price is not None and not 0 < price < float("inf"):
        raise InputError(f"price {price!r} must be positive: dollars per GPU and hour, as in 2.50")
    if top < 1:
        raise InputError(f"top {top} must be at least 1")
    obstacle = PLAN.obstacle(base)
    if obstacle:
        raise InputError(obstacle)
    hosts = base.cluster.built.host_of
    there, machine = len(hosts), hosts.count(hosts[0])
    for count in counts:
        if not 1 <= count <= there:
            larger = "use fewer, or a larger cluster (cluster.nodes)"
            more = larger if count > there else f"give a number from 1 to {there}"
            raise InputError(f"{count} GPUs: the cluster has {there}; {more}")
        if count > machine and count % machine:
            below = count // machine * machine
            near = [each for each in (below, below + machine) if each <= there]
            raise InputError(
                f"{count} GPUs are not a multiple of the {machine} per node; use {' or '.join(map(str, near))}"
            )


def searchable_scenario(scenario: Scenario) -> Scenario:
    """Return the scenario that a plan searches: one step, no faults, collectives as flows."""
    flows = scenario.collectives.model_copy(update={"detail": "flow"})
    updates = {"steps": 1, "replicas": 1, "collectives": flows, "measured": None}
    return scenario.without_faults().model_copy(update=updates)


class IgnoredParts(NamedTuple):
    """Parts of a scenario that a plan ignores: kinds of ``faults`` and other ``keys``, sorted."""

    faults: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, scenario: Scenario) -> IgnoredParts:
        """Return the parts of a scenario that ``alone`` removes."""
        faults = {fault.kind for fault in scenario.faults if fault.without() != fault}
        several = [key for key in ("replicas", "steps") if getattr(scenario, key) > 1]
        detail = [] if scenario.collectives.detail == "flow" else ["collectives.detail"]
        return cls(tuple(sorted(faults)), (*detail, *several))

    def in_words(self) -> list[str]:
        """Return one sentence about ignored faults and one about ignored keys, if there are any."""
        what = {"sequence_lengths": "documents of different lengths (sequence_lengths)"}
        named = ", ".join(what.get(kind, kind) for kind in self.faults)
        parts = [f"times and memory exclude the scenario's faults ({named}); run the winner with them"] if named else []
        have = "have" if len(self.keys) > 1 else "has"
        keys = f"planned for one step, with collectives as flows: {', '.join(self.keys)} {have} no effect"
        return [*parts, *([keys] if self.keys else [])]


class MemoryLimit(NamedTuple):
    """Limit of memory per GPU (``whole``, bytes), of which the fraction ``headroom`` stays free."""

    whole: float
    headroom: float

    @property
    def usable(self) -> float:
        """Bytes that a layout may use on each GPU."""
        return usable_bytes(self.whole, self.headroom)

    def __str__(self) -> str:
        free = f" with {100 * self.headroom:.4g} % of it kept free" if self.headroom else ""
        return f"{self.whole / 1e9:.1f} GB per GPU{free}"


def memory_limit(base: Scenario, wanted: str | float | None, headroom: float | str | None) -> MemoryLimit:
    """Return the memory limit of a plan: a ``wanted`` size, else all of the GPU less the usual headroom.

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
            f"max memory {size / 1e9:.1f} GB: a {device.name} has {device.memory / 1e9:.1f} GB; use at most that"
        )
    return MemoryLimit(size, part)


def seconds_of(limit: str | float | None) -> float | None:
    """Return the seconds of a time limit; InputError unless it is a time above 0."""
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


def require_legal_layouts(base: Scenario, spaces: Sequence[Space]) -> None:
    """Raise InputError with the reasons if no layout is legal."""
    if any(space.found[0] for space in spaces):
        return
    counts: Counter[str] = Counter()
    for space in spaces:
        counts.update(space.found[1])
    reasons = "; ".join(f"{reason} ({number:,})" for reason, number in counts.most_common(3))
    # --vary fixes an axis to one value that is not 1, where others may be legal
    fixed = [(path, values[0]) for path, values in spaces[0].tried.items() if len(values) == 1]
    named = [f"{path} than {value}" for path, value in fixed if isinstance(value, int) and value > 1]
    others = f"try others of {listed(named)}, or " if named else ""
    raise InputError(
        f"no valid layout for {listed([space.gpus for space in spaces])} GPUs: {reasons}; {others}use another number "
        f"of GPUs, or another training.global_batch than {base.training.global_batch}"
    )


def explain_no_layout(base: Scenario, known: BoundCache, frontier: Frontier, limit: MemoryLimit) -> str:
    """Return the error text of a plan without a result: the layout that needs least memory, and what would help."""
    capacity = limit.usable
    closest: tuple[float, int] | None = None
    for number in sorted(range(len(known.floors)), key=lambda number: known.floors[number]):
        if closest and known.floors[number] >= closest[0]:
            break
        try:
            closest = min(closest or (float("inf"), 0), (known.most(number), number))
        except InputError:
            continue
    if closest is None or closest[0] <= capacity:
        reasons = ", ".join(dict.fromkeys(reason for _, reason in frontier.refused))
        return f"no layout can be simulated: {reasons}"
    held, layout = closest[0], known.layouts[closest[1]]
    options = " ".join(f"{path}={value_text(value)}" for path, value in layout_changes(base, layout).items())
    text = (
        f"none of {len(known.layouts):,} legal layouts fits in {limit}; the closest needs "
        f"{held / 1e9:.1f} GB, {(held - capacity) / 1e9:.1f} GB over: {options}"
    )
    if held <= limit.whole:
        return f"{text}; it fits with headroom 0 (--headroom 0)"
    if limit.whole < base.cluster.device.memory:
        return f"{text}; allow more memory, or more GPUs"
    found = find_memory_remedies(layout.on(base), capacity)
    if found.found:
        return f"{text}; it would fit with {' '.join(found.found[0].overrides())}"
    return f"{text}; {found.short}"
