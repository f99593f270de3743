"""Schedules with parameters of their own, as a scenario file writes them: ``schedule: {name: zb-auto, ...}``.

Schedules without parameters are written by their name alone.  Apart from the rest of the package, since it needs
pydantic.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from simcluster.schedules.actions import Schedule
from simcluster.schedules.interleaved import interleaved
from simcluster.schedules.timing import Costs
from simcluster.schedules.zb_auto import Times, zb_auto
from simcluster.spec import Spec

Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Time = Annotated[float, Field(ge=0, le=1e12)]


class Interleaved(Spec):
    """Interleaved 1F1B in groups: Megatron-LM's ``--microbatch-group-size-per-virtual-pipeline-stage``."""

    name: Literal["interleaved"]
    group_size: Count

    def make(
        self,
        num_stages: int,
        num_microbatches: int,
        num_chunks: int = 1,
        *,
        costs: Times | None = None,
        latency: Any = 0,
    ) -> Schedule:
        """The schedule; times do not change it."""
        return interleaved(num_stages, num_microbatches, num_chunks, group_size=self.group_size)


class ZbAuto(Spec):
    """Automatic zero bubble under a limit of microbatches alive on one stage.

    ``forward``, ``input``, ``weight`` and ``latency`` are the times of F, I, W and a message in one unit (only ratios
    matter), alike for all stages; left out, all three, the times of the run itself are used where it knows them.
    """

    name: Literal["zb-auto"]
    memory_limit: Count | None = None
    forward: Time | None = None
    input: Time | None = None
    weight: Time | None = None
    latency: Time = 0.0

    def make(
        self,
        num_stages: int,
        num_microbatches: int,
        num_chunks: int = 1,
        *,
        costs: Times | None = None,
        latency: Any = 0,
    ) -> Schedule:
        """The schedule for the document's times, else for ``costs`` and ``latency``, else for F = I = W and none."""
        given = (self.forward, self.input, self.weight)
        if costs is None or any(time is not None for time in given):
            forward, input_, weight = (1.0 if time is None else time for time in given)
            costs, latency = Costs(F=forward, B=input_ + weight, I=input_, W=weight), self.latency
        return zb_auto(
            num_stages, num_microbatches, num_chunks, costs=costs, latency=latency, memory_limit=self.memory_limit
        )


ScheduleSpec = Annotated[Interleaved | ZbAuto, Field(discriminator="name")]
"""A schedule with parameters, told apart by its name."""
