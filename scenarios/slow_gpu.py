"""Study: one GPU is slow.  What does it cost, does it matter which one, and who waits for it?

    python scenarios/slow_gpu.py [OUT_FOLDER]

A template: a fault is a line in the scenario, so any sweep over faults looks like this one.
"""

import sys
from pathlib import Path

import simcluster

SCENARIO = "slow_gpu"  # a shipped name, or the path of a file of yours
FACTORS = [1.0, 1.2, 1.5]  # 1.2: every kernel takes 20 % longer


def slowed(rank: int, factor: float) -> simcluster.Result:
    """The step with one rank slowed down."""
    fault = {"kind": "slow_gpu", "rank": rank, "factor": factor}
    return simcluster.simulate(simcluster.load(SCENARIO, {"faults": [fault]}))


def main(folder: Path) -> None:
    """Print slowdown by rank and factor and who waited longest, and write slow_gpu.png into the folder."""
    clean = simcluster.simulate(simcluster.load(SCENARIO, {"faults": []}))
    stages = clean.scenario.parallel.pp
    ranks = [stage * clean.scenario.gpus // stages for stage in range(stages)]  # the first rank of every stage
    print(f"{clean.scenario.name}: {clean.step_time:.3f} s when none is\n\nstep time over that, by which rank is slow:")
    print("  factor" + "".join(f"  rank {rank:>2}" for rank in ranks))
    results = {(rank, factor): slowed(rank, factor) for factor in FACTORS for rank in ranks}
    for factor in FACTORS:
        row = (f"  {results[rank, factor].step_time / clean.step_time:7.3f}" for rank in ranks)
        print(f"  {factor:6.2f}" + "".join(row))

    worst = max(ranks, key=lambda rank: results[rank, FACTORS[-1]].step_time)
    slow = results[worst, FACTORS[-1]]
    print(f"\nrank {worst} at factor {FACTORS[-1]}: who waited for it (pipeline: its ordinary bubble included)")
    for wait in [wait for wait in slow.waits if wait.culprit == worst][:4]:
        print(f"  rank {wait.rank:>2} at its {wait.where}: {wait.seconds:.3f} s")

    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "slow_gpu.png"
    named = [("no GPU is slow", clean), (f"rank {worst} takes {FACTORS[-1]} times as long", slow)]
    simcluster.plots.save_figure(simcluster.plots.compare_gantts(named), picture)
    print(f"\npicture: {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
