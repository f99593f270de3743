"""One's own layout beside those that a search has found, and the ladder of what makes a job fit at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.scenario.fits import held
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.studies.search.playing import Row


@dataclass(frozen=True)
class OwnLayout:
    """The scenario's own layout as a search plays it: the score of a step, bytes of the fullest GPU, and its numbers
    with the account of where it went."""

    score: float
    memory: float
    row: Row

    @property
    def step_time(self) -> float:
        """Seconds."""
        return float(self.row["step_time_s"])


def own_layout(base: Scenario, row: Row, score: Callable[[int, float], float]) -> OwnLayout:
    """The scenario's own layout, of which ``row`` is what playing it gave; ``score`` is what a step of so many GPUs and
    seconds is worth.  Raises the InputError that playing it gave."""
    if row["status"] != "ok":
        raise InputError(str(row["error"]))
    return OwnLayout(score(base.gpus, row["step_time_s"]), held(base), row)


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of the ladder: a layout in words, as changes of the scenario, and the bytes of its fullest GPU (B); None
    where it cannot be, with ``why``."""

    words: str
    changes: Mapping[str, Any]
    memory: float | None
    why: str = ""


def ladder(base: Scenario) -> tuple[Rung, ...]:
    """From one GPU up: ZeRO over dp, tp within a machine, pp across machines; with micro batch 1.

    Each tells what the fullest GPU holds; the first that fits is the simplest layout that does.
    """
    whole: dict[str, Any] = {} if base.parallel.cp_comm == "ring" else {"parallel.cp_comm": "ring"}
    whole |= {} if base.parallel.etp is None else {"parallel.etp": None}
    whole |= {} if base.pipeline.layout is None else {"pipeline.layout": None}
    return tuple(_held(base, words, {**_ALONE, **whole, **changes}) for words, changes in _rungs(base))


_ALONE = {"parallel.tp": 1, "parallel.pp": 1, "parallel.cp": 1, "parallel.ep": 1, "parallel.zero": 0,
          "parallel.sequence_parallel": False, "parallel.order": ["tp", "cp", "dp", "pp"], "pipeline.schedule": "1f1b",
          "pipeline.chunks": 1, "pipeline.layers_per_stage": None, "training.micro_batch": 1}  # fmt: skip


def _rungs(base: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    gpus = base.gpus
    node = min(Counter(base.cluster.built.host_of[:gpus]).values())
    alone = {"gpus": 1, "parallel.dp": 1, "training.global_batch": 1, "overlap.param_gather": False}
    yield "one GPU", alone
    for stage in (1, 2, 3):
        sharded = {"overlap.grad_reduce": True} if stage == 2 else {}  # else a whole rank's are kept to the end
        yield f"dp {gpus}, ZeRO {stage}", {"parallel.dp": gpus, "parallel.zero": stage, **sharded}
    tps = [tp for tp in (2, 4, 8, 16, 32, 64) if tp <= node and node % tp == 0 and gpus % tp == 0]
    for tp in tps:
        dp = gpus // tp
        yield f"tp {tp}, dp {dp}, ZeRO 1", {"parallel.tp": tp, "parallel.dp": dp, "parallel.zero": 1}
    widest = tps[-1] if tps else 1
    for pp in (2, 4, 8, 16, 32):
        if gpus % (widest * pp) == 0 and base.model.layers % pp == 0:
            dp = gpus // widest // pp
            changes = {"parallel.tp": widest, "parallel.pp": pp, "parallel.dp": dp, "parallel.zero": 1}
            yield f"tp {widest}, pp {pp}, dp {dp}, ZeRO 1", changes


def _held(base: Scenario, words: str, changes: dict[str, Any]) -> Rung:
    if changes["parallel.tp"] > 1:
        changes["parallel.sequence_parallel"] = True
    many = changes["parallel.dp"]
    if "training.global_batch" not in changes and base.training.global_batch % many:
        return Rung(words, changes, None, f"a batch of {base.training.global_batch:,} is not for {many:,} replicas")
    try:
        return Rung(words, changes, held(from_document(base.document(), changes)))
    except InputError as error:
        return Rung(words, changes, None, str(error).rpartition(": ")[2])
