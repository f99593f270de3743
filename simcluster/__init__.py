"""Discrete-event simulator of the training steps of large models on GPU clusters.

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

from simcluster.base.old_names import RENAMED, get_renamed_function, install_old_module_finder
from simcluster.base.version import VERSION

if TYPE_CHECKING:
    from simcluster import formulas as formulas
    from simcluster import plots as plots
    from simcluster.base.errors import InputError as InputError
    from simcluster.base.progress import no_time_limit as no_time_limit
    from simcluster.evidence.validation.study_runs import validate_studies as validate_studies
    from simcluster.interactive.notebook.studio import studio as studio
    from simcluster.interactive.report.report_file import report as report
    from simcluster.interop.export.trace_export import write_trace as write_trace
    from simcluster.interop.replay.trace_writer import replay_trace as replay_trace
    from simcluster.interop.trace_comparison.trace_difference import diff as diff
    from simcluster.longrun.budget.training_estimate import estimate_training as estimate_training
    from simcluster.longrun.launch.first_scenario import first_scenario as first_scenario
    from simcluster.longrun.launch.launch_check import check as check
    from simcluster.longrun.scaling.scaling_result import compute_optimal as compute_optimal
    from simcluster.longrun.studies.failure_replay import replay_failures as replay_failures
    from simcluster.longrun.studies.policy_comparison import compare_policies as compare_policies
    from simcluster.longrun.studies.training import train as train
    from simcluster.longrun.studies.training import train_stages as train_stages
    from simcluster.results.distribution import compare_replicas as compare_replicas
    from simcluster.results.result import Result as Result
    from simcluster.scenario.document_resolution import load_cluster as load_cluster
    from simcluster.scenario.scenario import Scenario as Scenario
    from simcluster.scenario.scenario_arguments import scenario as scenario
    from simcluster.scenario.schema import scenario_schema as scenario_schema
    from simcluster.schedules.comparison import simulate_schedules as simulate_schedules
    from simcluster.show.registry.kinds import list_names as list_names
    from simcluster.step.simulate import simulate as simulate
    from simcluster.studies.bench.collective import collective_times as collective_times
    from simcluster.studies.bench.fixed_durations import Costs as Costs
    from simcluster.studies.bench.fixed_durations import simulate_costs as simulate_costs
    from simcluster.studies.kernels import kernels as kernels
    from simcluster.studies.multi_job import simulate_jobs as simulate_jobs
    from simcluster.studies.packing_comparison import compare_packing as compare_packing
    from simcluster.studies.search.plan import plan as plan
    from simcluster.studies.state_ladder import zero_stages as zero_stages
    from simcluster.studies.sweep.sweep import sweep as sweep
    from simcluster.studies.variations import compare as compare
    from simcluster.studies.variations import differences as differences
    from simcluster.studies.whatif.free_ops import what_if_free as what_if_free
    from simcluster.studies.whatif.job_memory import job_memory as job_memory
    from simcluster.studies.whatif.largest_value import largest_that_fits as largest_that_fits
    from simcluster.studies.whatif.mitigations import mitigations as mitigations
    from simcluster.studies.whatif.monte_carlo_study import monte_carlo as monte_carlo
    from simcluster.studies.whatif.sensitivities import inflation as inflation
    from simcluster.studies.whatif.sensitivities import sensitivity as sensitivity
    from simcluster.studies.whatif.straggling import stragglers as stragglers

__version__ = VERSION

_MODULE_OF_NAME = {
    "check": "simcluster.longrun.launch.launch_check",
    "collective_times": "simcluster.studies.bench.collective",
    "compare": "simcluster.studies.variations",
    "compare_packing": "simcluster.studies.packing_comparison",
    "compare_policies": "simcluster.longrun.studies.policy_comparison",
    "compare_replicas": "simcluster.results.distribution",
    "compute_optimal": "simcluster.longrun.scaling.scaling_result",
    "Costs": "simcluster.studies.bench.fixed_durations",
    "diff": "simcluster.interop.trace_comparison.trace_difference",
    "differences": "simcluster.studies.variations",
    "estimate_training": "simcluster.longrun.budget.training_estimate",
    "first_scenario": "simcluster.longrun.launch.first_scenario",
    "formulas": "simcluster.formulas",
    "inflation": "simcluster.studies.whatif.sensitivities",
    "InputError": "simcluster.base.errors",
    "job_memory": "simcluster.studies.whatif.job_memory",
    "kernels": "simcluster.studies.kernels",
    "largest_that_fits": "simcluster.studies.whatif.largest_value",
    "list_names": "simcluster.show.registry.kinds",
    "load_cluster": "simcluster.scenario.document_resolution",
    "mitigations": "simcluster.studies.whatif.mitigations",
    "monte_carlo": "simcluster.studies.whatif.monte_carlo_study",
    "no_time_limit": "simcluster.base.progress",
    "plan": "simcluster.studies.search.plan",
    "plots": "simcluster.plots",
    "replay_trace": "simcluster.interop.replay.trace_writer",
    "replay_failures": "simcluster.longrun.studies.failure_replay",
    "report": "simcluster.interactive.report.report_file",
    "Result": "simcluster.results.result",
    "Scenario": "simcluster.scenario.scenario",
    "scenario": "simcluster.scenario.scenario_arguments",
    "scenario_schema": "simcluster.scenario.schema",
    "sensitivity": "simcluster.studies.whatif.sensitivities",
    "simulate": "simcluster.step.simulate",
    "simulate_costs": "simcluster.studies.bench.fixed_durations",
    "simulate_jobs": "simcluster.studies.multi_job",
    "simulate_schedules": "simcluster.schedules.comparison",
    "stragglers": "simcluster.studies.whatif.straggling",
    "studio": "simcluster.interactive.notebook.studio",
    "sweep": "simcluster.studies.sweep.sweep",
    "train": "simcluster.longrun.studies.training",
    "train_stages": "simcluster.longrun.studies.training",
    "validate_studies": "simcluster.evidence.validation.study_runs",
    "what_if_free": "simcluster.studies.whatif.free_ops",
    "write_trace": "simcluster.interop.export.trace_export",
    "zero_stages": "simcluster.studies.state_ladder",
}

__all__ = list(_MODULE_OF_NAME)


def __getattr__(name: str) -> object:
    if name in RENAMED:
        return get_renamed_function(name)
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'simcluster' has no attribute {name!r}")
    module = import_module(_MODULE_OF_NAME[name])
    return module if name in ("formulas", "plots") else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


class _LazyPackage(ModuleType):
    """Module type in which ``scenario`` stays a function when the subpackage of the same name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("formulas", "plots") or name not in _MODULE_OF_NAME:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _LazyPackage
install_old_module_finder()
