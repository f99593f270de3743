"""Is a command of README accepted?  It is run up to its first simulation, which is most of its time.

What only the start of a process can do is done in one of its own (``python tests/documents --accepted``): the function
that all simulations begin with stops the command before other modules have taken it over.
"""

from __future__ import annotations

import importlib
import re
import tempfile
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from documents.commands import run_in

YOURS = ("calibrate", "torch")  # words of a command: it needs a thing that is not in the clone
LONG = ("plan", "fit", "validate")  # commands of many minutes, or that need tables which do not ship


class Simulated(BaseException):
    """The command has come to its first simulation."""


def wants(command: str) -> str | None:
    """The word of a command that names what is not in the clone or takes long, or None."""
    words = command.split()
    return next((word for word in YOURS if word in words), None) or next(
        (word for word in LONG if word == words[1]), None
    )


def outcome(command: str) -> str:
    """How far a command comes: "simulates", "done", or what it complains of."""
    planning = importlib.import_module("simcluster.step.step_plan")

    def stop(*_: Any, **__: Any) -> NoReturn:
        raise Simulated

    if command.split()[1] == "sweep":  # its variants are played in processes of their own
        return _swept(command)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(planning, "plan_job", stop),
        mock.patch("simcluster.studies.search.plan.AnytimeSearch", stop),  # a search bounds thousands of layouts before
    ):
        try:
            done = run_in(Path(folder), command, paint=False)
        except Simulated:
            return "simulates"
    return done.errors.strip() if done.status else "done"


def _swept(command: str) -> str:
    """A sweep is played in the quick way; every variant has to have a result."""
    quick = command if "--quick" in command else f"{command} --quick exact"
    with tempfile.TemporaryDirectory() as folder:
        done = run_in(Path(folder), quick, paint=False)
    if done.status or not re.search(r" 0 refused, 0 failed", done.out):
        return done.errors.strip() or done.out
    return "done"
