"""V-half and V-min: schedules on a V of stages built from one repeated block, which decides how much memory they take.

A block says when a microbatch makes its passes, in slots as long as F, I and W of one chunk; the next microbatch
follows six slots later.  The longer a microbatch stays on a stage, the more are alive at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from simcluster.schedules.actions import Action, Kind, Schedule, snake_route
from simcluster.schedules.check import require_counts, require_own_chunks

_PERIOD = 6  # slots: F, I and W of two chunks
_JOURNEYS: tuple[tuple[Kind, int], ...] = (("F", 0), ("F", 1), ("I", 1), ("I", 0))
"""Kind and chunk of the four journeys of a microbatch: down the stages, up, down and up again."""


def v_half(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Half of the activations of 1F1B: P + 2 half-stages in flight on the worst stage, P + 1 where P is odd.

    With f = i = w the times of one chunk and M >= 2 P the makespan is 6 M f + (3 P - 7) f for even P from 4 on and
    6 M f + (3 P - 4) f for odd P from 3 on; the bubble of 1F1B is 6 (P - 1) f.  Source of the block: Qi et al.,
    arXiv:2405.15362, section 3; its turns, and the order in warm-up and cool-down, are ours.
    InputError for counts below one or chunks other than two.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(v_half(2, 2))[0]
    'r0 F0.0 F1.0 F0.1 I0.1 F1.1 I1.1 I0.0 W0.1 I1.0 W1.1 W0.0 W1.0'
    """
    require_counts("v-half", num_stages, num_microbatches, num_chunks)
    odd = num_stages % 2
    block = _Block(num_stages, steps=(2, 1, 2, 1), turns=(1, 1, 2) if odd else (1, 4, 2))
    return _from_block("v-half", block, num_microbatches, num_chunks, most_alive=num_stages + 2 - odd, choice=2 - odd)


def v_min(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """A third of the activations of 1F1B: 2 ceil((P + 2) / 3) half-stages in flight on the worst stage.

    With f = i = w the times of one chunk and M >= 2 P the makespan is 6 M f + (4 P - 5) f for P from 2 on.  Source of
    the block: Qi et al., arXiv:2405.15362, section 3; its turns, and the order in warm-up and cool-down, are ours.
    InputError for counts below one or chunks other than two.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(v_min(2, 2))[0]
    'r0 F0.0 F0.1 I0.1 F1.0 W0.1 I0.0 W0.0 F1.1 I1.1 W1.1 I1.0 W1.0'
    """
    require_counts("v-min", num_stages, num_microbatches, num_chunks)
    block = _Block(num_stages, steps=(1, 1, 1, 1), turns=(1, 1, 1) if num_stages % 3 else (3, 1, 3))
    return _from_block("v-min", block, num_microbatches, num_chunks, most_alive=2 * -(-(num_stages + 2) // 3), choice=1)


class _Block:
    """When microbatch 0 makes its passes: ``steps`` slots from stage to stage on each journey, ``turns`` between them.

    Turns are such that no two passes of a stage fall into the same slot of the period.
    """

    def __init__(self, num_stages: int, steps: tuple[int, ...], turns: tuple[int, ...]) -> None:
        self.num_stages = num_stages
        self._steps = steps
        self._begins = [0]
        for step, turn in zip(steps, turns, strict=False):
            self._begins.append(self._begins[-1] + step * (num_stages - 1) + turn)

    def order(self, stage: int, num_microbatches: int) -> list[Action]:
        """F and I of all microbatches on a stage as the repeated block orders them."""
        slots = {}
        for (kind, chunk), begin, step, down in zip(_JOURNEYS, self._begins, self._steps, (1, 0, 1, 0), strict=True):
            slot = begin + step * (stage if down else self.num_stages - 1 - stage)
            for microbatch in range(num_microbatches):
                slots[slot + _PERIOD * microbatch] = Action(kind, microbatch, chunk)
        return [slots[slot] for slot in sorted(slots)]


def _from_block(
    name: str, block: _Block, num_microbatches: int, num_chunks: int, most_alive: int, choice: int
) -> Schedule:
    require_own_chunks(name, num_chunks, 2, "down the pipeline and up again")
    rows = [_Row(stage, block, num_microbatches, most_alive, choice) for stage in range(block.num_stages)]
    ended: dict[tuple[Kind, int, int], int] = {}  # (kind, microbatch, slice) -> the slot after it
    slot = 0
    while any(row.goes_on for row in rows):
        passes = [(row, action) for row in rows if (action := row.choose(ended, slot)) is not None]
        slot += 1
        for row, action in passes:
            ended[action.kind, action.microbatch, row.slice_of(action)] = slot
            row.take(action)
    return Schedule.along(snake_route(block.num_stages, 2), name, [row.done for row in rows], num_microbatches)


class _Row:
    """A stage taking one pass per slot: the next of the block's order that can run, else the oldest W.

    "Next" are the first ``choice`` of those to come, and an F only while fewer than ``most_alive`` chunks are alive.
    """

    def __init__(self, stage: int, block: _Block, num_microbatches: int, most_alive: int, choice: int) -> None:
        self.done: list[Action] = []
        self._last = 2 * block.num_stages - 1
        self._slices = (stage, self._last - stage)
        self._to_come = deque(block.order(stage, num_microbatches))
        self._weights: deque[Action] = deque()
        self._alive, self._most_alive, self._choice = 0, most_alive, choice

    @property
    def goes_on(self) -> bool:
        return bool(self._to_come or self._weights)

    def slice_of(self, action: Action) -> int:
        """Which slice of the model the action's chunk is."""
        return self._slices[action.chunk]

    def choose(self, ended: dict[tuple[Kind, int, int], int], slot: int) -> Action | None:
        """What runs in this slot; nothing where all that could wait for others."""
        for index in range(min(self._choice, len(self._to_come))):
            action = self._to_come[index]
            full = action.kind == "F" and self._alive >= self._most_alive
            if not full and all(ended.get(need, slot + 1) <= slot for need in self._needs(action)):
                return action
        return self._weights[0] if self._weights else None

    def take(self, action: Action) -> None:
        """Write the action down and change what is alive and what is to come."""
        self.done.append(action)
        if action.kind == "W":
            self._weights.popleft()
            self._alive -= 1
            return
        self._to_come.remove(action)
        if action.kind == "F":
            self._alive += 1
        else:
            self._weights.append(Action("W", action.microbatch, action.chunk))

    def _needs(self, action: Action) -> Iterator[tuple[Kind, int, int]]:
        place = self.slice_of(action)
        if action.kind == "F":
            if place:
                yield "F", action.microbatch, place - 1
            return
        yield "F", action.microbatch, place
        if place < self._last:
            yield "I", action.microbatch, place + 1
