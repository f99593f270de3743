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
# # Order statistics: what GPUs that are not equally fast make of a step
#
# No two GPUs of a cluster are equally fast. A barrier of N of them waits for the slowest, and the mean of the largest of
# N draws grows with N for ever. Is that what becomes of a training step? It has thousands of barriers of 8, 64 or N
# ranks, time in which no rank computes, and ranks that wait anyway. Here the closed form for one barrier is compared with
# what the dependency graph makes of the same GPUs, from 64 to 131,072 of them.

# %%
# %matplotlib inline
import runpy
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

import simcluster

clone = next(folder for folder in (Path.cwd(), Path.cwd().parent) if (folder / "examples").is_dir())
study = runpy.run_path(str(clone / "examples" / "inflation.py"))
rows = study["kept"]()

# %% [markdown]
# ## The table
#
# Percent that a step takes longer than on equal GPUs, by schedule and number of GPUs, a column for each sigma of their
# speeds (lognormal, mean 1). All jobs train the same 16 layers of Llama 3 70B, and each GPU has as much to do on any
# number of them: FSDP in shards of 64, or pipelines of 8 stages of 8 tensor-parallel GPUs with 16 microbatches. Each
# entry is the mean of 6 (131,072 GPUs) to 100 clusters that were drawn; the table is `examples/inflation.py`'s.

# %%
shown = rows.assign(longer=100 * (rows["inflation"] - 1))
wide = shown.pivot(index=["gpus", "schedule"], columns="sigma", values="longer").round(1)
alone = shown.drop_duplicates(["gpus", "sigma"]).assign(longer=lambda each: 100 * (each["barrier"] - 1))
one = alone.pivot(index="gpus", columns="sigma", values="longer").round(1)
one.index = pd.MultiIndex.from_product([one.index, ["one barrier"]], names=wide.index.names)
pd.concat([wide, one]).sort_index(kind="stable")

# %%
study["picture"](rows)

# %% [markdown]
# ## Why it is less than a barrier, and where it is not


# %%
def share(schedule, gpus, sigma=0.05):
    (row,) = rows[(rows.schedule == schedule) & (rows.gpus == gpus) & (rows.sigma == sigma)].to_dict("records")
    return (row["inflation"] - 1) / (row["barrier"] - 1)


assert 0.9 < share("FSDP", 64) < 1.05, "who computes all of the time and meets everybody is one barrier"
assert all(
    share(schedule, gpus) < share("FSDP", gpus) for schedule in ("1f1b", "interleaved", "zb-h1") for gpus in (64, 512)
)
Markdown(
    f"FSDP is one barrier: it gets {share('FSDP', 64):.0%} of what the closed form says on 64 GPUs and {share('FSDP', 131_072):.0%} "
    "on 131,072. All ranks compute nearly all of the time, and every gather waits for the slowest rank. "
    f"1F1B gets {share('1f1b', 64):.0%} and {share('1f1b', 131_072):.0%}: its tensor-parallel traffic takes as long on slow GPUs, and "
    "while a pipeline fills and drains the time is that of all its stages, one after the other, of which most are not the "
    "slowest. Doubling the number of GPUs costs less and less: the largest of N draws grows as sqrt(2 ln N)."
)

# %% [markdown]
# ## Kernels that jitter
#
# A draw for each kernel instead of one for each GPU: most of it averages out between two barriers, and the longer
# ranks compute alone, the more of it does. Tensor parallelism meets after every few kernels, and pays for each meeting.
# The same for own scenarios: `simcluster.inflation({name: scenario}, sigmas, per="gpu" or "kernel")`.

# %%
kernels = pd.concat(
    simcluster.inflation({name: study["job"](name, 64)}, [0.03, 0.09], per="kernel", replicas=10)
    for name in ("FSDP", "1f1b")
)
kernels.assign(longer=100 * (kernels["inflation"] - 1), interval=100 * kernels["interval"])[
    ["scenario", "gpus", "sigma", "longer", "interval"]
].round(2)

# %%
largest = kernels.set_index(["scenario", "sigma"])["inflation"]
lasting = rows[(rows.gpus == 64) & (rows.sigma == 0.09)].set_index("schedule")["inflation"]
assert 1 < largest["FSDP", 0.09] < largest["1f1b", 0.09] < lasting["1f1b"] < lasting["FSDP"]
Markdown(
    f"Kernels that differ by 9 % make FSDP {largest['FSDP', 0.09] - 1:.1%} longer and 1F1B {largest['1f1b', 0.09] - 1:.1%}. GPUs that "
    f"differ by as much and stay so: {lasting['FSDP'] - 1:.1%} and {lasting['1f1b'] - 1:.1%}."
)
