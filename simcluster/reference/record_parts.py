"""A record that is read a part of its ranks at a time: columns of all its ops would take too much memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simcluster.base.arrays import Int32s
from simcluster.reference.record import Ops, OpTimes, Record


class RecordPart(NamedTuple):
    """All ops of some ranks, numbered from 0, and their times.

    Ranks that send to one of these are among them.  ``times.last`` is -1 for an op of another rank; ``culprit`` is the
    rank of the op that arrived last at each op's meeting.
    """

    ops: Ops
    times: OpTimes
    culprit: Int32s


@dataclass(frozen=True, kw_only=True)
class LargeRecord(Record):
    """A record of many ops: ``make_parts`` return them part by part, given the times of all."""

    make_parts: Sequence[Callable[[OpTimes], RecordPart]] = field(repr=False)
