"""Fields of a scenario (cluster and all other sections), without the rules between them.

Rules between fields read these (``rules``); ``scenario`` has the validated document.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, Field

from simcluster.base.texts import escape_line_breaks
from simcluster.devices.device import Device, load_device
from simcluster.devices.software import SoftwareChoice
from simcluster.documents.base_spec import Count, Spec
from simcluster.faults import Fault
from simcluster.model.transformer import Model
from simcluster.scenario.cluster_scale import ClusterScale
from simcluster.scenario.data_section import Data, Measured
from simcluster.scenario.run_section import RunSpec
from simcluster.scenario.sections import (
    Collectives,
    EngineChoice,
    Fsdp,
    Memory,
    Overlap,
    Parallel,
    Pipeline,
    StepCheckpointSection,
)
from simcluster.scenario.training_section import Training
from simcluster.topology import AnyTopology, Cluster


@lru_cache(maxsize=4)
def _build_cluster(topology: AnyTopology) -> Cluster:
    """Return the cluster of a topology from a cache, so that scenarios with equal topologies share routes."""
    return topology.build()


class ClusterSpec(Spec):
    """The cluster on which a job runs: a topology, and what-if factors on speed and memory."""

    topology: AnyTopology
    """Topology of the cluster: a built-in name, the path of a topology file, or an inline topology; its parameters may
    also be set as keys of cluster."""
    scale: ClusterScale = ClusterScale()
    """Factors on the speed and memory of the cluster's hardware, for what-if questions; 1 changes nothing."""

    def with_scale(self, scale: ClusterScale) -> ClusterSpec:
        """Return the cluster section with other what-if factors."""
        other = ClusterSpec(topology=self.topology, scale=scale)
        vars(other)["unscaled"] = self.unscaled
        return other

    @cached_property
    def unscaled(self) -> Cluster:
        """The cluster object, without the what-if factors."""
        try:
            return _build_cluster(self.topology)
        except TypeError:  # a device written inline has no hash
            return self.topology.build()

    @cached_property
    def built(self) -> Cluster:
        """The cluster object, with the what-if factors applied."""
        return self.scale.scaled_cluster(self.unscaled)

    @cached_property
    def device(self) -> Device:
        """The cluster's GPU, with what-if factors applied; raises InputError if the catalogue has no such GPU."""
        return self.scale.scaled_device(load_device(self.topology.device))


class ScenarioFields(Spec):
    """The sections and values of a scenario file, which describe a training job to simulate."""

    name: Annotated[str, AfterValidator(escape_line_breaks)] = "scenario"
    """Title of the scenario in tables and figures; default: the file's name."""
    cluster: ClusterSpec
    """The nodes and the network that the job runs on."""
    gpus: Count = 0  # left out: ``Scenario`` puts the cluster's number in its place, as it does for parallel.dp
    """Number of GPUs of the cluster that the job uses, filled node by node; default: all."""
    model: Model
    """The transformer that is trained: a preset by name, the path of a config.json, or its dimensions."""
    parallel: Parallel = Parallel()
    """Parallelism: degrees of tensor, context, data and pipeline parallelism; GPUs = tp x cp x dp x pp."""
    pipeline: Pipeline = Pipeline()
    """Pipeline parallelism: the schedule, and the layers of each stage."""
    training: Training
    """Batch, number formats, optimizer, and activation recomputation."""
    data: Data | None = None
    """Training documents, their packing into sequences, the number of tokens, and the data loader."""
    memory: Memory = Memory()
    """GPU memory in addition to model state and activations, and offloading to host memory."""
    overlap: Overlap = Overlap()
    """Which communication overlaps with compute."""
    fsdp: Fsdp = Fsdp()
    """Settings of FSDP (parallel.zero 3): sharding, gathers of parameters and reductions of gradients."""
    software: SoftwareChoice = Field(default=None, validation_alias=AliasChoices("software", "framework"))
    """The training framework: a built-in name (simcluster list software), or its host overheads and mechanisms."""
    collectives: Collectives = Collectives()
    """Algorithms of collectives, and the detail in which they are simulated."""
    faults: tuple[Fault, ...] = ()
    """Faults to simulate: slow or uneven GPUs, slow or failing links, uneven data."""
    steps: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    """Number of consecutive training steps to simulate."""
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    """Seed of all random draws; equal seeds give identical results."""
    replicas: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    """Number of times that the steps are simulated, each with different random draws."""
    engine: EngineChoice = "auto"
    """Simulation engine: simpy, compiled, auto (chosen by size), or the slow reference; all give identical times."""
    checkpoint: StepCheckpointSection | None = None
    """A checkpoint that is simulated after one of the steps."""
    measured: Measured | None = None
    """Measurement of a real run of this scenario, shown next to the prediction and never used for it."""
    run: RunSpec | None = None
    """A training run of weeks, with failures, checkpoints and restarts (for simcluster train)."""

    @property
    def dp(self) -> int:
        """Data-parallel degree: the number of replicas of the model."""
        return self.parallel.dp

    @property
    def microbatches(self) -> int:
        """Number of microbatches per replica and step."""
        return self.training.global_batch // (self.parallel.dp * self.training.micro_batch)
