"""What a checkpoint of a job weighs, and how long its parts take on the job's PCIe, network and storage."""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.longrun.spec import CheckpointSpec
from simcluster.model.transformer import parameters
from simcluster.scenario.memory_plan import recipe_of
from simcluster.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Weight:
    """Bytes of the whole job's checkpoint, and seconds: training stops for ``stall``, the ``write`` behind it takes a
    share ``slowed`` of the work; the same for copies in peers' memory; loading from either."""

    size: float
    stall: float
    write: float
    slowed: float
    memory_stall: float
    memory_write: float
    load_memory: float
    load_storage: float


def weight_of(scenario: Scenario, spec: CheckpointSpec) -> Weight:
    """The checkpoint of a scenario; InputError where nothing says how long one takes."""
    recipe = recipe_of(scenario)
    each = spec.bytes_per_parameter or recipe.weight + recipe.optimizer
    size = each * parameters(scenario.model).total
    if spec.to is None and spec.stall is None:
        raise InputError("run.checkpoint: how long does one take? to: 100 GB/s is what storage takes, or stall: 5 s")
    whole = size / spec.to if spec.to else 0.0
    stall, write = (whole, 0.0) if spec.mode == "blocking" else (snapshot_seconds(scenario, size), whole)
    stall = spec.stall if spec.stall is not None else stall
    write = spec.write if spec.write is not None else write
    read = spec.read or spec.to
    load = size / read if read else 0.0
    memory = spec.memory
    copy = snapshot_seconds(scenario, size)
    return Weight(
        size,
        stall,
        write,
        spec.slowed or 0.0,
        memory.stall if memory and memory.stall is not None else copy,
        memory.write if memory and memory.write is not None else copy,
        copy,
        load,
    )


def snapshot_seconds(scenario: Scenario, size: float) -> float:
    """A GPU's share over its PCIe."""
    return size / scenario.gpus / 24e9
