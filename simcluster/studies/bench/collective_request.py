"""What is asked of a single collective, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np

from simcluster.base.clock import on_grid
from simcluster.base.errors import InputError
from simcluster.collectives.entry import Parts
from simcluster.documents.diagnostics import did_you_mean, shown
from simcluster.topology import Cluster


def size_of(kind: str, size: float | Parts) -> tuple[float, Parts | None]:
    """The size that shares are parts of, in bytes, and the matrix where sizes differ."""
    if isinstance(size, str | bool) or not isinstance(size, Real | Sequence | np.ndarray):
        raise InputError(f"size is {size!r}; it is a number of bytes, as in 1e6, or for all_to_all a matrix of them")
    if not isinstance(size, Real) and kind != "all_to_all":
        raise InputError(f"a matrix of sizes is for all_to_all; {kind} has one size: give a number of bytes")
    try:
        if isinstance(size, Real):
            return float(size), None
        parts = [[float(each) for each in row] for row in size]
    except (TypeError, ValueError, OverflowError):  # no matrix, no number, an integer of hundreds of digits
        raise InputError(
            f"size is {shown(size)}; it is a number of bytes, as in 1e6, or for all_to_all a matrix of them, as in "
            "[[0, 1e6], [1e6, 0]]"
        ) from None
    return max((math.fsum(row) for row in parts), default=0.0) or 1.0, parts  # 1: the description refuses empty ones


def check(cluster: Cluster, groups: Sequence[Sequence[int]], kind: str, size: float, detail: str, root: int) -> None:
    if detail not in ("flow", "steps"):
        raise InputError(f"unknown detail {detail!r}{did_you_mean(detail, ('flow', 'steps'))}; known: flow, steps")
    if not (size > 0 and math.isfinite(size)):
        raise InputError(f"size is {size!r}; it must be a positive number of bytes")
    if not groups:
        raise InputError("groups: there is none; give at least one group of two or more GPUs")
    have = cluster.num_gpus
    for group in groups:
        if len(group) < 2:
            raise InputError(f"{kind} over {len(group)} GPU{'s' * (len(group) != 1)}: a group has at least 2")
        if kind == "send" and len(group) != 2:
            raise InputError(f"send over {len(group)} GPUs: a send goes from one GPU to another, so give 2")
        if not 0 <= root < len(group):
            raise InputError(f"root is {root}; a group of {len(group)} GPUs has positions 0 to {len(group) - 1}")
        twice = [gpu for place, gpu in enumerate(group) if gpu in group[:place]] if len(set(group)) < len(group) else []
        if twice:
            raise InputError(f"GPU {twice[0]} is twice in a group; a GPU is one rank of a group: name each once")
        outside = [gpu for gpu in group if not 0 <= gpu < have]
        if outside:
            raise InputError(
                f"there is no GPU {outside[0]} in cluster {cluster.name!r}: it has {have}, numbered 0 to {have - 1}; "
                "use fewer GPUs or a larger cluster"
            )


def arrivals_of(
    groups: Sequence[Sequence[int]], arrivals: Sequence[Sequence[float]] | None
) -> tuple[tuple[float, ...], ...]:
    """Times on the clock's grid, in seconds; 0 where none are given."""
    if arrivals is None:
        return tuple((0.0,) * len(group) for group in groups)
    if [len(times) for times in arrivals] != [len(group) for group in groups]:
        raise InputError("arrivals: give one time in seconds for each rank of each group")
    wrong = [time for times in arrivals for time in times if not (time >= 0 and math.isfinite(time))]
    if wrong:
        raise InputError(f"arrivals: {wrong[0]!r} is not a time; seconds from 0 on are")
    return tuple(tuple(on_grid(time) for time in times) for times in arrivals)


def turned(positions: Sequence[int], root: int) -> list[int]:
    """The positions of a group with the root first: a description's root is position 0."""
    return [*positions[root:], *positions[:root]]
