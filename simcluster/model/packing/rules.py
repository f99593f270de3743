"""Rules by which documents become sequences of equal length.

A rule takes documents in order (tokens of each), the ``length`` of a sequence and how many sequences there may be
(``most``), and gives the documents of each sequence, or of as many documents from the front as fit.  What a sequence
has left is padded.  To add one: a function, and its name in PACKING; tests of the registry are inherited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from simcluster.base.arrays import Floats

Sequences: TypeAlias = Sequence[Sequence[float]]
"""By sequence, the tokens of each document (or piece of one) in it; each sums to the length at most."""

Rule: TypeAlias = Callable[[Floats, int, int], Sequences]


def padded(documents: Floats, length: int, most: int) -> Sequences:
    """A sequence for each document; a longer one ends there, and its rest is dropped."""
    return [[min(each, float(length))] for each in documents[:most].tolist()]


def cut(documents: Floats, length: int, most: int) -> Sequences:
    """One after the other, cut where a sequence is full; the rest begins the next one.  What GPT-2's and Llama's
    pretraining data go through."""
    ends = np.minimum(np.cumsum(documents), float(length) * most)
    if not len(ends):
        return []
    cuts = np.unique(np.concatenate([ends, np.arange(length, ends[-1], length)]))
    begins = np.concatenate([[0.0], cuts[:-1]])
    found: list[list[float]] = [[] for _ in range(math.ceil(ends[-1] / length))]
    for begin, end in zip(begins.tolist(), cuts.tolist(), strict=True):
        found[int(begin // length)].append(end - begin)
    return found


def first_fit(documents: Floats, length: int, most: int) -> Sequences:
    """Each into the first sequence that has room for it; one that is too long gives whole sequences first, as Ding et
    al. do (arXiv:2404.10830)."""
    found: list[list[float]] = []
    left = np.zeros(most if most < len(documents) else _pieces(documents, length))
    for document in documents.tolist():
        whole, rest = divmod(document, length)
        place = int(np.argmax(left[: len(found)] >= rest)) if rest and found else 0
        fits = not rest or (len(found) > 0 and left[place] >= rest)
        if len(found) + whole + (not fits) > most:
            break
        found += [[float(length)] for _ in range(int(whole))]
        if rest and not fits:
            place = len(found)
            left[place] = length
            found.append([])
        if rest:
            found[place].append(rest)
            left[place] -= rest
    return found


def first_fit_decreasing(documents: Floats, length: int, most: int) -> Sequences:
    """``first_fit``, the longest document first: at most 11/9 of the fewest sequences (Johnson 1973).

    With ``most``, of a number of documents from the front that fits: as many fewer as were one too many, until they do.
    """
    count = int(np.searchsorted(np.cumsum(documents), float(length) * most, side="right"))
    while True:
        rows = first_fit(-np.sort(-documents[:count]), length, _pieces(documents, length))
        if len(rows) <= most:
            return rows
        count -= sum(len(each) for each in rows[most:])


def balanced(documents: Floats, length: int, most: int) -> Sequences:
    """Dealt out so that sums of squares come out alike: the longest first, each to where the sum is lowest and room is
    left; what fits nowhere is cut, into those with most room."""
    ends = np.minimum(np.cumsum(documents), float(length) * most)
    pieces = np.diff(ends, prepend=0.0)
    return dealt(pieces[pieces > 0], 1, math.ceil(ends[-1] / length), length)[0] if len(ends) else []


PACKING: dict[str, Rule] = {
    "pad": padded,
    "cut": cut,
    "first_fit": first_fit,
    "first_fit_decreasing": first_fit_decreasing,
    "balanced": balanced,
}


def dealt(documents: Floats, replicas: int, microbatches: int, room: int) -> Sequence[Sequences]:
    """Documents dealt out greedily, by replica and microbatch, each with room for so many tokens.

    The longest first, each to the replica with the smallest sum of squares that has room for it, and there to the
    microbatch with the smallest; what fits nowhere is cut, into those with most room.
    """
    squares, left = np.zeros((replicas, microbatches)), np.full((replicas, microbatches), float(room))
    found: list[list[list[float]]] = [[[] for _ in range(microbatches)] for _ in range(replicas)]
    for document in np.sort(documents)[::-1].tolist():
        rest = document
        while rest > 0:
            fits = left >= rest
            if fits.any():
                replica = int(np.argmin(np.where(fits.any(axis=1), squares.sum(axis=1), np.inf)))
                place = replica, int(np.argmin(np.where(fits[replica], squares[replica], np.inf)))
            elif rest > room and (empty := np.flatnonzero(left == room)).size:
                whole = empty[: math.ceil(rest / room) - 1]  # have most room, in the order in which they are found
                for replica, microbatch in np.stack(np.divmod(whole, microbatches), axis=1).tolist():
                    found[replica][microbatch].append(float(room))
                squares.flat[whole] += float(room) ** 2
                left.flat[whole] = 0.0
                rest -= room * len(whole)
                continue
            else:
                first, second = np.unravel_index(int(np.argmax(left)), left.shape)
                place = int(first), int(second)
            part = min(rest, float(left[place]))
            squares[place] += part**2
            found[place[0]][place[1]].append(part)
            left[place] -= part
            rest -= part
    return found


def _pieces(documents: Floats, length: int) -> int:
    """Sequences that are surely enough."""
    return int(np.ceil(documents / length).sum())
