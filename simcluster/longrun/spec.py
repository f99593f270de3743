"""The ``run:`` section of a scenario: how long it trains, what fails, and what is done about that, as a document.

Laws of durations are written "5 min" or as a mapping with a ``kind`` (``times``); rates one of four ways.  What a run
makes of the cluster's states is asked of the step simulator (``studies/long_run``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import BytesPerSecond, Seconds, parse_seconds
from simcluster.documents.spec import Spec
from simcluster.longrun.recipe import StageSpec, Tokens, tokens_of_stages
from simcluster.longrun.times import FixedTime, Fraction, Shape, Time

DAY, YEAR = 86400.0, 365.25 * 86400.0

Of = Literal["gpu", "memory", "host", "rack", "nic", "cable", "switch", "job"]
"""What of the cluster's graph fails; ``memory`` is a GPU's, a ``rack`` machines next to each other that share a power
feed or cooling, as many as ``machines`` says; ``job`` is none of them: software, the data, a person."""

Positive = Annotated[float, Field(strict=False, gt=0)]
Share = Annotated[Fraction, BeforeValidator(lambda value: _percent(value))]
Whole = Annotated[int, Field(strict=True, ge=0, le=10**7)]

_STEPS = re.compile(r"\d{1,12}\s+steps?")


def _percent(value: object) -> object:
    """ "2 %" is 0.02; yes and no are no numbers."""
    if isinstance(value, bool):
        raise InputError(f"must be a share from 0 to 1, or as in 2 %, got {value}")
    if isinstance(value, str) and value.strip().endswith("%"):
        return float(value.strip().removesuffix("%")) / 100
    return value


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


class ExponentialLaw(Spec):
    """Failures without memory."""

    kind: Literal["exponential"] = "exponential"


class WeibullLaw(Spec):
    """Lives of parts by their age: a ``shape`` below 1 dies early, above 1 wears out.

    Parts are from ``youngest`` to ``oldest`` old when the run begins, evenly; one that fails is replaced by a new one.
    """

    kind: Literal["weibull"]
    shape: Shape
    youngest: Seconds = 0.0
    oldest: Seconds = 0.0


class BadBatch(Spec):
    """A share of the machines fails ``times`` as often; a repair has ``cured`` one with that probability.

    ``retire``: after so many failures ``within`` a time (left out: ever) a machine is replaced for good (0: never),
    which takes ``replaced`` (left out: as long as a repair).  ``rule``: failures in that ``window`` count 1 each, or
    are ``fading``: half as much for one that long ago.
    """

    share: Share
    times: Annotated[float, Field(strict=False, ge=1e-3, le=1e6)]
    cured: Share = 1.0
    retire: Annotated[float, Field(strict=False, ge=0, le=1000)] = 0.0
    within: Seconds | None = None
    rule: Literal["window", "fading"] = "window"
    replaced: Time | None = None

    @model_validator(mode="after")
    def _whole(self) -> BadBatch:
        if self.within == 0 or (self.rule == "fading" and self.within is None):
            raise InputError("failures.bad: within: over how long do failures count? give a time, as in within: 7 d")
        if not self.retire and (self.within is not None or self.replaced is not None):
            raise InputError("failures.bad: within and replaced are for machines that are retired: say retire: 3")
        return self


class FailureSpec(Spec):
    """One way in which things fail.

    How often: ``mtbf`` of one device, or ``per_1000_node_days`` (of a machine), ``per_year`` (a share of the devices
    fails in a year), or ``times_in`` (so many in the whole job in ``in``): one of them.  ``effect``: ``stop`` the job;
    a device is ``slow`` (``by`` one of these factors, as likely as ``shares``) or a link has only ``left`` of its
    bandwidth, for ``lasts``; a ``pause`` of the job; a ``silent`` error, found by a verification or after ``lasts``; a
    false ``alarm``, for which a machine is replaced after the next checkpoint.  ``machines`` leave for ``repair`` (of a
    rack: all that it has); left out, the job restarts on the same ones.  ``survives``: copies in peers' memory, or only
    those on storage.
    """

    name: str
    of: Of = "gpu"
    effect: Literal["stop", "slow", "pause", "silent", "alarm"] = "stop"
    mtbf: Seconds | None = None
    per_1000_node_days: Positive | None = None
    per_year: Share | None = None
    count: Positive | None = None
    within: Seconds | None = None
    gpus: Whole | None = None
    law: Annotated[ExponentialLaw | WeibullLaw, Field(discriminator="kind")] = ExponentialLaw()
    bad: BadBatch | None = None
    detect: Time | None = None
    repair: Time | None = None
    machines: Annotated[int, Field(strict=True, ge=1, le=128)] = 1
    survives: Literal["memory", "storage"] = "memory"
    by: tuple[Annotated[float, Field(strict=False, ge=1, le=100)], ...] = ()
    left: tuple[Annotated[Share, Field(ge=0.01)], ...] = ()
    shares: tuple[Positive, ...] = ()
    lasts: Time | None = None
    source: str = ""

    @model_validator(mode="after")
    def _whole(self) -> FailureSpec:
        rates = {
            "mtbf": self.mtbf,
            "per_1000_node_days": self.per_1000_node_days,
            "per_year": self.per_year,
            "count": self.count,
        }
        given = [name for name, value in rates.items() if value is not None]
        if len(given) != 1:
            raise InputError(f"failures.{self.name}: how often? give one of {', '.join(rates)}; got {given or 'none'}")
        if (self.count is None) != (self.within is None):
            raise InputError(f"failures.{self.name}: count and within go together, as in count: 419, within: 54 d")
        if self.mtbf == 0 or self.within == 0:
            raise InputError(f"failures.{self.name}: mtbf and within must be longer than zero")
        self._check_effect()
        return self

    def _check_effect(self) -> None:
        levels = self.by or self.left
        if self.effect == "slow" and not levels:
            raise InputError(f"failures.{self.name}: how slow? by: [1.05, 1.2] of a GPU, left: [0.5] of a link")
        of_device, of_link = self.of in ("gpu", "memory", "host", "rack"), self.of in ("nic", "cable", "switch")
        if (self.by and not of_device) or (self.left and not of_link):
            raise InputError(
                f"failures.{self.name}: by is for of: gpu, memory, host, rack; left for nic, cable, switch"
            )
        if self.shares and len(self.shares) != len(levels):
            raise InputError(f"failures.{self.name}: {len(self.shares)} shares for {len(levels)} levels; one each")
        if self.effect in ("slow", "pause", "silent") and self.lasts is None:
            raise InputError(f"failures.{self.name}: how long does a {self.effect} one last? lasts: 10 min")

    def rate(self, devices: float, machines: float, gpus: float) -> float:
        """Of all devices together, 1/s."""
        if self.mtbf is not None:
            return devices / self.mtbf
        if self.per_1000_node_days is not None:
            return machines * self.per_1000_node_days / 1000 / DAY
        if self.per_year is not None:
            return devices * self.per_year / YEAR
        assert self.count is not None
        assert self.within is not None
        return self.count / self.within * (gpus / self.gpus if self.gpus else 1.0)


class FailuresSpec(Spec):
    """Failures: those of the catalogue by name (``of``), all ``times`` as often, and one's own in ``also``."""

    of: str | None = None
    times: Positive = 1.0
    also: tuple[FailureSpec, ...] = ()
    only: tuple[str, ...] = ()


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

    every: Annotated[str, BeforeValidator(lambda value: _interval(value))] = "auto"
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

    every: Annotated[int, Field(strict=True, ge=1, le=10**9), BeforeValidator(lambda value: _steps(value))]
    batches: Annotated[int, Field(strict=True, ge=1, le=10**7)] = 1
    seconds: Seconds | None = None


def _steps(value: object) -> object:
    """ "1000 steps" is 1000."""
    number, _, unit = str(value).strip().partition(" ") if isinstance(value, str) else ("", "", "")
    return int(number) if number.isdigit() and unit.strip() in ("step", "steps", "") else value


class RestartPart(Spec):
    """A part of a restart: how long it ``takes``; in an ``exposed`` one the job can fail again.

    ``load`` may take ``auto``: the bytes of a checkpoint, as fast as storage (or the network, from peers) gives them.
    """

    part: str
    takes: Annotated[Literal["auto"] | Time, BeforeValidator(lambda value: value)] = "auto"
    exposed: StrictBool = True


class SparesSpec(Spec):
    """Machines that stand by, how long until one is ready by kind, and how many ``crews`` repair (left out: enough).

    ``price`` is theirs, in dollars a GPU and hour (left out: that of the job's).
    """

    hot: Whole = 0
    warm: Whole = 0
    cold: Whole = 0
    hot_ready: Seconds = 0.0
    warm_ready: Seconds = 120.0
    cold_ready: Seconds = 1200.0
    crews: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    unlimited: StrictBool = False
    price: Annotated[float, Field(strict=False, ge=0)] | None = None


class MaintenanceSpec(Spec):
    """A planned interruption ``every`` so often, after a checkpoint; it ``lasts`` so long, the restart comes on top."""

    every: Seconds
    lasts: Seconds

    @model_validator(mode="after")
    def _rare(self) -> MaintenanceSpec:
        if self.every < 600:
            raise InputError(f"maintenance.every: {self.every:g} s: planned at least 10 min apart, as in 24 h")
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
    """A run of weeks: one of ``days`` (wall time: "54 d"), ``steps``, ``tokens`` or ``loss`` says when it ends.

    A ``loss`` becomes tokens by a ``law`` of loss: a name, or ``{form: NDC, E: .., A: .., alpha: .., B: .., beta: ..}``
    (left out: besiroglu); where a law is given, the loss that the tokens buy is told.  ``stages`` are a recipe over
    time, in tokens: a ramp of the batch, longer sequences.

    ``short``: without spares the job ``wait``s for a machine, or goes on with ``shrink``: at most ``shrink_to``
    replicas fewer.
    ``straggler``: a slow device is left, replaced at once or after the next checkpoint, ``noticed`` after it began.
    ``price`` in dollars a GPU and hour is asked for, never assumed; ``achievable_mfu`` is what the run is held to: what
    the same tokens would cost at it.  ``played`` runs are played.
    """

    days: Seconds | None = None
    steps: Annotated[int, Field(strict=True, ge=1, le=10**10)] | None = None
    tokens: Tokens | None = None
    loss: Positive | None = None
    law: str | dict[str, str | float] | None = None
    stages: tuple[StageSpec, ...] = ()
    failures: Annotated[FailuresSpec, BeforeValidator(_failures)] = FailuresSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    validation: ValidationSpec | None = None
    detection: Time = FixedTime(seconds="2 min")
    restart: tuple[RestartPart, ...] = ()
    spares: SparesSpec = SparesSpec(unlimited=True)
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
                raise InputError(f"run: when does it end? give one of days, steps, tokens, loss; got {ends or 'none'}")
        return document

    @model_validator(mode="after")
    def _follow(self) -> RunSpec:
        if self.stages:
            tokens_of_stages(self.stages, self.tokens)
        return self
