"""The points of a launch about its budget: tokens a step, steps, epochs, days, dollars, and goodput."""

from __future__ import annotations

import math

from simcluster.base.counts import format_tokens, whole_dollars
from simcluster.base.units import DAY, format_seconds
from simcluster.longrun.budget.loss_laws import loss_law
from simcluster.longrun.budget.repetition import RepeatedData
from simcluster.longrun.ending import stop_rate
from simcluster.longrun.launch.launch import RUNS, Launch
from simcluster.longrun.launch.run_point import RunCheck, Seen
from simcluster.longrun.studies.losses import tokens_to_loss
from simcluster.longrun.studies.train import TrainingRun
from simcluster.longrun.studies.train_stages import stage_scenarios
from simcluster.model.parameters import parameters
from simcluster.scenario.job import real_tokens_per_step
from simcluster.studies.whatif.remedies import Values, graded

_PADDING = 0.05, 0.30
_EPOCHS = 4.0, 40.0  # arXiv:2305.16264, figure 1: nearly as good as new up to 4, worthless from 40 on
_UNPRODUCTIVE = 0.10, 0.50
_VALIDATION = _LATE = 0.02, 0.10


def _tokens(launch: Launch) -> Seen:
    scenario, training = launch.scenario, launch.scenario.training
    whole, real = scenario.tokens_per_step, real_tokens_per_step(scenario)
    found = (
        f"{whole:,} = {training.global_batch:,} sequences (micro batch {training.micro_batch} x "
        f"{scenario.microbatches:,} x dp {scenario.dp}) x {scenario.model.sequence_length:,}{_stage(launch)}"
    )
    packed = scenario.data is not None and scenario.data.documents is not None
    if packed:
        found += f"; {real:,.0f} real ({real / whole:.1%}), the rest is padding"
    advice = "another data.packing: simcluster packing SCENARIO has what each makes of the documents"
    return Seen(graded(1 - real / whole, *_PADDING), found, advice)


def _stage(launch: Launch) -> str:
    return f" in stage {launch.stage}, which has most tokens" if launch.stage else ""


def goal_tokens(launch: Launch) -> float:
    """Tokens until the run ends; infinite where only time ends it."""
    section = launch.whole.run
    assert section is not None
    if section.steps is not None:
        return section.steps * real_tokens_per_step(launch.whole)
    if section.loss is not None:
        return tokens_to_loss(launch.whole, section.loss, section.law)
    return math.inf if section.tokens is None else section.tokens


def _budget(launch: Launch) -> Seen:
    tokens, section = goal_tokens(launch), launch.whole.run
    assert section is not None
    if math.isinf(tokens):
        return Seen(
            "warn", f"{(section.days or 0.0) / DAY:g} days end it, and nothing says how many tokens they must be",
            "run.tokens, run.steps or run.loss in place of run.days",
        )  # fmt: skip
    stages = stage_scenarios(launch.whole) if section.stages else [launch.whole]
    steps, trained = 0, 0.0
    for scenario in stages:
        each, run = real_tokens_per_step(scenario), scenario.run
        assert run is not None
        count = math.ceil((run.tokens if section.stages and run.tokens else tokens) / each - 1e-9)
        steps, trained = steps + count, trained + count * each
    size = parameters(launch.whole.model).total
    how = f"in {len(stages)} stages" if section.stages else f"x {real_tokens_per_step(launch.whole):,.0f} tokens"
    asked = f", which is {trained / tokens:.4f} of {_asked(section.loss, tokens)}"
    found = f"{steps:,} steps {how} = {format_tokens(trained)}{asked}; {tokens / size:.3g} tokens a parameter"
    whole = trained < 1.01 * tokens
    return Seen("pass" if whole else "warn", found, "a smaller training.global_batch: the last step is beyond it")


def _asked(loss: float | None, tokens: float) -> str:
    """What the run asks for."""
    return f"{format_tokens(tokens)} asked for" + (f" (a loss of {loss:g})" if loss is not None else "")


def _epochs(launch: Launch) -> Seen | None:
    data, tokens = launch.whole.data, goal_tokens(launch)
    if data is None:
        return None
    if data.unique is None:
        return Seen("warn", "nobody says how many different tokens there are", "say it: data.unique: 2T")
    if math.isinf(tokens):
        tokens = launch.played.tokens
    epochs = tokens / data.unique
    worth = RepeatedData(loss_law("muennighoff"), data.unique).tokens(tokens) / data.unique
    found = f"{epochs:.3g} of {format_tokens(data.unique)} tokens"
    found += f", worth {worth:.3g} of fresh ones" if epochs > 1 else ""
    return Seen(graded(epochs, *_EPOCHS), found, "more data, a larger model on fewer tokens, or a smaller budget")


def _days(launch: Launch) -> Seen:
    played = launch.played
    row = played.numbers.loc["days"].astype(float).to_dict()
    days = f"{row['mean']:.4g} days"
    if row["p95"] - row["p5"] > 1e-3 * row["mean"]:
        days += f" ({row['p5']:.4g} to {row['p95']:.4g} in nine runs of ten)"
    hours = played.gpu_hours if isinstance(played, TrainingRun) else float(played.gpu_hours.mean())
    dollars = played.dollars if isinstance(played, TrainingRun) else _mean(played.dollars)
    cost = "no price is given (run.price)" if dollars is None else whole_dollars(dollars)
    return Seen(
        graded(1 - played.goodput, *_UNPRODUCTIVE),
        f"{days}, {_count(hours)} GPU-hours, {cost}; goodput {played.goodput:.2%} ({RUNS} runs played)",
        "simcluster train SCENARIO says where the wall went; simcluster advise interval, spares, restart",
    )


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _mean(values: object) -> float | None:
    import numpy as np

    return None if values is None else float(np.mean(np.asarray(values)))


def _failures(launch: Launch) -> Seen:
    run, section = launch.run, launch.section
    rate = stop_rate(run)
    if not rate:
        advice = "name failures: those of a run that was watched, or of one's own log (simcluster failures)"
        return Seen("warn", "nothing stops the job, and something will", advice, ({"run.failures": "llama3"},))
    known = [f"the catalogue's {section.failures.of}"] if section.failures.of else []
    known += [f"{len(section.failures.also)} of its own"] if section.failures.also else []
    stops = sum(cause.stops for cause in run.causes)
    expected = launch.played.numbers["mean"].astype(float).to_dict()["failures"]
    found = f"one in {1 / rate / 3600:.4g} h ({run.gpus / rate / 3600:,.0f} h a GPU){_stage(launch)}"
    found += f", {_count(expected)} in the run on average: {stops} causes, {' and '.join(known)}"
    return Seen("pass", found)


def _validation(launch: Launch) -> Seen:
    spec, step = launch.section.validation, launch.states.healthy
    if spec is None:
        tries: Values = {"run.validation": {"every": "1000 steps", "batches": 50}}
        return Seen("warn", "none is planned", "say how often, and how many batches", (tries,))
    each = launch.states.validating(spec)
    share = each / (step + each)
    rarer = math.ceil(each * spec.every * (1 / _VALIDATION[0] - 1) / step)
    found = f"{share:.2%}: {format_seconds(each * spec.every)} every {spec.every:,} steps"
    advice = "less often, or on fewer batches"
    return Seen(graded(share, *_VALIDATION), found, advice, ({"run.validation.every": f"{rarer} steps"},))


def _loader(launch: Launch) -> Seen | None:
    data, result = launch.scenario.data, launch.states.result
    if data is None or data.loader is None:
        return None
    late = result.loading.exposed if result.loading else 0.0
    found = f"{late / result.step_time:.1%} of the step waits for batches ({data.loader.in_words()})"
    enough = math.ceil(result.loading.batch / result.loading.step) if result.loading else 1
    return Seen(graded(late / result.step_time, *_LATE), found, f"data.loader.workers: {enough}, and prefetch above 0")


_REPEATED = "at most 4: beyond, repeated tokens fade, from 40 on they are worthless (arXiv:2305.16264)"
BUDGET = (
    RunCheck("tokens a step", "batch x length as intended; at most 5 % of it padding", _tokens),
    RunCheck("budget", "steps x tokens a step is what is asked for, to 1 %", _budget),
    RunCheck("epochs", _REPEATED, _epochs),
    RunCheck("validation", "below 2 % of the time; above 10 % it is wrong", _validation),
    RunCheck("data loader", "keeps up: at most 2 % of the step waits for batches, above 10 % it is wrong", _loader),
)
OUTCOME = (
    RunCheck("failures", "what stops the job is named, with how often", _failures),
    RunCheck("days and dollars", "at least 90 % of the wall is productive; below 50 % something is wrong", _days),
)
