"""Ranks that a person names, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError

if TYPE_CHECKING:
    from simcluster.results.played import Run


def check_ranks(run: Run, ranks: Sequence[int]) -> None:
    """InputError unless the job has them, and there is one."""
    wrong = [rank for rank in ranks if not 0 <= rank < len(run.ranks)]
    if wrong or not ranks:
        what = f"there is no rank {wrong[0]}" if wrong else "no rank is named"
        raise InputError(f"ranks: {what}; this job has ranks 0 to {len(run.ranks) - 1}")
