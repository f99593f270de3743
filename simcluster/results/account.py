"""The account of a step: where its time went, by cause and by stage, in few numbers that a result file can hold.

Two accounts say why one step is longer than another without either's timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simcluster.results.metrics import BREAKDOWN, COMPUTE_KINDS, EXPOSED
from simcluster.results.overlap import Key, OverlapSeconds

COMPUTE = tuple(COMPUTE_KINDS)
WAITING = ("bubble", "straggler_wait")
_MOST = 1e100
STATES = (*COMPUTE, "interference", *WAITING)
"""What a rank does when it is not held up by communication; *interference* is what slows its compute down."""


@dataclass(frozen=True, slots=True)
class AxisCommunication:
    """One axis of one run, in seconds per step of the mean rank.

    ``free`` is what its transfers take on free links, ``exposed`` the part of that which the breakdown counts, and
    ``contention`` what sharing links adds to it.
    """

    free: float = 0.0
    exposed: float = 0.0
    contention: float = 0.0

    @classmethod
    def of(cls, overlap: OverlapSeconds) -> AxisCommunication:
        """What is measured of an axis."""
        return cls(
            overlap.wire - overlap.contention, overlap.counted - overlap.counted_contention, overlap.counted_contention
        )


@dataclass(frozen=True)
class Account:
    """Where a step went: seconds of the mean rank.

    ``breakdown`` is as metrics define it, ``states`` its entries that are no communication, without what slows compute
    down, which is *interference*; ``axes`` are what each axis communicates.  ``stages[s]`` is the breakdown of the mean
    rank of stage s: each sums to ``step_time``, as ``breakdown`` does.
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
        overlap: Mapping[Key, OverlapSeconds],
    ) -> Account:
        """From breakdowns, what compute of each kind takes longer beside communication, and overlaps: all per step."""
        states = {name: breakdown[name] for name in (*COMPUTE, *WAITING)}
        for state, kinds in COMPUTE_KINDS.items():
            states[state] -= sum(slowed.get(kind, 0.0) for kind in kinds)
        states["interference"] = sum(slowed.values())
        axes = {axis: AxisCommunication.of(overlap.get(Key(axis), OverlapSeconds())) for axis in EXPOSED}
        return cls(sum(breakdown.values()), dict(breakdown), states, axes, tuple(stages))

    def to_dict(self) -> dict[str, Any]:
        """As the result JSON has it, beside ``step_time_s`` and ``breakdown_s``."""
        return {
            "states_s": {name: self.states[name] for name in STATES},
            "axes": {axis: {f"{name}_s": part for name, part in asdict(of).items()} for axis, of in self.axes.items()},
            "stages_s": [dict(stage) for stage in self.stages],
        }

    @classmethod
    def from_result(cls, result: Mapping[str, Any]) -> Account:
        """From a result JSON; KeyError, TypeError or ValueError where it holds none."""
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
    return {name: _number(values[name]) for name in names}


def _number(value: object) -> float:
    """A number whose sums are numbers; no text, which float() would read."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
        raise ValueError(f"{str(value)[:40]!r} is no number of seconds")
    return float(value)
