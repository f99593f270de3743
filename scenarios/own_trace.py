"""Study: where does my PyTorch trace differ from the simulation, and is it one rank or all?

    python scenarios/own_trace.py [SCENARIO PROFILES]

PROFILES is a folder with one trace per rank (PyTorch's profiler), or an export of Nsight Systems.  Without it, the
script simulates a run in which one GPU takes 30 % longer.
"""

import sys
import tempfile
from pathlib import Path

import simcluster


def example(scenario: simcluster.Scenario, folder: Path) -> Path:
    """Write profiles of a run with a slow GPU, one per rank, and return their folder."""
    slow = scenario.with_({"faults": [{"kind": "slow_gpu", "rank": 3, "slowdown": 1.3}]})
    simcluster.write_trace(slow, folder, ranks=range(scenario.gpus))
    return folder


def main(name: str = "tiny_3d", profiles: str = "") -> None:
    """Print the time per step by cause, simulated and recorded, and a summary in sentences."""
    scenario = simcluster.scenario(name)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(profiles) if profiles else example(scenario, Path(folder) / "profiles")
        found = simcluster.diff(scenario, trace)
        print(found.table.mul(1e3).round(3).add_suffix("_ms").to_string(), "\n")
        print(found.describe())


if __name__ == "__main__":
    main(*sys.argv[1:])
