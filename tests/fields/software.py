"""What each field of ``software`` needs of a job: mechanisms of a program that a job has not change no number of it.

They are not noted, since one chooses a program by its name, with all its mechanisms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from simcluster.scenario.scenario import Scenario


class Need(NamedTuple):
    """What a field needs, in words, and whether a scenario has it."""

    reason: str
    met: Callable[[Scenario], bool]


def several_experts_each(scenario: Scenario) -> bool:
    """Has a rank several experts?"""
    moe = scenario.model.moe
    return moe is not None and moe.experts > scenario.parallel.ep


def sharded_by(scenario: Scenario) -> str:
    """Return how shards of ZeRO 3 are gathered; "" without any."""
    software = scenario.software
    return software.shards if software is not None and scenario.parallel.zero == 3 else ""


def low_precision(scenario: Scenario) -> bool:
    return scenario.training.precision in ("fp8-mixed", "mxfp8-mixed", "nvfp4-mixed")


EXPERTS = Need("a mixture of experts", lambda scenario: scenario.model.moe is not None)
SEVERAL = Need("several experts on a rank", several_experts_each)

NEEDS: Mapping[str, Need] = {
    "software.launch": Need(
        "a call of several launches: products of several experts, or steps of an expression",
        lambda s: s.model.moe is not None or (s.software is not None and s.software.kernels == "eager"),
    ),
    "software.collective": Need(
        "collectives in layers", lambda s: max(s.parallel.tp, s.parallel.cp, s.parallel.ep) > 1
    ),
    "software.late": Need("collectives over tp", lambda s: s.parallel.tp > 1),
    "software.piece": Need("matrices sharded by lists", lambda s: sharded_by(s) == "lists"),
    "software.sync": EXPERTS,
    "software.checkpoint": Need("a full recompute", lambda s: s.training.recompute == "full"),
    "software.selective": Need(
        "a selective recompute of a fused attention",
        lambda s: s.training.recompute == "selective" and s.training.attention == "fused",
    ),
    "software.probabilities": EXPERTS,
    "software.gradients": Need(
        "gradients that replicas reduce, of parameters that each holds whole",
        lambda s: s.parallel.dp * s.parallel.cp > 1 and s.parallel.zero < 3,
    ),
    "software.shards": Need("parameters sharded by ZeRO 3", lambda s: s.parallel.zero == 3),
    "software.ring": Need("sequences shared over cp", lambda s: s.parallel.cp > 1),
    "software.rope": Need("rotary positions", lambda s: s.model.position == "rope"),
    "software.bias": Need("biases of queries, keys and values", lambda s: s.model.bias),
    "software.experts.router": EXPERTS,
    "software.experts.router_dtype": EXPERTS,
    "software.experts.permute": SEVERAL,
    "software.experts.products": SEVERAL,
    "software.experts.padding": Need("experts in fp8", lambda s: s.model.moe is not None and low_precision(s)),
    "software.experts.bias": Need("experts with biases", lambda s: s.model.moe is not None and s.model.mlp_bias),
    "software.experts.clamp": Need(
        "a clamped activation function of experts",
        lambda s: s.model.moe is not None and s.model.clamped_activation is True,
    ),
    "software.experts.casts": Need("experts in fp8", lambda s: s.model.moe is not None and low_precision(s)),
}
"""Of each field that some jobs have no use for; the others change a number of every job."""
