"""The space of a plan: every way to lay a job out, what of it is legal, and why the rest is not.

Rules are the scenario's own, asked about a few values at a time (``legal``).  A layout that passes them all is checked
as a whole before it is played.  Planning: nothing is timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, get_args

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, listed, shown
from simcluster.documents.suggestions import divisors
from simcluster.model.transformer import Recompute
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.sections import Parallel
from simcluster.schedules import SCHEDULES, schedules_with
from simcluster.studies.search.legal import REASONS, SAME, LayoutRules, broken_keys

RECOMPUTE_TRIED = ("none", "selective", "full")
ORDERS_TRIED = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
"""Replicas of a stage side by side, as Megatron-LM has them, or stages of a pipeline."""
MOST_SEQUENCES = 16
"""The largest micro batch that is tried unless others are named."""
ONE_CHUNK = (1,)
COMMS: tuple[str, ...] = get_args(Parallel.model_fields["cp_comm"].annotation)
LONG_SEQUENCE = 32_768
"""Tokens from which on sequences are tried split over cp, unless sizes are named or the scenario has one."""

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
"""What a layout decides; dp is what tp, pp and cp leave over."""


class Layout(NamedTuple):
    """One way to lay the job out."""

    gpus: int
    tp: int
    pp: int
    dp: int
    sequence_parallel: bool
    micro_batch: int
    recompute: str
    schedule: str
    chunks: int
    zero: int
    order: tuple[str, ...]
    cp: int = 1
    cp_comm: str = "ring"
    ep: int = 1
    etp: int | None = None

    def values(self) -> dict[str, Any]:
        """As changes of the scenario at dotted paths."""
        return {
            "gpus": self.gpus,
            "parallel.tp": self.tp,
            "parallel.pp": self.pp,
            "parallel.dp": self.dp,
            "parallel.cp": self.cp,
            "parallel.cp_comm": self.cp_comm,
            "parallel.ep": self.ep,
            "parallel.etp": self.etp,
            "parallel.sequence_parallel": self.sequence_parallel,
            "parallel.zero": self.zero,
            "parallel.order": list(self.order),
            "pipeline.schedule": self.schedule,
            "pipeline.chunks": self.chunks,
            "training.micro_batch": self.micro_batch,
            "training.recompute": self.recompute,
        }

    def on(self, base: Scenario) -> Scenario:
        """The scenario laid out like this, not checked."""
        parallel = base.parallel.model_copy(
            update={
                "tp": self.tp, "pp": self.pp, "dp": self.dp, "zero": self.zero, "order": self.order,
                "sequence_parallel": self.sequence_parallel,
                "cp": self.cp, "cp_comm": self.cp_comm, "ep": self.ep, "etp": self.etp,
            }
        )  # fmt: skip
        pipeline = base.pipeline.model_copy(update={"schedule": self.schedule, "chunks": self.chunks})
        training = base.training.model_copy(update={"micro_batch": self.micro_batch, "recompute": self.recompute})
        sections = {"parallel": parallel, "pipeline": pipeline, "training": training}
        return base.model_copy(update={"gpus": self.gpus, **sections})


def own_layout(base: Scenario) -> Layout | None:
    """Return the layout that a scenario has; None under a schedule that has parameters."""
    of, pipeline, training = base.parallel, base.pipeline, base.training
    if not isinstance(pipeline.schedule, str):
        return None
    return Layout(
        base.gpus, of.tp, of.pp, base.dp, of.sequence_parallel, training.micro_batch, training.recompute,
        pipeline.schedule, pipeline.chunks, of.zero, of.order, of.cp, of.cp_comm, of.ep, of.etp,
    )  # fmt: skip


def same_program(one: Layout | None, other: Layout) -> bool:
    """Return whether two layouts differ at most in the order of axes of one rank."""
    if one is None or one._replace(order=()) != other._replace(order=()):
        return False
    first, second = ([axis for axis in each.order if getattr(each, axis) > 1] for each in (one, other))
    return first == second


@dataclass(frozen=True)
class Space:
    """The layouts of a scenario on one number of GPUs: ``tried`` by path, of which the user names those ``varied``; the
    legal ones, each program once, and how many combinations there are besides, by reason."""

    base: Scenario
    gpus: int
    tried: Mapping[str, Sequence[Any]]
    varied: tuple[str, ...] = ()

    @cached_property
    def found(self) -> tuple[list[Layout], dict[str, int]]:
        """Legal layouts in the order of the axes, the scenario's own layout after them where it is none of these, and
        the counts of all others."""
        legal: list[Layout] = []
        counts: dict[str, int] = {}
        for layout, reason, number in self._combinations():
            if layout is None:
                counts[reason] = counts.get(reason, 0) + number
            else:
                legal.append(layout)
        own = own_layout(self.base)
        if own and self._allows(own) and not any(same_program(own, layout) for layout in legal):
            legal.append(own)
        return legal, counts

    def _allows(self, own: Layout) -> bool:
        """Return whether it is on as many GPUs, and the values that ``vary`` names include the layout's."""
        values = {**own.values(), "parallel.order": own.order}
        return own.gpus == self.gpus and all(values[path] in self.tried[path] for path in self.varied)

    @cached_property
    def pairs(self) -> list[tuple[str, int]]:
        """Schedules with their numbers of chunks."""
        chunks = self.tried["pipeline.chunks"]
        return [
            (name, count)
            for name in self.tried["pipeline.schedule"]
            for count in ([each for each in chunks if each > 1] if SCHEDULES[name].takes_chunks else ONE_CHUNK)
        ]

    @cached_property
    def spreads(self) -> list[tuple[int, str, int, int | None]]:
        """Sizes of cp with the ways in which its ranks exchange, and of ep with the ranks that an expert is split over;
        whose ranks are one has one way."""
        contexts = [
            (cp, comm)
            for cp in self.tried["parallel.cp"]
            for comm in (self.tried["parallel.cp_comm"] if cp > 1 else ("ring",))
        ]
        experts = [(ep, etp) for ep in self.tried["parallel.ep"] for etp in self.tried["parallel.etp"]]
        return [(*context, *expert) for context in contexts for expert in experts]

    def _combinations(self) -> Iterator[tuple[Layout | None, str, int]]:
        """Every combination once: a layout, or why there are so many that are none."""
        tried, rules = self.tried, LayoutRules(self.base, self.gpus)
        inner = len(tried["training.recompute"]) * len(self.pairs) * len(tried["parallel.zero"])
        inner *= len(tried["parallel.order"])
        rest = len(tried["parallel.sequence_parallel"]) * len(tried["training.micro_batch"]) * inner
        for tp, pp, spread in product(tried["parallel.tp"], tried["parallel.pp"], self.spreads):
            cp, _, _, etp = spread
            if self.gpus % (tp * pp * cp):
                yield None, REASONS["parallel"], rest
                continue
            if etp == tp and None in tried["parallel.etp"]:
                yield None, SAME, rest
                continue
            dp = self.gpus // (tp * pp * cp)
            for sequence in tried["parallel.sequence_parallel"]:
                wrong = rules.tensor(tp, sequence) or rules.spread(tp, sequence, *spread, dp)
                for micro in tried["training.micro_batch"]:
                    reason = wrong or rules.batch(dp, micro)
                    if reason:
                        yield None, reason, inner
                    else:
                        layout = Layout(self.gpus, tp, pp, dp, sequence, micro, "none", "1f1b", 1, 0, (), *spread)
                        yield from self._inner(rules, layout)

    def _inner(self, rules: LayoutRules, outer: Layout) -> Iterator[tuple[Layout | None, str, int]]:
        """Of sizes that are settled all ways to recompute, schedules, ZeRO stages and orders."""
        orders, sharded = self.tried["parallel.order"], self._sharded(rules, outer)
        sizes = {"tp": outer.tp, "cp": outer.cp, "dp": outer.dp, "pp": outer.pp}
        grids: dict[tuple[str, ...], tuple[str, ...]] = {}  # orders of the axes that there are
        for order in orders:
            grids.setdefault(tuple(axis for axis in order if sizes[axis] > 1), order)
        microbatches = self.base.training.global_batch // (outer.dp * outer.micro_batch)
        before, behind = outer[:6], outer[11:]
        for recompute in self.tried["training.recompute"]:
            unlike = self._recomputes(rules, recompute)
            for schedule, chunks in self.pairs:
                reason = unlike or rules.schedule(outer.pp, schedule, chunks, microbatches)
                if reason:
                    yield None, reason, len(sharded) * len(orders)
                    continue
                for zero, wrong in sharded:
                    if wrong:
                        yield None, wrong, len(orders)
                        continue
                    for order in grids.values():
                        yield Layout(*before, recompute, schedule, chunks, zero, order, *behind), "", 0
                    if len(grids) < len(orders):
                        yield None, SAME, len(orders) - len(grids)

    def _sharded(self, rules: LayoutRules, layout: Layout) -> list[tuple[int, str]]:
        """The stages of ZeRO, each with what is wrong with it ("" for nothing)."""
        replicas = layout.dp * layout.cp
        found = [(zero, rules.zero(replicas, zero)) for zero in self.tried["parallel.zero"]]
        if replicas > 1 or layout.etp is not None:
            return found
        alone = next((zero for zero, wrong in found if not wrong), None)
        return [(zero, wrong or (SAME if zero != alone else "")) for zero, wrong in found]

    def _recomputes(self, rules: LayoutRules, recompute: str) -> str:
        """What is wrong with a way to recompute."""
        tried, software = self.tried["training.recompute"], self.base.software
        core_alone = self.base.training.recompute_modules == ("core_attn",)
        if recompute == "selective" and core_alone and self.base.training.attention == "fused" and "none" in tried:
            return SAME if software and software.selective == "unfused-core" else REASONS["fused core"]
        return rules.recompute(recompute)


def space_of(base: Scenario, gpus: int, vary: Mapping[str, Sequence[Any]]) -> Space:
    """The space on so many GPUs; ``vary`` names the values of an axis instead of those that are tried by themselves
    (of schedules those with ``tried_by_search``).

    InputError for what is no axis, and for no values.
    """
    for path, values in vary.items():
        if path not in AXES:
            raise InputError(f"{path} is nothing that a plan decides{did_you_mean(path, AXES)}; use {listed(AXES)}")
        if not values:
            raise InputError(f"{path}: no values, so there is nothing to try; give at least one")
        for value in values:
            _require(path, value, base)
    for name in vary.get("pipeline.schedule", ()):
        if name not in SCHEDULES:
            raise InputError(
                f"pipeline.schedule: unknown schedule {name!r}{did_you_mean(str(name), SCHEDULES)}; known: "
                f"{', '.join(SCHEDULES)}"
            )
    layers, batch = base.model.layers, base.training.global_batch
    sizes = divisors(gpus)
    tried: dict[str, Sequence[Any]] = {
        "parallel.tp": sizes,
        "parallel.pp": [size for size in sizes if size <= layers],
        **_spread_tried(base, sizes),
        "parallel.sequence_parallel": (False, True),
        "training.micro_batch": [size for size in divisors(batch) if size <= MOST_SEQUENCES],
        "training.recompute": RECOMPUTE_TRIED,
        "pipeline.schedule": schedules_with("tried_by_search"),
        "pipeline.chunks": divisors(layers),
        "parallel.zero": (0, 1, 2, 3),
        "parallel.order": ORDERS_TRIED,
    }
    for path, values in vary.items():
        tried[path] = tuple(dict.fromkeys(tuple(each) if isinstance(each, list) else each for each in values))
    return Space(base, gpus, tried, tuple(vary))


def _spread_tried(base: Scenario, sizes: Sequence[int]) -> dict[str, Sequence[Any]]:
    """Sizes of cp where sequences are long, and of ep and etp where there are experts."""
    long = base.parallel.cp > 1 or base.model.sequence_length >= LONG_SEQUENCE
    moe = base.model.moe
    return {
        "parallel.cp": sizes if long else (1,),
        "parallel.cp_comm": COMMS if long else ("ring",),
        "parallel.ep": divisors(moe.experts) if moe else (1,),
        "parallel.etp": tuple(dict.fromkeys((None, 1, base.parallel.etp))) if moe else (None,),
    }


def _require(path: str, value: object, base: Scenario) -> None:
    """InputError for a value that no scenario can have there."""
    whole = value if isinstance(value, int) and not isinstance(value, bool) else 0
    order = base.parallel.order
    wanted, fits = {
        "parallel.sequence_parallel": ("true or false", isinstance(value, bool)),
        "parallel.cp_comm": (" or ".join(COMMS), value in COMMS),
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
        raise InputError(f"{path}: {shown(value)} cannot be tried; give {wanted}")


__all__ = ["AXES", "REASONS", "Layout", "Space", "broken_keys", "own_layout", "same_program", "space_of"]
