"""What of a scenario a quick step time is proved for (tests/test_quick.py): all else gets a run in full."""

from __future__ import annotations

from simcluster.faults import FAULTS
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scope import Limited, Scope, paths
from simcluster.scenario.sections import HostMemory
from simcluster.schedules import SCHEDULES

_FREE = paths(
    """
    name gpus seed replicas
    cluster: topology
    cluster.scale: flops memory memory_bandwidth launch nvlink network pcie between_machines latency
    model: name layers hidden_size heads vocab_size sequence_length gated_mlp kv_heads head_dim ffn_hidden_size
    model: tied_embeddings norm position bias causal vocab_multiple position_rows qk_norm layer_norms embedding_norm
    model: parallel_residual attention_window full_attention_every attention_sinks
    model.mla: kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
    parallel: tp pp dp sequence_parallel order
    pipeline: chunks scatter_gather
    training: global_batch micro_batch precision recompute recompute_every optimizer attention dropout memory_recipe
    overlap: tensor tensor_pieces pipeline bucket_size interference
    software: name kernel collective microbatch gap late loss kernels checkpoint accumulate optimizer gradients shards
    software: selective source
    collectives: all_reduce reduce_scatter all_gather nccl
    measured: step_time source
    """
) | paths(
    # what takes memory and no time; what is asked for only with what is limited below (experts, cp, ZeRO 3, pairs)
    """
    memory: fragmentation communication_buffers workspace library logits backward_temporaries
    parallel: cp_comm ep etp
    overlap: experts pairs
    fsdp: unit_layers prefetch reshard_after_forward lanes shard_group sync_every_microbatch
    """
)


def _by_name(scenario: Scenario) -> bool:
    """Is the schedule known by its name alone?"""
    schedule = scenario.pipeline.schedule
    return isinstance(schedule, str) and schedule in SCHEDULES and not SCHEDULES[schedule].made_for_times


def _alone(scenario: Scenario) -> bool:
    """Has a stage no replicas to send anything to?"""
    return scenario.parallel.dp * scenario.parallel.cp == 1


QUICK = Scope(
    "the quick way",
    free=_FREE,
    limited={
        "steps": Limited("several steps are played", (1,)),
        "collectives.detail": Limited("collectives are played step by step", ("flow",)),
        "engine": Limited("engine: path or reference is asked for", ("auto", "events")),
        "parallel.zero": Limited("ZeRO 2 or ZeRO 3 shards more than the optimizer", (0, 1)),
        "overlap.grad_reduce": Limited("gradients are reduced beside the backward", (False,), _alone),
        "overlap.param_gather": Limited("parameters are gathered beside the forward", (False,), _alone),
        "pipeline.p2p": Limited("stages meet at a rendezvous", ("async",), lambda scenario: scenario.parallel.pp == 1),
        "parallel.cp": Limited("sequences are shared over cp", (1,)),
        "model.moe": Limited("layers have experts", (None,)),
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
"""Schedules with pairs of actions, or with the model more than once, are an obstacle, too, where they are known."""
