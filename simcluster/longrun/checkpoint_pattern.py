"""Checkpoint pattern of a run: work, snapshots and snapshot writes in a sequence that repeats.

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

STEP_TOLERANCE = 1e-6
"""Share of a step by which a step counts as done: sums over weeks are not more exact."""
_GRID = 2.0**20  # of a second: sums over many weeks are exact, so that cycles end at exact times


@dataclass(frozen=True, slots=True)
class SnapshotCost:
    """Cost of a snapshot: a training ``stall`` (s), then a ``write`` (s) that slows training by the share ``slowed``.

    A blocking checkpoint is all stall. The snapshot is safe once the write is done.
    """

    stall: float
    write: float = 0.0
    slowed: float = 0.0


def min_interval_steps(saving: SnapshotCost, step: float) -> int:
    """Return the shortest checkpoint interval, in steps, for which a snapshot is written before the next is taken."""
    return max(1, math.ceil(saving.write * (1 - saving.slowed) / step * (1 - 1e-12)))


@dataclass(frozen=True)
class CheckpointPattern:
    """Snapshots at a fixed interval of steps: all to ``storage``, or some to storage and the others to ``memory``.

    Each ``snapshots_per_stored``-th snapshot goes to storage; ``keep`` of these are kept (0: none is written). A
    verification takes ``verify`` s before each snapshot; ``validation`` is seconds of validation per step.

    The pattern begins with the write of the snapshot that the run was begun or restored from, which is made safe again.
    InputError if a write takes longer than the work until the next snapshot: it would never keep up.
    """

    step: float
    steps: int
    storage: SnapshotCost
    memory: SnapshotCost | None = None
    snapshots_per_stored: int = 1
    verify: float = 0.0
    keep: int = 1
    validation: float = 0.0

    def __post_init__(self) -> None:
        for saving in self._snapshot_costs:
            least = min_interval_steps(saving, self.step_with_validation)
            if self.steps < least:
                work = self.steps * self.step_with_validation + saving.slowed * saving.write
                raise InputError(
                    f"run.checkpoint: a write of {saving.write:.4g} s must fit between two snapshots ({work:.4g} s); "
                    f"write less often (every {least} steps) or faster (run.checkpoint.to)"
                )

    @property
    def step_with_validation(self) -> float:
        """Time per step (s), including validation time averaged over the steps."""
        return self.step + self.validation

    @cached_property
    def _snapshot_costs(self) -> list[SnapshotCost]:
        return [self.memory or self.storage] * (self.snapshots_per_stored - 1) + [self.storage]

    @cached_property
    def phases_by_snapshot(self) -> list[list[tuple[str, float, float]]]:
        """Phases before each snapshot of a pattern: write, work, verify, stall, each as (name, seconds, steps)."""
        rows = []

        def round_to_grid(seconds: float) -> float:
            return round(seconds * _GRID) / _GRID

        for saving, before in zip(
            self._snapshot_costs, [self._snapshot_costs[-1], *self._snapshot_costs[:-1]], strict=True
        ):
            beside = before.write * (1 - before.slowed) / self.step_with_validation
            work = (self.steps - beside) * self.step_with_validation
            cycle = [("write", before.write, beside), ("work", work, self.steps - beside)]
            cycle += [("verify", self.verify, 0.0), ("stall", saving.stall, 0.0)]
            rows.append([(what, round_to_grid(seconds), steps) for what, seconds, steps in cycle])
        return rows

    @cached_property
    def _cumulative_times(self) -> dict[str, Floats]:
        known = {what: [0.0] for what in ("at", "steps", "write", "verify", "stall")}
        for what, seconds, steps in (phase for cycle in self.phases_by_snapshot for phase in cycle):
            spent = seconds - steps * self.step_with_validation if what == "write" else seconds
            more = {"at": seconds, "steps": steps, what: spent}
            for name, values in known.items():
                values.append(values[-1] + more.get(name, 0.0))
        return {name: np.array(values) for name, values in known.items()}

    @cached_property
    def interval_bounds(self) -> Floats:
        """Times (s) within a pattern that bound the intervals between snapshots."""
        return self._cumulative_times["at"][::4]

    @cached_property
    def pattern_seconds(self) -> float:
        """Duration (s) of one repetition of the pattern."""
        return float(self.interval_bounds[-1])

    def snapshot_end(self, snapshot: Ints) -> Floats:
        """Return the failure-free (nominal) time (s) at which snapshot n is taken; snapshot 0: the run's start."""
        cycles = self.snapshots_per_stored
        return np.asarray(snapshot // cycles * self.pattern_seconds + self.interval_bounds[snapshot % cycles])

    def _split_patterns(self, times: Floats) -> tuple[Ints, Floats]:
        """Return how many whole patterns precede a failure-free (nominal) time, and the seconds since."""
        whole = np.floor(times / self.pattern_seconds).astype(np.int64)
        rest = times - whole * self.pattern_seconds
        early = rest < 0  # rounding
        if not np.count_nonzero(early):
            return whole, rest
        return np.where(early, whole - 1, whole), np.where(early, rest + self.pattern_seconds, rest)

    def total_until(self, quantity: str, times: Floats) -> Floats:
        """Return the steps done, or seconds of write, verify or stall, up to a failure-free (nominal) time.

        The seconds of ``write`` are part of the work.
        """
        whole, rest = self._split_patterns(times)
        more: Floats = np.interp(rest, self._cumulative_times["at"], self._cumulative_times[quantity])
        return whole * float(self._cumulative_times[quantity][-1]) + more

    def time_at_steps(self, steps: float) -> float:
        """Return the time (s) at which ``steps`` steps are done if nothing fails (nominal time)."""
        each = self.steps * self.snapshots_per_stored
        whole = int(np.ceil(steps / each)) - 1 if steps else 0
        known, rest = self._cumulative_times["steps"], steps - whole * each
        place = max(1, int(np.searchsorted(known, rest * (1 - 1e-15))))
        share = (rest - known[place - 1]) / (known[place] - known[place - 1])
        begun = self._cumulative_times["at"]
        return whole * self.pattern_seconds + float(begun[place - 1] + share * (begun[place] - begun[place - 1]))

    def step_begin(self, at: float) -> float:
        """Return when the step in progress at a failure-free (nominal) time began; after the work: when that ended."""
        snapshot = int(self.count_snapshots_taken(np.array([at]))[0])
        begin = float(self.snapshot_end(np.array([snapshot]))[0])
        (_, write, beside), (_, work, steps) = self.phases_by_snapshot[snapshot % self.snapshots_per_stored][:2]
        since = at - begin
        done = since / write * beside if since < write else beside + min(1.0, (since - write) / (work or 1.0)) * steps
        done = math.floor(done + STEP_TOLERANCE)
        return begin + (done / beside * write if done < beside else write + (done - beside) / (steps or 1.0) * work)

    @cached_property
    def safe_times_within_pattern(self) -> Floats:
        """Times (s) within a pattern at which snapshots have been completely written, initial snapshot first."""
        ends = zip(self.interval_bounds[:-1], self.phases_by_snapshot, strict=True)
        return np.array([end + cycle[0][1] for end, cycle in ends])

    def count_snapshots_taken(self, times: Floats) -> Ints:
        """Return how many snapshots, safe or not, are taken by a failure-free (nominal) time."""
        whole, rest = self._split_patterns(times)
        return whole * self.snapshots_per_stored + np.searchsorted(self.interval_bounds[1:-1], rest, side="right")

    def latest_safe_snapshot(self, times: Floats) -> Ints:
        """Return the index of the last snapshot written by a failure-free (nominal) time; -1 if none."""
        whole, rest = self._split_patterns(times)
        return whole * self.snapshots_per_stored + np.searchsorted(self.safe_times_within_pattern, rest, "right") - 1

    def next_snapshot_end(self, times: Floats) -> Floats:
        """Return when the first snapshot after a nominal (failure-free) time will be taken (s, nominal)."""
        return self.snapshot_end(self.count_snapshots_taken(times) + 1)

    def next_verification_end(self, times: Floats) -> Floats:
        """Return when the first verification after a nominal (failure-free) time ends (s, nominal)."""
        stalls = np.array([cycle[-1][1] for cycle in self.phases_by_snapshot])
        snapshot = self.count_snapshots_taken(times) + 1
        found = self.snapshot_end(snapshot) - stalls[(snapshot - 1) % self.snapshots_per_stored]
        later = self.snapshot_end(snapshot + 1) - stalls[snapshot % self.snapshots_per_stored]
        return np.asarray(np.where(found >= times, found, later))
