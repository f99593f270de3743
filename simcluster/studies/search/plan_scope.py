"""What of a scenario the search's bounds are proved for (tests/test_plan_bound.py); a plan of anything else is refused.

They are asked about the job as it is planned for, ``plan.alone``: one step, without faults, collectives as flows; and
about any layout of it, so what a layout decides may have any value.
"""

from __future__ import annotations

from simcluster.faults import FAULTS
from simcluster.scenario.scope import ANY_JOB, EVERYWHERE, Limited, Scope

PLAN = Scope(
    "the search for layouts",
    free=EVERYWHERE | ANY_JOB - {"steps", "replicas", "overlap.pairs"},
    limited={
        "checkpoint": Limited("checkpoint: layouts are searched without one; leave it out", (None,)),
        "data.loader": Limited("data.loader: layouts are searched with batches that are there; leave it out", (None,)),
        "overlap.pairs": Limited(
            "overlap.pairs: layouts are searched with the halves of pairs one after the other; set false", (False,)
        ),
        "training.outer": Limited("training.outer: layouts are searched with replicas in step; leave it out", (None,)),
        "steps": Limited("steps: layouts are searched by one step", (1,)),
        "replicas": Limited("replicas: layouts are searched without chance", (1,)),
        "collectives.detail": Limited("collectives.detail: layouts are searched with collectives as flows", ("flow",)),
    },
    faults={
        **dict.fromkeys(FAULTS, lambda fault: f"faults: layouts are searched without {fault.kind}"),
        "sequence_lengths": lambda fault: (
            "" if fault.even else "faults: layouts are searched with documents spread evenly"
        ),
    },
)
