"""What of a scenario folding is proved for (tests/test_drawn.py): all else is simulated rank by rank."""

from __future__ import annotations

from simcluster.scenario.scope import ANY_JOB, EVERYWHERE, Limited, Scope, paths

_FAULTS = dict.fromkeys(
    ("slow_gpu", "speeds", "jitter", "host_stall", "slow_link", "nic_speeds", "link_flap", "background_load",
     "sequence_lengths", "expert_imbalance"),
    lambda fault: "",
)  # fmt: skip

_SAVED = paths("checkpoint: after mode to bytes_per_parameter place")
_LOADED = paths("data.loader: batch rate workers prefetch jitter")  # stalls of hosts
_OUTER = paths("training.outer: every workers bytes_per_parameter parts beside")
_FREE = EVERYWHERE | ANY_JOB | _SAVED | _LOADED | _OUTER

FOLDING = Scope(
    "folding",
    free=_FREE,
    limited={
        "collectives.detail": Limited("ranks are not alike in steps of collectives", ("flow",)),
        "model.mixer": Limited("", (None, "attention")),
    },
    faults=_FAULTS,
)
