#!/bin/bash
#SBATCH --nodes=4 --exclusive --ntasks-per-node=8
#SBATCH <YOUR SLURM OPTIONS>

DIR=`pwd`
. ./sizes.sh
cat <<EOT > $DIR/ds.json
{"zero_optimization": {"stage": $ZERO}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2}
EOT
train() {
    run_cmd="python -u ${DIR}/pretrain_gpt.py ${options} $@"
    srun -l --container-image "nvcr.io/x" bash -c "${run_cmd}"
}
options=" --num-layers $NLS --hidden-size 512 --num-attention-heads 8 --seq-length 1024 \
    --max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64 --fp16 \
    --tensor-model-parallel-size 2 --vocab-file <PATH TO vocab.json> --checkpoint-activations \
    --deepspeed --deepspeed_config $DIR/ds.json"
for zero in 1; do
    train --swiglu
done
exit 0
