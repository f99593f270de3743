"""Cache in a studio process: recent results, and step plans that changes of a scenario may leave valid.

A change of faults keeps the plan. A change of link speeds keeps the programs of the stages, unless simulated times
determine the layer split or the schedule. Results are identical to the bit (``tests/test_studio.py`` compares).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TypeVar

from simcluster.base.errors import InputError
from simcluster.planning.ops import StageProgram
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
_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")


class ResultCache:
    """Cache of recent results, step plans and stages' ops, by the scenario keys that each of them depends on."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, Result] = OrderedDict()
        self._programs: OrderedDict[Hashable, Sequence[StageProgram]] = OrderedDict()
        self._plans: OrderedDict[str, PlannedStep] = OrderedDict()

    def result(self, scenario: Scenario) -> Result:
        """Return the simulated step of a scenario, from the cache if possible; InputError if it has too many GPUs."""
        text = scenario.model_dump_json()
        if text not in self._results:
            if scenario.gpus > MOST_GPUS:
                raise InputError(
                    f"gpus: the studio simulates at most {MOST_GPUS:,}, got {scenario.gpus:,}; use simcluster run"
                )
            self._results[text] = simulate_scenario(scenario, planned=self.plan(scenario))
        return _use_entry(self._results, text)

    def plan(self, scenario: Scenario) -> PlannedStep:
        """Return the step plan of a scenario, from the cache if only the scenario's faults changed."""
        if scenario.checkpoint is not None:
            return plan_step(scenario)
        whole, programs = _cache_keys(scenario)
        if whole not in self._plans:
            self._plans[whole] = self._with_programs(scenario, programs)
        return _use_entry(self._plans, whole)

    def _with_programs(self, scenario: Scenario, document: str) -> PlannedStep:
        job, facts = plan_job(scenario, scenario.cluster.device)
        made_of = document, job.slices, job.schedule if uses_simulated_times(scenario) else None
        if made_of not in self._programs:
            self._programs[made_of] = build_stage_programs(job)
        return plan_with_programs(scenario, job, facts, _use_entry(self._programs, made_of))


def _cache_keys(scenario: Scenario) -> tuple[str, str]:
    document = scenario.model_dump(mode="json")
    for name in _ELSEWHERE:
        document.pop(name, None)
    whole = json.dumps(document, sort_keys=True)
    for name in _LINKS:
        document["cluster"]["scale"].pop(name)
    return whole, json.dumps(document, sort_keys=True)


def _use_entry(cache: OrderedDict[_Key, _Kept], key: _Key) -> _Kept:
    cache.move_to_end(key)
    while len(cache) > _MAX_ENTRIES:
        cache.popitem(last=False)
    return cache[key]
