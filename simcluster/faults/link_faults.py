"""Faults of links: lower bandwidth, links that go down, and background traffic."""

from __future__ import annotations

from itertools import cycle
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from simcluster.base.clock import AlternatingProfile, Profile
from simcluster.base.errors import InputError
from simcluster.base.units import BytesPerSecond, Seconds
from simcluster.faults.random_factors import random_stream
from simcluster.faults.slow_devices import SlowDeviceFault
from simcluster.faults.targets import SHORTEST_PERIOD, LinkFault, Number, TimedFault, window_profile


class SlowLink(SlowDeviceFault, LinkFault, TimedFault):
    """Fault: links with reduced bandwidth in both directions."""

    EXAMPLE: ClassVar = {"kind": "slow_link", "nic_of": 0, "speed": 0.1}
    NEUTRAL: ClassVar = {"kind": "slow_link", "nic_of": 0, "speed": 1.0}

    FACTOR = "speed"

    kind: Literal["slow_link"]
    factor: Annotated[float, Field(strict=True, gt=0, le=1)]
    """Remaining speed, 0 to 1; former name of the key `speed`."""

    @property
    def is_neutral(self) -> bool:
        return self.factor == 1

    def remaining_share(self, capacity: float) -> float:
        return self.factor


class LinkFlap(LinkFault):
    """Fault: links that go down and come back.

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
            down = f"'down' = {self.down:g} s" if self.down > SHORTEST_PERIOD else "1 us"
            raise InputError(f"'period' = {self.period:g} s must exceed {down}; set a longer period, as in 100 ms")
        return self

    def count_starts(self, seconds: float) -> float:
        return max(0.0, seconds - (self.start or 0.0)) / self.period if self.period else 0.0

    @property
    def is_neutral(self) -> bool:
        return self.down == 0

    @property
    def is_permanent(self) -> bool:
        return False

    def remaining_share(self, capacity: float) -> float:
        return 0.0

    def profile(self, value: float, seed: int) -> Profile:
        start = self.start or 0.0
        if self.period is None:
            return window_profile(value, start, start + self.down)
        return window_profile(value, start, None, self.period, self.down / self.period)


class BackgroundLoad(LinkFault, TimedFault):
    """Fault: traffic of other jobs takes a fixed part of links' bandwidth; this job gets the rest."""

    EXAMPLE: ClassVar = {"kind": "background_load", "uplinks_of": 0, "share": 0.9}
    NEUTRAL: ClassVar = {"kind": "background_load", "uplinks_of": 0, "share": 0.0}

    kind: Literal["background_load"]
    share: Annotated[float, Field(strict=False, ge=0, lt=1)] | None = None
    """Share (0 to 1) of each link's bandwidth that other jobs take; set this or `rate`."""
    rate: BytesPerSecond | None = None
    """Bandwidth that other jobs take of each link; set this or `share`, not both."""
    on: Seconds | None = None
    """Mean duration of the random periods with this load (exponential, on all links at once); requires `off`."""
    off: Seconds | None = None
    """Mean duration of the random pauses between periods with this load (exponential); requires `on`."""
    seed: Number | None = None

    @model_validator(mode="after")
    def _check_amounts(self) -> Self:
        if (self.share is None) == (self.rate is None):
            raise InputError("set either 'share' (of each link, as in 0.3) or 'rate' (per link, as in 10 GB/s)")
        if (self.on is None) != (self.off is None):
            raise InputError("'on' and 'off' must both be set: mean durations of load and pause, as in 5 ms and 20 ms")
        if self.on is not None and self.off is not None:
            if min(self.on, self.off) < SHORTEST_PERIOD:
                raise InputError("'on' and 'off' must be at least 1 us; set longer durations, as in 10 ms")
            if any(value is not None for value in (self.start, self.end, self.period)):
                raise InputError("'on' and 'off' exclude 'start', 'end' and 'period'; keep one of the two groups")
        return self

    @property
    def is_neutral(self) -> bool:
        return self.share == 0

    @property
    def is_random(self) -> bool:
        return self.on is not None

    def count_starts(self, seconds: float) -> float:
        return seconds / (self.on + self.off) if self.on and self.off else super().count_starts(seconds)

    @property
    def is_permanent(self) -> bool:
        """Return False: even an unending load comes from other jobs, so it does not change the cluster."""
        return False

    def remaining_share(self, capacity: float) -> float:
        """Return the share of a link's capacity (B/s) that remains; InputError if the load takes all of it forever."""
        if self.share is not None:
            return 1.0 - self.share
        assert self.rate is not None
        if self.rate >= capacity and super().is_permanent and self.on is None:
            raise InputError(
                f"a permanent background load of {self.rate / 1e9:g} GB/s takes all of a link of {capacity / 1e9:g} "
                "GB/s; set a lower rate, a share below 1, or an end"
            )
        return max(0.0, 1.0 - self.rate / capacity)

    def profile(self, value: float, seed: int) -> Profile:
        if self.on is None or self.off is None:
            return super().profile(value, seed)
        chance = random_stream(seed, "background", self.seed)
        first = bool(chance.random() < self.on / (self.on + self.off))
        means = cycle((self.on, self.off) if first else (self.off, self.on))
        return AlternatingProfile(value, (max(1e-9, float(chance.exponential(mean))) for mean in means), first=first)
