"""The difference in step time between two runs, by cause and by pipeline stage, and its description in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.tables import rows_to_frame
from simcluster.base.units import format_seconds, format_time_change
from simcluster.model.recipes import Recipe
from simcluster.results.link_upgrade import UpgradeLimit, find_scenario_limit
from simcluster.results.result import Result
from simcluster.results.result_file import SavedResult, is_result_file, read_result
from simcluster.results.slower_ranks import SlowerRank, describe_slower_ranks, find_slower_ranks
from simcluster.results.step_account import WAITING_ENTRIES, StepAccount, attribute_by_stage, attribute_difference
from simcluster.scenario.memory_plan import describe_recipe_change, recipe_of
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.step.simulate import ResultLike, simulate_scenario, to_result
from simcluster.studies.whatif import unexpected_slowdown

if TYPE_CHECKING:
    import pandas as pd

Comparable = ResultLike | SavedResult

_EXPLAINED = 0.95  # part of all that changed, up to which causes are reported
_MAX_CAUSES = 5
_ROUNDING = 1e-9  # of a step: some ticks of the clock
_STANDS_OUT = 0.05  # of the difference: how much more one stage's work must grow than the others'

CAUSE_TEXTS = {
    "forward": "forward compute",
    "backward": "backward compute",
    "recompute": "recomputing activations",
    "optimizer": "the optimizer",
    "checkpoint": "a checkpoint that training waits for",
    "data": "waiting for the data loader",
    "validation": "validation",
    "offload": "waiting for offload copies",
    "other": "other work",
    "interference": "compute slowed by concurrent communication",
    "bubble": "pipeline bubble",
    "straggler_wait": "waiting for delayed members of a group",
}
_REASONS = {
    "traffic": "{axis} communication itself (bytes, algorithm, link rates)",
    "hiding": "{axis} communication: overlap with compute",
    "contention": "{axis} communication sharing links",
}


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A scenario setting that differs between two runs, and its value in each run (None if not set)."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class RunDifference(Displayable):
    """Difference in step time (s) between two runs, ``other`` minus ``base``, by cause.

    ``seconds_by_cause`` and every stage's entries sum to ``seconds``; ``seconds_by_stage`` is empty if stages differ in
    number. ``recipe`` is the change in bytes per parameter, named or following from the precision. ``limiting_links``
    are those in series with links faster in ``other``, if both are results and not saved; ``slower_ops``, the ops that
    take longer on its longest path if it is slower although all that differs is faster; ``slower_ranks``, ranks whose
    work changes more than that of the others of their stage, on GPUs of the names ``gpu_names``.
    """

    names: tuple[str, str]
    base: StepAccount
    other: StepAccount
    settings: tuple[ChangedSetting, ...]
    recipe: RecipeChange | None = None
    limiting_links: UpgradeLimit | None = None
    slower_ops: tuple[unexpected_slowdown.SlowerOps, ...] = ()
    slower_ranks: tuple[SlowerRank, ...] = ()
    gpu_names: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Step time of ``other`` minus step time of ``base`` (s)."""
        return self.other.step_time - self.base.step_time

    @cached_property
    def seconds_by_cause(self) -> dict[str, float]:
        """Difference in seconds per step, by cause (``results.step_account.CAUSES``)."""
        return attribute_difference(self.base, self.other)

    @cached_property
    def seconds_by_stage(self) -> list[dict[str, float]]:
        """Difference in seconds per step, for each stage and each entry of the time breakdown."""
        return attribute_by_stage(self.base, self.other)

    @property
    def table(self) -> pd.DataFrame:
        """Table with one row per cause, largest first: seconds per step, and fraction of the base run's step time."""
        ordered = sorted(self.seconds_by_cause.items(), key=lambda cause: -abs(cause[1]))
        rows = [{"cause": name, "seconds": each, "of_base": each / self.base.step_time} for name, each in ordered]
        return rows_to_frame(rows, index="cause")

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as JSON-ready values, in seconds per step."""
        return {
            "base": {"name": self.names[0], "step_time_s": self.base.step_time},
            "other": {"name": self.names[1], "step_time_s": self.other.step_time},
            "difference_s": self.seconds,
            "causes_s": dict(self.seconds_by_cause),
            "stages_s": [dict(stage) for stage in self.seconds_by_stage],
            "settings": [asdict(setting) for setting in self.settings],
            "recipe": self.recipe and self.recipe.to_dict(),
            "held_back": self.limiting_links and self.limiting_links.to_dict(),
            "longer_on_path": [each.to_dict() for each in self.slower_ops],
            "ranks": [each.to_dict() | {"gpu": self.gpu_names[each.rank]} for each in self.slower_ranks],
            "in_words": self.describe(),
        }

    def describe(self) -> str:
        """Return a short paragraph: the difference, its main causes, and the stage with the largest change."""
        second, (base, other) = format_seconds(self.other.step_time), self.names
        if not self.seconds:
            return f"{other} takes {second} per step, exactly as long as {base}."
        share, slower = abs(self.seconds) / self.base.step_time, "longer" if self.seconds > 0 else "less"
        before, change = format_seconds(self.base.step_time), format_seconds(abs(self.seconds))
        compared = f": {change} ({share:.1%}) {slower} than {base} ({before})"
        compared = f", equal to {base} within a billionth" if share < _ROUNDING else compared
        said = [f"{other} takes {second} per step{compared}."]
        for what, sign in (("longer", 1), ("less", -1)):
            main = [f"{_cause_text(n, s)} {format_time_change(s)}" for n, s in self._list_main_causes() if sign * s > 0]
            said += [f"What takes {what}: {', '.join(main)}."] if main else []
        said += [self.recipe.describe()] if self.recipe else []
        said += [self._describe_main_stage()] if share >= _ROUNDING else []
        said += [describe_slower_ranks(self.slower_ranks, self.gpu_names)]
        said += [unexpected_slowdown.describe_unexpected_slowdown(self.slower_ops)]
        return " ".join(filter(None, said))

    def _list_main_causes(self) -> list[tuple[str, float]]:
        ordered = sorted(self.seconds_by_cause.items(), key=lambda item: -abs(item[1]))
        whole, found, covered = sum(abs(seconds) for _, seconds in ordered), [], 0.0
        for name, seconds in ordered[:_MAX_CAUSES]:
            if not seconds or covered > _EXPLAINED * whole:
                break
            found.append((name, seconds))
            covered += abs(seconds)
        return found

    def _describe_main_stage(self) -> str:
        own = [sum(s for name, s in stage.items() if name not in WAITING_ENTRIES) for stage in self.seconds_by_stage]
        if len(own) < 2 or self.seconds <= 0:
            return ""
        most = max(own)
        stage = own.index(most)
        others = fmean(own[:stage] + own[stage + 1 :])
        if most - others <= _STANDS_OUT * self.seconds:
            return ""
        return (
            f"The work of stage {stage} changes most, by {format_time_change(most)}; the work of the others by "
            f"{format_time_change(others)} on average."
        )


def explain_difference(base: Comparable, other: Comparable) -> RunDifference:
    """Explain by cause why a step of ``other`` takes longer than a step of ``base`` (scenarios, files or results).

    Raises InputError for a file that is neither a scenario nor a saved result of this version.
    """
    (name, one, before), (other_name, two, after) = map(_load_run, (base, other))
    first, second = (
        each.document if isinstance(each, SavedResult) else each.scenario.document() for each in (before, after)
    )
    names = ("A", "B") if name == other_name else (name, other_name)
    settings = tuple(list_changed_settings(first, second))
    recipe = find_recipe_change(first, second, one.step_time)
    if isinstance(before, SavedResult) or isinstance(after, SavedResult):
        return RunDifference(names, one, two, settings, recipe)
    held = find_scenario_limit(before.scenario, after.scenario, after)
    longer = unexpected_slowdown.find_unexpected_slowdown(before, after, before.scenario, after.scenario)
    slower = find_slower_ranks(before, after)
    gpus = after.scenario.cluster.built.gpus if slower else ()
    return RunDifference(names, one, two, settings, recipe, held, tuple(longer), tuple(slower), gpus)


def _load_run(run: Comparable) -> tuple[str, StepAccount, SavedResult | Result]:
    if isinstance(run, str | Path) and is_result_file(run):
        run = read_result(run)
    if isinstance(run, SavedResult):
        return run.name, run.account, run
    result = to_result(run, "diff")
    return result.scenario.name, result.account, result


def list_changed_settings(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[ChangedSetting]:
    """Yield the settings that differ between two scenario documents, except names, in the order of the keys."""
    before, after = dict(_settings_with_paths(base)), dict(_settings_with_paths(other))
    for path in dict.fromkeys((*before, *after)):
        if path.partition(".")[0] not in ("name", "measured") and before.get(path) != after.get(path):
            yield ChangedSetting(path, before.get(path), after.get(path))


def _settings_with_paths(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _settings_with_paths(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _cause_text(cause: str, seconds: float) -> str:
    axis, _, reason = cause.rpartition("_")
    if reason != "hiding":
        return describe_cause(cause)
    return f"{axis} communication that compute {'no longer' if seconds > 0 else 'now'} hides"


def describe_cause(cause: str) -> str:
    """Return the name of a cause in words, such as "pipeline bubble" or "tp communication sharing links"."""
    axis, _, reason = cause.rpartition("_")
    return _REASONS[reason].format(axis=axis) if reason in _REASONS else CAUSE_TEXTS[cause]


@dataclass(frozen=True, slots=True)
class RecipeChange:
    """Difference between the memory recipes (bytes per parameter) of two scenarios.

    ``follows_precision`` if neither names one. ``step_time_change`` (s) is what the second one's recipe alone adds to
    the first one's step, as simulated; None where nothing else differs, or where that is not possible.
    """

    before: Recipe
    after: Recipe
    follows_precision: bool
    step_time_change: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON-ready values."""
        names = {"before": self.before.name, "after": self.after.name}
        return {**names, "default": self.follows_precision, "alone_s": self.step_time_change}

    def describe(self) -> str:
        """Describe the change of memory recipe, and its effect on the step time if known, in one or two sentences."""
        why = ", which follows from the precision" if self.follows_precision else ""
        change = describe_recipe_change(self.before, self.after)
        text = f"The memory recipe changes from {self.before.name} to {self.after.name}{why}: {change}."
        if self.step_time_change is None:
            return text
        sense = "longer" if self.step_time_change > 0 else "shorter"
        return f"{text} This alone makes a step {format_seconds(abs(self.step_time_change))} {sense}."


def find_recipe_change(base: Mapping[str, Any], other: Mapping[str, Any], step_time: float) -> RecipeChange | None:
    """Return the difference between the memory recipes of two scenario documents; None if they are equal.

    None also if a document cannot be read. ``step_time`` is the step time of ``base`` in seconds.
    """
    try:
        first, second = from_document(base), from_document(other)
    except InputError:  # a saved result of files that are elsewhere
        return None
    before, after = recipe_of(first), recipe_of(second)
    if before == after:
        return None
    default = first.training.memory_recipe is None and second.training.memory_recipe is None
    return RecipeChange(before, after, default, _simulate_recipe_effect(first, second, step_time))


def _simulate_recipe_effect(first: Scenario, second: Scenario, step_time: float) -> float | None:
    name = recipe_of(second).name
    try:
        changed = from_document(first.document(), [("training.memory_recipe", name)])
    except InputError:  # a recipe that the rest of the scenario cannot have
        return None
    named = second.model_copy(update={"training": second.training.model_copy(update={"memory_recipe": name})})
    if _document_without_name(changed) == _document_without_name(named):
        return None
    return simulate_scenario(changed).step_time - step_time


def _document_without_name(scenario: Scenario) -> dict[str, Any]:
    return {key: value for key, value in scenario.document().items() if key not in ("name", "measured")}
