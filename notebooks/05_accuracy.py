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
# # How far to trust it
#
# A simulator is worth what its errors are known to be. Every built-in table is a *study*: a base scenario, the
# table as printed, and which column is which value. `simcluster validate` simulates every row; this notebook does the same
# in Python, then takes the three worst rows apart.
#
# The long tables (vTrain, LLM Foundry, torchtitan, SimuMax, MLPerf, ...) are not included; with `SIMCLUSTER_DATA` naming their
# folder, `simcluster validate scenarios/validation/*.yaml` scores them too. Here are the ones that anyone can run at once.

# %%
# %matplotlib inline
import pandas as pd
from IPython.display import Markdown

import simcluster
from simcluster import plots

STUDIES = ["korthikanti_table4", "megascale_table2", "megatron_h100_weak", "fms_fsdp", "bloom_prequel"]  # some of them
reports = simcluster.validate_studies(STUDIES)


def percent(fraction):
    return f"{fraction:+.1%}" if fraction < 0 else f"{fraction:.1%}"


rows = [
    {
        "study": report.study.name,
        "rows": part.score.rows,
        "mean error": percent(part.score.mean),
        "worst": percent(part.score.worst),
        "bias": percent(part.score.bias),
        "fitted on these rows": "yes" if part.role == "fitted" else "no",
    }
    for report in reports
    for part in report.parts
    if part.score
]
pd.DataFrame(rows).set_index("study")

# %% [markdown]
# The bias matters as much as the mean: a study that is too fast throughout lacks a mechanism; one with errors of both signs
# lacks resolution.

# %%
plots.validation_errors(reports)

# %% [markdown]
# ## The three worst rows, taken apart
#
# A wrong total says little. What the simulated step is made of says where to look: the missing time has to be in
# something that the real run did and the scenario does not say.

# %%
points = sorted(
    (point for report in reports for part in report.parts for point in part.points), key=lambda point: -point.log_error
)[:3]
taken_apart = pd.DataFrame(
    {
        f"{point.group}: {point.label}": {
            "measured (s)": round(point.measured, 3),
            "simulated (s)": round(point.predicted, 3),
            "missing (s)": round(point.measured - point.predicted, 3),
            **{name: round(seconds, 3) for name, seconds in point.breakdown.items() if seconds > 1e-4},
        }
        for point in points
    }
).fillna(0.0)
taken_apart

# %% [markdown]
# Two questions narrow it down. *How much slower would one resource have to be* to explain the row, and is that plausible?
# And *which mechanism is switched off* in that study's scenario?

# %%
worst = points[0]
compute = sum(worst.breakdown.get(name, 0.0) for name in ("forward", "backward", "recompute"))
exposed = sum(seconds for name, seconds in worst.breakdown.items() if name.startswith("exposed_"))
missing = worst.measured - worst.predicted
pd.Series(
    {
        "compute would have to take longer by": percent(missing / compute),
        "or exposed communication take longer by": percent(missing / exposed) if exposed else "there is none",
        "or the run idle for, of the step": percent(missing / worst.measured),
    },
    name=worst.label,
).to_frame()

# %%
Markdown(
    "For the worst row it cannot be communication: what is exposed of it would have to take "
    f"{1 + missing / exposed:.1f} times as long."
    if missing > exposed
    else f"For the worst row communication could be it: exposed, it would have to take {missing / exposed:.0%} longer."
)

# %% [markdown]
# ## What is it worth, mechanism by mechanism
#
# GPT-3 175B on 64 A100 (arXiv:2205.05198, table 5), with one mechanism switched off at a time. What changes the
# step little here decides it elsewhere: NCCL's own rates matter most where messages are small, host time where
# microbatches are.

# %%
ABLATIONS = {
    "as built in": {},
    "links alone, without NCCL's rates": {"collectives.nccl": "none"},
    "no slowdown of compute by concurrent communication": {"overlap.interference": "none"},
    "sends that do not block": {"overlap.pipeline": True},
    "tensor-parallel collectives all exposed": {"overlap.tensor": False},
}
measured = simcluster.scenario("gpt3_175b_64xa100").measured.step_time
steps = {
    name: simcluster.simulate("gpt3_175b_64xa100", changes).step_time for name, changes in ABLATIONS.items()
}
pd.DataFrame(
    {"step (s)": {name: round(step, 2) for name, step in steps.items()},
     "error": {name: f"{step / measured - 1:+.1%}" for name, step in steps.items()}}
)

# %% [markdown]
# ## In one line
#
# Over all rows above:

# %%
errors = pd.Series([point.error for report in reports for part in report.parts for point in part.points])
pd.Series(
    {
        "rows": len(errors),
        "mean absolute error": percent(errors.abs().mean()),
        "median absolute error": percent(errors.abs().median()),
        "within 10 %": percent((errors.abs() < 0.10).mean()),
        "bias": f"{errors.mean():+.1%}",
    },
    name="all of these studies",
).to_frame()
