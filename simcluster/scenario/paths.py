"""Which dotted paths a scenario has, so that a study's mistyped path is found before anything is simulated."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.kinds import models_in
from simcluster.documents.overrides import ADDS
from simcluster.scenario.fields import ClusterSpec
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.sections import LONG_NAMES
from simcluster.topology import TOPOLOGIES

_BESIDE_THE_MODELS = {"model": ("preset",), "parallel": tuple(LONG_NAMES)}
"""Keys that files may have although the finished scenario does not: they are replaced when it is read."""


def check_path(path: str) -> None:
    """Raises InputError unless a scenario can have this path.

    Parameters of a topology stand in ``cluster`` itself, as in files; those of every kind of topology are known.  A
    path may add to a list, as overrides do (``faults+``).
    """
    models: list[type[BaseModel]] = [Scenario]
    parts = path.removesuffix(ADDS).split(".")
    for position, part in enumerate(parts):
        if part.isdecimal() and position:  # an item of a list
            continue
        above = ".".join(parts[:position])
        extra = _BESIDE_THE_MODELS.get(above, ())
        if above == "cluster":
            models = [ClusterSpec, *TOPOLOGIES.values()]
        known = list(dict.fromkeys(name for model in models for name in model.model_fields))
        if not models:  # what lies below is free, or a single value
            return
        if part not in (*extra, *known):
            where = f" in {above}" if above else ""
            near = did_you_mean(part, known)
            raise InputError(f"a scenario has no {path}: no {part!r}{where}{near}; known: {', '.join(known)}")
        models = [
            inner
            for model in models
            if part in model.model_fields
            for inner in models_in(model.model_fields[part].annotation, model.model_fields[part].metadata)
        ]


def _checked(value: object) -> object:
    if isinstance(value, str):
        check_path(value)
    return value


ScenarioPath = Annotated[str, BeforeValidator(_checked)]
"""A dotted path into a scenario, such as parallel.tp."""
