"""Least-recently-used cache with named entries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Known = TypeVar("Known")


class LruCache(OrderedDict[Hashable, Any]):
    """Cache that drops the least recently used entry when it is full."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def get_or_make(self, name: Hashable, make: Callable[[], Known]) -> Known:
        """Return the entry of this name; make and store it if it is absent."""
        found: Known | None = self.get(name)
        if found is None:
            found = self[name] = make()
            if len(self) > self._most:
                self.popitem(last=False)
        else:
            self.move_to_end(name)
        return found

    def __reduce__(self) -> tuple[type[LruCache], tuple[int]]:
        """Return how to copy or pickle the cache: as an empty cache of equal size."""
        return LruCache, (self._most,)
