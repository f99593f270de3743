"""The difference between two runs: by cause, by stage, and described in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.shown import Displayable
from simcluster.base.tables import rows_to_frame
from simcluster.base.units import format_change, format_seconds
from simcluster.model.recipes import Recipe
from simcluster.results.account import WAITING_ENTRIES, Account, attribute_difference, stage_differences
from simcluster.results.file import SavedResult, is_result_file, read_result
from simcluster.results.longer import SlowerOps
from simcluster.results.raised import UpgradeLimit, find_limit_between
from simcluster.results.result import Result
from simcluster.results.slower_ranks import SlowerRank, describe_slower_ranks, find_slower_ranks
from simcluster.scenario.memory_plan import describe_change, recipe_of
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.step.simulate import ResultLike, simulate_scenario, to_result
from simcluster.studies.whatif.only_faster import describe_unexpected_slowdown, find_unexpected_slowdown

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
    "hiding": "{axis} communication: how much compute hides",
    "contention": "{axis} communication sharing links",
}


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A scenario setting (dotted path) with its two values; None where it is not set."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Difference(Displayable):
    """The seconds by which a step of ``other`` is longer than one of ``base``, and their causes.

    ``causes`` and every stage's entries sum to ``seconds``; ``stages`` is empty where their numbers differ. ``recipe``
    is the change in bytes per parameter, named or following from the precision. ``held`` names the links in series with
    links that are faster in ``other``, where both are results and not saved ones, ``longer`` the ops that take longer
    on its longest path where it is slower although all that differs is faster, and ``slower`` the ranks whose work
    changes more than that of the others of their stage, on GPUs of the names ``gpus``.
    """

    names: tuple[str, str]
    base: Account
    other: Account
    settings: tuple[ChangedSetting, ...]
    recipe: RecipeChange | None = None
    held: UpgradeLimit | None = None
    longer: tuple[SlowerOps, ...] = ()
    slower: tuple[SlowerRank, ...] = ()
    gpus: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Difference of the step times (s); negative where ``other`` is faster."""
        return self.other.step_time - self.base.step_time

    @cached_property
    def causes(self) -> dict[str, float]:
        """Difference in seconds per step, by cause (``attribution.CAUSES``)."""
        return attribute_difference(self.base, self.other)

    @cached_property
    def stages(self) -> list[dict[str, float]]:
        """Difference in seconds per step by stage and entry of the breakdown."""
        return stage_differences(self.base, self.other)

    @property
    def table(self) -> pd.DataFrame:
        """Table with one row per cause, the largest first: seconds per step, and as a fraction of ``base``."""
        ordered = sorted(self.causes.items(), key=lambda cause: -abs(cause[1]))
        rows = [{"cause": name, "seconds": each, "of_base": each / self.base.step_time} for name, each in ordered]
        return rows_to_frame(rows, index="cause")

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as JSON-ready values, in seconds per step."""
        return {
            "base": {"name": self.names[0], "step_time_s": self.base.step_time},
            "other": {"name": self.names[1], "step_time_s": self.other.step_time},
            "difference_s": self.seconds,
            "causes_s": dict(self.causes),
            "stages_s": [dict(stage) for stage in self.stages],
            "settings": [asdict(setting) for setting in self.settings],
            "recipe": self.recipe and self.recipe.to_dict(),
            "held_back": self.held and self.held.to_dict(),
            "longer_on_path": [each.to_dict() for each in self.longer],
            "ranks": [each.to_dict() | {"gpu": self.gpus[each.rank]} for each in self.slower],
            "in_words": self.in_words(),
        }

    def in_words(self) -> str:
        """Return a short paragraph: the difference, its main causes, and the stage that changes most, if any."""
        second, (base, other) = format_seconds(self.other.step_time), self.names
        if not self.seconds:
            return f"{other} takes {second} per step, exactly as long as {base}."
        share, slower = abs(self.seconds) / self.base.step_time, "longer" if self.seconds > 0 else "less"
        before, change = format_seconds(self.base.step_time), format_seconds(abs(self.seconds))
        compared = f": {change} ({share:.1%}) {slower} than {base} ({before})"
        compared = f", as long as {base} to a billionth" if share < _ROUNDING else compared
        said = [f"{other} takes {second} per step{compared}."]
        for what, sign in (("longer", 1), ("less", -1)):
            causes = [f"{_cause_text(n, s)} {format_change(s)}" for n, s in self._main_causes() if sign * s > 0]
            said += [f"What takes {what}: {', '.join(causes)}."] if causes else []
        said += [self.recipe.describe()] if self.recipe else []
        said += [self._describe_main_stage()] if share >= _ROUNDING else []
        return " ".join(
            filter(
                None, (*said, describe_slower_ranks(self.slower, self.gpus), describe_unexpected_slowdown(self.longer))
            )
        )

    def _main_causes(self) -> list[tuple[str, float]]:
        ordered = sorted(self.causes.items(), key=lambda item: -abs(item[1]))
        whole, found, covered = sum(abs(seconds) for _, seconds in ordered), [], 0.0
        for name, seconds in ordered[:_MAX_CAUSES]:
            if not seconds or covered > _EXPLAINED * whole:
                break
            found.append((name, seconds))
            covered += abs(seconds)
        return found

    def _describe_main_stage(self) -> str:
        own = [sum(seconds for name, seconds in stage.items() if name not in WAITING_ENTRIES) for stage in self.stages]
        if len(own) < 2 or self.seconds <= 0:
            return ""
        most = max(own)
        stage = own.index(most)
        others = fmean(own[:stage] + own[stage + 1 :])
        if most - others <= _STANDS_OUT * self.seconds:
            return ""
        return (
            f"The work of stage {stage} changes most, by {format_change(most)}; that of the others changes by "
            f"{format_change(others)} on average."
        )


def diff(base: Comparable, other: Comparable) -> Difference:
    """Explain why a step of ``other`` takes longer than one of ``base``: scenarios, files, results, or saved results.

    Raises InputError for a file that is neither a scenario nor a saved result of this version.
    """
    (name, one, before), (other_name, two, after) = map(_load_side, (base, other))
    first, second = (
        each.document if isinstance(each, SavedResult) else each.scenario.document() for each in (before, after)
    )
    names = ("A", "B") if name == other_name else (name, other_name)
    settings = tuple(changed_settings(first, second))
    recipe = recipe_change(first, second, one.step_time)
    if isinstance(before, SavedResult) or isinstance(after, SavedResult):
        return Difference(names, one, two, settings, recipe)
    held = find_limit_between(before.scenario, after.scenario, after)
    longer = find_unexpected_slowdown(before, after, before.scenario, after.scenario)
    slower = find_slower_ranks(before, after)
    gpus = after.scenario.cluster.built.gpus if slower else ()
    return Difference(names, one, two, settings, recipe, held, tuple(longer), tuple(slower), gpus)


def _load_side(side: Comparable) -> tuple[str, Account, SavedResult | Result]:
    if isinstance(side, str | Path) and is_result_file(side):
        side = read_result(side)
    if isinstance(side, SavedResult):
        return side.name, side.account, side
    result = to_result(side, "diff")
    return result.scenario.name, result.account, result


def changed_settings(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[ChangedSetting]:
    """Yield the settings that differ between two scenario documents, except names, in the order of their keys."""
    before, after = dict(_leaves_with_paths(base)), dict(_leaves_with_paths(other))
    for path in dict.fromkeys((*before, *after)):
        if path.partition(".")[0] not in ("name", "measured") and before.get(path) != after.get(path):
            yield ChangedSetting(path, before.get(path), after.get(path))


def _leaves_with_paths(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves_with_paths(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _cause_text(cause: str, seconds: float) -> str:
    axis, _, reason = cause.rpartition("_")
    if reason != "hiding":
        return describe_cause(cause)
    return f"{axis} communication that compute {'no longer' if seconds > 0 else 'now'} hides"


def describe_cause(cause: str) -> str:
    """Describe a cause of a difference, as in "pipeline bubble" or "tp communication sharing links"."""
    axis, _, reason = cause.rpartition("_")
    return _REASONS[reason].format(axis=axis) if reason in _REASONS else CAUSE_TEXTS[cause]


@dataclass(frozen=True, slots=True)
class RecipeChange:
    """Change of the memory recipe (bytes per parameter) between two scenarios.

    ``default`` if neither names one. ``alone`` is by how many seconds the first one's step is longer with the second
    one's recipe and nothing else changed, as simulated; None where nothing else differs, or where that is not possible.
    """

    before: Recipe
    after: Recipe
    default: bool
    alone: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON-ready values."""
        return {"before": self.before.name, "after": self.after.name, "default": self.default, "alone_s": self.alone}

    def describe(self) -> str:
        """Describe the change in one or two sentences."""
        why = ", which follows from the precision" if self.default else ""
        change = describe_change(self.before, self.after)
        text = f"Another recipe, {self.after.name} for {self.before.name}{why}: {change}."
        if self.alone is None:
            return text
        sense = "longer" if self.alone > 0 else "less"
        return f"{text} That alone takes {format_seconds(abs(self.alone))} {sense}."


def recipe_change(base: Mapping[str, Any], other: Mapping[str, Any], step_time: float) -> RecipeChange | None:
    """Return the change of memory recipe between two scenario documents; None if there is none.

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
    return RecipeChange(before, after, default, _recipe_effect(first, second, step_time))


def _recipe_effect(first: Scenario, second: Scenario, step_time: float) -> float | None:
    name = recipe_of(second).name
    try:
        changed = from_document(first.document(), [("training.memory_recipe", name)])
    except InputError:  # a recipe that the rest of the scenario cannot have
        return None
    named = second.model_copy(update={"training": second.training.model_copy(update={"memory_recipe": name})})
    if _step_document(changed) == _step_document(named):
        return None
    return simulate_scenario(changed).step_time - step_time


def _step_document(scenario: Scenario) -> dict[str, Any]:
    return {key: value for key, value in scenario.document().items() if key not in ("name", "measured")}
