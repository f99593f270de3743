"""Study: which layout of Llama 3 70B is the fastest on 256 H100, and what does the next best cost?

    python scenarios/best_layout.py

Every layout of SPACE is simulated or proved slower.  If you delete a line of it, the search decides that axis, too.
"""

import simcluster

JOB = {
    "name": "Llama 3 70B, 256 H100",
    "cluster": {"topology": "dgx_h100", "nodes": 32},
    "model": "llama3-70b",
    "parallel": {"tp": 8, "pp": 4, "zero": 1, "sequence_parallel": True},  # a first guess
    "training": {"global_batch": 128},
    "overlap": {"grad_reduce": True, "param_gather": True, "tensor": True},
}
SPACE = {
    "parallel.tp": [4, 8], "parallel.pp": [1, 2, 4, 8], "parallel.zero": [1], "parallel.sequence_parallel": [True],
    "parallel.order": [["tp", "cp", "dp", "pp"]], "training.micro_batch": [1], "training.recompute": ["none"],
    "pipeline.schedule": ["1f1b"],
}  # fmt: skip


def main() -> None:
    """Print the best layouts, and how much the first one gains over JOB."""
    found = simcluster.plan(JOB, vary=SPACE, top=2)
    fits = found.table[found.table["leaves_headroom"]]
    table = fits[["parallel.tp", "parallel.pp", "parallel.dp", "step_time_s", "mfu", "planned_memory_bytes"]].round(3)
    print(table.to_string(index=False, formatters={"planned_memory_bytes": lambda size: f"{size / 1e9:.1f} GB"}), "\n")
    best, own = found.best[0], simcluster.simulate(JOB).step_time
    print(
        f"Best: tp {best.layout.tp}, pp {best.layout.pp}, dp {best.layout.dp}, {best.step_time:.3f} s per step; "
        f"JOB takes {own / best.step_time - 1:.1%} longer ({own:.3f} s)."
    )


if __name__ == "__main__":
    main()
