"""Account of a step: its time by cause and by stage, in few numbers that a result file can hold.

Two accounts explain the difference of two steps without either's timeline: the difference, cause by cause,
summing to it (``attribute_difference``). Entries of the breakdown are differences themselves. Exposed communication
changes for three reasons with different remedies, so each axis' is split: its transfers take another time on free links
(*traffic*: bytes, algorithm, slower links), another part of them overlaps with compute (*hiding*), or links are shared
with others (*contention*). The slowdown of compute by concurrent communication is a separate cause (*interference*);
the entries of compute are without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simcluster.base.shown import Displayable
from simcluster.results.metrics import BREAKDOWN
from simcluster.results.overlap import CommKey, OverlapSeconds
from simcluster.results.span_states import COMPUTE_KINDS, EXPOSED

WAITING_ENTRIES = ("bubble", "straggler_wait")
WORK_ENTRIES = tuple(name for name in BREAKDOWN if not name.startswith("exposed_") and name not in WAITING_ENTRIES)
"""Entries of a rank's computation, and of its waiting for its host."""
RECENT_ENTRIES = ("checkpoint", "data", "validation", "offload")
"""Entries that older results lack, where they were part of other."""
_MOST = 1e100
STATES = (*WORK_ENTRIES, "interference", *WAITING_ENTRIES)
"""States of a rank without communication; *interference* is the slowdown of its compute by communication."""


@dataclass(frozen=True, slots=True)
class AxisCommunication:
    """Communication of one axis of a run, in seconds per step of the mean rank.

    ``free`` is the duration of its transfers on free links, ``exposed`` the part of that which the breakdown counts,
    and ``contention`` what sharing links adds to it.
    """

    free: float = 0.0
    exposed: float = 0.0
    contention: float = 0.0

    @classmethod
    def of(cls, overlap: OverlapSeconds) -> AxisCommunication:
        """Return the communication of an axis from its measured overlap."""
        return cls(
            overlap.wire - overlap.contention, overlap.counted - overlap.counted_contention, overlap.counted_contention
        )


@dataclass(frozen=True)
class Account(Displayable):
    """Account of a step: seconds of the mean rank.

    ``breakdown`` is as metrics define it, ``states`` its entries other than communication, without the slowdown of
    compute, which is *interference*; ``axes`` are the communication of each axis. ``stages[s]`` is the breakdown of the
    mean rank of stage s: each sums to ``step_time``, as ``breakdown`` does.
    """

    step_time: float
    breakdown: Mapping[str, float]
    states: Mapping[str, float]
    axes: Mapping[str, AxisCommunication]
    stages: tuple[Mapping[str, float], ...]

    @classmethod
    def of(
        cls,
        breakdown: Mapping[str, float],
        stages: Iterable[Mapping[str, float]],
        slowed: Mapping[str, float],
        overlap: Mapping[CommKey, OverlapSeconds],
    ) -> Account:
        """Return the account from breakdowns, slowdown of compute by kind, and overlaps, all per step."""
        states = {name: breakdown[name] for name in (*WORK_ENTRIES, *WAITING_ENTRIES)}
        for state, kinds in COMPUTE_KINDS.items():
            states[state] -= sum(slowed.get(kind, 0.0) for kind in kinds)
        states["interference"] = sum(slowed.values())
        axes = {axis: AxisCommunication.of(overlap.get(CommKey(axis), OverlapSeconds())) for axis in EXPOSED}
        return cls(sum(breakdown.values()), dict(breakdown), states, axes, tuple(stages))

    def to_dict(self) -> dict[str, Any]:
        """Return the account's entries of the result JSON."""
        return {
            "states_s": {name: self.states[name] for name in STATES},
            "axes": {axis: {f"{name}_s": part for name, part in asdict(of).items()} for axis, of in self.axes.items()},
            "stages_s": [dict(stage) for stage in self.stages],
        }

    @classmethod
    def from_result(cls, result: Mapping[str, Any]) -> Account:
        """Return the account of a result JSON; raise KeyError, TypeError or ValueError where it holds none."""
        account = result["account"]
        axes = {
            axis: AxisCommunication(
                *(_number(account["axes"][axis][f"{name}_s"]) for name in AxisCommunication.__slots__)
            )
            for axis in EXPOSED
        }
        return cls(
            _number(result["step_time_s"]),
            _numbers(result["breakdown_s"], BREAKDOWN),
            _numbers(account["states_s"], STATES),
            axes,
            tuple(_numbers(stage, BREAKDOWN) for stage in account["stages_s"]),
        )


def _numbers(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    return {name: _number(values.get(name, 0.0) if name in RECENT_ENTRIES else values[name]) for name in names}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
        raise ValueError(f"{str(value)[:40]!r} is not a number of seconds")
    return float(value)


CAUSES = (
    *WORK_ENTRIES,
    "interference",
    *(f"{axis}_{reason}" for axis in EXPOSED for reason in ("traffic", "hiding", "contention")),
    *WAITING_ENTRIES,
)
"""Names of all causes, in the order in which they are shown."""


def attribute_difference(base: Account, other: Account) -> dict[str, float]:
    """Return the seconds per step by which ``other`` is longer than ``base``, by cause (``CAUSES``), mean over ranks.

    They sum to the difference of the step times, as closely as floats add.
    """
    found = {name: other.states[name] - base.states[name] for name in STATES}
    for axis in EXPOSED:
        parts = _split_by_reason(base.axes[axis], other.axes[axis])
        found |= {f"{axis}_{reason}": seconds for reason, seconds in parts.items()}
    return {cause: found[cause] for cause in CAUSES}


def stage_differences(base: Account, other: Account) -> list[dict[str, float]]:
    """Return per stage how much longer each entry of its breakdown is; a stage's entries sum to the difference too.

    Empty where the two have different numbers of stages, which then do not correspond.
    """
    if len(base.stages) != len(other.stages):
        return []
    pairs = zip(base.stages, other.stages, strict=True)
    return [{name: after[name] - before[name] for name in before} for before, after in pairs]


def _split_by_reason(before: AxisCommunication, after: AxisCommunication) -> dict[str, float]:
    """Return an axis' change by reason: exposed is free x exposed part, each factor changed at the other's mean."""
    part_before = before.exposed / before.free if before.free else None
    part_after = after.exposed / after.free if after.free else None
    first = part_before if part_before is not None else part_after or 0.0  # an axis that is new hides no other way
    second = part_after if part_after is not None else first
    return {
        "traffic": (after.free - before.free) * (first + second) / 2,
        "hiding": (second - first) * (before.free + after.free) / 2,
        "contention": after.contention - before.contention,
    }
