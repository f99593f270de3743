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
# # Schedules, memory and overlap
#
# Three things decide a parallel plan: the order of microbatches on the pipeline, what a GPU must hold meanwhile, and how
# much communication overlaps with computation. First with given times, where formulas are exact; then in a real step,
# where they are not.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import Markdown

import simcluster

# %% [markdown]
# ## Nine orders of the same work
#
# Four stages, eight microbatches, F = I = W = 1 (a whole backward B is 2). A box is one pass of one microbatch;
# where a backward is split into I and W, W waits until there is nothing better to do. Shades are chunks of layers.

# %%
names = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "dualpipe-v", "chimera"]
played = simcluster.simulate_schedules(names, stages=4, microbatches=8)
simcluster.plots.schedules(played, columns=2, width=14)

# %% [markdown]
# Time is paid for with memory: `peak` is the most microbatches' activations that a stage holds at once, in units of
# what one microbatch leaves in a whole stage. To the lower left is better.

# %%
table = pd.DataFrame(
    {
        "makespan": [float(each.timing.makespan) for each in played],
        "bubble / total": [float(1 - each.ideal_time / each.timing.makespan) for each in played],
        "bubble / longest span": [float(each.span_bubble) for each in played],
        "peak activations": [float(max(each.peak_activations)) for each in played],
    },
    index=names,
).round(3)
table

# %%
idle = table["bubble / total"] / table.loc["1f1b", "bubble / total"]
peak = table["peak activations"] / table.loc["1f1b", "peak activations"]
assert peak["zb-v"] == 1 and table.loc["zb-h2", "bubble / longest span"] == 0 < table.loc["zb-h2", "bubble / total"]
Markdown(
    f"ZB-V idles {idle['zb-v']:.2f} times as long as 1F1B at the same peak, V-half {idle['v-half']:.2f} times as long at "
    f"{peak['v-half']:.2f} of it (a half, with many stages). ZB-H2 idles {idle['zb-h2']:.2f} times as long, but not within "
    "its stages' own spans: they only begin and end at different times, which pays where the next step may begin before "
    "all are done."
)

# %%
figure, axes = plt.subplots(figsize=(7, 3.6))
axes.scatter(table["peak activations"], table["bubble / total"], color="#0072B2")
for name, row in table.iterrows():
    axes.annotate(name, (row["peak activations"], row["bubble / total"]), xytext=(5, 3), textcoords="offset points")
axes.set_xlabel("peak activations (microbatches of a whole stage)")
axes.set_ylabel("bubble / total")
axes.margins(0.12)
axes.set_ylim(0)
figure.tight_layout()

# %% [markdown]
# ## In a real step
#
# GPT-3 175B on 64 A100: tensor parallelism of 8, eight stages, 64 microbatches. The bubble shrinks as promised; does
# the step? A split backward has no weight gradient left that could overlap with the tensor-parallel gathers, so that
# `exposed_tp` takes a part of what the bubble gives.

# %%
schedules = ["1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"]
results = {
    name: simcluster.simulate(
        simcluster.scenario(
            "gpt3_175b_64xa100", {"pipeline.schedule": name, "pipeline.chunks": 3 if name == "interleaved" else 1}
        )
    )
    for name in schedules
}
table = simcluster.compare(list(results.values()), names=schedules)
table[["step_time_s", "mfu", "bubble_fraction", "exposed_tp", "exposed_pp", "bubble", "peak_memory_bytes"]].round(4)

# %%
parts = table[["step_time_s", "exposed_tp", "bubble"]].astype(float)
saved = parts.loc["1f1b"] - parts
assert parts.loc["zb-v", "bubble"] == parts["bubble"].min()
Markdown(
    f"The fastest is {parts['step_time_s'].idxmin()}, with {parts['step_time_s'].min():.2f} s. "
    + " ".join(
        f"{name}'s bubble is {saved.loc[name, 'bubble']:.2f} s shorter than 1F1B's, its step {saved.loc[name, 'step_time_s']:.2f} s; "
        f"`exposed_tp` takes {-saved.loc[name, 'exposed_tp']:.2f} s."
        for name in ("zb-h1", "zb-v", "dualpipe-v")
    )
)

# %% [markdown]
# ## Memory over time
#
# Every pass allocates what its layers keep and frees it again, layer by layer, on the same clock. 1F1B on the first
# stage is a sawtooth of one microbatch. Under ZB-V weight gradients that are put off still hold their inputs.

# %%
simcluster.plots.memory(results["1f1b"], ranks=[0, 56])

# %%
simcluster.plots.memory(results["zb-v"], ranks=[0, 56])

# %% [markdown]
# It does not have to be guessed what would make a run fit. The shortest lists of changes are computed: each is
# planned anew, checked against every rule, and counted.

# %%
tight = simcluster.scenario("gpt3_175b_64xa100", {"training.recompute": "none"})
over = simcluster.simulate(tight)
print(f"{over.memory.total / 1e9:.1f} GB of {tight.cluster.device.memory / 1e9:.0f} GB")
for remedy in over.to_dict()["fits_with"]["remedies"]:
    print(f"{remedy['peak_memory_bytes'] / 1e9:6.1f} GB with {remedy['set']}")

# %% [markdown]
# ## Overlap
#
# The same 7B model on 128 A100, sharded inside machines and replicated across (HSDP). Parameters are gathered ahead of
# their use and gradients reduced after it, or each of them blocks. On one communicator a gather that blocks also waits
# for the reductions issued before it.

# %%
switches = {
    "as built in": {},
    "gathers block": {"overlap.param_gather": False},
    "reductions block": {"overlap.grad_reduce": False},
    "both block": {"overlap.param_gather": False, "overlap.grad_reduce": False},
}
sharded = {name: simcluster.simulate("hsdp_7b_128xa100", changes) for name, changes in switches.items()}
simcluster.plots.overlap(list(sharded.items()))

# %%
Markdown("Of the communication " + ", ".join(
    f"{each.times.overlap_fraction:.0%} hides where {name.replace('as built in', 'nothing blocks')}" for name, each in sharded.items()
) + ".")  # fmt: skip

# %% [markdown]
# Where the milliseconds went, cause by cause: the causes add up to the difference.

# %%
pair = [sharded["as built in"], sharded["both block"]]
causes = simcluster.differences(pair, names=["as built in", "both block"])
simcluster.plots.waterfall({"as built in": pair[0].step_time, "both block": pair[1].step_time}, causes)

# %% [markdown]
# ## What the step waits for
#
# The critical path is the chain of ops that decides the step. What lies on it may still not pay: if tensor-parallel
# communication were free, another chain would take over. So each kind is also simulated as free.

# %%
simcluster.plots.critical_path(results["interleaved"])

# %% [markdown]
# ## Uneven stages
#
# With a vocabulary of 256,000 the last stage's LM head weighs as much as several layers, and everybody waits for it.
# `layers_per_stage: auto` balances by the run's own times.

# %%
large = {"pipeline.schedule": "1f1b", "pipeline.chunks": 1, "model.vocab_size": 256_000}
for layers in ["even", "auto"]:
    each = simcluster.simulate("gpt3_175b_64xa100", {**large, "pipeline.layers_per_stage": layers})
    print(f"{layers:>5}: {each.step_time:.2f} s, bubble {each.times.bubble_fraction:.1%}")
