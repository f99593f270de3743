"""What a scenario consists of: its cluster and all its fields, before anybody has checked them against each other.

Rules between fields read these (``rules``); ``scenario`` has the checked document.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, Field

from simcluster.base.printable import one_line
from simcluster.devices.device import Device, load_device
from simcluster.devices.software import SoftwareChoice
from simcluster.documents.spec import Count, Spec
from simcluster.faults import Fault
from simcluster.model.transformer import Model
from simcluster.scenario.data import Data
from simcluster.scenario.measurements import Measured
from simcluster.scenario.run_section import RunSpec
from simcluster.scenario.scale import Scale
from simcluster.scenario.sections import (
    CheckpointInStep,
    Collectives,
    EngineChoice,
    Fsdp,
    Memory,
    Overlap,
    Parallel,
    Pipeline,
)
from simcluster.scenario.training_section import Training
from simcluster.topology import AnyTopology, Cluster


@lru_cache(maxsize=4)
def _built(topology: AnyTopology) -> Cluster:
    """The cluster of a topology: scenarios that differ in other things share it, with the routes that it has found."""
    return topology.build()


class ClusterSpec(Spec):
    """What the job runs on.  In a file ``topology`` may also be a shipped name or a path, with parameters beside it.

    ``scale`` are factors on what its parts reach, for what-if.
    """

    topology: AnyTopology
    scale: Scale = Scale()

    def with_scale(self, scale: Scale) -> ClusterSpec:
        """The same cluster with other factors (a copy would take along what was ``built`` with the old ones)."""
        other = ClusterSpec(topology=self.topology, scale=scale)
        vars(other)["unscaled"] = self.unscaled
        return other

    @cached_property
    def unscaled(self) -> Cluster:
        """The cluster without the factors, built once."""
        try:
            return _built(self.topology)
        except TypeError:  # a device written inline has no hash
            return self.topology.build()

    @cached_property
    def built(self) -> Cluster:
        """The cluster itself."""
        return self.scale.cluster(self.unscaled)

    @cached_property
    def device(self) -> Device:
        """The GPU of the cluster; InputError for a name that is not in the catalogue."""
        return self.scale.device(load_device(self.topology.device))


class ScenarioFields(Spec):
    """The sections and values of a scenario, each checked by itself."""

    name: Annotated[str, AfterValidator(one_line)] = "scenario"
    cluster: ClusterSpec
    gpus: Count = 0  # left out: ``Scenario`` puts the cluster's number in its place, as it does for parallel.dp
    model: Model
    parallel: Parallel = Parallel()
    pipeline: Pipeline = Pipeline()
    training: Training
    data: Data | None = None
    memory: Memory = Memory()
    overlap: Overlap = Overlap()
    fsdp: Fsdp = Fsdp()
    software: SoftwareChoice = Field(default=None, validation_alias=AliasChoices("software", "framework"))
    collectives: Collectives = Collectives()
    faults: tuple[Fault, ...] = ()
    steps: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    replicas: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    engine: EngineChoice = "auto"
    checkpoint: CheckpointInStep | None = None
    measured: Measured | None = None
    run: RunSpec | None = None

    @property
    def dp(self) -> int:
        """Replicas of the model."""
        return self.parallel.dp

    @property
    def microbatches(self) -> int:
        """Microbatches that each replica works through in a step."""
        return self.training.global_batch // (self.parallel.dp * self.training.micro_batch)
