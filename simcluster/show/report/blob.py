"""Columns of numbers inside an HTML page: typed arrays, split into byte planes, deflated, in base64.
``assets/data.js`` reads them.
"""

from __future__ import annotations

import base64
import zlib

import numpy as np
import numpy.typing as npt

from simcluster.base.runs import begins

Place = tuple[int, int, str] | tuple[int, int, str, int, int]
"""Where a column begins in the inflated bytes, how many numbers it has, and of which type (u1, u2, u4, i2, i4, f4).

Of one in runs of equal numbers there is one of each run: how many these are, and where their lengths begin (u4)."""

_INTEGERS = ("u1", "u2", "i2", "u4", "i4")


_FEWER = 8  # so many times fewer runs than numbers are worth a second column
ALIGNED = 4
"""Columns in no planes begin at multiples of so many bytes, the largest number's."""


class Blob:
    """Collects columns; ``text`` is all of them, ``raw`` as they are.

    Without ``planes`` the numbers of a column stand one after the other, for who reads them where they lie, whole
    numbers in runs where there are few.
    """

    def __init__(self, *, planes: bool = True) -> None:
        self._planes = planes
        self._parts: list[bytes] = []
        self._size = 0

    def integers(self, values: npt.NDArray[np.integer]) -> Place:
        """A column of whole numbers in the smallest type that holds them."""
        if not self._planes:
            first = begins(values)
            if len(first) * _FEWER < len(values):
                begin, many, name = self._integers(values[first])
                lengths = np.diff(first, append=len(values))
                return begin, len(values), name, many, self._add(lengths.astype("<u4"), "u4")[0]
        return self._integers(values)

    def _integers(self, values: npt.NDArray[np.integer]) -> tuple[int, int, str]:
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        for name in _INTEGERS:
            limits = np.iinfo(name)
            if limits.min <= low and high <= limits.max:
                return self._add(values.astype(f"<{name}"), name)
        raise ValueError(f"numbers from {low} to {high} have no 32 bits")

    def floats(self, values: npt.NDArray[np.floating]) -> Place:
        """A column of floats with 24 bits each."""
        return self._add(values.astype("<f4"), "f4")

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The columns one after the other."""
        return tuple(self._parts)

    def raw(self) -> bytes:
        """All columns as they are: nothing is sooner, where they stay on the machine."""
        return b"".join(self._parts)

    def text(self, level: int = 6) -> str:
        """Base64 of the columns, deflated at a level from 1 (quick) to 9 (small)."""
        return deflated(self.raw(), level)

    def _add(self, values: npt.NDArray[np.generic], name: str) -> tuple[int, int, str]:
        """Byte planes, first the lowest bytes of all numbers: the high ones hardly change, and deflate well."""
        place = self._size, len(values), name
        if self._planes and len(values):
            values = np.ascontiguousarray(np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1).T)
        raw = values.tobytes()
        if not self._planes:
            raw += bytes(-len(raw) % ALIGNED)
        self._parts.append(raw)
        self._size += len(raw)
        return place


def deflated(content: bytes, level: int) -> str:
    """As the script inflates it: deflated, in base64."""
    return base64.b64encode(zlib.compress(content, level)).decode("ascii")
