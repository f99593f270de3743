"""Study: Mixtral 8x22B with its experts inside a node, or across nodes?

    python scenarios/experts_across_machines.py

``parallel.order`` lists the axes from the innermost one.  Experts are dp ranks: axes before dp spread them over nodes.
"""

import simcluster

JOB = {
    "cluster": {"topology": "dgx_h100", "nodes": 16},
    "model": "mixtral-8x22b",
    "parallel": {"pp": 8, "ep": 8, "zero": 1},
    "training": {"global_batch": 128, "recompute": "full"},
    "overlap": {"grad_reduce": True, "param_gather": True},
}
ACROSS = {"parallel.order": ["tp", "cp", "pp", "dp"]}


def main() -> None:
    """Print both variants, and the cause of the difference."""
    inside = simcluster.simulate(JOB)
    across = simcluster.simulate(simcluster.scenario(JOB, ACROSS))
    table = simcluster.compare({"inside nodes": inside, "across nodes": across})
    print(
        table[["step_time_s", "difference", "breakdown_s.exposed_ep", "breakdown_s.exposed_pp", "fits"]]
        .round(3)
        .to_string()
    )
    why = simcluster.diff(inside, across)
    cause, seconds = why.table.index[0], why.table["seconds"].iloc[0]
    print(
        f"\nExperts across nodes make a step {why.seconds / inside.step_time:.1%} longer ({why.seconds:+.3f} s), "
        f"mostly by '{cause}' ({seconds:+.3f} s)."
    )


if __name__ == "__main__":
    main()
