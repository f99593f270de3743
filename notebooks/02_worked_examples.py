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
# # The textbook's numbers, by formula and by simulation
#
# Every number that a course on distributed training works out by hand: once by its formula, once by this program.
# Where they differ the formula leaves something out, and the last column says what. What the textbook itself has wrong
# is collected in one place near the end.
#
# "Simulated" is read from a replayed step, collective or run of weeks. For parameters, FLOPs, memory and dollars it is
# what the program counts. From a budget to a loss, and every exercise with the call that answers it:
# `08_budget_and_loss`.

# %%
import math
from dataclasses import replace

import matplotlib.pyplot as plt
import pandas as pd

import simcluster
from simcluster import Costs, collective_times, formulas, simulate_costs

pd.set_option("display.max_colwidth", None, "display.max_rows", None)
rows = []


def add(what, formula, simulated=None, unit="", scale=1.0, note="", differs=False, noise=0.0):
    """One row; ``scale`` is the size of the unit in SI, ``differs`` marks a formula that is known to leave something out,
    ``noise`` is half of the 95 % interval of what was drawn."""
    if simulated is None:
        agree = f"formula only: {note}"
    else:
        close = math.isclose(formula, simulated, rel_tol=1e-8, abs_tol=2 * noise)
        assert close != differs, f"{what}: {formula!r} by formula, {simulated!r} simulated"
        agree = ("yes" if close else "no") + (f", ± {noise / scale:.2g} {unit}".rstrip() if noise else "") + (f": {note}" if note else "")
    shown = ["" if value is None else f"{written(value / scale)} {unit}".strip() for value in (formula, simulated)]
    rows.append({"what": what, "by formula": shown[0], "simulated": shown[1], "agree?": agree})


def written(value):
    """Five digits, or all of a whole number."""
    value = float(f"{value:.8g}")
    return f"{value:,.0f}" if value.is_integer() else f"{value:.5g}"


def table(start=0):
    """The rows from number ``start`` on."""
    return pd.DataFrame(rows[start:]).set_index("what").rename_axis(None)


def flat(gpus, rate, latency="0 s"):
    """GPUs with one port each on an ideal switch: the textbook's network."""
    link = {"line_rate": rate, "source": "ideal"}
    document = {"kind": "flat", "device": "h100", "gpus": gpus, "link": link, "path_latency": latency}
    return simcluster.load_cluster(document)


# %% [markdown]
# ## Data parallelism: the ring all-reduce
#
# Each of N GPUs sends 2 (N-1)/N of the buffer. That is twice the buffer for any large N: rings scale in bandwidth.
# They do not scale in latency: 2 (N-1) rounds each pay alpha.

# %%
def ring_seconds(gpus, size, rate, alpha=0.0):
    return 2 * (gpus - 1) * (alpha + size / (gpus * rate))


start = len(rows)
for gpus, size, rate in [(8, 14e9, 600e9), (16, 200e6, 100e9)]:
    played = collective_times(flat(gpus, f"{rate / 1e9:g} GB/s"), range(gpus), "all_reduce", size)
    what = f"all-reduce of {size / 1e9:g} GB on {gpus} GPUs of {rate / 1e9:g} GB/s"
    add(what, ring_seconds(gpus, size, rate), played.duration, "ms", 1e-3)

sent = formulas.busiest_links_of_collective(flat(64, "50 GB/s"), [range(64)], "all_reduce", 20e9).load  # bytes on the busiest port
add("sent per GPU, all-reduce of 20 GB on 64 GPUs", 2 * 63 / 64 * 20e9, sent, "GB", 1e9)

for gpus, rate, alpha in [(8, 450e9, 1e-6), (64, 50e9, 5e-6), (256, 50e9, 5e-6), (1024, 50e9, 5e-6)]:
    played = collective_times(flat(gpus, f"{rate / 1e9:g} GB/s", f"{alpha * 1e6:g} us"), range(gpus), "all_reduce", 2**30)
    what = f"all-reduce of 1 GiB on {gpus} GPUs of {rate / 1e9:g} GB/s, {alpha * 1e6:g} us a round"
    add(what, ring_seconds(gpus, 2**30, rate, alpha), played.duration, "ms", 1e-3)

network = flat(64, "50 GB/s", "5 us")
whole, half, other = (
    collective_times(network, range(64), kind, 2**30) for kind in ("all_reduce", "reduce_scatter", "all_gather")
)
add("all-reduce against reduce-scatter then all-gather, 64 GPUs", half.duration + other.duration, whole.duration, "ms", 1e-3)
by_steps = collective_times(network, range(64), "all_reduce", 2**30, detail="steps")
add("the same all-reduce, each of its 126 rounds simulated as 64 transfers", whole.duration, by_steps.duration, "ms", 1e-3)
table(start)

# %% [markdown]
# ### Latency and bandwidth
#
# Below the crossover size, where N alpha B bytes take as long to send as to wait for, a bigger message is almost free.

# %%
sizes = [2**power for power in range(10, 33)]
times = [collective_times(network, range(64), "all_reduce", size).duration for size in sizes]
crossover = 64 * 5e-6 * 50e9
figure, axes = plt.subplots(figsize=(7, 3), dpi=80)
axes.loglog(sizes, times, "o", color="#0072B2", label="simulated")
axes.loglog(sizes, [2 * 63 * 5e-6] * len(sizes), "--", color="#666666", label="latency only")
axes.loglog(sizes, [2 * 63 / 64 * size / 50e9 for size in sizes], ":", color="#666666", label="bandwidth only")
axes.axvline(crossover, color="#D55E00", label=f"crossover, {crossover / 1e6:.0f} MB")
axes.set(xlabel="bytes", ylabel="seconds", title="All-reduce on 64 GPUs, 50 GB/s, 5 us a round")
axes.legend(frameon=False)
plt.show()

start = len(rows)
at_crossover = collective_times(network, range(64), "all_reduce", crossover).duration
add("all-reduce at the crossover size: twice its latency", 2 * 2 * 63 * 5e-6, at_crossover, "us", 1e-6)
table(start)

# %% [markdown]
# ### ZeRO moves different bytes
#
# The usual statement is: ZeRO-1 moves as much as plain data parallelism, ZeRO-3 one and a half times as much.
# It assumes that gradients and weights have the same size. With gradients summed in fp32 (4 bytes) and weights gathered
# in bf16 (2 bytes), ZeRO-1 moves less.

# %%
def dp_bytes(zero, **changes):
    result = simcluster.simulate("tiny_dp", {"parallel.zero": zero, **changes})
    dp = result.timeline_of(0).query("stream == 'dp' and name != 'gradient_norm'")
    passes = dp["kind"].map({"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1})
    return float((dp["bytes"] * passes).sum()) * 3 / 4  # a ring of 4 sends 3/4 of the buffer per pass


start = len(rows)
model = formulas.parameters(simcluster.scenario("tiny_dp").model)
weights = model.total
add("ZeRO-1 traffic over plain DP, same size for gradients and weights", 1.0, dp_bytes(1) / dp_bytes(0), differs=True,
    note="gradients have 4 bytes here and weights 2, so (4 + 2) / (4 + 4)")
add("the same, (4 + 2) / (4 + 4)", 6 / 8, dp_bytes(1) / dp_bytes(0))
add("sent per GPU and step by plain DP, 4 replicas", 2 * 3 / 4 * 4 * weights, dp_bytes(0), "MB", 1e6)
add("ZeRO-2 traffic over plain DP, 2 microbatches: (2 x 4 + 2) / (4 + 4)", 10 / 8, dp_bytes(2) / dp_bytes(0),
    note="its gradients are reduced in every microbatch")
same = {"training.memory_recipe": "mixed-16", "training.global_batch": 16}  # 2 bytes for both, one microbatch
plain, sharded = dp_bytes(0, **same), dp_bytes(3, **same)
add("ZeRO-3 traffic over plain DP, one size: 2 all-gathers and 1 reduce-scatter", 3 / 2, sharded / plain, differs=True,
    note="embeddings and the last norm, the root unit, stay from forward to backward")
root = model.token_embedding + model.position_embedding + model.final_norm
add("the same, without that gather", 3 / 2 - 3 / 4 * 2 * root / plain, sharded / plain)
table(start)

# %% [markdown]
# ## Tensor parallelism
#
# Four all-reduces a layer, of the activations (b s h elements), whatever the weights are.
# Sequence parallelism is said to move the same bytes as reduce-scatter and all-gather. As it is implemented
# (Megatron-LM, arXiv:2205.05198 section 4.2.2) it keeps only a shard of each block's input and gathers it again for the
# weight gradient: five passes where there were four.

# %%
TP_JOB = """
cluster: {topology: dgx_h100, nodes: 1}
model: {layers: 96, hidden_size: 8192, heads: 64, vocab_size: 51200, sequence_length: 8192}
parallel: {tp: 8, sequence_parallel: %s}
training: {global_batch: 1, precision: fp16-mixed}
"""


def tp_of_layers(sequence_parallel):
    """Bytes that each GPU sends in every tp collective of the 96 layers."""
    result = simcluster.simulate(TP_JOB % sequence_parallel)
    tp = result.timeline.query("stream == 'tp' and (name.str.startswith('attention') or name.str.startswith('mlp'))")
    return tp["bytes"] * tp["kind"].map({"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}) * 7 / 8


start = len(rows)
plain, sequence = tp_of_layers("false"), tp_of_layers("true")
per_collective = 2 * 7 / 8 * 8192 * 8192 * 2
add("tp collectives in 96 layers", 96 * 4, float(len(plain)))
add("sent per GPU by one of them, b s = h = 8192, fp16, tp 8", per_collective, float(plain.max()), "MB", 1e6)
add("sent per GPU by all of them", 96 * 4 * per_collective, float(plain.sum()), "GB", 1e9)
add("sequence parallel: the same bytes", 96 * 4 * per_collective, float(sequence.sum()), "GB", 1e9, differs=True,
    note="the inputs are gathered a second time in backward: 5/4 of it")
add("sequence parallel with that gather: 5/4", 5 / 4 * 96 * 4 * per_collective, float(sequence.sum()), "GB", 1e9)
table(start)

# %% [markdown]
# ### The same group inside a machine and across machines
#
# Eight A100 on one NVSwitch, or one in each of eight machines: NVLink (240 GB/s, 3.4 us a round as NCCL counts it)
# against one 200 Gbit/s port each (23.7 GB/s, 14 us).

# %%
start = len(rows)
selene = simcluster.scenario("gpt3_175b_64xa100").cluster.built
for where, gpus, rate, alpha in [("in one machine", range(8), 240e9, 3.4e-6), ("across 8 machines", range(0, 64, 8), 23.7e9, 14e-6)]:
    played = collective_times(selene, gpus, "all_reduce", 100e6, nccl="none")  # the links alone, as the formula
    add(f"all-reduce of 100 MB on 8 A100 {where}", ring_seconds(8, 100e6, rate, alpha), played.duration, "ms", 1e-3)
table(start)

# %% [markdown]
# ## Pipeline and batch
#
# In the 175B job only activations (forward) and their gradients (backward) cross a stage boundary. With 3 chunks on each of 8 stages
# there are 23 boundaries, and tp splits what crosses them.
#
# The Llama 3 8B job (scenarios/slow_gpu.yaml, with no GPU slow) has two replicas, so its batch is split before it is cut
# into microbatches.

# %%
start = len(rows)
job = simcluster.simulate("gpt3_175b_64xa100")
sends = job.timeline.query("stream == 'pp' and kind == 'send'")["bytes"]
boundary = 1 * 2048 * 12288 * 2 / 8
add("one stage boundary, one microbatch: b s h x 2 bytes / tp", boundary, float(sends.max()), "MB", 1e6)
add("all boundaries and microbatches, both ways, per tp rank", 2 * 64 * 23 * boundary, float(sends.sum()), "GB", 1e9)
add("GPUs = dp x cp x tp x pp", 1 * 1 * 8 * 8, float(job.to_dict()["gpus"]))
llama = simcluster.simulate("slow_gpu", {"faults": []})
microbatches = llama.timeline.query("kind == 'forward'")["microbatch"].nunique()
add("Llama job: global batch = micro batch x microbatches x dp", 1 * 16 * 2,
    float(llama.scenario.training.micro_batch * microbatches * llama.scenario.parallel.dp), "sequences")
add("Llama job: tokens in a step", 32 * 8192, llama.step_time * llama.to_dict()["tokens_per_s"], "tokens")
add("context parallel 4, causal, contiguous pieces: longest over mean", (2 * 4 - 1) / 4,
    note="no framework cuts it so: a rank has a piece from either end, and all have equal work")
MOE_JOB = """
cluster: {topology: dgx_h100, nodes: 1}
model: {layers: 1, hidden_size: 4096, heads: 32, vocab_size: 32000, sequence_length: 8192,
        moe: {experts: 64, top_k: 8, expert_ffn_hidden_size: 1024}}
parallel: {dp: 8, ep: 8}
training: {global_batch: 8}
"""
experts = simcluster.simulate(MOE_JOB).timeline.query("kind == 'all_to_all'")["bytes"]
add("expert parallel 8, top-8: sent per GPU and all-to-all, 8192 tokens of 4096, bf16", 7 / 8 * 8192 * 8 * 4096 * 2,
    7 / 8 * float(experts.max()), "MB", 1e6)
table(start)

# %% [markdown]
# ## Bubbles
#
# P stages, K microbatches: idle / total = (P-1)/(K+P-1). Over the ideal time it is (P-1)/K, a larger number
# for the same picture: a bubble without its denominator says nothing.
# Interleaving with v chunks divides the filling and draining by v.

# %%
def pipeline(schedule="1f1b", stages=8, microbatches=32, chunks=1, **costs):
    """A pipeline without any communication: F = 1 s and B = 2 s unless given."""
    costs = Costs(**({"forward": 1.0, "backward": 2.0} | costs))
    return simulate_costs(costs, stages=stages, microbatches=microbatches, schedule=schedule, chunks=chunks)


def in_flight(run, rank):
    """The most microbatches that a rank holds at once, from the start of F to the end of B, in whole stages."""
    spans = run.timeline_of(rank)
    starts = [(time, 1) for time in spans.query("kind == 'forward'")["start"]]
    ends = [(time, -1) for time in spans.query("kind == 'backward'")["end"]]
    held = peak = 0
    for _, change in sorted(starts + ends):
        held += change
        peak = max(peak, held)
    return peak / (spans["chunk"].max() + 1)


start = len(rows)
one_f_one_b, gpipe, interleaved = pipeline(), pipeline("gpipe"), pipeline("interleaved", chunks=3)
add("1F1B, P = 8, K = 32: bubble over total", 7 / 39, one_f_one_b.times.bubble_fraction, "%", 0.01)
add("GPipe: the same", 7 / 39, gpipe.times.bubble_fraction, "%", 0.01)
add("1F1B: bubble over ideal", 7 / 32, one_f_one_b.times.bubble_over_ideal, "%", 0.01)
add("interleaved, v = 3: (P-1)/(vK+P-1)", 7 / (3 * 32 + 7), interleaved.times.bubble_fraction, "%", 0.01)
add("K = 133 gives 5 % exactly, so below 5 % needs more", 0.05, pipeline(microbatches=133).times.bubble_fraction, "%", 0.01)
add("K = 134", 7 / 141, pipeline(microbatches=134).times.bubble_fraction, "%", 0.01)
add("microbatches in flight, GPipe: K", 32, in_flight(gpipe, 0))
add("microbatches in flight, 1F1B: P", 8, in_flight(one_f_one_b, 0))
add("microbatches in flight, interleaved: P", 8, in_flight(interleaved, 0), differs=True,
    note="it starts the next chunks before the first B comes back: P + (P-1)/v")
add("microbatches in flight, interleaved: P + (P-1)/v", 8 + 7 / 3, in_flight(interleaved, 0))
add("ZB-H1, where F = I = W: (P-1)(F+I-W) over ideal", 7 * 1 / (32 * 3), pipeline("zb-h1").times.bubble_over_ideal, "%", 0.01)
add("DualPipe, where F = I = W: (P/2-1)(FB+B-3W) over ideal, FB = F+B", 3 * 2 / (32 * 3),
    pipeline("dualpipe").times.bubble_over_ideal, "%", 0.01)
table(start)

# %% [markdown]
# ## A worked step
#
# TP 4, PP 2, K = 8. F = 100 ms and B = 200 ms, each with two all-reduces of 10 ms; a boundary takes 5 ms.
# A stage takes 120 + 220 = 340 ms a microbatch, and the pipeline (8+1) x 340 ms.
#
# A common shortcut takes only the longer of F and B: 9 x 220 ms. But a stage does both, one after the other.
# And "sends are hidden" is wrong for 1F1B: it has no slack, so it pays for a boundary on almost every microbatch.

# %%
start = len(rows)
costs = {"forward": 0.1, "backward": 0.2, "tensor_parallel": 0.01, "collectives": 2}
quick = simulate_costs(Costs(**costs), stages=2, microbatches=8, tp=4)
real = simulate_costs(Costs(**costs, send=0.005), stages=2, microbatches=8, tp=4)
add("step, boundaries free: (K+P-1)(F+B)", 9 * 0.340, quick.step_time, "s")
add("shortcut: (K+P-1) max(F, B)", 9 * 0.220, quick.step_time, "s", differs=True, note="a stage does F and B, not the longer")
add("step, boundaries overlapped with compute", 9 * 0.340, real.step_time, "s", differs=True,
    note="1F1B waits for them: 2c[(P-1) + (K-1) - ceil((K-1)/P)] more, c = 5 ms")
add("step with that term", 9 * 0.340 + 2 * 0.005 * (1 + 7 - math.ceil(7 / 2)), real.step_time, "s")

whole = simulate_costs(Costs(forward=0.01, backward=0.02, grad_reduce=0.006, optimizer=0.004), stages=4, microbatches=8, dp=2)
bubble, pipeline_time = whole.times.breakdown["bubble"], whole.times.pipeline_seconds
add("PP 4, DP 2, K = 8, F 10, B 20, gradients 6, optimizer 4 ms", 11 * 0.030 + 0.006 + 0.004, whole.step_time, "ms", 1e-3)
add("its bubble over ideal", 3 / 8, bubble / (pipeline_time - bubble))
add("its bubble over total", 3 / 11, bubble / pipeline_time)
table(start)

# %%
simcluster.plots.gantt(real, width=10, rows="stage", title="The worked step: 2 stages, 8 microbatches")

# %% [markdown]
# ## Overlap
#
# Gradients are reduced in buckets while earlier layers still run backward. Bucket k is ready at r_k, the link is serial:
# the last one is done at max over k of r_k plus all transfers from k on. With a slow link the step becomes communication;
# with a fast one, computation. The textbook's max(compute, communication) is a floor that is reached in these limits
# only: gradients are complete in the backward of the last microbatch, so nothing earlier can hide them.

# %%
def replicas(rate, overlapped):
    changes = {"cluster.link.line_rate": f"{rate:g} GB/s", "overlap.grad_reduce": overlapped}
    return simcluster.simulate("tiny_dp", changes)


def finish_of_buckets(result):
    """When the last bucket is done, by the formula, from when each was ready and how long it took."""
    dp = result.timeline_of(0).query("stream == 'dp' and name != 'gradient_norm'")
    took = dp["end"] - dp["start"]
    return max(ready + took.iloc[k:].sum() for k, ready in enumerate(dp["ready"]))


start = len(rows)
blocking, overlapped = replicas(50, False), replicas(50, True)
compute = sum(blocking.times.breakdown[name] for name in ("forward", "backward", "optimizer", "other"))
moved = ring_seconds(4, 4 * weights, 50e9, 5e-6)
add("tiny model, 4 replicas, blocking: compute + communication", compute + moved, blocking.step_time, "ms", 1e-3)
last = overlapped.timeline_of(0).query("stream == 'dp' and name != 'gradient_norm'")["end"].max()
add("in buckets: the last one is done", finish_of_buckets(overlapped), float(last), "ms", 1e-3)
add("in buckets: step = max(compute, communication)", max(compute, overlapped.times.communication), overlapped.step_time,
    "ms", 1e-3, differs=True,
    note="only the last microbatch's backward has finished gradients to send, and nothing overlaps with the last bucket")
hidden = overlapped.times.communication * overlapped.times.overlap_fraction
exposed = overlapped.times.breakdown["exposed_dp"]
add("hidden + exposed = communication", hidden + exposed, overlapped.times.communication, "ms", 1e-3)
table(start)

# %%
rates = [5, 10, 20, 40, 80, 160, 320, 640]
steps = {flag: [replicas(rate, flag).step_time for rate in rates] for flag in (False, True)}
figure, axes = plt.subplots(figsize=(7, 3), dpi=80)
for label, colour, flag in [("blocking", "#D55E00", False), ("in buckets overlapped with backward", "#0072B2", True)]:
    axes.loglog(rates, [step * 1e3 for step in steps[flag]], "o-", color=colour, label=label)
floor = [max(compute, ring_seconds(4, 4 * weights, rate * 1e9, 5e-6)) * 1e3 for rate in rates]
axes.loglog(rates, floor, "--", color="#666666", label="max(compute, communication)")
axes.set_xticks(rates, rates)
axes.set_yticks([10, 20, 40, 80], [10, 20, 40, 80])
axes.minorticks_off()
axes.set(xlabel="GB/s per GPU", ylabel="ms a step", title="One step of the tiny model on 4 GPUs")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Stragglers
#
# Synchronous training runs at the pace of the slowest: 10 % on one GPU of a data-parallel job is 10 % on the job.
# In a pipeline it is less: the time to fill and drain is not all on the slow stage.

# %%
start = len(rows)
eight = simulate_costs(Costs(forward=0.1, backward=0.2, grad_reduce=0.01), stages=1, microbatches=1, dp=8, slowness={3: 1.1})
add("8 replicas, rank 3 is 10 % slower: step", 1.1 * 0.3 + 0.01, eight.step_time, "s")
longest = eight.waits[0]
add(f"every other rank waits, for rank {longest.culprit}", 0.1 * 0.3, longest.seconds, "ms", 1e-3)
slow_end, slow_middle = (
    simulate_costs(Costs(forward=1, backward=2), stages=8, microbatches=32, slowness={stage: 1.1}) for stage in (7, 3)
)
add("pipeline, P = 8, K = 32, last stage 10 % slower: 1.1", 1.1, slow_end.step_time / 117, differs=True,
    note="filling and draining cost what they did: (P-1+1.1K)/(P-1+K)")
add("the same, (P-1+1.1K)/(P-1+K)", (7 + 35.2) / 39, slow_end.step_time / 117)
add("a stage in the middle: the same", (7 + 35.2) / 39, slow_middle.step_time / 117, differs=True,
    note="some of it hides in the bubble that a middle stage has anyway")
add("175B step: its parts add up", sum(job.times.breakdown.values()), job.step_time, "s")
stalls = [{"kind": "host_stall", "cause": cause, "seconds": time} for cause, time in (("data_loading", "5 ms"), ("checkpoint", "20 ms"))]
free, stalled = (simcluster.simulate("tiny_dp", {"faults": each}) for each in ([], stalls))
add("tiny model, 5 ms for data and 20 ms for a checkpoint in every step", free.step_time + 0.025, stalled.step_time, "ms", 1e-3)
table(start)

# %% [markdown]
# ## Memory: bytes per parameter
#
# "16 bytes" has an fp32 master copy of the weights, "12 bytes" has none. Both are recipes with names here,
# because the same 12 is also used for the optimizer's part of the 16.

# %%
def state(billions, recipe, **sharding):
    return formulas.state_bytes(billions * 1e9, formulas.recipe_named(recipe), **sharding).total


start = len(rows)
add("70B, 2 + 2 + 12 bytes (mixed-16)", 70e9 * 16, state(70, "mixed-16"), "TB", 1e12)
add("13B, 2 + 2 + 12 bytes (mixed-16)", 13e9 * 16, state(13, "mixed-16"), "GB", 1e9)
add("80 GB GPUs that hold it, without any activation", 3, float(math.ceil(state(13, "mixed-16") / 80e9)))
add("13B, 2 + 2 + 8 bytes, no master copy (bf16-12)", 13e9 * 12, state(13, "bf16-12"), "GB", 1e9)
for zero, each in [(1, 4 + 8 / 8), (2, 2 + 10 / 8), (3, 12 / 8)]:
    add(f"13B, bf16-12, ZeRO-{zero} on 8 GPUs, each", 13e9 * each, state(13, "bf16-12", zero=zero, dp=8), "GB", 1e9)

shard = 175e9 / (8 * 4)
held = formulas.state_bytes(shard, formulas.recipe_named("bf16-12"), zero=2, dp=8)
add("175B on 256 GPUs, TP 8, PP 4, DP 8, ZeRO-2, bf16-12: weights", 2 * shard, held.parameters, "GB", 1e9)
add("its optimizer state", 8 * shard / 8, held.optimizer, "GB", 1e9)
add("its gradients", 2 * shard / 8, held.gradients, "GB", 1e9)
add("its model state in all, per GPU", (2 + 10 / 8) * shard, held.total, "GB", 1e9)
gpt3 = job.scenario.model
first = formulas.stage_parameters_per_tp_rank(gpt3, 8, layers=24, first=True, last=False)
add("the same on the first stage", (2 + 10 / 8) * shard, formulas.state_bytes(first, formulas.recipe_named("bf16-12"), zero=2, dp=8).total,
    "GB", 1e9, differs=True, note="that stage has the embedding too, and every tp rank all norms and positions")
table(start)

# %% [markdown]
# ### Activations and what fits
#
# Per layer and microbatch: s b h (34 + 5 a s / h) bytes; tensor parallelism divides 24 of the 34, sequence parallelism
# the other 10. Selective recompute drops the attention square, full recompute keeps the input alone.

# %%
start = len(rows)
sbh = 2048 * 1 * 12288
square = 5 * 96 * 2048 / 12288
for what, bytes_by_formula, options in [
    ("no parallelism: s b h (34 + 5 a s / h)", sbh * (34 + square), {}),
    ("tp 8", sbh * (10 + 24 / 8 + square / 8), {"tp": 8}),
    ("tp 8, sequence parallel", sbh / 8 * (34 + square), {"tp": 8, "sequence_parallel": True}),
    ("tp 8, sequence parallel, selective recompute", sbh / 8 * 34, {"tp": 8, "sequence_parallel": True, "recompute": "selective"}),
    ("tp 8, full recompute", 2 * sbh, {"tp": 8, "recompute": "full"}),
]:
    shape = formulas.RankShape(1, attention="unfused", dropout=True, **options)
    add(f"175B, one layer, {what}", bytes_by_formula, sum(formulas.activation_bytes(gpt3, shape).values()), "MB", 1e6)

in_chunks = 2 * 7 + 2 * 8 + 1  # of interleaved 1F1B on stage 0: P + (P-1)/v stages, in chunks of 4 layers
kept = in_chunks * 4 * sbh / 8 * 34
activations = job.memory_timeline.curve(0)[1]["activations"].max()  # their own peak; all together peak a moment later
add("the 175B job: chunks in flight x 4 layers x bytes", kept, activations, "GB", 1e9, differs=True,
    note="stage 0 also keeps the embedding's dropout masks")
masks = 16 * sbh / 8  # one byte an element; 16 of the 31 chunks in flight are then the first
add("with those masks", kept + masks, activations, "GB", 1e9)
offloaded = simcluster.simulate("llama3_70b_16xh100_offload", {"training.global_batch": 2})
share = formulas.stage_parameters_per_tp_rank(offloaded.scenario.model, 8, layers=80, first=True, last=True) / 2  # of two replicas
add("70B, TP 8, DP 2, optimizer in the host: 12 bytes a parameter there and back, each GPU", 2 * 12 * share,
    sum(copies["bytes"] for copies in offloaded.host_copies.values()), "GB", 1e9)
table(start)

# %% [markdown]
# ## FLOPs, MFU
#
# 6 N D is good to a few per cent for a large model at a short sequence. MFU needs a convention: counting the whole
# attention square or half of it makes two MFUs, 12.5 % apart, out of one run. With full recompute HFU is not 4/3 of MFU
# either, since the LM head is not recomputed.

# %%
start = len(rows)
per_layer = 2048 * (24 * 12288**2 + 4 * 2048 * 12288 / 2)  # forward: matmuls, and half of the attention square
head = 2 * 2048 * 12288 * 51200
add("GPT-3 parameters: 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)) + 2 h",
    12 * 96 * 12288**2 * (1 + 13 / (12 * 12288) + (51200 + 2048) / (12 * 96 * 12288)) + 2 * 12288,
    float(formulas.parameters(gpt3).total), "billion", 1e9)
add("GPT-3, FLOP of a sequence: 3 x forward", 3 * (96 * per_layer + head), formulas.model_flops_per_sequence(gpt3), "PFLOP", 1e15)
add("GPT-3, FLOP of a sequence: 6 N D", 6 * formulas.parameters(gpt3).total * 2048, formulas.model_flops_per_sequence(gpt3), "PFLOP", 1e15,
    differs=True, note="6 N D counts embeddings, which are looked up, and no attention square")

shape = llama.scenario.model
linear = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256
add("Llama 3 8B, FLOP per token, half the square (Megatron-LM)", 6 * linear + 6 * 32 * 4096 * 8192,
    formulas.model_flops_per_sequence(shape) / 8192, "GFLOP", 1e9)
whole_square = 6 * (linear + 65 * 4096) + 12 * 32 * 4096 * 8192  # and its 65 norms, as if they were matmuls
add("Llama 3 8B, FLOP per token, whole square (torchtitan)", whole_square,
    formulas.torchtitan_flops_per_sequence(shape) / 8192, "GFLOP", 1e9)
add("MFU of one and the same run, by the two", llama.mfu * whole_square / (6 * linear + 6 * 32 * 4096 * 8192), llama.mfu, "%", 0.01,
    differs=True, note="same run, same seconds; the JSON names its convention")

full = simcluster.simulate("gpt3_175b_64xa100_full_recompute").to_dict()
add("full recompute: HFU / MFU = 4/3", 4 / 3, full["hfu"] / full["mfu"], differs=True, note="the LM head is not recomputed")
layers = 96 * per_layer
add("(4 layers + 3 head) / (3 layers + 3 head)", (4 * layers + 3 * head) / (3 * layers + 3 * head), full["hfu"] / full["mfu"])
table(start)

# %% [markdown]
# ## The long run: time, money, failures
#
# Time and money follow from a rate and a total (`simcluster.estimate_training`). What a simulation adds is the rate: the MFU that a
# formula has to guess. Failures are simulated: a job that saves for 60 s, fails every 3 hours, and takes 10 minutes to
# start again, in which it may be struck, too. ± is half of the 95 % interval.

# %%
start = len(rows)
DAY = 86400
alone = simcluster.estimate_training("175B", "300B", gpus=1)
small = simcluster.estimate_training("7B", "2T", gpus=1, mfu="50%", price=2)
spent = simcluster.estimate_training("70B", budget="$10M", price=2, mfu="35%", achievable="50%")
add("175B, 300B tokens, one GPU at its peak of 989 TFLOP/s", 6 * 175e9 * 300e9 / 989e12, alone.days * DAY, "days", DAY)
add("7B, 2T tokens, one GPU at 50 % of it", 6 * 7e9 * 2e12 / (0.5 * 989e12), small.days * DAY, "days", DAY)
add("the same at $2 a GPU-hour", 6 * 7e9 * 2e12 / (0.5 * 989e12) / 3600 * 2, small.dollars, "dollars")
add("$10M spent at 35 % MFU where 50 % was possible: lost", 10 * (1 - 0.35 / 0.50), spent.lost_dollars / 1e6, "million dollars")

saving, between, restart = 60, 3 * 3600, 600
young = math.sqrt(2 * saving * between)
weeks = simcluster.train(simcluster.scenario("tiny_dp", {"run": {
    "days": "30 d",
    "failures": [{"name": "fault", "of": "job", "mtbf": f"{between} s", "detect": "0 s"}],
    "restart": [{"part": "restart", "takes": f"{restart} s"}],
    "checkpoint": {"every": f"{young} s", "stall": f"{saving} s"},
    "played": 50,
}}))
known = weeks.expected.set_index("closed_form")
kept, half_width = young / between / math.exp(restart / between) / math.expm1((young + saving) / between), known["half_width"]
add("best interval, by Young: sqrt(2 C M)", young, known.loc["best interval, exact", "value"], "s", differs=True,
    note="first order in C / M; the exact optimum needs Lambert's W")
add("goodput at it: (T/M) e^(-R/M) / (e^((T+C)/M) - 1)", kept, weeks.goodput, "%", 0.01, noise=half_width["goodput, exact"])
add("failures in 30 days, M = 3 h", 240, weeks.outcomes.strikes.sum(axis=1).mean(), "", noise=half_width["failures, rate x wall"])
table(start)

# %% [markdown]
# ## Where the textbook is wrong
#
# Most of its numbers stand above and agree. These do not. Each is simulated here, and what the simulator gives is what the
# cell has just counted.

# %%
errata = []


def wrong(where, says, gives, because):
    """One row: the textbook's sentence, the simulator's number, and why."""
    errata.append({"of": where, "the textbook says": says, "the simulator gives": gives, "because": because})


whole_model = simulate_costs(Costs(forward=0.2, backward=0.4, tensor_parallel=0.01, collectives=4), stages=1, microbatches=8, tp=4)
wrong("a worked step, PP 2", "9 × max(F, B) = 1.98 s, and 2.06 s with sends",
      f"{quick.step_time:.2f} s, and {real.step_time:.2f} s with sends", "a stage does F and B, one after the other")
wrong("its speedup over one stage", "1.32 ×", f"{whole_model.step_time / real.step_time:.3f} ×",
      "the time of one stage's layers stood for that of the whole model")

half = {kind: formulas.busiest_links_of_collective(flat(64, "50 GB/s"), [range(64)], kind, 20e9).load for kind in ("all_gather", "reduce_scatter", "all_reduce")}
sharded = 2 * half["all_gather"] + half["reduce_scatter"]
assert math.isclose(half["all_reduce"], half["all_gather"] + half["reduce_scatter"])
wrong("ZeRO-3, 10B parameters, 64 GPUs", "1.9 GB a GPU and step, a twentieth of data parallelism",
      f"{sharded / 1e9:.2f} GB, {sharded / half['all_reduce']:.1f} × data parallelism's {half['all_reduce'] / 1e9:.2f} GB",
      "one shard was taken for the collective; two gathers and a reduce-scatter move three times the buffer")
wrong("the 2 in 2 (N-1)/N", "it is for send and receive",
      f"reduce-scatter {half['reduce_scatter'] / 1e9:.2f} GB + all-gather {half['all_gather'] / 1e9:.2f} GB, all of it sent",
      "a ring has two phases; what is received comes on top, on the other half of a duplex link")

eighth, shards = (simcluster.zero_stages("70B", recipe="bf16-12", dp=gpus).stages[3].bytes / 1e9 for gpus in (8, 64))
wrong("70B, 12 bytes, ZeRO-3 on 8 GPUs", "105 GB across the GPUs, 13 GB each",
      f"{eighth:.0f} GB each; {shards:.1f} GB on 64 GPUs", "divided by 8 twice")
held = sum(llama.memory_of(rank).parameters for rank in range(32)) / (2 * formulas.parameters(llama.scenario.model).total)
wrong("TP 4, PP 4, DP 2: a GPU stores", "1/(TP × DP) of the model",
      f"1/{32 / held:.1f}: the 32 GPUs hold {held:.2f} models", "a misprint for 1/(TP × PP): replicas hold copies")
each = {gpus: formulas.busiest_links_of_collective(flat(gpus, "50 GB/s"), [range(gpus)], "all_reduce", 1.0).load for gpus in (2, 4, 8, 64)}
wrong("TP: bytes of an all-reduce of S", "they grow as the square of the group",
      ", ".join(f"{sent:.2f} S on {gpus} GPUs" for gpus, sent in each.items()),
      "2 (N-1)/N S a GPU is flat; what grows is the number of machines that a group crosses")

slower = max(waiting / hiding for waiting, hiding in zip(steps[False], steps[True], strict=True))
reduced = Costs(forward=1, backward=2, grad_reduce=2)  # the worst case: as long as the backward that can hide it
hiding, waiting = (simulate_costs(costs, stages=1, microbatches=1, dp=8) for costs in (replace(reduced, grad_buckets=64), reduced))
most = waiting.step_time / hiding.step_time
wrong("blocking all-reduces", "they double the step",
      f"{slower:.2f} × at most on the links above; {most:.2f} × in the worst case, one microbatch and 64 buckets",
      "only the last microbatch's backward can hide them: below (1 + 2 + 2)/(1 + 2)")
fourth = {"cluster": {"topology": "dgx_a100", "nodes": 32}, "gpus": 256, "model": {"preset": "gpt3-175b"},
          "parallel": {"tp": 8, "pp": 4, "sequence_parallel": True}, "overlap": {"grad_reduce": True},
          "training": {"global_batch": 256, "memory_recipe": "bf16-12"}}  # fmt: skip
first, second = (simcluster.simulate("tiny_3d", {"faults": None, **fourth, "parallel.zero": zero}) for zero in (1, 2))
wrong("175B on 256 GPUs, TP 8, PP 4", "ZeRO-2 is reasonable",
      f"{second.step_time:.2f} s, {second.step_time / first.step_time - 1:.0%} more than ZeRO-1, which fits in "
      f"{first.memory.total / 1e9:.1f} of 80 GB", "under a pipeline ZeRO-2 reduces gradients in every microbatch")
wrong("P = 8: a bubble below 5 %", "K = 133 microbatches",
      f"{pipeline(microbatches=133).times.bubble_fraction:.2%} at 133, {pipeline(microbatches=134).times.bubble_fraction:.2%} at 134",
      "133 gives 5 % exactly, which is not below")
least = [stage.smallest_dp for stage in simcluster.zero_stages("13B", recipe="mixed-16", device="a100-80gb").stages]
wrong("13B, 16 bytes, GPUs of 80 GB", "at least 3", ", ".join(f"{gpus} with ZeRO-{zero}" for zero, gpus in enumerate(least) if gpus),
      "3 hold 208 GB only where all of it is sharded; replicated parts need more GPUs, and without ZeRO no number is enough")
assert slower < most < 5 / 3 and second.step_time > 1.4 * first.step_time and abs(held - 2) < 0.01
pd.DataFrame(errata).set_index("of").rename_axis(None)

# %% [markdown]
# ## All rows
#
# A "no" is a formula that leaves something out; its note says what. Everything else agrees to eight digits (what is drawn:
# within its noise): the clock ticks every 0.06 ps, and a ring over 1,024 GPUs rounds 2,046 times.

# %%
table()
