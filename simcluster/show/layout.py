"""How a job is laid out, in one line: what every header says, in text, pages and comparisons."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario


def gpus_of_cluster(scenario: Scenario) -> str:
    """How many GPUs of which cluster: 64 GPUs of DGX H100, or 64 GPUs (b200) of DGX H100 where its name tells another
    device than it has, or none."""
    cluster = scenario.cluster
    name, device = cluster.built.name, cluster.device.name
    family = re.escape(device.partition("-")[0])
    told = re.search(rf"(?<![a-z0-9]){family}(?![a-z0-9])", name, re.IGNORECASE)
    return f"{scenario.gpus:,} GPUs{'' if told else f' ({device})'} of {name}"


def layout(scenario: Scenario) -> str:
    """Every axis: tp 8 (sequence parallel), cp 2 (ring), pp 8 x 3 chunks (interleaved), dp 2 (ZeRO-1), ep 4.

    tp, pp and dp are always there; with cp, where there is one, their product is the GPUs.  Groups of ep x etp ranks,
    etp of which split an expert, are of the tp x cp x dp of a stage.
    """
    parallel, pipeline = scenario.parallel, scenario.pipeline
    parts = [f"tp {parallel.tp}" + (" (sequence parallel)" if parallel.sequence_parallel else "")]
    parts += [f"cp {parallel.cp} ({parallel.cp_comm.replace('_', ' ')})"] if parallel.cp > 1 else []
    chunks = f" x {pipeline.chunks} chunks" if pipeline.chunks > 1 else ""
    parts.append(f"pp {parallel.pp}{chunks}" + (f" ({pipeline.schedule_name})" if parallel.pp > 1 else ""))
    groups = f", groups of {scenario.fsdp.shard_group}" if scenario.fsdp.shard_group else ""
    parts.append(f"dp {parallel.dp}" + (f" (ZeRO-{parallel.zero}{groups})" if parallel.zero else ""))
    if parallel.ep > 1 or parallel.etp is not None:
        split = f" x etp {parallel.etp or parallel.tp}" if parallel.tp > 1 or (parallel.etp or 1) > 1 else ""
        parts.append(f"ep {parallel.ep}{split}")
    return ", ".join(parts)
