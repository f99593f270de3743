"""One-line reprs of long-run results, and lists of built-in failure sets, loss laws and ``advise`` questions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import format_count
from simcluster.base.display import clip_line
from simcluster.base.units import DAY
from simcluster.documents.catalogue import load_presets
from simcluster.longrun.text_formats import format_flop
from simcluster.show.repr_lines import repr_line

if TYPE_CHECKING:
    from simcluster.longrun.budget.training_estimate import TrainingEstimate
    from simcluster.longrun.launch.first_scenario import FirstScenario
    from simcluster.longrun.launch.launch_check import LaunchCheck
    from simcluster.longrun.scaling.scaling_result import ScalingResult
    from simcluster.longrun.studies.policy_comparison import PolicyComparison
    from simcluster.longrun.studies.training import StagedTraining
    from simcluster.longrun.studies.training_run import TrainingRun


def _format_first_scenario(found: FirstScenario) -> str:
    return repr_line(found, found.scenario.title, f"{found.scenario.gpus:,} GPUs", clip_line(found.summary(), 90))


def _format_launch_checklist(found: LaunchCheck) -> str:
    bad = f"failed: {', '.join(found.failed)}" if found.failed else ""
    return repr_line(
        found, found.result.scenario.title, found.verdict, f"{len(found.points)} points", clip_line(bad, 80)
    )


def _format_training(training: TrainingRun | StagedTraining) -> str:
    runs = f"{training.played:,} run{'s' * (training.played > 1)}"
    parts = f"{float(training.wall.mean()) / DAY:,.4g} days", f"goodput {training.goodput:.2%}", runs
    return repr_line(training, training.scenario.title, *parts)


def _format_policy_comparison(found: PolicyComparison) -> str:
    return repr_line(found, f"{len(found.runs)} policies", f"{found.played:,} runs of each",
                  f"best {clip_line(found.best, 60)}")  # fmt: skip


def _format_training_estimate(found: TrainingEstimate) -> str:
    tokens = "" if found.tokens is None else f"{format_count(found.tokens)} tokens"
    return repr_line(found, f"{format_count(found.parameters)} parameters", tokens, found.device, found.precision)


def _format_scaling(found: ScalingResult) -> str:
    asked, best, goal = found.request, found.best, found.to_loss
    parts = [asked.law.name, *([asked.model] if asked.model else [])]
    if found.compute is not None and best is not None:
        size = f"{format_count(best.parameters)} on {format_count(best.tokens)} tokens"
        parts.append(f"{format_flop(found.compute)}: {size}")
    if asked.loss is not None:
        takes = (
            "" if goal is None else ": never" if math.isinf(goal.tokens) else f": {format_count(goal.tokens)} tokens"
        )
        parts.append(f"loss {asked.loss:.4g}{takes}")
    return f"ScalingResult({', '.join(parts)})"


LINES: Mapping[str, Callable[[Any], str]] = {
    "Advice": lambda found: f"Advice({found.question}: {found.sentence})",
    "FailureReplay": lambda found: repr_line(
        found, found.name, f"{found.last_training.days:,.4g} days", f"goodput {found.last_training.goodput:.2%}"
    ),
    "FirstScenario": _format_first_scenario,
    "LaunchCheck": _format_launch_checklist,
    "PolicyComparison": _format_policy_comparison,
    "ScalingResult": _format_scaling,
    "StagedTraining": _format_training,
    "TrainingRun": _format_training,
    "TrainingEstimate": _format_training_estimate,
}


def list_failures() -> Iterator[tuple[str, str, str]]:
    """Yield name, description and source of each built-in failure set, for ``simcluster list``."""
    from simcluster.longrun.failure_catalogue import published_failures

    for each in published_failures():
        yield each.name, f"{len(each.causes)} cause{'s' * (len(each.causes) != 1)}: {each.holds}", each.source


def list_loss_laws() -> Iterator[tuple[str, str, str]]:
    """Yield name, description and source of each built-in loss law, for ``simcluster list``."""
    for name, entry in load_presets("loss_laws.yaml").items():
        numbers = ", ".join(f"{key} {value:g}" for key, value in entry.items() if isinstance(value, int | float))
        yield name, f"form {entry['form']}: {numbers}", str(entry.get("source", ""))


def list_advice_questions() -> Iterator[tuple[str, str, str]]:
    """Yield name and description of each question of ``simcluster advise``, for ``simcluster list``."""
    from simcluster.longrun.studies.advice import ADVICE
    from simcluster.show.registry.kinds import first_sentence

    for name, each in ADVICE.items():
        yield name, first_sentence(inspect.getdoc(each) or ""), ""
