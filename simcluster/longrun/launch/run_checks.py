"""Launch checks of a long run: token budget, checkpoints, memory, spare nodes, and expected outcome."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.counts import format_tokens, format_whole_dollars
from simcluster.base.errors import InputError
from simcluster.base.units import DAY, format_bytes, format_seconds
from simcluster.longrun.budget.critical_batch import RepeatedDataLaw
from simcluster.longrun.budget.loss_laws import loss_law
from simcluster.longrun.launch.run_under_check import RUNS, CheckFinding, RunCheck, RunUnderCheck
from simcluster.longrun.long_run import LongRun
from simcluster.longrun.run_feasibility import job_stop_rate
from simcluster.longrun.scaling.request import tokens_to_loss
from simcluster.longrun.studies import run_closed_forms
from simcluster.longrun.studies.advice_nodes import SHORT, fewest_spares
from simcluster.longrun.studies.run_builder import require_run_section
from simcluster.longrun.studies.training import split_into_stages
from simcluster.model.layers import parameters
from simcluster.scenario.checkpoint_plan import (
    checkpoint_bytes,
    checkpoint_bytes_per_parameter,
    describe_host_memory,
    host_checkpoint_bytes,
)
from simcluster.scenario.job_conversion import unpadded_tokens_per_step
from simcluster.scenario.memory_plan import describe_recipe, recipe_of
from simcluster.studies.whatif.remedies import Values, Verdict, grade_number

_PADDING = 0.05, 0.30
_EPOCHS = 4.0, 40.0  # arXiv:2305.16264, figure 1: nearly as good as new up to 4, worthless from 40 on
_UNPRODUCTIVE = 0.10, 0.50
_VALIDATION = _LATE = 0.02, 0.10


def _check_tokens(launch: RunUnderCheck) -> CheckFinding:
    scenario, training = launch.scenario, launch.scenario.training
    whole, real = scenario.tokens_per_step, unpadded_tokens_per_step(scenario)
    found = (
        f"{whole:,} = {training.global_batch:,} sequences (micro batch {training.micro_batch} x "
        f"{scenario.microbatches:,} x dp {scenario.dp}) x {scenario.model.sequence_length:,}{_describe_stage(launch)}"
    )
    packed = scenario.data is not None and scenario.data.documents is not None
    if packed:
        found += f"; {real:,.0f} real ({real / whole:.1%}), the rest is padding"
    advice = "another data.packing: simcluster packing SCENARIO compares them"
    return CheckFinding(grade_number(1 - real / whole, *_PADDING), found, advice)


def _describe_stage(launch: RunUnderCheck) -> str:
    return f" in stage {launch.stage}, which has most tokens" if launch.stage else ""


def tokens_at_run_end(launch: RunUnderCheck) -> float:
    """Return the number of tokens after which a run ends; infinity if the run ends by time alone."""
    section = require_run_section(launch.whole)
    if section.steps is not None:
        return section.steps * unpadded_tokens_per_step(launch.whole)
    if section.loss is not None:
        return tokens_to_loss(launch.whole, section.loss, section.law)
    return math.inf if section.tokens is None else section.tokens


def _check_budget(launch: RunUnderCheck) -> CheckFinding:
    tokens, section = tokens_at_run_end(launch), require_run_section(launch.whole)
    if math.isinf(tokens):
        return CheckFinding(
            "warn", f"{(section.days or 0.0) / DAY:g} days, and the number of tokens is not set",
            "run.tokens, run.steps or run.loss instead of run.days",
        )  # fmt: skip
    stages = split_into_stages(launch.whole) if section.stages else [launch.whole]
    steps, trained = 0, 0.0
    for scenario in stages:
        each, run = unpadded_tokens_per_step(scenario), require_run_section(scenario)
        count = math.ceil((run.tokens if section.stages and run.tokens else tokens) / each - 1e-9)
        steps, trained = steps + count, trained + count * each
    size = parameters(launch.whole.model).total
    how = f"in {len(stages)} stages" if section.stages else f"x {unpadded_tokens_per_step(launch.whole):,.0f} tokens"
    by_loss = f" (a loss of {section.loss:g})" if section.loss is not None else ""
    asked = f", which is {trained / tokens:.4f} of {format_tokens(tokens)} requested{by_loss}"
    found = f"{steps:,} steps {how} = {format_tokens(trained)}{asked}; {tokens / size:.3g} tokens per parameter"
    whole = trained < 1.01 * tokens
    return CheckFinding(
        "pass" if whole else "warn", found, "a smaller training.global_batch, as the last step exceeds the request"
    )


def _check_epochs(launch: RunUnderCheck) -> CheckFinding | None:
    data, tokens = launch.whole.data, tokens_at_run_end(launch)
    if data is None:
        return None
    if data.unique is None:
        return CheckFinding("warn", "the number of unique tokens is not set", "set data.unique, as in 2T")
    if math.isinf(tokens):
        tokens = launch.simulated_runs.tokens
    epochs = tokens / data.unique
    worth = RepeatedDataLaw(loss_law("muennighoff"), data.unique).fresh_equivalent_tokens(tokens) / data.unique
    found = f"{epochs:.3g} epochs of {format_tokens(data.unique)} tokens"
    found += f", worth {worth:.3g} epochs of fresh tokens" if epochs > 1 else ""
    return CheckFinding(
        grade_number(epochs, *_EPOCHS), found, "more data, a larger model on fewer tokens, or a smaller budget"
    )


def _check_days_and_dollars(launch: RunUnderCheck) -> CheckFinding:
    played = launch.simulated_runs
    row = played.numbers.loc["days"].astype(float).to_dict()
    days = f"{row['mean']:.4g} days"
    if row["p95"] - row["p5"] > 1e-3 * row["mean"]:
        days += f" ({row['p5']:.4g} to {row['p95']:.4g} in 90 % of runs)"
    hours, dollars = (np.mean(each) if each is not None else None for each in (played.gpu_hours, played.dollars))
    cost = "no price is set (run.price)" if dollars is None else format_whole_dollars(float(dollars))
    return CheckFinding(
        grade_number(1 - played.goodput, *_UNPRODUCTIVE),
        f"{days}, {_format_count(float(hours or 0.0))} GPU-hours, {cost}; goodput {played.goodput:.2%} ({RUNS} runs)",
        "simcluster train SCENARIO shows the wall-clock breakdown; simcluster advise interval, spares, restart",
    )


def _format_count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _check_failures(launch: RunUnderCheck) -> CheckFinding:
    run, section = launch.run, launch.section
    rate = job_stop_rate(run)
    if not rate:
        advice = "set failures: published ones, or those of your log (simcluster failures)"
        return CheckFinding(
            "warn", "no failure stops the job, which is unrealistic", advice, ({"run.failures": "llama3"},)
        )
    known = [f"the catalogue's {section.failures.of}"] if section.failures.of else []
    known += [f"{len(section.failures.also)} of the scenario"] if section.failures.also else []
    stops = sum(cause.stops_job for cause in run.causes)
    expected = launch.simulated_runs.numbers["mean"].astype(float).to_dict()["failures"]
    found = f"one in {1 / rate / 3600:.4g} h ({run.gpus / rate / 3600:,.0f} h per GPU){_describe_stage(launch)}"
    found += f", {_format_count(expected)} in the run on average: {stops} causes, {' and '.join(known)}"
    return CheckFinding("pass", found)


def _check_validation(launch: RunUnderCheck) -> CheckFinding:
    spec, step = launch.section.validation, launch.states.healthy_step_time
    if spec is None:
        tries: Values = {"run.validation": {"every": "1000 steps", "batches": 50}}
        return CheckFinding("warn", "none is planned", "set the interval and the number of batches", (tries,))
    each = launch.states.validation_seconds_per_step(spec)
    share = each / (step + each)
    rarer = math.ceil(each * spec.every * (1 / _VALIDATION[0] - 1) / step)
    found = f"{share:.2%}: {format_seconds(each * spec.every)} every {spec.every:,} steps"
    advice = "validate less often, or on fewer batches"
    return CheckFinding(grade_number(share, *_VALIDATION), found, advice, ({"run.validation.every": f"{rarer} steps"},))


def _check_loader(launch: RunUnderCheck) -> CheckFinding | None:
    data, result = launch.scenario.data, launch.states.result
    if data is None or data.loader is None:
        return None
    late = result.loading.exposed_seconds if result.loading else 0.0
    found = f"{late / result.step_time:.1%} of the step waits for batches ({data.loader.describe()})"
    enough = math.ceil(result.loading.batch / result.loading.step) if result.loading else 1
    return CheckFinding(
        grade_number(late / result.step_time, *_LATE), found, f"set data.loader.workers to {enough}, prefetch above 0"
    )


_REPEATED = "at most 4: repeated tokens lose value beyond 4 epochs, all of it from 40 on (arXiv:2305.16264)"
BUDGET = (
    RunCheck("tokens per step", "batch x length as intended; at most 5 % of it padding", _check_tokens),
    RunCheck("budget", "steps x tokens per step equals the request, to 1 %", _check_budget),
    RunCheck("epochs", _REPEATED, _check_epochs),
    RunCheck("validation", "below 2 % of the time; fails above 10 %", _check_validation),
    RunCheck("data loader", "keeps up: at most 2 % of the step waits for batches; fails above 10 %", _check_loader),
)
_PRODUCTIVE = "at least 90 % of the wall time is productive; fails below 50 %"
OUTCOME = (
    RunCheck("failures", "failures that stop the job are set, with their rates", _check_failures),
    RunCheck("days and dollars", _PRODUCTIVE, _check_days_and_dollars),
)


_OVERHEAD = 0.05, 0.15
_SHORT = SHORT, 0.05
_MOST_SPARES = 2000


class CheckpointOverhead(NamedTuple):
    """First-order checkpoint cost in shares of time: saving, redone work after failures, and their sum.

    T/(K t) + K t/(2 M): T seconds of a checkpoint, K steps of t between two, M between failures. An asynchronous write
    is safe only when it ends (B/M more); with copies in peers' memory each kind of failure has its own K.
    """

    saving: float
    redone: float
    whole: float

    @classmethod
    def from_run(cls, run: LongRun) -> CheckpointOverhead:
        """Return the first-order checkpoint cost of a long run."""
        pattern, rates = run.pattern, run_closed_forms.RollbackRates.from_causes(run.causes)
        work = pattern.steps * pattern.step_with_validation
        near, last = pattern.memory or pattern.storage, pattern.storage
        seconds = [pattern.verify + saving.stall + saving.slowed * saving.write for saving in (near, last)]
        again = rates.memory * (work / 2 + near.write)
        again += (rates.storage + rates.silent) * (work * pattern.snapshots_per_stored / 2 + last.write)
        saving = ((pattern.snapshots_per_stored - 1) * seconds[0] + seconds[1]) / (work * pattern.snapshots_per_stored)
        return cls(saving, again, saving + again)


def _check_checkpoint_interval(launch: RunUnderCheck) -> CheckFinding:
    run = launch.run
    pattern, cost, spec = run.pattern, CheckpointOverhead.from_run(run), launch.section.checkpoint
    saving = pattern.storage
    takes = f"{format_seconds(saving.stall)} stopped"
    takes += f", {format_seconds(saving.write)} written asynchronously" if saving.write else ""
    takes += f", one in {pattern.snapshots_per_stored} copies goes to storage" if pattern.memory else ""
    every = f"every {pattern.steps:,} step{'s' * (pattern.steps > 1)} = {format_seconds(pattern.steps * pattern.step)}"
    found = f"{cost.whole:.2%} = {cost.saving:.2%} saving ({takes}) + {cost.redone:.2%} redone work, {every}"
    try:
        best = run_closed_forms.best_interval_steps(run)
    except InputError:  # nothing fails
        return CheckFinding(grade_number(cost.whole, *_OVERHEAD), found, "write less often")
    least = CheckpointOverhead.from_run(replace(run, pattern=replace(pattern, steps=best)))
    better = least.whole < cost.whole  # the best is exact, the points are to first order
    at_best = f"; {least.whole:.2%} at the optimum, every {best:,} step{'s' * (best > 1)}"
    tries: list[Values] = [{"run.checkpoint.every": f"{best if better else pattern.steps} steps"}]
    if spec.mode == "blocking" and spec.stall is None:
        tries.append({"run.checkpoint.mode": "snapshot", "run.checkpoint.every": "auto"})
    advice = "faster storage (run.checkpoint.to), fewer failures"
    found += at_best if better else "; near the optimum"
    return CheckFinding(grade_number(cost.whole, *_OVERHEAD), found, advice, tuple(tries))


def _check_resume_state(launch: RunUnderCheck) -> CheckFinding:
    scenario, spec, recipe = launch.scenario, launch.section.checkpoint, recipe_of(launch.scenario)
    each, needed = checkpoint_bytes_per_parameter(scenario, spec), recipe.gathered_weight + recipe.optimizer
    optimizer = "m, v and 32-bit weights" if recipe.master else "m and v"
    has = f"weights {recipe.gathered_weight:g}, {optimizer} {recipe.optimizer:g}"
    size = format_bytes(checkpoint_bytes(scenario, spec))
    found = f"{each:g} of {needed:g} B per parameter ({has}), {size}; plus step, rng, schedule and loader (small)"
    short = each < needed - 1e-9
    verdict: Verdict = "fail" if each < recipe.gathered_weight - 1e-9 else "warn" if short else "pass"
    tries: tuple[Values, ...] = ({"run.checkpoint.bytes_per_parameter": needed},) if short else ()
    return CheckFinding(verdict, found, "save all of the optimizer's state", tries)


def _check_host_memory(launch: RunUnderCheck) -> CheckFinding:
    scenario, held = launch.scenario, launch.states.result.host_memory
    words, warns = describe_host_memory(scenario, held, launch.section.checkpoint)
    there = scenario.cluster.topology.host_memory
    short = there is not None and held + host_checkpoint_bytes(scenario, launch.section.checkpoint) > there.size
    if not words:
        return CheckFinding("pass", "the job keeps nothing in host memory")
    verdict: Verdict = "fail" if short else "warn" if warns else "pass"
    advice = "checkpoints that stop training (mode: blocking) keep nothing there"
    return CheckFinding(verdict, words.removeprefix("host memory").removeprefix(": ").strip(), advice)


def _check_spares(launch: RunUnderCheck) -> CheckFinding:
    run, repairs = launch.run, run_closed_forms.RepairDemand.from_run(launch.run)
    if not repairs.rate:
        return CheckFinding("pass", "no failure removes a node")
    load = f"{repairs.rate * repairs.repair:.3g} nodes in repair on average"
    if not repairs.single_nodes:
        pool = "an unlimited pool is assumed" if run.spares.unlimited else str(run.spares.count)
        found = f"{pool}; {load}; a failure removes several nodes at once, so Erlang B does not hold"
        return CheckFinding("warn", found, "simcluster advise spares simulates how many are enough")
    least = fewest_spares(run, _MOST_SPARES)
    if least is None:
        return CheckFinding(
            "fail", f"{load}: more than {run.spares.crews} crews can repair", "more crews, shorter repairs"
        )
    enough = f"at least {least} for a shortage below {SHORT:.1%} of the time"
    kind = max(("warm", "hot", "cold"), key=lambda name: int(getattr(run.spares, name)))
    fix: dict[str, Any] = {f"run.spares.{kind}": least - run.spares.count + int(getattr(run.spares, kind))}
    if run.spares.unlimited:
        fix = {"run.spares.warm": least, "run.spares.unlimited": False}
        return CheckFinding("warn", f"an unlimited pool is assumed; {load}; {enough}", "", (fix,))
    short = run_closed_forms.expected_shortage_share(run, run.spares.count)
    on = ", in which it continues with fewer replicas" if run.shrunk_paces else ""
    verdict = grade_number(short, *_SHORT)
    found = f"{run.spares.count}: short of nodes {short:.2%} of the time{on} (Erlang B; {load}); {enough}"
    return CheckFinding(verdict, found, "more spares, or shorter repairs", (fix,))


def _check_memory_recipe(launch: RunUnderCheck) -> CheckFinding:
    said = launch.scenario.training.memory_recipe is not None
    tries: Values = {"training.memory_recipe": recipe_of(launch.scenario).name}
    return CheckFinding(
        "pass" if said else "warn", describe_recipe(launch.scenario), "set training.memory_recipe", (tries,)
    )


_OFTEN = "saving and redone work take at most 5 % of the time (fails above 15 %); each write ends before the next"
STATE = (
    RunCheck("checkpoint interval", _OFTEN, _check_checkpoint_interval),
    RunCheck("resume state", "a checkpoint holds weights and all of the optimizer's state", _check_resume_state),
    RunCheck("memory recipe", "bytes per parameter are set, not derived from the precision", _check_memory_recipe),
    RunCheck("host memory", "snapshots and offloaded state fit, with 10 % left", _check_host_memory),
    RunCheck("spares", "short of nodes at most 0.1 % of the time; fails above 5 %", _check_spares),
)
