"""What Python shows of long runs, budgets and first scenarios: a line, or the text of the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import format_count
from simcluster.base.shown import clipped
from simcluster.base.units import DAY
from simcluster.results.assumptions import assumed_lines
from simcluster.show.lines import named

if TYPE_CHECKING:
    from simcluster.longrun.budget.walls import Walls
    from simcluster.longrun.launch.check import LaunchCheck
    from simcluster.longrun.launch.first import FirstScenario
    from simcluster.longrun.studies.advised import Advice
    from simcluster.longrun.studies.comparing import PolicyComparison
    from simcluster.longrun.studies.replays import FailureReplay
    from simcluster.longrun.studies.train_stages import StagedTraining
    from simcluster.longrun.studies.training_run import TrainingRun


def _first(found: FirstScenario) -> str:
    return named(found, found.scenario.title, f"{found.scenario.gpus:,} GPUs", clipped(found.summary(), 90))


def _check(found: LaunchCheck) -> str:
    bad = f"failed: {', '.join(found.failed)}" if found.failed else ""
    return named(found, found.result.scenario.title, found.verdict, f"{len(found.points)} points", clipped(bad, 80))


def _weeks(training: TrainingRun | StagedTraining, seconds: float) -> str:
    runs = f"{training.played:,} run{'s' * (training.played > 1)}"
    parts = f"{seconds / DAY:,.4g} days", f"goodput {training.goodput:.2%}", runs
    return named(training, training.scenario.title, *parts)


def _training(training: TrainingRun) -> str:
    return _weeks(training, float(training.outcomes.wall.mean()))


def _staged(training: StagedTraining) -> str:
    return _weeks(training, float(training.wall.mean()))


def _replay(found: FailureReplay) -> str:
    last = found.last
    return named(found, found.name, f"{last.days:,.4g} days", f"goodput {last.goodput:.2%}")


def _policies(found: PolicyComparison) -> str:
    return named(found, f"{len(found.runs)} policies", f"{found.played:,} runs of each",
                  f"best {clipped(found.best, 60)}")  # fmt: skip


def _advice(found: Advice) -> str:
    return f"Advice({found.question}: {found.sentence})"


def _walls(found: Walls) -> str:
    tokens = "" if found.tokens is None else f"{format_count(found.tokens)} tokens"
    return named(found, f"{format_count(found.parameters)} parameters", tokens, found.device, found.precision)


LINES: Mapping[str, Callable[[Any], str]] = {
    "Advice": _advice,
    "FailureReplay": _replay,
    "FirstScenario": _first,
    "LaunchCheck": _check,
    "PolicyComparison": _policies,
    "StagedTraining": _staged,
    "TrainingRun": _training,
    "Walls": _walls,
}


def _advice_text(found: Advice) -> str:
    return "\n".join(
        [found.question, found.sentence, *(f"  {note}" for note in found.notes), *assumed_lines(found.assumed)]
    )


def _policies_text(found: PolicyComparison) -> str:
    from simcluster.longrun.commands.policies_output import text_of

    return text_of(found)


TEXTS: Mapping[str, Callable[[Any], str]] = {
    "Advice": _advice_text,
    "FirstScenario": lambda found: str(found.text()),
    "PolicyComparison": _policies_text,
}
