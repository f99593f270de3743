"""A collective as data: which rank sends how much to which, in rounds.  One description, playable two ways.

Played as a *flow*, the hops of a phase are one activity with its usage of every link; played in *steps*, every hop of
every round is a transfer of its own.  Ranks are positions in the group, 0 .. N-1.  Imports nothing of simcluster.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hop:
    """One send that is repeated every round: from position ``source`` to ``target``.

    ``share`` is the part of the collective's size that it carries in a round.  ``relay``, if not -1, is the position
    whose NIC the bytes leave through (NVLink to that GPU first: NCCL's PXN).  ``channel`` numbers independent rings.
    ``chunk`` is the chunk of the channel's data sent in round 0; round k sends chunk - k (modulo the chunks).
    """

    source: int
    target: int
    share: float
    relay: int = -1
    channel: int = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Phase:
    """``rounds`` repetitions of the same hops.

    A rank sends round k + 1 of a channel when it has finished sending and receiving round k of it.  ``reduces`` says
    whether the receiver adds what arrives to its own data or keeps it; ``chunks`` is the number of chunks a channel's
    data is cut into.
    """

    rounds: int
    hops: tuple[Hop, ...]
    chunks: int
    reduces: bool


@dataclass(frozen=True, slots=True)
class Ring:
    """A closed walk over the positions of a group; ``relays[i]`` is the relay of the hop that leaves ``order[i]``."""

    order: tuple[int, ...]
    relays: tuple[int, ...]
