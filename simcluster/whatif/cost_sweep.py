"""Steps of one pipeline under many given times: planned once, then one longest path for all of them together.

The order of actions does not depend on what they cost, so neither does the program; only durations are filled in.  A
step of 16 stages and 16 microbatches takes a fraction of a millisecond, in thousands some microseconds
(``tests/benchmarks/test_fast_path.py``).  Imports given times and the longest path.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from simcluster.clock import on_grid
from simcluster.errors import InputError
from simcluster.fixed import OptimizerSync, receiver, simulate_costs
from simcluster.lowering.program import Program
from simcluster.planning.fixed_costs import Costs, StageCosts
from simcluster.schedules import Action, Kind, Schedule, make_schedule
from simcluster.simulating.longest_path import Floats, LongestPath, Played

_ANY = Costs(
    forward=1.0, backward=1.0, tensor_parallel=1.0, collectives=1, send=1.0, grad_reduce=1.0, optimizer=1.0
)  # fmt: skip
"""Costs with which every op is there that may be."""

_LETTER: dict[str, Kind] = {"forward": "F", "backward": "B", "input_grad": "I", "weight_grad": "W"}

_Source = tuple[str, int, int, bool]
"""What a duration is of: a letter or a word, the stage, the chunk, and whether a message leaves behind it."""


class CostSweep:
    """The steps of ``simulate_costs`` with these arguments, ready to be timed for any costs."""

    def __init__(
        self,
        *,
        stages: int,
        microbatches: int,
        schedule: str | Schedule = "1f1b",
        chunks: int = 1,
        tp: int = 1,
        dp: int = 1,
        steps: int = 1,
        blocking_sends: bool = False,
        optimizer_sync: OptimizerSync = "post_validation",
        sync: float = 0.0,
    ) -> None:
        made = make_schedule(schedule, stages, microbatches, chunks)
        run = simulate_costs(
            _ANY, stages=stages, microbatches=microbatches, schedule=made, tp=tp, dp=dp, steps=steps,
            blocking_sends=blocking_sends, optimizer_sync=optimizer_sync, sync=sync,
        )  # fmt: skip
        self.schedule = made
        self.program = run.lowered.program
        self._tp, self._steps, self._sync = tp, steps, sync
        self._path = LongestPath(self.program)
        sources: dict[_Source, int] = {}
        of_op = [sources.setdefault(_source(self.program, made, op), len(sources)) for op in range(len(run.record.end))]
        self._sources = list(sources)
        alike: dict[tuple[str, bool], int] = {}  # where all stages cost the same
        self._alike = [alike.setdefault((what, sends), len(alike)) for what, _, _, sends in self._sources]
        self._first_alike = [self._alike.index(number) for number in range(len(alike))]
        self._of_op = np.array(of_op, dtype=np.int64)
        self._of_op_alike = np.array(self._alike, dtype=np.int64)[self._of_op]
        meeting = np.array(self.program.meeting, dtype=np.int64)
        self._meets = np.flatnonzero(meeting >= 0)
        self._meeting = meeting[self._meets]

    def step_times(self, costs: Sequence[Costs | Sequence[Costs]]) -> Floats:
        """Seconds per step for each of these costs, as ``simulate_costs(...).step_time`` to the bit."""
        seconds, meetings = self._seconds(costs)
        return self._path.total(seconds, meetings) / self._steps

    def play(self, costs: Sequence[Costs | Sequence[Costs]]) -> Played:
        """When every op of the program begins and ends [op, case]."""
        return self._path(*self._seconds(costs))

    def _seconds(self, costs: Sequence[Costs | Sequence[Costs]]) -> tuple[Floats, Floats]:
        """Durations [op, case] and [meeting, case]; InputError for gradients in buckets, which are other ops."""
        for each in costs:
            if any(one.grad_buckets for one in ([each] if isinstance(each, Costs) else each)):
                raise InputError(
                    "grad_buckets: all cases share one program, with the reduction behind the last backward; set 0, or "
                    "play them one by one with simulate_costs"
                )
        if all(isinstance(each, Costs) for each in costs):
            which, of_op = self._first_alike, self._of_op_alike
        else:
            which, of_op = list(range(len(self._sources))), self._of_op
        table = np.array([self._durations(each, which) for each in costs]).T
        seconds = table[of_op]
        meetings = np.zeros((len(self.program.meetings), len(costs)))
        meetings[self._meeting] = seconds[self._meets]
        return seconds, meetings

    def _durations(self, costs: Costs | Sequence[Costs], which: Sequence[int]) -> list[float]:
        given = StageCosts(costs, self.schedule)
        return [self._duration(given, *self._sources[number]) for number in which]

    def _duration(self, given: StageCosts, what: str, stage: int, chunk: int, sends: bool) -> float:
        if what in ("gradients", "optimizer"):
            return on_grid(given.after(stage)[what == "optimizer"])
        if what == "gradient_norm":
            return on_grid(self._sync)
        costs = given.of(stage, chunk)
        if what == "send":
            return on_grid(costs.send)
        seconds = given.seconds(what, stage, chunk) + (costs.send_launch if sends else 0.0)  # type: ignore[arg-type]
        if what == "W" or self._tp == 1 or not costs.tensor_parallel or not costs.collectives:
            return on_grid(seconds)
        return costs.collectives * (on_grid(seconds / costs.collectives) + on_grid(costs.tensor_parallel))


def _source(program: Program, schedule: Schedule, op: int) -> _Source:
    row = program.row_sets[program.rows[op]][0]
    stage, chunk = program.lane_stage[program.lane[op]], program.chunk[op]
    if row.kind == "send" or row.kind not in _LETTER:
        return (row.kind if row.kind == "send" else row.name), stage, chunk, False
    letter = _LETTER[row.kind]
    action = Action(letter, program.microbatch[op], chunk)
    return letter, stage, chunk, receiver(schedule, stage, action) is not None


@lru_cache(maxsize=64)
def cost_sweep(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> CostSweep:
    """The sweep of a schedule by its name, made when it is first asked for; InputError as ``make_schedule``."""
    return CostSweep(stages=stages, microbatches=microbatches, schedule=schedule, chunks=chunks)
