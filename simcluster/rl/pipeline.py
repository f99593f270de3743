"""Pipeline of RL steps: engines, reward workers, trainer and weight updates as events, and the idle time by cause.

The order is that of verl (volcengine/verl@606ed937:recipe/one_step_off_policy/README.md) and of NeMo-RL (its guide to
async GRPO: ``max_trajectory_age_steps``, ``in_flight_weight_updates``): after each training step the trainer's weights
go to all engines, while the trainer waits. Rollouts of batch b need the weights of b - k training steps. Samples wait
in one queue; the engine with the fewest sequences takes the next. Before an update the engines finish the batches that
have begun, or, in flight, pause.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcluster.base.arrays import Bools, Floats
from simcluster.rl.rollouts import EngineCost, RolloutEngine, Sample

GENERATING, TRAINING, WEIGHTS = "generating", "training", "weights"


@dataclass(frozen=True, slots=True)
class RlStages:
    """Stages of an RL step: engines, trainer phases (s) in order, reward, weight update (s), and their coupling."""

    cost: EngineCost
    engines: int
    concurrency: int
    phases: Mapping[str, float]
    weights: float
    reward: float = 0.0
    workers: int | None = None
    steps_off: int = 0
    in_flight: bool = False


@dataclass
class RlPipeline:
    """Simulation of RL steps; ``batches`` are the samples of each step, prompts one after another.

    The last ``steps_off`` batches keep the engines busy while the trainer finishes the one before them. Times (s) by
    batch: ``begun``, its first sample starts; ``generated``, its last one ends; ``scored``, its rewards are known;
    ``trained``, its training step ends. ``phases`` are (phase, start, end) of the trainer.
    """

    stages: RlStages
    batches: Sequence[Sequence[Sample]]
    engines: list[RolloutEngine] = field(init=False)
    begun: list[float] = field(default_factory=list)
    generated: list[float] = field(init=False)
    scored: list[float] = field(init=False)
    trained: list[float] = field(default_factory=list)
    phases: list[tuple[str, float, float]] = field(default_factory=list)
    updates: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        stages, count = self.stages, len(self.batches)
        self.engines = [RolloutEngine(stages.cost, stages.concurrency) for _ in range(stages.engines)]
        self.generated, self.scored = [math.inf] * count, [0.0] * count
        self._queue = deque(sample for batch in self.batches for sample in batch)
        self._left, self._complete = [len(batch) for batch in self.batches], [False] * count
        self._free = [0.0] * (stages.workers or 0)  # when each reward worker is free
        self._events: list[tuple[float, int, str, int]] = []
        self._order = itertools.count()
        self._expected = [(0.0, -1)] * stages.engines  # time and number of the event of each running engine
        self._version = 0  # training steps that the engines' weights include
        self._training = self._pending = self._updating = False

    def run(self) -> RlPipeline:
        """Simulate until the trainer has finished its batches; return the pipeline with its times."""
        self._dispatch(0.0, range(len(self.engines)))
        while len(self.trained) < len(self.batches) - self.stages.steps_off:
            now, number, kind, which = heapq.heappop(self._events)
            if kind == "engine":
                if self._expected[which] == (now, number):
                    self._continue_engine(now, which)
            elif kind == "scored":
                self._complete[which] = True
                self._start_training(now)
            elif kind == "trained":
                self.trained.append(now)
                self._training, self._pending = False, True
                self._start_update(now)
            else:
                self._version, self._updating = len(self.trained), False
                self._dispatch(now, range(len(self.engines)))
                self._start_training(now)
        return self

    def _push(self, time: float, kind: str, which: int = 0) -> int:
        number = next(self._order)
        heapq.heappush(self._events, (time, number, kind, which))
        return number

    # --- rollouts -----------------------------------------------------------------------------------------------------

    def _opens_queue(self) -> bool:
        if not self._queue or self._updating:
            return False
        batch = self._queue[0].batch
        return self._version >= batch - self.stages.steps_off and not (self._pending and batch >= len(self.begun))

    def _dispatch(self, now: float, which: Sequence[int]) -> None:
        """Give waiting samples to those of these engines that have room, the emptiest first, and start them."""
        rooms = [(-self.engines[place].room, place) for place in which if self.engines[place].room]
        heapq.heapify(rooms)
        taken = dict.fromkeys(place for place in which if self.engines[place].inbox)
        while rooms and self._opens_queue():
            room, place = heapq.heappop(rooms)
            self._take_sample(now, self.engines[place])
            taken[place] = None
            if room + 1:
                heapq.heappush(rooms, (room + 1, place))
        for place in taken:
            engine = self.engines[place]
            time = engine.interrupt(now) if engine.running else engine.start_inbox(now)
            self._expect(place, time)

    def _take_sample(self, now: float, engine: RolloutEngine) -> None:
        sample = self._queue.popleft()
        if sample.batch == len(self.begun):
            self.begun.append(now)
        engine.inbox.append(sample)

    def _expect(self, place: int, time: float) -> None:
        self._expected[place] = time, self._push(time, "engine", place)

    def _continue_engine(self, now: float, place: int) -> None:
        engine = self.engines[place]
        for sample in engine.arrive():
            self._score(now, sample.batch)
        while engine.room and self._opens_queue():
            self._take_sample(now, engine)
        time = engine.start_inbox(now)
        if engine.running:
            self._expect(place, time)
        self._start_update(now)

    def _score(self, now: float, batch: int) -> None:
        start = max(now, heapq.heappop(self._free)) if self._free else now
        end = start + self.stages.reward
        if self.stages.workers:
            heapq.heappush(self._free, end)
        self._left[batch] -= 1
        self.scored[batch] = max(self.scored[batch], end)
        if not self._left[batch]:
            self.generated[batch] = now
            self._push(self.scored[batch], "scored", batch)

    # --- trainer ------------------------------------------------------------------------------------------------------

    def _start_training(self, now: float) -> None:
        batch = len(self.trained)
        if self._training or self._pending or self._updating or not self._complete[batch]:
            return
        self._training = True
        for name, seconds in self.stages.phases.items():
            self.phases.append((name, now, now + seconds))
            now += seconds
        self._push(now, "trained")

    def _start_update(self, now: float) -> None:
        if not self._pending:
            return
        running = [place for place, engine in enumerate(self.engines) if engine.running]
        if running and not self.stages.in_flight:
            return
        seconds = self.stages.weights
        self._pending, self._updating = False, True
        self.updates.append((now, now + seconds))
        for engine in self.engines:
            engine.forget_prompts()
        for place in running:
            self.engines[place].pause(now, seconds)
            self._expect(place, self._expected[place][0] + seconds)
        self._push(now + seconds, "updated")

    # --- where the time goes ------------------------------------------------------------------------------------------

    def account(self, start: float, end: float) -> tuple[dict[str, float], dict[str, float]]:
        """Return what engines and trainer do from ``start`` to ``end``, in seconds by activity or cause of idle time.

        Engines: the mean over all. An idle engine waits for others that still generate ("tail"), for weights, the
        reward, or the trainer. An idle trainer waits for rollouts, the reward, or weights.
        """
        updates, trains = self.updates, [(begin, finish) for _, begin, finish in self.phases]
        busy = [engine.busy_intervals(end) for engine in self.engines]
        edges = np.unique([start, end, *self.generated, *self.scored, *self.trained,
                           *(time for each in (updates, trains, *busy) for pair in each for time in pair)])  # fmt: skip
        edges = edges[(edges >= start) & (edges <= end)]
        middle, seconds = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        updating, training = cover_times(updates, middle), cover_times(trains, middle)
        batch = np.searchsorted(self.trained, middle)  # that the trainer trains, or waits for
        generated, scored = np.array(self.generated)[batch] <= middle, np.array(self.scored)[batch] <= middle
        running = np.array([cover_times(each, middle) & ~updating for each in busy])
        share, waits = running.mean(axis=0), ~updating & ~training & generated & ~scored
        some = running.any(axis=0)
        rollouts = {
            GENERATING: share, "tail": np.where(some, 1 - share, 0.0), WEIGHTS: updating,
            "reward": ~some & waits, "trainer": ~some & ~waits & ~updating,
        }  # fmt: skip
        trainer = {
            TRAINING: training, "rollouts": ~training & ~updating & ~generated, "reward": waits,
            WEIGHTS: ~training & (updating | scored),
        }  # fmt: skip
        first, second = ({name: float(seconds @ part) for name, part in pool.items()} for pool in (rollouts, trainer))
        return first, second


def cover_times(intervals: Sequence[tuple[float, float]], times: Floats) -> Bools:
    """Return which times lie in one of these intervals, which are in order and do not overlap."""
    if not intervals:
        return np.zeros(len(times), dtype=bool)
    begin, end = np.array(intervals).T
    place = np.searchsorted(begin, times, side="right") - 1
    return np.asarray((place >= 0) & (times < end[np.maximum(place, 0)]))
