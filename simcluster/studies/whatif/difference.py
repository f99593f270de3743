"""The difference of two runs, by cause, by stage and in words: what a person forwards to those who must decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.base.tables import frame_of
from simcluster.base.units import format_change, format_seconds
from simcluster.model.recipes import Recipe
from simcluster.results.account import WAITING, Account, attribute, stage_differences
from simcluster.results.file import Saved, is_saved, read_saved
from simcluster.results.longer import Longer
from simcluster.results.raised import HeldBack, held_between
from simcluster.results.result import Result
from simcluster.results.slower_ranks import SlowerRank, in_words, slower_ranks
from simcluster.scenario.memory_plan import change_words, recipe_of
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.step.simulate import ResultLike, replay, result_of
from simcluster.studies.whatif.only_faster import slower_although_faster, told

if TYPE_CHECKING:
    import pandas as pd

Side = ResultLike | Saved

_TOLD = 0.95  # causes are told until they make up so much of all that changed
_MOST_TOLD = 5
_ROUNDING = 1e-9  # of a step: some ticks of the clock
_STANDS_OUT = 0.05  # of the difference: by so much one stage's own work must grow more than the others'

PHRASES = {
    "forward": "forward compute",
    "backward": "backward compute",
    "recompute": "recomputing activations",
    "optimizer": "the optimizer",
    "checkpoint": "a checkpoint that training waits for",
    "data": "waiting for the data loader",
    "validation": "validation",
    "offload": "waiting for offload copies",
    "other": "other work",
    "interference": "compute slowed by communication beside it",
    "bubble": "pipeline bubble",
    "straggler_wait": "waiting for late members of a group",
}
_REASONS = {
    "traffic": "{axis} communication itself (bytes, algorithm, link rates)",
    "hiding": "{axis} communication: how much compute hides",
    "contention": "{axis} communication sharing links",
}


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A dotted path of the scenario with its two values; None where it is not set."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Difference(Shown):
    """By how many seconds a step of ``other`` is longer than one of ``base``, and why.

    ``causes`` and every stage's entries sum to ``seconds``; ``stages`` is empty where their numbers differ.
    ``recipe`` is what changes in bytes a parameter, named or following from the precision.  ``held`` says what is in
    series with links that are faster in ``other``, where both are results and not saved ones, ``longer`` what takes
    longer on its longest path where it is slower although all that differs is faster, and ``slower`` which ranks' own
    work changes more than that of the others of their stage, on GPUs of the names ``gpus``.
    """

    names: tuple[str, str]
    base: Account
    other: Account
    settings: tuple[ChangedSetting, ...]
    recipe: RecipeChange | None = None
    held: HeldBack | None = None
    longer: tuple[Longer, ...] = ()
    slower: tuple[SlowerRank, ...] = ()
    gpus: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds per step; negative where ``other`` is faster."""
        return self.other.step_time - self.base.step_time

    @cached_property
    def causes(self) -> dict[str, float]:
        """Seconds per step by cause (``attribution.CAUSES``)."""
        return attribute(self.base, self.other)

    @cached_property
    def stages(self) -> list[dict[str, float]]:
        """Seconds per step by stage and entry of the breakdown."""
        return stage_differences(self.base, self.other)

    @property
    def table(self) -> pd.DataFrame:
        """A row a cause, the largest first: its seconds per step, and what part of the step of ``base`` they are."""
        ordered = sorted(self.causes.items(), key=lambda cause: -abs(cause[1]))
        rows = [{"cause": name, "seconds": each, "of_base": each / self.base.step_time} for name, each in ordered]
        return frame_of(rows, index="cause")

    def to_dict(self) -> dict[str, Any]:
        """As JSON: seconds per step."""
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
        """A short paragraph: how much, by what, and on which stage most, if one stands out."""
        second, (base, other) = format_seconds(self.other.step_time), self.names
        if not self.seconds:
            return f"{other} takes {second} a step, exactly as long as {base}."
        share = abs(self.seconds) / self.base.step_time
        said = [f"{other} takes {second} a step{self._beside_base(share)}."]
        costs, gains = ([(n, s) for n, s in self._largest() if sign * s > 0] for sign in (1, -1))
        if costs:
            said.append(f"What takes longer: {_list(costs)}.")
        if gains:
            said.append(f"What takes less: {_list(gains)}.")
        said += [self.recipe.in_words()] if self.recipe else []
        most = self._most_changed() if share >= _ROUNDING else []
        more = filter(None, (in_words(self.slower, self.gpus), told(self.longer)))
        return " ".join([*said, *most, *more])

    def _beside_base(self, share: float) -> str:
        """How long that is beside the base, of whose step the difference is this part."""
        base, longer = self.names[0], format_seconds(abs(self.seconds))
        if share < _ROUNDING:
            return f", as long as {base} to a billionth"
        slower = "longer" if self.seconds > 0 else "less"
        return f": {longer} ({share:.1%}) {slower} than {base} ({format_seconds(self.base.step_time)})"

    def _largest(self) -> list[tuple[str, float]]:
        """The causes that make up nearly all of what changed, largest first."""
        ordered = sorted(self.causes.items(), key=lambda item: -abs(item[1]))
        whole, found, covered = sum(abs(seconds) for _, seconds in ordered), [], 0.0
        for name, seconds in ordered[:_MOST_TOLD]:
            if not seconds or covered > _TOLD * whole:
                break
            found.append((name, seconds))
            covered += abs(seconds)
        return found

    def _most_changed(self) -> Iterator[str]:
        """Which stage's own work grows most, if one stands out."""
        own = [sum(seconds for name, seconds in stage.items() if name not in WAITING) for stage in self.stages]
        if len(own) < 2 or self.seconds <= 0:
            return
        most = max(own)
        stage = own.index(most)
        others = fmean(own[:stage] + own[stage + 1 :])
        if most - others > _STANDS_OUT * self.seconds:
            yield (
                f"The own work of stage {stage} changes most, by {format_change(most)}; that of the others by "
                f"{format_change(others)} on average."
            )


def diff(base: Side, other: Side) -> Difference:
    """Why a step of ``other`` takes longer than one of ``base``: scenarios, their files, results, or saved results.

    Raises InputError for a file that is neither a scenario nor a saved result of this version.
    """
    one, two = _side(base), _side(other)
    names = ("A", "B") if one.name == two.name else (one.name, two.name)
    settings = tuple(settings_between(one.document, two.document))
    recipe = recipe_change(one.document, two.document, one.account.step_time)
    before, after = one.result, two.result
    held = held_between(before.scenario, after.scenario, after) if before and after else None
    longer = slower_although_faster(before, after, before.scenario, after.scenario) if before and after else []
    slower = slower_ranks(before, after) if before and after else []
    gpus = after.scenario.cluster.built.gpus if after and slower else ()
    return Difference(names, one.account, two.account, settings, recipe, held, tuple(longer), tuple(slower), gpus)


def settings_between(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[ChangedSetting]:
    """Where two documents differ, leaf by leaf, in the order of their keys; names are no settings."""
    before, after = dict(_leaves(base)), dict(_leaves(other))
    for path in dict.fromkeys((*before, *after)):
        if path.partition(".")[0] not in ("name", "measured") and before.get(path) != after.get(path):
            yield ChangedSetting(path, before.get(path), after.get(path))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


class _Played(NamedTuple):
    """A side of a difference; of a saved result there is no more than its account and scenario."""

    name: str
    account: Account
    document: Mapping[str, Any]
    result: Result | None = None


def _side(side: Side) -> _Played:
    if isinstance(side, str | Path) and is_saved(side):
        side = read_saved(side)
    if isinstance(side, Saved):
        return _Played(side.name, side.account, side.document)
    result = result_of(side, "diff")
    return _Played(result.scenario.name, result.account, result.scenario.document(), result)


def _list(parts: list[tuple[str, float]]) -> str:
    return ", ".join(f"{_told(name, seconds)} {format_change(seconds)}" for name, seconds in parts)


def _told(cause: str, seconds: float) -> str:
    axis, _, reason = cause.rpartition("_")
    if reason != "hiding":
        return phrase(cause)
    return f"{axis} communication that compute {'no longer' if seconds > 0 else 'now'} hides"


def phrase(cause: str) -> str:
    """A cause in words."""
    axis, _, reason = cause.rpartition("_")
    return _REASONS[reason].format(axis=axis) if reason in _REASONS else PHRASES[cause]


_PATH = "training.memory_recipe"


@dataclass(frozen=True, slots=True)
class RecipeChange:
    """Two recipes; ``default`` if neither scenario names its own.

    ``alone`` is by how many seconds the first one's step is longer with the second one's recipe and nothing else
    changed, as played; None where nothing else differs, or where that cannot be.
    """

    before: Recipe
    after: Recipe
    default: bool
    alone: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"before": self.before.name, "after": self.after.name, "default": self.default, "alone_s": self.alone}

    def in_words(self) -> str:
        """A sentence, or two."""
        why = ", which follows from the precision" if self.default else ""
        text = (
            f"Another recipe, {self.after.name} for {self.before.name}{why}: {change_words(self.before, self.after)}."
        )
        if self.alone is None:
            return text
        sense = "longer" if self.alone > 0 else "less"
        return f"{text} That alone takes {format_seconds(abs(self.alone))} {sense}."


def recipe_change(base: Mapping[str, Any], other: Mapping[str, Any], step_time: float) -> RecipeChange | None:
    """The change of the recipe between two documents of scenarios; None if there is none, or none can be read.

    ``step_time`` is what a step of ``base`` takes, in seconds.
    """
    try:
        first, second = from_document(base), from_document(other)
    except InputError:  # a saved result of files that are elsewhere
        return None
    before, after = recipe_of(first), recipe_of(second)
    if before == after:
        return None
    default = first.training.memory_recipe is None and second.training.memory_recipe is None
    return RecipeChange(before, after, default, _alone(first, second, step_time))


def _alone(first: Scenario, second: Scenario, step_time: float) -> float | None:
    """By how much the first one's step is longer with the second one's recipe."""
    name = recipe_of(second).name
    try:
        changed = from_document(first.document(), [(_PATH, name)])
    except InputError:  # a recipe that the rest of the scenario cannot have
        return None
    named = second.model_copy(update={"training": second.training.model_copy(update={"memory_recipe": name})})
    if _played(changed) == _played(named):
        return None
    return replay(changed).step_time - step_time


def _played(scenario: Scenario) -> dict[str, Any]:
    """The document without what plays no part in a step."""
    return {key: value for key, value in scenario.document().items() if key not in ("name", "measured")}
