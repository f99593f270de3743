"""Objects in a line each: what ``repr`` gives, from numbers that are known already.

To add one: a function here, by the name of its class; without it a line has the fields that are numbers or words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import format_count
from simcluster.base.shown import clipped
from simcluster.base.units import DAY, format_bytes, format_bytes_per_second, format_seconds
from simcluster.show.layout import gpus_of_cluster, layout

if TYPE_CHECKING:
    from simcluster.interop.export.export import TraceFiles
    from simcluster.interop.own_trace.difference import TraceDifference
    from simcluster.longrun.budget.walls import Walls
    from simcluster.longrun.launch.check import LaunchCheck
    from simcluster.longrun.launch.first import FirstScenario
    from simcluster.longrun.studies.advised import Advice
    from simcluster.longrun.studies.comparing import PolicyComparison
    from simcluster.longrun.studies.replays import FailureReplay
    from simcluster.longrun.studies.train_stages import StagedTraining
    from simcluster.longrun.studies.training_run import TrainingRun
    from simcluster.results.critical_path import CriticalPath
    from simcluster.results.distribution import Distribution, MeanDifference
    from simcluster.results.played import Run
    from simcluster.results.result import Result
    from simcluster.scenario.scenario import Scenario
    from simcluster.schedules.comparison import PlayedSchedule
    from simcluster.studies.bench.collective import CollectiveTime
    from simcluster.studies.kernels import KernelRow
    from simcluster.studies.multi_job import Shared
    from simcluster.studies.search.plan import Found, Ranked
    from simcluster.studies.state_ladder import StateLadder
    from simcluster.studies.whatif.difference import Difference
    from simcluster.studies.whatif.free import Free
    from simcluster.studies.whatif.job_memory import JobMemory
    from simcluster.studies.whatif.largest import Largest
    from simcluster.studies.whatif.mitigations import Mitigation
    from simcluster.studies.whatif.sensitivities import Sensitivity
    from simcluster.studies.whatif.straggling import Cause, Stragglers
    from simcluster.topology import Cluster

_NAME = 70  # characters of a name


def _named(it: object, name: str, *parts: str) -> str:
    """ "Class(name: part, part)"."""
    return f"{type(it).__name__}({clipped(name, _NAME)}: {', '.join(part for part in parts if part)})"


def _step(seconds: float) -> str:
    return f"{format_seconds(seconds)} a step"


# --- steps ------------------------------------------------------------------------------------------------------------


def _run(run: Run) -> str:
    steps = f"{run.steps:,} steps" if run.steps > 1 else ""
    return _named(run, _step(run.step_time), f"{len(run.ranks):,} rank{'s' * (len(run.ranks) > 1)}", steps)


def _result(result: Result) -> str:
    facts, seconds = result.facts, result.step_time
    rate = f"{facts.tokens / seconds:,.0f} tokens/s"
    return _named(result, result.scenario.title, _step(seconds), rate, f"MFU {result.mfu:.1%}", f"{facts.ranks:,} GPUs")


def _scenario(scenario: Scenario) -> str:
    return _named(scenario, scenario.title, f"{clipped(gpus_of_cluster(scenario), 50)} | {layout(scenario)}")


def _cluster(cluster: Cluster) -> str:
    machines = len(set(cluster.host_of))
    gpus = f"{len(cluster.host_of):,} GPUs in {machines:,} machine{'s' * (machines > 1)}"
    return _named(cluster, cluster.name, gpus, f"{len(cluster.capacity):,} links")


def _critical_path(path: CriticalPath) -> str:
    kind, seconds = next(iter(path.by_kind().items()), ("nothing", 0.0))
    most = f"most of it {kind}, {seconds / path.seconds:.1%}" if path.seconds else ""
    return _named(path, _step(path.seconds), f"{len(path.number):,} spans", most)


# --- questions asked of a step ----------------------------------------------------------------------------------------


def _difference(found: Difference) -> str:
    sides = (
        f"{clipped(name, _NAME // 2)} {format_seconds(each.step_time)}"
        for name, each in zip(found.names, (found.base, found.other), strict=True)
    )
    return f"Difference({' -> '.join(sides)}: {found.seconds / found.base.step_time:+.1%})"


def _trace_difference(found: TraceDifference) -> str:
    one, two = found.names
    sides = (
        f"{clipped(one, _NAME // 2)} {format_seconds(found.played.seconds)}",
        f"{clipped(two, _NAME // 2)} {format_seconds(found.recorded.seconds)}",
    )
    return f"TraceDifference({' -> '.join(sides)}: {found.seconds / found.played.seconds:+.1%})"


def _first(found: FirstScenario) -> str:
    return _named(found, found.scenario.title, f"{found.scenario.gpus:,} GPUs", clipped(found.summary(), 90))


def _stragglers(found: Stragglers) -> str:
    dearest = f"dearest {found.causes[0].what}" if found.causes else "nothing straggles"
    return _named(found, _step(found.step_time), f"{found.slowdown:.4f} x the step without", clipped(dearest, 80))


def _cause(cause: Cause) -> str:
    return _named(cause, cause.what, f"costs {cause.cost:.1%}", f"{_step(cause.without)} without it")


def _distribution(found: Distribution) -> str:
    low, high = found.interval
    interval = f"{low:.6g} to {high:.6g} s" if len(found) > 1 else "unknown"
    mean = f"{format_seconds(found.mean)} a step on average"
    return _named(found, f"{len(found):,} replicas", mean, f"95 % interval {interval}",
                  f"{format_seconds(found.planned)} without chance")  # fmt: skip


def _mean_difference(found: MeanDifference) -> str:
    low, high = found.interval
    return _named(found, f"{found.mean:+.6g} s a step", f"95 % interval {low:+.6g} to {high:+.6g} s")


def _free(each: Free) -> str:
    return _named(each, each.kind, f"{_step(each.step_time)} if free", f"{format_seconds(each.on_path)} on the path")


def _mitigation(each: Mitigation) -> str:
    saved = f"saves {each.pays:+.1%} of the time, {each.pays_per_gpu:+.1%} of the GPU time"
    return _named(each, each.what, _step(each.step_time), saved)


def _sensitivity(each: Sensitivity) -> str:
    less = "" if each.loss is None else f"{each.loss:+.3f} % for 1 % less"
    return _named(each, each.resource, f"{-each.gain + 0.0:+.3f} % of the step for 1 % more", less)


def _kernel(row: KernelRow) -> str:
    shape = f"{row.m} x {row.k} -> {row.n}, " if row.m else ""
    return f"KernelRow({row.name} {row.phase}: {shape}{format_seconds(row.seconds)}, {row.roof})"


def _check(found: LaunchCheck) -> str:
    bad = f"failed: {', '.join(found.failed)}" if found.failed else ""
    return _named(found, found.result.scenario.title, found.verdict, f"{len(found.points)} points", clipped(bad, 80))


def _largest(found: Largest) -> str:
    fits = "nothing fits" if found.value is None else f"{found.value:,} fits in {format_bytes(found.capacity)}"
    return _named(found, found.path, fits, f"the scenario's own is {found.own:,}")


def _memory(found: JobMemory) -> str:
    most = max(held.total for held in found.stages)
    return _named(found, found.scenario.title, f"{most / 1e9:.1f} of {found.capacity / 1e9:.1f} GB on the fullest GPU",
                  f"{len(found.stages)} stage{'s' * (len(found.stages) > 1)}")  # fmt: skip


def _shared(each: Shared) -> str:
    return _named(each, each.result.scenario.title, f"{_step(each.step_time)} beside the others",
                  f"{each.slowdown:.4f} x that alone")  # fmt: skip


def _ranked(each: Ranked) -> str:
    place = each.layout
    return _named(each, f"tp {place.tp}, pp {place.pp}, dp {place.dp}, micro batch {place.micro_batch}",
                  _step(each.step_time), f"{each.memory / 1e9:.1f} GB a GPU")  # fmt: skip


def _found(found: Found) -> str:
    counts = f"{found.played:,} of {found.total:,} combinations played"
    if not found.best:
        return _named(found, found.base.name, counts)
    place = found.best[0].layout
    best = f"best tp {place.tp}, pp {place.pp}, dp {place.dp}, micro batch {place.micro_batch}"
    return _named(found, found.base.name, best, _step(found.best[0].step_time), counts)


def _records(found: Sequence[object]) -> str:
    """A list that is a table, too: how many of what, and the first."""
    kinds = " and ".join(dict.fromkeys(type(each).__name__ for each in found)) or "nothing"
    first = f": {found[0]!r}{', ...' if len(found) > 1 else ''}" if found else ""
    return f"Records({len(found):,} x {kinds}{first})"


def _trace_files(found: TraceFiles) -> str:
    last = found.files[-1] if len(found.files) == 1 else found.files[0].parent
    return _named(found, str(last), f"{len(found.ranks):,} of {found.of:,} ranks")


# --- benches ----------------------------------------------------------------------------------------------------------


def _collective(time: CollectiveTime) -> str:
    rate = f"bus bandwidth {format_bytes_per_second(time.busbw)}" if time.duration > 0 else ""
    what = f"{time.kind} of {format_bytes(time.size)} on {len(time.gpus):,} GPUs"
    return _named(time, what, format_seconds(time.duration), rate, time.algorithm)


def _schedule(played: PlayedSchedule) -> str:
    schedule = played.schedule
    counts = f"{schedule.num_stages} stages, {schedule.num_microbatches} microbatches"
    return _named(played, schedule.name, counts, f"makespan {float(played.timing.makespan):.6g}",
                  f"bubble {float(played.timing.bubble_over_total):.1%}")  # fmt: skip


# --- runs of weeks, and budgets ---------------------------------------------------------------------------------------


def _weeks(training: TrainingRun | StagedTraining, seconds: float) -> str:
    runs = f"{training.played:,} run{'s' * (training.played > 1)}"
    parts = f"{seconds / DAY:,.4g} days", f"goodput {training.goodput:.2%}", runs
    return _named(training, training.scenario.title, *parts)


def _training(training: TrainingRun) -> str:
    return _weeks(training, float(training.outcomes.wall.mean()))


def _staged(training: StagedTraining) -> str:
    return _weeks(training, float(training.wall.mean()))


def _replay(found: FailureReplay) -> str:
    last = found.last
    return _named(found, found.name, f"{last.days:,.4g} days", f"goodput {last.goodput:.2%}")


def _policies(found: PolicyComparison) -> str:
    return _named(found, f"{len(found.runs)} policies", f"{found.played:,} runs of each",
                  f"best {clipped(found.best, 60)}")  # fmt: skip


def _advice(found: Advice) -> str:
    return f"Advice({found.question}: {found.sentence})"


def _walls(found: Walls) -> str:
    tokens = "" if found.tokens is None else f"{format_count(found.tokens)} tokens"
    return _named(found, f"{format_count(found.parameters)} parameters", tokens, found.device, found.precision)


def _ladder(found: StateLadder) -> str:
    rungs = ", ".join(f"ZeRO {stage.zero} {format_bytes(stage.bytes)}" for stage in found.stages)
    return _named(found, f"{format_count(found.parameters)} parameters on {found.dp:,} x {found.device}", rungs)


SHOWN: Mapping[str, Callable[[Any], str]] = {
    "Advice": _advice,
    "Cause": _cause,
    "Cluster": _cluster,
    "CollectiveTime": _collective,
    "CriticalPath": _critical_path,
    "Difference": _difference,
    "Distribution": _distribution,
    "FailureReplay": _replay,
    "FirstScenario": _first,
    "Found": _found,
    "Free": _free,
    "JobMemory": _memory,
    "KernelRow": _kernel,
    "Largest": _largest,
    "LaunchCheck": _check,
    "MeanDifference": _mean_difference,
    "Mitigation": _mitigation,
    "PlayedSchedule": _schedule,
    "PolicyComparison": _policies,
    "Ranked": _ranked,
    "Records": _records,
    "Result": _result,
    "Run": _run,
    "Scenario": _scenario,
    "Sensitivity": _sensitivity,
    "Shared": _shared,
    "StagedTraining": _staged,
    "StateLadder": _ladder,
    "Stragglers": _stragglers,
    "TraceDifference": _trace_difference,
    "TraceFiles": _trace_files,
    "TrainingRun": _training,
    "Walls": _walls,
}
"""By the name of the class."""
