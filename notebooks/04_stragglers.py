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
import pandas as pd
from IPython.display import Markdown

import simcluster

PRICE = 2.50  # dollars for an hour of one H100: an assumption; put yours here

job = simcluster.scenario("slow_gpu", {"training.global_batch": 16, "overlap.tensor": False})
result = simcluster.simulate(job)
pd.Series({"step (s)": result.step_time, "without the fault (s)": result.without_faults}, name=job.name).round(3)

# %% [markdown]
# ## Who waits
#
# Its neighbours on the tensor axis (28, 30 and 31) wait at every layer, the stage before it for gradients, and so on up
# the pipeline; the other replica at the end of the step. A row waits, for a column. Most of what is seen is the
# pipeline's own: every stage waits for the next one's gradients, and all wait at the end for stage 0, which has the last
# backward.

# %%
simcluster.plots.waits(result)

# %%
matrix = result.wait_matrix
assert matrix.unit == "rank"
neighbours = range(28, 32)
assert matrix.waited_seconds[29] == min(matrix.waited_seconds), "the slow GPU waits least of all"
assert matrix.awaited_seconds[29] == max(matrix.awaited_seconds[rank] for rank in neighbours)
Markdown(
    f"The tallest column is rank {matrix.awaited_seconds.argmax()}'s. Among the tensor-parallel neighbours of its stage rank 29 stands "
    f"out: others wait {1000 * matrix.awaited_seconds[29]:.0f} ms for it in all, and it waits least of all, {1000 * matrix.waited_seconds[29]:.0f} ms where "
    f"its neighbours wait {1000 * min(matrix.waited_seconds[rank] for rank in neighbours if rank != 29):.0f} ms or more. "
    "That is how a slow GPU looks from outside."
)

# %% [markdown]
# ## What it costs, and what else does
#
# Each cause is removed by simulating the step without it. The slow GPU is in the last stage, which also has the LM head
# and is the longest already. `by trace` is what an estimator makes of the run's trace alone, all that there is of a real
# job: it puts typical times instead of the worker's.

# %%
found = simcluster.stragglers(result)
pd.DataFrame(
    [
        {
            "cause": cause.what,
            "costs (% of the step)": 100 * cause.cost,
            "by trace (%)": None if cause.estimated_cost is None else 100 * cause.estimated_cost,
            "step without it (s)": cause.step_time_without,
        }
        for cause in found.causes
    ]
).round(3)

# %%
by_name = {cause.what.split(",")[0]: cause for cause in found.causes}
head, uneven, fan = (by_name[name] for name in ("LM head and loss", "uneven stages", "slow gpu"))
assert head.cost > uneven.cost > fan.cost, "most of what people see on such a cluster is not the broken fan"
assert uneven.estimated_cost > uneven.cost
Markdown(
    f"Most of what people see on such a cluster is not the broken fan: it costs {fan.cost:.1%}, stages of uneven length "
    f"{uneven.cost:.1%}. For the slow GPU the estimate from the trace is {100 * abs(fan.estimated_cost - fan.cost):.1f} points off; "
    f"for the long stage it promises {100 * (uneven.estimated_cost - uneven.cost):.1f} points too much, because the slow GPU is in "
    "that stage, too, and because no cut of the layers makes a stage with the LM head typical."
)

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
# Every answer is a run.

# %%
tried = simcluster.mitigations(result)
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

# %%
rebalanced, replaced, dropped = (next(each for each in tried if each.what.startswith(verb)) for verb in ("rebalance", "replace", "drop"))
assert abs(replaced.step_time - result.without_faults) < 1e-9, "replacing the machine takes all of the fault's cost away"
Markdown(
    f"Replacing the machine takes all of the slow GPU's cost away, {replaced.pays:.1%} of the step. Without a spare, stages cut by "
    f"their real times save {rebalanced.pays:.1%}: {'more' if rebalanced.pays > replaced.pays else 'less'} than that, because the "
    "last stage was too long before the fan broke. Dropping the machine means to lose a whole replica here: a step takes "
    f"{dropped.step_time / result.step_time:.2f} times as long, on half the GPUs, which saves {dropped.pays_per_gpu:.0%} of the GPU time if the "
    "other machine of that replica finds work elsewhere."
)

# %% [markdown]
# ## When every GPU is a little slow, sometimes
#
# Kernels jitter. A step then is a draw, and the average over many draws is longer than the step without jitter: ranks
# that meet take the slowest of them each time. 200 replicas are one sweep. Does the slow GPU cost as much when
# everything jitters? Both jobs draw the same numbers, so their difference is known far better than either.

# %%
jitter = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}
slow = {"kind": "slow_gpu", "rank": 29, "slowdown": 1.2}
changes = {"training.global_batch": 16, "overlap.tensor": False, "replicas": 200}
healthy, broken = (
    simcluster.monte_carlo(simcluster.scenario("slow_gpu", {**changes, "faults": faults}))
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
assert difference.interval[1] < lost
Markdown(
    f"It costs less: {1000 * difference.mean:.0f} ms of every step instead of {1000 * lost:.0f}. Of four tensor-parallel ranks that "
    "jitter one is late anyway, and only the latest counts."
)

# %%
simcluster.plots.replicas(broken, title="one slow GPU, and every kernel jitters by 10 %")

# %% [markdown]
# ## The same question to a recorded job
#
# A real job leaves a trace, and its cause is unknown. Here is one of our own making: an op a row, in the format
# of ByteDance's published traces. The estimator (arXiv:2505.05713) replays it with typical times in place of the
# recorded ones: all but one worker's, one stage's, one replica's.

# %%
recorded = simcluster.replay_trace(result)
pd.Series(
    {
        "S": recorded.slowdown,
        "worst worker (dp rank, stage)": recorded.worst[0],
        "of the excess disappears with a typical last stage": recorded.last_stage.removed,
        "S of the longest dp rank": recorded.by_replica.max(),
        "S of the longest stage": recorded.by_stage.max(),
    }
)

# %%
assert tuple(recorded.worst[0]) == (1, 3), "the tensor-parallel group of rank 29"
Markdown(
    f"It finds the tensor-parallel group of rank 29. A typical last stage takes away {recorded.last_stage.removed:.0%} of the excess: both "
    "the slow GPU and the LM head are in it, and the mean that counts as typical has a share of both."
)

# %%
simcluster.plots.stragglers(result, found)
