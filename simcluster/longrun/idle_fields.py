"""Fields of ``run:`` that a scenario states and that have no effect on its run, each with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pydantic import BaseModel

from simcluster.longrun.catalogue import failures_of
from simcluster.longrun.defaults import restart_of
from simcluster.longrun.pattern import MEMORY
from simcluster.longrun.run import LongRun
from simcluster.scenario.run_failures import FailureSpec
from simcluster.scenario.run_section import RunSpec

Idle = Callable[[RunSpec, LongRun], bool]
"""Whether a field has no effect on a run."""


def _never_stops(section: RunSpec, run: LongRun) -> bool:
    """Return whether nothing ever restarts the job."""
    effects = {cause.effect for cause in run.causes}
    return run.maintenance is None and not effects - {"slow"} and (section.straggler == "leave" or not effects)


def _never_slow(_: RunSpec, run: LongRun) -> bool:
    return not any(cause.effect == "slow" for cause in run.causes)


def _never_replaced(section: RunSpec, run: LongRun) -> bool:
    return not any(cause.repair is not None for cause in run.causes) or _never_stops(section, run)


def _unsaved(_: RunSpec, run: LongRun) -> bool:
    return not run.pattern.keep


_STOPS = "nothing stops the job"
_REPAIRS = "no failure takes a node away"
_POOL = "run.spares.unlimited: there is always a spare"
_NONE_WRITTEN = "nothing fails, so no checkpoint is written (run.checkpoint.every)"
_SAVING = ("mode", "to", "read", "bytes_per_parameter", "stall", "write", "slowed", "memory", "verify", "keep", "price")

IDLE: tuple[tuple[str, Idle, str], ...] = (
    ("detection", _never_stops, _STOPS),
    ("restart", _never_stops, _STOPS),
    ("wrong_diagnosis", _never_stops, _STOPS),
    ("failures.times", lambda _, run: not run.causes, "there are no failures"),
    ("short", lambda section, _: section.spares.unlimited, _POOL),
    ("short", _never_replaced, _REPAIRS),
    ("shrink_to", lambda section, _: section.short == "wait", "run.short: wait takes no replica away"),
    ("shrink_to", lambda section, run: section.short == "shrink" and not run.short, _POOL),
    ("straggler", _never_slow, "no failure slows a device (effect: slow)"),
    ("noticed", _never_slow, "no failure slows a device (effect: slow)"),
    ("noticed", lambda section, _: section.straggler == "leave", "run.straggler: leave; it is for replace, checkpoint"),
    ("timeout", lambda _, run: all(cause.effect != "pause" for cause in run.causes), "no failure pauses the job"),
    *((f"spares.{key}", lambda section, _: section.spares.unlimited, _POOL)
      for key in ("hot", "warm", "cold", "hot_ready", "warm_ready", "cold_ready", "crews", "price")),
    *((f"spares.{key}", _never_replaced, _REPAIRS) for key in ("hot_ready", "warm_ready", "cold_ready", "crews")),
    ("spares.price", lambda _, run: not run.spares.count, "there is no spare"),
    ("spares.hot_ready", lambda _, run: not run.spares.hot, "no spare is hot"),
    ("spares.warm_ready", lambda _, run: not run.spares.warm, "no spare is warm"),
    ("spares.cold_ready", lambda _, run: not run.spares.cold, "no spare is cold"),
    *((f"checkpoint.{key}", _unsaved, _NONE_WRITTEN) for key in _SAVING),
    ("checkpoint.slowed", lambda section, run: not run.pattern.storage.write and run.pattern.memory is None,
     "training stops until a checkpoint is written (run.checkpoint.mode)"),
    ("checkpoint.read", lambda section, _: all(part.takes != "auto" for part in restart_of(section)),
     "no phase of the restart loads a checkpoint (takes: auto)"),
    ("checkpoint.read", lambda _, run: all(cause.survives == MEMORY for cause in run.causes),
     "all failures leave the copies in memory (survives)"),
)  # fmt: skip
"""By the path below ``run``: whether it has no effect, and the reason; the first that holds is given."""

Unused = Callable[[FailureSpec, RunSpec], bool]

_LEFT_ALONE = "a slow device is left alone (run.straggler)"
IDLE_OF_FAILURES: tuple[tuple[str, Unused, str], ...] = (
    ("survives", lambda _, section: section.checkpoint.memory is None, "no copy is in memory (run.checkpoint.memory)"),
    *((key, lambda spec, section: spec.effect == "slow" and section.straggler == "leave", _LEFT_ALONE)
      for key in ("detect", "repair", "survives")),
    ("machines", lambda spec, section: spec.effect == "slow" and section.straggler == "leave" and spec.of != "rack",
     f"one device is slow at a time, and {_LEFT_ALONE}"),
    *((key, lambda spec, section: spec.effect == "slow" and section.straggler == "checkpoint",
       "a slow device is replaced after a checkpoint") for key in ("detect", "survives")),
    *((key, lambda spec, _: spec.effect == "alarm", "an alarm is handled after a checkpoint")
      for key in ("detect", "survives")),
)  # fmt: skip
"""The same by the field of a failure that the scenario itself describes."""


def idle_notes(section: RunSpec, run: LongRun) -> Iterator[str]:
    """Yield a note for each stated field that has no effect."""
    told: set[str] = set()
    for path, idle, why in IDLE:
        owner, _, key = path.rpartition(".")
        if path not in told and _stated(getattr(section, owner) if owner else section, key) and idle(section, run):
            told.add(path)
            yield f"run.{path} has no effect: {why}"
    known = {spec.name for spec in failures_of(section.failures)}
    for number, spec in enumerate(section.failures.also):
        reasons: Mapping[str, str] = {
            key: why for key, unused, why in reversed(IDLE_OF_FAILURES) if _stated(spec, key) and unused(spec, section)
        }
        if spec.name in known:
            yield from (f"run.failures.also.{number}.{key} has no effect: {why}" for key, why in reasons.items())


def _stated(spec: BaseModel, key: str) -> bool:
    """Return whether a document has the key, with another value than the default."""
    return key in spec.model_fields_set and getattr(spec, key) != type(spec).model_fields[key].default
