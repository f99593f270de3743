"""How much of a GPU's memory a job should leave free, and how a job that leaves less is marked.  Numbers only.

What is counted is what a program allocates.  The rest (the CUDA context, buffers of libraries, holes between
allocations) is counted where a scenario states it in its ``memory`` section, and differs from run to run even then: so
the same part is left free either way.
"""

from __future__ import annotations

from typing import Literal

from simcluster.base.errors import InputError

HEADROOM = 0.1
"""The part that is left free unless another is asked for: below it a run is "tight", and no search recommends it."""

Fit = Literal["yes", "tight", "no"]
"""Does a job fit: with the headroom left, without it, or not at all?"""

OVER, TIGHT = " !", " ~"
"""Marks behind bytes: more than the GPU has, and less than the headroom left."""


def usable(capacity: float, headroom: float = HEADROOM) -> float:
    """Bytes that may be used of a GPU's ``capacity``."""
    return (1 - headroom) * capacity


def fit_of(memory: float, capacity: float, headroom: float = HEADROOM) -> Fit:
    """Whether so many bytes fit in a GPU's ``capacity``."""
    if memory > capacity:
        return "no"
    return "tight" if memory > usable(capacity, headroom) else "yes"


def mark(memory: float, capacity: float, headroom: float = HEADROOM) -> str:
    """What stands behind so many bytes in a table: "" where the headroom is left."""
    return {"no": OVER, "tight": TIGHT, "yes": ""}[fit_of(memory, capacity, headroom)]


def headroom_of(text: str) -> float:
    """A part of memory as it is written: "10%" or 0.1; InputError unless it is from 0 to below all."""
    number, percent = (text[:-1], 100) if text.endswith("%") else (text, 1)
    try:
        part = float(number) / percent
    except ValueError:
        part = -1.0
    return check_headroom(part, text)


def check_headroom(part: float, written: object) -> float:
    """The part itself; InputError unless it is from 0 to below 1."""
    if not 0 <= part < 1:
        raise InputError(
            f"headroom {written!r} must be the part of a GPU's memory that is left free, from 0 to below all of it, as "
            f'in "10%" or 0.1'
        )
    return part
