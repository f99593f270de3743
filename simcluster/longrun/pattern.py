"""Checkpoint pattern of a run: the repeated sequence of work, snapshots and their writes.

The nominal clock counts the seconds that the healthy cluster takes from the first step on, snapshots included; a
failure sets it back to the end of a snapshot, and a slow cluster makes it run slower. So the work done, the snapshots
that are safe and their cost are functions of the nominal time alone (Benoit, Cavelan, Robert and Sun call one period a
pattern). All times are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError

MEMORY, STORAGE = 0, 1
"""Snapshot tiers: in the memory of peer nodes, or on storage."""

_GRID = 2.0**20  # of a second: sums over many weeks are exact, so that cycles end at exact times


@dataclass(frozen=True, slots=True)
class SnapshotCost:
    """Cost of a snapshot: training stops for ``stall`` s, then is slower by the share ``slowed`` for ``write`` s.

    A blocking checkpoint is all stall. The snapshot is safe once the write is done.
    """

    stall: float
    write: float = 0.0
    slowed: float = 0.0


def min_interval_steps(saving: SnapshotCost, step: float) -> int:
    """Return the number of steps done during a snapshot's write; no shorter interval keeps up."""
    return max(1, math.ceil(saving.write * (1 - saving.slowed) / step * (1 - 1e-12)))


@dataclass(frozen=True)
class CheckpointPattern:
    """Snapshots every ``steps`` steps of ``step`` seconds: each ``cycles``-th to ``storage``, others to ``memory``.

    A verification takes ``verify`` before each; ``keep`` snapshots on storage are kept (0: none is ever written).
    ``validation`` is the time of validations in seconds per step, spread evenly, as they have another period.

    The pattern begins with the write of the snapshot that the run was begun or restored from, which is made safe again.
    InputError if a write takes longer than the work until the next snapshot: it would never keep up.
    """

    step: float
    steps: int
    storage: SnapshotCost
    memory: SnapshotCost | None = None
    cycles: int = 1
    verify: float = 0.0
    keep: int = 1
    validation: float = 0.0

    def __post_init__(self) -> None:
        for saving in self._snapshot_costs:
            least = min_interval_steps(saving, self.step_with_validation)
            if self.steps < least:
                work = self.steps * self.step_with_validation + saving.slowed * saving.write
                raise InputError(
                    f"run.checkpoint: a write takes {saving.write:.4g} s, but snapshots are {work:.4g} s apart; "
                    f"write less often (every {least} steps) or faster (run.checkpoint.to)"
                )

    @property
    def step_with_validation(self) -> float:
        """Time (s) per step, including its share of validation."""
        return self.step + self.validation

    @cached_property
    def _snapshot_costs(self) -> list[SnapshotCost]:
        between = self.memory or self.storage
        return [between] * (self.cycles - 1) + [self.storage]

    @cached_property
    def phases(self) -> list[list[tuple[str, float, float]]]:
        """Phases before each snapshot of a pattern (write with work, work, verify, stall): (kind, s, steps)."""
        rows = []

        def on_grid(seconds: float) -> float:
            return round(seconds * _GRID) / _GRID

        for saving, before in zip(
            self._snapshot_costs, [self._snapshot_costs[-1], *self._snapshot_costs[:-1]], strict=True
        ):
            beside = before.write * (1 - before.slowed) / self.step_with_validation
            work = (self.steps - beside) * self.step_with_validation
            cycle = [("write", before.write, beside), ("work", work, self.steps - beside)]
            cycle += [("verify", self.verify, 0.0), ("stall", saving.stall, 0.0)]
            rows.append([(what, on_grid(seconds), steps) for what, seconds, steps in cycle])
        return rows

    @cached_property
    def _cumulative_times(self) -> dict[str, Floats]:
        known = {what: [0.0] for what in ("at", "steps", "write", "verify", "stall")}
        for what, seconds, steps in (phase for cycle in self.phases for phase in cycle):
            spent = seconds - steps * self.step_with_validation if what == "write" else seconds
            more = {"at": seconds, "steps": steps, what: spent}
            for name, values in known.items():
                values.append(values[-1] + more.get(name, 0.0))
        return {name: np.array(values) for name, values in known.items()}

    @cached_property
    def interval_bounds(self) -> Floats:
        """Times (s) within a pattern at which its intervals between snapshots begin, and the last ends."""
        return self._cumulative_times["at"][::4]

    @cached_property
    def period(self) -> float:
        """Duration (s) of one whole pattern."""
        return float(self.interval_bounds[-1])

    def snapshot_end(self, snapshot: Ints) -> Floats:
        """Return the nominal time (s) at which snapshot n has been taken; snapshot 0 is the run's start."""
        if self.cycles == 1:
            return np.asarray(snapshot * self.period)
        return np.asarray(snapshot // self.cycles * self.period + self.interval_bounds[snapshot % self.cycles])

    def _split_patterns(self, at: Floats) -> tuple[Ints, Floats]:
        """Return the number of whole patterns before a nominal time, and the seconds since the last one."""
        whole = np.floor(at / self.period).astype(np.int64)
        rest = at - whole * self.period
        early = rest < 0  # rounding
        if not np.count_nonzero(early):
            return whole, rest
        return np.where(early, whole - 1, whole), np.where(early, rest + self.period, rest)

    def spent_until(self, what: str, at: Floats) -> Floats:
        """Return the total ``steps``, or seconds of ``write``, ``verify`` or ``stall``, by a nominal time.

        The seconds of ``write`` are part of the work.
        """
        whole, rest = self._split_patterns(at)
        more: Floats = np.interp(rest, self._cumulative_times["at"], self._cumulative_times[what])
        return whole * float(self._cumulative_times[what][-1]) + more

    def time_at_steps(self, steps: float) -> float:
        """Return the nominal time (s) at which ``steps`` steps are done."""
        each = self.steps * self.cycles
        whole = int(np.ceil(steps / each)) - 1 if steps else 0
        known, rest = self._cumulative_times["steps"], steps - whole * each
        place = max(1, int(np.searchsorted(known, rest * (1 - 1e-15))))
        share = (rest - known[place - 1]) / (known[place] - known[place - 1])
        begun = self._cumulative_times["at"]
        return whole * self.period + float(begun[place - 1] + share * (begun[place] - begun[place - 1]))

    @cached_property
    def safe_within(self) -> Floats:
        """Times (s) within a pattern at which its snapshots are completely written, the initial one first."""
        return np.array([end + cycle[0][1] for end, cycle in zip(self.interval_bounds[:-1], self.phases, strict=True)])

    def count_taken(self, at: Floats) -> Ints:
        """Return the number of snapshots taken by a nominal time, completely written or not."""
        whole, rest = self._split_patterns(at)
        return whole * self.cycles + np.searchsorted(self.interval_bounds[1:-1], rest, side="right")

    def latest_safe(self, at: Floats) -> Ints:
        """Return the number of the latest snapshot completely written by a nominal time; -1 if none."""
        whole, rest = self._split_patterns(at)
        return whole * self.cycles + np.searchsorted(self.safe_within, rest, side="right") - 1

    def next_snapshot_end(self, at: Floats) -> Floats:
        """Return the nominal time (s) at which the next snapshot will have been taken."""
        return self.snapshot_end(self.count_taken(at) + 1)

    def next_verification_end(self, at: Floats) -> Floats:
        """Return the nominal time (s) at which the next verification of a snapshot ends."""
        stalls = np.array([cycle[-1][1] for cycle in self.phases])
        snapshot = self.count_taken(at) + 1
        found = self.snapshot_end(snapshot) - stalls[(snapshot - 1) % self.cycles]
        later = self.snapshot_end(snapshot + 1) - stalls[snapshot % self.cycles]
        return np.asarray(np.where(found >= at, found, later))

    def latest_snapshot_end(self, at: Floats) -> Floats:
        """Return the nominal time (s) at which the latest snapshot was taken."""
        return self.snapshot_end(self.count_taken(at))
