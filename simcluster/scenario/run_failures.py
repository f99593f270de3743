"""The section ``run.failures`` of a scenario: failure rates, effects and repairs, and defective nodes.

Rates are given one of four ways; durations are written "5 min" or as a mapping with a ``kind`` (``times``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import DAY, YEAR, Seconds
from simcluster.documents.base_spec import NUMBER_OR_TEXT, Spec
from simcluster.documents.catalogue import load_presets
from simcluster.documents.diagnostics import RuleError
from simcluster.documents.field_annotations import SchemaAlternatives
from simcluster.scenario.run_times import Fraction, Shape, Time

Of = Literal["gpu", "memory", "host", "rack", "nic", "cable", "switch", "neighbour", "job"]
"""Failing part of the cluster; ``memory`` is GPU memory, ``rack`` is ``machines`` adjacent nodes with common power or
cooling, ``neighbour`` is another job that slows shared switch links, ``job`` is software, data or people."""

Positive = Annotated[float, Field(strict=False, gt=0)]


def _parse_share(value: object) -> object:
    wrong = InputError(f"must be a share from 0 to 1, as in 0.02 or 2 %; got {str(value)[:40]!r}")
    if isinstance(value, bool):
        raise wrong
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip().removesuffix("%")) / 100
        except ValueError:
            raise wrong from None
    return value


Share = Annotated[Fraction, BeforeValidator(_parse_share), NUMBER_OR_TEXT]
Whole = Annotated[int, Field(strict=True, ge=0, le=10**7)]


class ExponentialLifetimes(Spec):
    """Memoryless lifetimes: failures at a constant rate."""

    kind: Literal["exponential"] = "exponential"


class WeibullLifetimes(Spec):
    """Lifetimes that depend on a device's age; a failed device is replaced by a new one."""

    kind: Literal["weibull"]
    shape: Shape
    """Weibull shape: below 1 devices fail early, above 1 they wear out."""
    youngest: Seconds = 0.0
    """Age of the youngest device at the start of the run; ages are spread evenly up to oldest."""
    oldest: Seconds = 0.0
    """Age of the oldest device at the start of the run."""


class DefectiveNodesSpec(Spec):
    """Defective nodes: a share of the nodes that fails more often than the other nodes."""

    share: Share
    """Share of the nodes that are defective."""
    times: Annotated[float, Field(strict=False, ge=1e-3, le=1e6)]
    """Factor by which a defective node fails more often than the others."""
    cured: Share = 1.0
    """Probability that a repair cures a defective node."""
    retire: Annotated[float, Field(strict=False, ge=0, le=1000)] = 0.0
    """Number of failures after which a node is replaced for good; 0: never."""
    within: Seconds | None = None
    """Time window in which a node's failures count towards the limit `retire`; default: all failures count."""
    rule: Literal["window", "fading"] = "window"
    """Weight of a failure towards the limit `retire`: 1 within the window (window), or halved for every window that has
    passed (fading)."""
    replaced: Time | None = None
    """Duration of a permanent replacement of a node; default: as for a repair."""

    @model_validator(mode="after")
    def _check_retirement(self) -> DefectiveNodesSpec:
        if self.within == 0 or (self.rule == "fading" and self.within is None):
            count = "must be a time above 0, as in 7 d; 'rule: fading' requires this key"
            raise RuleError([(("within",), count)])
        if not self.retire and (self.within is not None or self.replaced is not None):
            key = "within" if self.within is not None else "replaced"
            needs = "applies only if nodes retire; set after how many failures, as in retire: 3"
            raise RuleError([((key,), needs)])
        return self


class FailureSpec(Spec):
    """One type of failure: failure rate, effect on the job, and repair.

    The rate is one of ``mtbf``, ``per_1000_node_days``, ``per_year``, and ``count`` with ``within``.
    """

    name: str
    of: Of = "gpu"
    """Part of the cluster that fails: gpu, memory (of a GPU), host, rack (adjacent nodes), nic, cable, switch,
    neighbour (another job that slows shared links) or job (software, data, people)."""
    effect: Literal["stop", "slow", "pause", "silent", "alarm"] = "stop"
    """Effect on the job: it stops (stop); a device or link slows down for a time (slow); the job pauses (pause);
    results are wrong until a verification detects this or `lasts` ends (silent); or a false alarm replaces a node after
    the next checkpoint (alarm)."""
    mtbf: Seconds | None = None
    """Mean time between failures of one device."""
    per_1000_node_days: Positive | None = None
    """Failures per thousand node-days."""
    per_year: Share | None = None
    """Share of the devices that fail per year."""
    count: Positive | None = None
    """Observed number of failures of a whole job: in the period `within`, on `gpus` GPUs."""
    within: Seconds | None = None
    """Observation period in which `count` failures occurred."""
    gpus: Whole | None = None
    """Number of GPUs on which `count` failures were observed; default: as many as the job has."""
    law: Annotated[ExponentialLifetimes | WeibullLifetimes, Field(discriminator="kind")] = ExponentialLifetimes()
    """Distribution of lifetimes: memoryless (exponential), or dependent on the device's age (weibull)."""
    bad: DefectiveNodesSpec | None = None
    """Defective nodes: a share of the nodes that fails more often than the others."""
    detect: Time | None = None
    """Time until the failure is detected; default: the run's detection."""
    repair: Time | None = None
    """Time for which the node is unavailable; default: none, the job restarts on the same nodes."""
    machines: Annotated[int, Field(strict=True, ge=1, le=128)] = 1
    """Number of nodes that one failure takes out for repair; for a rack, the nodes per rack."""
    survives: Literal["memory", "storage"] = "memory"
    """Checkpoints that survive the failure: those on storage and in peers' memory (memory), or only on storage
    (storage)."""
    by: tuple[Annotated[float, Field(strict=False, ge=1, le=100)], ...] = ()
    """Slowdown factors of a slow device (1.2: takes 20 % longer); each failure draws one at random."""
    left: tuple[Annotated[Share, Field(ge=0.01)], ...] = ()
    """Shares of a link's bandwidth that remain after a failure; each failure draws one at random."""
    shares: tuple[Positive, ...] = ()
    """Relative probabilities of the slowdowns (by) or remaining shares (left); default: equal."""
    lasts: Time | None = None
    """Duration of a slow period, a pause or a silent error."""
    source: str = ""

    @model_validator(mode="after")
    def _check_rate(self) -> FailureSpec:
        rates = ("mtbf", "per_1000_node_days", "per_year", "count")
        given = [name for name in rates if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise InputError(f"failures.{self.name}: one rate is required: set one of {', '.join(rates)}; got {got}")
        if (self.count is None) != (self.within is None):
            raise InputError(f"failures.{self.name}: set both 'count' and 'within', as in count: 419, within: 54 d")
        if self.mtbf == 0 or self.within == 0:
            raise InputError(f"failures.{self.name}: 'mtbf' and 'within' must be above 0, as in 50 d")
        self._check_effect()
        return self

    def _check_effect(self) -> None:
        levels, fields = self.by or self.left, type(self).model_fields
        if self.effect == "slow" and not levels:
            what = f"failures.{self.name}: 'effect: slow' needs a factor"
            raise InputError(f"{what}; set by: [1.05, 1.2] for a GPU, or left: [0.5] for a link")
        of_device = self.of in ("gpu", "memory", "host", "rack")
        of_link = self.of in ("nic", "cable", "switch", "neighbour")
        if (self.by and not of_device) or (self.left and not of_link):
            raise InputError(
                f"failures.{self.name}: '{'by' if self.by and not of_device else 'left'}' is invalid for of: {self.of};"
                f" remove it ('by' is for gpu, memory, host and rack, 'left' for nic, cable, switch and neighbour)"
            )
        if self.of == "neighbour" and self.effect != "slow":
            raise InputError(f"failures.{self.name}: 'of: neighbour' allows only one effect; write effect: slow")
        if self.shares and len(self.shares) != len(levels):
            got = f"{len(self.shares)} 'shares' for {len(levels)} values of 'by' or 'left'"
            raise InputError(f"failures.{self.name}: {got}; write one share per value")
        if self.effect in ("slow", "pause", "silent") and self.lasts is None:
            raise InputError(f"failures.{self.name}: 'effect: {self.effect}' needs a duration; set lasts: 10 min")
        for key, (unused, why) in _UNUSED.items():
            if key in self.model_fields_set and unused(self) and getattr(self, key) != fields[key].default:
                raise InputError(f"failures.{self.name}: {key!r} {why}; remove {key}")

    def job_failure_rate(self, devices: float, machines: float, gpus: float) -> float:
        """Return the total failure rate (1/s) of all devices of the job."""
        if self.mtbf is not None:
            return devices / self.mtbf
        if self.per_1000_node_days is not None:
            return machines * self.per_1000_node_days / 1000 / DAY
        if self.per_year is not None:
            return devices * self.per_year / YEAR
        assert self.count is not None
        assert self.within is not None
        return self.count / self.within * (gpus / self.gpus if self.gpus else 1.0)


_UNUSED: Mapping[str, tuple[Callable[[FailureSpec], bool], str]] = {
    "gpus": (lambda spec: spec.count is None, "applies only with 'count', which is not set"),
    "machines": (
        lambda spec: spec.repair is None and spec.of != "rack",
        "applies only with 'repair' or 'of: rack', and neither is set",
    ),
    "by": (lambda spec: spec.effect != "slow", "applies only to 'effect: slow'"),
    "left": (lambda spec: spec.effect != "slow", "applies only to 'effect: slow'"),
    "lasts": (lambda spec: spec.effect in ("stop", "alarm"), "applies only to effects slow, pause and silent"),
}
"""Fields that not all failures have: the condition under which they are unused, and the rule."""


def list_failure_sets() -> tuple[str, ...]:
    """Return the names of the built-in sets of failures in the catalogue."""
    return tuple(load_presets("failures.yaml"))


class FailuresSpec(Spec):
    """Failures during a training run: a built-in set, and additional failures."""

    of: Annotated[str | None, SchemaAlternatives(lambda: (list_failure_sets(), type(None)))] = None
    """Name of a built-in set of failures (simcluster list failures)."""
    times: Positive = 1.0
    """Factor on the rates of all failures."""
    also: tuple[FailureSpec, ...] = ()
    """Failures in addition to those of the built-in set."""
    only: tuple[str, ...] = ()
    """Names of the failures of the set to simulate; default: all."""
