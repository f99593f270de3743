"""Allow-lists of the scenarios for which each fast path of a study is proved to be exact.

A plan of any other scenario is rejected, other rows of a sweep get a full run, and other replicas are simulated one by
one on the engine.
"""

from __future__ import annotations

from simcluster.faults import FAULTS, BackgroundLoad, ExpertImbalance, HostStall, NicSpeeds
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scope import ANY_JOB, EVERYWHERE, FastPath, Limit
from simcluster.scenario.sections import Fsdp, HostMemory
from simcluster.scenario.training_section import Muon
from simcluster.schedules import SCHEDULES

_MIXER = Limit("", (None, "attention"))

PLAN = FastPath(
    "the search for layouts",
    free=(EVERYWHERE | ANY_JOB) - {"steps", "replicas", "overlap.pairs", "parallel.cp_comm", "training.optimizer"},
    limited={
        "model.mixer": _MIXER,
        "parallel.cp_comm": Limit("", ("ring", "all_gather", "all_to_all")),
        "training.optimizer": Limit("", ("adam", "muon")),
        "checkpoint": Limit("checkpoint: layouts are searched without one; remove it", (None,)),
        "data.loader": Limit("data.loader: layouts are searched with loaded batches; remove it", (None,)),
        "overlap.pairs": Limit(
            "overlap.pairs: layouts are searched without overlapping the passes of a pair; set false", (False,)
        ),
        "training.outer": Limit("training.outer: layouts are searched with synchronous replicas; remove it", (None,)),
        "steps": Limit("steps: layouts are searched by one step", (1,)),
        "replicas": Limit("replicas: layouts are searched without chance", (1,)),
        "collectives.detail": Limit("collectives.detail: layouts are searched with collectives as flows", ("flow",)),
    },
    faults={
        **dict.fromkeys(FAULTS, lambda fault: f"faults: layouts are searched without {fault.kind}"),
        "sequence_lengths": lambda fault: (
            "" if fault.even else "faults: layouts are searched with documents spread evenly"
        ),
    },
)
"""What the bounds are proved for (tests/test_plan_bound.py).

They hold for the job as it is planned for, ``plan_request.alone`` (one step, without faults, collectives as flows), in
any layout, so a value that a layout decides is free.
"""


def _is_named_schedule(scenario: Scenario) -> bool:
    schedule = scenario.pipeline.schedule
    return isinstance(schedule, str) and schedule in SCHEDULES and not SCHEDULES[schedule].made_for_times


def _has_no_replicas(scenario: Scenario) -> bool:
    return scenario.parallel.dp * scenario.parallel.cp == 1


QUICK = FastPath(
    "the quick step",
    free=EVERYWHERE | {"replicas"},
    limited={
        "checkpoint": Limit("a checkpoint is taken", (None,)),
        "data.loader": Limit("batches are loaded during the step", (None,)),
        "training.outer": Limit("workers train separately", (None,)),
        "steps": Limit("several steps are simulated", (1,)),
        "training.optimizer": Limit("the optimizer is not Adam", ("adam",)),
        "collectives.detail": Limit("collectives are simulated step by step", ("flow",)),
        "engine": Limit("engine: reference or simpy is asked for", ("auto", "compiled")),
        "parallel.zero": Limit("ZeRO 2 or ZeRO 3 shards more than the optimizer", (0, 1)),
        "overlap.grad_reduce": Limit("gradients are reduced during the backward", (False,), _has_no_replicas),
        "overlap.param_gather": Limit("parameters are gathered during the forward", (False,), _has_no_replicas),
        "pipeline.p2p": Limit("stages meet at a rendezvous", ("async",), lambda scenario: scenario.parallel.pp == 1),
        "parallel.cp": Limit("sequences are shared over cp", (1,)),
        "model.moe": Limit("layers have experts", (None,)),
        "parallel.ep": Limit("layers have experts", (1,)),
        "parallel.etp": Limit("layers have experts", (None,)),
        "parallel.expert_dispatch": Limit("layers have experts", (ExpertDispatch(),)),
        "overlap.experts": Limit("layers have experts", (False,)),
        "overlap.pairs": Limit("passes of a pair overlap", (False,)),
        "training.muon": Limit("the optimizer is Muon", (Muon(),)),
        "fsdp": Limit("parameters are sharded by FSDP", (Fsdp(),)),
        "model.mixer": _MIXER,
        "model.mtp_layers": Limit("layers predict more tokens", (None,)),
        "memory.offload": Limit("memory is offloaded", (HostMemory(),)),
        "pipeline.schedule": Limit(
            "the schedule is user-defined, or optimized for simulated times", (), _is_named_schedule
        ),
        "pipeline.layers_per_stage": Limit(
            "layers are split by simulated times",
            ("even",),
            lambda scenario: isinstance(scenario.pipeline.layers_per_stage, tuple),
        ),
    },
    faults=dict.fromkeys(FAULTS, lambda fault: "faults make ranks differ"),
)
"""What quick steps are proved for (tests/test_quick.py)."""


_SIMULATED_FAULTS = ("slow_gpu", "speeds", "jitter", "slow_link", "link_flap", "sequence_lengths")


def _expert_obstacle(fault: ExpertImbalance) -> str:
    return "expert_imbalance: replicas of one sweep all have the same tokens; use auto" if fault.by_chance else ""


def _link_obstacle(fault: NicSpeeds | BackgroundLoad) -> str:
    return f"{fault.kind}: replicas of one sweep all have the same links; use auto" if fault.by_chance else ""


def _stall_obstacle(fault: HostStall) -> str:
    return "" if fault.neutral else "host_stall: ranks of one sweep all have the same ops; use auto"


REPLICAS = FastPath(
    "the sweep of replicas",
    free=EVERYWHERE | ANY_JOB,
    limited={
        "model.mixer": _MIXER,
        "checkpoint": Limit("method sweep does not simulate checkpoints; use auto", (None,)),
        "data.loader": Limit("method sweep does not simulate data loaders; use auto", (None,)),
        "training.outer": Limit("method sweep does not simulate outer steps; use auto", (None,)),
        "collectives.detail": Limit(
            "method sweep simulates collectives as flows; use auto, or collectives.detail: flow", ("flow",)
        ),
    },
    faults={
        **dict.fromkeys(_SIMULATED_FAULTS, lambda fault: ""),
        "expert_imbalance": _expert_obstacle,
        "nic_speeds": _link_obstacle,
        "background_load": _link_obstacle,
        "host_stall": _stall_obstacle,
    },
)
"""What the sweep of replicas is proved for (tests/test_montecarlo.py)."""
