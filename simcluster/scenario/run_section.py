"""The section ``run`` of a scenario: length and stages of a training run, failures and recovery.

The step simulator times the states of the cluster during a run (``longrun/studies``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from simcluster.base.counts import LETTERS
from simcluster.base.errors import InputError
from simcluster.base.units import BytesPerSecond, Days, NamedSeconds, Seconds, parse_seconds
from simcluster.documents.base_spec import NUMBER_OR_TEXT, Spec
from simcluster.documents.diagnostics import RuleError, did_you_mean, quote_value
from simcluster.documents.field_annotations import SchemaAlternatives
from simcluster.scenario.run_failures import FailureSpec, FailuresSpec, Positive, Share, Whole, list_failure_sets
from simcluster.scenario.run_times import FixedTime, Time

_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kMBT]?)\s*(tokens)?\s*")


def _parse_tokens(value: object) -> object:
    if not isinstance(value, str):
        return value
    if found := _COUNT.fullmatch(value):
        return float(found[1]) * LETTERS[found[2]]
    raise InputError(f"{quote_value(value)} is not a number of tokens; write it as 252M tokens, 15.6T or 3e12")


_OWN = ("run", "run.stages", "run.tokens", "run.steps", "run.days", "run.played")
"""Keys that a stage cannot set, since they belong to the run."""

Tokens = Annotated[float, Field(strict=False, gt=0), BeforeValidator(_parse_tokens), NUMBER_OR_TEXT]


class TrainingStageSpec(Spec):
    """One stage of a training run, and scenario values that apply only during the stage."""

    until: Tokens | None = None
    """Number of tokens at which the stage ends; default for the last stage: the end of the run."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Scenario values at dotted paths for this stage alone, as in {training.global_batch: 1024}."""
    change: Seconds = 0.0
    """Time to stop the job before this stage and restart it with another layout."""


def count_stage_tokens(stages: Sequence[TrainingStageSpec], goal: float | None) -> list[float]:
    """Return the number of tokens of each training stage; the whole run has ``goal`` tokens.

    RuleError, by the keys of a run, where stages are not in order, or the run does not end in tokens.
    """
    if goal is None:
        raise RuleError(
            [(("stages",), "end at numbers of tokens, so the run must also end by tokens: set run.tokens, as in 15.6T")]
        )
    begin, counts, last = 0.0, [], len(stages) - 1
    for number, stage in enumerate(stages):
        end = goal if stage.until is None and number == last else stage.until
        if end is None:
            needed = "is required (optional only for the last stage); set the end of the stage, as in 252M tokens"
            raise RuleError([(("stages", number, "until"), needed)])
        if wrong := _stage_end_error(number, end, begin, goal, number == last):
            raise RuleError([(("stages", number, "until"), f"stage {number + 1} {wrong}")])
        if bad := [path for path in stage.set if path in _OWN]:
            told = "is a key of the run, not of a stage; write the key under 'run'"
            raise RuleError([(("stages", number, "set", bad[0]), f"stage {number + 1}: {bad[0]} {told}")])
        counts.append(end - begin)
        begin = end
    return counts


def _stage_end_error(number: int, end: float, begin: float, goal: float, last: bool) -> str:
    if end <= begin:
        before = f"where stage {number} ends; stages are in order: write more than {begin:g}"
        return f"ends at {end:g} tokens and begins at {begin:g}, {before}"
    if last and end != goal:
        return f"is the last and ends at {end:g} tokens, but the run ends at {goal:g}; remove 'until'"
    if not last and end >= goal:
        return f"ends at {end:g} tokens, but the run ends at {goal:g} and has later stages; lower 'until'"
    return ""


_STEPS = re.compile(r"\d{1,12}\s+steps?")


def _parse_interval(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if text == "auto" or (_STEPS.fullmatch(text) and int(text.split()[0])):
        return text
    with suppress(InputError):
        if parse_seconds(text) > 0:
            return text
    raise InputError(f"{str(value)[:40]!r} is not an interval; write auto, steps (83 steps) or a time (20 min)")


def _parse_steps(value: object) -> object:
    number, _, unit = str(value).strip().partition(" ") if isinstance(value, str) else ("", "", "")
    return int(number) if number.isdigit() and unit.strip() in ("step", "steps", "") else value


def _parse_failures(value: object) -> object:
    if isinstance(value, str):
        return {"of": value}
    return {"also": value} if isinstance(value, list | tuple) else value


class PeerMemoryCopies(Spec):
    """Checkpoint copies that each node keeps in the host memory of a peer node."""

    storage_every: Literal["auto"] | Annotated[int, Field(strict=True, ge=2, le=100_000)] = "auto"
    """Write every N-th snapshot to storage as well; auto: the N that loses the least time."""
    stall: Seconds | None = None
    """Measured time that training stops to copy a snapshot; default: computed from its bytes and the PCIe rate."""
    write: Seconds | None = None
    """Measured duration of the copy to a peer; default: computed from its bytes and the network rate."""


class CheckpointSpec(Spec):
    """Checkpoints of a training run: interval, destination, and duration."""

    every: Annotated[str, BeforeValidator(_parse_interval)] = "auto"
    """Checkpoint interval: auto (the one that loses the least time), steps (83 steps) or time (20 min)."""
    mode: Literal["blocking", "snapshot"] = "blocking"
    """Training stops until the checkpoint is written (blocking), or only for the copy to host memory over PCIe
    (snapshot)."""
    to: BytesPerSecond | None = None
    """Rate at which storage writes a checkpoint, for the whole job."""
    read: BytesPerSecond | None = None
    """Rate at which storage reads a checkpoint, for the whole job; default: the write rate (to)."""
    bytes_per_parameter: Positive | None = None
    """Bytes per parameter in a checkpoint; default: weights and optimizer state of the memory recipe."""
    stall: Seconds | None = None
    """Measured time that training stops for a checkpoint; default: from its bytes and the PCIe or storage rate."""
    write: Seconds | None = None
    """Measured duration of the write after training continues; default: from the bytes and the storage rate."""
    slowed: Share | None = None
    """Slowdown of training steps while a checkpoint is written, as a share (0.05: 5 % longer); default: simulated."""
    memory: PeerMemoryCopies | None = None
    """Checkpoint copies that each node keeps in the host memory of a peer node."""
    verify: Seconds = 0.0
    """Time to check the weights for silent errors before each checkpoint."""
    keep: Annotated[int, Field(strict=True, ge=1, le=1000)] = 3
    """Number of checkpoints that are kept on storage."""
    price: Positive | None = None
    """Storage price in dollars per TB and month (a twelfth of a year)."""


class ValidationSpec(Spec):
    """Periodic validation of the model, which runs only forward passes."""

    every: Annotated[int, Field(strict=True, ge=1, le=10**9), BeforeValidator(_parse_steps), NUMBER_OR_TEXT]
    """Number of training steps between validations."""
    batches: Annotated[int, Field(strict=True, ge=1, le=10**7)] = 1
    """Number of global batches that each validation evaluates."""
    seconds: NamedSeconds | None = None
    """Measured duration of a validation; default: simulated."""


class RestartPhaseSpec(Spec):
    """One phase of a restart after a failure."""

    part: str
    """Name of the phase, such as schedule, start or load."""
    takes: Annotated[Literal["auto"] | Time, BeforeValidator(lambda value: value)] = "auto"
    """Duration of the phase; auto (load only): checkpoint bytes over the read rate of storage, or the network rate of
    peers."""
    exposed: StrictBool = True
    """Whether the job can fail again during this phase."""


class SparesSpec(Spec):
    """Spare nodes of a training run; by default, their number depends on the size of the job."""

    hot: Whole | None = None
    """Number of hot spare nodes, which can join the job at once."""
    warm: Whole | None = None
    """Number of warm spare nodes, which must be started first; default: 1 per 12 nodes of the job, if no spares are set
    and failures can remove a node."""
    cold: Whole | None = None
    """Number of cold spare nodes, which must be fetched from elsewhere first."""
    hot_ready: Seconds | None = None
    """Time until a hot spare is ready; default: 0 s."""
    warm_ready: Seconds | None = None
    """Time until a warm spare is ready; default: 2 min."""
    cold_ready: Seconds | None = None
    """Time until a cold spare is ready; default: 20 min."""
    crews: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    """Number of nodes that can be under repair at the same time; default: all."""
    unlimited: StrictBool = False
    """Assume that a spare node is always available at once."""
    price: Annotated[float, Field(strict=False, ge=0)] | None = None
    """Price of spare nodes in dollars per GPU-hour; default: the job's price, if the number of spares is set."""

    @property
    def has_count(self) -> bool:
        """Whether the document sets the number of spare nodes."""
        return self.unlimited or any(count is not None for count in (self.hot, self.warm, self.cold))


class MaintenanceSpec(Spec):
    """Planned interruptions of a training run; a checkpoint precedes each interruption."""

    every: Seconds
    """Time between planned interruptions."""
    lasts: Seconds
    """Duration of a planned interruption, without the restart after it."""

    @model_validator(mode="after")
    def _check_times(self) -> MaintenanceSpec:
        if self.every < 600:
            raise RuleError([(("every",), f"must be at least 10 min, as in 24 h; got {self.every:g} s")])
        if self.lasts >= self.every:
            rule = f"must be shorter than 'every' ({self.every:g} s), the time between interruptions"
            raise RuleError([(("lasts",), f"{rule}; got {self.lasts:g} s: use a shorter 'lasts' or a longer 'every'")])
        return self


class PowerSpec(Spec):
    """Power draw of the cluster; values of the catalogue are the defaults."""

    idle: Positive | None = None
    """Power of an idle GPU, in W."""
    full: Positive | None = None
    """Power of a GPU at its limit, in W."""
    node: Positive | None = None
    """Power of a node without its GPUs, in W."""
    communication: Share | None = None
    """Power of a GPU during communication, as a share of the range from idle (0) to full (1)."""
    waiting: Share | None = None
    """Power of a GPU that waits for other ranks, as a share of the range from idle (0) to full (1)."""
    pue: Annotated[float, Field(strict=False, ge=1, le=3)] = 1.0
    """Power usage effectiveness: power of the whole data center over that of the job's nodes."""
    price: Positive | None = None
    """Electricity price in dollars per kWh; default: none, no cost is reported."""


class RunSpec(Spec):
    """A training run of days or weeks; exactly one of ``days``, ``steps``, ``tokens`` and ``loss`` sets its end."""

    days: Days | None = None
    """Wall-clock time after which the run ends, as in 54 or 54 d; set exactly one of days, steps, tokens and loss."""
    steps: Annotated[int, Field(strict=True, ge=1, le=10**10)] | None = None
    """Number of training steps after which the run ends."""
    tokens: Tokens | None = None
    """Number of trained tokens after which the run ends."""
    loss: Positive | None = None
    """Loss at which the run ends, as the scaling law (law) predicts it."""
    law: str | dict[str, str | float] | None = None
    """Scaling law of the loss: a name (simcluster list laws; default if loss is set: besiroglu), or its parameters, as
    in {form: NDC, E: .., A: .., alpha: .., B: .., beta: ..}; the run then reports its loss."""
    stages: tuple[TrainingStageSpec, ...] = ()
    """Stages of the training recipe, each up to a number of tokens, such as a batch ramp or longer sequences."""
    failures: Annotated[
        FailuresSpec,
        BeforeValidator(_parse_failures),
        SchemaAlternatives(lambda: (list_failure_sets(), ..., tuple[FailureSpec, ...])),
    ] = FailuresSpec()
    """Failures during the run: a built-in set by name (simcluster list failures), or your own list."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Interval, mode and rates of the run's checkpoints."""
    validation: ValidationSpec | None = None
    """Periodic validations during the run; default: none."""
    detection: Time | None = None
    """Time until a failure is detected; default: 2 min, for health checks every 5 min."""
    restart: tuple[RestartPhaseSpec, ...] | None = None
    """Phases of a restart, in order; default: those of the scenario llama3_405b_54_days; []: a restart takes no
    time."""
    spares: SparesSpec = SparesSpec()
    """Spare nodes; default: 1 per 12 nodes of the job if failures can remove a node, else none."""
    short: Literal["wait", "shrink"] = "wait"
    """What the job does if no spare node is left: wait for one (wait), or continue with fewer replicas (shrink)."""
    shrink_to: Annotated[int, Field(strict=True, ge=1, le=1000)] = 4
    """Largest number of replicas that the job may continue without, with short: shrink or recovery: rejoin."""
    recovery: Literal["restart", "rejoin"] = "restart"
    """What follows a failure: the job restarts from a checkpoint (restart), or the failed replica leaves, the others
    continue, and it rejoins with a copy of a peer's state (rejoin; torchft)."""
    straggler: Literal["leave", "replace", "checkpoint"] = "leave"
    """What happens to a slow device: it stays (leave), is replaced at once (replace) or after a checkpoint
    (checkpoint)."""
    noticed: Time = FixedTime(seconds="30 min")
    """Time until a slow device is detected."""
    wrong_diagnosis: Annotated[Share, Field(lt=1)] = 0.0
    """Probability that a diagnosis blames a healthy node instead of the faulty one."""
    timeout: Seconds = 600.0
    """Longest pause that the job waits out; a longer one counts as a failure."""
    maintenance: MaintenanceSpec | None = None
    """Planned interruptions of the run."""
    price: Positive | None = None
    """Price of the job in dollars per GPU-hour; default: none, no cost is reported."""
    achievable_mfu: Annotated[Share, Field(gt=0)] | None = None
    """Reference MFU: the run's cost is compared with that of the same tokens at this MFU."""
    power: PowerSpec = PowerSpec()
    """Power draw of GPUs and nodes, and the electricity price."""
    played: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 1000
    """Number of simulated runs, each with different random failures."""

    @model_validator(mode="before")
    @classmethod
    def _check_end(cls, document: Any) -> Any:
        if isinstance(document, Mapping):
            ends = [name for name in ("days", "steps", "tokens", "loss") if document.get(name) is not None]
            if len(ends) != 1:
                unknown = [str(each) for each in document if each not in cls.model_fields]
                guess = "".join(f"; {each!r} is not a key{did_you_mean(each, cls.model_fields)}" for each in unknown)
                given = " and ".join(ends) or "none"
                raise InputError(f"a run needs an end: set one of days, steps, tokens or loss; got {given}{guess}")
        return document

    @model_validator(mode="after")
    def _check_stages(self) -> RunSpec:
        if self.stages:
            count_stage_tokens(self.stages, self.tokens)
        if self.recovery == "rejoin" and self.short == "shrink":
            raise RuleError([(("short",), "applies only to recovery: restart; with rejoin the job always continues "
                              "without the replicas that left, at most shrink_to: remove 'short'")])  # fmt: skip
        return self
