"""Result of an import: the scenario, and which of the file's settings are used, without effect or unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from simcluster.base.errors import InputError
from simcluster.base.texts import find_similar_words
from simcluster.documents.yaml_syntax import to_yaml

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

FileReader = Callable[[str], str | None]
"""Reader of a file's text by its path relative to the imported file or a parent folder; None if missing."""
_MAX_REPORTED = 30
_STEP_WORDS = re.compile(
    r"batch|pipeline|recompute|remat|parallel|precision|quant(?!ile)|bf16|bubble|1f1b|gpipe|dualpipe|interleav"
    r"|(?<![a-z])(?:mx|nv)?fp(?:4|8|16)|(?<![a-z])seq(?:uence)?s?(?:len)?(?![a-z])"
    r"|(?:activation|grad\w*)[-_.]?checkpoint|checkpoint[-_.]?(?:activation|grad)"
    r"|(?<![a-z0-9])(?:v?pp|tp|etp|cp|ep|dp|zbv?)(?![a-z0-9])",
    re.IGNORECASE,
)
"""Parts of a setting's name that suggest an effect on the step: parallelism, batch, sequences, formats, recompute."""
_DEGREE = re.compile(r"parallel[-_](size|degree)$|(?:^|[-_])(?:pp|tp|etp|cp|ep|dp|sp)[-_]size$")


def find_step_keyword(name: str) -> str:
    """Return the word in a setting's name that suggests an effect on the step time; "" if no word does."""
    found = _STEP_WORDS.search(name)
    return found[0].lower() if found else ""


def is_switched_off(name: str, value: str) -> bool:
    """Return whether an option's value switches the option off, such as a parallel degree of 1."""
    return value.lower() in ("false", "no", "none") or (value == "1" and _DEGREE.search(name) is not None)


def read_no_file(name: str) -> str | None:
    """Return None for any file name; used by importers that may not read further files."""
    return None


@dataclass(frozen=True)
class ImportResult:
    """An imported scenario, the assumptions made, and the lists of mapped, ineffective and unknown settings.

    ``assumed`` are sentences about what was not stated or is modelled differently; ``no_effect`` lists the settings
    that do not change the simulated step time; ``mapped`` those that are in the document; ``facts`` is further
    information for readers of the document. ``unknown`` settings are ignored, too, and their effect on the time is
    unknown.
    """

    document: dict[str, Any]
    mapped: tuple[str, ...]
    no_effect: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def classify_all_settings(
        self, all_names: Iterable[str], new_names: Mapping[str, str] = MappingProxyType({})
    ) -> ImportResult:
        """Return a copy that lists every setting of the file as mapped, without effect or unknown.

        ``new_names`` are the names that settings were translated to. A setting in no list and no sentence is unknown.
        """
        said = " ".join((*self.assumed, *self.unknown))
        mapped: list[str] = []
        no_effect: list[str] = []
        unknown: list[str] = []
        for name in dict.fromkeys(all_names):
            names = {name, new_names.get(name, name)}
            if not names.isdisjoint(self.mapped):
                mapped.append(name)
            elif not names.isdisjoint(self.no_effect):
                no_effect.append(name)
            elif not any(re.search(rf"(?<![\w.-])(?:--)?{re.escape(each)}(?![\w-])", said) for each in names):
                unknown.append(name)
        return replace(
            self, mapped=tuple(mapped), no_effect=tuple(no_effect), unknown=(*self.unknown, *unknown)
        )  # fmt: skip

    def refuse_unknown(self, source: str, *, strict: bool, by_option: bool) -> None:
        """Raise InputError for unknown settings that may change the step time, or (``strict``) for any unknown ones.

        ``by_option``: the user can switch an option off on the command line.
        """
        words = {name: find_step_keyword(name.partition(" (did you mean")[0]) for name in self.unknown}
        deciding = [f"{name} ({word})" for name, word in words.items() if word]
        if deciding:
            option = deciding[0].partition(" ")[0]
            off = f" (--arg={option}=none does this)" if by_option and option.startswith("--") else ""
            raise InputError(
                f"{source}: unknown settings that may change the step: {', '.join(deciding)}; remove them to "
                f"import the rest{off}, then set what they do in the scenario with --set"
            )
        if strict and self.unknown:
            what = f"unknown settings: {', '.join(self.unknown)}"
            raise InputError(f"{source}: {what}; remove them, or omit --strict to ignore them")

    def to_yaml_text(self, origin: str) -> str:
        """Return the scenario as YAML text, with the assumptions as comments at its head."""
        lines = [f"# From {origin}.", *(f"# {fact}" for fact in self.facts)]
        lines += [*(f"# Assumed: {sentence}" for sentence in self.assumed)]
        if self.unknown:
            lines.append("# Ignored (unknown): " + ", ".join(self.unknown))
        if self.no_effect:
            lines.append("# No effect on the simulated time: " + ", ".join(self.no_effect))
        head = "\n".join(" ".join(line.split()) for line in lines)
        return f"{head}\n{to_yaml(self.document)}"


class TrackedSettings(dict[str, Any]):
    """Mapping of settings that records which settings are read."""

    def __init__(self, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(settings)
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting's value, or the default if it is absent, and record the setting as read."""
        self._read.add(name)
        return super().get(name, default)

    @property
    def read_names(self) -> tuple[str, ...]:
        """Names of the settings that were read or are false, in the order of the file."""
        return tuple(name for name, value in self.items() if name in self._read or value is False)

    @property
    def unread_names(self) -> tuple[str, ...]:
        """Names of the settings that were not read and are not false."""
        return tuple(name for name in self if name not in self.read_names)


def similar_name_hint(word: str, known: Iterable[str]) -> str:
    """Return a message suffix such as " (did you mean 'tp'?)" for an unknown name; "" if no name is close."""
    near = find_similar_words(word, known, cutoff=0.8)
    return f" (did you mean {near[0]!r}?)" if near else ""


class ProblemCollector:
    """Collector of the problems in a file, which are then reported in a single error."""

    def __init__(self, source: str, found: Iterable[str] = ()) -> None:
        self._source, self.messages = source, list(found)

    def record(self, problem: InputError) -> None:
        """Record a problem; a problem recorded twice is reported once."""
        self.messages.append(str(problem).removeprefix(f"{self._source}: "))

    def attempt(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **more: Parameters.kwargs
    ) -> Result | None:  # fmt: skip
        """Call ``function`` and return its result; if the call raises InputError, record this error and return None."""
        try:
            return function(*args, **more)
        except InputError as problem:
            self.record(problem)
            return None

    def raise_all(self) -> None:
        """Raise one InputError with all recorded problems, if there are any."""
        found = list(dict.fromkeys(self.messages))
        if len(found) == 1:
            raise InputError(f"{self._source}: {found[0]}")
        if found:
            more = [f"and {len(found) - _MAX_REPORTED} more"] if len(found) > _MAX_REPORTED else []
            lines = "".join(f"\n  {line}" for line in (*found[:_MAX_REPORTED], *more))
            raise InputError(f"{self._source}: {len(found)} problems:{lines}")


class SettingClassifier:
    """Sorter of a file's settings: refused, modelled differently, without effect, or unknown."""

    def __init__(self, source: str, dashes: str = "", problems: Iterable[str] = ()) -> None:
        self.source, self._dashes = source, dashes
        self.problems = ProblemCollector(source, problems)
        self.no_effect: list[str] = []
        self.assumed: list[str] = []
        self.unknown: list[str] = []

    def error(self, name: str, message: str) -> InputError:
        """Return an InputError about one setting, which begins with the file's name and the setting's name."""
        return InputError(f"{self.source}: {self._dashes}{name}: {message}")

    def classify(
        self, name: str, *, refused: str = "", modelled: str = "", on: bool = True, idle: bool = False, way: str = "",
        known: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Record a setting as refused, as modelled in another way, as without effect, or as unknown."""
        if refused and on:
            self.problems.record(self.error(name, f"{refused}; remove it to import the rest{way}"))
        elif modelled and on:
            self.assumed.append(f"{self._dashes}{name}: {modelled}")
        elif refused or modelled or idle:
            self.no_effect.append(name)
        else:
            self.unknown.append(f"{self._dashes}{name}{similar_name_hint(name, known)}")
