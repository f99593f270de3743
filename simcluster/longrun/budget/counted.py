"""A run of training in counts, and what follows from them: bytes, FLOP, seconds, GPU-hours, dollars.

    work = 6 x parameters x tokens         seconds = work / (GPUs x peak x MFU)         dollars = GPU-hours x price

Training FLOP are 2 a parameter and token forward and 4 backward, attention not counted (arXiv:2001.08361 section 2.1);
of a mixture of experts give the active parameters for time, all of them for memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simcluster.base.units import DAY, HOUR
from simcluster.model.recipes import Recipe, state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRun:
    """A run in counts, and the walls as properties: bytes, seconds, GPU-hours, dollars; None where an input is missing.

    ``peak`` is dense FLOP/s of one GPU, ``memory`` its bytes.  Without ``mfu`` all times and costs are those at peak,
    which no run reaches (``at_peak``).  ``recipe`` is None where only a total of bytes a parameter was given.
    ``achievable`` is the MFU that is held to be possible: what falls short of it is money lost.
    """

    parameters: float
    tokens: float | None
    device: str
    precision: str
    peak: float
    memory: float
    bytes_per_parameter: float
    recipe: Recipe | None
    recipe_by_default: bool = False
    zero: int = 3
    gpus: int | None = None
    mfu: float | None = None
    achievable: float | None = None
    price: float | None = None  # dollars a GPU and hour
    days_wanted: float | None = None
    budget: float | None = None  # dollars

    @property
    def at_peak(self) -> bool:
        """Are times and costs those at peak, since no MFU was given?"""
        return self.mfu is None

    @property
    def rate(self) -> float:
        """Model FLOP/s of a GPU."""
        return self.peak * (1.0 if self.mfu is None else self.mfu)

    # --- memory

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and optimizer of the whole model, once."""
        return self.parameters * self.bytes_per_parameter

    @property
    def least_gpus(self) -> int:
        """GPUs that hold the model state with all of it sharded, before activations."""
        return math.ceil(self.state_bytes / self.memory)

    @property
    def state_bytes_a_gpu(self) -> float | None:
        """Of each of the ``gpus``, all of them replicas, under that stage of ZeRO."""
        if self.gpus is None:
            return None
        if self.recipe is None:
            return self.state_bytes / (self.gpus if self.zero == 3 else 1)
        return state_bytes(self.parameters, self.recipe, zero=self.zero, dp=self.gpus).total

    @property
    def fits(self) -> bool | None:
        """Does a GPU hold its part of the model state?"""
        held = self.state_bytes_a_gpu
        return None if held is None else held <= self.memory

    # --- time

    @property
    def flops(self) -> float | None:
        """6 x parameters x tokens."""
        return None if self.tokens is None else 6.0 * self.parameters * self.tokens

    @property
    def gpu_hours(self) -> float | None:
        """Of all GPUs together; the number of GPUs does not matter as long as the MFU stays."""
        return None if self.flops is None else self.flops / self.rate / HOUR

    @property
    def days(self) -> float | None:
        """On the ``gpus``."""
        return None if self.gpu_hours is None or self.gpus is None else self.gpu_hours / 24 / self.gpus

    @property
    def gpus_needed(self) -> int | None:
        """To be done in ``days_wanted``."""
        if self.flops is None or self.days_wanted is None:
            return None
        return math.ceil(self.flops / self.rate / DAY / self.days_wanted)

    # --- cost

    @property
    def dollars(self) -> float | None:
        """At ``price``."""
        return None if self.gpu_hours is None or self.price is None else self.gpu_hours * self.price

    @property
    def wasted(self) -> float | None:
        """The part of the money that an achievable MFU would save: (achievable - mfu) / achievable; 0 above it."""
        if self.mfu is None or self.achievable is None:
            return None
        return max(0.0, 1 - self.mfu / self.achievable)

    @property
    def more_training(self) -> float | None:
        """By what part more the same money trains at the achievable MFU: achievable / mfu - 1."""
        if self.mfu is None or self.achievable is None:
            return None
        return max(0.0, self.achievable / self.mfu - 1)

    @property
    def lost_dollars(self) -> float | None:
        """What is ``wasted`` of the budget, or without one of what the run costs."""
        spent = self.dollars if self.budget is None else self.budget
        return None if self.wasted is None or spent is None else self.wasted * spent

    @property
    def bought_gpu_hours(self) -> float | None:
        """By the budget."""
        return None if self.budget is None or self.price is None else self.budget / self.price

    @property
    def bought_flops(self) -> float | None:
        """Model FLOP that the budget buys."""
        return None if self.bought_gpu_hours is None else self.bought_gpu_hours * HOUR * self.rate

    @property
    def bought_tokens(self) -> float | None:
        """Tokens that the budget trains these parameters on."""
        return None if self.bought_flops is None else self.bought_flops / (6.0 * self.parameters)

    @property
    def bought_days(self) -> float | None:
        """For which the budget pays the ``gpus``."""
        return None if self.bought_gpu_hours is None or self.gpus is None else self.bought_gpu_hours / 24 / self.gpus
