"""Cache in a studio process: recent results, and step plans that changes of a scenario may leave valid.

A change of faults keeps the plan. A change of link speeds keeps the programs of the stages, unless simulated times
determine the layer split or the schedule. Results are identical to the bit (``tests/test_studio.py`` compares).
"""

from __future__ import annotations

import json

from simcluster.base.errors import InputError
from simcluster.base.lru_cache import LruCache
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import uses_simulated_times
from simcluster.step.simulate import simulate_scenario
from simcluster.step.step_plan import PlannedStep, plan_job, plan_step, plan_with_programs

MOST_GPUS = 262_144
_MAX_ENTRIES = 3
_LINKS = ("nvlink", "network", "latency")
"""Factors of ``cluster.scale`` that do not affect stage programs."""
_ELSEWHERE = ("name", "faults", "run", "measured")
"""Sections of a scenario that do not affect stage programs."""


class ResultCache:
    """Cache of recent results, step plans and stages' ops, by the scenario keys that each of them depends on."""

    def __init__(self) -> None:
        self._results = LruCache(_MAX_ENTRIES)
        self._programs = LruCache(_MAX_ENTRIES)
        self._plans = LruCache(_MAX_ENTRIES)

    def result(self, scenario: Scenario) -> Result:
        """Return the simulated step of a scenario, from the cache if possible; InputError if it has too many GPUs."""
        if scenario.gpus > MOST_GPUS:
            raise InputError(
                f"gpus: the studio simulates at most {MOST_GPUS:,}, got {scenario.gpus:,}; use simcluster run"
            )
        text = scenario.model_dump_json()
        return self._results.get_or_make(text, lambda: simulate_scenario(scenario, planned=self.plan(scenario)))

    def plan(self, scenario: Scenario) -> PlannedStep:
        """Return the step plan of a scenario, from the cache if only the scenario's faults changed."""
        if scenario.checkpoint is not None:
            return plan_step(scenario)
        whole, programs = _cache_keys(scenario)
        return self._plans.get_or_make(whole, lambda: self._with_programs(scenario, programs))

    def _with_programs(self, scenario: Scenario, document: str) -> PlannedStep:
        job, facts = plan_job(scenario, scenario.cluster.device)
        made_of = document, job.slices, job.schedule if uses_simulated_times(scenario) else None
        programs = self._programs.get_or_make(made_of, lambda: build_stage_programs(job))
        return plan_with_programs(scenario, job, facts, programs)


def _cache_keys(scenario: Scenario) -> tuple[str, str]:
    document = scenario.model_dump(mode="json")
    for name in _ELSEWHERE:
        document.pop(name, None)
    whole = json.dumps(document, sort_keys=True)
    for name in _LINKS:
        document["cluster"]["scale"].pop(name)
    return whole, json.dumps(document, sort_keys=True)
