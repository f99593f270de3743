"""Pipeline schedule as data: each stage's ordered passes (F, B, I, W), and each microbatch's route through the stages.

The types carry more than today's schedules need, so that a new schedule is only a new function: split backward (I, W),
fused pairs [F|B], several chunks per stage in any placement (loop, V, zig-zag), two directions (a second route).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

from simcluster.base.errors import InputError

Kind = Literal["F", "B", "I", "W"]
PASS_NAMES: dict[Kind, str] = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}
"""Name of the ops of each kind of pass."""

Hop = tuple[int, int]
"""(stage, chunk): one slice of the model on one pipeline rank."""
Route = tuple[Hop, ...]
"""The hops of one microbatch in forward order; a hop's index is its virtual stage (model slice)."""

_ACTION = re.compile(r"([FBIW])([0-9]+)(?:\.([0-9]+))?")
_TOKEN = re.compile(r"\[([^|\]\s]+)\|([^|\]\s]+)\]|([^|\[\]\s]+)")


class Action(NamedTuple):
    """One pass (forward F, backward B, input gradient I, weight gradient W) of a microbatch through a stage's chunk.

    F is forward, B the full backward, I the gradient of the input, W the gradient of the weights; B = I + W.
    """

    kind: Kind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return self.label(num_chunks=1)

    def label(self, num_chunks: int) -> str:
        """Return the action as text: ``F3``, or ``F3.1`` (microbatch.chunk) where stages have several chunks."""
        if num_chunks == 1 and self.chunk == 0:
            return f"{self.kind}{self.microbatch}"
        return f"{self.kind}{self.microbatch}.{self.chunk}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Parse an action such as ``F3`` or ``F3.1``; raise InputError for any other text."""
        match = _ACTION.fullmatch(text)
        if match is None:
            raise InputError(
                f"{text[:60]!r} is not an action; write F, B, I or W, the microbatch and, where there are several "
                f"chunks, a dot and the chunk: F3 or F3.1"
            )
        return cls(cast(Kind, match[1]), int(match[2]), int(match[3] or 0))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Pipeline schedule: an ordered row of actions for each stage (pipeline rank).

    A stage runs its row strictly in order, as real runtimes do: the row, not a greedy rule, defines the schedule.
    ``routes`` lists the routes through the model; ``route_of[m]`` is the index of the one that microbatch m takes (a
    bidirectional schedule has two). ``fused[stage]`` lists the positions i whose action runs together with the one at i
    + 1, as one pair [F|B] or [F|F]; empty where the schedule has no pairs.
    """

    name: str
    rows: tuple[tuple[Action, ...], ...]
    num_microbatches: int
    num_chunks: int
    routes: tuple[Route, ...]
    route_of: tuple[int, ...]
    fused: tuple[tuple[int, ...], ...] = ()
    _places: tuple[dict[Hop, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = tuple({hop: place for place, hop in enumerate(route)} for route in self.routes)
        object.__setattr__(self, "_places", places)

    @classmethod
    def with_single_route(
        cls,
        route: Route,
        name: str,
        rows: Iterable[Iterable[Action]],
        num_microbatches: int,
        fused: Iterable[Iterable[int]] = (),
    ) -> Schedule:
        """Make a schedule in which all microbatches take the same route through the chunks."""
        chunks = 1 + max(chunk for _, chunk in route)
        actions, pairs = tuple(map(tuple, rows)), tuple(map(tuple, fused))
        return cls(name, actions, num_microbatches, chunks, (route,), (0,) * num_microbatches, pairs)

    @property
    def num_stages(self) -> int:
        """Number of stages (pipeline ranks), each with one row of actions."""
        return len(self.rows)

    @property
    def allows_empty_end_slices(self) -> bool:
        """Whether the first and last model slices may have no layers (not if backward passes are split)."""
        return len(self.routes[0]) > 1 and not any(action.kind == "W" for row in self.rows for action in row)

    def microbatch_route(self, microbatch: int) -> Route:
        """Return a microbatch's route: the (stage, chunk) of each model slice, in forward order."""
        return self.routes[self.route_of[microbatch]]

    def virtual_stage(self, microbatch: int, stage: int, chunk: int) -> int:
        """Return the index of the model slice (virtual stage) that a microbatch passes in this chunk of this stage.

        InputError if the microbatch does not visit this chunk.
        """
        place = self._places[self.route_of[microbatch]].get((stage, chunk))
        if place is None:
            raise InputError(
                f"schedule {self.name!r}: microbatch {microbatch} does not visit chunk {chunk} of stage {stage}; "
                f"its route (stage, chunk) is {' '.join(map(str, self.microbatch_route(microbatch)))}"
            )
        return place

    def model_slice(self, stage: int, chunk: int) -> int:
        """Return the index of the model slice in a stage's chunk; InputError if no microbatch uses the chunk."""
        place = next((places[stage, chunk] for places in self._places if (stage, chunk) in places), None)
        if place is None:
            raise InputError(f"schedule {self.name!r}: no microbatch uses chunk {chunk} of stage {stage}; use another")
        return place

    def visits_chunk(self, microbatch: int, stage: int, chunk: int) -> bool:
        """Return whether the route of a microbatch includes this chunk of this stage."""
        return (stage, chunk) in self._places[self.route_of[microbatch]]

    def next_hop(self, microbatch: int, stage: int, chunk: int) -> Hop | None:
        """Return the (stage, chunk) that runs the microbatch's next model slice; None after the last slice."""
        route = self.microbatch_route(microbatch)
        place = self.virtual_stage(microbatch, stage, chunk)
        return route[place + 1] if place + 1 < len(route) else None

    def previous_hop(self, microbatch: int, stage: int, chunk: int) -> Hop | None:
        """Return the (stage, chunk) that runs the microbatch's previous model slice; None before the first slice."""
        place = self.virtual_stage(microbatch, stage, chunk)
        return self.microbatch_route(microbatch)[place - 1] if place else None

    def fused_positions(self, stage: int) -> tuple[int, ...]:
        """Return the positions in a stage's row at which fused pairs (a forward and a backward) begin."""
        return self.fused[stage] if self.fused else ()


def loop_route(num_stages: int, num_chunks: int) -> Route:
    """Return the route through chunk 0 of all stages, then chunk 1 of all stages, and so on, as in Megatron-LM.

    >>> loop_route(2, 2)
    ((0, 0), (1, 0), (0, 1), (1, 1))
    """
    return tuple((stage, chunk) for chunk in range(num_chunks) for stage in range(num_stages))


def snake_route(num_stages: int, num_legs: int) -> Route:
    """Return the route that goes down all stages, then up, then down, ``num_legs`` times in all.

    Leg j is chunk j of every stage.

    >>> snake_route(2, 2)
    ((0, 0), (1, 0), (1, 1), (0, 1))
    """
    return tuple(
        (stage if leg % 2 == 0 else num_stages - 1 - stage, leg)
        for leg in range(num_legs)
        for stage in range(num_stages)
    )


def bidirectional_routes(num_stages: int) -> tuple[Route, Route]:
    """Return two routes: down the stages through chunk 0, and up the stages through chunk 1 (a second model copy).

    >>> bidirectional_routes(2)
    (((0, 0), (1, 0)), ((1, 1), (0, 1)))
    """
    return loop_route(num_stages, 1), tuple((stage, 1) for stage in reversed(range(num_stages)))


def parse_row(text: str) -> tuple[tuple[Action, ...], tuple[int, ...]]:
    """Parse a row such as ``F0.0 [F1.0|B0.1] B1.1``; return its actions and the positions of fused pairs.

    InputError where a word is not an action.

    >>> parse_row("F0 [F1|B0] B1")[1]
    (1,)
    """
    actions: list[Action] = []
    fused: list[int] = []
    if leftover := _TOKEN.sub("", text).strip():
        raise InputError(f"{text!r}: {leftover!r} is out of place; write a fused pair as [F3|B1]")
    for first, second, alone in _TOKEN.findall(text):
        if alone:
            actions.append(Action.parse(alone))
        else:
            fused.append(len(actions))
            actions += [Action.parse(first), Action.parse(second)]
    return tuple(actions), tuple(fused)


class RowWriter:
    """Builder of one stage's row from words such as ``F0`` (forward of chunk 0); numbers the microbatches in order.

    ``F0`` is F of chunk 0, ``[F0|B1]`` a fused pair, ``W`` alone the W of the oldest I that still lacks one.
    ``first_microbatch[chunk]`` is where the count of a chunk begins (a bidirectional schedule's chunks differ).
    """

    def __init__(self, first_microbatch: Sequence[int] = (0, 0)) -> None:
        self.actions: list[Action] = []
        self.fused: list[int] = []
        self._first = first_microbatch
        self._count: Counter[str] = Counter()
        self._without_weight: deque[Action] = deque()

    def count_passes(self, word: str) -> int:
        """Count the row's passes of this kind and chunk, such as ``F0``; a whole backward B counts as I."""
        return self._count[word]

    def append_actions(self, words: str, times: int = 1) -> None:
        """Append the actions in ``words`` to the row, repeated ``times`` times (not at all if negative)."""
        for word in words.split() * times:
            if word.startswith("["):
                self.fused.append(len(self.actions))
            for single in word.strip("[]").split("|"):
                self.actions.append(self._next_action(single))

    def _next_action(self, word: str) -> Action:
        if word == "W":
            waiting = self._without_weight.popleft()
            return Action("W", waiting.microbatch, waiting.chunk)
        kind, chunk = cast(Kind, word[0]), int(word[1:])
        counted = f"I{chunk}" if kind == "B" else word  # a microbatch has one backward, whole or split
        action = Action(kind, self._first[chunk] + self._count[counted], chunk)
        self._count[counted] += 1
        if kind == "I":
            self._without_weight.append(action)
        elif kind == "W":
            self._without_weight.remove(Action("I", action.microbatch, chunk))
        return action
