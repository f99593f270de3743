"""What a search is asked for and cannot do, each in one message: before it begins, and where nothing was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from simcluster.base.errors import InputError
from simcluster.base.units import is_number, parse_bytes, parse_seconds
from simcluster.documents.diagnostics import did_you_mean, listed
from simcluster.scenario.fits import remedies
from simcluster.scenario.headroom import HEADROOM, check_headroom, headroom_of, usable
from simcluster.scenario.scenario import Scenario
from simcluster.studies.search.changes import overrides, written
from simcluster.studies.search.frontier import BoundCache, Frontier
from simcluster.studies.search.plan_scope import PLAN
from simcluster.studies.search.space import Layout, Space

Objective = Literal["step_time", "cost", "tokens_per_s_per_gpu"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def check_asked(base: Scenario, counts: Sequence[int], objective: str, price: float | None, top: int) -> None:
    """InputError for an objective, numbers of GPUs or a scenario that cannot be searched."""
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
        if count < 1 or count > there:
            more = (
                "use fewer, or a larger cluster (cluster.nodes)"
                if count > there
                else f"give a number from 1 to {there}"
            )
            raise InputError(f"{count} GPUs: the cluster has {there}; {more}")
        if count > machine and count % machine:
            below = count // machine * machine
            near = [each for each in (below, below + machine) if each <= there]
            raise InputError(
                f"{count} GPUs are not a multiple of the {machine} of a machine; use {' or '.join(map(str, near))}"
            )


class MemoryLimit(NamedTuple):
    """Memory of a GPU that a layout may hold: so many bytes (``whole``), of which the part ``headroom`` stays free."""

    whole: float
    headroom: float

    @property
    def usable(self) -> float:
        """Bytes."""
        return usable(self.whole, self.headroom)

    def __str__(self) -> str:
        free = f" with {100 * self.headroom:.4g} % of it left free" if self.headroom else ""
        return f"{self.whole / 1e9:.1f} GB a GPU{free}"


def memory_limit(base: Scenario, wanted: str | float | None, headroom: float | str | None) -> MemoryLimit:
    """What may be used of a GPU: a size that is wanted, as it is, else all that it has less the usual headroom.

    InputError for more than it has, and for a headroom that leaves nothing.
    """
    device = base.cluster.device
    if headroom is None:
        part = 0.0 if wanted is not None else HEADROOM
    else:
        part = headroom_of(headroom) if isinstance(headroom, str) else check_headroom(headroom, headroom)
    if wanted is None:
        return MemoryLimit(device.memory, part)
    size = parse_bytes(wanted) if isinstance(wanted, str) else float(wanted)
    if not 0 < size <= device.memory:
        raise InputError(
            f"max memory {size / 1e9:.1f} GB: a {device.name} has {device.memory / 1e9:.1f} GB; use at most that"
        )
    return MemoryLimit(size, part)


def seconds_of(limit: str | float | None) -> float | None:
    """Seconds of a time limit; InputError for what is none."""
    if limit is None:
        return None
    try:
        seconds = parse_seconds(limit) if isinstance(limit, str) else limit
    except InputError:
        seconds = 0.0  # no time at all
    if not is_number(seconds) or seconds <= 0:
        given = "60 for seconds, " if not isinstance(limit, str) else ""
        raise InputError(f"time limit {limit!r} must be a time above 0: use {given}'60 s' or '5 min'")
    return float(seconds)


def require_some(base: Scenario, spaces: Sequence[Space], layouts: Sequence[Layout]) -> None:
    """InputError with the reasons where no layout is legal."""
    if layouts:
        return
    counts: dict[str, int] = {}
    for space in spaces:
        for reason, number in space.found[1].items():
            counts[reason] = counts.get(reason, 0) + number
    most = sorted(counts.items(), key=lambda item: -item[1])[:3]
    reasons = "; ".join(f"{reason} ({number:,})" for reason, number in most)
    raise InputError(
        f"no layout on {listed([space.gpus for space in spaces])} GPUs is legal: {reasons}; {_also_tried(spaces)}use "
        f"another number of GPUs, or another training.global_batch than {base.training.global_batch}"
    )


def _also_tried(spaces: Sequence[Space]) -> str:
    """Axes of which one value alone was tried, and it is not 1: what --vary fixes, where others may go."""
    fixed = [(path, values[0]) for path, values in spaces[0].tried.items() if len(values) == 1]
    named = [f"{path} than {value}" for path, value in fixed if isinstance(value, int) and value > 1]
    return f"try others of {listed(named)}, or " if named else ""


def nothing_found(base: Scenario, known: BoundCache, frontier: Frontier, limit: MemoryLimit) -> str:
    """Why nothing was found: what holds least, and what would make it fit."""
    capacity = limit.usable
    fewest = sorted(range(len(known.floors)), key=lambda number: known.floors[number])
    closest: tuple[float, int] | None = None
    for number in fewest:
        if closest and known.floors[number] >= closest[0]:
            break
        try:
            closest = min(closest or (float("inf"), 0), (known.most(number), number))
        except InputError:
            continue
    if closest is None or closest[0] <= capacity:
        reasons = ", ".join(dict.fromkeys(reason for _, reason in frontier.refused))
        return f"no layout can be played: {reasons}"
    held, number = closest
    layout = known.layouts[number]
    options = " ".join(f"{path}={written(value)}" for path, value in overrides(base, layout).items())
    text = (
        f"none of {len(known.layouts):,} legal layouts fits in {limit}; the closest holds "
        f"{held / 1e9:.1f} GB, {(held - capacity) / 1e9:.1f} GB too much: {options}"
    )
    if held <= limit.whole:
        return f"{text}; headroom 0 (--headroom 0) takes it"
    if limit.whole < base.cluster.device.memory:
        return f"{text}; allow more memory, or more GPUs"
    found = remedies(layout.on(base), capacity)
    if found.found:
        return f"{text}; it would fit with {' '.join(found.found[0].overrides())}"
    return f"{text}; {found.short}"
