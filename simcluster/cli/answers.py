"""Text of the package's result objects in print and notebooks, by class name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from simcluster.base.satellites import load_object
from simcluster.base.shown import Displayable
from simcluster.base.units import format_bytes, format_seconds
from simcluster.cli.common import bold_line
from simcluster.show.blocks import Answer, Lines, blocks_text
from simcluster.show.step_answer import describe_job

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario
    from simcluster.studies.bench.collective import CollectiveTime
    from simcluster.topology import Cluster

ANSWERS: Mapping[str, str] = {
    "Advice": "longrun.studies.comparison_answers:advice_answer",
    "Cluster": "cli.answers:cluster_answer",
    "CollectiveTime": "cli.answers:collective_answer",
    "CriticalPath": "show.explanation:describe_critical_path",
    "Difference": "show.study_answers:describe_difference",
    "Distribution": "show.explanation:describe_distribution",
    "FailureReplay": "longrun.studies.comparison_answers:replay_answer",
    "FirstScenario": "longrun.launch.first:first_scenario_answer",
    "Found": "show.plan_answer:describe_plan",
    "JobMemory": "cli.memory:job_answer",
    "LaunchCheck": "longrun.launch.check:check_answer",
    "MeanDifference": "show.explanation:describe_mean_difference",
    "TimedSchedule": "cli.schedule_report:schedule_answer",
    "PolicyComparison": "longrun.studies.comparison_answers:policies_answer",
    "Records": "cli.answers:records_answer",
    "Report": "evidence.commands.validate:study_answer",
    "Result": "show.step_answer:describe_step",
    "Run": "show.step_answer:describe_run",
    "Scenario": "cli.answers:scenario_answer",
    "Scaling": "longrun.scaling.answer:scaling_answer",
    "StagedTraining": "longrun.studies.training_answer:staged_answer",
    "StateLadder": "cli.memory:ladder_answer",
    "Stragglers": "show.study_answers:describe_stragglers",
    "Straggling": "interop.commands.replay:straggler_blocks",
    "TrainingRun": "longrun.studies.training_answer:training_answer",
    "Walls": "longrun.budget.walls:walls_answer",
}
"""The function that returns the blocks, by the name of the class."""


def scenario_answer(scenario: Scenario) -> Answer:
    """Return the blocks that describe a scenario."""
    model = scenario.model
    kind = f"{model.layers:,} layers of {model.hidden_size:,}, {model.heads} heads"
    head, *rest = describe_job(scenario)
    return [Lines([head, kind, *rest], "head")]


def cluster_answer(cluster: Cluster) -> Answer:
    """Return the blocks that describe a cluster."""
    from simcluster.studies.bench.describe import measure_cluster

    return [Lines(measure_cluster(cluster).lines(), "layout")]


def collective_answer(time: CollectiveTime) -> Answer:
    """Return the blocks that describe a timed collective."""
    busbw = f", bus bandwidth {time.busbw / 1e9:.1f} GB/s" if time.duration > 0 else ""
    what = f"{time.kind} of {format_bytes(time.size)} on {len(time.gpus):,} GPUs: {format_seconds(time.duration)}"
    return [Lines([f"{what}{busbw}; algorithm {time.algorithm}, detail {time.detail}"])]


def records_answer(found: Any) -> Answer:
    """Return the text block that lists several objects, one per line."""
    return [Lines([*map(repr, found)], "layout")]


def build_answer(it: object) -> Answer:
    """Return the text blocks of an object whose class is in ``ANSWERS``."""
    found: Answer = next(
        load_object(ANSWERS[each.__name__])(it) for each in type(it).__mro__ if each.__name__ in ANSWERS
    )
    return found


def _summary_if_defined(it: Any) -> str | None:
    return str(it.summary()) if getattr(type(it), "summary", Displayable.summary) is not Displayable.summary else None


TEXTS: Mapping[str, Callable[[Any], str | None]] = {
    **dict.fromkeys(ANSWERS, lambda it: blocks_text(build_answer(it), bold=bold_line)),
    "": _summary_if_defined,
}
"""The text of an object by the name of its class; "" for all others."""
