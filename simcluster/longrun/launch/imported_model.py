"""A whole scenario of a model that was imported: on a cluster, with a batch and a layout that fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcluster.documents.overrides import apply_overrides
from simcluster.documents.reading import Document
from simcluster.longrun.launch.first_layout import first_layout
from simcluster.scenario.headroom import HEADROOM
from simcluster.scenario.scenario import from_document


def scenario_of_model(
    model: Mapping[str, Any], cluster: Mapping[str, Any], gpus: int, folder: Path
) -> tuple[dict[str, Any], tuple[str, ...]]:  # fmt: skip
    """The document of a scenario, and sentences about what was chosen; InputError where no layout fits."""
    document: dict[str, Any] = {
        "cluster": dict(cluster), "gpus": gpus, "model": dict(model), "parallel": {},
        "pipeline": {"schedule": "1f1b"}, "training": {"global_batch": gpus, "micro_batch": 1}, "overlap": {},
    }  # fmt: skip
    base = from_document(document, folder=folder)
    if "bf16" not in base.cluster.device.peak.known():
        document["training"]["precision"] = "fp16-mixed"
        base = from_document(document, folder=folder)
    layout = first_layout(base)
    values = {path: value for path, value in layout.values.items() if path != "parallel.dp"}
    whole = apply_overrides(Document(document, "<import>", folder), values).data
    held, capacity = layout.held / 1e9, base.cluster.device.memory / 1e9
    batch = whole["training"]["global_batch"]
    return whole, (
        f"a layout that fits with {HEADROOM:.0%} of memory left free ({held:.1f} of {capacity:.1f} GB): a start, not "
        "the best there is (simcluster plan looks for that)",
        f"a batch of {batch:,} sequences, about {batch * base.model.sequence_length / 2**20:.1f}Mi tokens",
    )
