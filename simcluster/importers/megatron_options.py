"""Every option of Megatron-LM that is known here, by what becomes of it: data only.

Names are those of megatron/training/arguments.py (NVIDIA/Megatron-LM, core_v0.12 and before), from knowledge of it.
An option in none of these tables is told as unknown, so that none is ignored in silence.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MAPPED: dict[str, str] = dict.fromkeys(
    _words("""num-layers encoder-num-layers hidden-size ffn-hidden-size num-attention-heads kv-channels num-query-groups
    max-position-embeddings seq-length encoder-seq-length vocab-size make-vocab-size-divisible-by
    tensor-model-parallel-size model-parallel-size pipeline-model-parallel-size context-parallel-size
    expert-model-parallel-size expert-tensor-parallel-size num-layers-per-virtual-pipeline-stage
    num-virtual-stages-per-pipeline-rank microbatch-group-size-per-virtual-pipeline-stage
    decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers micro-batch-size batch-size global-batch-size
    recompute-num-layers ddp-bucket-size num-experts moe-router-topk moe-ffn-hidden-size
    moe-shared-expert-intermediate-size q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim"""),
    "count",
) | dict.fromkeys(
    _words("""group-query-attention use-rotary-position-embeddings swiglu squared-relu
    untie-embeddings-and-output-weights disable-bias-linear add-qkv-bias qk-layernorm sequence-parallel
    use-tp-pp-dp-mapping use-distributed-optimizer overlap-grad-reduce overlap-param-gather use-torch-fsdp2
    use-megatron-fsdp use-custom-fsdp no-overlap-p2p-communication overlap-p2p-communication
    no-async-tensor-model-parallel-allreduce tp-comm-overlap no-scatter-gather-tensors-in-pipeline
    recompute-activations checkpoint-activations bf16 fp16 fp8-param-gather use-flash-attn
    accumulate-allreduce-grads-in-fp32 grad-reduce-in-bf16 cross-entropy-loss-fusion
    no-gradient-accumulation-fusion moe-shared-expert-gate moe-router-enable-expert-bias multi-latent-attention
    quick-geglu moe-grouped-gemm moe-use-legacy-grouped-gemm moe-shared-expert-overlap
    overlap-moe-expert-parallel-comm delay-wgrad-compute"""),
    "flag",
) | {
    "position-embedding-type": "word learned_absolute rope yarn none",
    "normalization": "word LayerNorm RMSNorm",
    "data-parallel-sharding-strategy": "word no_shard optim optim_grads optim_grads_params",
    "recompute-granularity": "word selective full",
    "recompute-method": "word uniform block",
    "recompute-modules": "words",
    "fp8-format": "word e4m3 hybrid",
    "transformer-impl": "word local transformer_engine",
    "attention-backend": "word flash fused unfused local auto",
    "attention-dropout": "number",
    "hidden-dropout": "number",
    "optimizer": "word adam sgd",
    "tokenizer-type": "words",
    "window-size": "words",
    "window-attn-skip-freq": "words",
    "softmax-type": "word vanilla off-by-one learnable",
    "cp-comm-type": "words",
    "moe-layer-freq": "words",
    "moe-token-dispatcher-type": "word allgather alltoall alltoall_seq flex",
    "tokenizer-model": "words",
    "vocab-file": "words",
}  # fmt: skip
"""What a scenario has a place for, with the form of the value."""

VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Sizes of tokenizers that are the same for everybody."""

NO_EFFECT = _words(
    """adam-beta1 adam-beta2 adam-eps add-position-embedding adlr-autoresume adlr-autoresume-interval app-tag-run-name
    app-tag-run-version apply-layernorm-1p apply-query-key-layer-scaling apply-residual-connection-post-layernorm
    async-save async-tensor-model-parallel-allreduce attention-softmax-in-fp32 auto-detect-ckpt-format
    calculate-per-token-loss check-for-large-grads check-for-nan-in-loss-and-grad
    check-weight-hash-across-dp-replicas-interval ckpt-assume-constant-structure ckpt-convert-format
    ckpt-convert-save ckpt-format ckpt-fully-parallel-load ckpt-fully-parallel-save ckpt-step clip-grad
    config-logger-dir create-attention-mask-in-dataloader data-args-path data-cache-path data-impl
    data-parallel-random-init data-path dataloader-type ddp-average-in-collective deallocate-pipeline-outputs
    decay-style dist-ckpt-format dist-ckpt-strictness distribute-saved-activations distributed-backend
    distributed-timeout-minutes embedding-init-method-std end-weight-decay eod-mask-loss error-injection-rate
    eval-interval eval-iters exit-duration-in-mins exit-interval exit-on-missing-checkpoint exit-signal
    exit-signal-handler finetune fp8-amax-compute-algo fp8-amax-history-len fp8-interval fp8-margin fp8-recipe
    full-validation hysteresis inference-batch-times-seqlen-threshold inference-max-requests
    inference-max-seq-length init-method-std init-method-xavier-uniform init-model-with-meta-device
    initial-loss-scale layernorm-epsilon lazy-mpu-init load local-rank log-batch-size-to-tensorboard log-energy
    log-interval log-learning-rate-to-tensorboard log-loss-scale-to-tensorboard log-memory-to-tensorboard
    log-num-zeros-in-grad log-params-norm log-progress log-straggler log-throughput log-timers-to-tensorboard
    log-validation-ppl-to-tensorboard log-world-size-to-tensorboard logging-level loss-scale loss-scale-window lr
    lr-decay-iters lr-decay-samples lr-decay-style lr-warmup-fraction lr-warmup-init lr-warmup-iters
    lr-warmup-samples lr-wsd-decay-iters lr-wsd-decay-samples lr-wsd-decay-style manual-gc manual-gc-eval
    manual-gc-interval mask-prob mask-type merge-file min-loss-scale min-lr mmap-bin-files mock-data
    no-check-for-nan-in-loss-and-grad no-create-attention-mask-in-dataloader no-data-sharding no-initialization
    no-load-optim no-load-rng no-log-learnig-rate-to-tensorboard no-log-loss-scale-to-tensorboard no-mmap-bin-files
    no-one-logger no-query-key-layer-scaling no-save-optim no-save-rng no-use-tokenizer-model-from-checkpoint-args
    non-persistent-ckpt-type non-persistent-save-interval norm-epsilon num-dataset-builder-threads num-workers
    one-logger-project one-logger-run-name onnx-safe openai-gelu override-opt-param-scheduler
    override-opt_param-scheduler per-split-data-args-path perform-initialization pretrained-checkpoint profile
    profile-ranks profile-step-end profile-step-start record-memory-history reset-attention-mask
    reset-position-ids rotary-base rotary-interleaved rotary-percent rotary-scaling-factor
    rotary-seq-len-interpolation-factor s3-cache-path sample-rate save save-interval seed short-seq-prob split
    start-weight-decay te-rng-tracker tensorboard-dir tensorboard-log-interval tensorboard-queue-size test-data-path
    test-mode tiktoken-num-special-tokens tiktoken-pattern tiktoken-special-tokens timing-log-level
    timing-log-option titles-data-path train-data-path train-iters train-samples use-checkpoint-args
    use-checkpoint-opt-param-scheduler use-checkpoint-opt_param-scheduler use-cpu-initialization use-dist-ckpt
    use-legacy-models use-mcore-models use-one-sent-docs use-persistent-ckpt-worker use-pytorch-profiler
    use-rope-scaling use-tokenizer-model-from-checkpoint-args valid-data-path verify-bitwise-reproducibility
    vocab-extra-ids wandb-entity wandb-exp-name wandb-project wandb-save-dir weight-decay weight-decay-incr-style
    moe-router-load-balancing-type moe-aux-loss-coeff moe-z-loss-coeff moe-input-jitter-eps moe-router-pre-softmax
    moe-router-score-function moe-router-num-groups moe-router-group-topk moe-router-topk-limited-devices
    moe-router-topk-scaling-factor moe-router-bias-update-rate moe-router-force-load-balancing moe-per-layer-logging
    moe-use-upcycling rope-type mscale mscale-all-dim beta-fast beta-slow original-max-position-embeddings
    glu-linear-offset activation-func-clamp-value decoupled-lr decoupled-min-lr no-ckpt-fully-parallel-save
    no-ckpt-fully-parallel-load use-mp-args-from-checkpoint-args straggler-minmax-count disable-straggler-on-startup
    straggler-ctrlr-port replication replication-jump replication-factor
    """
)
"""What changes no time of a training step as it is simulated: data, learning, logging, saving between steps."""

NO_EFFECT_PREFIXES = _words(
    """lr- log- no-log- tensorboard- wandb- one-logger- eval- exit- ckpt- dist-ckpt- async-ckpt- non-persistent- save-
    load- no-save- no-load- inference- muon-"""
)
"""Families of such options: learning rates, logging, evaluation, checkpoints, generation, and those of Muon, which has
to be chosen by ``optimizer`` (and is not modelled)."""

SWITCHED_OFF = {"num-distributed-optimizer-instances": "1"}
"""The value at which an option of REFUSED changes nothing, where that is not 0, false or none."""

NOT_MODELLED = {
    "no-masked-softmax-fusion": "softmax, scale and mask are taken as one kernel",
    "no-bias-gelu-fusion": "bias and activation are taken as one kernel",
    "no-bias-swiglu-fusion": "bias and activation are taken as one kernel",
    "bias-swiglu-fusion": "bias and activation are one kernel in any case",
    "no-bias-dropout-fusion": "bias, dropout and residual are taken as one kernel",
    "fp16-lm-cross-entropy": "the loss keeps fp32 logits unless it is fused",
    "empty-unused-memory-level": "the memory allocator's pauses are not modelled",
    "use-ring-exchange-p2p": "stages send to each other directly",
    "no-persist-layer-norm": "a norm is one kernel in any case",
    "no-rope-fusion": "the rotation is taken as one kernel",
    "apply-rope-fusion": "the rotation is one kernel in any case",
    "align-grad-reduce": "stages reduce their gradients when they are ready",
    "no-align-grad-reduce": "stages reduce their gradients when they are ready",
    "align-param-gather": "stages gather their parameters when they need them",
    "overlap-param-gather-with-optimizer-step": "parameters are gathered behind the optimizer",
    "ddp-pad-buckets-for-high-nccl-busbw": "buckets are not padded",
    "defer-embedding-wgrad-compute": "the LM head's weight gradient is made with its backward",
    "use-nccl-ub": "user buffers of NCCL are not modelled",
    "use-sharp": "reductions in the switches are chosen with collectives.all_reduce, not here",
    "nccl-communicator-config-path": "NCCL is taken as it is tuned by default",
    "tp-comm-overlap-cfg": "how single products overlap is not read",
    "disable-tp-comm-overlap-ag": "one way of overlap for all products",
    "disable-tp-comm-overlap-rs": "one way of overlap for all products",
    "disable-tp-comm-split-ag": "one way of overlap for all products",
    "disable-tp-comm-split-rs": "one way of overlap for all products",
    "disable-tp-comm-bulk-dgrad": "one way of overlap for all products",
    "disable-tp-comm-bulk-wgrad": "one way of overlap for all products",
    "tp-comm-bootstrap-backend": "one way of overlap for all products",
    "enable-cuda-graph": "the host is taken to cost nothing, as with graphs (software: ideal)",
    "external-cuda-graph": "the host is taken to cost nothing, as with graphs (software: ideal)",
    "cuda-graph-scope": "the host is taken to cost nothing, as with graphs (software: ideal)",
    "barrier-with-L1-time": "timers are taken to be off",
    "no-barrier-with-level-1-timing": "timers are taken to be off",
    "barrier-with-level-1-timing": "timers are taken to be off",
    "fp8-wgrad": "all products of the layers are in fp8",
    "no-fp8-wgrad": "all products of the layers are in fp8",
    "first-last-layers-bf16": "all layers are alike, in fp8",
    "num-layers-at-start-in-bf16": "all layers are alike, in fp8",
    "num-layers-at-end-in-bf16": "all layers are alike, in fp8",
    "batch-p2p-communication": "a send and a receive at once are two transfers",
    "rampup-batch-size": "the step is one with the whole global batch",
    "cross-entropy-fusion-impl": "a fused loss writes the gradient over the logits in any case",
    "keep-fp8-transpose-cache-when-using-custom-fsdp": "memory of the transposes follows memory_recipe",
    "moe-permute-fusion": "tokens are copied to their experts by one kernel in any case",
    "moe-router-fusion": "scores and choice of the router are taken as they are without it",
    "moe-router-dtype": "the router's scores are in one format",
    "moe-router-padding-for-fp8": "rows of an expert are not padded",
    "moe-router-padding-for-quantization": "rows of an expert are not padded",
    "moe-apply-probs-on-input": "tokens are weighed behind their experts",
    "moe-expert-capacity-factor": "no token is dropped: every expert does all the tokens that come to it",
    "moe-token-drop-policy": "no token is dropped",
    "moe-enable-deepep": "tokens travel to experts by NCCL's all-to-all",
    "moe-flex-dispatcher-backend": "tokens travel to experts by NCCL's all-to-all",
    "deterministic-mode": "kernels are taken as they are without it",
    "cuda-graph-impl": "the host is taken to cost nothing, as with graphs (software: ideal)",
    "wgrad-deferral-limit": "the LM head's weight gradient is made with its backward",
    "overlap-p2p-communication-warmup-flush": "sends of warm-up and flush go beside computation as all others do",
    "rerun-mode": "no iteration is run again",
    "perform-rl-step": "the step is that of training; what generates its samples is not modelled",
    "moe-deepep-num-sms": "tokens travel to experts by NCCL's all-to-all",
}
"""What may change the time of a step and is modelled in one way only; said in the scenario's comments."""

REFUSED = {
    "moe-pad-expert-input-to-capacity": "experts that work on padding are not modelled",
    "moe-extended-tp": "write expert-tensor-parallel-size",
    "moe-layer-recompute": "recomputing experts alone is not modelled; recompute-granularity full is",
    "pipeline-model-parallel-layout": "write pipeline.layers_per_stage in the scenario instead",
    "pipeline-model-parallel-split-rank": "models with an encoder are not modelled",
    "account-for-embedding-in-pipeline-split": "write pipeline.layers_per_stage in the scenario instead",
    "account-for-loss-in-pipeline-split": "write pipeline.layers_per_stage in the scenario instead",
    "standalone-embedding-stage": "a stage of the embedding alone is not modelled",
    "transformer-pipeline-model-parallel-size": "write pipeline-model-parallel-size",
    "num-distributed-optimizer-instances": "several copies of the sharded optimizer are not modelled",
    "use-precision-aware-optimizer": "choose training.memory_recipe in the scenario instead",
    "main-grads-dtype": "choose training.memory_recipe in the scenario instead",
    "main-params-dtype": "choose training.memory_recipe in the scenario instead",
    "exp-avg-dtype": "choose training.memory_recipe in the scenario instead",
    "exp-avg-sq-dtype": "choose training.memory_recipe in the scenario instead",
    "optimizer-cpu-offload": "write memory.offload.optimizer in the scenario instead",
    "optimizer-offload-fraction": "write memory.offload.optimizer in the scenario instead",
    "cpu-offloading-num-layers": "write memory.offload.activations in the scenario instead",
    "fine-grained-activation-offloading": "write memory.offload.activations in the scenario instead",
    "mtp-num-layers": "multi-token prediction is not modelled",
    "spec": "a layer of one's own is not modelled; describe the model by the other arguments",
    "yaml-cfg": "give the arguments themselves",
    "hybrid-override-pattern": "layers that are not all attention and MLP are not modelled",
    "is-hybrid-model": "layers that are not all attention and MLP are not modelled",
    "hybrid-attention-ratio": "layers that are not all attention and MLP are not modelled",
    "hybrid-mlp-ratio": "layers that are not all attention and MLP are not modelled",
    "heterogeneous-layers-config-path": "layers that differ are not modelled",
    "decoder-seq-length": "models with an encoder are not modelled",
    "decoder-num-layers": "models with an encoder are not modelled",
    "fp32-residual-connection": "residuals in fp32 are not modelled",
    "fp4-format": "products in fp4 are not modelled",
    "hierarchical-context-parallel-sizes": "context parallelism in two steps is not modelled",
}
"""What is not modelled and cannot be passed over."""

REFUSED_PREFIXES = {
    "encoder-": "models with an encoder are not modelled",
    "retro-": "retrieval is not modelled",
    "mamba-": "layers that are not all attention and MLP are not modelled",
    "bert-": "models with an encoder are not modelled",
    "mtp-": "multi-token prediction is not modelled",
    "vision-": "models of images are not modelled",
}
