"""Rings through GPUs that are all linked to each other (xGMI): no two of them use a link in the same direction."""

from __future__ import annotations

from functools import cache


@cache
def mesh_orders(ranks: int) -> tuple[tuple[int, ...], ...]:
    """Closed walks through all of ``ranks``, so many that they share no directed link of the full mesh.

    Walecki's construction, every cycle both ways: N - 1 walks for an odd number of ranks, N - 2 for an even one, of the
    N - 1 links that a rank has (Alspach, "The wonderful Walecki construction", 2008); one for two ranks.

    >>> mesh_orders(4)
    ((3, 0, 1, 2), (3, 2, 1, 0))
    """
    if ranks <= 2:
        return (tuple(range(ranks)),)
    rim, hub = ranks - 1, ranks - 1
    found = []
    for turn in range(rim // 2):
        steps = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(rim)]  # 0, 1, -1, 2, -2, ...
        cycle = (hub, *((turn + step) % rim for step in steps))
        found += [cycle, (hub, *cycle[:0:-1])]
    return tuple(found)
