"""What is known of a job before it runs: what its step is worth, and what it takes of memory."""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.planning.footprint import Footprint


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a job before it runs: ranks, samples and tokens a step, FLOP a step, the device, memory.

    ``attention`` is the part of the core attention that packed documents leave, which FLOPs count; ``footprints`` are
    bytes per stage; ``peak_flops`` is FLOP/s of one GPU at the job's precision, ``memory`` its bytes.
    """

    ranks: int
    samples: int
    tokens: int
    model_flops: float
    hardware_flops: float
    peak_flops: float
    memory: float
    footprints: tuple[Footprint, ...]
    attention: float = 1.0
