"""Rules of a scenario that decide which layouts are legal, asked about a few values at a time.

Most rules depend on few values: tp on the model's widths, the schedule on stages and chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from simcluster.scenario.model_rules import schedule_rules, stage_rules
from simcluster.scenario.rules import broken_rules
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES

SAME = "the same program as another layout"
REASONS: Mapping[str, str] = {
    "parallel": "tp x pp x cp does not divide the GPUs",
    "parallel.tp": "tp does not divide the heads or a width of the model",
    "parallel.sequence_parallel": "sequence parallelism without tensor parallelism",
    "parallel.cp": "cp does not divide the sequence, or what tp splits of it",
    "parallel.cp_comm": "cp that trades heads does not divide those of a rank",
    "parallel.ep": "ep does not divide the experts, or groups of it the ranks of a stage",
    "parallel.etp": "etp does not divide the width of an expert",
    "tokens twice": "tensor without sequence parallelism: its ranks would send the same tokens to experts",
    "training.attention": "cp needs a fused attention",
    "memory.offload.optimizer": "the optimizer lives on the host, which is not modelled for experts on ep ranks",
    "parallel.pp": "pp does not divide the layers",
    "pipeline.chunks": "pp x chunks does not divide the layers",
    "pipeline.schedule": "the schedule cannot be made of these stages and microbatches",
    "training.global_batch": "dp x micro batch does not divide the batch",
    "training.recompute": "this recomputation needs another attention",
    "fused core": "selective recompute of a fused core: slower than none, and frees but the statistics of its softmax",
    "parallel.zero": "this ZeRO stage does not go with the rest of the scenario",
    "groups": "the microbatches are no multiple of pp, as interleaving needs",
    "one stage": "a schedule of several stages, and pp is 1",
}
"""Reason why a layout is illegal, by the key that breaks the rule."""


class LayoutRules:
    """Reasons why values of a layout are illegal ("" where they are legal), each found once."""

    def __init__(self, base: Scenario, gpus: int) -> None:
        self._base, self._gpus = base, gpus
        self._broken, self._broken_schedule = cache(self._find_broken), cache(self._find_broken_schedule)

    def tensor(self, tp: int, sequence: bool) -> str:
        """Return what is wrong with tp."""
        return self._broken(("parallel.tp", "parallel.sequence_parallel"), tp=tp, sequence_parallel=sequence)

    def spread(self, tp: int, sequence: bool, cp: int, comm: str, ep: int, etp: int | None, dp: int) -> str:
        """Return what is wrong with a split of sequences over cp and of experts over ep."""
        moe = self._base.model.moe
        if cp == 1 and moe is None and ep == 1 and etp is None:
            return ""
        if moe and tp > 1 and not sequence:
            return REASONS["tokens twice"]
        group, together = self._base.fsdp.shard_group, ep * (etp or tp)
        if group and (ep > 1 or together != tp) and group * tp % together:
            return REASONS["parallel.zero"]
        where = ("parallel.cp", "parallel.ep", "parallel.etp", "training.attention", "memory.offload.optimizer")
        return self._broken(where, tp=tp, sequence_parallel=sequence, cp=cp, cp_comm=comm, ep=ep, etp=etp, dp=dp)

    def zero(self, dp: int, zero: int) -> str:
        """Return what is wrong with a ZeRO stage among ``dp`` replicas."""
        found = self._broken(("parallel.zero", "overlap.param_gather", "fsdp"), tp=self._gpus // dp, zero=zero)
        return REASONS["parallel.zero"] if found else ""

    def recompute(self, recompute: str) -> str:
        """Return what is wrong with a way to recompute."""
        return self._broken(("training.recompute",), recompute=recompute)

    def batch(self, dp: int, micro: int) -> str:
        """Return what is wrong with a micro batch on ``dp`` replicas."""
        return REASONS["training.global_batch"] if self._base.training.global_batch % (dp * micro) else ""

    def schedule(self, pp: int, schedule: str, chunks: int, microbatches: int) -> str:
        """Return what is wrong with a schedule, as far as stages, chunks and counts decide it."""
        if pp == 1 and schedule != "1f1b":
            return REASONS["one stage"]
        if SCHEDULES[schedule].in_groups and microbatches % pp:
            return REASONS["groups"]
        return self._broken_schedule(pp, schedule, chunks)

    def _find_broken_schedule(self, pp: int, schedule: str, chunks: int) -> str:
        base = self._base
        pipeline = base.pipeline.model_copy(update={"schedule": schedule, "chunks": chunks})
        parallel = base.parallel.model_copy(update={"tp": 1, "pp": pp})
        probe = base.model_copy(update={"parallel": parallel, "pipeline": pipeline})
        for path, _ in (*schedule_rules(probe), *stage_rules(probe)):
            return REASONS[".".join(map(str, path))]
        route = SCHEDULES[schedule].route
        uneven = route and pipeline.layers_per_stage == "even" and base.model.layers % len(route(pp, chunks))
        return REASONS["pipeline.chunks"] if uneven else ""

    def _find_broken(self, where: tuple[str, ...], *, recompute: str = "", **parallel: Any) -> str:
        """Return the first problem at one of these keys, of a scenario with one stage and default values elsewhere."""
        base = self._base
        values = {"tp": 1, "sequence_parallel": False, "zero": 0, "cp": 1, "cp_comm": "ring", "ep": 1, "etp": None}
        values |= {"pp": 1, "dp": self._gpus // parallel.get("tp", 1), **parallel}
        sections = {
            "parallel": base.parallel.model_copy(update=values),
            "pipeline": base.pipeline.model_copy(update={"schedule": "1f1b", "chunks": 1}),
            "training": base.training.model_copy(update={"recompute": recompute} if recompute else {}),
        }
        keys = broken_keys(base.model_copy(update={"gpus": self._gpus, **sections}))
        return next((REASONS.get(key, key) for key in keys if key.startswith(where)), "")


def broken_keys(scenario: Scenario) -> list[str]:
    """Return the keys of a scenario that break a rule."""
    return [".".join(map(str, path)) for path, _ in broken_rules(scenario)]
