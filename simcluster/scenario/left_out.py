"""What a document leaves out, made of the rest of it: the cluster as built, dp, rows of a schedule's function."""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import RuleError
from simcluster.importers.schedule_files import function_in, is_function
from simcluster.scenario.fields import ScenarioFields
from simcluster.scenario.rules import oversize
from simcluster.scenario.sections import Parallel, Pipeline
from simcluster.schedules import make_schedule
from simcluster.schedules.specs import Rows
from simcluster.topology import Cluster


def fill(scenario: ScenarioFields, field: str, value: object) -> None:
    object.__setattr__(scenario, field, value)  # frozen for everybody else


def built(scenario: ScenarioFields) -> Cluster:
    """The cluster, unless it is too large or cannot be."""
    if too_large := oversize(scenario.cluster.topology):
        raise RuleError([(("cluster",), too_large)])
    try:
        return scenario.cluster.built
    except InputError as error:
        raise RuleError([(("cluster",), str(error))]) from None


def parallel_of(scenario: ScenarioFields) -> Parallel:
    """With dp: what the other axes leave of the GPUs, where they divide them; and with etp 1 where experts that are
    split as all else would take more ranks than a stage has, and whole ones do not."""
    parallel = scenario.parallel
    others = parallel.tp * parallel.pp * parallel.cp
    if not parallel.dp and scenario.gpus % others == 0:
        parallel = parallel.model_copy(update={"dp": scenario.gpus // others})
    ranks, ep = parallel.tp * parallel.cp * parallel.dp, parallel.ep
    if scenario.model.moe and parallel.etp is None and ranks % (ep * parallel.tp) and ranks % ep == 0:
        parallel = parallel.model_copy(update={"etp": 1})
    return parallel


def pipeline_of(scenario: ScenarioFields) -> Pipeline:
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
