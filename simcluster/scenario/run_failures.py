"""The ``failures`` of a run, as a document: what fails, how often, with which effect, and bad batches.

Rates are given one of four ways; laws of durations are written "5 min" or as a mapping with a ``kind`` (``times``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import DAY, YEAR, Seconds
from simcluster.documents.diagnostics import RuleError
from simcluster.documents.spec import NUMBER_OR_TEXT, Spec
from simcluster.scenario.run_times import Fraction, Shape, Time

Of = Literal["gpu", "memory", "host", "rack", "nic", "cable", "switch", "neighbour", "job"]
"""What of the cluster's graph fails; ``memory`` is a GPU's, a ``rack`` machines next to each other that share a power
feed or cooling, as many as ``machines`` says; a ``neighbour`` is another job, which slows what both use between
switches; ``job`` is none of them: software, the data, a person."""

Positive = Annotated[float, Field(strict=False, gt=0)]


def _percent(value: object) -> object:
    """ "2 %" is 0.02; yes and no are no numbers."""
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
            count = "is a time above 0, in which failures count for rule: fading; write it, as in 7 d"
            raise RuleError([(("within",), count)])
        if not self.retire and (self.within is not None or self.replaced is not None):
            key = "within" if self.within is not None else "replaced"
            needs = "is for machines that are retired, and retire says after how many failures; write retire: 3"
            raise RuleError([((key,), needs)])
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


class FailuresSpec(Spec):
    """Failures: those of the catalogue by name (``of``), all ``times`` as often, and one's own in ``also``."""

    of: str | None = None
    times: Positive = 1.0
    also: tuple[FailureSpec, ...] = ()
    only: tuple[str, ...] = ()
