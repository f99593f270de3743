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
from IPython.display import Markdown

import simcluster

TOKENS = 300e9  # of the whole training
PRICE = 2.50  # dollars for an hour of one GPU: an assumption; put yours here

idea = {
    "name": "first idea",
    "cluster": {"topology": "dgx_h100", "nodes": 128},
    "model": {"preset": "gpt3-175b"},
    "parallel": {"tp": 8, "pp": 8, "sequence_parallel": True, "zero": 1},
    "pipeline": {"schedule": "1f1b"},
    "training": {"global_batch": 512, "micro_batch": 1},
    "overlap": {"grad_reduce": True, "param_gather": True},
}
first = simcluster.simulate(idea)


def bill(result):
    """Days and dollars of the whole training."""
    seconds = TOKENS / result.facts.tokens * result.step_time
    dollars = seconds / 3600 * PRICE * result.scenario.gpus
    return {"step (s)": round(result.step_time, 3), "MFU": f"{result.mfu:.1%}", "days": round(seconds / 86400, 1),
            "million dollars": round(dollars / 1e6, 2)}  # fmt: skip


def wire(result, axis):
    """Communication of one axis in a step: seconds on the wire, and the part of them that overlaps with compute."""
    row = next(row for row in result.overlap.rows() if row["axis"] == axis and not row["kind"])
    return row["wire_s"], row["hidden_s"] / row["wire_s"]


pd.Series(bill(first), name="first idea")

# %% [markdown]
# ## Where it goes
#
# The first idea is what people wrote in 2021: tensor parallelism fills a machine, a pipeline does the rest. Under the
# roofs of an H100 its matmuls are well placed, right of the knee: device memory does not limit them. Communication has
# a separate picture: what comes down to the dashed line would take as long as the step does.

# %%
simcluster.plots.roofline(first)

# %%
seconds, hidden = wire(first, "tp")
assert seconds < first.step_time  # nothing comes down to the line
Markdown(
    f"No communication comes down to the line. Tensor parallelism alone is on the wire for "
    f"{seconds / first.step_time:.0%} of the step, {hidden:.0%} of that overlaps with compute, and it lies under the roof of "
    "NVLink: only less traffic helps."
)

# %% [markdown]
# ## All splits of a small job
#
# `simcluster.plan` goes through every layout that there is: tensor and pipeline parallelism, micro batches, recomputation,
# schedules, ZeRO stages, orders of ranks. It simulates only those that their lower bounds leave a chance, so what it
# finds is the best of all. A job of four GPUs takes a second, one of a thousand some minutes; then
# `simcluster plan scenario.yaml -o rows.parquet` does it on all cores, and resumes if it is killed.

# %%
small = simcluster.plan("tiny_3d", gpus=4, front=True, top=5)
print(f"{small.num_combinations:,} combinations, {small.num_simulated} simulated")
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
# A sweep simulates every combination of what is named; what cannot be is a row with its reason.

# %%
rows = simcluster.sweep(idea, {"parallel.tp": [4, 8], "parallel.pp": [8, 16]})
rows["memory (GB)"] = (rows["peak_memory_bytes"] / 1e9).round(1)
rows = rows.sort_values(["fits", "step_time_s"], ascending=[False, True])
rows[["parallel.tp", "parallel.pp", "step_time_s", "mfu", "bubble_fraction", "memory (GB)", "fits"]].round(3)

# %%
best = rows.iloc[0]
ours = rows[(rows["parallel.tp"] == 4) & (rows["parallel.pp"] == 8)].iloc[0]
behind = ours["step_time_s"] / best["step_time_s"] - 1
assert behind < 0.01  # else there is no reason to continue with it
assert ours["bubble_fraction"] > best["bubble_fraction"]
Markdown(
    f"tp {best['parallel.tp']}, pp {best['parallel.pp']} is the fastest of them, at {best['step_time_s']:.3f} s; tp 4, "
    f"pp 8 takes {behind:.1%} longer. So close together, what can be repaired decides: {ours['bubble_fraction']:.0%} of "
    f"the step is bubble with tp 4, {best['bubble_fraction']:.0%} with the fastest, and another schedule has a smaller "
    "one. So we continue with tp 4, and compare both again at the end. What has it changed?"
)

# %%
better = simcluster.scenario({**idea, "name": "tp 4"}, {"parallel.tp": 4})
second = simcluster.simulate(better)
found = simcluster.diff(first, second)
print(found.describe())

# %%
causes = simcluster.differences([first, second], ["first idea", "tp 4"])
simcluster.plots.waterfall({"first idea": first.step_time, "tp 4": second.step_time}, causes)

# %%
saved, lost = -causes.loc["tp 4", "tp_traffic"], causes.loc["tp 4", "bubble"]
assert min(saved, lost) > 0.5 * max(saved, lost)
Markdown(
    f"The {saved:.2f} s that tp 4 saves on NVLink it gives away to the pipeline, whose bubble is {lost:.2f} s longer: "
    f"{second.scenario.microbatches} microbatches for each replica instead of {first.scenario.microbatches}."
)

# %% [markdown]
# ## What would pay
#
# How much shorter does the step get for each percent more of something, and how much longer for each percent less? The
# way out of a machine is two resources in series, PCIe and the network, and is one row here: more of one of them is worth
# little where the other is as narrow.

# %%
pays = simcluster.sensitivity(second, ["flops", "nvlink", "between_machines"])
simcluster.plots.sensitivity(pays, title="tp 4")

# %%
twice = {name: simcluster.simulate(better.document(), {f"cluster.scale.{name}": 2})
         for name in ("network", "between_machines")}  # fmt: skip
gain = {name: 1 - result.step_time / second.step_time for name, result in twice.items()}
each = {one.resource: one for one in pays}
assert all(one.gain < each["flops"].gain for one in pays if one.resource != "flops")
assert gain["network"] < 0.5 * gain["between_machines"]
held = "".join(f" ({text})" for text in twice["network"].warnings() if text.startswith("cluster.scale"))
Markdown(
    f"Matmuls come first: a percent of FLOP/s is {each['flops'].gain:.2f} % of the step. A percent of NVLink is "
    f"{each['nvlink'].gain:.2f} %, a percent of the way out of a machine {each['between_machines'].gain:.2f} %. Of that way "
    f"the network alone, twice as fast, makes the step {gain['network']:.1%} shorter{held}; with PCIe twice as fast, too, it "
    f"is {gain['between_machines']:.1%}. So a faster network is bought together with the PCIe in front of it, or for the "
    "most part in vain."
)

# %% [markdown]
# The links say where the network is needed.

# %%
simcluster.plots.link_levels(second)

# %%
links = second.link_table
ports = links[links["link_from"].str.contains("nic") & links["link_to"].str.contains("leaf")]
spines = links[links["link_from"].str.contains("spine")]
seconds, hidden = wire(second, "dp")
assert ports["peak_utilisation"].min() > 0.9 > 0.1 > spines["utilisation"].max()
Markdown(
    f"Gradients and parameters are on their way for {seconds / second.step_time:.0%} of the step, and {hidden:.0%} of "
    f"that time overlaps with compute. They fill the NICs to {ports['peak_utilisation'].max():.0%}, which over the step are "
    f"used to {ports['utilisation'].mean():.0%}; the spines see {spines['utilisation'].mean():.1%} of what they could "
    "carry, because rings keep to their rails."
)

# %% [markdown]
# ## Before the launch
#
# The checklist goes through what has gone wrong before, each point with its number; where one is not passed it has
# simulated what would fix it. `simcluster check scenario.yaml --strict` in a launch script stops a job that fails.

# %%
points = simcluster.check(second).points
pd.DataFrame([{"point": point.name, "verdict": point.verdict, "found": point.found,
               "fix, simulated": "" if point.remedy is None else str(point.remedy.values)} for point in points])  # fmt: skip

# %%
fixes = {path: value for point in points if point.remedy for path, value in point.remedy.values.items()}
assert fixes
failed = "; ".join(f"{point.name}, {point.found}" for point in points if point.verdict != "pass")
Markdown(f"Not passed: {failed}. We take what it has tried: {', '.join(f'{path} {fixes[path]}' for path in fixes)}.")

# %%
launch = simcluster.simulate({**idea, "name": "launch"}, {"parallel.tp": 4, **fixes})
overlap = {"overlap.tensor": True}  # also tried for tp 8: its tensor parallelism is exposed (`check(first)`)
other = simcluster.simulate({**idea, "name": "tp 8, with its own"}, {**fixes, **overlap})
pd.DataFrame({result.scenario.name: bill(result) for result in (first, second, other, launch)}).T

# %%
assert launch.step_time < other.step_time < first.step_time
Markdown(
    f"With that tp 4 pays: its step is {1 - launch.step_time / second.step_time:.0%} shorter than before, and "
    f"{1 - launch.step_time / other.step_time:.1%} shorter than that of tp 8 with all that was tried for tp 8."
)

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
    return simcluster.scenario(idea, {"cluster.nodes": nodes, "parallel.tp": 4, **fixes})


table = simcluster.compare([on(64), launch, on(256)], ["512 GPUs", "1,024 GPUs", "2,048 GPUs"])
simcluster.plots.scaling(table, title="the job as launched, the same batch")
