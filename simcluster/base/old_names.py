"""Modules under the names that README and notebooks once gave them, found where they are now.

``import simcluster.replay.written`` is ``simcluster.interop.recorded.written``: one module under two names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

MOVED = {
    "calibration": "evidence.calibration",
    "chakra": "interop.chakra",
    "collective": "bench.collective",
    "collective_loads": "bench.collective_loads",
    "compare": "studies.variations",
    "errors": "base.errors",
    "fixed": "bench.given_times",
    "inputs": "importers",
    "kineto": "interop.kineto",
    "loads": "results.loads",
    "measuring": "results",
    "plots": "show.plots",
    "replay": "interop.recorded",
    "report": "show.report",
    "result": "results.result",
    "search": "studies.search",
    "sweeps": "studies.sweep",
    "together": "studies.multi_job",
    "traces": "interop.export",
    "units": "base.units",
    "validation": "evidence.validation",
    "whatif": "studies.whatif",
}
"""Old name in ``simcluster``: the name today."""


class OldNames:
    """Finds and loads a module by its old name (``importlib.abc`` would cost 12 ms at every start)."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """One for what has moved, None for all else."""
        top, _, rest = fullname.partition(".")
        old, _, below = rest.partition(".")
        if top != "simcluster" or old not in MOVED:
            return None
        there = ".".join(part for part in (top, MOVED[old], below) if part)
        return ModuleSpec(fullname, cast("Loader", self), origin=there, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself, which keeps its own spec."""
        module = import_module(str(spec.origin))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has run."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def find_old_names() -> None:
    """Let imports find them, once."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())  # before the one that would find a module's file a second time
