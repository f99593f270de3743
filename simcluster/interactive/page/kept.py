"""Cache of a studio process: recent results, and plans that a change does not affect.

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
from simcluster.planning.stages import stage_programs
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import uses_simulated_times
from simcluster.step.planned import PlannedStep, plan_job, plan_step, plan_with_programs
from simcluster.step.simulate import simulate_scenario

MOST_GPUS = 262_144
_MAX_ENTRIES = 3
_LINKS = ("nvlink", "network", "latency")
"""Scales of a cluster that programs know nothing of."""
_ELSEWHERE = ("name", "faults", "run", "measured")
"""Sections that programs are not made of."""
_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")


class ResultCache:
    """Caches of recent results by scenario, and of plans and stage programs by their inputs."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, Result] = OrderedDict()
        self._programs: OrderedDict[Hashable, Sequence[StageProgram]] = OrderedDict()
        self._plans: OrderedDict[str, PlannedStep] = OrderedDict()

    def result(self, scenario: Scenario) -> Result:
        """Return the simulated step of a scenario, from the cache if possible; raise InputError if it is too large."""
        text = scenario.model_dump_json()
        if text not in self._results:
            if scenario.gpus > MOST_GPUS:
                raise InputError(
                    f"gpus: the studio simulates at most {MOST_GPUS:,} GPUs, and this scenario has {scenario.gpus:,}"
                )
            self._results[text] = simulate_scenario(scenario, planned=self.planned(scenario))
        return _touch_entry(self._results, text)

    def planned(self, scenario: Scenario) -> PlannedStep:
        """Return the plan of a scenario, from the cache if only faults differ."""
        if scenario.checkpoint is not None:
            return plan_step(scenario)
        whole, programs = _cache_keys(scenario)
        if whole not in self._plans:
            self._plans[whole] = self._with_programs(scenario, programs)
        return _touch_entry(self._plans, whole)

    def _with_programs(self, scenario: Scenario, document: str) -> PlannedStep:
        job, facts = plan_job(scenario, scenario.cluster.device)
        made_of = document, job.slices, job.schedule if uses_simulated_times(scenario) else None
        if made_of not in self._programs:
            self._programs[made_of] = stage_programs(job)
        return plan_with_programs(scenario, job, facts, _touch_entry(self._programs, made_of))


def _cache_keys(scenario: Scenario) -> tuple[str, str]:
    document = scenario.model_dump(mode="json")
    for name in _ELSEWHERE:
        document.pop(name, None)
    whole = json.dumps(document, sort_keys=True)
    for name in _LINKS:
        document["cluster"]["scale"].pop(name)
    return whole, json.dumps(document, sort_keys=True)


def _touch_entry(kept: OrderedDict[_Key, _Kept], key: _Key) -> _Kept:
    kept.move_to_end(key)
    while len(kept) > _MAX_ENTRIES:
        kept.popitem(last=False)
    return kept[key]
