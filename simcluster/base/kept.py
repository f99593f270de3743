"""A cache by name that gives up what was not used for longest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Known = TypeVar("Known")


class Kept(OrderedDict[Hashable, Any]):
    """What was made, the least recently used given up."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def once(self, name: Hashable, make: Callable[[], Known]) -> Known:
        """What is kept under this name, made when it is first asked for."""
        found: Known | None = self.get(name)
        if found is None:
            found = self[name] = make()
            if len(self) > self._most:
                self.popitem(last=False)
        else:
            self.move_to_end(name)
        return found

    def __reduce__(self) -> tuple[type[Kept], tuple[int]]:
        """A copy, pickled or deep, is empty: it makes again what it is asked for."""
        return Kept, (self._most,)
