"""The scenario's own layout in a search, and a memory ladder: memory per GPU as the job is sharded further."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.scenario.memory_remedies import peak_memory_bytes
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.studies.search.evaluation import Row


@dataclass(frozen=True)
class OwnLayout:
    """Results of the scenario's own layout in a search: score, bytes of the fullest GPU, and other metrics."""

    score: float
    memory: float
    row: Row

    @property
    def step_time(self) -> float:
        """Step time in seconds."""
        return float(self.row["step_time_s"])


def evaluate_own_layout(base: Scenario, row: Row, score: Callable[[int, float], float]) -> OwnLayout:
    """Return the results of the scenario's own layout from its simulated table row.

    ``score`` returns the score of a number of GPUs and the seconds of a step. Raises the InputError of the evaluation.
    """
    if row["status"] != "ok":
        raise InputError(str(row["error"]))
    return OwnLayout(score(base.gpus, row["step_time_s"]), peak_memory_bytes(base), row)


@dataclass(frozen=True, slots=True)
class MemoryLadderRung:
    """One layout of the memory ladder: a description, the scenario changes and the bytes of the fullest GPU.

    ``memory`` is None for an invalid layout, with the reason ``invalid_reason``.
    """

    words: str
    changes: Mapping[str, Any]
    memory: float | None
    invalid_reason: str = ""


def make_memory_ladder(base: Scenario) -> tuple[MemoryLadderRung, ...]:
    """Return memory per GPU as sharding grows: ZeRO over dp, then tp within a node, then pp across nodes.

    The micro batch is 1. The first that fits is the simplest layout that does.
    """
    whole: dict[str, Any] = _ONE_RANK | ({} if base.parallel.cp_comm == "ring" else {"parallel.cp_comm": "ring"})
    whole |= {} if base.parallel.etp is None else {"parallel.etp": None}
    whole |= {} if base.pipeline.layout is None else {"pipeline.layout": None}
    return tuple(_make_ladder_rung(base, words, {**whole, **changes}) for words, changes in _list_ladder_changes(base))


_ONE_RANK = {"parallel.tp": 1, "parallel.pp": 1, "parallel.cp": 1, "parallel.ep": 1, "parallel.zero": 0,
          "parallel.sequence_parallel": False, "parallel.order": ["tp", "cp", "dp", "pp"], "pipeline.schedule": "1f1b",
          "pipeline.chunks": 1, "pipeline.layers_per_stage": None, "training.micro_batch": 1}  # fmt: skip


def _list_ladder_changes(base: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    gpus = base.gpus
    node = min(Counter(base.cluster.built.host_of[:gpus]).values())
    yield "one GPU", {"gpus": 1, "parallel.dp": 1, "training.global_batch": 1, "overlap.param_gather": False}
    for stage in (1, 2, 3):
        # without overlap unsharded gradients are kept to the end
        sharded = {"overlap.grad_reduce": True} if stage == 2 else {}
        yield f"dp {gpus}, ZeRO {stage}", {"parallel.dp": gpus, "parallel.zero": stage, **sharded}
    tps = [tp for tp in (2, 4, 8, 16, 32, 64) if tp <= node and node % tp == 0 and gpus % tp == 0]
    for tp in tps:
        yield f"tp {tp}, dp {gpus // tp}, ZeRO 1", {"parallel.tp": tp, "parallel.dp": gpus // tp, "parallel.zero": 1}
    widest = tps[-1] if tps else 1
    for pp in (2, 4, 8, 16, 32):
        if gpus % (widest * pp) == 0 and base.model.layers % pp == 0:
            dp = gpus // widest // pp
            changes = {"parallel.tp": widest, "parallel.pp": pp, "parallel.dp": dp, "parallel.zero": 1}
            yield f"tp {widest}, pp {pp}, dp {dp}, ZeRO 1", changes


def _make_ladder_rung(base: Scenario, label: str, changes: dict[str, Any]) -> MemoryLadderRung:
    if changes["parallel.tp"] > 1:
        changes["parallel.sequence_parallel"] = True
    many, batch = changes["parallel.dp"], base.training.global_batch
    if "training.global_batch" not in changes and batch % many:
        relation = "<" if batch < many else "is not divisible by"
        return MemoryLadderRung(label, changes, None, f"batch {batch:,} {relation} {many:,} replicas")
    try:
        return MemoryLadderRung(label, changes, peak_memory_bytes(from_document(base.document(), changes)))
    except InputError as error:
        return MemoryLadderRung(label, changes, None, str(error).rpartition(": ")[2])
