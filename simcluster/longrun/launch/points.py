"""Launch checks of a long run: its token budget, its checkpoints, memory and spares, and its outcome."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.counts import format_tokens, whole_dollars
from simcluster.base.errors import InputError
from simcluster.base.units import DAY, format_bytes, format_seconds
from simcluster.longrun.budget.critical_batch import RepeatedData
from simcluster.longrun.budget.loss_laws import loss_law
from simcluster.longrun.ending import stop_rate
from simcluster.longrun.launch.launch import RUNS, Launch, Observation, RunCheck
from simcluster.longrun.run import LongRun
from simcluster.longrun.scaling.request import tokens_to_loss
from simcluster.longrun.studies.advice_nodes import SHORT, fewest_spares
from simcluster.longrun.studies.build import run_section
from simcluster.longrun.studies.run_closed_forms import RepairDemand, RollbackRates, best_steps, expected_shortage
from simcluster.longrun.studies.train import stage_scenarios
from simcluster.model.layers import parameters
from simcluster.scenario.checkpoint_plan import (
    bytes_per_parameter,
    checkpoint_bytes,
    describe_host_memory,
    host_copy_bytes,
)
from simcluster.scenario.job import real_tokens_per_step
from simcluster.scenario.memory_plan import describe_recipe, recipe_of
from simcluster.studies.whatif.remedies import Values, Verdict, grade_number

_PADDING = 0.05, 0.30
_EPOCHS = 4.0, 40.0  # arXiv:2305.16264, figure 1: nearly as good as new up to 4, worthless from 40 on
_UNPRODUCTIVE = 0.10, 0.50
_VALIDATION = _LATE = 0.02, 0.10


def _check_tokens(launch: Launch) -> Observation:
    scenario, training = launch.scenario, launch.scenario.training
    whole, real = scenario.tokens_per_step, real_tokens_per_step(scenario)
    found = (
        f"{whole:,} = {training.global_batch:,} sequences (micro batch {training.micro_batch} x "
        f"{scenario.microbatches:,} x dp {scenario.dp}) x {scenario.model.sequence_length:,}{_describe_stage(launch)}"
    )
    packed = scenario.data is not None and scenario.data.documents is not None
    if packed:
        found += f"; {real:,.0f} real ({real / whole:.1%}), the rest is padding"
    advice = "another data.packing: simcluster packing SCENARIO compares them"
    return Observation(grade_number(1 - real / whole, *_PADDING), found, advice)


def _describe_stage(launch: Launch) -> str:
    return f" in stage {launch.stage}, which has most tokens" if launch.stage else ""


def goal_tokens(launch: Launch) -> float:
    """Return the number of tokens at which a run ends; infinity if only time ends it."""
    section = run_section(launch.whole)
    if section.steps is not None:
        return section.steps * real_tokens_per_step(launch.whole)
    if section.loss is not None:
        return tokens_to_loss(launch.whole, section.loss, section.law)
    return math.inf if section.tokens is None else section.tokens


def _check_budget(launch: Launch) -> Observation:
    tokens, section = goal_tokens(launch), run_section(launch.whole)
    if math.isinf(tokens):
        return Observation(
            "warn", f"{(section.days or 0.0) / DAY:g} days, and the number of tokens is not set",
            "run.tokens, run.steps or run.loss instead of run.days",
        )  # fmt: skip
    stages = stage_scenarios(launch.whole) if section.stages else [launch.whole]
    steps, trained = 0, 0.0
    for scenario in stages:
        each, run = real_tokens_per_step(scenario), run_section(scenario)
        count = math.ceil((run.tokens if section.stages and run.tokens else tokens) / each - 1e-9)
        steps, trained = steps + count, trained + count * each
    size = parameters(launch.whole.model).total
    how = f"in {len(stages)} stages" if section.stages else f"x {real_tokens_per_step(launch.whole):,.0f} tokens"
    by_loss = f" (a loss of {section.loss:g})" if section.loss is not None else ""
    asked = f", which is {trained / tokens:.4f} of {format_tokens(tokens)} requested{by_loss}"
    found = f"{steps:,} steps {how} = {format_tokens(trained)}{asked}; {tokens / size:.3g} tokens per parameter"
    whole = trained < 1.01 * tokens
    return Observation(
        "pass" if whole else "warn", found, "a smaller training.global_batch, as the last step exceeds the request"
    )


def _check_epochs(launch: Launch) -> Observation | None:
    data, tokens = launch.whole.data, goal_tokens(launch)
    if data is None:
        return None
    if data.unique is None:
        return Observation("warn", "the number of unique tokens is not set", "set data.unique, as in 2T")
    if math.isinf(tokens):
        tokens = launch.simulated_runs.tokens
    epochs = tokens / data.unique
    worth = RepeatedData(loss_law("muennighoff"), data.unique).tokens(tokens) / data.unique
    found = f"{epochs:.3g} of {format_tokens(data.unique)} tokens"
    found += f", worth {worth:.3g} of fresh ones" if epochs > 1 else ""
    return Observation(
        grade_number(epochs, *_EPOCHS), found, "more data, a larger model on fewer tokens, or a smaller budget"
    )


def _check_days(launch: Launch) -> Observation:
    played = launch.simulated_runs
    row = played.numbers.loc["days"].astype(float).to_dict()
    days = f"{row['mean']:.4g} days"
    if row["p95"] - row["p5"] > 1e-3 * row["mean"]:
        days += f" ({row['p5']:.4g} to {row['p95']:.4g} in 90 % of runs)"
    hours, dollars = (np.mean(each) if each is not None else None for each in (played.gpu_hours, played.dollars))
    cost = "no price is set (run.price)" if dollars is None else whole_dollars(float(dollars))
    return Observation(
        grade_number(1 - played.goodput, *_UNPRODUCTIVE),
        f"{days}, {_format_count(float(hours or 0.0))} GPU-hours, {cost}; goodput {played.goodput:.2%} ({RUNS} runs)",
        "simcluster train SCENARIO shows the wall-clock breakdown; simcluster advise interval, spares, restart",
    )


def _format_count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _check_failures(launch: Launch) -> Observation:
    run, section = launch.run, launch.section
    rate = stop_rate(run)
    if not rate:
        advice = "set failures: published ones, or those of your log (simcluster failures)"
        return Observation(
            "warn", "no failure stops the job, which is unrealistic", advice, ({"run.failures": "llama3"},)
        )
    known = [f"the catalogue's {section.failures.of}"] if section.failures.of else []
    known += [f"{len(section.failures.also)} of the scenario"] if section.failures.also else []
    stops = sum(cause.stops for cause in run.causes)
    expected = launch.simulated_runs.numbers["mean"].astype(float).to_dict()["failures"]
    found = f"one in {1 / rate / 3600:.4g} h ({run.gpus / rate / 3600:,.0f} h per GPU){_describe_stage(launch)}"
    found += f", {_format_count(expected)} in the run on average: {stops} causes, {' and '.join(known)}"
    return Observation("pass", found)


def _check_validation(launch: Launch) -> Observation:
    spec, step = launch.section.validation, launch.states.healthy_step_time
    if spec is None:
        tries: Values = {"run.validation": {"every": "1000 steps", "batches": 50}}
        return Observation("warn", "none is planned", "set the interval and the number of batches", (tries,))
    each = launch.states.validation_step_time(spec)
    share = each / (step + each)
    rarer = math.ceil(each * spec.every * (1 / _VALIDATION[0] - 1) / step)
    found = f"{share:.2%}: {format_seconds(each * spec.every)} every {spec.every:,} steps"
    advice = "less often, or on fewer batches"
    return Observation(grade_number(share, *_VALIDATION), found, advice, ({"run.validation.every": f"{rarer} steps"},))


def _check_loader(launch: Launch) -> Observation | None:
    data, result = launch.scenario.data, launch.states.result
    if data is None or data.loader is None:
        return None
    late = result.loading.exposed if result.loading else 0.0
    found = f"{late / result.step_time:.1%} of the step waits for batches ({data.loader.describe()})"
    enough = math.ceil(result.loading.batch / result.loading.step) if result.loading else 1
    return Observation(
        grade_number(late / result.step_time, *_LATE), found, f"data.loader.workers: {enough}, and prefetch above 0"
    )


_REPEATED = "at most 4: beyond, repeated tokens fade; from 40 on they are worthless (arXiv:2305.16264)"
BUDGET = (
    RunCheck("tokens a step", "batch x length as intended; at most 5 % of it padding", _check_tokens),
    RunCheck("budget", "steps x tokens per step equals the request, to 1 %", _check_budget),
    RunCheck("epochs", _REPEATED, _check_epochs),
    RunCheck("validation", "below 2 % of the time; fails above 10 %", _check_validation),
    RunCheck("data loader", "keeps up: at most 2 % of the step waits for batches; fails above 10 %", _check_loader),
)
OUTCOME = (
    RunCheck("failures", "failures that stop the job are set, with their rates", _check_failures),
    RunCheck("days and dollars", "at least 90 % of the wall time is productive; fails below 50 %", _check_days),
)


_OVERHEAD = 0.05, 0.15
_SHORT = SHORT, 0.05
_MOST_SPARES = 2000


class CheckpointOverhead(NamedTuple):
    """First-order cost of checkpoints as shares of time: saving, redone work (``again``), and their sum.

    T/(K t) + K t/(2 M): T seconds of a checkpoint, K steps of t between two, M between failures. An asynchronous write
    is safe only when it ends (B/M more); with copies in peers' memory each kind of failure has its own K.
    """

    saving: float
    again: float
    whole: float

    @classmethod
    def of_run(cls, run: LongRun) -> CheckpointOverhead:
        """Return the first-order checkpoint cost of a long run."""
        pattern, rates = run.pattern, RollbackRates.of_causes(run.causes)
        work = pattern.steps * pattern.step_with_validation
        near, last = pattern.memory or pattern.storage, pattern.storage
        seconds = [pattern.verify + saving.stall + saving.slowed * saving.write for saving in (near, last)]
        again = rates.memory * (work / 2 + near.write)
        again += (rates.storage + rates.silent) * (work * pattern.cycles / 2 + last.write)
        saving = ((pattern.cycles - 1) * seconds[0] + seconds[1]) / (work * pattern.cycles)
        return cls(saving, again, saving + again)


def _check_interval(launch: Launch) -> Observation:
    run = launch.run
    pattern, cost, spec = run.pattern, CheckpointOverhead.of_run(run), launch.section.checkpoint
    saving = pattern.storage
    takes = f"{format_seconds(saving.stall)} stopped"
    takes += f", {format_seconds(saving.write)} written asynchronously" if saving.write else ""
    takes += f", one in {pattern.cycles} copies goes to storage" if pattern.memory else ""
    every = f"every {pattern.steps:,} step{'s' * (pattern.steps > 1)} = {format_seconds(pattern.steps * pattern.step)}"
    found = f"{cost.whole:.2%} = {cost.saving:.2%} saving ({takes}) + {cost.again:.2%} redone work, {every}"
    try:
        best = best_steps(run)
    except InputError:  # nothing fails
        return Observation(grade_number(cost.whole, *_OVERHEAD), found, "less often")
    least = CheckpointOverhead.of_run(replace(run, pattern=replace(pattern, steps=best)))
    better = least.whole < cost.whole  # the best is exact, the points are to first order
    at_best = f"; {least.whole:.2%} at the optimum, every {best:,} step{'s' * (best > 1)}"
    tries: list[Values] = [{"run.checkpoint.every": f"{best if better else pattern.steps} steps"}]
    if spec.mode == "blocking" and spec.stall is None:
        tries.append({"run.checkpoint.mode": "snapshot", "run.checkpoint.every": "auto"})
    advice = "faster storage (run.checkpoint.to), fewer failures"
    return Observation(
        grade_number(cost.whole, *_OVERHEAD),
        found + (at_best if better else "; near the optimum"),
        advice,
        tuple(tries),
    )


def _check_resume(launch: Launch) -> Observation:
    scenario, spec, recipe = launch.scenario, launch.section.checkpoint, recipe_of(launch.scenario)
    each, needed = bytes_per_parameter(scenario, spec), recipe.gathered + recipe.optimizer
    optimizer = "m, v and 32-bit weights" if recipe.master else "m and v"
    has = f"weights {recipe.gathered:g}, {optimizer} {recipe.optimizer:g}"
    size = format_bytes(checkpoint_bytes(scenario, spec))
    found = f"{each:g} of {needed:g} B per parameter ({has}), {size}; plus step, rng, schedule and loader (small)"
    short = each < needed - 1e-9
    verdict: Verdict = "fail" if each < recipe.gathered - 1e-9 else "warn" if short else "pass"
    tries: tuple[Values, ...] = ({"run.checkpoint.bytes_per_parameter": needed},) if short else ()
    return Observation(verdict, found, "save all of the optimizer's state", tries)


def _check_host(launch: Launch) -> Observation:
    scenario, held = launch.scenario, launch.states.result.host_memory
    words, warns = describe_host_memory(scenario, held, launch.section.checkpoint)
    there = scenario.cluster.topology.host_memory
    short = there is not None and held + host_copy_bytes(scenario, launch.section.checkpoint) > there.size
    if not words:
        return Observation("pass", "the job keeps nothing in host memory")
    verdict: Verdict = "fail" if short else "warn" if warns else "pass"
    advice = "checkpoints that stop training (mode: blocking) keep nothing there"
    return Observation(verdict, words.removeprefix("host memory").removeprefix(": ").strip(), advice)


def _check_spares(launch: Launch) -> Observation:
    run, repairs = launch.run, RepairDemand.of_run(launch.run)
    if not repairs.rate:
        return Observation("pass", "no failure removes a node")
    load = f"{repairs.rate * repairs.repair:.3g} nodes in repair on average"
    if not repairs.single:
        pool = "an unlimited pool is assumed" if run.spares.unlimited else str(run.spares.count)
        found = f"{pool}; {load}; a failure removes several at once, so Erlang B does not hold"
        return Observation("warn", found, "simcluster advise spares simulates how many are enough")
    least = fewest_spares(run, _MOST_SPARES)
    if least is None:
        return Observation(
            "fail", f"{load}: more than {run.spares.crews} crews can repair", "more crews, shorter repairs"
        )
    enough = f"{least} {'is' if least == 1 else 'are'} the fewest for less than {SHORT:.1%}"
    kind = max(("warm", "hot", "cold"), key=lambda name: int(getattr(run.spares, name)))
    fix: dict[str, Any] = {f"run.spares.{kind}": least - run.spares.count + int(getattr(run.spares, kind))}
    if run.spares.unlimited:
        fix = {"run.spares.warm": least, "run.spares.unlimited": False}
        return Observation("warn", f"an unlimited pool is assumed; {load}, {enough} short", "", (fix,))
    short = expected_shortage(run, run.spares.count)
    on = ", in which it continues with fewer replicas" if run.short else ""
    verdict = grade_number(short, *_SHORT)
    found = f"{run.spares.count}: short of nodes {short:.2%} of the time{on} (Erlang B; {load}); {enough}"
    return Observation(verdict, found, "more spares, or shorter repairs", (fix,))


def _check_recipe(launch: Launch) -> Observation:
    training = launch.scenario.training
    said = training.memory_recipe is not None
    tries: Values = {"training.memory_recipe": recipe_of(launch.scenario).name}
    return Observation(
        "pass" if said else "warn", describe_recipe(launch.scenario), "set training.memory_recipe", (tries,)
    )


_OFTEN = "T/(K t) + K t/(2 M) at most 5 %, fails above 15 %; a write ends before the next begins"
STATE = (
    RunCheck("checkpoint interval", _OFTEN, _check_interval),
    RunCheck("resume state", "a checkpoint holds weights and all of the optimizer's state", _check_resume),
    RunCheck("memory recipe", "bytes per parameter are set, not derived from the precision", _check_recipe),
    RunCheck("host memory", "snapshots and offloaded state fit, with 10 % left", _check_host),
    RunCheck("spares", "short of nodes at most 0.1 % of the time; fails above 5 %", _check_spares),
)
