"""Text output of result objects, by class name, for ``print`` and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from simcluster.base.display import Displayable
from simcluster.base.satellites import load_object
from simcluster.base.units import format_bytes, format_seconds
from simcluster.cli.common import make_bold
from simcluster.show.output_blocks import OutputBlocks, TextLines, render_as_text
from simcluster.show.step_answer import describe_job

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario
    from simcluster.studies.bench.collective import CollectiveTime
    from simcluster.topology import Cluster

ANSWERS: Mapping[str, str] = {
    "Advice": "longrun.studies.comparison_answers:advice_answer",
    "Cluster": "cli.answers:cluster_blocks",
    "CollectiveTime": "cli.answers:collective_blocks",
    "CriticalPath": "show.explanation:describe_critical_path",
    "RunDifference": "show.study_answers:describe_difference",
    "Distribution": "show.explanation:describe_distribution",
    "FailureReplay": "longrun.studies.comparison_answers:replay_answer",
    "FirstScenario": "longrun.launch.first_scenario:first_scenario_answer",
    "PlanResult": "show.plan_answer:describe_plan",
    "JobMemory": "cli.memory:job_memory_blocks",
    "LaunchCheck": "longrun.launch.launch_check:check_answer",
    "MeanDifference": "show.explanation:describe_mean_difference",
    "TimedSchedule": "cli.schedule_report:schedule_text_blocks",
    "PolicyComparison": "longrun.studies.comparison_answers:policies_answer",
    "Records": "cli.answers:records_blocks",
    "Report": "evidence.commands.validate:study_report_blocks",
    "Result": "show.step_answer:describe_step",
    "Run": "show.step_answer:describe_run",
    "Scenario": "cli.answers:scenario_blocks",
    "ScalingResult": "longrun.scaling.printed_answer:scaling_answer",
    "StagedTraining": "longrun.studies.training_answer:staged_answer",
    "ModelStateLadder": "cli.memory:zero_stage_blocks",
    "StragglerCosts": "show.study_answers:describe_stragglers",
    "StragglerMetrics": "interop.commands.replay:straggler_blocks",
    "TrainingRun": "longrun.studies.training_answer:training_answer",
    "TrainingEstimate": "longrun.budget.training_estimate:training_estimate_answer",
}
"""The function that returns the blocks, by the name of the class."""


def scenario_blocks(scenario: Scenario) -> OutputBlocks:
    """Return the printed description of a scenario as text blocks."""
    model = scenario.model
    kind = f"{model.layers_text} layers of {model.hidden_size:,}, {model.heads} heads"
    head, *rest = describe_job(scenario)
    return [TextLines([head, kind, *rest], "head")]


def cluster_blocks(cluster: Cluster) -> OutputBlocks:
    """Return the printed description of a cluster as text blocks."""
    from simcluster.studies.bench.cluster_measurement import measure_cluster

    return [TextLines(measure_cluster(cluster).format_lines(), "layout")]


def collective_blocks(time: CollectiveTime) -> OutputBlocks:
    """Return the printed result of a simulated collective as text blocks."""
    busbw = f", bus bandwidth {time.busbw / 1e9:.1f} GB/s" if time.duration > 0 else ""
    what = f"{time.kind} of {format_bytes(time.size)} on {len(time.gpus):,} GPUs: {format_seconds(time.duration)}"
    return [TextLines([f"{what}{busbw}; algorithm {time.algorithm}, detail {time.detail}"])]


def records_blocks(records: Any) -> OutputBlocks:
    """Return a list of objects as a text block with one line per object."""
    return [TextLines([*map(repr, records)], "layout")]


def build_text_blocks(answer: object) -> OutputBlocks:
    """Return the printed output of an object as text blocks, by its class's function in ``ANSWERS``."""
    name = next(each.__name__ for each in type(answer).__mro__ if each.__name__ in ANSWERS)
    found: OutputBlocks = load_object(ANSWERS[name])(answer)
    return found


def _summary_if_defined(it: Any) -> str | None:
    return str(it.summary()) if getattr(type(it), "summary", Displayable.summary) is not Displayable.summary else None


TEXTS: Mapping[str, Callable[[Any], str | None]] = {
    **dict.fromkeys(ANSWERS, lambda it: render_as_text(build_text_blocks(it), bold=make_bold)),
    "": _summary_if_defined,
}
"""The text of an object by the name of its class; "" for all others."""
