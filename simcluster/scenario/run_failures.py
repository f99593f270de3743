"""The ``failures`` of a run, as a document: what fails, how often, with which effect, and bad batches.

Rates are given one of four ways; laws of durations are written "5 min" or as a mapping with a ``kind`` (``times``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import DAY, YEAR, Seconds
from simcluster.documents.catalogue import presets
from simcluster.documents.diagnostics import RuleError
from simcluster.documents.kinds import Accepts
from simcluster.documents.spec import NUMBER_OR_TEXT, Spec
from simcluster.scenario.run_times import Fraction, Shape, Time

Of = Literal["gpu", "memory", "host", "rack", "nic", "cable", "switch", "neighbour", "job"]
"""What of the cluster's graph fails; ``memory`` is a GPU's, a ``rack`` machines next to each other that share a power
feed or cooling, as many as ``machines`` says; a ``neighbour`` is another job, which slows what both use between
switches; ``job`` is none of them: software, the data, a person."""

Positive = Annotated[float, Field(strict=False, gt=0)]


def _percent(value: object) -> object:
    """Return 0.02 for "2 %"; refuse booleans."""
    wrong = InputError(f"must be a share, got {str(value)[:40]!r}; write a number from 0 to 1, or as in 2 %")
    if isinstance(value, bool):
        raise wrong
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip().removesuffix("%")) / 100
        except ValueError:
            raise wrong from None
    return value


Share = Annotated[Fraction, BeforeValidator(_percent), NUMBER_OR_TEXT]
Whole = Annotated[int, Field(strict=True, ge=0, le=10**7)]


class ExponentialLaw(Spec):
    """Failures without memory."""

    kind: Literal["exponential"] = "exponential"


class WeibullLaw(Spec):
    """Lifetimes of parts by their age; a part that fails is replaced by a new one."""

    kind: Literal["weibull"]
    shape: Shape
    """Below 1 parts fail early, above 1 they wear out."""
    youngest: Seconds = 0.0
    """Age of the youngest part at the start of the run; ages are spread evenly."""
    oldest: Seconds = 0.0
    """Age of the oldest part at the start of the run."""


class BadBatch(Spec):
    """A share of the nodes that fails more often."""

    share: Share
    """The share of the nodes."""
    times: Annotated[float, Field(strict=False, ge=1e-3, le=1e6)]
    """How many times as often they fail."""
    cured: Share = 1.0
    """Probability that a repair cures one."""
    retire: Annotated[float, Field(strict=False, ge=0, le=1000)] = 0.0
    """Failures after which a node is replaced for good; 0: never."""
    within: Seconds | None = None
    """Only failures in this window count; default: all."""
    rule: Literal["window", "fading"] = "window"
    """Does each failure in the window count 1, or half as much if it is that long ago (fading)?"""
    replaced: Time | None = None
    """Duration of a replacement for good; default: as a repair."""

    @model_validator(mode="after")
    def _whole(self) -> BadBatch:
        if self.within == 0 or (self.rule == "fading" and self.within is None):
            count = "is a time above 0, in which failures count for rule: fading; write it, as in 7 d"
            raise RuleError([(("within",), count)])
        if not self.retire and (self.within is not None or self.replaced is not None):
            key = "within" if self.within is not None else "replaced"
            needs = "is for machines that are retired, and retire says after how many failures; write retire: 3"
            raise RuleError([((key,), needs)])
        return self


class FailureSpec(Spec):
    """One kind of failure.

    How often: one of ``mtbf``, ``per_1000_node_days``, ``per_year``, and ``count`` with ``within``.
    """

    name: str
    of: Of = "gpu"
    """What fails."""
    effect: Literal["stop", "slow", "pause", "silent", "alarm"] = "stop"
    """Effect on the job: it stops; a device or link is slow for a time; it pauses; it computes wrongly until a
    verification or lasts finds it (silent); or a false alarm, for which a node is replaced after the next
    checkpoint."""
    mtbf: Seconds | None = None
    """Mean time between failures of one device."""
    per_1000_node_days: Positive | None = None
    """Failures in a thousand days of a node."""
    per_year: Share | None = None
    """Share of the devices that fails in a year."""
    count: Positive | None = None
    """Number of failures observed in the whole job; with within, and gpus."""
    within: Seconds | None = None
    """Time in which they were observed."""
    gpus: Whole | None = None
    """GPUs on which they were observed."""
    law: Annotated[ExponentialLaw | WeibullLaw, Field(discriminator="kind")] = ExponentialLaw()
    """Do failures have no memory, or depend on a part's age?"""
    bad: BadBatch | None = None
    """A share of the nodes that fails more often."""
    detect: Time | None = None
    """Time until it is noticed; default: the run's detection."""
    repair: Time | None = None
    """Time for which the node is gone; default: the job restarts on the same nodes."""
    machines: Annotated[int, Field(strict=True, ge=1, le=128)] = 1
    """Nodes that leave together for repair."""
    survives: Literal["memory", "storage"] = "memory"
    """Are copies in peers' memory left, or only those on storage?"""
    by: tuple[Annotated[float, Field(strict=False, ge=1, le=100)], ...] = ()
    """Slowdown factors of a device, one of them each time."""
    left: tuple[Annotated[Share, Field(ge=0.01)], ...] = ()
    """Parts of a link's bandwidth that are left, one of them each time."""
    shares: tuple[Positive, ...] = ()
    """Probability of each of those; default: equal."""
    lasts: Time | None = None
    """Duration of a slow period, a pause or a silent error."""
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
            got = " and ".join(given) or "none"
            raise InputError(f"failures.{self.name}: how often? give one of {', '.join(rates)}; got {got}")
        if (self.count is None) != (self.within is None):
            raise InputError(f"failures.{self.name}: count and within go together, as in count: 419, within: 54 d")
        if self.mtbf == 0 or self.within == 0:
            raise InputError(f"failures.{self.name}: mtbf and within must be longer than zero")
        self._check_effect()
        return self

    def _check_effect(self) -> None:
        levels, fields = self.by or self.left, type(self).model_fields
        if self.effect == "slow" and not levels:
            raise InputError(f"failures.{self.name}: how slow? by: [1.05, 1.2] of a GPU, left: [0.5] of a link")
        of_device = self.of in ("gpu", "memory", "host", "rack")
        of_link = self.of in ("nic", "cable", "switch", "neighbour")
        if (self.by and not of_device) or (self.left and not of_link):
            raise InputError(
                f"failures.{self.name}: by is for of: gpu, memory, host, rack; left for nic, cable, switch, neighbour"
            )
        if self.of == "neighbour" and self.effect != "slow":
            raise InputError(f"failures.{self.name}: a neighbour slows the job down; write effect: slow")
        if self.shares and len(self.shares) != len(levels):
            raise InputError(f"failures.{self.name}: {len(self.shares)} shares for {len(levels)} levels; one each")
        if self.effect in ("slow", "pause", "silent") and self.lasts is None:
            raise InputError(f"failures.{self.name}: how long does a {self.effect} one last? lasts: 10 min")
        for key, (unused, why) in _UNUSED.items():
            if key in self.model_fields_set and unused(self) and getattr(self, key) != fields[key].default:
                raise InputError(f"failures.{self.name}: {key} {why}; remove it")

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


_UNUSED: Mapping[str, tuple[Callable[[FailureSpec], bool], str]] = {
    "gpus": (lambda spec: spec.count is None, "is on how many GPUs count were seen, and there is no count"),
    "machines": (lambda spec: spec.repair is None and spec.of != "rack", "leave for repair, and there is no repair"),
    "by": (lambda spec: spec.effect != "slow", "is for effect: slow"),
    "left": (lambda spec: spec.effect != "slow", "is for effect: slow"),
    "lasts": (lambda spec: spec.effect in ("stop", "alarm"), "is for effect: slow, pause, silent"),
}
"""Fields that a failure of some kinds does not have: when, and the rule."""


def known_failures() -> tuple[str, ...]:
    """Return the names of the catalogue's failures."""
    return tuple(presets("failures.yaml"))


class FailuresSpec(Spec):
    """Failures of the catalogue and additional ones."""

    of: Annotated[str | None, Accepts(lambda: (known_failures(), type(None)))] = None
    """Failures of the catalogue, by name (simcluster list failures)."""
    times: Positive = 1.0
    """Factor on the rate of all of them."""
    also: tuple[FailureSpec, ...] = ()
    """Additional failures."""
    only: tuple[str, ...] = ()
    """Names of those that are kept; default: all."""
