"""Step time by cause and by pipeline stage, in a form that is small enough for result files.

``attribute_difference`` explains the difference of two steps by cause. Exposed communication changes for three reasons
with different remedies: transfers take another time on free links (*traffic*), another part of them overlaps with
compute (*hiding*), or links are shared (*contention*). The slowdown of compute by concurrent communication is a
separate cause (*interference*).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simcluster.base.display import Displayable
from simcluster.results.overlap import CommunicationKey, OverlapSeconds
from simcluster.results.rank_time import BREAKDOWN
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
    """Communication time of one parallel axis, in seconds per step, averaged over ranks.

    ``free`` is the duration of its transfers on free links, ``exposed`` the part of that which the breakdown counts,
    and ``contention`` what sharing links adds to it.
    """

    free: float = 0.0
    exposed: float = 0.0
    contention: float = 0.0


@dataclass(frozen=True)
class StepAccount(Displayable):
    """Step time by cause and by pipeline stage, in seconds, averaged over ranks.

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
    def from_measurements(
        cls,
        breakdown: Mapping[str, float],
        stages: Iterable[Mapping[str, float]],
        slowed: Mapping[str, float],
        overlap: Mapping[CommunicationKey, OverlapSeconds],
    ) -> StepAccount:
        """Build the account from measured seconds per step: breakdowns, slower computations, and overlaps."""
        states = {name: breakdown[name] for name in (*WORK_ENTRIES, *WAITING_ENTRIES)}
        for state, kinds in COMPUTE_KINDS.items():
            states[state] -= sum(slowed.get(kind, 0.0) for kind in kinds)
        states["interference"] = sum(slowed.values())
        axes = {}
        for axis in EXPOSED:
            found = overlap.get(CommunicationKey(axis), OverlapSeconds())
            shared = found.counted_contention
            axes[axis] = AxisCommunication(found.wire - found.contention, found.counted - shared, shared)
        return cls(sum(breakdown.values()), dict(breakdown), states, axes, tuple(stages))

    def to_dict(self) -> dict[str, Any]:
        """Return the account's section of the result JSON."""
        return {
            "states_s": {name: self.states[name] for name in STATES},
            "axes": {axis: {f"{name}_s": part for name, part in asdict(of).items()} for axis, of in self.axes.items()},
            "stages_s": [dict(stage) for stage in self.stages],
        }

    @classmethod
    def from_result(cls, result: Mapping[str, Any]) -> StepAccount:
        """Read the account from a result JSON; raise KeyError, TypeError or ValueError if it is missing or invalid."""
        account = result["account"]
        axes = {
            axis: AxisCommunication(
                *(_check_number(account["axes"][axis][f"{name}_s"]) for name in AxisCommunication.__slots__)
            )
            for axis in EXPOSED
        }
        return cls(
            _check_number(result["step_time_s"]),
            _check_numbers(result["breakdown_s"], BREAKDOWN),
            _check_numbers(account["states_s"], STATES),
            axes,
            tuple(_check_numbers(stage, BREAKDOWN) for stage in account["stages_s"]),
        )


def _check_numbers(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    return {name: _check_number(values.get(name, 0.0) if name in RECENT_ENTRIES else values[name]) for name in names}


def _check_number(value: object) -> float:
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


def attribute_difference(base: StepAccount, other: StepAccount) -> dict[str, float]:
    """Return, for each cause, by how many seconds it makes the second step longer than the first.

    They sum to the difference of the step times, as closely as floats add.
    """
    found = {name: other.states[name] - base.states[name] for name in STATES}
    for axis in EXPOSED:
        parts = _split_by_reason(base.axes[axis], other.axes[axis])
        found |= {f"{axis}_{reason}": seconds for reason, seconds in parts.items()}
    return {cause: found[cause] for cause in CAUSES}


def attribute_by_stage(base: StepAccount, other: StepAccount) -> list[dict[str, float]]:
    """Return, per stage, by how many seconds each breakdown entry is longer in the second step than in the first.

    Empty if the two have different numbers of stages, which then do not correspond.
    """
    if len(base.stages) != len(other.stages):
        return []
    pairs = zip(base.stages, other.stages, strict=True)
    return [{name: after[name] - before[name] for name in before} for before, after in pairs]


def _split_by_reason(before: AxisCommunication, after: AxisCommunication) -> dict[str, float]:
    """Divide the change of an axis' exposed communication among traffic, overlap and contention."""
    part_before = before.exposed / before.free if before.free else None
    part_after = after.exposed / after.free if after.free else None
    first = part_before if part_before is not None else part_after or 0.0  # an axis that is new hides no other way
    second = part_after if part_after is not None else first
    return {
        "traffic": (after.free - before.free) * (first + second) / 2,
        "hiding": (second - first) * (before.free + after.free) / 2,
        "contention": after.contention - before.contention,
    }
