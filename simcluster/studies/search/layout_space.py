"""Space of layouts that a plan searches, with the reasons for excluding illegal layouts.

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
from simcluster.documents.diagnostics import did_you_mean, join_or, quote_value
from simcluster.documents.suggestions import divisors
from simcluster.model.transformer import Recompute
from simcluster.scenario.rules import find_broken_rules
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_rules import check_schedule_name, check_stage_layers
from simcluster.schedules import SCHEDULES, schedules_with
from simcluster.studies.search.layout import Layout, is_same_program, layout_of_scenario

SAME_PROGRAM = "the same program as another layout"
CAUSE: Mapping[str, str] = {
    "parallel": "tp x pp x cp does not divide the number of GPUs",
    "parallel.tp": "tp does not divide the number of heads or a width of the model",
    "parallel.sequence_parallel": "sequence parallelism without tensor parallelism",
    "parallel.cp": "cp does not divide the sequence length, or its tp shard",
    "parallel.cp_comm": "cp with all_to_all does not divide the heads per rank",
    "parallel.ep": "ep does not divide the number of experts, or the ep groups do not divide the ranks of a stage",
    "parallel.etp": "etp does not divide the width of an expert",
    "tokens twice": "tensor parallelism without sequence parallelism: tp ranks would send the same tokens to experts",
    "training.attention": "cp needs a fused attention",
    "memory.offload.optimizer": "an offloaded optimizer is not modelled for experts on ep ranks",
    "parallel.pp": "pp does not divide the number of layers",
    "pipeline.chunks": "pp x chunks does not divide the number of layers",
    "pipeline.schedule": "the schedule does not support these numbers of stages and microbatches",
    "training.global_batch": "dp x micro batch does not divide the global batch",
    "training.recompute": "this recomputation mode needs another attention kernel",
    "fused core": "selective recomputation of fused attention is slower and frees only the softmax statistics",
    "parallel.zero": "this ZeRO stage is invalid with the rest of the scenario",
    "groups": "the number of microbatches is not a multiple of pp, which interleaving requires",
    "one stage": "the schedule needs several stages, but pp is 1",
}
"""Reason why a layout is illegal, by the key that breaks the rule."""
MOST_SEQUENCES = 16
"""The largest micro batch that is tried by default."""
CP_COMMS = ("ring", "all_gather", "all_to_all")  # those that the bounds are proved for
LONG_SEQUENCE = 32_768
"""Tokens from which on cp is tried by default; below, only if the scenario has it."""


@dataclass(frozen=True)
class LayoutSpace:
    """Space of a scenario's layouts on ``gpus`` GPUs: the values to try for each scenario path, such as parallel.tp."""

    base: Scenario
    gpus: int
    values_by_path: Mapping[str, Sequence[Any]]
    user_paths: tuple[str, ...] = ()

    @cached_property
    def layouts_and_counts(self) -> tuple[list[Layout], dict[str, int]]:
        """Legal layouts, one for each distinct program, and the number of excluded combinations by reason.

        The scenario's own layout comes last if it is not among these.
        """
        legal: list[Layout] = []
        counts: Counter[str] = Counter()
        for layout, reason, number in self._iterate_combinations():
            if layout is None:
                counts[reason] += number
            else:
                legal.append(layout)
        own = layout_of_scenario(self.base)
        if own and self._allows_own_layout(own) and not any(is_same_program(own, layout) for layout in legal):
            legal.append(own)
        return legal, dict(counts)

    def _allows_own_layout(self, own: Layout) -> bool:
        values = {**own.scenario_changes(), "parallel.order": own.order}
        return own.gpus == self.gpus and all(values[path] in self.values_by_path[path] for path in self.user_paths)

    @cached_property
    def schedules_with_chunks(self) -> list[tuple[str, int]]:
        """Pairs (schedule, chunks per stage) that the search tries."""
        several = [each for each in self.values_by_path["pipeline.chunks"] if each > 1]
        names = self.values_by_path["pipeline.schedule"]
        return [(name, count) for name in names for count in (several if SCHEDULES[name].takes_chunks else (1,))]

    def _iterate_combinations(self) -> Iterator[tuple[Layout | None, str, int]]:
        """Yield each legal layout; otherwise a reason, and the number of combinations that it makes illegal."""
        tried, rules = self.values_by_path, LayoutRules(self.base, self.gpus)
        inner = len(self.schedules_with_chunks)
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
                wrong = rules.why_tp_illegal(tp, sequence) or rules.why_cp_or_ep_illegal(tp, sequence, *spread, dp)
                for micro in tried["training.micro_batch"]:
                    if reason := wrong or rules.why_batch_illegal(dp, micro):
                        yield None, reason, inner
                    else:
                        layout = Layout(self.gpus, tp, pp, dp, sequence, micro, "none", "1f1b", 1, 0, (), *spread)
                        yield from self._iterate_inner_layouts(rules, layout)

    def _iterate_inner_layouts(self, rules: LayoutRules, outer: Layout) -> Iterator[tuple[Layout | None, str, int]]:
        """Yield all layouts with these parallel sizes, over recomputation, schedule, ZeRO stage and rank order."""
        orders, sharded = self.values_by_path["parallel.order"], self._judge_zero_stages(rules, outer)
        grids: dict[tuple[str, ...], tuple[str, ...]] = {}  # orders by their axes of several ranks
        for order in orders:
            grids.setdefault(tuple(axis for axis in order if getattr(outer, axis) > 1), order)
        microbatches = self.base.training.global_batch // (outer.dp * outer.micro_batch)
        for mode, (schedule, chunks) in product(self.values_by_path["training.recompute"], self.schedules_with_chunks):
            reason = self._why_recompute_illegal(rules, mode)
            reason = reason or rules.why_schedule_illegal(outer.pp, schedule, chunks, microbatches)
            if reason:
                yield None, reason, len(sharded) * len(orders)
                continue
            for zero, wrong in sharded:
                if wrong:
                    yield None, wrong, len(orders)
                    continue
                for order in grids.values():
                    yield Layout(*outer[:6], mode, schedule, chunks, zero, order, *outer[11:]), "", 0
                if len(grids) < len(orders):
                    yield None, SAME_PROGRAM, len(orders) - len(grids)

    def _judge_zero_stages(self, rules: LayoutRules, layout: Layout) -> list[tuple[int, str]]:
        """Return each ZeRO stage to try, and the reason why it is illegal for this layout ("" if legal)."""
        replicas = layout.dp * layout.cp
        found = [(zero, rules.why_zero_illegal(replicas, zero)) for zero in self.values_by_path["parallel.zero"]]
        if replicas > 1 or layout.etp is not None:
            return found
        first = next((zero for zero, wrong in found if not wrong), None)
        return [(zero, wrong or (SAME_PROGRAM if zero != first else "")) for zero, wrong in found]

    def _why_recompute_illegal(self, rules: LayoutRules, recompute: str) -> str:
        """Return why this recomputation mode is illegal or pointless; "" if it should be tried."""
        tried, software = self.values_by_path["training.recompute"], self.base.software
        core_alone = self.base.training.recompute_modules == ("core_attn",)
        if recompute == "selective" and core_alone and self.base.training.attention == "fused" and "none" in tried:
            return SAME_PROGRAM if software and software.selective == "unfused-core" else CAUSE["fused core"]
        return rules.why_recompute_illegal(recompute)


def make_layout_space(base: Scenario, gpus: int, vary: Mapping[str, Sequence[Any]]) -> LayoutSpace:
    """Return the space of layouts on ``gpus`` GPUs; ``vary`` replaces the values to try for some paths.

    Raises InputError for a path that is not an axis, and for an axis without values.
    """
    layers, sizes, moe = base.model.layers, divisors(gpus), base.model.moe
    long = base.parallel.cp > 1 or base.model.sequence_length >= LONG_SEQUENCE
    tried: dict[str, Sequence[Any]] = {  # dp is what tp, pp and cp leave of the GPUs
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
        if path not in tried:
            raise InputError(f"{path} is not an axis of a plan{did_you_mean(path, tried)}; use {join_or(tried)}")
        if not values:
            raise InputError(f"{path}: the list of values to try is empty; give at least one value")
        for value in values:
            _check_axis_value(path, value, base)
    for name in vary.get("pipeline.schedule", ()):
        if name not in SCHEDULES:
            raise InputError(
                f"pipeline.schedule: unknown schedule {name!r}{did_you_mean(str(name), SCHEDULES)}; known: "
                f"{', '.join(SCHEDULES)}"
            )
    for path, values in vary.items():
        tried[path] = tuple(dict.fromkeys(tuple(each) if isinstance(each, list) else each for each in values))
    return LayoutSpace(base, gpus, tried, tuple(vary))


def _check_axis_value(path: str, value: object, base: Scenario) -> None:
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
        raise InputError(f"{path}: {quote_value(value)} is not a valid value; give {wanted}")


class LayoutRules:
    """Checks of parts of a layout; each method returns the reason why values are illegal, "" if they are legal."""

    def __init__(self, base: Scenario, gpus: int) -> None:
        self._base, self._gpus = base, gpus
        self._broken, self._broken_schedule = cache(self._find_broken_rule), cache(self._find_broken_schedule_rule)

    def why_tp_illegal(self, tp: int, sequence: bool) -> str:
        """Return why this combination of tp and sequence parallelism is illegal; "" if it is legal."""
        return self._broken(("parallel.tp", "parallel.sequence_parallel"), tp=tp, sequence_parallel=sequence)

    def why_cp_or_ep_illegal(
        self, tp: int, sequence: bool, cp: int, comm: str, ep: int, etp: int | None, dp: int
    ) -> str:
        """Return why this combination of cp, ep and etp is illegal; "" if it is legal."""
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

    def why_zero_illegal(self, dp: int, zero: int) -> str:
        """Return why this ZeRO stage is illegal with ``dp`` replicas; "" if it is legal."""
        found = self._broken(("parallel.zero", "overlap.param_gather", "fsdp"), tp=self._gpus // dp, zero=zero)
        return CAUSE["parallel.zero"] if found else ""

    def why_recompute_illegal(self, recompute: str) -> str:
        """Return why this recomputation mode is illegal; "" if it is legal."""
        return self._broken(("training.recompute",), recompute=recompute)

    def why_batch_illegal(self, dp: int, micro: int) -> str:
        """Return why this micro batch is illegal with ``dp`` replicas; "" if it is legal."""
        return CAUSE["training.global_batch"] if self._base.training.global_batch % (dp * micro) else ""

    def why_schedule_illegal(self, pp: int, schedule: str, chunks: int, microbatches: int) -> str:
        """Return why this schedule is illegal for these stages, chunks and microbatches; "" if it is legal."""
        if pp == 1 and schedule != "1f1b":
            return CAUSE["one stage"]
        if SCHEDULES[schedule].needs_whole_groups and microbatches % pp:
            return CAUSE["groups"]
        return self._broken_schedule(pp, schedule, chunks)

    def _find_broken_schedule_rule(self, pp: int, schedule: str, chunks: int) -> str:
        base = self._base
        pipeline = base.pipeline.model_copy(update={"schedule": schedule, "chunks": chunks})
        parallel = base.parallel.model_copy(update={"tp": 1, "pp": pp})
        probe = base.model_copy(update={"parallel": parallel, "pipeline": pipeline})
        for path, _ in (*check_schedule_name(probe), *check_stage_layers(probe)):
            return CAUSE[".".join(map(str, path))]
        route = SCHEDULES[schedule].route
        uneven = route and pipeline.layers_per_stage == "even" and base.model.layers % len(route(pp, chunks))
        return CAUSE["pipeline.chunks"] if uneven else ""

    def _find_broken_rule(self, where: tuple[str, ...], *, recompute: str = "", **parallel: Any) -> str:
        """Return why the scenario breaks the first rule about the keys ``where``; "" if no rule is broken."""
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
    """Return the dotted paths of the scenario keys that break a rule."""
    return [".".join(map(str, path)) for path, _ in find_broken_rules(scenario)]
