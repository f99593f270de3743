"""The ``run:`` section of a scenario: how long and in which stages it trains, what fails, and what is done about it.

Laws of durations are written "5 min" or as a mapping with a ``kind`` (``times``); rates one of four ways.  What a run
makes of the cluster's states is asked of the step simulator (``longrun/studies``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from simcluster.base.counts import LETTERS
from simcluster.base.errors import InputError
from simcluster.base.units import BytesPerSecond, Days, NamedSeconds, Seconds, parse_seconds
from simcluster.documents.diagnostics import RuleError, did_you_mean, shown
from simcluster.documents.spec import NUMBER_OR_TEXT, Spec
from simcluster.scenario.run_failures import FailuresSpec, Positive, Share, Whole
from simcluster.scenario.run_times import FixedTime, Time

_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kMBT]?)\s*(tokens)?\s*")


def _tokens(value: object) -> object:
    """ "15.6T" is 15.6e12, and so is "15.6T tokens"."""
    if not isinstance(value, str):
        return value
    if found := _COUNT.fullmatch(value):
        return float(found[1]) * LETTERS[found[2]]
    raise InputError(f"{shown(value)} is no number of tokens; write it as 252M tokens, 15.6T or 3e12")


_OWN = ("run", "run.stages", "run.tokens", "run.steps", "run.days", "run.played")
"""What a stage cannot set."""

Tokens = Annotated[float, Field(strict=False, gt=0), BeforeValidator(_tokens), NUMBER_OR_TEXT]


class StageSpec(Spec):
    """A stage of a recipe, ``until`` the run has trained so many tokens (the last: left out, to the run's end).

    ``set`` are values at dotted paths of the scenario, as in {training.global_batch: 1024}: of this stage alone, not of
    those after it.  To begin it takes ``change``: the job is stopped and started with another layout.
    """

    until: Tokens | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    change: Seconds = 0.0


def tokens_of_stages(stages: Sequence[StageSpec], goal: float | None) -> list[float]:
    """How many tokens each trains, in a run of ``goal`` tokens.

    RuleError, by the keys of a run, where stages do not follow each other, or the run does not end in tokens.
    """
    if goal is None:
        raise RuleError(
            [(("stages",), "stages are counted in tokens, and so the run must be: give tokens, as in 15.6T")]
        )
    begin, counts, last = 0.0, [], len(stages) - 1
    for number, stage in enumerate(stages):
        end = goal if stage.until is None and number == last else stage.until
        if end is None:
            needed = "is required and missing; the last stage alone goes on to the run's end: write until: 252M tokens"
            raise RuleError([(("stages", number, "until"), needed)])
        if wrong := _misplaced(number, end, begin, goal, number == last):
            raise RuleError([(("stages", number, "until"), f"stage {number + 1} {wrong}")])
        if bad := [path for path in stage.set if path in _OWN]:
            told = "is the run's, not a stage's; write it under run"
            raise RuleError([(("stages", number, "set", bad[0]), f"stage {number + 1}: {bad[0]} {told}")])
        counts.append(end - begin)
        begin = end
    return counts


def _misplaced(number: int, end: float, begin: float, goal: float, last: bool) -> str:
    """What is wrong with the tokens at which a stage ends; "" if nothing is."""
    if end <= begin:
        before = f"where stage {number} ends; they come in their order: write more than {begin:g}"
        return f"ends at {end:g} tokens and begins at {begin:g}, {before}"
    if last and end != goal:
        return f"is the last and ends at {end:g} tokens, the run at {goal:g}; leave its until out"
    if not last and end >= goal:
        return f"ends at {end:g} tokens, the run at {goal:g}; another stage comes after it: write less, or a longer run"
    return ""


_STEPS = re.compile(r"\d{1,12}\s+steps?")


def _interval(value: object) -> str:
    """ "auto", "83 steps" or "20 min"; InputError for what is none of them."""
    text = value.strip() if isinstance(value, str) else ""
    if text == "auto" or (_STEPS.fullmatch(text) and int(text.split()[0])):
        return text
    try:
        long_enough = parse_seconds(text) > 0
    except InputError:
        long_enough = False
    if not long_enough:
        raise InputError(f"{str(value)[:40]!r} is no interval; write auto, or as in 83 steps, 20 min")
    return text


def _steps(value: object) -> object:
    """ "1000 steps" is 1000."""
    number, _, unit = str(value).strip().partition(" ") if isinstance(value, str) else ("", "", "")
    return int(number) if number.isdigit() and unit.strip() in ("step", "steps", "") else value


def _failures(value: object) -> object:
    """A name, or a list of one's own."""
    if isinstance(value, str):
        return {"of": value}
    return {"also": value} if isinstance(value, list | tuple) else value


class MemoryCopies(Spec):
    """Snapshots that peers keep in their memory: ``every`` so often, of which each ``storage_every``-th goes on to
    storage (``auto``: what loses least); ``stall`` and ``write`` left out follow from the bytes, PCIe, the network."""

    storage_every: Literal["auto"] | Annotated[int, Field(strict=True, ge=2, le=100_000)] = "auto"
    stall: Seconds | None = None
    write: Seconds | None = None


class CheckpointSpec(Spec):
    """Checkpoints.

    ``every``: ``auto`` (what loses least), "83 steps" or "20 min".  ``blocking``: training stops until all is written;
    ``snapshot``: it stops for the copy to host memory over PCIe, and the write goes on beside it.  ``to`` and ``read``
    are what storage takes and gives for the whole job; ``bytes_per_parameter`` left out is weights and optimizer state
    of the job's memory recipe.  ``stall`` and ``write`` stand for times that were measured.  ``verify``: a check of the
    weights before each.  ``keep``: how many on storage, at a ``price`` in dollars a TB and month (a twelfth of a year).
    """

    every: Annotated[str, BeforeValidator(_interval)] = "auto"
    mode: Literal["blocking", "snapshot"] = "blocking"
    to: BytesPerSecond | None = None
    read: BytesPerSecond | None = None
    bytes_per_parameter: Positive | None = None
    stall: Seconds | None = None
    write: Seconds | None = None
    slowed: Share | None = None
    memory: MemoryCopies | None = None
    verify: Seconds = 0.0
    keep: Annotated[int, Field(strict=True, ge=1, le=1000)] = 3
    price: Positive | None = None


class ValidationSpec(Spec):
    """A validation ``every`` so many steps: ``batches`` of the job's global batch, forward only.

    ``seconds`` stand for those of a whole validation that were measured.
    """

    every: Annotated[int, Field(strict=True, ge=1, le=10**9), BeforeValidator(_steps), NUMBER_OR_TEXT]
    batches: Annotated[int, Field(strict=True, ge=1, le=10**7)] = 1
    seconds: NamedSeconds | None = None


class RestartPart(Spec):
    """A part of a restart: how long it ``takes``; in an ``exposed`` one the job can fail again.

    ``load`` may take ``auto``: the bytes of a checkpoint, as fast as storage (or the network, from peers) gives them.
    """

    part: str
    takes: Annotated[Literal["auto"] | Time, BeforeValidator(lambda value: value)] = "auto"
    exposed: StrictBool = True


class SparesSpec(Spec):
    """Spare nodes, how long until one is ready by kind, and how many ``crews`` repair (default: enough).

    Without ``hot``, ``warm``, ``cold`` and ``unlimited`` there are as many as ``longrun.defaults`` says.
    ``price`` is in dollars per GPU and hour (default: the job's, where their number is stated).
    """

    hot: Whole | None = None
    warm: Whole | None = None
    cold: Whole | None = None
    hot_ready: Seconds | None = None
    warm_ready: Seconds | None = None
    cold_ready: Seconds | None = None
    crews: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    unlimited: StrictBool = False
    price: Annotated[float, Field(strict=False, ge=0)] | None = None

    @property
    def stated(self) -> bool:
        """Whether the document states how many there are."""
        return self.unlimited or any(count is not None for count in (self.hot, self.warm, self.cold))


class MaintenanceSpec(Spec):
    """A planned interruption ``every`` so often, after a checkpoint; it ``lasts`` so long, the restart comes on top."""

    every: Seconds
    lasts: Seconds

    @model_validator(mode="after")
    def _rare(self) -> MaintenanceSpec:
        if self.every < 600:
            raise RuleError([(("every",), f"{self.every:g} s must be at least 10 min; write as in 24 h")])
        if self.lasts >= self.every:
            over = f"{self.lasts:g} s is as long as from one to the next ({self.every:g} s) or longer"
            raise RuleError([(("lasts",), f"{over}, and nothing could be trained; write less, or a longer every")])
        return self


class PowerSpec(Spec):
    """What the cluster draws: a GPU ``idle`` and at its limit (``full``), the rest of a ``node``, in W; ``pue`` times
    that is what the building draws.

    ``communication`` and ``waiting`` for it take that share of the way from idle to full.  What is left out is the
    catalogue's.  ``price`` in dollars a kWh is asked for, never assumed.
    """

    idle: Positive | None = None
    full: Positive | None = None
    node: Positive | None = None
    communication: Share | None = None
    waiting: Share | None = None
    pue: Annotated[float, Field(strict=False, ge=1, le=3)] = 1.0
    price: Positive | None = None


class RunSpec(Spec):
    """A run of weeks: one of ``days`` (wall time: 54, or "54 d"), ``steps``, ``tokens`` or ``loss`` says when it ends.

    A ``loss`` becomes tokens by a ``law`` of loss: a name, or ``{form: NDC, E: .., A: .., alpha: .., B: .., beta: ..}``
    (left out: besiroglu); where a law is given, the loss that the tokens buy is told.  ``stages`` are a recipe over
    time, in tokens: a ramp of the batch, longer sequences.

    ``short``: without spares the job ``wait``s for a machine, or goes on with ``shrink``: at most ``shrink_to``
    replicas fewer.
    ``straggler``: a slow device is left, replaced at once or after the next checkpoint, ``noticed`` after it began.
    ``price`` in dollars a GPU and hour is asked for, never assumed; ``achievable_mfu`` is what the run is held to: what
    the same tokens would cost at it.  ``played`` runs are played.
    """

    days: Days | None = None
    steps: Annotated[int, Field(strict=True, ge=1, le=10**10)] | None = None
    tokens: Tokens | None = None
    loss: Positive | None = None
    law: str | dict[str, str | float] | None = None
    stages: tuple[StageSpec, ...] = ()
    failures: Annotated[FailuresSpec, BeforeValidator(_failures)] = FailuresSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    validation: ValidationSpec | None = None
    detection: Time | None = None
    restart: tuple[RestartPart, ...] | None = None
    spares: SparesSpec = SparesSpec()
    short: Literal["wait", "shrink"] = "wait"
    shrink_to: Annotated[int, Field(strict=True, ge=1, le=1000)] = 4
    straggler: Literal["leave", "replace", "checkpoint"] = "leave"
    noticed: Time = FixedTime(seconds="30 min")
    wrong_diagnosis: Annotated[Share, Field(lt=1)] = 0.0
    timeout: Seconds = 600.0
    maintenance: MaintenanceSpec | None = None
    price: Positive | None = None
    achievable_mfu: Annotated[Share, Field(gt=0)] | None = None
    power: PowerSpec = PowerSpec()
    played: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 1000

    @model_validator(mode="before")
    @classmethod
    def _ends(cls, document: Any) -> Any:
        if isinstance(document, Mapping):
            ends = [name for name in ("days", "steps", "tokens", "loss") if document.get(name) is not None]
            if len(ends) != 1:
                unknown = [str(each) for each in document if each not in cls.model_fields]
                guess = "".join(f"; {each!r} is no key{did_you_mean(each, cls.model_fields)}" for each in unknown)
                given = " and ".join(ends) or "none"
                raise InputError(f"when does it end? give one of days, steps, tokens, loss; got {given}{guess}")
        return document

    @model_validator(mode="after")
    def _follow(self) -> RunSpec:
        if self.stages:
            tokens_of_stages(self.stages, self.tokens)
        return self
