"""Replay one training step of a large model on a GPU cluster, as events.

    scenario = simcluster.scenario("gpt3_175b_64xa100", {"parallel.tp": 4})
    result = simcluster.simulate(scenario)
    table = simcluster.compare({"tp 4": result, "as shipped": "gpt3_175b_64xa100"})

Wherever a scenario is wanted its shipped name, its path, a dict (what a file holds) or a Scenario will do.
Names are imported when first used, so that ``import simcluster`` costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from simcluster.base.old_names import find_old_names
from simcluster.base.version import VERSION

if TYPE_CHECKING:
    from simcluster import plots as plots
    from simcluster.base.errors import InputError as InputError
    from simcluster.base.telling import however_long as however_long
    from simcluster.interactive.notebook.studio import studio as studio
    from simcluster.interop.export.trace_export import write_trace as write_trace
    from simcluster.interop.trace_comparison.trace_difference import diff as diff
    from simcluster.longrun.budget.walls import walls as walls
    from simcluster.longrun.launch.check import check as check
    from simcluster.longrun.launch.first import first_scenario as first_scenario
    from simcluster.longrun.scaling.scale import scaling as scaling
    from simcluster.longrun.studies.comparing import compare_policies as compare_policies
    from simcluster.longrun.studies.replays import replay_failures as replay_failures
    from simcluster.longrun.studies.train import train as train
    from simcluster.longrun.studies.train import train_stages as train_stages
    from simcluster.results.distribution import compare_replicas as compare_replicas
    from simcluster.results.result import Result as Result
    from simcluster.scenario.files import load_cluster as load_cluster
    from simcluster.scenario.given import scenario as scenario
    from simcluster.scenario.scenario import Scenario as Scenario
    from simcluster.scenario.scenario import load as load
    from simcluster.scenario.scenario import load_text as load_text
    from simcluster.scenario.schema import scenario_schema as scenario_schema
    from simcluster.schedules.comparison import play_schedules as play_schedules
    from simcluster.show.registry.kinds import names as names
    from simcluster.show.report_file import report as report
    from simcluster.step.simulate import simulate as simulate
    from simcluster.studies.bench.collective import collective_times as collective_times
    from simcluster.studies.bench.given_times import Costs as Costs
    from simcluster.studies.bench.given_times import simulate_costs as simulate_costs
    from simcluster.studies.kernels import kernels as kernels
    from simcluster.studies.multi_job import simulate_together as simulate_together
    from simcluster.studies.packings import compare_packing as compare_packing
    from simcluster.studies.search.plan import plan as plan
    from simcluster.studies.state_ladder import state_ladder as state_ladder
    from simcluster.studies.sweep.sweep import sweep as sweep
    from simcluster.studies.variations import compare as compare
    from simcluster.studies.variations import differences as differences
    from simcluster.studies.whatif.free import what_if_free as what_if_free
    from simcluster.studies.whatif.job_memory import job_memory as job_memory
    from simcluster.studies.whatif.largest import largest as largest
    from simcluster.studies.whatif.mitigations import what_pays as what_pays
    from simcluster.studies.whatif.montecarlo import monte_carlo as monte_carlo
    from simcluster.studies.whatif.sensitivities import inflation as inflation
    from simcluster.studies.whatif.sensitivities import sensitivity as sensitivity
    from simcluster.studies.whatif.straggling import stragglers as stragglers


__version__ = VERSION

_HOME = {
    "Costs": "simcluster.studies.bench.given_times",
    "InputError": "simcluster.base.errors",
    "Result": "simcluster.results.result",
    "Scenario": "simcluster.scenario.scenario",
    "check": "simcluster.longrun.launch.check",
    "collective_times": "simcluster.studies.bench.collective",
    "compare": "simcluster.studies.variations",
    "compare_packing": "simcluster.studies.packings",
    "compare_policies": "simcluster.longrun.studies.comparing",
    "compare_replicas": "simcluster.results.distribution",
    "diff": "simcluster.interop.trace_comparison.trace_difference",
    "differences": "simcluster.studies.variations",
    "first_scenario": "simcluster.longrun.launch.first",
    "however_long": "simcluster.base.telling",
    "inflation": "simcluster.studies.whatif.sensitivities",
    "job_memory": "simcluster.studies.whatif.job_memory",
    "kernels": "simcluster.studies.kernels",
    "largest": "simcluster.studies.whatif.largest",
    "load": "simcluster.scenario.scenario",
    "load_cluster": "simcluster.scenario.files",
    "load_text": "simcluster.scenario.scenario",
    "monte_carlo": "simcluster.studies.whatif.montecarlo",
    "names": "simcluster.show.registry.kinds",
    "play_schedules": "simcluster.schedules.comparison",
    "plan": "simcluster.studies.search.plan",
    "plots": "simcluster.plots",
    "report": "simcluster.show.report_file",
    "scenario_schema": "simcluster.scenario.schema",
    "scaling": "simcluster.longrun.scaling.scale",
    "replay_failures": "simcluster.longrun.studies.replays",
    "scenario": "simcluster.scenario.given",
    "sensitivity": "simcluster.studies.whatif.sensitivities",
    "simulate": "simcluster.step.simulate",
    "simulate_costs": "simcluster.studies.bench.given_times",
    "simulate_together": "simcluster.studies.multi_job",
    "state_ladder": "simcluster.studies.state_ladder",
    "stragglers": "simcluster.studies.whatif.straggling",
    "studio": "simcluster.interactive.notebook.studio",
    "sweep": "simcluster.studies.sweep.sweep",
    "train": "simcluster.longrun.studies.train",
    "train_stages": "simcluster.longrun.studies.train",
    "walls": "simcluster.longrun.budget.walls",
    "write_trace": "simcluster.interop.export.trace_export",
    "what_if_free": "simcluster.studies.whatif.free",
    "what_pays": "simcluster.studies.whatif.mitigations",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'simcluster' has no attribute {name!r}")
    module = import_module(_HOME[name])
    return module if name == "plots" else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


class _Package(ModuleType):
    """``simulate`` and ``compare`` are functions here although submodules bear their names, whoever imports those."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "plots" or name not in _HOME:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
find_old_names()
