"""A fused pair [F|B]: the collectives of one half run beside the computation of the other.

Each half is cut where its computation waits for a collective.  The compute stream takes the stretches of both in turns,
so that what one half waits for travels while the other computes; collectives go to the lanes of their axes, one behind
the other.  How long a pair takes is then a result: at least its computation, slowed down by what runs beside it, and at
least its traffic (DualPipe, arXiv:2412.19437 section 3.2.1; MODELLING.md C.5).

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from simcluster.planning.boundaries import Key
from simcluster.planning.ops import MAIN, Item, Need, Op, Segment
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.replicas import ActionPart
from simcluster.schedules import Action

Parts = Sequence[tuple[ActionPart, Segment]]
"""The parts of an action, each with what is done in it."""


class Piece(NamedTuple):
    """Ops of a half that nothing comes between, on one lane; ``waits`` are earlier pieces that it waits for, by their
    places in the half, besides what is before it on its lane."""

    segment: Segment
    lane: str
    waits: tuple[int, ...]


class Half(NamedTuple):
    """Half of a pair, put together part by part: its pieces, what the first piece of a part waits for of the replicas,
    and the parts by their last pieces."""

    pieces: list[Piece]
    needs: dict[int, tuple[Need, ...]]
    ends: dict[int, ActionPart]

    def add(self, pieces: Sequence[Piece], part: ActionPart) -> None:
        """The next part."""
        begin = len(self.pieces)
        lane = self.pieces[-1].lane if begin else MAIN
        behind = (begin - 1,) if (lane, pieces[0].lane) != (MAIN, MAIN) and begin else ()
        self.needs[begin] = part.needs
        for place, piece in enumerate(pieces):
            waits = tuple([begin + other for other in piece.waits])
            self.pieces.append(piece._replace(waits=waits if place else behind + waits))
        self.ends[len(self.pieces) - 1] = part


class Pairs:
    """The fused pairs of a stage, put on its lanes with both halves beside each other.

    ``after`` is told of every part that is over: its action, step and key.
    """

    def __init__(
        self, lanes: ProgramBuilder, after: Callable[[Action, int, ActionPart, tuple[object, ...]], None]
    ) -> None:
        self._lanes, self._after = lanes, after
        self._pieces: dict[Segment, tuple[Piece, ...]] = {}

    def put(
        self, actions: Sequence[Action], parts: Sequence[Parts], step: int, needs: tuple[Need, ...],
        keys: Sequence[Key],
    ) -> None:  # fmt: skip
        """A pair, piece by piece: what both halves need, and the keys of what they make."""
        halves = [self._half(own) for own in parts]
        order = list(in_turns([half.pieces for half in halves]))
        for turn, index in order:
            action, half = actions[turn], halves[turn]
            name: tuple[object, ...] = ("half", *keys[turn], index)
            segment, lane, waits = half.pieces[index]
            others = [("half", *keys[turn], each) for each in waits]
            also: tuple[Key, ...] = ()
            if lane != MAIN and (turn, index) in (order[0], order[-1]):  # the pair begins and ends on the main lane
                segment, lane = self._lanes.once((MAIN, segment), partial(_on_main, segment)), MAIN
            if (turn, index) == order[-1]:
                name, also = keys[1], (keys[0],)
                others.append(("half", *keys[1 - turn], len(halves[1 - turn].pieces) - 1))
            needs += half.needs.get(index, ()) + tuple([Need(self._lanes.stage, each) for each in others])
            if lane != MAIN and not waits:
                needs += self._lanes.reached()
            self._lanes.put(lane, Item(segment, name, needs, step, action.chunk, action.microbatch, also))
            needs = ()
            if index in half.ends:
                self._after(action, step, half.ends[index], name)

    def _half(self, parts: Parts) -> Half:
        half = Half([], {}, {})
        for part, segment in parts:
            if segment not in self._pieces:
                self._pieces[segment] = pieces_of(segment)
            half.add(self._pieces[segment], part)
        return half


def pieces_of(segment: Segment) -> tuple[Piece, ...]:
    """A segment of a pass in pieces, in order: computation on the main lane, every collective on that of its axis."""
    lanes = [_lane(op) for op in segment.ops]
    waits = _waits(segment.ops, lanes)
    awaited = {other for lane, others in zip(lanes, waits, strict=True) if lane != MAIN for other in others}
    begun: list[tuple[str, list[Op], tuple[int, ...]]] = []
    piece_of: list[int] = []
    last = -1  # op of the main lane
    for index, (op, lane) in enumerate(zip(segment.ops, lanes, strict=True)):
        before = [other for other in waits[index] if lane != MAIN or lanes[other] != MAIN]
        goes_on = lane == MAIN and last >= 0 and not before and last not in awaited
        if not goes_on:
            begun.append((lane, [], tuple(dict.fromkeys([piece_of[other] for other in before]))))
        piece_of.append(piece_of[last] if goes_on else len(begun) - 1)
        begun[piece_of[index]][1].append(replace(op, lane=lane, after=()))
        last = index if lane == MAIN else last
    return tuple([Piece(Segment(tuple(ops)), lane, others) for lane, ops, others in begun])


def in_turns(halves: Sequence[Sequence[Piece]]) -> Iterator[tuple[int, int]]:
    """The pieces of both halves (by half and place) in the order in which they are issued: a half's turn ends where its
    computation would wait."""
    place, turn = [0, 0], 0
    while place[0] < len(halves[0]) or place[1] < len(halves[1]):
        half = halves[turn]
        begun = place[turn]
        while place[turn] < len(half) and (place[turn] == begun or not _would_wait(half[place[turn]])):
            yield turn, place[turn]
            place[turn] += 1
        turn = 1 - turn


def _on_main(segment: Segment) -> Segment:
    return Segment(tuple([replace(op, lane=MAIN) for op in segment.ops]))


def _would_wait(piece: Piece) -> bool:
    return piece.lane == MAIN and bool(piece.waits)


def _lane(op: Op) -> str:
    """Where an op goes: what the main lane waited for goes beside it.

    The lanes are those of pairs alone: on one that has ops inside of segments, too, these would come first.
    """
    if op.lane != MAIN:
        return f"pair {op.lane}"
    return f"pair {op.work.axis}" if op.work.axis else MAIN


def _waits(ops: Sequence[Op], lanes: Sequence[str]) -> list[tuple[int, ...]]:
    """What every op waits for: as before, and for the one before it on the main lane where one of them has left it."""
    found = []
    main = -1
    for index, op in enumerate(ops):
        left = op.lane == MAIN and main >= 0 and (lanes[index] != MAIN or lanes[main] != MAIN)
        found.append((main, *op.after) if left else op.after)
        main = index if op.lane == MAIN else main
    return found
