"""Pipeline layout: the layers of each model slice, parsed from Megatron-LM's layout text or from a list.

The grammar is that of Megatron-Core's ``--pipeline-model-parallel-layout`` (in its core/transformer,
pipeline_parallel_layer_layout.py): E is the embedding, t a decoder layer, m a layer of multi-token prediction, L the LM
head and loss; | ends a slice, ``x*3`` and ``(tt|)*29`` repeat, commas and blanks are ignored. Slices come in the
model's order: slice s is on stage s mod pp, as its chunk s // pp. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean

LAYERS = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
"""Name of each layout letter, for layouts that are lists of names."""

_LETTERS = {name: letter for letter, name in LAYERS.items()}
_GRAMMAR = "EtmL|()*,0123456789"
_MOST = 100_000  # letters
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,6})|([EtmL|])\*(\d{1,6})")
_KNOWN = f"{', '.join(f'{letter} ({name})' for letter, name in LAYERS.items())}, | after a slice, x*3 or (tt|)*29"


@lru_cache(maxsize=64)
def find_separate_prediction(layout: str | tuple[str | tuple[str, ...], ...] | None) -> int | None:
    """Return the number of a layout's slice with multi-token prediction; None for the last slice, with the LM head."""
    return None if layout is None else StageLayout.parse(layout).separate_prediction


@dataclass(frozen=True, slots=True)
class StageLayout:
    """Layers of each model slice as letters: E embedding, t decoder layer, m multi-token prediction, L loss."""

    slices: tuple[str, ...]

    @classmethod
    def parse(cls, given: str | Sequence[str | Sequence[str]]) -> StageLayout:
        """Parse a layout from text, or from a list with one item (a text, or a list of layer names) per slice.

        Raises InputError, with the place, for unknown layers, for brackets that do not close, and where the embedding
        is not first, the loss not last or a layer of multi-token prediction before a decoder layer.
        """
        slices = _expand_repetitions(given).split("|") if isinstance(given, str) else map(_letters_of_slice, given)
        found = cls(tuple(slices))
        found._check_slices()
        return found

    def __str__(self) -> str:
        """Return the layout as text, with repetitions shortened as in "Et*3|(tt|)*29L"."""
        runs = [re.sub(r"(.)\1{2,}", lambda run: f"{run[1]}*{len(run[0])}", letters) for letters in self.slices]
        parts: list[str] = []
        for letters, same in groupby(runs[:-1]):
            many = len(list(same))
            parts.append(f"({letters}|)*{many}" if many > 2 else f"{letters}|" * many)
        return "".join([*parts, runs[-1]])

    @property
    def decoder_layers(self) -> tuple[int, ...]:
        """Number of decoder layers in each slice."""
        return tuple(letters.count("t") for letters in self.slices)

    @property
    def multi_token_layers(self) -> tuple[int, ...]:
        """Number of multi-token prediction layers in each slice."""
        return tuple(letters.count("m") for letters in self.slices)

    @property
    def separate_prediction(self) -> int | None:
        """Number of the slice with multi-token prediction, if that is not the last slice, which has the LM head."""
        return next((number for number, count in enumerate(self.multi_token_layers[:-1]) if count), None)

    def check_multi_token_layers(self, predicted: int, pp: int) -> None:
        """Raise InputError unless a slice that may have multi-token prediction layers has all ``predicted`` of them.

        A layout without any places them in the last slice. (Megatron-Core, ``validate_layer_layout``.)
        """
        found, number = self.multi_token_layers, self.separate_prediction
        held = [place for place, count in enumerate(found) if count]
        if len(held) > 1:
            raise InputError(f"slices {held[0]} and {held[1]} have 'm' (multi-token prediction); put all in one slice")
        if sum(found) not in (0, predicted):
            has = f"model.mtp_layers is {predicted}" if predicted else "the model has none (model.mtp_layers)"
            raise InputError(
                f"slice {held[0]} has {sum(found)} x 'm' (multi-token prediction), but {has}; "
                "remove 'm', or set model.mtp_layers to the same number"
            )
        if number is not None and (number < len(found) - pp or number % pp == 0):
            slices = f"slice {len(found) - 1}" if pp < 3 else f"one of slices {len(found) - pp + 1} to {len(found) - 1}"
            what = "which must be in the last slice of a stage, and not of stage 0"
            raise InputError(f"slice {number} has 'm' (multi-token prediction), {what}: use {slices}")

    def chunks_per_stage(self, pp: int) -> int:
        """Return the number of slices per stage; raise InputError if ``pp`` does not divide the number of slices."""
        if len(self.slices) % pp:
            raise InputError(
                f"has {len(self.slices)} slices (one more than the number of |), not a multiple of pp {pp}; all "
                "stages must have equally many: add or remove slices (they may be empty)"
            )
        return len(self.slices) // pp

    def _check_slices(self) -> None:
        ends = (
            ("E", "the first slice must begin", self.slices[0].startswith("E")),
            ("L", "the last slice must end", self.slices[-1].endswith("L")),
        )
        for letter, place, there in ends:
            found = [str(number) for number, letters in enumerate(self.slices) for each in letters if each == letter]
            if not there or len(found) != 1:
                at = f"it is in slice {', '.join(found)} of 0 to {len(self.slices) - 1}" if found else "it is nowhere"
                raise InputError(f"{place} with {letter} ({LAYERS[letter]}), which must occur exactly once; {at}")
        if "t" in "|".join(self.slices).partition("m")[2]:
            raise InputError("layers of multi-token prediction (m) must come after all decoder layers (t)")


def _letters_of_slice(given: str | Sequence[str]) -> str:
    names = [name.strip() for name in ([given] if isinstance(given, str) else given)]
    wrong = [name for name in names if name.lower() not in _LETTERS and len(name) > 1 and set(name) - set(_GRAMMAR)]
    if wrong:
        hint = did_you_mean(wrong[0], _LETTERS)
        raise InputError(f"{wrong[0][:40]!r} is not a layer{hint}; known: {', '.join(_LETTERS)}, or letters: {_KNOWN}")
    letters = [_LETTERS.get(name.lower()) or _expand_repetitions(name) for name in names]
    if any("|" in each for each in letters):
        raise InputError(f"{str(given)[:40]!r} has a |, but each item of a list is one slice; remove the |")
    return "".join(letters)


def _expand_repetitions(text: str) -> str:
    """Expand the repetitions of a layout text; raise InputError with the position of an invalid character."""
    for place, letter in enumerate(text):
        if letter not in _GRAMMAR and not letter.isspace():
            raise InputError(
                f"character {place + 1} of {text[:60]!r} is {letter!r}, which is not a layer; known: {_KNOWN}"
            )
    plain = re.sub(r"[,\s]", "", text)
    while match := _REPEATED.search(plain):
        times = int(match[2] or match[4])
        part = match[1] if match[3] is None else match[3]
        if len(plain) + times * len(part) > _MOST:
            raise InputError(f"{match[0][:40]!r} repeats to more than {_MOST:,} letters; repeat less")
        plain = plain[: match.start()] + part * times + plain[match.end() :]
    if rest := re.search(r"[()*\d]", plain):
        near = plain[max(0, rest.start() - 8) : rest.start() + 8]
        raise InputError(f"{rest[0]!r} near {near!r} repeats no layer; write x*3, or (tt|)*29 with both brackets")
    return plain
