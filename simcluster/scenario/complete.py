"""A scenario made whole: what its document leaves out follows from the rest, and every rule between fields holds.

``Scenario`` asks for it when its fields have been checked one by one, read from a file or given in Python.  This is
where the cluster is built; its spec keeps it, so copies of the scenario share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import RuleError
from simcluster.faults import placed
from simcluster.importers.schedule_files import function_in, is_function
from simcluster.scenario.rules import broken_rules, oversize
from simcluster.schedules import make_schedule
from simcluster.schedules.specs import Rows

if TYPE_CHECKING:
    from simcluster.scenario.fields import ScenarioFields
    from simcluster.scenario.sections import Parallel, Pipeline
    from simcluster.topology import Cluster


def complete(scenario: ScenarioFields) -> None:
    """Fill in what was left out of a new scenario, which nobody else has seen yet; RuleError with all broken rules."""
    cluster = _built(scenario)
    _fill(scenario, "gpus", scenario.gpus or len(cluster.gpus))
    _fill(scenario, "parallel", _parallel(scenario))
    _fill(scenario, "faults", placed(scenario.faults))
    _fill(scenario, "pipeline", _pipeline(scenario))
    if broken := broken_rules(scenario):
        raise RuleError(broken)


def _fill(scenario: ScenarioFields, field: str, value: object) -> None:
    object.__setattr__(scenario, field, value)  # frozen for everybody else


def _built(scenario: ScenarioFields) -> Cluster:
    """The cluster, unless it is too large or cannot be."""
    if too_large := oversize(scenario.cluster.topology):
        raise RuleError([(("cluster",), too_large)])
    try:
        return scenario.cluster.built
    except InputError as error:
        raise RuleError([(("cluster",), str(error))]) from None


def _parallel(scenario: ScenarioFields) -> Parallel:
    """With dp: what the other axes leave of the GPUs, where they divide them."""
    parallel = scenario.parallel
    others = parallel.tp * parallel.pp * parallel.cp
    if parallel.dp or scenario.gpus % others:
        return parallel
    return parallel.model_copy(update={"dp": scenario.gpus // others})


def _pipeline(scenario: ScenarioFields) -> Pipeline:
    """With the rows that a schedule FILE.py:FUNCTION gives for the counts of this scenario."""
    pipeline, training = scenario.pipeline, scenario.training
    name, together = pipeline.schedule, scenario.parallel.dp * training.micro_batch
    if not isinstance(name, str) or not is_function(name):
        return pipeline
    if not together or training.global_batch % together:
        return pipeline  # the rules complain
    counts = scenario.parallel.pp, scenario.microbatches, pipeline.chunks
    try:
        rows = Rows.of(make_schedule(function_in(name), *counts))
    except InputError as error:
        raise RuleError([(("pipeline", "schedule"), str(error))]) from None
    return pipeline.model_copy(update={"schedule": rows, "chunks": 1})
