"""Makes rank0.json.gz and rank1.json.gz: what PyTorch's profiler writes of two DDP ranks on CPUs with gloo.

Run with PyTorch 2.13 (CPU build), which simcluster itself does not need: ``python make_traces.py FOLDER``.  Three steps
of a four-layer MLP, gradients all-reduced in several buckets, one explicit all-reduce and barrier at the end of a step.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

RANKS, STEPS, WIDTH, LAYERS = 2, 3, 256, 4


class Net(nn.Module):
    """Layers with the annotation that frameworks put around them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            with record_function(f"layers.{number}"):
                x = torch.relu(layer(x))
        return x


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    model = nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def keep(found: profile) -> None:
        found.export_chrome_trace(str(Path(folder) / f"rank{rank}.json"))

    plan = schedule(wait=1, warmup=1, active=STEPS)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=keep, record_shapes=True) as recorder:
        for _ in range(STEPS + 2):
            x = torch.randn(64 * (1 + 3 * rank), WIDTH)  # rank 1 has four times the work
            with record_function("forward"):
                loss = model(x).square().mean()
            loss.backward()
            with record_function("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total)
            recorder.step()
    dist.destroy_process_group()


def main() -> None:
    folder = sys.argv[1]
    mp.spawn(work, args=(folder,), nprocs=RANKS)
    for path in sorted(Path(folder).glob("rank?.json")):
        json.loads(path.read_text())  # whole
        with path.open("rb") as plain, gzip.GzipFile(f"{path}.gz", "wb", mtime=0) as packed:
            shutil.copyfileobj(plain, packed)
        path.unlink()


if __name__ == "__main__":
    main()
