"""``simcluster.diff``: two simulated steps, or a simulated step and one's own trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload

from simcluster.base.errors import InputError
from simcluster.documents.argument_types import checked
from simcluster.interop.kineto import ProfiledJob
from simcluster.interop.kineto.loading import is_trace
from simcluster.interop.own_trace.difference import TraceDifference, diff_trace
from simcluster.results.file import Saved
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.studies.whatif.difference import Difference, Side
from simcluster.studies.whatif.difference import diff as diff_runs


@overload
def diff(base: Side, other: Scenario | Result | Saved) -> Difference: ...
@overload
def diff(
    base: Side, other: ProfiledJob, *, kernels: str | Path | None = None, steps: Sequence[int] | None = None
) -> TraceDifference: ...
@overload
def diff(
    base: Side, other: str | Path, *, kernels: str | Path | None = None, steps: Sequence[int] | None = None
) -> Difference | TraceDifference: ...
@checked
def diff(
    base: Side,
    other: Side | ProfiledJob,
    *,
    kernels: str | Path | None = None,
    steps: Sequence[int] | None = None,
) -> Difference | TraceDifference:
    """Why a step of ``other`` takes longer than one of ``base``: scenarios, their files, results, or saved results; or
    ``other`` is a trace of one's own (profiles of PyTorch, or Nsight Systems' SQLite export: a file, or a folder).

    For a trace ``kernels`` is a table of names of kernels that goes before the one that ships, and ``steps`` picks some
    of its steps.  Raises InputError for what is none of these, and for a trace that comes first.
    """
    if isinstance(base, str | Path) and is_trace(base):
        raise InputError(f"{base} is a trace: name what it is compared with first, as in diff(scenario, {str(base)!r})")
    if isinstance(other, ProfiledJob) or (isinstance(other, str | Path) and is_trace(other)):
        if isinstance(base, Saved) or (isinstance(base, str | Path) and str(base).endswith(".json")):
            raise InputError(
                "a trace is compared with a scenario, or with a result in memory: a saved one has no spans"
            )
        return diff_trace(base, other, kernels=kernels, steps=steps)
    if kernels is not None or steps is not None:
        raise InputError(f"{'kernels' if kernels is not None else 'steps'}= is for traces, and {other} is none")
    return diff_runs(base, other)
