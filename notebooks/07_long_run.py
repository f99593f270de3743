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
# is small: eight GPUs that fail far more often than real ones do, so that four weeks show everything.

# %%
# %matplotlib inline
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
    "restart": [{"part": "stop", "takes": "30 s", "exposed": False}, {"part": "load"}, {"part": "warm up", "takes": "5 min"}],
    "spares": {"warm": 1},
    "played": 200,
}


def play(**changes):
    """The run with other values at dotted paths, as in run.checkpoint.every."""
    named = {path.replace("__", "."): value for path, value in changes.items()}
    return simcluster.train(simcluster.load("tiny_3d", {"run": RUN, **named}))


planned = play()
pd.DataFrame({"seconds a step": planned.states})

# %% [markdown]
# The step simulator was asked once for each state of the cluster that the run meets, on the same topology graph. From
# there on time goes from event to event. The first of the runs that were played, week by week:

# %%
simcluster.plots.weeks(planned)

# %% [markdown]
# ## What was lost
#
# Every GPU-second has one fate, and all of them sum to the wall time.

# %%
simcluster.plots.fates({"as planned": planned})

# %%
table = planned.breakdown[planned.breakdown["share"] > 0]
assert abs(table["mean_s"].sum() - planned.outcomes.wall.mean()) < 1
(100 * table[["share", "low", "high"]]).round(2).rename(columns=lambda name: f"{name} (%)")

# %% [markdown]
# ## Closed forms beside it
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
every = {words: play(run__checkpoint__every=words) for words in ("10 min", "1 h", "6 h")}
best = planned.expected.set_index("closed_form").loc["best interval, exact", "value"]
simcluster.plots.fates({f"every {words}": training for words, training in every.items()})

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


policies = {f"{count} spares": play(run__spares__warm=count) for count in (0, 2, 4)}
policies["hot GPU replaced"] = play(run__straggler="checkpoint", run__noticed="30 min")
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
