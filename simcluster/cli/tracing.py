"""``--trace``: a result as a trace that other tools open; where it goes and which ranks are in it is checked first."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario

if TYPE_CHECKING:
    from simcluster.interop.export.rank_events import Begins

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class Tracing:
    """A trace that was asked for."""

    path: Path
    ranks: Sequence[int] | None
    begins: Begins

    def write(self, result: Result, *, apart: bool) -> None:
        """Write it and say what was written; ``apart`` from stdout, which is for the answer alone."""
        from simcluster.interop.export.export import write_trace

        written = write_trace(result, self.path, ranks=self.ranks, begins=self.begins)
        print(written.describe(), file=sys.stderr if apart else sys.stdout)


def trace_of(args: argparse.Namespace, scenario: Scenario) -> Tracing | None:
    """The trace that a command line asks for; InputError where it cannot be had, before the work is done."""
    if args.trace is None:
        if args.trace_ranks is not None:
            raise InputError(f"--trace-ranks {args.trace_ranks} picks ranks of a trace; name its file with --trace")
        return None
    if scenario.replicas > 1:
        raise InputError(
            f"--trace {args.trace}: a trace is of one run, and this scenario has {scenario.replicas} replicas; "
            "leave them out (--replicas 1)"
        )
    from simcluster.interop.export.export import trace_path

    return Tracing(trace_path(args.trace), trace_ranks(args.trace_ranks, scenario.gpus), args.trace_begins)


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
