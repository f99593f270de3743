"""Variants of a scenario played for the seconds of their step, each with the batch that it trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from simcluster.base.errors import InputError
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.step.simulate import replay

BATCH = "training.global_batch"
_SIZES = ("gpus", "parallel.dp")


@dataclass(frozen=True, slots=True)
class Played:
    """A variant (``name``: what is varied) on so many GPUs, its batch in tokens, and the seconds of its step; or
    ``refused``: why it cannot be."""

    name: str
    gpus: int = 0
    batch: float = 0.0
    step_time: float = 0.0
    refused: str = ""


def play_batches(
    scenario: Scenario, step: float, vary: Mapping[str, Sequence[Any]], *, grows: bool
) -> tuple[Played, ...]:
    """Each combination of the varied values; the scenario itself where nothing is varied.

    Where the cluster, its GPUs or dp are varied, the job takes the whole of it, and its batch ``grows`` with it, unless
    that is varied as well.  InputError where no variant can be.
    """
    if not vary:
        return (Played(scenario.name, scenario.gpus, scenario.tokens_per_step, step),)
    names = list(vary)
    found = []
    for values in product(*vary.values()):
        pairs = dict(zip(names, values, strict=True))
        name = ", ".join(f"{key.rsplit('.', 1)[-1]} {value}" for key, value in pairs.items())
        try:
            variant = from_document(scenario.document(), _changes(scenario, pairs, grows=grows))
        except InputError as problem:
            found.append(Played(name, refused=" ".join(str(problem).split())))
            continue
        found.append(Played(name, variant.gpus, variant.tokens_per_step, replay(variant).step_time))
    if all(each.refused for each in found):
        raise InputError(f"no variant can be: {found[0].name}: {found[0].refused}")
    return tuple(found)


def _changes(scenario: Scenario, pairs: Mapping[str, Any], *, grows: bool) -> list[tuple[str, Any]]:
    """The overrides of a variant, with the batch, GPUs and dp that follow from its size."""
    factor, document = 1.0, scenario.document()
    free: list[tuple[str, Any]] = []
    for path, value in pairs.items():
        now = _size_now(scenario, document, path)
        if now and isinstance(value, int | float):
            factor *= value / now
            if path.startswith("cluster."):
                free += [("gpus", None), ("parallel.dp", None)]
            else:
                free += [(other, None) for other in _SIZES if other != path]
    batch = scenario.training.global_batch * factor
    if not grows or factor == 1 or BATCH in pairs:
        return [*free, *pairs.items()]
    if batch != int(batch):
        raise InputError(
            f"the batch of {scenario.training.global_batch} sequences x {factor:g} is no whole number; "
            "choose numbers of GPUs that make it one"
        )
    return [*free, (BATCH, int(batch)), *pairs.items()]


def _size_now(scenario: Scenario, document: Mapping[str, Any], path: str) -> float:
    """What the scenario has at a path that sizes its cluster or job; 0 for any other."""
    if path in _SIZES:
        return scenario.gpus if path == "gpus" else scenario.dp
    section, _, key = path.partition(".")
    if section != "cluster" or key.removeprefix("topology.") not in ("nodes", "gpus", "machines"):
        return 0
    value = document["cluster"]["topology"].get(key.removeprefix("topology."), 0)
    return value if isinstance(value, int | float) else 0
