"""Study: one NIC of a job runs at half its rate.  What does that cost, and which ranks wait?

    python scenarios/slow_nic.py

A fault is an item of the scenario: change FAULT for another rank, another kind or another speed.
"""

import simcluster

SCENARIO = "slow_gpu"  # Llama 3 8B on 32 H100; without its own fault, in half of its batch
FAULT = {"kind": "slow_link", "nic_of": 0}
RATES = [0.5, 0.1]  # shares of the nominal rate


def main() -> None:
    """Print the step with the NIC at each rate, and the cause of most of the delay."""
    healthy = simcluster.scenario(SCENARIO, faults=[], training__global_batch=16)
    slow = {f"{rate:.0%}": healthy.with_(faults=[{**FAULT, "speed": rate}]) for rate in RATES}
    results = {name: simcluster.simulate(each) for name, each in {"100%": healthy, **slow}.items()}
    table = simcluster.compare(results)
    print(
        table[["step_time_s", "difference_s", "difference", "breakdown_s.exposed_pp", "breakdown_s.exposed_dp"]]
        .round(4)
        .to_string()
    )
    first, worst = list(results)[1], list(results)[-1]
    why = simcluster.diff(results["100%"], results[worst]).table
    print(
        f"\nAt {first} of its rate, one NIC of {healthy.gpus} costs {table['difference'][first]:.2%} of the step, at "
        f"{worst} {table['difference'][worst]:.2%}, mostly by '{why.index[0]}' ({why['seconds'].iloc[0]:+.3f} s)."
    )


if __name__ == "__main__":
    main()
