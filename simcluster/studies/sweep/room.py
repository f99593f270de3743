"""Which rows of a sweep leave memory free: the fastest that do, and those ahead of them that do not.

What a row held is known where it was played in full; of others it is planned (at most), from the fastest on and only
as far as it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcluster.scenario.advice import launch_note
from simcluster.scenario.effects import notes_without_effect
from simcluster.scenario.fits import held
from simcluster.scenario.headroom import mark
from simcluster.studies.sweep.quick_rows import changed

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.studies.sweep.sweep import Swept

_MOST_LOOKED_AT = 300  # rows whose memory is planned, 10 ms each


@dataclass(frozen=True, slots=True)
class Room:
    """A row's variant, the bytes of its fullest GPU and their mark (``headroom.mark``), and which framework launches
    it, where few do."""

    variant: int
    memory: float
    mark: str
    note: str


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest rows that leave the ``headroom``, and the ``ahead``: faster than all of these, not to be
    recommended."""

    headroom: float
    rows: tuple[Room, ...]
    ahead: tuple[Room, ...]


def fastest(swept: Swept, table: pd.DataFrame, headroom: float, top: int) -> Fastest:
    """The ``top`` fastest rows of a sweep's table that leave the part ``headroom`` of memory free."""
    rows: list[Room] = []
    ahead: list[Room] = []
    good = table[table["status"] == "ok"]
    if not len(good):
        return Fastest(headroom, (), ())
    for _, row in good.sort_values(["step_time_s", "variant"]).head(_MOST_LOOKED_AT).iterrows():
        found = _room(swept, int(row["variant"]), row.get("peak_memory_bytes"), headroom)
        if not found.mark:
            rows.append(found)
        elif not rows:
            ahead.append(found)
        if len(rows) == top:
            break
    return Fastest(headroom, tuple(rows), tuple(ahead[:top]))


def _room(swept: Swept, number: int, memory: float | None, headroom: float) -> Room:
    """What a row holds; ``memory`` is None or no number where it was not played in full."""
    scenario = changed(swept.sweep.variant(number))
    if memory is None or memory != memory:
        memory = held(scenario)
    notes = [note for note in (launch_note(scenario), *notes_without_effect(scenario)) if note]
    return Room(number, memory, mark(memory, scenario.cluster.device.memory, headroom), "; ".join(notes))
