"""What the sweep of replicas is proved for (tests/test_montecarlo.py).

A scenario that it is not proved for is played replica by replica on the engine.
"""

from __future__ import annotations

from simcluster.faults import ExpertImbalance, NicSpeeds
from simcluster.scenario.scope import ANY_JOB, EVERYWHERE, Limited, Scope

_PLAYED = (
    "slow_gpu", "speeds", "jitter", "host_stall", "slow_link", "link_flap", "background_load", "sequence_lengths",
)  # fmt: skip


def _experts(fault: ExpertImbalance) -> str:
    return "expert_imbalance: replicas of one sweep all have the same tokens; use auto" if fault.by_chance else ""


def _nics(fault: NicSpeeds) -> str:
    return "nic_speeds: replicas of one sweep all have the same links; use auto" if fault.by_chance else ""


REPLICAS = Scope(
    "the sweep of replicas",
    free=EVERYWHERE | ANY_JOB,
    limited={
        "checkpoint": Limited("method sweep plays no checkpoint; use auto", (None,)),
        "data.loader": Limited("method sweep plays no loader; use auto", (None,)),
        "training.outer": Limited("method sweep plays no outer step; use auto", (None,)),
        "collectives.detail": Limited(
            "method sweep plays collectives as flows; use auto, or collectives.detail: flow", ("flow",)
        ),
    },
    faults={**dict.fromkeys(_PLAYED, lambda fault: ""), "expert_imbalance": _experts, "nic_speeds": _nics},
)
