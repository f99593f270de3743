"""What the fuzzer changes: shipped files, examples, and what simcluster itself writes, made when it is asked for."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
SMALL = ("tiny_3d", "tiny_dp", "jitter_8", "slow_gpu", "packing_16", "llama3_70b_16xh100_offload", "fsdp_7b_64xa100")
"""Scenarios that play in less than a second."""
DENSE: dict[str, Any] = {
    "layers": 4,
    "hidden_size": 512,
    "heads": 8,
    "ffn_hidden_size": 1024,
    "vocab_size": 4096,
    "sequence_length": 512,
}
"""A model without experts."""
MIXTURE: dict[str, Any] = {
    "cluster": {"topology": "dgx_h100", "nodes": 2},
    "model": {**DENSE, "moe": {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256}},
    "parallel": {"tp": 1, "pp": 2, "dp": 8, "ep": 8},
    "pipeline": {"schedule": "1f1b"},
    "training": {"global_batch": 32, "micro_batch": 1},
    "faults": [{"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 1}}],
}
STUDY: dict[str, Any] = {
    "scenario": "tiny_dp",
    "set": {"training.recompute": "full"},
    "vary": {"parallel.zero": [0, 1], "training.micro_batch": [1, 2]},
}
SHORTER: dict[str, Any] = {
    "model": {"preset": "gpt3-175b", "layers": 4},
    "parallel": {"tp": 8, "pp": 2, "dp": 4},
    "pipeline": {"schedule": "1f1b"},
    "overlap": {},
}
"""What makes the steps of the shipped week play in a hundredth of the time: its run is what the fuzzer is about."""
MEASURED: dict[str, Any] = {
    "kind": "steps",
    "name": "three rows",
    "source": "made up",
    "scenario": "tiny_dp",
    "table": {"header": ["batch", "seconds"], "rows": [[32, 0.017], [64, 0.03], [128, 0.06]]},
    "columns": {"batch": "training.global_batch"},
    "measured": {"column": "seconds", "quantity": "step_time", "unit": "s"},
    "label": ["batch"],
}
FITS: dict[str, Any] = {
    "fits": {
        "clock": {
            "constants": {
                "clock": {
                    "path": "cluster.device.matmul.clock",
                    "bounds": [0.3, 1.0],
                    "unfitted": 0.9,
                    "source": "made up",
                }
            },
            "rows": [{"study": "r.yaml"}],
            "step": 0.05,
        }
    }
}
"""A constant that three rows decide, in a second."""
LENGTHS = "512\n1024,3\n200,7\n2048\n"
KERNELS: dict[str, Any] = {
    "kernels": [{"kind": "attention", "pattern": "my_attention"}, {"kind": "product", "pattern": "gemm"}]
}
NEMO: dict[str, Any] = {
    "trainer": {"num_nodes": 8, "devices": 8, "precision": "bf16"},
    "model": {
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 2,
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "encoder_seq_length": 4096,
        "global_batch_size": 128,
        "micro_batch_size": 1,
        "sequence_parallel": True,
        "activations_checkpoint_granularity": "selective",
        "optim": {"name": "distributed_fused_adam"},
    },
}
ASTRA = "topology: [Ring, Switch]\nnpus_count: [8, 2]\nbandwidth: [200.0, 25.0]\nlatency: [500.0, 2000.0]\n"
NODE_LINK: dict[str, Any] = {
    "directed": False,
    "graph": {"device": "h100"},
    "nodes": [{"id": "a", "kind": "gpu", "host": 0}, {"id": "b", "kind": "gpu", "host": 1}],
    "edges": [{"source": "a", "target": "b", "bandwidth": 1e9, "latency": 1e-6}],
}


def content(path: str) -> bytes:
    """Of a file of the repository."""
    return (ROOT / path).read_bytes()


@cache
def tree(path: str) -> Any:
    """What a YAML file of the repository says."""
    return json.loads(json.dumps(YAML(typ="safe").load(content(path)), default=str))


@cache
def scenario(name: str) -> Any:
    """The document of a scenario that ships, or the mixture here."""
    return MIXTURE if name == "mixture" else tree(f"scenarios/{name}.yaml")


def week() -> bytes:
    """The shipped run of a week on 64 GPUs, with a small model; its own name is ``week.yaml``."""
    return dumped({**scenario("week_64xa100"), **SHORTER})


def dumped(document: Any) -> bytes:
    """As YAML: JSON is YAML, and any tree can be written so."""
    return json.dumps(document, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")


@cache
def named(folder: str, ending: str = "yaml") -> tuple[str, ...]:
    """The files of a folder, by their paths in the repository."""
    return tuple(sorted(str(each.relative_to(ROOT)) for each in (ROOT / folder).glob(f"*.{ending}")))


@cache
def made(command: str, *files: str) -> tuple[bytes, ...]:
    """What a command of simcluster writes under these names in a folder of only ``study.yaml`` and ``week.yaml``."""
    from simcluster import cli

    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("study.yaml").write_bytes(dumped(STUDY))
            Path("week.yaml").write_bytes(week())
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                status = cli.main(command.split())
            assert status == 0, command
            return tuple(Path(file).read_bytes() for file in files)
        finally:
            os.chdir(here)


@cache
def nsight() -> bytes:
    """An export of Nsight Systems, a device a rank."""
    import gpu_profiles
    from nsight_exports import exported

    with tempfile.TemporaryDirectory() as name:
        folder = gpu_profiles.write(gpu_profiles.documents(gpu_profiles.Job()), Path(name, "profiles"))
        return exported(folder, Path(name, "x.sqlite")).read_bytes()


@cache
def profile(path: str, most: int | None = None) -> Any:
    """A trace of PyTorch's profiler; cut to its first events, changes meet what is read first, and no step is whole."""
    document = json.loads(gzip.decompress(content(path)))
    return {**document, "traceEvents": document["traceEvents"][:most]}
