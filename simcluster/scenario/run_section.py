"""The ``run`` section of a scenario: length and stages of training, failures, and their handling.

Durations are written "5 min" or as a mapping with a ``kind`` (``times``); rates one of four ways. The step simulator
times the states of the cluster during a run (``longrun/studies``).
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
from simcluster.documents.kinds import Accepts
from simcluster.documents.spec import NUMBER_OR_TEXT, Spec
from simcluster.scenario.run_failures import FailureSpec, FailuresSpec, Positive, Share, Whole, known_failures
from simcluster.scenario.run_times import FixedTime, Time

_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kMBT]?)\s*(tokens)?\s*")


def _tokens(value: object) -> object:
    if not isinstance(value, str):
        return value
    if found := _COUNT.fullmatch(value):
        return float(found[1]) * LETTERS[found[2]]
    raise InputError(f"{shown(value)} is not a number of tokens; write it as 252M tokens, 15.6T or 3e12")


_OWN = ("run", "run.stages", "run.tokens", "run.steps", "run.days", "run.played")
"""Keys that a stage cannot set, since they belong to the run."""

Tokens = Annotated[float, Field(strict=False, gt=0), BeforeValidator(_tokens), NUMBER_OR_TEXT]


class StageSpec(Spec):
    """One stage of the training recipe."""

    until: Tokens | None = None
    """Tokens at which the stage ends; default for the last stage: the end of the run."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Scenario values at dotted paths for this stage alone, as in {training.global_batch: 1024}."""
    change: Seconds = 0.0
    """Time to stop the job and restart it with another layout."""


def tokens_of_stages(stages: Sequence[StageSpec], goal: float | None) -> list[float]:
    """Return the tokens that each stage trains on, in a run of ``goal`` tokens.

    RuleError, by the keys of a run, where stages are not in order, or the run does not end in tokens.
    """
    if goal is None:
        raise RuleError(
            [(("stages",), "stages are counted in tokens, so the run must be, too: set tokens, as in 15.6T")]
        )
    begin, counts, last = 0.0, [], len(stages) - 1
    for number, stage in enumerate(stages):
        end = goal if stage.until is None and number == last else stage.until
        if end is None:
            needed = "is required and missing; only the last stage may end with the run: write until: 252M tokens"
            raise RuleError([(("stages", number, "until"), needed)])
        if wrong := _misplaced(number, end, begin, goal, number == last):
            raise RuleError([(("stages", number, "until"), f"stage {number + 1} {wrong}")])
        if bad := [path for path in stage.set if path in _OWN]:
            told = "is a key of the run, not of a stage; write it under run"
            raise RuleError([(("stages", number, "set", bad[0]), f"stage {number + 1}: {bad[0]} {told}")])
        counts.append(end - begin)
        begin = end
    return counts


def _misplaced(number: int, end: float, begin: float, goal: float, last: bool) -> str:
    """Return what is wrong with the end of a stage (tokens); "" if it is valid."""
    if end <= begin:
        before = f"where stage {number} ends; stages are in order: write more than {begin:g}"
        return f"ends at {end:g} tokens and begins at {begin:g}, {before}"
    if last and end != goal:
        return f"is the last and ends at {end:g} tokens, the run at {goal:g}; remove its until"
    if not last and end >= goal:
        return f"ends at {end:g} tokens, the run at {goal:g}; another stage comes after it: write less, or a longer run"
    return ""


_STEPS = re.compile(r"\d{1,12}\s+steps?")


def _interval(value: object) -> str:
    """Return "auto", "83 steps" or "20 min"; InputError for others."""
    text = value.strip() if isinstance(value, str) else ""
    if text == "auto" or (_STEPS.fullmatch(text) and int(text.split()[0])):
        return text
    try:
        long_enough = parse_seconds(text) > 0
    except InputError:
        long_enough = False
    if not long_enough:
        raise InputError(f"{str(value)[:40]!r} is not an interval; write auto, or as in 83 steps, 20 min")
    return text


def _steps(value: object) -> object:
    number, _, unit = str(value).strip().partition(" ") if isinstance(value, str) else ("", "", "")
    return int(number) if number.isdigit() and unit.strip() in ("step", "steps", "") else value


def _failures(value: object) -> object:
    """Return a failure set's name, or a list, as a section."""
    if isinstance(value, str):
        return {"of": value}
    return {"also": value} if isinstance(value, list | tuple) else value


class MemoryCopies(Spec):
    """Snapshots that peers keep in their memory."""

    storage_every: Literal["auto"] | Annotated[int, Field(strict=True, ge=2, le=100_000)] = "auto"
    """Write every N-th snapshot to storage as well; auto: the N that loses least time."""
    stall: Seconds | None = None
    """Measured time that training stops for a copy; default: from its bytes and the PCIe rate."""
    write: Seconds | None = None
    """Measured duration of a copy; default: from its bytes and the network rate."""


class CheckpointSpec(Spec):
    """Checkpoints of a run."""

    every: Annotated[str, BeforeValidator(_interval)] = "auto"
    """Checkpoint interval: auto (the one that loses least time), 83 steps, or 20 min."""
    mode: Literal["blocking", "snapshot"] = "blocking"
    """Training stops until everything is written (blocking), or only for the copy to host memory over PCIe
    (snapshot)."""
    to: BytesPerSecond | None = None
    """Storage write rate of the whole job."""
    read: BytesPerSecond | None = None
    """Storage read rate of the whole job."""
    bytes_per_parameter: Positive | None = None
    """Bytes written per parameter; default: the recipe's weights and optimizer state."""
    stall: Seconds | None = None
    """Measured time that training stops for a checkpoint."""
    write: Seconds | None = None
    """Measured duration of the write."""
    slowed: Share | None = None
    """Slowdown of steps during a write; default: simulated."""
    memory: MemoryCopies | None = None
    """Snapshots that peer nodes keep in their host memory."""
    verify: Seconds = 0.0
    """Time to verify the weights before each checkpoint."""
    keep: Annotated[int, Field(strict=True, ge=1, le=1000)] = 3
    """Checkpoints that are kept on storage."""
    price: Positive | None = None
    """Storage price in dollars per TB and month (a twelfth of a year)."""


class ValidationSpec(Spec):
    """A validation: forward passes alone."""

    every: Annotated[int, Field(strict=True, ge=1, le=10**9), BeforeValidator(_steps), NUMBER_OR_TEXT]
    """Steps between validations."""
    batches: Annotated[int, Field(strict=True, ge=1, le=10**7)] = 1
    """Global batches per validation."""
    seconds: NamedSeconds | None = None
    """Measured duration of a validation."""


class RestartPart(Spec):
    """One phase of a restart."""

    part: str
    """Name of the phase, as in schedule, start, load."""
    takes: Annotated[Literal["auto"] | Time, BeforeValidator(lambda value: value)] = "auto"
    """Duration of the phase; auto, for load: checkpoint bytes over the rate of storage, or of the network from
    peers."""
    exposed: StrictBool = True
    """Whether the job can fail again during this phase."""


class SparesSpec(Spec):
    """Spare nodes; without ``hot``, ``warm``, ``cold`` and ``unlimited`` the number of ``longrun.defaults``."""

    hot: Whole | None = None
    """Spare nodes that are ready at once."""
    warm: Whole | None = None
    """Spare nodes that must be started; default: 1 per 12 nodes of the job if neither hot nor cold is set."""
    cold: Whole | None = None
    """Spare nodes that must be fetched."""
    hot_ready: Seconds | None = None
    """Time until a hot spare is ready; default: 0 s."""
    warm_ready: Seconds | None = None
    """Time until a warm spare is ready; default: 2 min."""
    cold_ready: Seconds | None = None
    """Time until a cold spare is ready; default: 20 min."""
    crews: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    """Nodes that can be repaired at once; default: all."""
    unlimited: StrictBool = False
    """Assume that a spare node is always available."""
    price: Annotated[float, Field(strict=False, ge=0)] | None = None
    """Price of spares in dollars per GPU-hour; default: the job's price if their number is set."""

    @property
    def stated(self) -> bool:
        """Whether the document sets the number of spares."""
        return self.unlimited or any(count is not None for count in (self.hot, self.warm, self.cold))


class MaintenanceSpec(Spec):
    """A planned interruption, after a checkpoint."""

    every: Seconds
    """Time between interruptions."""
    lasts: Seconds
    """Duration of an interruption, without the restart."""

    @model_validator(mode="after")
    def _rare(self) -> MaintenanceSpec:
        if self.every < 600:
            raise RuleError([(("every",), f"{self.every:g} s must be at least 10 min; write as in 24 h")])
        if self.lasts >= self.every:
            over = f"{self.lasts:g} s is at least the time between interruptions ({self.every:g} s)"
            raise RuleError([(("lasts",), f"{over}, so nothing could be trained; write less, or a longer every")])
        return self


class PowerSpec(Spec):
    """Power of the cluster; defaults are the catalogue's."""

    idle: Positive | None = None
    """Power of an idle GPU, in W."""
    full: Positive | None = None
    """Power of a GPU at its limit, in W."""
    node: Positive | None = None
    """Power of a node without its GPUs, in W."""
    communication: Share | None = None
    """Power during communication, as a share of the range from idle to full."""
    waiting: Share | None = None
    """Power while waiting, as a share of the range from idle to full."""
    pue: Annotated[float, Field(strict=False, ge=1, le=3)] = 1.0
    """Power usage effectiveness: power of the building over power of its nodes."""
    price: Positive | None = None
    """Electricity price in dollars per kWh; no default."""


class RunSpec(Spec):
    """A run of weeks, which ends by exactly one of ``days``, ``steps``, ``tokens`` and ``loss``."""

    days: Days | None = None
    """End of the run in wall-clock time, as in 54 or 54 d; set exactly one of days, steps, tokens and loss."""
    steps: Annotated[int, Field(strict=True, ge=1, le=10**10)] | None = None
    """End of the run in steps."""
    tokens: Tokens | None = None
    """End of the run in tokens."""
    loss: Positive | None = None
    """End of the run at this loss, as a scaling law predicts it."""
    law: str | dict[str, str | float] | None = None
    """Scaling law of the loss, by name (simcluster list laws; default if loss is set: besiroglu), or by its parameters,
    as in {form: NDC, E: .., A: .., alpha: .., B: .., beta: ..}; the run then reports its loss."""
    stages: tuple[StageSpec, ...] = ()
    """Stages of the training recipe, in tokens: a batch ramp, longer sequences."""
    failures: Annotated[
        FailuresSpec, BeforeValidator(_failures), Accepts(lambda: (known_failures(), ..., tuple[FailureSpec, ...]))
    ] = FailuresSpec()
    """Failures: a built-in set by name (simcluster list failures), or your own list."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Checkpoints of the run."""
    validation: ValidationSpec | None = None
    """Validations of the run."""
    detection: Time | None = None
    """Time until a failure is detected; default: 2 min, half of the 5 min between health checks."""
    restart: tuple[RestartPart, ...] | None = None
    """Phases of a restart, in order; default: those of llama3_405b_54_days. [] is a restart that takes no time."""
    spares: SparesSpec = SparesSpec()
    """Spare nodes; default: 1 per 12 nodes of the job, where a failure takes a node away."""
    short: Literal["wait", "shrink"] = "wait"
    """Without a spare, the job waits for a node (wait), or continues with fewer replicas (shrink)."""
    shrink_to: Annotated[int, Field(strict=True, ge=1, le=1000)] = 4
    """With short: shrink, the most replicas that may be missing."""
    straggler: Literal["leave", "replace", "checkpoint"] = "leave"
    """A slow device is left in the job (leave), replaced at once (replace), or after the next checkpoint
    (checkpoint)."""
    noticed: Time = FixedTime(seconds="30 min")
    """Time until a slow device is detected."""
    wrong_diagnosis: Annotated[Share, Field(lt=1)] = 0.0
    """Probability that a diagnosis blames the wrong node."""
    timeout: Seconds = 600.0
    """Longest pause of the job that does not count as a failure."""
    maintenance: MaintenanceSpec | None = None
    """Planned interruptions."""
    price: Positive | None = None
    """Price in dollars per GPU-hour; no default."""
    achievable_mfu: Annotated[Share, Field(gt=0)] | None = None
    """Reference MFU: the run's cost is compared with that of the same tokens at this MFU."""
    power: PowerSpec = PowerSpec()
    """Power of the cluster."""
    played: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 1000
    """Number of simulated runs."""

    @model_validator(mode="before")
    @classmethod
    def _ends(cls, document: Any) -> Any:
        if isinstance(document, Mapping):
            ends = [name for name in ("days", "steps", "tokens", "loss") if document.get(name) is not None]
            if len(ends) != 1:
                unknown = [str(each) for each in document if each not in cls.model_fields]
                guess = "".join(f"; {each!r} is not a key{did_you_mean(each, cls.model_fields)}" for each in unknown)
                given = " and ".join(ends) or "none"
                raise InputError(f"its end is required: set one of days, steps, tokens, loss; got {given}{guess}")
        return document

    @model_validator(mode="after")
    def _follow(self) -> RunSpec:
        if self.stages:
            tokens_of_stages(self.stages, self.tokens)
        return self
