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
# # From a budget to a loss
#
# You have a hundred thousand dollars, and an H100 costs two an hour. What can be trained for that, how good will it be,
# and when is it done?
#
# The way there has seven steps: the walls of the job, the best model for the money, whether it fits, what a step really
# takes, what its tokens are worth, how many GPUs are too many, and the run of weeks with its failures. At the end stand
# the exercises of a course on distributed training, each with the call that answers it.

# %%
# %matplotlib inline
import math

import numpy as np
import pandas as pd
from IPython.display import Markdown

import simcluster
from simcluster import compute_optimal, estimate_training, formulas, scenario, zero_stages

pd.set_option("display.max_colwidth", None, "display.max_rows", None)
BUDGET, PRICE = 100_000, 2

# %% [markdown]
# ## Three walls
#
# Before any model is chosen, three numbers say how far one can go: bytes (the model's state must lie somewhere), seconds
# (every token costs six FLOP a parameter), and dollars. They need no model file. What part of its peak a GPU reaches, the
# MFU, is a guess for now: 40 %.

# %%
wall = estimate_training("13B", "1T", gpus=64, mfu="40%", price=PRICE, budget=BUDGET)
print(wall.summary())

# %% [markdown]
# ## The best model for the money
#
# A law of loss says how good a model of N parameters is after D tokens. For a number of FLOP there is one best size: a smaller
# model learns too little from each token, a larger one sees too few of them. Each curve below is one budget.

# %%
found = compute_optimal(compute=wall.bought_flops, price=PRICE, mfu="40%", parameters="13B")
simcluster.plots.isoflop(found)

# %%
laws = found.laws
pd.DataFrame({"parameters (B)": laws["parameters"] / 1e9, "tokens (B)": laws["tokens"] / 1e9,
              "tokens a parameter": laws["tokens_per_parameter"], "loss": laws["loss"], "loss with 13B": laws["own_loss"]}
             ).map(lambda value: "" if math.isnan(value) else f"{value:,.4g}")  # fmt: skip

# %%
best, own = found.best, found.own
digits = laws.loc["hoffmann-printed"]
assert best.loss < own.loss < best.loss + 0.01
Markdown(
    f"By the refit of Chinchilla's law that is the default here, the best is {best.parameters / 1e9:.0f}B parameters on "
    f"{best.tokens / 1e9:,.0f}B tokens. Laws differ by {laws['loss'].max() - laws['loss'].min():.2f} in the loss that they "
    f"foresee, for each was fitted on other data, and digits matter: with the exponents rounded as Chinchilla's authors "
    f"printed them it is {digits['tokens_per_parameter']:.0f} tokens a parameter, and {best.tokens_per_parameter:.0f} by the "
    f"refit. (Llama 3's law says how large, not how good.) But the curve is flat at its bottom: 13B, about half the size, gets "
    f"to {own.loss:.3f} instead of {best.loss:.3f}."
)

# %% [markdown]
# A model is trained once and then serves. Every token that it serves costs two FLOP a parameter, so the more it will be
# used, the smaller it should be, and the longer it should train for the same loss. Take a loss of 2.06:

# %%
LOSS = 2.06
goal = compute_optimal(loss=LOSS, parameters="13B", serve=1e12, price=PRICE, mfu="40%")
serving = goal.serving
columns = {"parameters": 1e9, "tokens": 1e9, "training_flop": 1e22, "all_flop": 1e22}
names = ["parameters (B)", "tokens (B)", "training (1e22 FLOP)", "with serving (1e22 FLOP)"]
table = pd.DataFrame({name: serving[key] / unit for name, (key, unit) in zip(names, columns.items(), strict=True)}).round(1)
table.rename(index=lambda tokens: f"{tokens / 1e12:g}T tokens served").rename_axis(None)

# %%
Markdown(
    f"For a trillion tokens served, {serving.loc[1e12, 'parameters'] / 1e9:.1f}B would be best. So we take Llama 2 13B, which "
    f"reaches {LOSS} after {goal.to_loss.tokens / 1e9:,.0f}B tokens. (Can a 13B model reach anything? No: "
    f"with all the tokens of the world it stays above {goal.law.lowest_loss(13e9):.3f}, and for less the answer is *never*.)"
)

# %% [markdown]
# ## Does it fit?
#
# Every parameter comes with a gradient, Adam's two moments and a master copy in fp32: the bytes that the first wall above
# names. ZeRO shards them over the replicas, stage by stage: the optimizer's, then gradients, then the weights themselves.

# %%
ladder = pd.DataFrame(zero_stages("13B", dp=32, device="h100").to_dict()["zero"]).set_index("zero")
gb = ladder[["bytes", "redundant_bytes", "largest_parameters"]] / 1e9
gb.columns = ["GB per GPU", "of all GPUs' redundant (GB)", "largest model (B)"]
gb.assign(**{"fits in 80 GB": ladder["fits"], "fewest replicas": ladder["smallest_dp"].astype("Int64")}).round(1)

# %% [markdown]
# State is not all: activations come on top, and how many depends on the layout. So the job is written down as it would be
# launched: two GPUs share each layer (tp), and 32 such pairs split the batch (dp). It is simulated under each stage of ZeRO.

# %%
JOB = """
name: Llama 2 13B, 64 H100
cluster: {topology: dgx_h100, nodes: 8}
model: {preset: llama2-13b}
parallel: {tp: 2, dp: 32, sequence_parallel: true, zero: 1}
training: {global_batch: 256, micro_batch: 2}
overlap: {tensor: true, grad_reduce: true, param_gather: true}
"""
job = simcluster.scenario(JOB)
rungs = simcluster.job_memory(job).rungs
pd.DataFrame({f"ZeRO-{rung.zero}" + " (ours)" * rung.own: {"GB on the fullest GPU": rung.footprint.total / 1e9, "ms a step": 1e3 * rung.step_time}
              for rung in rungs}).T.round(1)  # fmt: skip

# %%
one, two, three = rungs[1:]
assert one.fits and not rungs[0].fits and two.step_time < 1.001 * one.step_time < three.step_time
Markdown(
    f"Alone, a GPU would need {gb.loc[1, 'GB per GPU']:.0f} GB for the state alone under ZeRO-1; with half of each layer it "
    f"holds {one.footprint.total / 1e9:.0f} GB of everything. ZeRO-2 is as fast in {two.footprint.total / 1e9:.0f} GB, and ZeRO-3, which "
    f"gathers weights over and over, {three.step_time / one.step_time - 1:.1%} slower. How large a micro batch has room? "
    "`largest` answers for anything in a scenario that is a number:"
)

# %%
print(simcluster.largest_that_fits(job, "training.micro_batch").summary())

# %% [markdown]
# ## What a step takes
#
# The MFU was a guess. The step is simulated op by op, and gives it.

# %%
step = simcluster.simulate(job)
pd.DataFrame({"ms a step": {name: 1e3 * seconds for name, seconds in step.times.breakdown.items() if seconds}}).round(1).T

# %%
other = simcluster.simulate(JOB, {"parallel": {"dp": 64, "zero": 3}, "overlap.tensor": False})
assert other.fits and other.mfu > step.mfu > 0.4
Markdown(
    f"A step of {job.tokens_per_step:,} tokens takes {step.step_time:.3f} s: an MFU of {step.mfu:.1%}, better than the guess, "
    f"but not all that could be. Nothing but ZeRO-3, over all 64 GPUs, and no tp, takes {other.step_time:.3f} s: {other.mfu:.1%}. "
    "(`simcluster plan` looks for such things, as in notebook 06.) We continue with ours, to see what the difference costs."
)

# %% [markdown]
# ## What tokens are worth
#
# Documents are not as long as sequences are. Padding fills the rest with nothing, and nothing is trained on at full price.
# Here are eight documents in sequences of 2,048, by every rule that there is:

# %%
lengths = [1200, 700, 300, 1900, 100, 2048, 600, 450]
packed = simcluster.compare_packing(lengths, 2048)
packed.round(4)

# %% [markdown]
# In a scenario a `data:` section says what documents are like. The same job on one machine, with long-tailed documents
# (half of them below 1,000 tokens), padded and packed: what counts is *real* tokens a second.

# %%
alone = {"cluster.nodes": 1, "parallel.tp": 8, "parallel.dp": 1, "training.global_batch": 8}
DATA = {"documents": {"kind": "lognormal", "median": 1000, "sigma": 1.6}, "unique": "300B"}
played = {rule: simcluster.simulate(JOB, {**alone, "data": {**DATA, "packing": rule}}) for rule in ("pad", "balanced")}
numbers = {rule: result.to_dict() for rule, result in played.items()}
real = pd.DataFrame({rule: {"real tokens (%)": 100 * each["real_token_fraction"], "MFU (%)": 100 * each["mfu"],
                            "MFU of real tokens (%)": 100 * each["mfu_without_padding"], "real tokens/s": each["real_tokens_per_s"]}
                     for rule, each in numbers.items()}).T  # fmt: skip
real.round(1)

# %%
pad, balanced = (numbers[rule] for rule in played)
assert pad["real_token_fraction"] < 0.6 < balanced["real_token_fraction"]
epochs = compute_optimal(parameters="13B", loss=LOSS, unique="300B")
Markdown(
    f"Padding keeps the GPUs as busy (MFU {pad['mfu']:.0%} against {balanced['mfu']:.0%}) and trains on "
    f"{pad['real_tokens_per_s'] / balanced['real_tokens_per_s']:.0%} of the tokens. And if there are only 300B of them, each is "
    f"seen {epochs.to_loss.tokens / 300e9:.1f} times: a repeated token is worth a little less, so the loss takes "
    f"{epochs.to_loss.tokens / 1e9:,.0f}B instead of {goal.to_loss.tokens / 1e9:,.0f}B."
)

# %% [markdown]
# ## How many GPUs are too many?
#
# More GPUs with a larger batch take fewer steps, up to a point. Beyond the critical batch a step learns little more from
# more tokens: at the critical batch itself twice as many tokens are needed as at best. Days and dollars below are with the
# *simulated* step of each size.

# %%
grown = compute_optimal(job, loss=LOSS, price=PRICE, vary={"cluster.nodes": [8, 32, 128]})
sizes = grown.batches
pd.DataFrame({"GPUs": sizes["gpus"], "batch (M tokens)": sizes["batch"] / 1e6, "of the critical one": sizes["of_critical"],
              "tokens (B)": sizes["tokens"] / 1e9, "days": sizes["days"], "dollars": sizes["dollars"]}).round(2)  # fmt: skip

# %%
simcluster.plots.costs(grown)

# %%
first, last = sizes.iloc[0], sizes.iloc[-1]
assert last["days"] < first["days"] and last["dollars"] > first["dollars"]
Markdown(
    f"{last['gpus'] / first['gpus']:.0f} times the GPUs are done {first['days'] / last['days']:.1f} times as soon, for "
    f"{last['dollars'] / first['dollars']:.1f} times the money. With {first['gpus']:.0f} the budget holds: {first['days']:.1f} days, "
    f"\\${first['dollars']:,.0f}."
)

# %% [markdown]
# ## The run
#
# A month is long enough for GPUs to fail. A `run:` section says when it ends (by a loss), what fails (as often as Meta saw
# with Llama 3), where checkpoints go, and what things cost. It is simulated many times, each time with other failures.

# %%
RUN = {
    "loss": LOSS,
    "failures": "llama3",
    "checkpoint": {"every": "auto", "to": "20 GB/s"},
    "restart": [{"part": "load"}, {"part": "warm up", "takes": "3 min"}],
    "spares": {"warm": 1},
    "price": PRICE,
    "power": {"price": 0.08},
    "achievable_mfu": other.mfu,
    "played": 30,
}
run = simcluster.train(simcluster.scenario(JOB, {"run": RUN}))
simcluster.plots.lost_time({"the run": run})

# %%
bill = dict(run.money.parts)
assert abs(sum(bill.values()) - run.dollars) < 1
pd.DataFrame({"dollars": {**bill, "all": run.dollars, "of it lost to what fails": run.money.failures}}).T.round(0)

# %%
days, mwh = run.days, run.energy.total.mean() / 1e3
assert run.goodput > 0.99 and abs(run.loss - LOSS) < 1e-3
Markdown(
    f"**{days:.1f} days, \\${run.dollars:,.0f}, {mwh:.0f} MWh for a loss of {run.loss:.2f}.** Failures hardly matter at this size: "
    f"{run.goodput:.1%} of the time goes into steps that are kept. What can be saved is in the step: at the "
    f"{other.mfu:.1%} of the other layout the same tokens would cost \\${run.price_of_mfu.lost:,.0f} less. (A law of loss knows no batch. The table above "
    f"counted it, at {first['of_critical']:.2f} of the critical one: {first['tokens'] / goal.to_loss.tokens - 1:.0%} more tokens, "
    f"{first['days']:.1f} days. Which of the two it will be, a small run of yours would show.)"
)

# %% [markdown]
# ## Every exercise, and the call that answers it
#
# The worked numbers and exercises of a course on distributed training. Each answer is what the call next to it gives, here
# and now. `formulas` has the closed forms that the simulator is held against; [notebook 02](02_worked_examples.ipynb) simulates
# what is a step or a collective, next to its formula, and has a page on where the textbook is wrong.

# %%
from simcluster import Costs, collective_times, compare_packing, kernels, load_cluster, simulate, simulate_costs

MINUTE, HOUR, DAY = 60, 3600, 86400


def answers(rows):
    """What is asked, the answer in these words, and the call that was evaluated for it."""
    table = []
    for asked, call, words in rows:
        value = eval(call, globals())
        each = ["none" if one is None else words.format(one) for one in (value if isinstance(value, list) else [value])]
        table.append((*(text.replace("$", r"\$") for text in (asked, ", ".join(each))), f"`{call}`"))  # no formulas
    head = ["| asked | answer | call |", "|---|---|---|"]
    return Markdown("\n".join([*head, *("| " + " | ".join(row) + " |" for row in table)]))


# %% [markdown]
# ### Time and money

# %%
answers([
    ("GPT-3 on one GPU at its peak of 989 TFLOP/s", "estimate_training('175B', '300B', gpus=1).days", "{:,.1f} days"),
    ("its FLOP", "estimate_training('175B', '300B').flops", "{:.3g}"),
    ("7B on 2T tokens, one GPU at 50 %", "estimate_training('7B', '2T', mfu='50%', gpus=1).days", "{:,.1f} days"),
    ("the same in GPU-hours", "estimate_training('7B', '2T', mfu='50%').gpu_hours", "{:,.0f}"),
    ("in dollars, at $2", "estimate_training('7B', '2T', mfu='50%', price=2).dollars", "${:,.0f}"),
    ("GPUs to be done in 30 days", "estimate_training('7B', '2T', mfu='50%', days=30).gpus_needed", "{}"),
    ("days on 1,024 GPUs", "estimate_training('7B', '2T', mfu='50%', gpus=1024).days", "{:.2f}"),
    ("70B on 15T tokens at 40 %: GPU-days", "estimate_training('70B', '15T', mfu='40%').gpu_hours / 24", "{:,.0f}"),
    ("its dollars", "estimate_training('70B', '15T', mfu='40%', price=2).dollars / 1e6", "${:.3f} M"),
    ("days on 1,024 GPUs", "estimate_training('70B', '15T', mfu='40%', gpus=1024).days", "{:.1f}"),
    ("$10M at $2 and 35 %: FLOP bought", "estimate_training('70B', budget='$10M', price=2, mfu='35%').bought_flops", "{:.5g}"),
    ("lost against 50 %", "estimate_training('70B', budget='$10M', price=2, mfu='35%', achievable='50%').lost_dollars / 1e6", "${:.1f} M"),
    ("more training there", "estimate_training('70B', budget='$10M', price=2, mfu='35%', achievable='50%').more_training", "{:.1%}"),
    ("lost against the peak", "estimate_training('70B', budget='$10M', price=2, mfu='35%', achievable=1.0).wasted", "{:.0%}"),
    ("burnt at 40 % MFU", "estimate_training('70B', '15T', mfu='40%', price=2, achievable=1.0).wasted", "{:.0%}"),
    ("effective batch, in tokens", "[scenario(name).tokens_per_step for name in ('gpt3_175b_64xa100', 'tiny_dp')]", "{:,}"),
])

# %% [markdown]
# ### Checkpoints, failures, spares

# %%
llama3 = {each.name: each for each in formulas.published_failures()}["llama3"]
saved = [(60, 10800, 600), (30, 11135, 300), (300, 3600, 600)]  # seconds: a checkpoint, between failures, a restart


def checkpoint_gb(billions, recipe):
    """Weights and the optimizer's state; gradients are not saved."""
    held = formulas.state_bytes(billions * 1e9, formulas.recipe_named(recipe))
    return (held.parameters + held.optimizer) / 1e9


def interval(checkpoint, gpus):
    """The best interval (s) of a job that fails as often as Llama 3 did."""
    return formulas.best_interval(checkpoint, 1 / llama3.job_failure_rate(gpus))


def goodput(checkpoint, gpus):
    """At that interval, with restarts of 300 s."""
    return formulas.kept_share(interval(checkpoint, gpus), checkpoint, 300, 0, llama3.job_failure_rate(gpus))


answers([
    ("GB of a checkpoint, 10 B a parameter: 7, 70, 175, 405B", "[checkpoint_gb(n, 'bf16-12') for n in (7, 70, 175, 405)]", "{:,.0f}"),
    ("the same with a master copy, 14 B", "[checkpoint_gb(n, 'mixed-16') for n in (7, 70, 175, 405)]", "{:,.0f}"),
    ("60 s after every K steps of 13.71 s, a failure in 3 h: lost at K = 10, 50, 83, 100, 200",
     "[1 - formulas.first_order_efficiency(13.71 * K, 60, 0, 3 * HOUR) for K in (10, 50, 83, 100, 200)]", "{:.2%}"),
    ("the best K", "formulas.young_interval(60, 3 * HOUR) / 13.71", "{:.2f}"),
    ("Young's interval: (C, M, R) = (60, 10800, 600), (30, 11135, 300), (300, 3600, 600) s", "[formulas.young_interval(C, M) for C, M, R in saved]", "{:.1f} s"),
    ("Daly's", "[formulas.daly_interval(C, M) for C, M, R in saved]", "{:.1f} s"),
    ("the exact optimum", "[formulas.best_interval(C, M) for C, M, R in saved]", "{:.1f} s"),
    ("goodput at it", "[formulas.kept_share(formulas.best_interval(C, M), C, R, 0, 1 / M) for C, M, R in saved]", "{:.5f}"),
    ("goodput at Young's", "[formulas.kept_share(formulas.young_interval(C, M), C, R, 0, 1 / M) for C, M, R in saved]", "{:.5f}"),
    ("hours between failures, as Llama 3 saw them: 64, 1,024, 8,192, 16,384, 131,072 GPUs",
     "[1 / llama3.job_failure_rate(n) / HOUR for n in (64, 1024, 8192, 16384, 131072)]", "{:.4g}"),
    ("failures a day on 16,384", "llama3.job_failure_rate(16384) * DAY", "{:.2f}"),
    ("175B on 256 GPUs, 17.5 s to storage, 0.285 s to the host: best interval", "[interval(C, 256) for C in (17.5, 0.285)]", "{:,.1f} s"),
    ("goodput, restarts of 300 s", "[goodput(C, 256) for C in (17.5, 0.285)]", "{:.5f}"),
    ("405B on 16,384: 5.67 TB at 2 TB/s, at 100 GB/s: best interval", "[interval(C, 16384) for C in (2.835, 56.7)]", "{:,.1f} s"),
    ("goodput", "[goodput(C, 16384) for C in (2.835, 56.7)]", "{:.5f}"),
    ("on 131,072, at 2 TB/s", "goodput(2.835, 131072)", "{:.5f}"),
    ("more machines down than spares, repairs of 4 h: 0, 1, 2, 4 spares",
     "[formulas.shortage_probability(n, llama3.job_failure_rate(16384) * 4 * HOUR) for n in (0, 1, 2, 4)]", "{:.4f}"),
    ("repairs of 24 h: 8, 16 spares", "[formulas.shortage_probability(n, llama3.job_failure_rate(16384) * DAY) for n in (8, 16)]", "{:.4f}"),
])

# %% [markdown]
# ### Memory

# %%
answers([
    ("70B, 13B: 2 + 2 + 12 bytes", "[formulas.state_bytes(n, formulas.recipe_named('mixed-16')).total / 1e9 for n in (70e9, 13e9)]", "{:,.0f} GB"),
    ("13B, 12 bytes, 8 GPUs, ZeRO 0 to 3", "[stage.bytes / 1e9 for stage in zero_stages('13B', recipe='bf16-12', dp=8).stages]", "{:.4g} GB"),
    ("70B on 64 GPUs", "[stage.bytes / 1e9 for stage in zero_stages('70B', recipe='bf16-12', dp=64).stages]", "{:.5g} GB"),
    ("held by all 64 without ZeRO", "zero_stages('70B', recipe='bf16-12', dp=64).stages[0].total / 1e12", "{:.2f} TB"),
    ("fewest GPUs of 80 GB, 16 bytes: 7B, ZeRO 0 to 3", "[stage.smallest_dp for stage in zero_stages('7B', recipe='mixed-16').stages]", "{}"),
    ("13B", "[stage.smallest_dp for stage in zero_stages('13B', recipe='mixed-16').stages]", "{}"),
    ("70B, 175B, 405B with ZeRO-3", "[zero_stages(n, recipe='mixed-16').stages[3].smallest_dp for n in ('70B', '175B', '405B')]", "{}"),
    ("12 bytes: 13B, ZeRO 0 to 3", "[stage.smallest_dp for stage in zero_stages('13B', recipe='bf16-12').stages]", "{}"),
    ("70B, 175B with ZeRO-3", "[zero_stages(n, recipe='bf16-12').stages[3].smallest_dp for n in ('70B', '175B')]", "{}"),
    ("largest model on 8 GPUs, 12 bytes, ZeRO 0 to 3", "[stage.largest / 1e9 for stage in zero_stages('13B', recipe='bf16-12', dp=8).stages]", "{:.3g}B"),
    ("175B, TP 8, PP 4, DP 8, ZeRO-2", "formulas.state_bytes(175e9 / 32, formulas.recipe_named('bf16-12'), zero=2, dp=8).total / 1e9", "{:.2f} GB"),
])

# %% [markdown]
# ### Tokens and packing

# %%
four = [(1000, 1.6, 8192), (1000, 1.0, 8192), (500, 1.0, 2048), (500, 1.0, 4096)]
laws_of_lengths = [(formulas.LognormalLengths(kind="lognormal", median=median, sigma=sigma), s) for median, sigma, s in four]
answers([
    ("real tokens: pad, cut, first fit, first fit decreasing", "list(compare_packing(lengths, 2048)['utilization'][:4])", "{:.5f}"),
    ("sequences", "list(compare_packing(lengths, 2048)['sequences'][:4])", "{}"),
    ("attention left with document masks", "compare_packing(lengths, 2048).loc['first_fit_decreasing', 'attention']", "{:.4f}"),
    ("lognormal documents, padded: (median, sigma, s) = (1000, 1.6, 8192), (1000, 1, 8192), (500, 1, 2048), (500, 1, 4096)", "[formulas.mean_padded_tokens(law, s) / s for law, s in laws_of_lengths]", "{:.4f}"),
    ("2T tokens at 1,024 x 8,192: steps", "compare_packing([8192], 8192, batch=1024, tokens=2e12).loc['cut', 'steps']", "{:,}"),
    ("0.89 of it real", "compare_packing(4 * lengths, 8192, batch=1024, tokens=2e12).loc['cut', 'steps']", "{:,}"),
    ("epochs, 0.5T of them unique", "compare_packing(lengths, 2048, tokens=2e12, unique=0.5e12).loc['cut', 'epochs']", "{:g}"),
])

# %% [markdown]
# ### Loss

# %%
refit, fitted, printed = (formulas.loss_law(name) for name in ("besiroglu", "hoffmann", "hoffmann-printed"))
budgets = (8.4e22, 3.15e23, 5.76e23)  # 7B x 2T, GPT-3, Gopher
answers([
    ("best model for 7B x 2T, GPT-3's and Gopher's FLOP, refit", "[refit.compute_optimal_size(C).parameters / 1e9 for C in budgets]", "{:.2f}B"),
    ("its loss", "[refit.compute_optimal_size(C).loss for C in budgets]", "{:.4f}"),
    ("Hoffmann, as fitted", "[fitted.compute_optimal_size(C).parameters / 1e9 for C in budgets]", "{:.2f}B"),
    ("Hoffmann, as printed", "[printed.compute_optimal_size(C).parameters / 1e9 for C in budgets]", "{:.2f}B"),
    ("20 tokens per parameter", "[compute_optimal(compute=C).laws.loc['20 tokens per parameter', 'parameters'] / 1e9 for C in budgets]", "{:.1f}B"),
    ("7B on 2T; 175B on 300B; 70B on 1.4T", "[refit.loss(n, d) for n, d in ((7e9, 2e12), (175e9, 300e9), (70e9, 1.4e12))]", "{:.4f}"),
    ("7B to a loss of 2.2, 2.1, 2.05, 2.0 (printed)", "[printed.tokens_to_loss(loss, 7e9) / 1e9 for loss in (2.2, 2.1, 2.05, 2.0)]", "{:,.1f}B"),
    ("that in H100-days at 40 %", "[estimate_training('7B', printed.tokens_to_loss(loss, 7e9), mfu='40%', gpus=1).days for loss in (2.2, 2.1, 2.05, 2.0)]", "{:,.0f}"),
    ("7B to a loss of 1.87", "printed.tokens_to_loss(1.87, 7e9)", "{} tokens: never"),
    ("its floor", "printed.lowest_loss(7e9)", "{:.4f}"),
    ("served 0, 1T, 10T, 100T tokens at 2.0: best size", "[printed.cheapest_size(2.0, served).parameters / 1e9 for served in (0, 1e12, 1e13, 1e14)]", "{:.2f}B"),
    ("steps over the least, at 1/4, 1, 2, 4, 8 of the critical batch", "[formulas.CriticalBatch(1e6, 1e12).steps_at(part * 1e6) / 1e6 for part in (1 / 4, 1, 2, 4, 8)]", "{:.3f}"),
    ("tokens over the least", "[formulas.CriticalBatch(1e6, 1e12).tokens_at(part * 1e6) / 1e12 for part in (1 / 4, 1, 2, 4, 8)]", "{:g}"),
    ("Kaplan's critical batch at the floor of 7, 70, 175, 405B", "[formulas.kaplan_critical_batch(formulas.loss_law('kaplan').lowest_loss(n * 1e9)) / 1e6 for n in (7, 70, 175, 405)]", "{:.2f} M"),
])

# %% [markdown]
# ### Traffic, pipelines, kernels, a measurement

# %%
def ideal(gpus, rate="50 GB/s"):
    """GPUs with one port each on an ideal switch."""
    link = {"line_rate": rate, "source": "ideal"}
    return load_cluster({"kind": "flat", "device": "h100", "gpus": gpus, "link": link, "path_latency": "0 s"})


def sent(kind, size, gpus):
    """GB that a GPU sends in a collective of a number of bytes."""
    return formulas.busiest_links_of_collective(ideal(gpus), [range(gpus)], kind, size).load / 1e9


given = Costs(forward=0.1, backward=0.2, tensor_parallel=0.01, collectives=2, send=0.005)
stalls = [{"kind": "host_stall", "cause": cause, "seconds": time} for cause, time in (("data_loading", "5 ms"), ("checkpoint", "20 ms"))]
measured = {"step_time": f"{1.1 * step.step_time} s", "source": "ours"}
gpt3 = {row.name: row for row in kernels(scenario("gpt3_175b_64xa100"))}
answers([
    ("all-reduce of 14 GB on 8 GPUs of 600 GB/s", "1e3 * collective_times(ideal(8, '600 GB/s'), range(8), 'all_reduce', 14e9).duration", "{:.1f} ms"),
    ("200 MB on 16 of 100 GB/s", "1e3 * collective_times(ideal(16, '100 GB/s'), range(16), 'all_reduce', 2e8).duration", "{:.2f} ms"),
    ("10B in fp16 on 64 GPUs: sent by data parallelism", "sent('all_reduce', 20e9, 64)", "{:.3f} GB"),
    ("by ZeRO-3", "2 * sent('all_gather', 20e9, 64) + sent('reduce_scatter', 20e9, 64)", "{:.4f} GB"),
    ("TP 8, b s = h = 8192: one all-reduce", "1e3 * sent('all_reduce', 2 * 8192**2, 8)", "{:.0f} MB"),
    ("96 layers", "96 * 4 * sent('all_reduce', 2 * 8192**2, 8)", "{:.3f} GB"),
    ("32 layers of 4096", "32 * 4 * sent('all_reduce', 2 * 4096**2, 8)", "{:.3f} GB"),
    ("the tiny job with 5 ms for data and 20 ms for a checkpoint in each step", "1e3 * simulate(scenario('tiny_dp', {'faults': stalls})).step_time", "{:.3f} ms"),
    ("1F1B, P = 8, K = 32: bubble", "simulate_costs(Costs(forward=1, backward=2), stages=8, microbatches=32).times.bubble_fraction", "{:.1%}"),
    ("K = 133, 134", "[simulate_costs(Costs(forward=1, backward=2), stages=8, microbatches=K).times.bubble_fraction for K in (133, 134)]", "{:.2%}"),
    ("TP 4, PP 2, K = 8, F 100, B 200, 10 and 5 ms", "simulate_costs(given, stages=2, microbatches=8, tp=4).step_time", "{:.2f} s"),
    ("GPT-3, TP 8: a rank's kernels, m x k -> n", "[f'{name} {gpt3[name].m} x {gpt3[name].k} -> {gpt3[name].n} ({gpt3[name].split})' for name in ('qkv', 'projection', 'mlp_up', 'mlp_down')]", "{}"),
    ("our step took 1.1 times as long: its MFU", "simulate(simcluster.scenario(JOB, {'measured': measured})).to_dict()['measured']['mfu']", "{:.1%}"),
])

# %% [markdown]
# What is a study rather than a number has a separate notebook or command: layouts and the launch checklist
# ([06](06_planning.ipynb), `simcluster plan`, `check`), failures week by week ([07](07_long_run.ipynb), `train`, `advise`),
# and the way to a loss of a job of yours: `simcluster budget loss SCENARIO --loss 2.05 --price 2 --vary cluster.nodes=8,32`.
# GPT-3's year on 64 A100, with its failures and dollars, is one command, too:
# `simcluster train gpt3_175b_64xa100 --run.tokens 300B --run.failures llama3 --run.checkpoint.to "100 GB/s" --run.price 2`.
