"""Allow-lists of the scenarios for which each fast path of a study is proved to be exact.

A plan of any other scenario is rejected, other rows of a sweep get a full run, and other replicas are simulated one by
one on the engine.
"""

from __future__ import annotations

from simcluster.faults import FAULTS, BackgroundLoad, ExpertImbalance, HostStall, NicSpeeds
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scope import ANY_JOB, EVERYWHERE, Limited, Scope
from simcluster.scenario.sections import Fsdp, HostMemory
from simcluster.scenario.training_section import Muon
from simcluster.schedules import SCHEDULES

_MIXER = Limited("", (None, "attention"))

PLAN = Scope(
    "the search for layouts",
    free=(EVERYWHERE | ANY_JOB) - {"steps", "replicas", "overlap.pairs", "parallel.cp_comm", "training.optimizer"},
    limited={
        "model.mixer": _MIXER,
        "parallel.cp_comm": Limited("", ("ring", "all_gather", "all_to_all")),
        "training.optimizer": Limited("", ("adam", "muon")),
        "checkpoint": Limited("checkpoint: layouts are searched without one; remove it", (None,)),
        "data.loader": Limited("data.loader: layouts are searched with loaded batches; remove it", (None,)),
        "overlap.pairs": Limited(
            "overlap.pairs: layouts are searched without overlapping the passes of a pair; set false", (False,)
        ),
        "training.outer": Limited("training.outer: layouts are searched with synchronous replicas; remove it", (None,)),
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
"""What the bounds are proved for (tests/test_plan_bound.py).

They hold for the job as it is planned for, ``plan_request.alone`` (one step, without faults, collectives as flows), in
any layout, so a value that a layout decides is free.
"""


def _by_name(scenario: Scenario) -> bool:
    schedule = scenario.pipeline.schedule
    return isinstance(schedule, str) and schedule in SCHEDULES and not SCHEDULES[schedule].made_for_times


def _alone(scenario: Scenario) -> bool:
    return scenario.parallel.dp * scenario.parallel.cp == 1


QUICK = Scope(
    "the quick step",
    free=EVERYWHERE | {"replicas"},
    limited={
        "checkpoint": Limited("a checkpoint is taken", (None,)),
        "data.loader": Limited("batches are loaded during the step", (None,)),
        "training.outer": Limited("workers train separately", (None,)),
        "steps": Limited("several steps are simulated", (1,)),
        "training.optimizer": Limited("the optimizer is not Adam", ("adam",)),
        "collectives.detail": Limited("collectives are simulated step by step", ("flow",)),
        "engine": Limited("engine: reference or simpy is asked for", ("auto", "compiled")),
        "parallel.zero": Limited("ZeRO 2 or ZeRO 3 shards more than the optimizer", (0, 1)),
        "overlap.grad_reduce": Limited("gradients are reduced during the backward", (False,), _alone),
        "overlap.param_gather": Limited("parameters are gathered during the forward", (False,), _alone),
        "pipeline.p2p": Limited("stages meet at a rendezvous", ("async",), lambda scenario: scenario.parallel.pp == 1),
        "parallel.cp": Limited("sequences are shared over cp", (1,)),
        "model.moe": Limited("layers have experts", (None,)),
        "parallel.ep": Limited("layers have experts", (1,)),
        "parallel.etp": Limited("layers have experts", (None,)),
        "parallel.expert_dispatch": Limited("layers have experts", (ExpertDispatch(),)),
        "overlap.experts": Limited("layers have experts", (False,)),
        "overlap.pairs": Limited("passes of a pair overlap", (False,)),
        "training.muon": Limited("the optimizer is Muon", (Muon(),)),
        "fsdp": Limited("parameters are sharded by FSDP", (Fsdp(),)),
        "model.mixer": _MIXER,
        "model.mtp_layers": Limited("layers predict more tokens", (None,)),
        "memory.offload": Limited("memory is offloaded", (HostMemory(),)),
        "pipeline.schedule": Limited("the schedule is user-defined, or optimized for simulated times", (), _by_name),
        "pipeline.layers_per_stage": Limited(
            "layers are split by simulated times",
            ("even",),
            lambda scenario: isinstance(scenario.pipeline.layers_per_stage, tuple),
        ),
    },
    faults=dict.fromkeys(FAULTS, lambda fault: "faults make ranks differ"),
)
"""What quick steps are proved for (tests/test_quick.py)."""


_SIMULATED = ("slow_gpu", "speeds", "jitter", "slow_link", "link_flap", "sequence_lengths")


def _experts(fault: ExpertImbalance) -> str:
    return "expert_imbalance: replicas of one sweep all have the same tokens; use auto" if fault.by_chance else ""


def _links(fault: NicSpeeds | BackgroundLoad) -> str:
    return f"{fault.kind}: replicas of one sweep all have the same links; use auto" if fault.by_chance else ""


def _stalls(fault: HostStall) -> str:
    return "" if fault.neutral else "host_stall: ranks of one sweep all have the same ops; use auto"


REPLICAS = Scope(
    "the sweep of replicas",
    free=EVERYWHERE | ANY_JOB,
    limited={
        "model.mixer": _MIXER,
        "checkpoint": Limited("method sweep does not simulate checkpoints; use auto", (None,)),
        "data.loader": Limited("method sweep does not simulate data loaders; use auto", (None,)),
        "training.outer": Limited("method sweep does not simulate outer steps; use auto", (None,)),
        "collectives.detail": Limited(
            "method sweep simulates collectives as flows; use auto, or collectives.detail: flow", ("flow",)
        ),
    },
    faults={
        **dict.fromkeys(_SIMULATED, lambda fault: ""),
        "expert_imbalance": _experts,
        "nic_speeds": _links,
        "background_load": _links,
        "host_stall": _stalls,
    },
)
"""What the sweep of replicas is proved for (tests/test_montecarlo.py)."""
