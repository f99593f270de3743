"""A scenario made from what another tool is started with: the document, and what became of every setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from simcluster.base.errors import InputError
from simcluster.base.texts import nearest
from simcluster.documents.composing import to_yaml

Parameters = ParamSpec("Parameters")
Made = TypeVar("Made")

Beside = Callable[[str], str | None]
"""The text of a file by its path from a folder around the one that is read; None where none is there."""
_MOST_TOLD = 30
_DECIDING = re.compile(
    r"batch|pipeline|recompute|remat|parallel|precision|quant(?!ile)|bf16|bubble|1f1b|gpipe|dualpipe|interleav"
    r"|(?<![a-z])(?:mx|nv)?fp(?:4|8|16)|(?<![a-z])seq(?:uence)?s?(?:len)?(?![a-z])"
    r"|(?:activation|grad\w*)[-_.]?checkpoint|checkpoint[-_.]?(?:activation|grad)"
    r"|(?<![a-z0-9])(?:v?pp|tp|etp|cp|ep|dp|zbv?)(?![a-z0-9])",
    re.IGNORECASE,
)
"""Parts of the names of settings that decide the step: its split, batch, sequences, formats and recompute."""
_DEGREE = re.compile(r"parallel[-_](size|degree)$|(?:^|[-_])(?:pp|tp|etp|cp|ep|dp|sp)[-_]size$")


def deciding_word(name: str) -> str:
    """Return the part of a setting's name by which it decides the step; empty where it has none."""
    found = _DECIDING.search(name)
    return found[0].lower() if found else ""


def is_off(name: str, value: str) -> bool:
    """Return whether an unknown option has a value that leaves it off, as a degree of 1 does."""
    return value.lower() in ("false", "no", "none") or (value == "1" and _DEGREE.search(name) is not None)


def nothing_beside(name: str) -> str | None:
    """A place where no other file lies."""
    return None


@dataclass(frozen=True)
class Imported:
    """A scenario document and how it came about.

    ``assumed`` are sentences about what was not said, or is modelled otherwise; ``no_effect`` the settings that change
    nothing in the time of a step as it is simulated; ``mapped`` those that the document has; ``facts`` what else a
    reader of the document should know.  ``unknown`` settings are left out too, and whether they change the time is not
    known.
    """

    document: dict[str, Any]
    mapped: tuple[str, ...]
    no_effect: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def accounted(self, present: Iterable[str], became: Mapping[str, str] = MappingProxyType({})) -> Imported:
        """Return it with each setting that is present in the file in one of its lists, by the name that it has there.

        ``became`` are the names that settings were translated to.  A setting in no list and no sentence is unknown.
        """
        said = " ".join((*self.assumed, *self.unknown))
        mapped: list[str] = []
        no_effect: list[str] = []
        unknown: list[str] = []
        for name in dict.fromkeys(present):
            names = {name, became.get(name, name)}
            if not names.isdisjoint(self.mapped):
                mapped.append(name)
            elif not names.isdisjoint(self.no_effect):
                no_effect.append(name)
            elif not any(re.search(rf"(?<![\w.-])(?:--)?{re.escape(each)}(?![\w-])", said) for each in names):
                unknown.append(name)
        return replace(
            self, mapped=tuple(mapped), no_effect=tuple(no_effect), unknown=(*self.unknown, *unknown)
        )  # fmt: skip

    def require_known(self, source: str, *, strict: bool, by_option: bool) -> None:
        """Raise InputError where an unknown setting decides the step, by its name, or (``strict``) where there is one.

        ``by_option``: the user can switch an option off on the command line.
        """
        words = {name: deciding_word(name.partition(" (did you mean")[0]) for name in self.unknown}
        deciding = [f"{name} ({word})" for name, word in words.items() if word]
        if deciding:
            option = deciding[0].partition(" ")[0]
            off = f" (--arg={option}=none does)" if by_option and option.startswith("--") else ""
            raise InputError(
                f"{source}: not known here, and by its name it decides the step: {', '.join(deciding)}; take it out to "
                f"import the rest{off}, and give the scenario what it does with --set"
            )
        if strict and self.unknown:
            what = f"not known here: {', '.join(self.unknown)}"
            raise InputError(f"{source}: {what}; take them out, or leave --strict out to ignore them")

    def text(self, origin: str) -> str:
        """Return a scenario file, with what was assumed as comments at its head."""
        lines = [f"# From {origin}.", *(f"# {fact}" for fact in self.facts)]
        lines += [*(f"# Assumed: {sentence}" for sentence in self.assumed)]
        if self.unknown:
            lines.append("# Ignored, unknown: " + ", ".join(self.unknown))
        if self.no_effect:
            lines.append("# No effect on the simulated time: " + ", ".join(self.no_effect))
        head = "\n".join(" ".join(line.split()) for line in lines)
        return f"{head}\n{to_yaml(self.document)}"


class Settings(dict[str, Any]):
    """Settings by name that record which of them are read; what is never read changes nothing."""

    def __init__(self, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(settings)
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, or the default where it is absent; it counts as read."""
        self._read.add(name)
        return super().get(name, default)

    @property
    def read(self) -> tuple[str, ...]:
        """The names that were read, or are switched off, in the order of the file."""
        return tuple(name for name, value in self.items() if name in self._read or value is False)

    @property
    def unread(self) -> tuple[str, ...]:
        """All other names."""
        return tuple(name for name in self if name not in self.read)


def guess(word: str, known: Iterable[str]) -> str:
    """ " (did you mean 'tp'?)" behind a name that is not known, or nothing."""
    near = nearest(word, known, cutoff=0.8)
    return f" (did you mean {near[0]!r}?)" if near else ""


class Problems:
    """What is wrong with a file, gathered so that it is told at once."""

    def __init__(self, source: str, found: Iterable[str] = ()) -> None:
        self._source, self.found = source, list(found)

    def add(self, problem: InputError) -> None:
        """One more, told once."""
        self.found.append(str(problem).removeprefix(f"{self._source}: "))

    def of(
        self, make: Callable[Parameters, Made], *args: Parameters.args, **more: Parameters.kwargs
    ) -> Made | None:  # fmt: skip
        """Return what ``make`` returns; None where it raises InputError, which is kept."""
        try:
            return make(*args, **more)
        except InputError as problem:
            self.add(problem)
            return None

    def tell(self) -> None:
        """Raise InputError with all of them, if there are any."""
        found = list(dict.fromkeys(self.found))
        if len(found) == 1:
            raise InputError(f"{self._source}: {found[0]}")
        if found:
            more = [f"and {len(found) - _MOST_TOLD} more"] if len(found) > _MOST_TOLD else []
            lines = "".join(f"\n  {line}" for line in (*found[:_MOST_TOLD], *more))
            raise InputError(f"{self._source}: {len(found)} problems:{lines}")


class Sorting:
    """Settings of one file by what becomes of those that no field of a scenario has, and what is wrong with them."""

    def __init__(self, source: str, dashes: str = "", problems: Iterable[str] = ()) -> None:
        self.source, self._dashes = source, dashes
        self.problems = Problems(source, problems)
        self.no_effect: list[str] = []
        self.assumed: list[str] = []
        self.unknown: list[str] = []

    def error(self, name: str, message: str) -> InputError:
        """Return what is wrong with a setting."""
        return InputError(f"{self.source}: {self._dashes}{name}: {message}")

    def place(
        self, name: str, *, refused: str = "", otherwise: str = "", on: bool = True, idle: bool = False, way: str = "",
        known: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Put a setting in its list: ``refused`` and ``otherwise`` say why, and count where it is ``on``."""
        if refused and on:
            self.problems.add(self.error(name, f"{refused}; take it out to import the rest{way}"))
        elif otherwise and on:
            self.assumed.append(f"{self._dashes}{name}: {otherwise}")
        elif refused or otherwise or idle:
            self.no_effect.append(name)
        else:
            self.unknown.append(f"{self._dashes}{name}{guess(name, known)}")
