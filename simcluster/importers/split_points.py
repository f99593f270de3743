"""Points between the slices of a pipeline, by the names that torchtitan gives layers: ``layers.4, layers.8``."""

from __future__ import annotations

import re
from itertools import pairwise

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import shown

_LAYER = re.compile(r"layers\.(\d{1,6})")


def layers_between(points: str, layers: int, stages: int, *, several: bool) -> list[int]:
    """Return the layers of each slice; ``several``: a stage may have more than one.

    Raises InputError for what is no list of layers, or cuts them into another number of slices than the stages take.
    """
    words = points.replace(",", " ").split()
    found = [int(match[1]) for match in map(_LAYER.fullmatch, words) if match]
    cut = [end - begin for begin, end in pairwise([0, *found, layers])]
    fits = len(cut) % stages == 0 if several else len(cut) == stages
    if len(found) != len(words) or min(cut) < 1 or not fits:
        raise InputError(
            f"{shown(points)} does not cut {layers} layers into slices for {stages} stages; write each as in layers.4, "
            "one fewer than slices"
        )
    return cut
