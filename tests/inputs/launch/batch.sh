#!/bin/bash
NODES=${NODES:-3}
ARGS=(--num-layers 6 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024
      --micro-batch-size 2 --bf16 --vocab-size 5000)
if [ "${FSDP:-1}" = 1 ]; then
    ARGS=("${ARGS[@]}" --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params)
fi
CMD="cd $REPO; export PYTHONPATH=$REPO:$PYTHONPATH; python $REPO/pretrain_gpt.py ${ARGS[@]} --global-batch-size $BATCH"
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=$NODES
#SBATCH --gres=gpu:8
srun --mpi=pmix bash -x -c "${CMD}" 2>&1 | tee logs/\${SLURM_JOB_ID}.log
EOF
