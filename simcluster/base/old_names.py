"""Former public names: an import hook for moved modules, and renamed functions and attributes.

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
    "fixed": "studies.bench.fixed_durations",
    "inputs": "importers",
    "interop.own_trace": "interop.trace_comparison",
    "interop.recorded": "interop.replay",
    "interop.recorded.written": "interop.replay.trace_writer",
    "kineto": "interop.kineto",
    "loads": "results.link_loads",
    "measuring": "results",
    "model.parameters": "model.layers",
    "nccl": "traffic.nccl",
    "packing": "model.packing",
    "registry": "show.registry",
    "replay": "interop.replay",
    "replay.written": "interop.replay.trace_writer",
    "report": "interactive.report",
    "result": "results.result",
    "search": "studies.search",
    "show.notebook": "interactive.notebook",
    "show.plots": "plots",
    "show.report": "interactive.report",
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
    "however_long": ("base.progress:no_time_limit", "no_time_limit"),
    "largest": ("studies.whatif.largest_value:largest_that_fits", "largest_that_fits"),
    "load": ("scenario.scenario:load", "scenario"),
    "load_text": ("scenario.scenario:load_text", "scenario"),
    "names": ("show.registry.kinds:list_names", "list_names"),
    "play_schedules": ("schedules.comparison:simulate_schedules", "simulate_schedules"),
    "scaling": ("longrun.scaling.scaling_result:compute_optimal", "compute_optimal"),
    "simulate_together": ("studies.multi_job:simulate_jobs", "simulate_jobs"),
    "state_ladder": ("studies.state_ladder:zero_stages", "zero_stages"),
    "walls": ("longrun.budget.training_estimate:estimate_training", "estimate_training"),
    "what_pays": ("studies.whatif.mitigations:mitigations", "mitigations"),
}
"""Deprecated name of a function of ``simcluster``: the function's place, and its name today."""

RENAMED_MEMBERS = {
    "Result": {
        "fit": "fit_verdict", "likely": "likely_interval", "ops_played": "simulated_ops",
        "own_bubble": "schedule_bubble", "real_mfu": "mfu_without_padding", "without_effect": "list_idle_fields",
    },
    "plots": {"critical": "critical_path", "errors": "validation_errors", "fates": "lost_time", "weeks": "run_calendar"}
}  # fmt: skip
"""Deprecated names of attributes of a Result and of ``simcluster.plots``: the names today."""


def current_name(owner: str, name: str) -> str:
    """Return the current name of ``owner``'s attribute formerly called ``name``, after a DeprecationWarning."""
    if name not in RENAMED_MEMBERS[owner]:
        raise AttributeError(f"{owner} has no attribute {name!r}")
    today = RENAMED_MEMBERS[owner][name]
    warn(f"{owner}.{name} is deprecated: use {owner}.{today}", DeprecationWarning, stacklevel=3)
    return today


def get_renamed_function(name: str) -> object:
    """Return the simcluster function formerly called ``name``, after a DeprecationWarning."""
    place, today = RENAMED[name]
    warn(f"simcluster.{name} is deprecated: use simcluster.{today}", DeprecationWarning, stacklevel=3)
    return load_object(place)


class OldModuleFinder:
    """Import hook that loads moved modules by former names; without ``importlib.abc``, which costs 12 ms."""

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
        """Restore the module's import spec instead of running the module, which has already run."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def install_old_module_finder() -> None:
    """Install the import hook for former module names, once."""
    if not any(isinstance(finder, OldModuleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldModuleFinder())  # before the one that would find a module's file a second time
