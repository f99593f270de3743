"""Simulate training steps of large models on GPU clusters, as events.

    result = simcluster.simulate("gpt3_175b_64xa100", parallel__tp=4)
    table = simcluster.compare({"tp 4": result, "built-in": "gpt3_175b_64xa100"})

A function that takes a scenario accepts a built-in name, a path, a dict (the content of a file) or a Scenario
(``simcluster.scenario``). Names are imported when first used, which keeps ``import simcluster`` fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from simcluster.base.old_names import RENAMED, find_old_names, renamed
from simcluster.base.version import VERSION

if TYPE_CHECKING:
    from simcluster import formulas as formulas
    from simcluster import plots as plots
    from simcluster.base.errors import InputError as InputError
    from simcluster.base.telling import no_time_limit as no_time_limit
    from simcluster.evidence.validation.study_runs import validate_studies as validate_studies
    from simcluster.interactive.notebook.studio import studio as studio
    from simcluster.interop.export.trace_export import write_trace as write_trace
    from simcluster.interop.replay.trace_writer import replay_trace as replay_trace
    from simcluster.interop.trace_comparison.trace_difference import diff as diff
    from simcluster.longrun.budget.walls import estimate_training as estimate_training
    from simcluster.longrun.launch.check import check as check
    from simcluster.longrun.launch.first import first_scenario as first_scenario
    from simcluster.longrun.scaling.scale import compute_optimal as compute_optimal
    from simcluster.longrun.studies.comparing import compare_policies as compare_policies
    from simcluster.longrun.studies.replays import replay_failures as replay_failures
    from simcluster.longrun.studies.train import train as train
    from simcluster.longrun.studies.train import train_stages as train_stages
    from simcluster.results.distribution import compare_replicas as compare_replicas
    from simcluster.results.result import Result as Result
    from simcluster.scenario.files import load_cluster as load_cluster
    from simcluster.scenario.given import scenario as scenario
    from simcluster.scenario.scenario import Scenario as Scenario
    from simcluster.scenario.schema import scenario_schema as scenario_schema
    from simcluster.schedules.comparison import simulate_schedules as simulate_schedules
    from simcluster.show.registry.kinds import list_names as list_names
    from simcluster.show.report_file import report as report
    from simcluster.step.simulate import simulate as simulate
    from simcluster.studies.bench.collective import collective_times as collective_times
    from simcluster.studies.bench.given_times import Costs as Costs
    from simcluster.studies.bench.given_times import simulate_costs as simulate_costs
    from simcluster.studies.kernels import kernels as kernels
    from simcluster.studies.multi_job import simulate_jobs as simulate_jobs
    from simcluster.studies.packings import compare_packing as compare_packing
    from simcluster.studies.search.plan import plan as plan
    from simcluster.studies.state_ladder import zero_stages as zero_stages
    from simcluster.studies.sweep.sweep import sweep as sweep
    from simcluster.studies.variations import compare as compare
    from simcluster.studies.variations import differences as differences
    from simcluster.studies.whatif.free import what_if_free as what_if_free
    from simcluster.studies.whatif.job_memory import job_memory as job_memory
    from simcluster.studies.whatif.largest import largest_that_fits as largest_that_fits
    from simcluster.studies.whatif.mitigations import mitigations as mitigations
    from simcluster.studies.whatif.montecarlo import monte_carlo as monte_carlo
    from simcluster.studies.whatif.sensitivities import inflation as inflation
    from simcluster.studies.whatif.sensitivities import sensitivity as sensitivity
    from simcluster.studies.whatif.straggling import stragglers as stragglers


__version__ = VERSION

_HOME = {
    "check": "simcluster.longrun.launch.check",
    "collective_times": "simcluster.studies.bench.collective",
    "compare": "simcluster.studies.variations",
    "compare_packing": "simcluster.studies.packings",
    "compare_policies": "simcluster.longrun.studies.comparing",
    "compare_replicas": "simcluster.results.distribution",
    "compute_optimal": "simcluster.longrun.scaling.scale",
    "Costs": "simcluster.studies.bench.given_times",
    "diff": "simcluster.interop.trace_comparison.trace_difference",
    "differences": "simcluster.studies.variations",
    "estimate_training": "simcluster.longrun.budget.walls",
    "first_scenario": "simcluster.longrun.launch.first",
    "formulas": "simcluster.formulas",
    "inflation": "simcluster.studies.whatif.sensitivities",
    "InputError": "simcluster.base.errors",
    "job_memory": "simcluster.studies.whatif.job_memory",
    "kernels": "simcluster.studies.kernels",
    "largest_that_fits": "simcluster.studies.whatif.largest",
    "list_names": "simcluster.show.registry.kinds",
    "load_cluster": "simcluster.scenario.files",
    "mitigations": "simcluster.studies.whatif.mitigations",
    "monte_carlo": "simcluster.studies.whatif.montecarlo",
    "no_time_limit": "simcluster.base.telling",
    "plan": "simcluster.studies.search.plan",
    "plots": "simcluster.plots",
    "replay_trace": "simcluster.interop.replay.trace_writer",
    "replay_failures": "simcluster.longrun.studies.replays",
    "report": "simcluster.show.report_file",
    "Result": "simcluster.results.result",
    "Scenario": "simcluster.scenario.scenario",
    "scenario": "simcluster.scenario.given",
    "scenario_schema": "simcluster.scenario.schema",
    "sensitivity": "simcluster.studies.whatif.sensitivities",
    "simulate": "simcluster.step.simulate",
    "simulate_costs": "simcluster.studies.bench.given_times",
    "simulate_jobs": "simcluster.studies.multi_job",
    "simulate_schedules": "simcluster.schedules.comparison",
    "stragglers": "simcluster.studies.whatif.straggling",
    "studio": "simcluster.interactive.notebook.studio",
    "sweep": "simcluster.studies.sweep.sweep",
    "train": "simcluster.longrun.studies.train",
    "train_stages": "simcluster.longrun.studies.train",
    "validate_studies": "simcluster.evidence.validation.study_runs",
    "what_if_free": "simcluster.studies.whatif.free",
    "write_trace": "simcluster.interop.export.trace_export",
    "zero_stages": "simcluster.studies.state_ladder",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name in RENAMED:
        return renamed(name)
    if name not in _HOME:
        raise AttributeError(f"module 'simcluster' has no attribute {name!r}")
    module = import_module(_HOME[name])
    return module if name in ("formulas", "plots") else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


class _Package(ModuleType):
    """``simulate`` and ``compare`` are functions here although submodules have their names, even once imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("formulas", "plots") or name not in _HOME:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
find_old_names()
