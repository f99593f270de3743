"""What the sweep of replicas is proved for (tests/test_montecarlo.py).

A scenario that it is not proved for is played replica by replica on the engine.
"""

from __future__ import annotations

from simcluster.faults import ExpertImbalance
from simcluster.scenario.scope import Limited, Scope, paths

_PLAYED = ("slow_gpu", "jitter", "host_stall", "slow_link", "link_flap", "background_load", "sequence_lengths")


def _experts(fault: ExpertImbalance) -> str:
    return "expert_imbalance: replicas of one sweep all have the same tokens; use auto" if fault.by_chance else ""


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
    faults={**dict.fromkeys(_PLAYED, lambda fault: ""), "expert_imbalance": _experts},
)
