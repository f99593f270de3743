"""What a scenario consists of: its cluster and all its fields, before anybody has checked them against each other.

Rules between fields read these (``rules``); ``scenario`` has the checked document.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, Field

from simcluster.base.texts import one_line
from simcluster.devices.device import Device, load_device
from simcluster.devices.software import SoftwareChoice
from simcluster.documents.spec import Count, Spec
from simcluster.faults import Fault
from simcluster.model.transformer import Model
from simcluster.scenario.data import Data, Measured
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
    """Return the cluster of a topology; scenarios that differ in other things share it and its routes."""
    return topology.build()


class ClusterSpec(Spec):
    """The cluster of a job."""

    topology: AnyTopology
    """A built-in topology by name, the path of a topology file, or the topology itself; its parameters may be given
    next to it."""
    scale: Scale = Scale()
    """Factors by which parts of the cluster are faster or slower, for what-if; 1 changes nothing."""

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
    """Title of the scenario in tables and pictures; default: the file's name."""
    cluster: ClusterSpec
    """The nodes and the network that the job runs on."""
    gpus: Count = 0  # left out: ``Scenario`` puts the cluster's number in its place, as it does for parallel.dp
    """GPUs of the cluster that the job takes, node by node; default: all."""
    model: Model
    """The transformer that is trained: a preset by name, the path of a config.json, or its own numbers."""
    parallel: Parallel = Parallel()
    """How the job is split over its GPUs: tp x cp x dp x pp."""
    pipeline: Pipeline = Pipeline()
    """The pipeline schedule, and which stage holds what."""
    training: Training
    """Batch, number formats, and what is kept for backward."""
    data: Data | None = None
    """Documents, how they are packed into sequences, the number of tokens, and the loader."""
    memory: Memory = Memory()
    """Memory of a GPU besides model state and activations, and what is offloaded."""
    overlap: Overlap = Overlap()
    """Communication that overlaps with compute."""
    fsdp: Fsdp = Fsdp()
    """How zero 3 (FSDP) shards, gathers and reduces."""
    software: SoftwareChoice = Field(default=None, validation_alias=AliasChoices("software", "framework"))
    """The framework, by its host's costs and its mechanisms: a built-in name, or your own times."""
    collectives: Collectives = Collectives()
    """The algorithm of each collective, and how it is simulated."""
    faults: tuple[Fault, ...] = ()
    """List of what is slower or more uneven than planned."""
    steps: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    """Steps that are simulated one after the other."""
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    """Seed of all random draws; the same seed gives the same bytes."""
    replicas: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    """Simulations of the step, each with different draws."""
    engine: EngineChoice = "auto"
    """What simulates the step (the times are the same to the bit)."""
    checkpoint: CheckpointInStep | None = None
    """A checkpoint that is taken and simulated after a step."""
    measured: Measured | None = None
    """Measurement of a real run of this scenario, shown next to the prediction and never used for it."""
    run: RunSpec | None = None
    """A training run of weeks, with failures, checkpoints and restarts (simcluster train)."""

    @property
    def dp(self) -> int:
        """Replicas of the model."""
        return self.parallel.dp

    @property
    def microbatches(self) -> int:
        """Microbatches that each replica works through in a step."""
        return self.training.global_batch // (self.parallel.dp * self.training.micro_batch)
