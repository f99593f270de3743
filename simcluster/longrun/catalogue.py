"""Failures of machines that were watched, by name, each with its source: ``failures.yaml`` of the catalogue."""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.catalogue import presets
from simcluster.documents.diagnostics import did_you_mean
from simcluster.longrun.spec import FailureSpec, FailuresSpec


def failures_of(spec: FailuresSpec) -> tuple[FailureSpec, ...]:
    """Those of the catalogue that are named, and one's own; InputError for a name that is not there."""
    known: tuple[FailureSpec, ...] = ()
    if spec.of is not None:
        catalogue = presets("failures.yaml")
        if spec.of not in catalogue:
            raise InputError(
                f"run.failures: there are no failures {spec.of!r}{did_you_mean(spec.of.lower(), catalogue)}; "
                f"those that ship: {', '.join(catalogue)}; or write them out under also"
            )
        entry = catalogue[spec.of]
        known = tuple(FailureSpec.model_validate({"source": entry["source"], **mode}) for mode in entry["modes"])
    found = (*known, *spec.also)
    if spec.only:
        names = [each.name for each in found]
        missing = [name for name in spec.only if name not in names]
        if missing:
            raise InputError(f"run.failures.only: there is no {', '.join(missing)}; there are {', '.join(names)}")
        found = tuple(each for each in found if each.name in spec.only)
    names = [each.name for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"run.failures: {', '.join(twice)} stand there twice; a name is one cause")
    return found
