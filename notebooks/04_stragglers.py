# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Stragglers: one slow GPU, from cause to dollars
#
# A synchronous step takes as long as its slowest part. One GPU of 32 runs 20 % slower than its peers, as a bad fan is
# enough to make it. Who waits, what does it cost, and what should be done about it?

# %%
# %matplotlib inline
import tempfile
from pathlib import Path

import pandas as pd

import simcluster
from simcluster.replay import load_trace, measure
from simcluster.replay.written import write_trace

PRICE = 2.50  # dollars for an hour of one H100: an assumption; put yours here

job = simcluster.load("slow_gpu", {"training.global_batch": 16, "overlap.tensor": False})
result = simcluster.simulate(job)
pd.Series({"step (s)": result.step_time, "without the fault (s)": result.without_faults}, name=job.name).round(3)

# %% [markdown]
# ## Who waits
#
# Its neighbours on the tensor axis (28, 30 and 31) wait at every layer, the stage before it for gradients, and so on up
# the pipeline; the other replica at the end of the step. A row waits, for a column. Most of what is seen is the
# pipeline's own: every stage waits for the next one's gradients, and all wait at the end for stage 0, which has the last
# backward, so rank 0's column is the tallest. Among the tensor-parallel neighbours of its stage rank 29 stands out, and
# it waits least of all: that is how a slow GPU looks from outside.

# %%
simcluster.plots.waits(result)

# %% [markdown]
# ## What it costs, and what else does
#
# Each cause is taken away by playing the step without it. The slow GPU is in the last stage, which also has the LM head
# and is the longest already: most of what people see on such a cluster is not the broken fan. `by trace` is what an
# estimator makes of the run's trace alone, all that there is of a real job: it puts what is typical in the place of the
# worker's times. For the slow GPU that is near; for the long stage it promises too much, because the slow GPU is in that
# stage, too, and because no cut of the layers makes a stage with the LM head typical.

# %%
found = simcluster.stragglers(result)
pd.DataFrame(
    [
        {
            "cause": cause.what,
            "costs (% of the step)": 100 * cause.cost,
            "by trace (%)": None if cause.estimated_cost is None else 100 * cause.estimated_cost,
            "step without it (s)": cause.without,
        }
        for cause in found.causes
    ]
).round(3)

# %%
lost = result.step_time - result.without_faults
gpu_hours = 24 * job.gpus * lost / result.step_time
pd.Series(
    {
        "lost of every step (ms)": 1000 * lost,
        "GPU-hours lost a day": gpu_hours,
        "of": 24 * job.gpus,
        "dollars lost a day": PRICE * gpu_hours,
        "what the slow GPU's own day costs": 24 * PRICE,
    }
).round(1)

# %% [markdown]
# ## What pays
#
# Every answer is a run. Replacing the machine takes all of the cost away. Without a spare, stages cut by their real
# times win back two thirds of it. Dropping the machine means to lose a whole replica here: a step takes half as long
# again, though on half the GPUs, which saves GPU time if the other machine of that replica finds work elsewhere.

# %%
tried = simcluster.what_pays(result)
pd.DataFrame(
    [
        {
            "what": each.what,
            "step (s)": each.step_time,
            "GPUs": each.gpus,
            "time saved (%)": 100 * each.pays,
            "GPU time saved (%)": 100 * each.pays_per_gpu,
            "dollars a day": PRICE * 24 * job.gpus * each.pays_per_gpu,
        }
        for each in tried
    ]
).round(2)

# %% [markdown]
# ## When every GPU is a little slow, sometimes
#
# Kernels jitter. A step then is a draw, and the average over many draws is longer than the step without jitter: ranks
# that meet take the slowest of them each time. 200 replicas are one sweep. Does the slow GPU cost as much when
# everything jitters? Both jobs draw the same numbers, so their difference is known far better than either. It costs
# less: of four tensor-parallel ranks that jitter one is late anyway, and only the latest counts.

# %%
jitter = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}
slow = {"kind": "slow_gpu", "rank": 29, "factor": 1.2}
changes = {"training.global_batch": 16, "overlap.tensor": False, "replicas": 200}
healthy, broken = (
    simcluster.monte_carlo(simcluster.load("slow_gpu", {**changes, "faults": faults}))
    for faults in ([jitter], [jitter, slow])
)
difference = simcluster.compare_replicas(healthy, broken)
pd.DataFrame(
    {
        "healthy (s)": [healthy.planned, healthy.mean],
        "one slow GPU (s)": [broken.planned, broken.mean],
        "it costs (ms)": [1000 * lost, 1000 * difference.mean],
        "give or take (ms)": [0.0, 1000 * (difference.interval[1] - difference.mean)],
    },
    index=["without jitter", "mean of 200 with jitter"],
).round(3)

# %%
simcluster.plots.replicas(broken, title="one slow GPU, and every kernel jitters by 10 %")

# %% [markdown]
# ## The same question to a recorded job
#
# Of a real job there is a trace, and nobody knows the cause. Here is one of our own making: an op a row, in the format
# of ByteDance's published traces. The estimator (arXiv:2505.05713) replays it with typical times in place of the
# recorded ones: all but one worker's, one stage's, one replica's.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "job.parquet"
    write_trace(result, path)
    recorded = measure(load_trace(path))
pd.Series(
    {
        "S": recorded.slowdown,
        "worst worker (dp rank, stage)": recorded.worst[0],
        "of the excess goes with a typical last stage": recorded.last_stage.removed,
        "S of the longest dp rank": recorded.by_replica.max(),
        "S of the longest stage": recorded.by_stage.max(),
    }
)

# %% [markdown]
# It finds the tensor-parallel group of rank 29. A typical last stage takes away more than all of the excess: both the
# slow GPU and the LM head are in it, and the mean that counts as typical has a share of both.

# %%
simcluster.plots.stragglers(result, found)
