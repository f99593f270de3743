"""Study: how many days, dollars and failures are 15T tokens of Llama 3 8B, by the number of H100?

    python scenarios/training_cost.py

Failure rates are Meta's (arXiv:2407.21783).  RUN has the time that a failure takes, and the price of a GPU-hour.
"""

import pandas as pd

import simcluster

JOB = {
    "cluster": "dgx_h100", "model": "llama3-8b", "parallel": {"zero": 1},
    "training": {"global_batch": 2048}, "overlap": {"grad_reduce": True, "param_gather": True},
}  # fmt: skip
RUN = {
    "tokens": "15T", "failures": "llama3", "spares": {"warm": 4}, "price": 2.5,  # dollars per GPU-hour
    "checkpoint": {"every": "30 min", "to": "20 GB/s"},
    "restart": [{"part": "stop and reschedule", "takes": "10 min"}, {"part": "load"}],
}  # fmt: skip


def main() -> None:
    """Print days, dollars and failures by cluster size, and what more GPUs gain."""
    rows = {}
    for nodes in (64, 128, 256):
        run = simcluster.train(simcluster.scenario(JOB, {"run": RUN, "cluster.nodes": nodes}), played=20)
        rows[8 * nodes] = run.numbers.loc[["days", "dollars", "failures", "goodput"], "mean"]
    table = pd.DataFrame(rows).T.rename_axis("GPUs")
    print(table.round(3).to_string())
    few, many = table.iloc[0], table.iloc[-1]
    print(
        f"\n{many.name:,} GPUs train {few['days'] / many['days']:.2f} x as fast as {few.name:,} and cost "
        f"{many['dollars'] / few['dollars'] - 1:+.1%}; a failure every {many['days'] / many['failures']:.1f} days."
    )


if __name__ == "__main__":
    main()
