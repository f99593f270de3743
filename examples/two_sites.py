"""Study: what do distance and bandwidth cost that trains one model on two sites?

    python examples/two_sites.py [FILE.png]

Llama 3 405B with all replicas in step, with an outer step every 100 (DiLoCo), and with the same in eight parts, each
beside a step (Streaming DiLoCo).  On 2 x 512 GPUs, so that it is quick: a step sends each parameter over the WAN as
often on more.  What an outer step does to the loss is not said here: see the papers.
"""

import sys
from functools import cache

import pandas as pd
from matplotlib.figure import Figure

import simcluster
from simcluster.longrun.studies.periodic_work import list_periodic_work
from simcluster.show.palette import STREAMS

SCENARIO = "llama3_405b_two_sites"
SMALLER = {"gpus": 1024, "cluster.site.nodes": 64, "parallel.dp": 8, "training.global_batch": 128}
MODES = {
    "all in step": {"training.outer": None},
    "outer step every 100": {},
    "in 8 parts, beside a step": {"training.outer.parts": 8, "training.outer.beside": 1},
}
RATES = [100, 400, 800, 3_200]  # Gbit/s
DISTANCES = [10, 1_000, 10_000]  # km
FIBRE = 5e-6  # seconds a km: light in glass


@cache
def step(mode: str, rate: float, distance: float) -> float:
    """Seconds of a step, with its share of what comes every 100."""
    wan = {"cluster.wan.line_rate": f"{rate} Gbit/s", "cluster.wan.latency": f"{distance * FIBRE!r} s"}
    result = simcluster.simulate(simcluster.scenario(SCENARIO, {**SMALLER, **MODES[mode], **wan}))
    return result.step_time + sum(row.seconds_per_step for row in list_periodic_work(result))


def picture(rates: pd.DataFrame, distances: pd.DataFrame) -> Figure:
    """A step against bandwidth, and against distance."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    looks = zip(MODES, (STREAMS["tp"], STREAMS["dp"], STREAMS["pp"]), "os^", strict=True)
    for mode, colour, marker in looks:
        for axes, table in ((left, rates), (right, distances)):
            axes.plot(table.index, table[mode], color=colour, marker=marker, label=mode)
    for axes, label in ((left, "WAN, Gbit/s each way, 1,000 km"), (right, "distance, km of fibre, 800 Gbit/s")):
        axes.set(xscale="log", yscale="log", xlabel=label)
        axes.set_yticks([10, 20, 50, 100, 200], ["10", "20", "50", "100", "200"], minor=False)
        axes.set_yticks([], minor=True)
        axes.grid(visible=True, alpha=0.3)
    left.set_xticks(RATES, [f"{rate:,}" for rate in RATES])
    left.set_xticks([], minor=True)
    right.set_xticks(DISTANCES, [f"{distance:,}" for distance in DISTANCES])
    left.set_ylabel("seconds a step")
    left.legend(frameon=False)
    figure.suptitle("Llama 3 405B on two sites of 512 H100")
    return figure


def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Seconds of a step by bandwidth and by distance, a column a mode."""
    rates = pd.DataFrame({mode: {rate: step(mode, rate, 1_000) for rate in RATES} for mode in MODES})
    return rates, pd.DataFrame({mode: {far: step(mode, 800, far) for far in DISTANCES} for mode in MODES})


def main() -> None:
    """Print a step by bandwidth and by distance, and draw both if a file is named."""
    rates, distances = tables()
    sys.stdout.write("seconds a step, by Gbit/s at 1,000 km:\n" + rates.round(2).to_string() + "\n")
    sys.stdout.write("\nby km at 800 Gbit/s:\n" + distances.round(2).to_string() + "\n")
    if len(sys.argv) > 1:
        picture(rates, distances).savefig(sys.argv[1], dpi=120)


if __name__ == "__main__":
    main()
