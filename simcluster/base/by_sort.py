"""A number for each of very many links that are of few sorts, kept by sort."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from simcluster.base.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class BySort:
    """The numbers ``of_sort[sort[link]]``: of eight million links, eight million bytes and a few numbers."""

    of_sort: Floats
    sort: npt.NDArray[np.integer[Any]]

    @classmethod
    def of(cls, values: Floats) -> BySort:
        """Those of an array."""
        of_sort, sort = np.unique(values, return_inverse=True)
        return cls(of_sort, sort.astype(np.min_scalar_type(len(of_sort))))

    @overload
    def __getitem__(self, links: int) -> float: ...
    @overload
    def __getitem__(self, links: Ints) -> Floats: ...
    def __getitem__(self, links: int | Ints) -> float | Floats:
        return self.of_sort[self.sort[links]]  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.sort)

    @cached_property
    def all(self) -> Floats:
        """Those of all links."""
        found: Floats = self.of_sort[self.sort]
        return found

    def times(self, factor: float) -> BySort:
        """Each multiplied."""
        return BySort(self.of_sort * factor, self.sort)

    def equals(self, other: BySort) -> bool:
        """Has every link the same in both?"""
        if self.sort is other.sort:
            return np.array_equal(self.of_sort, other.of_sort)
        return np.array_equal(self.all, other.all)
