"""The study file of measured memory: which column holds bytes of what.  No run is simulated for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import model_validator

from simcluster.base.errors import InputError
from simcluster.documents.spec import Spec
from simcluster.planning.footprint import Footprint
from simcluster.scenario.paths import ScenarioPath

_UNITS: Mapping[str, float] = MappingProxyType({"GB": 1e9, "GiB": 2.0**30, "MB": 1e6, "MiB": 2.0**20})

Quantity = Literal["total", "model_state", "activations"]


class MeasuredBytes(Spec):
    """A column of bytes on a GPU; cells may be empty.

    ``quantity``: all that is allocated, the model state (parameters, gradients, optimizer), or activations.  ``of`` the
    stage that holds most of all, or the mean over the stages.  In "%", the column is of what the same row holds with
    the values of ``baseline`` instead.
    """

    column: str
    quantity: Quantity
    unit: Literal["GB", "GiB", "MB", "MiB", "%"]
    of: Literal["fullest", "mean"] = "fullest"
    baseline: dict[ScenarioPath, Any] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.unit == "%") != (self.baseline is not None):
            raise InputError("a column in % needs the baseline that it is of, and no other column takes one")
        return self

    @property
    def scale(self) -> float:
        """Bytes in one of the unit; in %, the part of the baseline."""
        return 0.01 if self.unit == "%" else _UNITS[self.unit]

    def of_stages(self, footprints: tuple[Footprint, ...]) -> float:
        """The predicted bytes, from what each stage holds."""
        if self.of == "mean":
            return sum(map(self._of, footprints)) / len(footprints)
        return self._of(max(footprints, key=lambda footprint: footprint.total))

    def _of(self, footprint: Footprint) -> float:
        if self.quantity == "activations":
            return footprint.activations
        if self.quantity == "model_state":
            return footprint.parameters + footprint.gradients + footprint.optimizer
        return footprint.total
