"""Catalogue of published cluster failure rates by name, each with a source, read from ``failures.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import parse_seconds
from simcluster.documents.catalogue import load_presets
from simcluster.documents.diagnostics import did_you_mean
from simcluster.longrun.closed_forms import poisson_interval
from simcluster.scenario.run_failures import FailureSpec, FailuresSpec

GPUS_PER_NODE = 8
"""GPUs per node of the clusters in the failure catalogue."""


def resolve_failure_causes(spec: FailuresSpec) -> tuple[FailureSpec, ...]:
    """Return a run's failure causes, from the catalogue and the scenario; InputError for an unknown name."""
    known: tuple[FailureSpec, ...] = ()
    if spec.of is not None:
        catalogue = load_presets("failures.yaml")
        if spec.of not in catalogue:
            raise InputError(
                f"run.failures: no built-in failures are named {spec.of!r}{did_you_mean(spec.of.lower(), catalogue)}; "
                f"built-in failures: {', '.join(catalogue)}; or define your own under 'also'"
            )
        known = _parse_causes(catalogue[spec.of])
    found = (*known, *spec.also)
    if spec.only:
        names = [each.name for each in found]
        missing = [name for name in spec.only if name not in names]
        if missing:
            raise InputError(f"run.failures.only: unknown {', '.join(missing)}; known: {', '.join(names)}")
        found = tuple(each for each in found if each.name in spec.only)
    names = [each.name for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"run.failures: {', '.join(twice)} defined twice; names must be unique: rename one failure")
    return found


def _parse_causes(entry: Mapping[str, Any]) -> tuple[FailureSpec, ...]:
    return tuple(FailureSpec.model_validate({"source": entry["source"], **mode}) for mode in entry["modes"])


@dataclass(frozen=True)
class PublishedFailures:
    """Catalogue entry: published failure ``causes`` of a cluster, their total rate, and that rate's uncertainty.

    The rate (1/s) is per GPU or, where only links or switches were observed, per network device (``counted_device``).
    ``rate_interval_factors`` are the factors by which it may be off.
    """

    name: str
    source: str
    holds: str
    published: Mapping[str, Any]
    causes: tuple[FailureSpec, ...]

    @property
    def counted_device(self) -> str:
        """Device that the failure rate is per: "gpu", or "nic", "cable" or "switch"."""
        kinds = {cause.of for cause in self.causes}
        return kinds.pop() if kinds <= {"nic", "cable", "switch"} and len(kinds) == 1 else "gpu"

    def job_failure_rate(self, gpus: int) -> float:
        """Return the failure rate (1/s) of a job of ``gpus`` GPUs (or of as many NICs, cables or switches)."""
        hosts = gpus / GPUS_PER_NODE
        devices = {cause.name: hosts if cause.of == "host" else gpus for cause in self.causes}
        return sum(cause.job_failure_rate(devices[cause.name], hosts, gpus) for cause in self.causes)

    @property
    def observed_exposure(self) -> tuple[float, float]:
        """Observation period (s), and number of GPUs (or network devices), of the published failure count."""
        found = self.published
        return parse_seconds(found["within"]), float(found.get("gpus") or found["devices"])

    @property
    def rate_interval_factors(self) -> tuple[float, float] | None:
        """Uncertainty of the rate as two factors on the modelled rate, low and high; None if unknown."""
        seconds, devices = self.observed_exposure
        expected = self.job_failure_rate(int(devices)) * seconds
        if "between" in self.published:
            low, high = self.published["between"]
        elif isinstance(self.published["count"], int) and self.published["count"] > 1:
            low, high = poisson_interval(self.published["count"])
        else:
            return None
        return low / expected, high / expected


def published_failures() -> tuple[PublishedFailures, ...]:
    """Return all entries of the catalogue of published failures."""
    return tuple(
        PublishedFailures(name, entry["source"], entry["holds"], entry["published"], _parse_causes(entry))
        for name, entry in load_presets("failures.yaml").items()
    )
