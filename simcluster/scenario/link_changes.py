"""Link settings that a scenario changes in its topology; latencies have no effect under an NCCL platform.

NCCL's latencies apply instead of those of the links, and its rates limit what flows reach
(``traffic.collective_methods``). So a changed latency without effect is rejected, and a run warns where a higher rate
gains nothing. Values of the topology's own file are exempt: its links and its platform describe the same nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import KeyPath
from simcluster.documents.yaml_documents import Document
from simcluster.scenario.scenario_fields import ScenarioFields
from simcluster.traffic.nccl.constants import ALGORITHMS

LATENCIES = ("latency", "path_latency")
RATES = ("line_rate", "efficiency", "preset")


def uses_link_latencies(scenario: ScenarioFields) -> bool:
    """Return whether link latencies affect the step; with an NCCL platform, NCCL's own latencies may replace them.

    With one they affect groups on several sites, copies to the host, tokens that a dispatcher relays, and algorithms
    that NCCL does not have.
    """
    chosen, memory = scenario.collectives, scenario.memory
    copies = scenario.checkpoint is not None or memory.offload != type(memory.offload)()
    relays = scenario.parallel.ep > 1 and scenario.parallel.expert_dispatch.relays_tokens
    named = {chosen.all_reduce, chosen.reduce_scatter, chosen.all_gather}
    others = not named <= {"auto", *ALGORITHMS}
    far = bool(scenario.cluster.built.machines_per_site)
    return _nccl_platform(scenario) in (None, "none") or far or copies or relays or others


def make_latency_error(scenario: ScenarioFields, written: Document, path: KeyPath) -> InputError:
    """Return an InputError that explains why a changed link latency has no effect."""
    return written.error_at(
        path,
        f"has no effect: latencies of collectives and sends are those of NCCL's platform {_nccl_platform(scenario)} "
        f"(collectives.nccl: {scenario.collectives.nccl}); remove it, set collectives.nccl to none (link latencies "
        "then apply), or scale all latencies with cluster.scale.latency",
    )


def _nccl_platform(scenario: ScenarioFields) -> str | None:
    chosen = scenario.collectives.nccl
    return scenario.cluster.built.nccl if chosen == "auto" else chosen


def find_changed_link_settings(written: Document, keys: tuple[str, ...]) -> list[KeyPath]:
    """Return the paths at which a scenario changes link settings of its topology, for settings named ``keys``."""
    over = [at for at, mark in written.marks.items() if mark.position == "override" and at[2:]]
    return [
        path
        for path in _paths_of_single_values(written.data.get("cluster"), ("cluster",))
        if path[-1] in keys
        and path[1] != "scale"
        and (path[1] != "topology" or any(at == path[: len(at)] for at in over))
    ]


def _paths_of_single_values(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths of all leaf values in nested data, except latencies of list items without a preset."""
    if isinstance(value, Mapping):
        new = "preset" not in value and any(isinstance(key, int) for key in path)
        for key, inner in value.items():
            yield from () if new and key in LATENCIES else _paths_of_single_values(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _paths_of_single_values(inner, (*path, place))
    else:
        yield path
