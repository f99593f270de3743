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
# # The long run: from a step to weeks
#
# What is bought is not a step but a trained model, and weeks are long enough for GPUs to fail, for links to flap and for
# work to be lost. A scenario with a `run:` section says how long it trains, what fails, and what is done about that. Ours
# is small: eight GPUs that fail far more often than real ones do, so that four weeks show everything. (How often real ones
# do: `failures: llama3` and a dozen others, `simcluster failures --list`.)
#
# Four questions, in this order: how often to save, how many machines should stand by, how fast a restart must be, and
# what a log of failures that have been says about the same.

# %%
# %matplotlib inline
import tempfile
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

import simcluster

RUN = {
    "days": "28 d",
    "failures": [
        {"name": "GPU", "of": "gpu", "mtbf": "12 d", "repair": {"kind": "exponential", "mean": "12 h"}},
        {"name": "software", "of": "job", "mtbf": "30 h", "detect": "10 min"},
        {"name": "hot GPU", "of": "gpu", "effect": "slow", "by": [1.3], "mtbf": "30 d", "lasts": "12 h"},
    ],
    "checkpoint": {"every": "1 h", "stall": "1 min", "read": "1 GB/s"},
    "restart": [
        {"part": "stop", "takes": "30 s", "exposed": False},
        {"part": "load"},
        {"part": "warm up", "takes": "5 min"},
    ],
    "spares": {"warm": 1},
    "played": 200,
}


def train(changes=None):
    """The run with other values at dotted paths, as on the command line: --run.checkpoint.every "10 min"."""
    return simcluster.train(simcluster.scenario("tiny_3d", {"run": RUN, **(changes or {})}))


planned = train()
pd.DataFrame({"seconds a step": planned.states})

# %% [markdown]
# The step simulator was asked once for each state of the cluster that the run meets, on the same topology graph. From
# there on time goes from event to event, 200 times with other luck. The first of these runs, week by week: it trains
# (blue), and a failure throws it back to its last checkpoint and stops it.

# %%
simcluster.plots.run_calendar(planned)

# %% [markdown]
# ## What was lost
#
# Every GPU-second has one fate, and all of them sum to the wall time. *Productive* is what the steps that are kept take on
# the healthy cluster; its share of the wall is the *goodput*.

# %%
simcluster.plots.lost_time({"as planned": planned})

# %%
table = planned.breakdown[planned.breakdown["share"] > 0]
assert abs(table["mean_s"].sum() - planned.outcomes.wall.mean()) < 1
(100 * table[["share", "low", "high"]]).round(2).rename(columns=lambda name: f"{name} (%)")

# %% [markdown]
# ## Closed forms for comparison
#
# Young's and Daly's formulas know failures, restarts and checkpoints, and nothing of spares or of slow GPUs. Where the
# gap is more than noise, the table says what it is made of.

# %%
planned.expected[["closed_form", "value", "simulated", "half_width", "why"]].round(4)

# %%
simcluster.plots.goodput(planned)

# %% [markdown]
# ## How often to save
#
# Too often costs checkpoints, too rarely costs work that is done again. All runs meet the same failures (each draw has a
# number of its own), so a difference between two policies is known much better than either of them.

# %%
often, rarely = (train({"run.checkpoint.every": words}) for words in ("10 min", "6 h"))
every = {"10 min": often, "1 h": planned, "6 h": rarely}
best = planned.expected.set_index("closed_form").loc["best interval, exact", "value"]
simcluster.plots.lost_time({f"every {words}": training for words, training in every.items()})

# %%
goodput = {words: training.goodput for words, training in every.items()}
assert goodput["1 h"] > max(goodput["10 min"], goodput["6 h"])
Markdown(
    f"Of the three, an hour is best, at {goodput['1 h']:.1%}: every 10 minutes gives {goodput['10 min']:.1%}, every six "
    f"hours {goodput['6 h']:.1%}. The exact optimum of the closed form is {best / 60:.0f} minutes."
)


# %% [markdown]
# ## Spares, and a slow GPU
#
# How many machines should stand by? And does it pay to replace a GPU that runs hot, at the price of an outage?


# %%
def gain(training, other):
    """Points of goodput more, run by run, and half of the 95 % interval."""
    difference = 100 * (training.shares["productive"] - other.shares["productive"])
    return difference.mean(), 1.96 * difference.std(ddof=1) / len(difference) ** 0.5


policies = {f"{count} spares": train({"run.spares.warm": count}) for count in (0, 2, 4)}
policies["hot GPU replaced"] = train({"run.straggler": "checkpoint", "run.noticed": "30 min"})
rows = {name: [100 * other.goodput, *gain(other, planned)] for name, other in policies.items()}
pd.DataFrame(rows, index=["goodput (%)", "points more than planned", "± (95 %)"]).T.round(2)

# %%
first, second, third = (rows[f"{count} spares"] for count in (0, 2, 4))
replaced = rows["hot GPU replaced"]
assert first[1] + first[2] < 0 < second[1] - second[2]
assert replaced[1] - replaced[2] > 0
Markdown(
    f"Without a spare the job waits for each repair and loses {-first[1]:.1f} points; a second spare is worth "
    f"{second[1]:.2f} ± {second[2]:.2f} points, and two more after it {third[1] - second[1]:.2f}. To replace the hot GPU after "
    f"the next checkpoint is worth {replaced[1]:.2f} ± {replaced[2]:.2f} points, with one spare."
)

# %% [markdown]
# ## How fast a restart must be
#
# With two spares, what share of the time goes into steps that are kept (the *effective training time ratio*, ETTR), and
# how long may it take from a failure to training on if it is to be 95 %? Detection and waiting for a machine count.

# %%
two = policies["2 spares"]
outages = two.outcomes.outages.sum(axis=1).mean()
takes = two.breakdown.loc[["detection", "diagnosis", "waiting", "restart"], "mean_s"].sum() / outages
asked = {f"{share:.0%}": two.restart_for(share) / 60 for share in (0.93, 0.94, 0.95)}
pd.DataFrame({"minutes from a failure to training on": {f"now: {two.ettr:.1%}": takes / 60, **asked}}).round(1)

# %%
fast = train(
    {
        "run.spares.warm": 2,
        "run.failures": [*RUN["failures"][:1], {**RUN["failures"][1], "detect": "2 min"}, *RUN["failures"][2:]],
        "run.restart": [*RUN["restart"][:2], {"part": "warm up", "takes": "1 min"}],
    }
)
assert takes / 60 > asked["95%"] > 0
Markdown(
    f"It takes {takes / 60:.0f} minutes now; 95 % asks for {asked['95%']:.1f}. Simulated with software faults noticed in 2 "
    f"minutes, not 10, and a warm-up of 1, not 5, the ratio is {fast.ettr:.1%}."
)

# %% [markdown]
# ## What a log says
#
# A real job has one history, not 200. A log of it (here that of the first run, as a team would keep it: when, what,
# where, and for how long the job stood) can be simulated again under another policy: the same failures happen, and what is
# done about them is new. On the command line: `simcluster train SCENARIO --replay incidents.csv --run.spares.warm 2`.

# %%
planned.incidents.head(4).round(0)

# %%
with tempfile.TemporaryDirectory() as folder:
    log = Path(folder) / "incidents.csv"
    planned.incidents.to_csv(log, index=False)
    what_if = {"run.spares.warm": 2, "run.checkpoint.every": "45 min"}
    again = simcluster.replay_failures(planned.scenario, log, what_if)
print(again.summary())

# %%
worth = again.table.loc["goodput"]
assert worth["difference"] > worth["half_width"]
Markdown(
    f"Two spares and a checkpoint every 45 minutes would have been worth {100 * worth['difference']:.1f} points to *this* "
    f"job. What the log says of rates, and how little {len(planned.incidents)} incidents say, is shown by "
    "`simcluster failures incidents.csv --scenario SCENARIO`, as a `failures:` section to continue with."
)
