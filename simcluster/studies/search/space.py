"""The space of a plan: every way to lay a job out, what of it is legal, and why the rest is not.

Rules are the scenario's own, asked about a few values at a time, since most depend on few: tp on the model's widths,
the schedule on stages and chunks.  A layout that passes them all is checked as a whole before it is played.  Planning:
nothing is timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, get_args

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean, listed, shown
from simcluster.documents.suggestions import divisors
from simcluster.scenario.pipeline_rules import schedule_rules, stage_rules
from simcluster.scenario.rules import broken_rules
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.sections import Recompute
from simcluster.schedules import SCHEDULES, schedules_with
from simcluster.studies.search.pipelines import route_of

RECOMPUTE_TRIED = ("none", "selective", "full")
ORDERS_TRIED = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
"""Replicas of a stage side by side, as Megatron-LM has them, or stages of a pipeline."""
MOST_SEQUENCES = 16
"""The largest micro batch that is tried unless others are named."""
ONE_CHUNK = (1,)

AXES = (
    "parallel.tp",
    "parallel.pp",
    "parallel.sequence_parallel",
    "training.micro_batch",
    "training.recompute",
    "pipeline.schedule",
    "pipeline.chunks",
    "parallel.zero",
    "parallel.order",
)
"""What a layout decides; dp is what tp and pp leave over."""

SAME = "the same program as another layout"
REASONS: Mapping[str, str] = {
    "parallel": "tp x pp does not divide the GPUs",
    "parallel.tp": "tp does not divide the heads or a width of the model",
    "parallel.sequence_parallel": "sequence parallelism without tensor parallelism",
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

    def values(self) -> dict[str, Any]:
        """As changes of the scenario at dotted paths."""
        return {
            "gpus": self.gpus,
            "parallel.tp": self.tp,
            "parallel.pp": self.pp,
            "parallel.dp": self.dp,
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
            }
        )  # fmt: skip
        pipeline = base.pipeline.model_copy(update={"schedule": self.schedule, "chunks": self.chunks})
        training = base.training.model_copy(update={"micro_batch": self.micro_batch, "recompute": self.recompute})
        sections = {"parallel": parallel, "pipeline": pipeline, "training": training}
        return base.model_copy(update={"gpus": self.gpus, **sections})


@dataclass(frozen=True)
class Space:
    """The layouts of a scenario on one number of GPUs: ``tried`` by path; the legal ones, each program once, and how
    many combinations there are besides, by reason."""

    base: Scenario
    gpus: int
    tried: Mapping[str, Sequence[Any]]

    @cached_property
    def found(self) -> tuple[list[Layout], dict[str, int]]:
        """Legal layouts in the order of the axes, and the counts of all others."""
        legal: list[Layout] = []
        counts: dict[str, int] = {}
        for layout, reason, number in self._combinations():
            if layout is None:
                counts[reason] = counts.get(reason, 0) + number
            else:
                legal.append(layout)
        return legal, counts

    @cached_property
    def pairs(self) -> list[tuple[str, int]]:
        """Schedules with their numbers of chunks."""
        chunks = self.tried["pipeline.chunks"]
        return [
            (name, count)
            for name in self.tried["pipeline.schedule"]
            for count in ([each for each in chunks if each > 1] if SCHEDULES[name].takes_chunks else ONE_CHUNK)
        ]

    def _combinations(self) -> Iterator[tuple[Layout | None, str, int]]:
        """Every combination once: a layout, or why there are so many that are none."""
        tried, rules = self.tried, _Rules(self.base, self.gpus)
        inner = len(tried["training.recompute"]) * len(self.pairs) * len(tried["parallel.zero"])
        inner *= len(tried["parallel.order"])
        rest = len(tried["parallel.sequence_parallel"]) * len(tried["training.micro_batch"]) * inner
        for tp in tried["parallel.tp"]:
            for pp in tried["parallel.pp"]:
                if self.gpus % (tp * pp):
                    yield None, REASONS["parallel"], rest
                    continue
                dp = self.gpus // (tp * pp)
                for sequence in tried["parallel.sequence_parallel"]:
                    wrong = rules.tensor(tp, sequence)
                    for micro in tried["training.micro_batch"]:
                        reason = wrong or rules.batch(dp, micro)
                        if reason:
                            yield None, reason, inner
                        else:
                            yield from self._inner(rules, (tp, pp, dp, sequence, micro))

    def _inner(self, rules: _Rules, outer: tuple[int, int, int, bool, int]) -> Iterator[tuple[Layout | None, str, int]]:
        tried = self.tried
        tp, pp, dp, sequence, micro = outer
        microbatches = self.base.training.global_batch // (dp * micro)
        sharded = [(zero, rules.zero(dp, zero)) for zero in tried["parallel.zero"]]
        orders = tried["parallel.order"]
        last = len(sharded) * len(orders)
        alone = next((zero for zero, wrong in sharded if not wrong), None)
        for recompute in tried["training.recompute"]:
            unlike = rules.recompute(recompute)
            if (
                recompute == "selective"
                and self.base.training.attention == "fused"
                and "none" in tried["training.recompute"]
            ):
                software = self.base.software
                unlike = SAME if software and software.selective == "unfused-core" else REASONS["fused core"]
            for schedule, chunks in self.pairs:
                reason = unlike or rules.schedule(pp, schedule, chunks, microbatches)
                if reason:
                    yield None, reason, last
                    continue
                for zero, wrong in sharded:
                    if not wrong and dp == 1 and zero != alone:
                        wrong = SAME
                    if wrong:
                        yield None, wrong, len(orders)
                        continue
                    seen: dict[tuple[str, ...], None] = {}
                    for order in orders:
                        sizes = {"tp": tp, "dp": dp, "pp": pp}
                        grid = tuple(axis for axis in order if sizes.get(axis, 1) > 1)
                        if grid in seen:
                            yield None, SAME, 1
                            continue
                        seen[grid] = None
                        yield (
                            Layout(self.gpus, tp, pp, dp, sequence, micro, recompute, schedule, chunks, zero, order),
                            "",
                            0,
                        )


class _Rules:
    """Answers to small questions about what is legal, each asked once."""

    def __init__(self, base: Scenario, gpus: int) -> None:
        self._base, self._gpus = base, gpus
        self._known: dict[tuple[Any, ...], str] = {}

    def tensor(self, tp: int, sequence: bool) -> str:
        """What is wrong with a tp, "" for nothing."""
        where = ("parallel.tp", "parallel.sequence_parallel")
        return self._ask(("tensor", tp, sequence), where, tp=tp, sequence_parallel=sequence)

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
            values = {"tp": 1, "sequence_parallel": False, "zero": 0, **parallel}
            values |= {"pp": 1, "dp": self._gpus // values["tp"]}
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
    return Space(base, gpus, tried)


def _require(path: str, value: object, base: Scenario) -> None:
    """InputError for a value that no scenario can have there."""
    whole = value if isinstance(value, int) and not isinstance(value, bool) else 0
    order = base.parallel.order
    wanted, fits = {
        "parallel.sequence_parallel": ("true or false", isinstance(value, bool)),
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
