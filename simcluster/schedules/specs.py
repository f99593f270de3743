"""Schedules with parameters in scenario files, as in ``schedule: {name: zb-auto, memory_limit: 4}``.

Schedules without parameters are written by their name alone; ``rows`` is one written out. Separate from the rest of the
package, since it needs pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, Tag, ValidatorFunctionWrapHandler, WrapValidator

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Count, Spec
from simcluster.documents.field_annotations import SchemaAlternatives
from simcluster.documents.trusted_text import TrustedText
from simcluster.schedules import SCHEDULES, make_schedule
from simcluster.schedules.actions import Route, Schedule, loop_route, parse_row
from simcluster.schedules.check import require_fixed_chunks
from simcluster.schedules.interleaved import interleaved
from simcluster.schedules.paired_passes import Pairs, one_f_one_b_in_pairs
from simcluster.schedules.registry_entry import ScheduleFunction
from simcluster.schedules.text import format_rows
from simcluster.schedules.timing import EqualCosts
from simcluster.schedules.zb_auto import Goal, Times, zb_auto

Time = Annotated[float, Field(ge=0, le=1e12)]


class OneFOneBSpec(Spec):
    """1F1B with passes fused in pairs, so that communication can overlap (overlap.pairs), also without a pipeline."""

    name: Literal["1f1b"]
    """Name of the schedule that these parameters are for."""
    pairs: Pairs
    """Which passes are fused: the forward of one microbatch with the backward of an earlier one (forward-backward:
    --overlap-moe-expert-parallel-comm), or the same pass of two microbatches (microbatches: two halves of a batch)."""

    def schedule_function(self, costs: Times | None = None, latency: Any = 0) -> ScheduleFunction:
        """Return the function that makes the schedule; it does not depend on ``costs`` and ``latency``."""
        return partial(one_f_one_b_in_pairs, pairs=self.pairs)


class InterleavedSpec(Spec):
    """Interleaved 1F1B with a chosen group size; forward and backward passes can be fused in pairs."""

    name: Literal["interleaved"]
    """Name of the schedule that these parameters are for."""
    group_size: Count | None = None
    """Number of microbatches per group (Megatron-LM's --microbatch-group-size-per-virtual-pipeline-stage); default: the
    number of stages."""
    pairs: StrictBool = False
    """Fuse forward and backward passes in pairs [F|B], which send at their end (--overlap-moe-expert-parallel-comm)."""

    def schedule_function(self, costs: Times | None = None, latency: Any = 0) -> ScheduleFunction:
        """Return the function that makes the schedule; it does not depend on ``costs`` and ``latency``."""
        return partial(interleaved, group_size=self.group_size, pairs=self.pairs)


class ZbAutoSpec(Spec):
    """Automatic zero-bubble schedule with a limit on the microbatches in flight on a stage."""

    name: Literal["zb-auto"]
    """Name of the schedule that these parameters are for."""
    memory_limit: Count | None = None
    """Largest number of microbatches in flight on one stage; default: no limit."""
    goal: Goal | None = None
    """What is minimized: the longest time from a stage's first to its last op (span), or the step if the optimizer
    waits for all stages (step); default: step in a scenario, else span, as in the paper."""
    weight_memory: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of a microbatch's activations that is kept from its input-gradient to its weight-gradient pass (I to W)."""
    forward: Time | None = None
    """Relative time of a forward pass (F), in the unit of the other times; default: if none is set, the run's times."""
    input: Time | None = None
    """Relative time of an input-gradient pass (I), in the unit of `forward`."""
    weight: Time | None = None
    """Relative time of a weight-gradient pass (W), in the unit of `forward`."""
    latency: Time = 0.0
    """Relative latency of a message between stages, in the unit of `forward`."""

    def schedule_function(self, costs: Times | None = None, latency: Any = 0) -> ScheduleFunction:
        """Return the function that makes the schedule for the spec's pass times, by default for ``costs``."""
        given = (self.forward, self.input, self.weight)
        if costs is None or any(time is not None for time in given):
            forward, input_, weight = (1.0 if time is None else time for time in given)
            costs, latency = EqualCosts(F=forward, B=input_ + weight, I=input_, W=weight), self.latency
        goal, limit, part = self.goal or "span", self.memory_limit, self.weight_memory
        return partial(zb_auto, costs=costs, latency=latency, goal=goal, memory_limit=limit, weight_memory=part)


class RowsSpec(Spec):
    """A user's schedule, written as one row of actions per stage, such as "F0 F1 B0 B1"."""

    name: Literal["rows"]
    """Type of the schedule: one that is written out as rows of actions."""
    rows: tuple[str, ...]
    """List of one row of actions per stage, such as "F0 F1 B0 B1"."""
    routes: tuple[str, ...] | None = None
    """Routes of microbatches through the model as stage.chunk hops, such as "0.0 1.0 1.1 0.1"; default: chunk 0 of
    every stage in turn, then chunk 1, and so on."""
    route_of: tuple[int, ...] | None = None
    """Index (from 0) in `routes` of each microbatch's route."""
    title: str = "rows"
    """Name of the schedule in tables and figures."""

    @classmethod
    def from_schedule(cls, schedule: Schedule) -> Self:
        """Return the spec that describes an existing schedule row by row."""
        plain = schedule.routes == (loop_route(schedule.num_stages, schedule.num_chunks),)
        return cls(
            name="rows",
            rows=tuple(format_rows(schedule)),
            routes=None if plain else tuple(" ".join(f"{stage}.{chunk}" for stage, chunk in route)
                                            for route in schedule.routes),
            route_of=None if plain else schedule.route_of,
            title=schedule.name,
        )  # fmt: skip

    def schedule_function(self, costs: Times | None = None, latency: Any = 0) -> ScheduleFunction:
        """Return a function that makes the checked schedule; InputError if the job's stages or microbatches differ."""

        def make_checked(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
            schedule = make_schedule(self._parse_rows(), num_stages, num_microbatches)
            require_fixed_chunks(self.title, num_chunks, schedule.num_chunks)
            return schedule

        return make_checked

    def _parse_rows(self) -> Schedule:
        parsed = [parse_row(row) for row in self.rows]
        actions = tuple(row for row, _ in parsed)
        fused = tuple(positions for _, positions in parsed)
        every = [action for row in actions for action in row]
        microbatches = 1 + max((action.microbatch for action in every), default=-1)
        chunks = 1 + max((action.chunk for action in every), default=0)
        routes: tuple[Route, ...] = (loop_route(len(actions), chunks),)
        if self.routes is not None:
            routes = tuple(_parse_route(text) for text in self.routes)
        return Schedule(
            name=self.title,
            rows=actions,
            num_microbatches=microbatches,
            num_chunks=chunks,
            routes=routes,
            route_of=self.route_of if self.route_of is not None else (0,) * microbatches,
            fused=fused if any(fused) else (),
        )


def _parse_route(text: str) -> Route:
    hops = []
    for word in text.split():
        stage, dot, chunk = word.partition(".")
        if not (dot and stage.isdecimal() and chunk.isdecimal()):
            raise InputError(f"route {text!r}: {word!r} is not a hop; write stage.chunk, as in 0.0 1.0 1.1 0.1")
        hops.append((int(stage), int(chunk)))
    return tuple(hops)


_WITH_PARAMETERS = ("1f1b", "interleaved", "zb-auto", "rows")


def _normalize_spec(value: object) -> object:
    """Return the name alone if a schedule spec has no parameters, else the spec; InputError for any other value."""
    if isinstance(value, str | Spec):
        return value
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InputError(
            "must be a schedule's name, a mapping such as {name: interleaved, group_size: 8}, a CSV file of "
            "torch.distributed.pipelining, or FILE.py:FUNCTION"
        )
    name = value["name"]
    if name in SCHEDULES and len(value) == 1:
        return name
    if name not in _WITH_PARAMETERS:
        what = "takes no parameters: write only the name" if name in SCHEDULES else "is not a schedule"
        raise InputError(f"{name!r} {what}; only {', '.join(_WITH_PARAMETERS)} have parameters")
    return value


def _spec_kind(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value["name"])
    return value.name if isinstance(value, OneFOneBSpec | InterleavedSpec | ZbAutoSpec | RowsSpec) else "text"


def _keep_trusted_text(value: object, text: ValidatorFunctionWrapHandler) -> str:
    return value if isinstance(value, TrustedText) else str(text(value))


_A_FILE = {"type": "string", "pattern": r"\.csv$|\.py:", "description": "your schedule: FILE.csv or FILE.py:FUNCTION"}
_NAMED = {"type": "object", "required": ["name"], "additionalProperties": False}
ScheduleChoice = Annotated[
    Annotated[str, WrapValidator(_keep_trusted_text), Tag("text")]
    | Annotated[OneFOneBSpec, Tag("1f1b")]
    | Annotated[InterleavedSpec, Tag("interleaved")]
    | Annotated[ZbAutoSpec, Tag("zb-auto")]
    | Annotated[RowsSpec, Tag("rows")],
    Discriminator(_spec_kind),
    BeforeValidator(_normalize_spec),
    SchemaAlternatives(lambda: ((*SCHEDULES,), _A_FILE, {**_NAMED, "properties": {"name": {"enum": [*SCHEDULES]}}},
                                OneFOneBSpec, InterleavedSpec, ZbAutoSpec, RowsSpec)),
]  # fmt: skip
"""A schedule by its name alone, or with parameters."""
