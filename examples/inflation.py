"""Study: what do GPUs that are not equally fast, and kernels that jitter, make of a step?

    python examples/inflation.py [FILE.png]      all rows, two to four minutes; they are kept in inflation.csv

A barrier of N ranks waits for the slowest: the mean of the largest of N lognormal factors, in closed form.  A step has
thousands of barriers, small and large, time in which nobody computes, and time in which somebody waits anyway.  So the
same layers of Llama 3 70B are played as FSDP (shards of 64 GPUs) and as pipelines of eight stages of eight
tensor-parallel GPUs, on 64 to 131,072 GPUs.
"""

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import simcluster
from simcluster.show.palette import STREAMS

SIZES = [64, 512, 4_096, 32_768, 131_072]
SIGMAS = [0.01, 0.03, 0.05, 0.09]
SHOWN = 0.05  # the sigma of the left panel
SCHEDULES = {"FSDP": None, "1f1b": 1, "interleaved": 2, "zb-h1": 1}  # chunks a stage
REPLICAS = {64: 100, 512: 40, 4_096: 16, 32_768: 8, 131_072: 6}
KEPT = Path(__file__).with_suffix(".csv")
COLUMNS = ["gpus", "schedule", "sigma", "inflation", "interval", "barrier"]


def job(schedule: str, gpus: int) -> dict[str, object]:
    """A job on so many GPUs; every GPU has as much to do on any number of them."""
    found: dict[str, object] = {
        "name": f"{schedule}, {gpus:,} GPUs",
        "cluster": {"topology": "dgx_h100", "nodes": gpus // 8},
        "gpus": gpus,
        "model": {"preset": "llama3-70b", "layers": 16},
        "overlap": {"grad_reduce": True, "param_gather": True, "pipeline": True},
    }
    if SCHEDULES[schedule] is None:
        return found | {
            "parallel": {"dp": gpus, "zero": 3}, "fsdp": {"shard_group": 64},
            "training": {"global_batch": gpus, "recompute": "full"},
        }  # fmt: skip
    return found | {
        "parallel": {"tp": 8, "pp": 8, "dp": gpus // 64, "zero": 1, "sequence_parallel": True},
        "pipeline": {"schedule": schedule, "chunks": SCHEDULES[schedule]},
        "training": {"global_batch": 16 * (gpus // 64)},
    }


def rows(schedule: str, gpus: int, sigmas: list[float] = SIGMAS) -> pd.DataFrame:
    """A row a sigma: what speeds of GPUs that differ by so much make of the step, and of a single barrier."""
    table = simcluster.inflation({schedule: job(schedule, gpus)}, sigmas, per="gpu", replicas=REPLICAS[gpus])
    return table.assign(schedule=schedule)[COLUMNS]


def table() -> pd.DataFrame:
    """All rows: two to four minutes of a processor."""
    return pd.concat([rows(schedule, gpus) for gpus in SIZES for schedule in SCHEDULES], ignore_index=True)


def kept() -> pd.DataFrame:
    """All rows as they were played last."""
    kinds = dict.fromkeys(COLUMNS, float) | {"gpus": int, "schedule": str}
    return pd.read_csv(KEPT, dtype=str).astype(kinds)  # by Python, to the bit


def picture(found: pd.DataFrame) -> Figure:
    """Inflation against GPUs at one sigma, and against sigma on all GPUs."""
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    looks = dict(
        zip(
            SCHEDULES,
            zip((STREAMS["tp"], STREAMS["dp"], STREAMS["pp"], STREAMS["ep"]), "os^D", strict=True),
            strict=True,
        )
    )
    at, most = found[found["sigma"] == SHOWN], found[found["gpus"] == SIZES[-1]]
    for axes, part, x in ((left, at, "gpus"), (right, most, "sigma")):
        lines = part.drop_duplicates(x)
        over = 100 * (lines["barrier"] - 1)
        axes.plot(lines[x], over, color="black", linestyle="--", label="one barrier, in closed form")
        for schedule, (colour, marker) in looks.items():
            own = part[part["schedule"] == schedule]
            axes.errorbar(own[x], 100 * (own["inflation"] - 1), yerr=100 * own["interval"], color=colour,
                          marker=marker, capsize=3, label=schedule)  # fmt: skip
        axes.grid(visible=True, alpha=0.3)
    left.set(xscale="log", xlabel=f"GPUs, speeds that differ by {SHOWN:.0%}", ylabel="longer step, %")
    left.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
    left.set_xticks([], minor=True)
    right.set_xlabel(f"sigma of GPUs' speeds, %, on {SIZES[-1]:,} GPUs")
    right.set_xticks(SIGMAS, [f"{100 * sigma:g}" for sigma in SIGMAS])
    left.legend(frameon=False)
    figure.suptitle("GPUs that are not equally fast: FSDP is one barrier, a pipeline about half of it")
    return figure


def text(found: pd.DataFrame) -> str:
    """The table as percent that a step takes longer, a row for GPUs and schedule, a column a sigma."""
    lines = found.assign(
        longer=(100 * (found["inflation"] - 1)).round(1), barrier=(100 * (found["barrier"] - 1)).round(1)
    )
    wide = lines.pivot(index=["gpus", "schedule"], columns="sigma", values="longer")
    alone = lines.drop_duplicates(["gpus", "sigma"]).pivot(index="gpus", columns="sigma", values="barrier")
    alone.index = pd.MultiIndex.from_product([alone.index, ["one barrier"]], names=wide.index.names)
    return str(pd.concat([wide, alone]).sort_index(kind="stable").to_string())


def main() -> None:
    """Print the table, and draw it if a file is named."""
    found = table()
    sys.stdout.write("percent that a step takes longer, by sigma of GPUs' speeds:\n" + text(found) + "\n")
    if len(sys.argv) > 1:
        picture(found).savefig(sys.argv[1], dpi=120)


if __name__ == "__main__":
    main()
