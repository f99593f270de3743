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
# # One training step, from the first line to a what-if
#
# GPT-3 175B on 64 A100 in 2022: the run of table 5 in arXiv:2205.05198. A step took 13.75 s.
# We replay it, look where the time goes, and change one thing at a time.

# %%
import simcluster

scenario = simcluster.scenario("gpt3_175b_64xa100")  # a built-in name, or the path of a YAML file
result = simcluster.simulate(scenario)
print(f"predicted {result.step_time:.2f} s, measured {scenario.measured.step_time:.2f} s")

# %% [markdown]
# ## The answer
#
# What stands last in a cell is shown: the numbers, where the time went, and a row for each pipeline stage.
# `print(result)` is the text of `simcluster run`.

# %%
result

# %% [markdown]
# ## In numbers
#
# Every number of the result is an attribute, in SI units; `to_dict` has them all, as `simcluster run --json` does.
# `mfu` counts the model's FLOPs only; `hfu` also what is computed twice.

# %%
print(f"{result.tokens_per_s:,.0f} tokens/s, MFU {result.mfu:.1%}, HFU {result.hfu:.1%}; bubble {result.bubble_fraction:.1%}")
print(f"{result.communication_s:.2f} s of communication, {result.overlap_fraction:.0%} of it overlapped with computation; "
      f"{result.exposed_communication_s:.2f} s hold a GPU up")

# %% [markdown]
# ## Where the time went
#
# At any moment a GPU computes, or communicates with nothing to compute (exposed), or waits.
# So the parts add up to the step. They are means over all 64 GPUs.

# %%
spent = result.breakdown[result.breakdown > 0]
assert abs(spent.sum() - result.step_time) < 1e-9
spent.round(3)

# %% [markdown]
# ## The step as a picture
#
# One row per pipeline stage. Blue is forward, orange backward; shades are the three chunks of layers that a stage holds.
# The pipeline fills at the left and drains at the right: that white is the bubble.

# %%
result.gantt(rows="stage", width=12)

# %% [markdown]
# To zoom into it, to search it and to ask what a span is, let the cell end with the interactive one.
# It is kept in the notebook and needs nothing else; `save` writes it as a page.

# %%
timeline = result.gantt(interactive=True, ranks=[0, 8])

# %% [markdown]
# ## Closer
#
# 12 ms of one GPU. Under the computing row: tensor parallelism on NVLink, after every block of a layer.
# Nothing can be computed meanwhile, so these slivers are the `exposed_tp` of the bars.
# Green: microbatch 4 is done here and moves on to the next stage.

# %%
result.gantt(ranks=[0], window=(0.1, 0.112), width=12)

# %% [markdown]
# ## Change one thing: the schedule
#
# The same step with one chunk a stage (plain 1F1B): the pipeline fills in bigger pieces, so more of it is bubble.

# %%
plain = simcluster.simulate("gpt3_175b_64xa100", {"pipeline.schedule": "1f1b"})
table = simcluster.compare([result, plain], names=["interleaved", "1f1b"])
table[["step_time_s", "difference_s", "mfu", "bubble_fraction", "exposed_tp", "exposed_pp", "bubble"]].round(3)

# %%
simcluster.plots.compare_gantts([("interleaved", result), ("1f1b", plain)], width=12)

# %% [markdown]
# ## One slow GPU
#
# Rank 60, in the last stage, takes 20 % longer for everything. Its seven tensor-parallel peers wait at every collective,
# and the seven other stages wait for theirs. One GPU of 64 is slow, and the whole job is.

# %%
fault = {"kind": "slow_gpu", "rank": 60, "slowdown": 1.2}
slow = simcluster.simulate("gpt3_175b_64xa100", {"faults": [fault]})
print(f"{slow.step_time:.2f} s, {slow.step_time / result.step_time:.3f} times as long")
for wait in [wait for wait in slow.waits if wait.culprit == 60][:3]:
    print(f"rank {wait.rank} waited {wait.seconds:.2f} s for rank {wait.culprit} ({wait.where})")

# %% [markdown]
# ## Does it fit?
#
# Interleaving holds more microbatches in flight than 1F1B, so its time is paid for with memory.
# GPipe holds all 64 of them.

# %%
gpipe = simcluster.simulate("gpt3_175b_64xa100", {"pipeline.schedule": "gpipe"})
for name, each in {"interleaved": result, "1f1b": plain, "gpipe": gpipe}.items():
    print(f"{name:>12} {each.memory.total / 1e9:6.1f} GB, activations {each.memory.activations / 1e9:5.1f} GB", each.warnings())
assert plain.memory.activations < result.memory.activations < gpipe.memory.activations
