"""Study: one GPU is slow.  What does it cost, does it matter which one, and which ranks wait for it?

    python scenarios/slow_gpu.py [OUT_FOLDER]

A template: a fault is an item of the scenario, so any sweep over faults looks like this one.
"""

import sys
from pathlib import Path

import simcluster

SCENARIO = "slow_gpu"  # a built-in name, or the path of your file
SLOWDOWN = 1.5  # every kernel takes 50 % longer


def main(folder: Path) -> None:
    """Print the slowdown for each slow rank and the rank that waits longest, and write slow_gpu.png into the folder."""
    healthy = simcluster.scenario(SCENARIO, faults=[])
    ranks = range(0, healthy.gpus, healthy.gpus // healthy.parallel.pp)  # the first rank of every stage
    faults = {f"rank {rank}": {"kind": "slow_gpu", "rank": rank, "slowdown": SLOWDOWN} for rank in ranks}
    slow = {name: healthy.with_(faults=[fault]) for name, fault in faults.items()}
    results = {name: simcluster.simulate(each) for name, each in {"no GPU": healthy, **slow}.items()}
    table = simcluster.compare(results)
    print(table[["step_time_s", "difference", "bubble_fraction", "breakdown_s.straggler_wait"]].round(3).to_string())
    more, worst = table["difference"].iloc[1:], table["step_time_s"].idxmax()
    last = max(results[worst].waits, key=lambda wait: wait.seconds * (f"rank {wait.culprit}" == worst))
    print(f"\nA slow GPU costs {more.min():.1%} to {more.max():.1%} of the step, most where it is {worst};", end=" ")
    print(f"for that one rank {last.rank} waits longest, {last.seconds:.3f} s with its ordinary bubble.")
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "slow_gpu.png"
    named = [(f"{name} is slow", results[name]) for name in ("no GPU", worst)]
    simcluster.plots.save_figure(simcluster.plots.compare_gantts(named), picture)
    print(f"\npicture: {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
