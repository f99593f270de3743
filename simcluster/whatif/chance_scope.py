"""What the sweep of replicas is proved for (tests/test_montecarlo.py), and which faults leave a step to chance.

A scenario that it is not proved for is played replica by replica on the engine.  Imports scopes, errors and documents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simcluster.documents.complaints import listed
from simcluster.errors import InputError
from simcluster.faults import Fault
from simcluster.faults.by_effect import by_effect
from simcluster.scenario.scope import Limited, Scope, paths

_BY_CHANCE: Mapping[str, Callable[[Any], bool]] = {
    "slow_gpu": lambda fault: False,
    "slow_link": lambda fault: False,
    "link_flap": lambda fault: False,
    "jitter": lambda fault: True,
    "sequence_lengths": lambda fault: True,
    "host_stall": lambda fault: (
        fault.factor is not None or fault.first == "random" or fault.cause == "garbage_collection"
    ),
    "background_load": lambda fault: fault.on is not None,
    "expert_imbalance": lambda fault: fault.tokens.kind != "fractions" and not fault.neutral,
}


def by_chance(fault: Fault) -> bool:
    """Does a fault depend on the seed?  InputError for a kind that nothing plays, or of which that is not said here."""
    by_effect([fault])
    if fault.kind not in _BY_CHANCE:
        raise InputError(
            f"faults: whether {fault.kind} depends on the seed is not known, so replicas cannot be played; known: "
            f"{listed(_BY_CHANCE)}"
        )
    return _BY_CHANCE[fault.kind](fault)


def _experts(fault: Any) -> str:
    return "expert_imbalance: replicas of one sweep all have the same tokens; use auto" if by_chance(fault) else ""


REPLICAS = Scope(
    "the sweep of replicas",
    free=paths(
        """
        name gpus steps seed replicas engine
        cluster: topology
        cluster.scale: flops memory memory_bandwidth launch nvlink network pcie between_machines latency
        model: name layers hidden_size heads vocab_size sequence_length gated_mlp kv_heads head_dim ffn_hidden_size
        model: tied_embeddings norm position bias causal vocab_multiple position_rows qk_norm layer_norms
        model: embedding_norm parallel_residual attention_window full_attention_every attention_sinks
        model.moe: experts top_k expert_ffn_hidden_size shared_experts shared_ffn_hidden_size shared_gate
        model.moe: first_dense_layers every offset router_bias
        model.mla: kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
        parallel: tp pp dp cp cp_comm ep etp sequence_parallel zero order
        pipeline: schedule chunks layers_per_stage p2p scatter_gather
        training: global_batch micro_batch precision recompute recompute_every optimizer attention dropout
        training: memory_recipe
        memory: fragmentation communication_buffers workspace library logits backward_temporaries
        memory.offload: activations ahead optimizer bucket buffers host_update source
        overlap: grad_reduce param_gather tensor tensor_pieces pipeline experts pairs bucket_size interference
        fsdp: unit_layers prefetch reshard_after_forward lanes shard_group sync_every_microbatch
        software: name kernel collective microbatch gap late loss kernels checkpoint accumulate optimizer gradients
        software: selective shards source
        collectives: all_reduce reduce_scatter all_gather nccl
        measured: step_time source
        """
    ),
    limited={
        "collectives.detail": Limited(
            "method sweep plays collectives as flows; use auto, or collectives.detail: flow", ("flow",)
        ),
    },
    faults={**dict.fromkeys(_BY_CHANCE, lambda fault: ""), "expert_imbalance": _experts},
)
