"""Scenarios that quick steps are proved for (tests/test_quick.py); all others get a full run."""

from __future__ import annotations

from simcluster.faults import FAULTS
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scope import EVERYWHERE, Limited, Scope
from simcluster.scenario.sections import Fsdp, HostMemory
from simcluster.scenario.training_section import Muon
from simcluster.schedules import SCHEDULES


def _by_name(scenario: Scenario) -> bool:
    """Return whether the schedule is known by its name alone."""
    schedule = scenario.pipeline.schedule
    return isinstance(schedule, str) and schedule in SCHEDULES and not SCHEDULES[schedule].made_for_times


def _alone(scenario: Scenario) -> bool:
    """Return whether a stage has no replicas in other pipelines."""
    return scenario.parallel.dp * scenario.parallel.cp == 1


QUICK = Scope(
    "the quick step",
    free=EVERYWHERE | {"replicas"},
    limited={
        "checkpoint": Limited("a checkpoint is taken", (None,)),
        "data.loader": Limited("batches are loaded during the step", (None,)),
        "training.outer": Limited("workers train separately", (None,)),
        "steps": Limited("several steps are simulated", (1,)),
        "training.optimizer": Limited("the optimizer is Muon", ("adam",)),
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
        "model.mtp_layers": Limited("layers predict more tokens", (None,)),
        "memory.offload": Limited("memory is offloaded", (HostMemory(),)),
        "pipeline.schedule": Limited("the schedule is given, or made for the times of the run", (), _by_name),
        "pipeline.layers_per_stage": Limited(
            "layers are cut by the times of the run",
            ("even",),
            lambda scenario: isinstance(scenario.pipeline.layers_per_stage, tuple),
        ),
    },
    faults=dict.fromkeys(FAULTS, lambda fault: "faults make ranks differ"),
)
