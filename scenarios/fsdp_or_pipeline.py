"""Study: a 7B model on 64 A100: FSDP, or tensor and pipeline parallelism?

    python scenarios/fsdp_or_pipeline.py

FSDP overlaps parameter gathers and gradient reductions with compute, as in PyTorch.
"""

import simcluster

JOB = {
    "cluster": {"topology": "dgx_a100", "nodes": 8},
    "model": "llama2-7b",
    "training": {"global_batch": 512, "micro_batch": 2},
    "overlap": {"grad_reduce": True},
}
LAYOUTS = {
    "FSDP": {"parallel.zero": 3, "overlap.param_gather": True},
    "tp 2, ZeRO 1": {"parallel": {"tp": 2, "zero": 1, "sequence_parallel": True}, "overlap.tensor": True},
    "tp 2, pp 2": {"parallel": {"tp": 2, "pp": 2, "zero": 1, "sequence_parallel": True}, "overlap.tensor": True},
}


def main() -> None:
    """Print the layouts, and the fastest one that fits."""
    table = simcluster.compare({name: simcluster.scenario(JOB, layout) for name, layout in LAYOUTS.items()})
    shown = table[["step_time_s", "difference", "mfu", "bubble_fraction", "fits"]].round(3)
    print(shown.assign(peak_memory_bytes=(table["peak_memory_bytes"] / 1e9).map("{:.1f} GB".format)).to_string())
    steps = table["step_time_s"][table["fits"]].sort_values()
    print(
        f"\n{steps.index[0]} is the fastest that fits: {steps.iloc[0]:.3f} s per step, {steps.index[1]} takes "
        f"{steps.iloc[1] / steps.iloc[0] - 1:.1%} longer."
    )


if __name__ == "__main__":
    main()
