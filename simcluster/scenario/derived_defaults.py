"""Defaults that depend on other fields of a scenario: dp, etp, layers per stage, and custom schedules."""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.base.gc_pause import pause_gc
from simcluster.documents.diagnostics import RuleError
from simcluster.documents.trusted_text import is_function_reference
from simcluster.faults import assign_random_streams
from simcluster.scenario.rules import explain_oversize
from simcluster.scenario.scenario_fields import ScenarioFields
from simcluster.scenario.schedule_files import load_schedule_function
from simcluster.scenario.sections import Parallel, Pipeline
from simcluster.schedules import SCHEDULES, make_schedule, schedules_with
from simcluster.schedules.specs import RowsSpec
from simcluster.schedules.stage_layout import StageLayout
from simcluster.topology import Cluster


def set_frozen_field(scenario: ScenarioFields, field: str, value: object) -> None:
    """Set a field of a scenario, which is otherwise immutable."""
    object.__setattr__(scenario, field, value)  # frozen for everybody else


def fill_derived_fields(scenario: ScenarioFields) -> None:
    """Set the fields of a new scenario whose defaults, or values, follow from other fields."""
    hand_over_trainable(scenario)
    cluster = build_cluster(scenario)
    set_frozen_field(scenario, "gpus", scenario.gpus or cluster.num_gpus)
    set_frozen_field(scenario, "parallel", complete_parallel(scenario))
    if scenario.faults or scenario.data:
        faults = scenario.data.with_document_fault(scenario.faults) if scenario.data else scenario.faults
        set_frozen_field(scenario, "faults", assign_random_streams(faults))
    set_frozen_field(scenario, "pipeline", complete_pipeline(scenario))


def hand_over_trainable(scenario: ScenarioFields) -> None:
    """Tell a scenario's model which of its weights are trained (``training.trainable``)."""
    set_frozen_field(scenario, "model", scenario.model.with_trainable(scenario.training.trainable))


@pause_gc()
def build_cluster(scenario: ScenarioFields) -> Cluster:
    """Return the cluster object of a scenario; raise RuleError if the cluster is too large or invalid."""
    if "built" not in vars(scenario.cluster) and (too_large := explain_oversize(scenario.cluster.topology)):
        raise RuleError([(("cluster",), too_large)])
    try:
        return scenario.cluster.built
    except InputError as error:
        raise RuleError([(("cluster",), str(error))]) from None


def complete_parallel(scenario: ScenarioFields) -> Parallel:
    """Return the parallel section with defaults filled in: etp, and dp = GPUs / (tp x pp x cp).

    Without a whole quotient dp stays unset. etp becomes 1 where experts that are split like other layers would need
    more ranks than a stage has, and whole ones do not.
    """
    parallel = scenario.parallel
    others = parallel.tp * parallel.pp * parallel.cp
    if not parallel.dp and scenario.gpus % others == 0:
        parallel = parallel.model_copy(update={"dp": scenario.gpus // others})
    ranks, ep = parallel.tp * parallel.cp * parallel.dp, parallel.ep
    if scenario.model.moe and parallel.etp is None and ranks % (ep * parallel.tp) and ranks % ep == 0:
        parallel = parallel.model_copy(update={"etp": 1})
    return parallel


def complete_pipeline(scenario: ScenarioFields) -> Pipeline:
    """Return the pipeline section after evaluating a layout and a schedule function, if the section has them."""
    try:
        pipeline, training = _apply_layout(scenario), scenario.training
    except InputError as error:
        raise RuleError([(("pipeline", "layout"), str(error))]) from None
    name, together = pipeline.schedule, scenario.parallel.dp * training.micro_batch
    if not isinstance(name, str) or not is_function_reference(name):
        return pipeline
    if not together or training.global_batch % together:
        return pipeline  # the rules complain
    counts = scenario.parallel.pp, scenario.microbatches, pipeline.chunks
    try:
        rows = RowsSpec.from_schedule(make_schedule(load_schedule_function(name), *counts))
    except InputError as error:
        raise RuleError([(("pipeline", "schedule"), str(error))]) from None
    return pipeline.model_copy(update={"schedule": rows, "chunks": 1})


def _apply_layout(scenario: ScenarioFields) -> Pipeline:
    pipeline, pp = scenario.pipeline, scenario.parallel.pp
    if pipeline.layout is None:
        return pipeline
    layout = StageLayout.parse(pipeline.layout)
    counts, chunks, layers = layout.decoder_layers, layout.chunks_per_stage(pp), scenario.model.layers
    layout.check_multi_token_layers(scenario.model.mtp_layers or 0, pp)
    if sum(counts) != layers:
        raise InputError(f"has {sum(counts)} decoder layers (t), but model.layers is {layers}; make them equal")
    if pipeline.layers_per_stage not in ("even", counts):
        raise InputError("conflicts with layers_per_stage: both set the layers of each slice; keep one of the two")
    found: dict[str, object] = {"layers_per_stage": counts}
    if "schedule" not in pipeline.model_fields_set and chunks > 1:
        found["schedule"] = "interleaved"
    name = found.get("schedule", pipeline.schedule_name)
    if name in schedules_with("takes_chunks"):
        if pipeline.chunks not in (1, chunks):
            what = f"has {len(counts)} slices for pp {pp}, {chunks} per stage, but chunks is {pipeline.chunks}"
            raise InputError(f"{what}; remove chunks")
        found["chunks"] = chunks
    elif name in SCHEDULES and (route := SCHEDULES[str(name)].route) and len(route(pp, 1)) != len(counts):
        what = f"has {len(counts)} slices for pp {pp}, but {name} has {len(route(pp, 1))}"
        raise InputError(f"{what}; use another number of slices, or a schedule with chunks, such as interleaved")
    return pipeline.model_copy(update=found)
