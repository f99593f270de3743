"""Former public names: an import hook for moved modules, and deprecated names of the package.

``import simcluster.replay.written`` is ``simcluster.interop.replay.trace_writer``: one module under two names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, cast
from warnings import warn

from simcluster.base.satellites import load_object

if TYPE_CHECKING:
    from importlib.abc import Loader

MOVED = {
    "bench": "studies.bench",
    "budget": "longrun.budget",
    "budget.states": "studies.state_ladder",
    "calibration": "evidence.calibration",
    "catalogue": "documents.catalogue",
    "chakra": "interop.chakra",
    "collective": "studies.bench.collective",
    "collective_loads": "studies.bench.collective_loads",
    "compare": "studies.variations",
    "controls": "interactive.controls",
    "errors": "base.errors",
    "fixed": "studies.bench.given_times",
    "inputs": "importers",
    "interop.own_trace": "interop.trace_comparison",
    "interop.recorded": "interop.replay",
    "interop.recorded.written": "interop.replay.trace_writer",
    "kineto": "interop.kineto",
    "loads": "results.loads",
    "measuring": "results",
    "model.parameters": "model.layers",
    "nccl": "traffic.nccl",
    "packing": "model.packing",
    "registry": "show.registry",
    "replay": "interop.replay",
    "replay.written": "interop.replay.trace_writer",
    "report": "show.report",
    "result": "results.result",
    "search": "studies.search",
    "show.notebook": "interactive.notebook",
    "show.plots": "plots",
    "simulate": "step.simulate",
    "studies.launch": "longrun.launch",
    "studies.long_run": "longrun.studies",
    "studies.own_trace": "interop.trace_comparison",
    "studies.scaling": "longrun.scaling",
    "studio_page": "interactive.page",
    "sweeps": "studies.sweep",
    "together": "studies.multi_job",
    "traces": "interop.export",
    "units": "base.units",
    "validation": "evidence.validation",
    "whatif": "studies.whatif",
}
"""Old name in ``simcluster``: the name today."""

RENAMED = {
    "however_long": ("base.telling:no_time_limit", "no_time_limit"),
    "largest": ("studies.whatif.largest:largest_that_fits", "largest_that_fits"),
    "load": ("scenario.scenario:load", "scenario"),
    "load_text": ("scenario.scenario:load_text", "scenario"),
    "names": ("show.registry.kinds:list_names", "list_names"),
    "play_schedules": ("schedules.comparison:simulate_schedules", "simulate_schedules"),
    "scaling": ("longrun.scaling.scale:compute_optimal", "compute_optimal"),
    "simulate_together": ("studies.multi_job:simulate_jobs", "simulate_jobs"),
    "state_ladder": ("studies.state_ladder:zero_stages", "zero_stages"),
    "walls": ("longrun.budget.walls:estimate_training", "estimate_training"),
    "what_pays": ("studies.whatif.mitigations:mitigations", "mitigations"),
}
"""Deprecated name of a function of ``simcluster``: the function's place, and its name today."""

RENAMED_MEMBERS = {
    "own_bubble": "schedule_bubble", "ops_played": "simulated_ops", "real_mfu": "mfu_without_padding",
}  # fmt: skip
"""Deprecated attribute of a Result: its name today."""


def renamed_member(result: object, name: str) -> object:
    """Return the attribute of a Result that had this name, with a DeprecationWarning at the caller's line."""
    if name not in RENAMED_MEMBERS:
        raise AttributeError(f"{type(result).__name__!r} object has no attribute {name!r}")
    warn(f"Result.{name} is deprecated: use Result.{RENAMED_MEMBERS[name]}", DeprecationWarning, stacklevel=3)
    return getattr(result, RENAMED_MEMBERS[name])


def renamed(name: str) -> object:
    """Return the function that had this name, with a DeprecationWarning at the caller's line."""
    place, today = RENAMED[name]
    warn(f"simcluster.{name} is deprecated: use simcluster.{today}", DeprecationWarning, stacklevel=3)
    return load_object(place)


class OldNames:
    """Finder and loader of modules by former names (``importlib.abc`` would cost 12 ms at every start)."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import spec of a moved module; None for other modules."""
        top, _, old = fullname.partition(".")
        below = ""
        while top == "simcluster" and old:
            if old in MOVED:
                return ModuleSpec(fullname, cast("Loader", self), origin=f"{top}.{MOVED[old]}{below}", is_package=True)
            old, _, last = old.rpartition(".")
            below = f".{last}{below}"
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the moved module, which keeps its own import spec."""
        module = import_module(str(spec.origin))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's import spec; the module has already run."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def find_old_names() -> None:
    """Install the import hook for former module names, once."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())  # before the one that would find a module's file a second time
