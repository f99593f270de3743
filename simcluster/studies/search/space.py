"""Space of a plan: all layouts of a job, and why some of them are illegal.

Rules are the scenario's own, asked about a few values at a time: tp about the model's widths, the schedule about stages
and chunks. A layout that passes them all is checked as a whole before it is simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Any, get_args

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, listed, shown
from simcluster.documents.suggestions import divisors
from simcluster.model.transformer import Recompute
from simcluster.scenario.model_rules import check_schedule_name, check_stage_layers
from simcluster.scenario.rules import find_broken_rules
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import SCHEDULES, schedules_with
from simcluster.studies.search.layout import Layout, layout_of_scenario, same_program

SAME_PROGRAM = "the same program as another layout"
CAUSE: Mapping[str, str] = {
    "parallel": "tp x pp x cp does not divide the GPUs",
    "parallel.tp": "tp does not divide the heads or a width of the model",
    "parallel.sequence_parallel": "sequence parallelism without tensor parallelism",
    "parallel.cp": "cp does not divide the sequence, or its tp shard",
    "parallel.cp_comm": "cp with all_to_all does not divide the heads per rank",
    "parallel.ep": "ep does not divide the experts, or its groups do not divide the ranks of a stage",
    "parallel.etp": "etp does not divide the width of an expert",
    "tokens twice": "tensor without sequence parallelism: tp ranks would send the same tokens to experts",
    "training.attention": "cp needs a fused attention",
    "memory.offload.optimizer": "an offloaded optimizer is not modelled for experts on ep ranks",
    "parallel.pp": "pp does not divide the layers",
    "pipeline.chunks": "pp x chunks does not divide the layers",
    "pipeline.schedule": "the schedule does not support these numbers of stages and microbatches",
    "training.global_batch": "dp x micro batch does not divide the batch",
    "training.recompute": "this recomputation needs another attention",
    "fused core": "selective recompute of a fused core: slower than none, and frees only the softmax statistics",
    "parallel.zero": "this ZeRO stage is invalid with the rest of the scenario",
    "groups": "the microbatches are not a multiple of pp, as interleaving needs",
    "one stage": "a schedule for several stages, but pp is 1",
}
"""Reason why a layout is illegal, by the key that breaks the rule."""
MOST_SEQUENCES = 16
"""The largest micro batch that is tried by default."""
CP_COMMS = ("ring", "all_gather", "all_to_all")  # those that the bounds are proved for
LONG_SEQUENCE = 32_768
"""Tokens from which on cp is tried by default; below, only if the scenario has it."""

AXES = (
    "parallel.tp",
    "parallel.pp",
    "parallel.cp",
    "parallel.cp_comm",
    "parallel.ep",
    "parallel.etp",
    "parallel.sequence_parallel",
    "training.micro_batch",
    "training.recompute",
    "pipeline.schedule",
    "pipeline.chunks",
    "parallel.zero",
    "parallel.order",
)
"""Paths that a layout decides; dp is what tp, pp and cp leave of the GPUs."""


@dataclass(frozen=True)
class Space:
    """Layouts of a scenario on ``gpus`` GPUs: values ``tried`` by path; the user named those of ``varied``."""

    base: Scenario
    gpus: int
    tried: Mapping[str, Sequence[Any]]
    varied: tuple[str, ...] = ()

    @cached_property
    def found(self) -> tuple[list[Layout], dict[str, int]]:
        """Legal layouts in the order of the axes, each program once, and counts of other combinations by reason.

        The scenario's own layout comes last if it is not among these.
        """
        legal: list[Layout] = []
        counts: Counter[str] = Counter()
        for layout, reason, number in self._combinations():
            if layout is None:
                counts[reason] += number
            else:
                legal.append(layout)
        own = layout_of_scenario(self.base)
        if own and self._allows_layout(own) and not any(same_program(own, layout) for layout in legal):
            legal.append(own)
        return legal, dict(counts)

    def _allows_layout(self, own: Layout) -> bool:
        values = {**own.values(), "parallel.order": own.order}
        return own.gpus == self.gpus and all(values[path] in self.tried[path] for path in self.varied)

    @cached_property
    def pairs(self) -> list[tuple[str, int]]:
        """Schedules paired with their numbers of chunks."""
        several = [each for each in self.tried["pipeline.chunks"] if each > 1]
        names = self.tried["pipeline.schedule"]
        return [(name, count) for name in names for count in (several if SCHEDULES[name].takes_chunks else (1,))]

    def _combinations(self) -> Iterator[tuple[Layout | None, str, int]]:
        """Yield every combination once: a layout, or why a number of them are illegal."""
        tried, rules = self.tried, LayoutRules(self.base, self.gpus)
        inner = len(self.pairs)
        for axis in ("training.recompute", "parallel.zero", "parallel.order"):
            inner *= len(tried[axis])
        rest = len(tried["parallel.sequence_parallel"]) * len(tried["training.micro_batch"]) * inner
        spreads: list[tuple[int, str, int, int | None]] = [
            (cp, comm if cp > 1 else "ring", ep, etp)
            for cp in tried["parallel.cp"]
            for comm in tried["parallel.cp_comm"][: None if cp > 1 else 1]
            for ep, etp in product(tried["parallel.ep"], tried["parallel.etp"])
        ]
        for tp, pp, spread in product(tried["parallel.tp"], tried["parallel.pp"], spreads):
            cp, _, _, etp = spread
            if self.gpus % (tp * pp * cp):
                yield None, CAUSE["parallel"], rest
                continue
            if etp == tp and None in tried["parallel.etp"]:
                yield None, SAME_PROGRAM, rest
                continue
            dp = self.gpus // (tp * pp * cp)
            for sequence in tried["parallel.sequence_parallel"]:
                wrong = rules.tensor(tp, sequence) or rules.spread(tp, sequence, *spread, dp)
                for micro in tried["training.micro_batch"]:
                    if reason := wrong or rules.batch(dp, micro):
                        yield None, reason, inner
                    else:
                        layout = Layout(self.gpus, tp, pp, dp, sequence, micro, "none", "1f1b", 1, 0, (), *spread)
                        yield from self._inner_layouts(rules, layout)

    def _inner_layouts(self, rules: LayoutRules, outer: Layout) -> Iterator[tuple[Layout | None, str, int]]:
        """Yield the layouts of these sizes: every recomputation, schedule, ZeRO stage and order of ranks."""
        orders, sharded = self.tried["parallel.order"], self._judge_zero_stages(rules, outer)
        grids: dict[tuple[str, ...], tuple[str, ...]] = {}  # orders by their axes of several ranks
        for order in orders:
            grids.setdefault(tuple(axis for axis in order if getattr(outer, axis) > 1), order)
        microbatches = self.base.training.global_batch // (outer.dp * outer.micro_batch)
        for recompute, (schedule, chunks) in product(self.tried["training.recompute"], self.pairs):
            reason = self._why_recompute_illegal(rules, recompute)
            reason = reason or rules.schedule(outer.pp, schedule, chunks, microbatches)
            if reason:
                yield None, reason, len(sharded) * len(orders)
                continue
            for zero, wrong in sharded:
                if wrong:
                    yield None, wrong, len(orders)
                    continue
                for order in grids.values():
                    yield Layout(*outer[:6], recompute, schedule, chunks, zero, order, *outer[11:]), "", 0
                if len(grids) < len(orders):
                    yield None, SAME_PROGRAM, len(orders) - len(grids)

    def _judge_zero_stages(self, rules: LayoutRules, layout: Layout) -> list[tuple[int, str]]:
        """Return the ZeRO stages, each with the reason why it is illegal ("" if legal)."""
        replicas = layout.dp * layout.cp
        found = [(zero, rules.zero(replicas, zero)) for zero in self.tried["parallel.zero"]]
        if replicas > 1 or layout.etp is not None:
            return found
        first = next((zero for zero, wrong in found if not wrong), None)
        return [(zero, wrong or (SAME_PROGRAM if zero != first else "")) for zero, wrong in found]

    def _why_recompute_illegal(self, rules: LayoutRules, recompute: str) -> str:
        """Return why this recomputation is illegal, "" if legal."""
        tried, software = self.tried["training.recompute"], self.base.software
        core_alone = self.base.training.recompute_modules == ("core_attn",)
        if recompute == "selective" and core_alone and self.base.training.attention == "fused" and "none" in tried:
            return SAME_PROGRAM if software and software.selective == "unfused-core" else CAUSE["fused core"]
        return rules.recompute(recompute)


def make_space(base: Scenario, gpus: int, vary: Mapping[str, Sequence[Any]]) -> Space:
    """Return the space of layouts on ``gpus`` GPUs; ``vary`` replaces the default values of an axis.

    Raises InputError for a path that is not an axis, and for an axis without values.
    """
    for path, values in vary.items():
        if path not in AXES:
            raise InputError(f"{path} is not an axis of a plan{did_you_mean(path, AXES)}; use {listed(AXES)}")
        if not values:
            raise InputError(f"{path}: has no values to try; give at least one")
        for value in values:
            _check_value(path, value, base)
    for name in vary.get("pipeline.schedule", ()):
        if name not in SCHEDULES:
            raise InputError(
                f"pipeline.schedule: unknown schedule {name!r}{did_you_mean(str(name), SCHEDULES)}; known: "
                f"{', '.join(SCHEDULES)}"
            )
    layers, sizes, moe = base.model.layers, divisors(gpus), base.model.moe
    long = base.parallel.cp > 1 or base.model.sequence_length >= LONG_SEQUENCE
    tried: dict[str, Sequence[Any]] = {
        "parallel.tp": sizes,
        "parallel.pp": [size for size in sizes if size <= layers],
        "parallel.cp": sizes if long else (1,),
        "parallel.cp_comm": CP_COMMS if long else ("ring",),
        "parallel.ep": divisors(moe.experts) if moe else (1,),
        "parallel.etp": tuple(dict.fromkeys((None, 1, base.parallel.etp))) if moe else (None,),
        "parallel.sequence_parallel": (False, True),
        "training.micro_batch": [size for size in divisors(base.training.global_batch) if size <= MOST_SEQUENCES],
        "training.recompute": ("none", "selective", "full"),
        "pipeline.schedule": schedules_with("tried_by_search"),
        "pipeline.chunks": divisors(layers),
        "parallel.zero": (0, 1, 2, 3),
        "parallel.order": (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp")),
    }
    for path, values in vary.items():
        tried[path] = tuple(dict.fromkeys(tuple(each) if isinstance(each, list) else each for each in values))
    return Space(base, gpus, tried, tuple(vary))


def _check_value(path: str, value: object, base: Scenario) -> None:
    """Raise InputError for a value that no scenario can have at this path."""
    whole = value if isinstance(value, int) and not isinstance(value, bool) else 0
    order = base.parallel.order
    wanted, fits = {
        "parallel.sequence_parallel": ("true or false", isinstance(value, bool)),
        "parallel.cp_comm": (" or ".join(CP_COMMS), value in CP_COMMS),
        "parallel.etp": ("a whole number from 1, or null for as many ranks as tp", value is None or whole > 0),
        "training.recompute": (" or ".join(get_args(Recompute)), value in get_args(Recompute)),
        "pipeline.schedule": ("the name of a schedule", isinstance(value, str)),
        "parallel.zero": ("0, 1, 2 or 3", not isinstance(value, bool) and value in (0, 1, 2, 3)),
        "parallel.order": (
            f"a list such as [{', '.join(order)}]",
            isinstance(value, list | tuple) and sorted(map(str, value)) == sorted(order),
        ),
    }.get(path, ("a whole number from 1", whole > 0))
    if not fits:
        raise InputError(f"{path}: {shown(value)} is not a valid value; give {wanted}")


class LayoutRules:
    """Checks of a layout's values, which return why they are illegal ("" if legal); cached."""

    def __init__(self, base: Scenario, gpus: int) -> None:
        self._base, self._gpus = base, gpus
        self._broken, self._broken_schedule = cache(self._find_broken), cache(self._find_broken_schedule)

    def tensor(self, tp: int, sequence: bool) -> str:
        """Return why this tensor parallelism is illegal, "" if legal."""
        return self._broken(("parallel.tp", "parallel.sequence_parallel"), tp=tp, sequence_parallel=sequence)

    def spread(self, tp: int, sequence: bool, cp: int, comm: str, ep: int, etp: int | None, dp: int) -> str:
        """Return why this split of sequences over cp and of experts over ep is illegal, "" if legal."""
        moe = self._base.model.moe
        if cp == 1 and moe is None and ep == 1 and etp is None:
            return ""
        if moe and tp > 1 and not sequence:
            return CAUSE["tokens twice"]
        group, together = self._base.fsdp.shard_group, ep * (etp or tp)
        if group and (ep > 1 or together != tp) and group * tp % together:
            return CAUSE["parallel.zero"]
        where = ("parallel.cp", "parallel.ep", "parallel.etp", "training.attention", "memory.offload.optimizer")
        return self._broken(where, tp=tp, sequence_parallel=sequence, cp=cp, cp_comm=comm, ep=ep, etp=etp, dp=dp)

    def zero(self, dp: int, zero: int) -> str:
        """Return why this ZeRO stage is illegal with ``dp`` replicas, "" if legal."""
        found = self._broken(("parallel.zero", "overlap.param_gather", "fsdp"), tp=self._gpus // dp, zero=zero)
        return CAUSE["parallel.zero"] if found else ""

    def recompute(self, recompute: str) -> str:
        """Return why this recomputation is illegal, "" if legal."""
        return self._broken(("training.recompute",), recompute=recompute)

    def batch(self, dp: int, micro: int) -> str:
        """Return why this micro batch is illegal on ``dp`` replicas, "" if legal."""
        return CAUSE["training.global_batch"] if self._base.training.global_batch % (dp * micro) else ""

    def schedule(self, pp: int, schedule: str, chunks: int, microbatches: int) -> str:
        """Return why this schedule is illegal for these stages, chunks and microbatches, "" if legal."""
        if pp == 1 and schedule != "1f1b":
            return CAUSE["one stage"]
        if SCHEDULES[schedule].in_groups and microbatches % pp:
            return CAUSE["groups"]
        return self._broken_schedule(pp, schedule, chunks)

    def _find_broken_schedule(self, pp: int, schedule: str, chunks: int) -> str:
        base = self._base
        pipeline = base.pipeline.model_copy(update={"schedule": schedule, "chunks": chunks})
        parallel = base.parallel.model_copy(update={"tp": 1, "pp": pp})
        probe = base.model_copy(update={"parallel": parallel, "pipeline": pipeline})
        for path, _ in (*check_schedule_name(probe), *check_stage_layers(probe)):
            return CAUSE[".".join(map(str, path))]
        route = SCHEDULES[schedule].route
        uneven = route and pipeline.layers_per_stage == "even" and base.model.layers % len(route(pp, chunks))
        return CAUSE["pipeline.chunks"] if uneven else ""

    def _find_broken(self, where: tuple[str, ...], *, recompute: str = "", **parallel: Any) -> str:
        """Return the first rule broken under these keys, in a scenario of one stage with defaults elsewhere."""
        base = self._base
        values = {"tp": 1, "sequence_parallel": False, "zero": 0, "cp": 1, "cp_comm": "ring", "ep": 1, "etp": None}
        values |= {"pp": 1, "dp": self._gpus // parallel.get("tp", 1), **parallel}
        sections = {
            "parallel": base.parallel.model_copy(update=values),
            "pipeline": base.pipeline.model_copy(update={"schedule": "1f1b", "chunks": 1}),
            "training": base.training.model_copy(update={"recompute": recompute} if recompute else {}),
        }
        keys = find_broken_keys(base.model_copy(update={"gpus": self._gpus, **sections}))
        return next((CAUSE.get(key, key) for key in keys if key.startswith(where)), "")


def find_broken_keys(scenario: Scenario) -> list[str]:
    """Return the keys of a scenario that break a rule."""
    return [".".join(map(str, path)) for path, _ in find_broken_rules(scenario)]
