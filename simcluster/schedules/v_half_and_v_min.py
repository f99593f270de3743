"""V-half and V-min: V-shaped schedules that repeat a pattern of passes, chosen for low peak memory.

A block states when a microbatch runs its passes, in slots as long as F, I and W of one chunk; the next microbatch
follows six slots later. The longer a microbatch stays on a stage, the more are alive at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from simcluster.schedules.actions import Action, Kind, Schedule, snake_route
from simcluster.schedules.check import require_counts, require_fixed_chunks

_PERIOD = 6  # slots: F, I and W of two chunks
_JOURNEYS: tuple[tuple[Kind, int], ...] = (("F", 0), ("F", 1), ("I", 1), ("I", 0))
"""Kind and chunk of the four journeys of a microbatch: down the stages, up, down and up again."""


def v_half(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make V-half on P stages: at most P + 2 half-stages' activations in flight (odd P: P + 1), about half of 1F1B's.

    With f = i = w the times of one chunk and M >= 2 P the makespan is 6 M f + (3 P - 7) f for even P from 4 on and 6 M
    f + (3 P - 4) f for odd P from 3 on; the bubble of 1F1B is 6 (P - 1) f. Source of the block: Qi et al.,
    arXiv:2405.15362, section 3; its turns, and the order in warm-up and cool-down, are simcluster's. InputError for
    counts below one or chunks other than two.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(v_half(2, 2))[0]
    'r0 F0.0 F1.0 F0.1 I0.1 F1.1 I1.1 I0.0 W0.1 I1.0 W1.1 W0.0 W1.0'
    """
    require_counts("v-half", num_stages, num_microbatches, num_chunks)
    return _schedule_from_block("v-half", _v_half_block(num_stages), num_microbatches, num_chunks)


def v_half_first_forwards(num_stages: int, num_microbatches: int, num_chunks: int, stage: int) -> int:
    """Return the number of forwards that a stage of V-half runs before its first backward.

    >>> [v_half_first_forwards(4, 8, 2, stage) for stage in range(4)]
    [4, 5, 6, 6]
    """
    del num_chunks  # two
    return _count_first_forwards(_v_half_block(num_stages), num_microbatches)[stage]


def v_min(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make V-min on P stages: at most 2 ceil((P + 2) / 3) half-stages' activations in flight, about 1/3 of 1F1B's.

    With f = i = w the times of one chunk and M >= 2 P the makespan is 6 M f + (4 P - 5) f for P from 2 on. Source of
    the block: Qi et al., arXiv:2405.15362, section 3; its turns, and the order in warm-up and cool-down, are
    simcluster's. InputError for counts below one or chunks other than two.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(v_min(2, 2))[0]
    'r0 F0.0 F0.1 I0.1 F1.0 W0.1 I0.0 W0.0 F1.1 I1.1 W1.1 I1.0 W1.0'
    """
    require_counts("v-min", num_stages, num_microbatches, num_chunks)
    return _schedule_from_block("v-min", _v_min_block(num_stages), num_microbatches, num_chunks)


def v_min_first_forwards(num_stages: int, num_microbatches: int, num_chunks: int, stage: int) -> int:
    """Return the number of forwards that a stage of V-min runs before its first backward."""
    del num_chunks  # two
    return _count_first_forwards(_v_min_block(num_stages), num_microbatches)[stage]


@dataclass(frozen=True)
class _RepeatedBlock:
    """Pattern of passes, in time slots, that V-half or V-min repeats for every microbatch.

    ``steps`` are the slots from stage to stage on a journey, ``turns`` those between journeys: such that no two passes
    of a stage fall into the same slot of the period. A stage takes one of the next ``max_candidates`` passes, and has
    at most ``most_alive`` chunks alive.
    """

    num_stages: int
    steps: tuple[int, ...]
    turns: tuple[int, ...]
    most_alive: int
    max_candidates: int

    def pass_order(self, stage: int, num_microbatches: int) -> list[Action]:
        """Return a stage's forwards and input gradients of all microbatches, in the pattern's order."""
        begins = [0]
        for step, turn in zip(self.steps, self.turns, strict=False):
            begins.append(begins[-1] + step * (self.num_stages - 1) + turn)
        slots = {}
        for (kind, chunk), begin, step, down in zip(_JOURNEYS, begins, self.steps, (1, 0, 1, 0), strict=True):
            slot = begin + step * (stage if down else self.num_stages - 1 - stage)
            for microbatch in range(num_microbatches):
                slots[slot + _PERIOD * microbatch] = Action(kind, microbatch, chunk)
        return [slots[slot] for slot in sorted(slots)]


def _v_half_block(num_stages: int) -> _RepeatedBlock:
    odd = num_stages % 2
    return _RepeatedBlock(
        num_stages, steps=(2, 1, 2, 1), turns=(1, 1, 2) if odd else (1, 4, 2),
        most_alive=num_stages + 2 - odd, max_candidates=2 - odd,
    )  # fmt: skip


def _v_min_block(num_stages: int) -> _RepeatedBlock:
    turns = (1, 1, 1) if num_stages % 3 else (3, 1, 3)
    return _RepeatedBlock(num_stages, (1, 1, 1, 1), turns, most_alive=2 * -(-(num_stages + 2) // 3), max_candidates=1)


def _schedule_from_block(name: str, block: _RepeatedBlock, num_microbatches: int, num_chunks: int) -> Schedule:
    require_fixed_chunks(name, num_chunks, 2, "one for each direction")
    route = snake_route(block.num_stages, 2)
    rows = [_RowBuilder(stage, block, num_microbatches) for stage in range(block.num_stages)]
    deque(_run_slots(rows), maxlen=0)
    return Schedule.with_single_route(route, name, [row.done for row in rows], num_microbatches)


def _count_first_forwards(block: _RepeatedBlock, num_microbatches: int) -> tuple[int, ...]:
    """Return, for each stage, the number of forwards before its first backward."""
    return _simulate_first_forwards(block, min(num_microbatches, block.most_alive + block.max_candidates))


@lru_cache(maxsize=1024)
def _simulate_first_forwards(block: _RepeatedBlock, num_microbatches: int) -> tuple[int, ...]:
    rows = [_RowBuilder(stage, block, num_microbatches) for stage in range(block.num_stages)]
    for _ in _run_slots(rows):
        if all(row.turned for row in rows):
            break
    return tuple(next(place for place, action in enumerate(row.done) if action.kind != "F") for row in rows)


def _run_slots(rows: list[_RowBuilder]) -> Iterator[None]:
    """Advance all stages slot by slot, at most one pass per stage and slot; yield after every slot."""
    ended: dict[tuple[Kind, int, int], int] = {}  # (kind, microbatch, slice) -> the slot after it
    slot = 0
    while any(row.has_passes for row in rows):
        passes = [(row, action) for row in rows if (action := row.choose_pass(ended, slot)) is not None]
        slot += 1
        for row, action in passes:
            ended[action.kind, action.microbatch, row.model_slice(action)] = slot
            row.append_pass(action)
        yield


class _RowBuilder:
    """Builder of one stage's row: each time slot runs the pattern's next pass if ready, else a weight gradient.

    "Next" are the first ``max_candidates`` passes to come, an F only while fewer than ``most_alive`` chunks are alive.
    """

    def __init__(self, stage: int, block: _RepeatedBlock, num_microbatches: int) -> None:
        self.done: list[Action] = []
        self.turned = False  # has it done a backward?
        self._last = 2 * block.num_stages - 1
        self._slices = (stage, self._last - stage)
        self._to_come = deque(block.pass_order(stage, num_microbatches))
        self._weights: deque[Action] = deque()
        self._alive, self._most_alive, self._choice = 0, block.most_alive, block.max_candidates

    @property
    def has_passes(self) -> bool:
        return bool(self._to_come or self._weights)

    def model_slice(self, action: Action) -> int:
        return self._slices[action.chunk]

    def choose_pass(self, ended: dict[tuple[Kind, int, int], int], slot: int) -> Action | None:
        """Return the pass to run in this slot; None if every candidate still waits for other stages."""
        for index in range(min(self._choice, len(self._to_come))):
            action = self._to_come[index]
            full = action.kind == "F" and self._alive >= self._most_alive
            if not full and all(ended.get(need, slot + 1) <= slot for need in self._list_needed_actions(action)):
                return action
        return self._weights[0] if self._weights else None

    def append_pass(self, action: Action) -> None:
        """Append an action to the row; update the number of chunks in flight and the remaining passes."""
        self.done.append(action)
        if action.kind == "W":
            self._weights.popleft()
            self._alive -= 1
            return
        self._to_come.remove(action)
        if action.kind == "F":
            self._alive += 1
        else:
            self.turned = True
            self._weights.append(Action("W", action.microbatch, action.chunk))

    def _list_needed_actions(self, action: Action) -> Iterator[tuple[Kind, int, int]]:
        place = self.model_slice(action)
        if action.kind == "F":
            if place:
                yield "F", action.microbatch, place - 1
            return
        yield "F", action.microbatch, place
        if place < self._last:
            yield "I", action.microbatch, place + 1
