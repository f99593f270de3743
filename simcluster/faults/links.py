"""Faults of links: lower bandwidth, links that go down, and background traffic."""

from __future__ import annotations

from itertools import cycle
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from simcluster.base.clock import AlternatingProfile, Profile
from simcluster.base.errors import InputError
from simcluster.base.units import BytesPerSecond, Seconds
from simcluster.faults.draws import random_stream
from simcluster.faults.pace import PaceFault
from simcluster.faults.where import SHORTEST_PERIOD, During, Number, OnLinks, window_profile


class SlowLink(PaceFault, OnLinks, During):
    """Links with reduced bandwidth in both directions."""

    EXAMPLE: ClassVar = {"kind": "slow_link", "nic_of": 0, "speed": 0.1}
    NEUTRAL: ClassVar = {"kind": "slow_link", "nic_of": 0, "speed": 1.0}

    FACTOR = "speed"

    kind: Literal["slow_link"]
    factor: Annotated[float, Field(strict=True, gt=0, le=1)]
    """Remaining speed, 0 to 1; an older name of speed."""

    @property
    def neutral(self) -> bool:
        return self.factor == 1

    def left(self, capacity: float) -> float:
        return self.factor


class LinkFlap(OnLinks):
    """Links that go down and come back.

    Nothing moves meanwhile, in either direction; flows keep what they have moved, and nothing reroutes or gives up (a
    collective library would, after its timeout).
    """

    EXAMPLE: ClassVar = {"kind": "link_flap", "nic_of": 0, "down": "30 us", "period": "100 us"}
    NEUTRAL: ClassVar = {"kind": "link_flap", "nic_of": 0, "down": "0 s", "period": "100 us"}

    kind: Literal["link_flap"]
    down: Seconds
    """Duration of each outage of the links."""
    start: Seconds | None = None
    """Time at which the links first go down; default: the beginning of the first step."""
    period: Seconds | None = None
    """Time from one outage of the links to the next; default: a single outage."""

    @model_validator(mode="after")
    def _check_period(self) -> Self:
        if self.period is not None and self.period <= max(self.down, SHORTEST_PERIOD):
            down = f"the {self.down:g} s that the link is down" if self.down > SHORTEST_PERIOD else "1 us"
            raise InputError(f"period {self.period:g} s must be longer than {down}; use a longer one, as in 100 ms")
        return self

    def times_within(self, seconds: float) -> float:
        """Return the number of times that the links go down within ``seconds``."""
        return max(0.0, seconds - (self.start or 0.0)) / self.period if self.period else 0.0

    @property
    def neutral(self) -> bool:
        return self.down == 0

    @property
    def lasts(self) -> bool:
        return False

    def left(self, capacity: float) -> float:
        return 0.0

    def profile(self, value: float, seed: int) -> Profile:
        """Return the profile over time that is ``value`` while the links are down."""
        start = self.start or 0.0
        if self.period is None:
            return window_profile(value, start, start + self.down)
        return window_profile(value, start, None, self.period, self.down / self.period)


class BackgroundLoad(OnLinks, During):
    """Traffic of other jobs that does not slow down; the job's flows share the remaining bandwidth."""

    EXAMPLE: ClassVar = {"kind": "background_load", "uplinks_of": 0, "share": 0.9}
    NEUTRAL: ClassVar = {"kind": "background_load", "uplinks_of": 0, "share": 0.0}

    kind: Literal["background_load"]
    share: Annotated[float, Field(strict=False, ge=0, lt=1)] | None = None
    """Share, 0 to 1, of each link's bandwidth that other jobs take."""
    rate: BytesPerSecond | None = None
    """Bandwidth that other jobs take of each link; instead of share."""
    on: Seconds | None = None
    """Mean duration of the random periods with this load (exponential, on all links at once); needs off."""
    off: Seconds | None = None
    """Mean duration of the random pauses between periods with this load (exponential); needs on."""
    seed: Number | None = None

    @model_validator(mode="after")
    def _check_amounts(self) -> Self:
        if (self.share is None) == (self.rate is None):
            raise InputError('set one of share: 0.3 (of each link) and rate: "10 GB/s" (per link), not both')
        if (self.on is None) != (self.off is None):
            raise InputError('on and off must both be set: mean lengths of load and pause: on: "5 ms", off: "20 ms"')
        if self.on is not None and self.off is not None:
            if min(self.on, self.off) < SHORTEST_PERIOD:
                raise InputError("on and off: a period must be at least 1 us long; use a longer one, as in 10 ms")
            if any(value is not None for value in (self.start, self.end, self.period)):
                raise InputError("random periods (on, off) exclude start, end and period; keep one of the two")
        return self

    @property
    def neutral(self) -> bool:
        return self.share == 0

    @property
    def by_chance(self) -> bool:
        return self.on is not None

    def times_within(self, seconds: float) -> float:
        """Return about how many loaded periods occur within ``seconds``."""
        return seconds / (self.on + self.off) if self.on and self.off else super().times_within(seconds)

    @property
    def lasts(self) -> bool:
        """Return False, since traffic of other jobs is not a property of the cluster, even if permanent."""
        return False

    def left(self, capacity: float) -> float:
        """Return the share of a link's capacity (B/s) that remains; InputError if nothing remains permanently."""
        if self.share is not None:
            return 1.0 - self.share
        assert self.rate is not None
        if self.rate >= capacity and super().lasts and self.on is None:
            raise InputError(
                f"a background load of {self.rate / 1e9:g} GB/s leaves nothing of a link of {capacity / 1e9:g} GB/s, "
                "permanently; set a lower rate, a share below 1, or an end"
            )
        return max(0.0, 1.0 - self.rate / capacity)

    def profile(self, value: float, seed: int) -> Profile:
        """Return the profile over time that is ``value`` in random periods, or in those that are set."""
        if self.on is None or self.off is None:
            return super().profile(value, seed)
        chance = random_stream(seed, "background", self.seed)
        first = bool(chance.random() < self.on / (self.on + self.off))
        means = cycle((self.on, self.off) if first else (self.off, self.on))
        return AlternatingProfile(value, (max(1e-9, float(chance.exponential(mean))) for mean in means), first=first)
