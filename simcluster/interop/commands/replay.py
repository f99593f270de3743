"""Command ``simcluster replay``: replay a recorded job, find its stragglers, answer what-if questions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.arrays import Floats
from simcluster.base.counts import parse_numbers
from simcluster.base.errors import InputError
from simcluster.base.processes import WorkerPool, count_cores, process_context
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.alike import group_rows
from simcluster.cli.common import read_cluster_overrides
from simcluster.cli.terminal import set_progress
from simcluster.documents.given_files import missing_file_hint
from simcluster.interop.commands import profile_report as report
from simcluster.interop.kineto import is_profile, load_profiles
from simcluster.interop.kineto import profile_metrics as metrics
from simcluster.interop.kineto.profile_writer import write_profiles
from simcluster.interop.replay import Recorded, Straggling, load_trace, measure
from simcluster.interop.replay import straggler_metrics as stragglers
from simcluster.interop.replay.questions import ReplayAnswer, answer_question, find_job_schedule
from simcluster.show.blocks import Block, Lines, TableBlock
from simcluster.show.pictures import picture

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.show.pictures import Figure

_SHOWN = 5
_SCHEDULE_ASSUMPTIONS = """\
  another schedule: I and W take half of the measured backward each; a stage's time is split evenly over its chunks,
  and the extra time of the last stage stays with the end of the model"""


def run(args: argparse.Namespace) -> None:
    """Replay a recorded job, print its stragglers and what-if answers, and write the requested files."""
    given = [*args.set, *args.overrides]
    if given and not args.cluster:
        raise InputError(
            f"{given[0]}: overrides change the cluster, and none is named (--cluster dgx_h100); to ask about the "
            f"job write --what-if {given[0]}"
        )
    steps = None if args.steps is None else parse_numbers(args.steps, "--steps", "step")
    if is_profile(args.trace):
        _replay_profiles(args, steps)
        return
    if not Path(args.trace).exists():
        raise InputError(
            f"cannot read {args.trace}: there is no such file or folder; give the path of a trace, "
            f"or of a folder of profiles{missing_file_hint(Path(args.trace), '.parquet')}"
        )
    if args.export or args.cluster:
        raise InputError("--export and --cluster are for PyTorch profiles: give their folder")
    _replay_trace(args, steps)


def _replay_trace(args: argparse.Namespace, steps: Sequence[int] | None) -> None:
    set_progress(f"reading {args.trace}")
    job = load_trace(args.trace, steps)
    set_progress(f"replaying {len(job.ranks)} ranks, {len(job.steps)} steps")
    with _check_on_event_engine(job) as counted:
        answers = [answer_question(job, question) for question in args.what_if]
        found, schedule, seconds = measure(job), find_job_schedule(job), stragglers.rank_wait_seconds(job)
        events = counted(found)
    microbatches = max(int(graph.microbatch.max()) for graph in job.graphs) + 1
    head = (
        f"{job.name}: {job.replicas} dp ranks x {job.stages} stages, {microbatches} microbatches"
        f"{f', {schedule}' if schedule else ''}; {len(job.steps)} steps"
    )
    step = _step_lines(
        found, "mean per step", ": delays between ops are removed", "if every op took the typical time of its type"
    )
    assumed = [_SCHEDULE_ASSUMPTIONS] if any("schedule=" in answer.question for answer in answers) else []
    above: list[Block] = [Lines([head]), Lines(step), *straggler_blocks(found)]
    document = {
        "trace": job.name, "dp_ranks": job.replicas, "stages": job.stages, "schedule": schedule or None,
        **found.to_dict(),
    }  # fmt: skip
    _print_report(args, job, above, _answers_table(answers, assumed), document, answers, seconds, events)

    def heatmap() -> Figure:
        from simcluster.show.heatmaps import straggler_heatmap

        title = f"{job.name}: steps take {found.slowdown - 1:.1%} longer; slowdown by worker"
        return straggler_heatmap(
            found.by_worker, by_replica=found.by_replica.tolist(), by_stage=found.by_stage.tolist(), title=title,
            worst=found.worst,
        )  # fmt: skip

    _draw_pictures(args, job, lambda: stragglers.replayed_spans(job).frame(), heatmap)


def _replay_profiles(args: argparse.Namespace, steps: Sequence[int] | None) -> None:
    if args.export and len(args.what_if) > 1:
        raise InputError("--export writes one timeline: give at most one --what-if (join several changes with +)")
    cluster = None
    if args.cluster:
        from simcluster.scenario.files import load_cluster

        cluster = load_cluster(args.cluster, read_cluster_overrides(args))
    job = load_profiles(
        args.trace,
        steps,
        workers=count_cores(),
        progress=lambda done, total: set_progress(f"{done} of {total} profiles read"),
    )
    set_progress(f"replaying {len(job.ranks)} ranks, {sum(map(len, job.graphs)):,} ops")
    with _check_on_event_engine(job) as counted:
        answers = [metrics.answer_profile_question(job, question) for question in args.what_if]
        found, seconds = measure(job), stragglers.rank_wait_seconds(job)
        ranks, parts = metrics.rank_breakdown(job), metrics.layer_times(job)
        calls = metrics.collective_bandwidths(job, cluster)
        events = counted(found)
    written = []
    if args.export:
        what = f"with {args.what_if[0]}" if args.what_if else "as replayed"
        paths = write_profiles(metrics.job_with_changes(job, args.what_if[0]) if args.what_if else job, args.export)
        written = [f"wrote {len(paths)} profiles {what} to {args.export}"]
    step = _step_lines(
        found, "mean per step, first start to last end", "", "if every op took its typical time over ranks and steps",
    )  # fmt: skip
    above: list[Block] = [Lines([report.job_headline(job), *step]), report.ranks_table(found, ranks)]
    below: list[Block] = [
        _types_table(found, report.MAX_ROWS), *report.layers_table(job, parts), *report.collectives_table(calls),
        *_answers_table(answers), Lines(written),
    ]  # fmt: skip
    document = report.report_document(job, found, ranks, parts, calls)
    _print_report(args, job, above, below, document, answers, seconds, events)
    _draw_pictures(args, job, lambda: metrics.profile_spans(job).frame(), lambda: report.draw_heatmap(job, found))


@contextmanager
def _check_on_event_engine(job: Recorded) -> Iterator[Callable[[Straggling], int]]:
    """Check a replay on the event engine too, on another core if there is one.

    Yields a function that returns the number of events; both methods must agree to the bit.
    """
    crew = None
    if (
        count_cores() > 1 and process_context().get_start_method() == "fork"
    ):  # else the job would have to be copied to the process
        _ = job.programs  # computed once, for both processes
        crew = WorkerPool(partial(_simulate_events, job), 1)
        crew.submit(0, None)

    def events(found: Straggling) -> int:
        answer = crew.wait_for_results([0])[0][1] if crew else None
        times, count = answer or job.simulate_events()
        if (times != found.replayed).any():
            raise RuntimeError("the event engine and the longest path disagree on a replayed step")
        return count

    try:
        yield events
    finally:
        if crew:
            crew.close(now=True)


def _simulate_events(job: Recorded, task: None) -> tuple[Floats, int]:
    return job.simulate_events()


def _print_report(
    args: argparse.Namespace, job: Recorded, above: Sequence[Block], below: Sequence[Block],
    document: Mapping[str, Any], answers: Sequence[ReplayAnswer], seconds: Floats, events: int,
) -> None:  # fmt: skip
    pairs = stragglers.longest_waits(seconds, seconds.size)
    count = f"{len(job.steps)} step{'s' * (len(job.steps) != 1)}"
    how = (
        f"replayed {count} as {events:,} events; what-ifs and slowdowns use longest paths through the same program, "
        "with times equal to the bit"
    )
    notes = Lines([f"note: {note}" for note in job.notes])
    blocks = [*above, *_waits_table(job, pairs), *below, notes, Lines([how])]
    whole = {
        **document,
        "what_if": [
            {
                "question": a.question, "step_time_s": a.changed_seconds, "before_s": a.recorded_seconds,
                "change": a.change,
            }
            for a in answers
        ],
        "notes": list(job.notes), "engine": {"events": events, "slowdowns": "longest paths through the same program"},
        "waits": [{"rank": job.ranks[one], "culprit": job.ranks[two], "seconds": each} for one, two, each in pairs],
    }  # fmt: skip
    common.print_answer(args, lambda: blocks, lambda: whole)


def _step_lines(found: Straggling, measured: str, error: str, ideal: str) -> list[str]:
    rows = (
        ("measured", found.measured, measured), ("replayed", found.replayed, f"mean error {found.error:.2%}{error}"),
        ("T_ideal", found.ideal, ideal),
    )  # fmt: skip
    lines = [f"  {name:<14}{format_seconds(times.mean()):>9}   {text}" for name, times, text in rows]
    low, high = found.by_step.min(), found.by_step.max()
    slow = f"slowdown by stragglers (single steps {low:.3f} to {high:.3f})"
    return [*lines, f"  {'S':<14}{found.slowdown:>9.4f}   {slow}"]


def _types_table(found: Straggling, most: int | None = None) -> TableBlock:
    rows = [[name, f"{value:.4f}"] for name, value in list(found.by_type.items())[:most]]
    return TableBlock(("op type", "S"), rows, title=["slowdown by op type alone"])


def straggler_blocks(found: Straggling) -> list[Block]:
    """Return the blocks of a recorded job's straggler metrics: by op type, stage, dp rank and worker."""
    ranked = sorted(enumerate(found.by_replica.tolist()), key=lambda entry: -entry[1])
    rows = [[f"stage {stage}", f"{value:.4f}"] for stage, value in enumerate(found.by_stage)]
    rows += [[f"dp rank {dp}", f"{value:.4f}"] for dp, value in ranked[:_SHOWN]]
    names = ", ".join(f"dp {dp} stage {stage} ({found.by_worker[dp, stage]:.3f})" for dp, stage in found.worst[:_SHOWN])
    more = f" and {len(found.worst) - _SHOWN} more" if len(found.worst) > _SHOWN else ""
    return [
        _types_table(found), TableBlock(("group", "S"), rows, title=["by stage, and the worst dp ranks"]),
        Lines([f"  the slowest 3 % of workers: {names}{more}", *stragglers.explain_slowdown(found)]),
    ]  # fmt: skip


def _answers_table(answers: Sequence[ReplayAnswer], assumed: Sequence[str] = ()) -> list[TableBlock]:
    rows = [["as recorded", format_seconds(answers[0].recorded_seconds), ""]] if answers else []
    rows += [[answer.question, format_seconds(answer.changed_seconds), f"{answer.change:+.2%}"] for answer in answers]
    return [TableBlock(("what if", "step", "change"), rows, notes=assumed)] if rows else []


def _waits_table(job: Recorded, pairs: Sequence[tuple[int, int, float]]) -> list[TableBlock]:
    named = ((f"rank {job.ranks[one]} for rank {job.ranks[two]}", [format_seconds(each)]) for one, two, each in pairs)
    rows = []
    for row in group_rows(named)[:_SHOWN]:
        more = len(row.names) - 1
        rows.append([row.names[0], *row.cells, f"and {more} more pair{'s' * (more > 1)}" if more else ""])
    title = "longest waits, total per step"
    return [TableBlock(("who for whom", "seconds", ""), rows, title=[title])] if rows else []


def _draw_pictures(
    args: argparse.Namespace, job: Recorded, timeline: Callable[[], pd.DataFrame], heatmap: Callable[[], Figure]
) -> None:
    made = cache(timeline)
    if args.timeline:
        common.write_table(args.timeline, made())

    def gantt() -> Figure:
        first = made()[made()["step"] == job.steps[0]]
        return picture("gantt")(
            first,
            title=f"{job.name}, step {job.steps[0]}, replayed",
            num_ranks=len(job.ranks),
            **common.picture_inches(args),
        )

    def matrix() -> Figure:
        from simcluster.show.heatmaps import plot_waits

        return plot_waits(stragglers.labelled_wait_matrix(job), title=f"{job.name}, replayed: who waits for whom")

    common.draw_pictures(args, (args.gantt, gantt), (args.matrix, matrix), (args.heatmap, heatmap))
