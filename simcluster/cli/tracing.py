"""``--trace``: a result as a trace that other tools open; where it goes and which ranks are in it is checked first."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.satellites import provided
from simcluster.cli.common import ranks_of
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario


def trace_of(args: argparse.Namespace, scenario: Scenario) -> Callable[[Result], Any] | None:
    """Return what writes the trace that a command line asks for; InputError before the work where it cannot be had."""
    if args.trace is None:
        if args.trace_ranks is not None:
            raise InputError(f"--trace-ranks {args.trace_ranks} picks ranks of a trace; name its file with --trace")
        if args.trace_kernels:
            raise InputError("--trace-kernels is for a trace; name its file with --trace")
        return None
    if scenario.replicas > 1:
        raise InputError(
            f"--trace {args.trace}: a trace is of one run, and this scenario has {scenario.replicas} replicas; "
            "leave them out (--replicas 1)"
        )
    ranks = ranks_of(args.trace_ranks, scenario.gpus, "--trace-ranks")
    return partial(
        provided("trace of a result"),
        path=provided("path of a trace")(args.trace),
        ranks=ranks,
        begins=args.trace_begins,
        kernels=args.trace_kernels,
    )
