#!/bin/bash
# A launch with the constructs of published scripts: defaults, arrays, arithmetic, tests, strings that hold options.
export CUDA_DEVICE_MAX_CONNECTIONS=1

CHECKPOINT_PATH=${1:-"checkpoints/small"}
TOKENIZER=${2:-MOCK}
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=2
PP=$((WORLD_SIZE / (TP * 4)))
DTYPE="fp8"
mkdir -p "$(dirname "$CHECKPOINT_PATH")"

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_port $(shuf -n 1 -i 10000-65535)
)
MODEL_ARGS=(
    --num-layers 8 --hidden-size 1024   # a comment
    --num-attention-heads 16
    # --ffn-hidden-size 1
    --seq-length ${SEQ:=2048} --max-position-embeddings $SEQ
    --swiglu --bf16
)
TRAINING_ARGS="--micro-batch-size 1 \
    --global-batch-size $((WORLD_SIZE * 4)) \
    --lr ${LR:-1e-4} "
DTYPE_ARGS=()
if [[ "$DTYPE" == fp* ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-amax-history-len 1024")
fi
if [ "$TOKENIZER" = "MOCK" ]; then
    DATA="--mock-data --tokenizer-type NullTokenizer --vocab-size 32000"
else
    DATA="--tokenizer-type HuggingFaceTokenizer --tokenizer-model $TOKENIZER --data-path $DATA_DIR/x"
fi
case $PP in
    1) STAGES="" ;;
    2|4) STAGES="--num-layers-per-virtual-pipeline-stage 1" ;;
    *) echo "no such pp"; exit 1 ;;
esac
if [ -n "$WANDB_API_KEY" ]; then DATA="$DATA --wandb-project ${WANDB_PROJECT:-x}"; fi
if [ ! -f pretrain_gpt.py ]; then echo "not found"; exit 1; fi
[ -z "$EXTRA" ] || MODEL_ARGS+=(--qk-layernorm)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py "${MODEL_ARGS[@]}" $TRAINING_ARGS ${DTYPE_ARGS[@]} $DATA $STAGES \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --sequence-parallel \
    --save $CHECKPOINT_PATH $MORE_ARGS 2>&1 | tee log.txt
