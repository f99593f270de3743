"""``--trace``: a result as a trace that other tools open; where it goes and which ranks are in it is checked first."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario

if TYPE_CHECKING:
    from simcluster.interop.export.export import Written

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def trace_of(args: argparse.Namespace, scenario: Scenario) -> Callable[[Result], Written] | None:
    """What writes the trace that a command line asks for; InputError before the work is done where it cannot be had."""
    if args.trace is None:
        if args.trace_ranks is not None:
            raise InputError(f"--trace-ranks {args.trace_ranks} picks ranks of a trace; name its file with --trace")
        return None
    if scenario.replicas > 1:
        raise InputError(
            f"--trace {args.trace}: a trace is of one run, and this scenario has {scenario.replicas} replicas; "
            "leave them out (--replicas 1)"
        )
    from simcluster.interop.export.export import trace_path, write_trace

    ranks = trace_ranks(args.trace_ranks, scenario.gpus)
    return partial(write_trace, path=trace_path(args.trace), ranks=ranks, begins=args.trace_begins)


def trace_ranks(text: str | None, num_ranks: int) -> list[int] | None:
    """``0,8-15`` or ``all`` as ranks of the job; None where nothing is said."""
    if text is None:
        return None
    if text == "all":
        return list(range(num_ranks))
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise InputError(f"--trace-ranks {text!r}: {part!r} is no rank; write 0,8-15 or all")
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= num_ranks:
            raise InputError(f"--trace-ranks: there is no rank {last}; this job has ranks 0 to {num_ranks - 1}")
        if last < first:
            raise InputError(f"--trace-ranks {text!r}: {part!r} goes backwards; write {last}-{first}")
        found += range(first, last + 1)
    return found
