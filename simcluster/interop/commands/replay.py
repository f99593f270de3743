"""Command ``simcluster replay``: replay a recorded job, find its stragglers, answer what-if questions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.arrays import Floats
from simcluster.base.counts import parse_number_ranges
from simcluster.base.errors import InputError
from simcluster.base.processes import WorkerPool, count_cores, multiprocessing_context
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import read_cluster_overrides
from simcluster.cli.terminal import show_progress_text
from simcluster.documents.input_files import missing_file_hint
from simcluster.interop.commands import profile_report as report
from simcluster.interop.kineto import is_profile, load_profiles
from simcluster.interop.kineto import profile_metrics as metrics
from simcluster.interop.kineto.profile_writer import write_profiles
from simcluster.interop.replay import RecordedJob, StragglerMetrics, load_recorded_job, measure_stragglers
from simcluster.interop.replay import straggler_metrics as stragglers
from simcluster.interop.replay.questions import ReplayAnswer, answer_question, find_job_schedule
from simcluster.interop.replay.step_times import find_step_stragglers
from simcluster.show.output_blocks import OutputBlock, TableBlock, TextLines
from simcluster.show.plot_registry import load_plot

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.show.plot_registry import Figure

_MAX_SHOWN_ENTRIES = 5
_SCHEDULE_ASSUMPTIONS = """\
  schedule=: input and weight gradients (I, W) each take half of the measured backward; a stage's time is split evenly
  over its chunks; the extra time of the last stage stays with the last slice of the model"""


def run(args: argparse.Namespace) -> None:
    """Replay a recorded job, print its stragglers and what-if answers, and write the requested files."""
    given = [*args.set, *args.overrides]
    if given and not args.cluster:
        raise InputError(
            f"{given[0]}: overrides change the cluster, but --cluster is missing; name one (--cluster dgx_h100), or to "
            f"change the job write --what-if {given[0]}"
        )
    steps = None if args.steps is None else parse_number_ranges(args.steps, "--steps", "step")
    if is_profile(args.trace):
        _replay_profiles(args, steps)
        return
    if not Path(args.trace).exists():
        raise InputError(
            f"cannot read {args.trace}: there is no such file or folder; give the path of a trace, "
            f"or of a folder of profiles{missing_file_hint(Path(args.trace), '.parquet')}"
        )
    if args.export or args.cluster:
        raise InputError("--export and --cluster apply only to PyTorch profiles; name a folder of profiles")
    _replay_trace(args, steps)


def _replay_trace(args: argparse.Namespace, steps: Sequence[int] | None) -> None:
    show_progress_text(f"reading {args.trace}")
    job = load_recorded_job(args.trace, steps)
    show_progress_text(f"replaying {len(job.ranks)} ranks, {len(job.steps)} steps")
    with _check_on_event_engine(job) as counted:
        answers = [answer_question(job, question) for question in args.what_if]
        found, schedule, seconds = measure_stragglers(job), find_job_schedule(job), stragglers.rank_wait_seconds(job)
        events = counted(found)
    microbatches = max(int(graph.microbatch.max()) for graph in job.graphs) + 1
    head = (
        f"{job.name}: {job.replicas} dp ranks x {job.stages} stages, {microbatches} microbatches"
        f"{f', {schedule}' if schedule else ''}; {len(job.steps)} steps"
    )
    step = _step_time_lines(
        found, "mean per step", "; the replay omits delays between ops", "if every op took the typical time of its type"
    )
    assumed = [_SCHEDULE_ASSUMPTIONS] if any("schedule=" in answer.question for answer in answers) else []
    above: list[OutputBlock] = [TextLines([head]), TextLines(step), *straggler_blocks(found)]
    document = {
        "trace": job.name, "dp_ranks": job.replicas, "stages": job.stages, "schedule": schedule or None,
        **found.to_dict(),
    }  # fmt: skip
    _print_report(args, job, above, _what_if_table(answers, assumed), document, answers, seconds, events)

    def draw_straggler_heatmap() -> Figure:
        from simcluster.show.heatmaps import straggler_heatmap

        title = f"{job.name}: stragglers lengthen steps by {found.slowdown - 1:.1%}; slowdown by worker"
        return straggler_heatmap(
            found.by_worker, by_replica=found.by_replica.tolist(), by_stage=found.by_stage.tolist(), title=title,
            worst=found.worst,
        )  # fmt: skip

    _draw_pictures(args, job, lambda: stragglers.replayed_spans(job).to_frame(), draw_straggler_heatmap)


def _replay_profiles(args: argparse.Namespace, steps: Sequence[int] | None) -> None:
    if args.export and len(args.what_if) > 1:
        raise InputError("--export writes one timeline: give at most one --what-if (join several changes with +)")
    cluster = None
    if args.cluster:
        from simcluster.scenario.document_resolution import load_cluster

        cluster = load_cluster(args.cluster, read_cluster_overrides(args))
    job = load_profiles(
        args.trace,
        steps,
        workers=count_cores(),
        progress=lambda done, total: show_progress_text(f"{done} of {total} profiles read"),
    )
    show_progress_text(f"replaying {len(job.ranks)} ranks, {sum(map(len, job.graphs)):,} ops")
    with _check_on_event_engine(job) as counted:
        answers = [metrics.answer_profile_question(job, question) for question in args.what_if]
        found, seconds = measure_stragglers(job), stragglers.rank_wait_seconds(job)
        ranks, parts = metrics.rank_state_seconds(job), metrics.model_part_times(job)
        calls = metrics.collective_bandwidths(job, cluster)
        events = counted(found)
    written = []
    if args.export:
        what = f"with {args.what_if[0]}" if args.what_if else "as replayed"
        asked = metrics.apply_profile_what_if(job, args.what_if[0]) if args.what_if else job
        paths = write_profiles(asked, args.export)
        written = [f"wrote {len(paths)} profiles {what} to {args.export}"]
    step = _step_time_lines(
        found, "mean per step, first start to last end", "", "if every op took its typical time over ranks and steps",
    )  # fmt: skip
    above: list[OutputBlock] = [TextLines([report.job_headline(job), *step]), report.rank_time_table(found, ranks)]
    below: list[OutputBlock] = [
        _op_type_table(found, report.MAX_ROWS), *report.layer_time_table(job, parts), *report.collective_table(calls),
        *_what_if_table(answers), TextLines(written),
    ]  # fmt: skip
    document = report.make_report_document(job, found, ranks, parts, calls)
    _print_report(args, job, above, below, document, answers, seconds, events)
    _draw_pictures(args, job, lambda: metrics.profile_spans(job).to_frame(), lambda: report.draw_heatmap(job, found))


def print_step_stragglers(args: argparse.Namespace) -> None:
    """Print the stragglers in a file of step times by rank (``simcluster stragglers --steps``)."""
    given = [args.scenario] * bool(args.scenario) + ["--set"] * bool(args.set or args.overrides)
    given += [f"--{name}" for name in ("mitigate", "heatmap", "matrix") if getattr(args, name)]
    if given:
        raise InputError(f"--steps reads step times from a file and simulates nothing; remove {given[0]}, or --steps")
    found = find_step_stragglers(args.steps)
    common.print_answer(args, found.summary, found.to_dict)


@contextmanager
def _check_on_event_engine(job: RecordedJob) -> Iterator[Callable[[StragglerMetrics], int]]:
    """Check the replayed times by a replay on the event engine, in another process if possible.

    Yields a function that returns the number of events; both methods must agree to the bit.
    """
    crew = None
    # without fork the job would have to be copied to the process
    if count_cores() > 1 and multiprocessing_context().get_start_method() == "fork":
        _ = job.programs  # computed once, for both processes
        crew = WorkerPool(partial(_simulate_events, job), 1)
        crew.submit(0, None)

    def check_and_count_events(found: StragglerMetrics) -> int:
        answer = crew.wait_for_results([0])[0][1] if crew else None
        times, count = answer or job.simulate_events()
        if (times != found.replayed).any():
            raise RuntimeError("internal error: the event engine and the longest path give different step times")
        return count

    try:
        yield check_and_count_events
    finally:
        if crew:
            crew.close(at_once=True)


def _simulate_events(job: RecordedJob, task: None) -> tuple[Floats, int]:
    return job.simulate_events()


def _print_report(
    args: argparse.Namespace, job: RecordedJob, above: Sequence[OutputBlock], below: Sequence[OutputBlock],
    document: Mapping[str, Any], answers: Sequence[ReplayAnswer], seconds: Floats, events: int,
) -> None:  # fmt: skip
    pairs = stragglers.longest_waits(seconds, seconds.size)
    count = f"{len(job.steps)} step{'s' * (len(job.steps) != 1)}"
    how = (
        f"replayed {count} as {events:,} events; what-ifs and slowdowns are longest paths through the same ops, "
        "with bit-identical times"
    )
    notes = TextLines([f"note: {note}" for note in job.notes])
    blocks = [*above, *_longest_waits_table(job, pairs), *below, notes, TextLines([how])]
    whole = {
        **document,
        "what_if": [
            {
                "question": a.question, "step_time_s": a.changed_seconds, "before_s": a.recorded_seconds,
                "change": a.relative_change,
            }
            for a in answers
        ],
        "notes": list(job.notes), "engine": {"events": events, "slowdowns": "longest paths through the same program"},
        "waits": [{"rank": job.ranks[one], "culprit": job.ranks[two], "seconds": each} for one, two, each in pairs],
    }  # fmt: skip
    common.print_answer(args, lambda: blocks, lambda: whole)


def _step_time_lines(found: StragglerMetrics, measured: str, error: str, ideal: str) -> list[str]:
    rows = (
        ("measured", found.measured, measured), ("replayed", found.replayed, f"mean error {found.error:.2%}{error}"),
        ("T_ideal", found.ideal, ideal),
    )  # fmt: skip
    lines = [f"  {name:<14}{format_seconds(times.mean()):>9}   {text}" for name, times, text in rows]
    low, high = found.by_step.min(), found.by_step.max()
    slow = f"slowdown by stragglers (single steps {low:.3f} to {high:.3f})"
    return [*lines, f"  {'S':<14}{found.slowdown:>9.4f}   {slow}"]


def _op_type_table(found: StragglerMetrics, most: int | None = None) -> TableBlock:
    rows = [[name, f"{value:.4f}"] for name, value in list(found.by_type.items())[:most]]
    return TableBlock(("op type", "S"), rows, title=["slowdown if all other op types take typical times"])


def straggler_blocks(found: StragglerMetrics) -> list[OutputBlock]:
    """Return straggler metrics as output blocks: slowdown by op type, stage, dp rank and worker."""
    ranked = sorted(enumerate(found.by_replica.tolist()), key=lambda entry: -entry[1])
    rows = [[f"stage {stage}", f"{value:.4f}"] for stage, value in enumerate(found.by_stage)]
    rows += [[f"dp rank {dp}", f"{value:.4f}"] for dp, value in ranked[:_MAX_SHOWN_ENTRIES]]
    shown = found.worst[:_MAX_SHOWN_ENTRIES]
    names = ", ".join(f"dp {dp} stage {stage} ({found.by_worker[dp, stage]:.3f})" for dp, stage in shown)
    more = f" and {len(found.worst) - _MAX_SHOWN_ENTRIES} more" if len(found.worst) > _MAX_SHOWN_ENTRIES else ""
    table = TableBlock(("group", "S"), rows, title=["slowdown by stage, and of the slowest dp ranks"])
    text = f"  the slowest 3 % of workers: {names}{more}"
    return [_op_type_table(found), table, TextLines([text, *stragglers.explain_slowdown(found)])]


def _what_if_table(answers: Sequence[ReplayAnswer], assumed: Sequence[str] = ()) -> list[TableBlock]:
    rows = [["as recorded", format_seconds(answers[0].recorded_seconds), ""]] if answers else []
    rows += [[each.question, format_seconds(each.changed_seconds), f"{each.relative_change:+.2%}"] for each in answers]
    return [TableBlock(("what if", "step", "change"), rows, notes=assumed)] if rows else []


def _longest_waits_table(job: RecordedJob, pairs: Sequence[tuple[int, int, float]]) -> list[TableBlock]:
    named = ((f"rank {job.ranks[one]} for rank {job.ranks[two]}", [format_seconds(each)]) for one, two, each in pairs)
    rows = []
    for cells, names in list(report.merge_equal_rows(named).items())[:_MAX_SHOWN_ENTRIES]:
        more = len(names) - 1
        rows.append([names[0], *cells, f"and {more} more pair{'s' * (more > 1)}" if more else ""])
    title = "longest waits between ranks, total per step"
    return [TableBlock(("rank waits for rank", "time", ""), rows, title=[title])] if rows else []


def _draw_pictures(
    args: argparse.Namespace, job: RecordedJob, timeline: Callable[[], pd.DataFrame], heatmap: Callable[[], Figure]
) -> None:
    made = cache(timeline)
    if args.timeline:
        common.write_table(args.timeline, made())

    def draw_gantt() -> Figure:
        first = made()[made()["step"] == job.steps[0]]
        title = f"{job.name}, step {job.steps[0]}, replayed"
        size = common.picture_size_inches(args)
        return load_plot("gantt")(first, title=title, num_ranks=len(job.ranks), **size)

    def draw_wait_matrix() -> Figure:
        from simcluster.show.heatmaps import plot_waits

        return plot_waits(stragglers.labelled_wait_matrix(job), title=f"{job.name}, replayed: waits between ranks")

    common.draw_pictures(args, (args.gantt, draw_gantt), (args.matrix, draw_wait_matrix), (args.heatmap, heatmap))
