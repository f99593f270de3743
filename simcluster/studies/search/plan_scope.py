"""What of a scenario the search's bounds are proved for (tests/test_plan_bound.py); a plan of anything else is refused.

They are asked about the job as it is planned for, ``plan.alone``: one step, without faults, collectives as flows; and
about any layout of it, so what a layout decides may have any value.
"""

from __future__ import annotations

from simcluster.faults import FAULTS
from simcluster.scenario.scope import Limited, Scope, paths

_FREE = paths(
    """
    name gpus seed engine
    cluster: topology
    cluster.scale: flops memory memory_bandwidth launch nvlink network pcie between_machines latency
    model: name layers hidden_size heads vocab_size sequence_length gated_mlp kv_heads head_dim ffn_hidden_size
    model: tied_embeddings norm position bias causal vocab_multiple position_rows qk_norm layer_norms embedding_norm
    model: parallel_residual attention_window full_attention_every attention_sinks
    model.mla: kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
    parallel: tp pp dp sequence_parallel zero order
    pipeline: schedule chunks layers_per_stage p2p scatter_gather
    training: global_batch micro_batch precision recompute recompute_every optimizer attention dropout memory_recipe
    memory: fragmentation communication_buffers workspace library logits backward_temporaries
    memory.offload: activations ahead optimizer bucket buffers host_update source
    overlap: grad_reduce param_gather tensor tensor_pieces pipeline bucket_size interference
    fsdp: unit_layers prefetch reshard_after_forward lanes shard_group sync_every_microbatch
    software: name kernel collective microbatch gap late loss kernels checkpoint accumulate optimizer gradients shards
    software: selective source
    collectives: all_reduce reduce_scatter all_gather nccl
    measured: step_time source
    """
) | paths(
    # what is asked for only with what is limited below (experts, cp)
    """
    parallel: cp_comm ep etp
    overlap: experts
    """
)

PLAN = Scope(
    "the search for layouts",
    free=_FREE,
    limited={
        "model.moe": Limited(
            "model.moe: layouts are searched for dense models; for experts compare some, as in "
            "simcluster compare SCENARIO --vary parallel.ep=1,8",
            (None,),
        ),
        "parallel.cp": Limited("parallel.cp: layouts are searched without context parallelism; set 1", (1,)),
        "overlap.pairs": Limited(
            "overlap.pairs: layouts are searched with the halves of pairs one after the other; set false", (False,)
        ),
        "steps": Limited("steps: layouts are searched by one step", (1,)),
        "replicas": Limited("replicas: layouts are searched without chance", (1,)),
        "collectives.detail": Limited("collectives.detail: layouts are searched with collectives as flows", ("flow",)),
    },
    faults={
        **dict.fromkeys(FAULTS, lambda fault: f"faults: layouts are searched without {fault.kind}"),
        "sequence_lengths": lambda fault: (
            "" if fault.packing == "even" else "faults: layouts are searched with documents spread evenly"
        ),
    },
)
