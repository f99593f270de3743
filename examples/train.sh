#!/bin/bash
# A launch script as Megatron-LM's own examples are: Llama 3 8B on 4 machines of 8 GPUs.  simcluster import reads it.
set -euo pipefail

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-4}
DATA_PATH=${1:?"where the tokens are"}

DISTRIBUTED_ARGS=(
    --nproc_per_node "$GPUS_PER_NODE"
    --nnodes "$NUM_NODES"
    --master_addr "${MASTER_ADDR:-localhost}"
    --master_port 6000
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 500000
    --swiglu
    --normalization RMSNorm
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --vocab-size 128256
    --make-vocab-size-divisible-by 128
    --attention-backend flash
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --train-samples 1000000
    --lr 3.0e-4
    --min-lr 3.0e-5
    --lr-decay-style cosine
    --clip-grad 1.0
    --weight-decay 0.1
    --bf16
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 4
    --pipeline-model-parallel-size 2
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "${PARALLEL_ARGS[@]}" \
    --data-path "$DATA_PATH" --log-interval 1 --eval-iters 10
