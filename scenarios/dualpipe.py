"""Study: what does DualPipe gain for a model like DeepSeek-V3 on H800, and how much of it is the schedule alone?

    python scenarios/dualpipe.py

A small version: half of the layers on 128 GPUs.  DualPipe holds two copies of the weights, so look at the memory.
"""

import simcluster

JOB = {
    "cluster": {"topology": "hgx_h800", "nodes": 16},
    "model": {"preset": "deepseek-v3", "layers": 31},
    "parallel": {"pp": 4, "ep": 32, "zero": 1},
    "pipeline": {"schedule": "1f1b", "layers_per_stage": "auto"},
    "training": {"global_batch": 256, "precision": "fp8-mixed", "memory_recipe": "fp8-13", "recompute": "full"},
    "overlap": {"grad_reduce": True, "param_gather": True},
}
DUALPIPE = {"pipeline.schedule": "dualpipe"}


def main() -> None:
    """Print the three variants, and how much each change gains."""
    job = simcluster.scenario(JOB)
    both = job.with_({**DUALPIPE, "overlap.pairs": True})
    table = simcluster.compare({"1f1b": job, "dualpipe": job.with_(DUALPIPE), "dualpipe, overlapped": both})
    shown = table[["step_time_s", "difference", "bubble_fraction", "breakdown_s.exposed_ep", "fits"]].round(3)
    print(shown.assign(peak_memory_bytes=(table["peak_memory_bytes"] / 1e9).map("{:.1f} GB".format)).to_string())
    _, alone, overlapped = table["difference"]
    print(
        f"\nDualPipe takes {-overlapped:.1%} off the step: {-alone:.1%} by its order of passes alone, the rest by "
        f"all-to-alls that overlap with the other direction (overlap.pairs)."
    )


if __name__ == "__main__":
    main()
