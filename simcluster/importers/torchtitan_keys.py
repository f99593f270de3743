"""Every key of torchtitan's job config that is known here, by what becomes of it: data only.

Keys and defaults are those of torchtitan's config/job_config.py (pytorch/torchtitan, 2025), from knowledge of it.
"""

from __future__ import annotations

from typing import Any

NO_EFFECT_SECTIONS = (
    *("job", "profiling", "metrics", "comm", "checkpoint", "lr_scheduler", "fault_tolerance", "validation", "debug"),
    "experimental",
)
NO_EFFECT = (
    *("model.tokenizer_path", "model.hf_assets_path", "model.print_after_conversion", "model.norm_type"),
    *("optimizer.lr", "optimizer.eps", "optimizer.beta1", "optimizer.beta2", "optimizer.weight_decay"),
    *("optimizer.implementation", "optimizer.fused", "training.dataset", "training.dataset_path", "training.max_norm"),
    *("training.steps", "training.gc_freq", "training.gc_debug", "training.seed", "training.deterministic"),
    *("training.warmup_steps", "training.debug_moe_force_load_balance", "training.dtype"),
    *("activation_checkpoint.preserve_rng_state", "activation_checkpoint.determinism_check"),
    *("activation_checkpoint.debug", "activation_checkpoint.early_stop", "compile.components", "compile.backend"),
    *("activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", "parallelism.disable_loss_parallel"),
    *("parallelism.enable_compiled_autograd", "parallelism.pipeline_parallel_split_points"),
    *("float8.filter_fqns", "float8.emulate", "float8.precompute_float8_dynamic_scale_for_fsdp"),
    *("float8.force_recompute_fp8_weight_in_bwd", "float8.recipe_name"),
    *("parallelism.module_fqns_per_model_part", "parallelism.fsdp_disable_prefetch"),
)  # fmt: skip
MAY_MATTER = (
    "parallelism.pipeline_parallel_split_points",
    "parallelism.module_fqns_per_model_part",
    "parallelism.fsdp_disable_prefetch",
    "parallelism.disable_loss_parallel",
    "float8.filter_fqns",
    "float8.force_recompute_fp8_weight_in_bwd",
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
    "activation_checkpoint.early_stop",
)
"""Of these a value other than nothing changes the run in a way that is not modelled: refused if set."""
FLOAT8 = ("float8", "quantize.linear.float8")
"""Names of the converter without which float8.* says nothing; before there were converters float8.enable_float8_linear
switched it on."""
DEFAULTS: dict[str, Any] = {
    "model.name": "llama3",
    "model.flavor": "debugmodel",
    "model.converters": [],
    "optimizer.name": "AdamW",
    "optimizer.early_step_in_backward": False,
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,
    "training.seq_len": 2048,
    "training.enable_cpu_offload": False,
    "training.mixed_precision_param": "bfloat16",
    "training.mixed_precision_reduce": "float32",
    "training.compile": False,
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.enable_async_tensor_parallel": False,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_schedule_csv": "",
    "parallelism.pipeline_parallel_layers_per_stage": 0,
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.pipeline_parallel_first_stage_less_layers": 1,
    "parallelism.pipeline_parallel_last_stage_less_layers": 1,
    "parallelism.context_parallel_degree": 1,
    "parallelism.context_parallel_rotate_method": "allgather",
    "parallelism.expert_parallel_degree": 1,
    "parallelism.expert_tensor_parallel_degree": 1,
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "2",
    "compile.enable": False,
    "float8.enable_float8_linear": False,
    "float8.enable_fsdp_float8_all_gather": False,
}
RENAMED = {
    "training.batch_size": "training.local_batch_size",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "quantize.linear.float8.enable_fsdp_float8_all_gather": "float8.enable_fsdp_float8_all_gather",
    "quantize.linear.float8.recipe_name": "float8.recipe_name",
    "quantize.linear.float8.filter_fqns": "float8.filter_fqns",
    "quantize.linear.float8.emulate": "float8.emulate",
    "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp": (
        "float8.precompute_float8_dynamic_scale_for_fsdp"
    ),
}
MODELS = {
    ("llama3", "8B"): "llama3-8b",
    ("llama3", "70B"): "llama3-70b",
    ("llama3", "405B"): "llama3-405b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",  # its sizes and attention
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
}
ROTATIONS = {"allgather": "all_gather", "alltoall": "ring"}
"""How keys and values come round (torch.distributed's context parallelism); alltoall hands them to the next rank."""
SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "loopedbfs": "breadth-first",
    "zbvzerobubble": "zb-v",
    "dualpipev": "dualpipe-v",
}
