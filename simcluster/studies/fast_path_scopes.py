"""Lists of the scenarios for which a fast path (layout search, quick step, replica sweep) gives exact results.

A plan of any other scenario is rejected, other rows of a sweep get a full run, and other replicas are simulated one by
one on the engine.
"""

from __future__ import annotations

from simcluster.faults import FAULTS, BackgroundLoad, ExpertImbalance, HostStall, NicSpeeds
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.scenario.fast_path import ANY_JOB, EVERYWHERE, PROVED_KINDS, FastPath, FieldLimit
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.sections import Fsdp, HostOffload
from simcluster.scenario.training_section import MuonSpec
from simcluster.schedules import SCHEDULES
from simcluster.schedules.stage_layout import find_separate_prediction

PLAN = FastPath(
    "the search for layouts",
    unrestricted=(EVERYWHERE | ANY_JOB)
    - {"steps", "replicas", "overlap.pairs", "parallel.cp_comm", "training.optimizer", "pipeline.layout"},
    field_limits={
        "model.mixer": PROVED_KINDS,
        "parallel.cp_comm": FieldLimit("", ("ring", "all_gather", "all_to_all")),
        "training.optimizer": FieldLimit("", ("adam", "muon")),
        "checkpoint": FieldLimit("checkpoint: the layout search does not simulate checkpoints; remove it", (None,)),
        "data.loader": FieldLimit("data.loader: the layout search does not simulate data loaders; remove it", (None,)),
        "pipeline.layout": FieldLimit(
            "pipeline.layout: the layout search has multi-token prediction (m) only in the last slice; move m there",
            (),
            lambda scenario: find_separate_prediction(scenario.pipeline.layout) is None,
        ),
        "overlap.pairs": FieldLimit(
            "overlap.pairs: the layout search does not overlap the passes of a pair; set it to false", (False,)
        ),
        "training.outer": FieldLimit("training.outer: the layout search simulates no outer steps; remove it", (None,)),
        "steps": FieldLimit("steps: the layout search simulates one step; set it to 1", (1,)),
        "replicas": FieldLimit("replicas: the layout search has no random replicas; set it to 1", (1,)),
        "collectives.detail": FieldLimit("collectives.detail: the layout search needs flow; set it to flow", ("flow",)),
    },
    fault_rules={
        **dict.fromkeys(FAULTS, lambda fault: f"faults: the layout search does not simulate {fault.kind}; remove it"),
        "sequence_lengths": lambda fault: (
            "" if fault.even else "faults: the layout search spreads documents evenly; remove sequence_lengths"
        ),
    },
)
"""Scenarios for which the lower bounds of the layout search are proved (tests/test_plan_bound.py).

They hold for the job that ``make_searchable_scenario`` makes (one step, without faults, collectives as flows), in
any layout, so a value that a layout decides is free.
"""


def _is_builtin_schedule(scenario: Scenario) -> bool:
    schedule = scenario.pipeline.schedule
    return isinstance(schedule, str) and schedule in SCHEDULES and not SCHEDULES[schedule].depends_on_times


def _has_no_replicas(scenario: Scenario) -> bool:
    return scenario.parallel.dp * scenario.parallel.cp == 1


QUICK = FastPath(
    "the quick step",
    unrestricted=EVERYWHERE | {"replicas"},
    field_limits={
        "checkpoint": FieldLimit("a checkpoint is taken", (None,)),
        "data.loader": FieldLimit("batches are loaded during the step", (None,)),
        "training.outer": FieldLimit("DiLoCo workers train separately", (None,)),
        "steps": FieldLimit("several steps are simulated", (1,)),
        "training.optimizer": FieldLimit("the optimizer is not Adam", ("adam",)),
        "collectives.detail": FieldLimit("collectives are simulated step by step", ("flow",)),
        "engine": FieldLimit("the engine is reference or simpy", ("auto", "compiled")),
        "parallel.zero": FieldLimit("ZeRO 2 or ZeRO 3 shards more than the optimizer", (0, 1)),
        "overlap.grad_reduce": FieldLimit("gradients are reduced during the backward", (False,), _has_no_replicas),
        "overlap.param_gather": FieldLimit("parameters are gathered during the forward", (False,), _has_no_replicas),
        "pipeline.p2p": FieldLimit("sends wait for receives", ("async",), lambda scenario: scenario.parallel.pp == 1),
        "parallel.cp": FieldLimit("sequences are split over cp", (1,)),
        "model.moe": FieldLimit("layers have experts", (None,)),
        "parallel.ep": FieldLimit("layers have experts", (1,)),
        "parallel.etp": FieldLimit("layers have experts", (None,)),
        "parallel.expert_dispatch": FieldLimit("layers have experts", (ExpertDispatch(),)),
        "overlap.experts": FieldLimit("layers have experts", (False,)),
        "overlap.pairs": FieldLimit("the two passes of a fused pair overlap", (False,)),
        "model.encoder": FieldLimit("the model has an encoder", (None,)),
        "model.blocks": FieldLimit("layers have other kinds than attention and MLP", (None,)),
        "model.layer_kinds": FieldLimit("layers have other kinds than attention and MLP", (None,)),
        "model.pattern": FieldLimit("layers differ", (None,)),
        "model.layer_types": FieldLimit("layers differ", (None,)),
        "training.muon": FieldLimit("the optimizer is Muon", (MuonSpec(),)),
        "fsdp": FieldLimit("parameters are sharded by FSDP", (Fsdp(),)),
        "model.mixer": PROVED_KINDS,
        "model.mtp_layers": FieldLimit("the model has multi-token prediction layers", (None,)),
        "model.mtp_pattern": FieldLimit("the model has multi-token prediction layers", (None,)),
        "memory.offload": FieldLimit("tensors are offloaded to host memory", (HostOffload(),)),
        "pipeline.schedule": FieldLimit(
            "the schedule is user-defined, or optimized for simulated times", (), _is_builtin_schedule
        ),
        "pipeline.layers_per_stage": FieldLimit(
            "layers are split by simulated times",
            ("even",),
            lambda scenario: isinstance(scenario.pipeline.layers_per_stage, tuple),
        ),
    },
    fault_rules=dict.fromkeys(FAULTS, lambda fault: "faults make ranks differ"),
)
"""Scenarios for which quick steps are proved to be exact (tests/test_quick.py)."""


_SIMULATED_FAULTS = ("slow_gpu", "speeds", "jitter", "slow_link", "link_flap", "sequence_lengths")


def _why_experts_unsupported(fault: ExpertImbalance) -> str:
    return "expert_imbalance: method 'sweep' draws no tokens per replica; use method 'auto'" if fault.is_random else ""


def _why_links_unsupported(fault: NicSpeeds | BackgroundLoad) -> str:
    return f"{fault.kind}: method 'sweep' draws no link rates per replica; use method 'auto'" if fault.is_random else ""


def _why_stalls_unsupported(fault: HostStall) -> str:
    return "" if fault.is_neutral else "host_stall: method 'sweep' draws no stalls per rank; use method 'auto'"


REPLICAS = FastPath(
    "the sweep of replicas",
    unrestricted=EVERYWHERE | ANY_JOB,
    field_limits={
        "model.mixer": PROVED_KINDS,
        "checkpoint": FieldLimit("method 'sweep' does not simulate checkpoints; use method 'auto'", (None,)),
        "data.loader": FieldLimit("method 'sweep' does not simulate data loaders; use method 'auto'", (None,)),
        "training.outer": FieldLimit("method 'sweep' does not simulate outer steps; use method 'auto'", (None,)),
        "collectives.detail": FieldLimit(
            "method 'sweep' simulates collectives as flows; use method 'auto', or collectives.detail: flow", ("flow",)
        ),
    },
    fault_rules={
        **dict.fromkeys(_SIMULATED_FAULTS, lambda fault: ""),
        "expert_imbalance": _why_experts_unsupported,
        "nic_speeds": _why_links_unsupported,
        "background_load": _why_links_unsupported,
        "host_stall": _why_stalls_unsupported,
    },
)
"""Scenarios for which the sweep of replicas is proved to be exact (tests/test_montecarlo.py)."""
