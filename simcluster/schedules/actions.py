"""A pipeline schedule as data: what each stage does, in which order, and the way that microbatches take.

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
"""What the passes of each kind are called where they are ops."""

Hop = tuple[int, int]
"""(stage, chunk): one slice of the model on one pipeline rank."""
Route = tuple[Hop, ...]
"""The hops of one microbatch in forward order; the index in it is the virtual stage."""

_ACTION = re.compile(r"([FBIW])([0-9]+)(?:\.([0-9]+))?")
_TOKEN = re.compile(r"\[([^|\]\s]+)\|([^|\]\s]+)\]|([^|\[\]\s]+)")


class Action(NamedTuple):
    """One pass of one microbatch through one chunk of the stage in whose row it stands.

    F is forward, B the full backward, I the gradient of the input, W the gradient of the weights; B = I + W.
    """

    kind: Kind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return self.label(num_chunks=1)

    def label(self, num_chunks: int) -> str:
        """``F3``, or ``F3.1`` (microbatch.chunk) where stages have several chunks."""
        if num_chunks == 1 and self.chunk == 0:
            return f"{self.kind}{self.microbatch}"
        return f"{self.kind}{self.microbatch}.{self.chunk}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """The action that ``F3`` or ``F3.1`` names; InputError if it names none."""
        match = _ACTION.fullmatch(text)
        if match is None:
            raise InputError(
                f"{text[:60]!r} is not an action; write F, B, I or W, the microbatch and, where there are several "
                f"chunks, a dot and the chunk: F3 or F3.1"
            )
        return cls(cast(Kind, match[1]), int(match[2]), int(match[3] or 0))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who does what in which order: one row of actions per stage (a stage is a pipeline rank).

    A stage runs its row strictly in order, as real runtimes do: the row, and no greedy rule, defines the schedule.
    ``routes`` lists the ways through the model; ``route_of[m]`` is the index of the one that microbatch m takes (a
    bidirectional schedule has two).  ``fused[stage]`` lists the positions i whose action runs together with the one at
    i + 1, as one pair [F|B]; empty where the schedule has no pairs.
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
    def along(
        cls,
        route: Route,
        name: str,
        rows: Iterable[Iterable[Action]],
        num_microbatches: int,
        fused: Iterable[Iterable[int]] = (),
    ) -> Schedule:
        """The schedule whose microbatches all take one route, through all chunks there are."""
        chunks = 1 + max(chunk for _, chunk in route)
        actions, pairs = tuple(map(tuple, rows)), tuple(map(tuple, fused))
        return cls(name, actions, num_microbatches, chunks, (route,), (0,) * num_microbatches, pairs)

    @property
    def num_stages(self) -> int:
        """Pipeline ranks: rows."""
        return len(self.rows)

    @property
    def may_have_empty_ends(self) -> bool:
        """Can the first and the last slice do without layers?  Not where I and W are apart: nothing to split."""
        return len(self.routes[0]) > 1 and not any(action.kind == "W" for row in self.rows for action in row)

    def route(self, microbatch: int) -> Route:
        """The hops of this microbatch in forward order."""
        return self.routes[self.route_of[microbatch]]

    def virtual_stage(self, microbatch: int, stage: int, chunk: int) -> int:
        """Which slice of the model (0 is the first) this chunk of this stage is, for this microbatch.

        InputError if the microbatch does not come by there.
        """
        place = self._places[self.route_of[microbatch]].get((stage, chunk))
        if place is None:
            raise InputError(
                f"schedule {self.name!r}: microbatch {microbatch} does not visit chunk {chunk} of stage {stage}; "
                f"its route (stage, chunk) is {' '.join(map(str, self.route(microbatch)))}"
            )
        return place

    def slice_of(self, stage: int, chunk: int) -> int:
        """Which slice of the model this chunk of this stage holds, whoever comes by; InputError if nobody does."""
        place = next((places[stage, chunk] for places in self._places if (stage, chunk) in places), None)
        if place is None:
            raise InputError(f"schedule {self.name!r}: no microbatch visits chunk {chunk} of stage {stage}")
        return place

    def visits(self, microbatch: int, stage: int, chunk: int) -> bool:
        """Does this microbatch come by this chunk of this stage?"""
        return (stage, chunk) in self._places[self.route_of[microbatch]]

    def next_hop(self, microbatch: int, stage: int, chunk: int) -> Hop | None:
        """Where the output of F goes, and where the gradient for B comes from; None after the last virtual stage."""
        route = self.route(microbatch)
        place = self.virtual_stage(microbatch, stage, chunk)
        return route[place + 1] if place + 1 < len(route) else None

    def previous_hop(self, microbatch: int, stage: int, chunk: int) -> Hop | None:
        """Where the input of F comes from, and where the gradient of B goes; None before the first virtual stage."""
        place = self.virtual_stage(microbatch, stage, chunk)
        return self.route(microbatch)[place - 1] if place else None

    def fused_at(self, stage: int) -> tuple[int, ...]:
        """Positions in the row of this stage where a fused pair begins."""
        return self.fused[stage] if self.fused else ()


def loop_route(num_stages: int, num_chunks: int) -> Route:
    """Megatron's placement: chunk 0 of every stage in turn, then chunk 1 of every stage, and so on.

    >>> loop_route(2, 2)
    ((0, 0), (1, 0), (0, 1), (1, 1))
    """
    return tuple((stage, chunk) for chunk in range(num_chunks) for stage in range(num_stages))


def snake_route(num_stages: int, num_legs: int) -> Route:
    """Down all stages, up again, and so on, without a hop at the turns; two legs are the V of the zero-bubble papers.

    Leg j is chunk j of every stage.

    >>> snake_route(2, 2)
    ((0, 0), (1, 0), (1, 1), (0, 1))
    """
    return tuple(
        (stage if leg % 2 == 0 else num_stages - 1 - stage, leg)
        for leg in range(num_legs)
        for stage in range(num_stages)
    )


def two_ways(num_stages: int) -> tuple[Route, Route]:
    """The routes of a bidirectional schedule: chunk 0 of every stage downwards, chunk 1 (a second copy) upwards.

    >>> two_ways(2)
    (((0, 0), (1, 0)), ((1, 1), (0, 1)))
    """
    return loop_route(num_stages, 1), tuple((stage, 1) for stage in reversed(range(num_stages)))


def parse_row(text: str) -> tuple[tuple[Action, ...], tuple[int, ...]]:
    """A row written as ``F0.0 [F1.0|B0.1] B1.1``: its actions, and the positions where fused pairs begin.

    InputError where a word is not an action.

    >>> parse_row("F0 [F1|B0] B1")[1]
    (1,)
    """
    actions: list[Action] = []
    fused: list[int] = []
    if leftover := _TOKEN.sub("", text).strip():
        raise InputError(f"{text!r}: {leftover!r} is out of place; a fused pair is written [F3|B1]")
    for first, second, alone in _TOKEN.findall(text):
        if alone:
            actions.append(Action.parse(alone))
        else:
            fused.append(len(actions))
            actions += [Action.parse(first), Action.parse(second)]
    return tuple(actions), tuple(fused)


class RowWriter:
    """The row of one stage being written: a word names a kind and a chunk, and takes that chunk's next microbatch.

    ``F0`` is F of chunk 0, ``[F0|B1]`` a fused pair, ``W`` alone the oldest I whose W is still to come.
    ``first_microbatch[chunk]`` is where the count of a chunk begins (a bidirectional schedule's chunks differ).
    """

    def __init__(self, first_microbatch: Sequence[int] = (0, 0)) -> None:
        self.actions: list[Action] = []
        self.fused: list[int] = []
        self._first = first_microbatch
        self._count: Counter[str] = Counter()
        self._without_weight: deque[Action] = deque()

    def count(self, word: str) -> int:
        """How often this pass of this chunk is there, B counting as I."""
        return self._count[word]

    def run(self, words: str, times: int = 1) -> None:
        """Append these words in turn, ``times`` times (never for a negative number)."""
        for word in words.split() * times:
            if word.startswith("["):
                self.fused.append(len(self.actions))
            for single in word.strip("[]").split("|"):
                self.actions.append(self._next(single))

    def _next(self, word: str) -> Action:
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
