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
# # Planning: 175B on 1,024 GPUs, from a first idea to a launch
#
# 128 machines of 8 H100 are ours for some days, and a model of GPT-3's size is to be trained on them, a million tokens a
# step. How should the job be split, what is the cluster short of, and is there anything to fix before the launch?

# %%
# %matplotlib inline
import pandas as pd

import simcluster
from simcluster.scenario.scenario import from_document
from simcluster.whatif.preflight import preflight

TOKENS = 300e9  # of the whole training
PRICE = 2.50  # dollars for an hour of one GPU: an assumption; put yours here

idea = {
    "name": "first idea",
    "cluster": {"topology": "dgx_h100", "nodes": 128},
    "model": {"preset": "gpt3-175b"},
    "parallel": {"tp": 8, "pp": 8, "sequence_parallel": True, "zero": 1},
    "pipeline": {"schedule": "1f1b"},
    "training": {"global_batch": 512, "micro_batch": 1, "recompute": "selective"},
    "overlap": {"grad_reduce": True, "param_gather": True},
}
first = simcluster.simulate(from_document(idea))


def bill(result):
    """Days and dollars of the whole training."""
    seconds = TOKENS / result.facts.tokens * result.step_time
    dollars = seconds / 3600 * PRICE * result.scenario.gpus
    return {"step (s)": round(result.step_time, 3), "MFU": f"{result.mfu:.1%}", "days": round(seconds / 86400, 1),
            "million dollars": round(dollars / 1e6, 2)}  # fmt: skip


pd.Series(bill(first), name="first idea")

# %% [markdown]
# ## Where it goes
#
# The first idea is what people wrote in 2021: tensor parallelism fills a machine, a pipeline does the rest. Under the
# roofs of an H100 its products are well placed, right of the knee: device memory does not limit them. Communication has
# a picture of its own: what comes down to the dashed line would take as long as the step does. Nothing is there, but
# tensor parallelism alone takes a quarter of the step, and it lies under the roof of NVLink: only less traffic helps.

# %%
simcluster.plots.roofline(first)

# %% [markdown]
# ## All splits of a small job
#
# `simcluster.plan` goes through every layout that there is: tensor and pipeline parallelism, micro batches, recomputation,
# schedules, ZeRO stages, orders of ranks. It plays only those that a lower bound of their step leaves a chance, so what it
# finds is the best of all. A job of eight GPUs takes two seconds, one of a thousand some minutes; then
# `simcluster plan scenario.yaml -o rows.parquet` does it on all cores, and goes on where it was if it is killed.

# %%
small = simcluster.plan("tiny_3d", front=True, top=5)
print(f"{small.total:,} combinations, {small.played} played")
pd.DataFrame([{"tp": one.layout.tp, "pp": one.layout.pp, "micro batch": one.layout.micro_batch,
               "schedule": one.layout.schedule, "zero": one.layout.zero, "order": " ".join(one.layout.order),
               "step (ms)": round(1e3 * one.step_time, 3), "memory (GB)": round(one.memory / 1e9, 2)}
              for one in small.best])  # fmt: skip

# %% [markdown]
# Time is to be had for memory. Nothing is faster with as little memory as what is on the line. (Here memory is plenty; a
# job that fills its GPUs ends at the limit.)

# %%
simcluster.plots.pareto(small, "the small job")

# %% [markdown]
# ## Other splits of ours
#
# A sweep plays every combination of what is named; what cannot be is a row with its reason.

# %%
rows = simcluster.sweep(idea, {"parallel.tp": [4, 8], "parallel.pp": [8, 16]})
rows["memory (GB)"] = (rows["peak_memory_bytes"] / 1e9).round(1)
rows.sort_values(["fits", "step_time_s"], ascending=[False, True])[
    ["parallel.tp", "parallel.pp", "step_time_s", "mfu", "bubble_fraction", "memory (GB)", "fits"]
].round(3)

# %% [markdown]
# tp 4 wins, if by little: less than half of the traffic inside a machine. So tp 4 and pp 8 it is; and what has that
# changed?

# %%
better = from_document({**idea, "name": "tp 4"}, {"parallel.tp": 4})
second = simcluster.simulate(better)
found = simcluster.diff(first, second)
print(found.in_words())

# %%
causes = simcluster.differences([first, second], ["first idea", "tp 4"])
simcluster.plots.waterfall({"first idea": first.step_time, "tp 4": second.step_time}, causes)

# %% [markdown]
# What tp 4 saves on NVLink it gives away to the pipeline: half as many microbatches for each replica, so a larger bubble.
#
# ## What would pay
#
# How much shorter does the step get for each percent more of something? Products come first; then NVLink, which tensor
# parallelism needs. A faster network is worth next to nothing, so it is not what to spend money on.

# %%
simcluster.plots.sensitivity(
    simcluster.sensitivity(better, ["flops", "nvlink", "network"]), title="tp 4"
)

# %% [markdown]
# The links say why. Gradients fill the NICs at the end of a step, and for a tenth of it in all, most of it beside compute;
# the spines hardly see the job, because rings keep to their rails.

# %%
simcluster.plots.link_levels(second)

# %% [markdown]
# ## Before the launch
#
# The checklist goes through what has gone wrong before, each point with its number; where one is not passed it has
# played what would fix it. `simcluster check scenario.yaml --strict` in a launch script stops a job that fails.

# %%
points = preflight(second)
pd.DataFrame([{"point": point.name, "verdict": point.verdict, "found": point.found,
               "fix, as played": "" if point.remedy is None else str(point.remedy.values)} for point in points])  # fmt: skip

# %% [markdown]
# It fails: a third of the pipeline's time is idle. We take what it has tried: four chunks a stage, interleaved, and the
# input gradient's reduction beside the weight gradient's product.

# %%
fixes = {path: value for point in points if point.remedy for path, value in point.remedy.values.items()}
final = from_document({**idea, "name": "launch"}, {"parallel.tp": 4, **fixes})
launch = simcluster.simulate(final)
pd.DataFrame({result.scenario.name: bill(result) for result in (first, second, launch)}).T

# %%
simcluster.plots.compare_gantts([("first idea", first), ("launch", launch)], window=(0, 1.5))

# %% [markdown]
# ## More GPUs?
#
# The same batch on half of the GPUs, and on twice as many. With fewer microbatches for each replica bubbles grow again:
# the percentage is what a GPU does of its work on 512, the price of being done earlier.

# %%
def on(nodes):
    """The job as launched, on other numbers of machines."""
    return from_document(idea, {"cluster.nodes": nodes, "parallel.tp": 4, **fixes})


table = simcluster.compare([on(64), launch, on(256)], ["512 GPUs", "1,024 GPUs", "2,048 GPUs"])
simcluster.plots.scaling(table, title="the job as launched, the same batch")
