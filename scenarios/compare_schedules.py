"""Study: the 175B step under three pipeline schedules.  Time, bubble and memory in one table, Gantts in one picture.

    python scenarios/compare_schedules.py [OUT_FOLDER]

A template: change SCENARIO, KEY and VALUES to compare other values of any key.
"""

import sys
from pathlib import Path

import simcluster

SCENARIO = "gpt3_175b_64xa100"  # a built-in name, or the path of your file
KEY, VALUES = "pipeline.schedule", ["gpipe", "1f1b", "interleaved"]


def main(folder: Path) -> None:
    """Print the table and write compare_schedules.png into the folder."""
    results = {value: simcluster.simulate(simcluster.scenario(SCENARIO, {KEY: value})) for value in VALUES}
    table = simcluster.compare(results)
    print(
        table[["step_time_s", "difference_s", "mfu", "bubble_fraction", "breakdown_s.exposed_pp"]].round(4).to_string()
    )
    print()
    for name, result in results.items():
        memory, capacity = result.memory.total / 1e9, result.facts.memory / 1e9
        verdict = "fits" if memory <= capacity else "does NOT fit"
        print(f"{name:>12}  {memory:6.1f} GB of {capacity:.0f} GB per GPU: {verdict}")

    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "compare_schedules.png"
    simcluster.plots.save_figure(simcluster.plots.compare_gantts(list(results.items())), picture)
    print(f"\npicture: {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
