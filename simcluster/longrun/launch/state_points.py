"""The points of a launch about its state: how often it is saved, whether whole, where it is kept, who stands by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import format_bytes, format_seconds
from simcluster.longrun.launch.launch import Launch
from simcluster.longrun.launch.run_point import RunCheck, Seen
from simcluster.longrun.pattern import CheckpointPattern, Saving
from simcluster.longrun.run import LongRun
from simcluster.longrun.studies.advice_parts import SHORT
from simcluster.longrun.studies.in_theory import Repairs, short_share
from simcluster.longrun.studies.intervals import Rates, best_steps
from simcluster.scenario.checkpoint_plan import bytes_per_parameter, checkpoint_bytes, host_memory_words
from simcluster.scenario.memory_plan import recipe_of, recipe_words
from simcluster.studies.whatif.remedies import Values, Verdict, graded

_OVERHEAD = 0.05, 0.15
_SHORT = SHORT, 0.05
_MOST_SPARES = 2000


@dataclass(frozen=True, slots=True)
class SavingCost:
    """What saving costs, as shares of the time, to first order: ``saving`` itself, and work that is done again.

    T/(K t) + K t/(2 M): T seconds of a checkpoint, K steps of t between two, M between failures.  What is written
    behind training is safe only then (B/M more); with copies in peers' memory each kind of failure has its own K.
    """

    saving: float
    again: float

    @property
    def whole(self) -> float:
        """Both."""
        return self.saving + self.again

    @classmethod
    def of(cls, run: LongRun) -> SavingCost:
        """That of a run."""
        pattern, rates = run.pattern, Rates.of(run.causes)
        work = pattern.steps * pattern.each
        period = work * pattern.cycles
        near = pattern.memory or pattern.storage
        spent = (pattern.cycles - 1) * _seconds(pattern, near) + _seconds(pattern, pattern.storage)
        again = rates.memory * (work / 2 + near.write)
        again += (rates.storage + rates.silent) * (period / 2 + pattern.storage.write)
        return cls(spent / period, again)


def _seconds(pattern: CheckpointPattern, saving: Saving) -> float:
    return pattern.verify + saving.stall + saving.slowed * saving.write


def _interval(launch: Launch) -> Seen:
    run = launch.run
    pattern, cost = run.pattern, SavingCost.of(run)
    saving = pattern.storage
    takes = f"{format_seconds(saving.stall)} stopped"
    takes += f", {format_seconds(saving.write)} written behind" if saving.write else ""
    takes += f", one in {pattern.cycles} copies goes to storage" if pattern.memory else ""
    every = f"every {_steps(pattern.steps)} = {format_seconds(pattern.steps * pattern.step)}"
    found = f"{cost.whole:.2%} = {cost.saving:.2%} saving ({takes}) + {cost.again:.2%} done again, {every}"
    best = _best(run)
    if best is None:
        return Seen(graded(cost.whole, *_OVERHEAD), found, "less often")
    least = SavingCost.of(replace(run, pattern=replace(pattern, steps=best)))
    better = least.whole < cost.whole  # the best is exact, what is told to first order
    found += f"; {least.whole:.2%} at best, every {_steps(best)}" if better else "; about the best"
    tries = tuple(_tries(launch, best if better else pattern.steps))
    return Seen(graded(cost.whole, *_OVERHEAD), found, "faster storage (run.checkpoint.to), fewer failures", tries)


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count > 1)}"


def _best(run: LongRun) -> int | None:
    """Steps between two checkpoints that lose least; None where nothing fails."""
    try:
        return best_steps(run)
    except InputError:
        return None


def _tries(launch: Launch, best: int) -> Iterator[Values]:
    """The best interval; snapshots in place of checkpoints that stop training, as long as nobody says how long."""
    spec = launch.section.checkpoint
    yield {"run.checkpoint.every": f"{best} steps"}
    if spec.mode == "blocking" and spec.stall is None:
        yield {"run.checkpoint.mode": "snapshot", "run.checkpoint.every": "auto"}


def _resume(launch: Launch) -> Seen:
    scenario, spec, recipe = launch.scenario, launch.section.checkpoint, recipe_of(launch.scenario)
    each, needed = bytes_per_parameter(scenario, spec), recipe.gathered + recipe.optimizer
    optimizer = "m, v and 32-bit weights" if recipe.master else "m and v"
    has = f"weights {recipe.gathered:g}, {optimizer} {recipe.optimizer:g}"
    size = format_bytes(checkpoint_bytes(scenario, spec))
    found = f"{each:g} of {needed:g} B a parameter ({has}), {size}; step, rng, schedule and loader come on top, small"
    short = each < needed - 1e-9
    verdict: Verdict = "fail" if each < recipe.gathered - 1e-9 else "warn" if short else "pass"
    tries: tuple[Values, ...] = ({"run.checkpoint.bytes_per_parameter": needed},) if short else ()
    return Seen(verdict, found, "save all of the optimizer's state", tries)


def _host(launch: Launch) -> Seen:
    scenario, held = launch.scenario, launch.states.result.host_memory
    words, warns = host_memory_words(scenario, held, launch.section.checkpoint)
    if not words:
        return Seen("pass", "nothing of the job's is in it")
    verdict: Verdict = "fail" if words.startswith("host memory does not fit") else "warn" if warns else "pass"
    advice = "checkpoints that stop training (mode: blocking) keep nothing there"
    return Seen(verdict, words.removeprefix("host memory").removeprefix(": ").strip(), advice)


def _spares(launch: Launch) -> Seen:
    run, repairs = launch.run, Repairs.of(launch.run)
    if not repairs.rate:
        return Seen("pass", "no failure takes a machine away")
    load = f"{repairs.rate * repairs.repair:.3g} machines in repair on average"
    if not repairs.single:
        pool = "an unlimited pool is assumed" if run.spares.unlimited else str(run.spares.count)
        found = f"{pool}; {load}; a failure takes several at once, for which no formula (Erlang B) holds"
        return Seen("warn", found, "simcluster advise spares simulates how many are enough")
    least = _least(run)
    if least is None:
        return Seen("fail", f"{load}: more than {run.spares.crews} crews can", "more crews, shorter repairs")
    enough = f"{least} {'is' if least == 1 else 'are'} the fewest for less than {SHORT:.1%}"
    kind = max(("warm", "hot", "cold"), key=lambda name: int(getattr(run.spares, name)))
    fix: dict[str, Any] = {f"run.spares.{kind}": least - run.spares.count + int(getattr(run.spares, kind))}
    if run.spares.unlimited:
        fix = {"run.spares.warm": least, "run.spares.unlimited": False}
        return Seen("warn", f"a pool without end is taken for granted; {load}, {enough} short", "", (fix,))
    short = short_share(run, run.spares.count)
    on = ", in which it goes on with fewer replicas" if run.short else ""
    verdict = graded(short, *_SHORT)
    found = f"{run.spares.count}: short of machines {short:.2%} of the time{on} (Erlang B; {load}); {enough}"
    return Seen(verdict, found, "more spares, or shorter repairs", (fix,))


def _least(run: LongRun) -> int | None:
    """Spares with which the job is short for less than ``SHORT``; None where no number is enough."""
    return next((count for count in range(_MOST_SPARES) if short_share(run, count) < SHORT), None)


def _recipe(launch: Launch) -> Seen:
    training = launch.scenario.training
    said = training.memory_recipe is not None
    tries: Values = {"training.memory_recipe": recipe_of(launch.scenario).name}
    return Seen("pass" if said else "warn", recipe_words(launch.scenario), "say it", (tries,))


_OFTEN = "T/(K t) + K t/(2 M) at most 5 %, above 15 % it is wrong; a write ends before the next begins"
STATE = (
    RunCheck("checkpoint interval", _OFTEN, _interval),
    RunCheck("resume state", "a checkpoint holds weights and all of the optimizer's state", _resume),
    RunCheck("memory recipe", "bytes a parameter are said, not taken from the precision", _recipe),
    RunCheck("host memory", "snapshots and offloaded state fit, with 10 % left", _host),
    RunCheck("spares", "short of machines at most 0.1 % of the time; above 5 % it is wrong", _spares),
)
