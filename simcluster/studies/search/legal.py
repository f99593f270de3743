"""What of a layout is legal, by the scenario's own rules, asked about a few values at a time.

Most rules depend on few values: tp on the model's widths, the schedule on stages and chunks.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simcluster.scenario.model_rules import schedule_rules, stage_rules
from simcluster.scenario.rules import broken_rules
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES
from simcluster.studies.search.pipelines import route_of

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
"""Why a layout is none, by the key that breaks the rule."""


class LayoutRules:
    """Answers to small questions about what is legal, each asked once."""

    def __init__(self, base: Scenario, gpus: int) -> None:
        self._base, self._gpus = base, gpus
        self._known: dict[tuple[Any, ...], str] = {}

    def tensor(self, tp: int, sequence: bool) -> str:
        """What is wrong with a tp, "" for nothing."""
        where = ("parallel.tp", "parallel.sequence_parallel")
        return self._ask(("tensor", tp, sequence), where, tp=tp, sequence_parallel=sequence)

    def spread(self, tp: int, sequence: bool, cp: int, comm: str, ep: int, etp: int | None, dp: int) -> str:
        """What is wrong with a split of sequences over cp, and of experts over ep."""
        moe = self._base.model.moe
        if cp == 1 and moe is None and ep == 1 and etp is None:
            return ""
        if moe and tp > 1 and not sequence:
            return REASONS["tokens twice"]
        group, together = self._base.fsdp.shard_group, ep * (etp or tp)
        if group and (ep > 1 or together != tp) and group * tp % together:
            return REASONS["parallel.zero"]
        where = ("parallel.cp", "parallel.ep", "parallel.etp", "training.attention", "memory.offload.optimizer")
        values: dict[str, Any] = {
            "tp": tp,
            "sequence_parallel": sequence,
            "cp": cp,
            "cp_comm": comm,
            "ep": ep,
            "etp": etp,
            "dp": dp,
        }
        return self._ask(("spread", *values.values()), where, **values)

    def zero(self, dp: int, zero: int) -> str:
        """What is wrong with a ZeRO stage among so many replicas."""
        where = ("parallel.zero", "overlap.param_gather", "fsdp")
        found = self._ask(("zero", dp, zero), where, tp=self._gpus // dp, zero=zero)
        return REASONS["parallel.zero"] if found else ""

    def recompute(self, recompute: str) -> str:
        """What is wrong with a way to recompute."""
        return self._ask(("recompute", recompute), ("training.recompute",), recompute=recompute)

    def batch(self, dp: int, micro: int) -> str:
        """What is wrong with a micro batch on so many replicas."""
        return REASONS["training.global_batch"] if self._base.training.global_batch % (dp * micro) else ""

    def schedule(self, pp: int, schedule: str, chunks: int, microbatches: int) -> str:
        """What is wrong with a schedule, as far as stages, chunks and counts say it."""
        if pp == 1 and schedule != "1f1b":
            return REASONS["one stage"]
        if SCHEDULES[schedule].in_groups and microbatches % pp:
            return REASONS["groups"]
        name = ("schedule", pp, schedule, chunks)
        if name not in self._known:
            pipeline = self._base.pipeline.model_copy(update={"schedule": schedule, "chunks": chunks})
            parallel = self._base.parallel.model_copy(update={"tp": 1, "pp": pp})
            probe = self._base.model_copy(update={"parallel": parallel, "pipeline": pipeline})
            found = next(iter((*schedule_rules(probe), *stage_rules(probe))), None)
            self._known[name] = REASONS[".".join(map(str, found[0]))] if found else ""
            route, layers = route_of(schedule, pp, chunks), self._base.model.layers
            if not found and route and pipeline.layers_per_stage == "even" and layers % len(route):
                self._known[name] = REASONS["pipeline.chunks"]
        return self._known[name]

    def _ask(self, name: tuple[Any, ...], where: tuple[str, ...], *, recompute: str = "", **parallel: Any) -> str:
        """The first complaint about one of these keys, of a scenario with one stage and nothing else unusual."""
        if name not in self._known:
            base = self._base
            values = {"tp": 1, "sequence_parallel": False, "zero": 0, "cp": 1, "cp_comm": "ring", "ep": 1, "etp": None}
            values |= {"pp": 1, "dp": self._gpus // parallel.get("tp", 1), **parallel}
            training = base.training.model_copy(update={"recompute": recompute} if recompute else {})
            probe = base.model_copy(
                update={
                    "gpus": self._gpus,
                    "parallel": base.parallel.model_copy(update=values),
                    "pipeline": base.pipeline.model_copy(update={"schedule": "1f1b", "chunks": 1}),
                    "training": training,
                }
            )
            self._known[name] = next(
                (REASONS.get(key, key) for key in broken_keys(probe) if key.startswith(where)), ""
            )  # fmt: skip
        return self._known[name]


def broken_keys(scenario: Scenario) -> list[str]:
    """Keys of a scenario that break a rule."""
    return [".".join(map(str, path)) for path, _ in broken_rules(scenario)]
