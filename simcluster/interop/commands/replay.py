"""simcluster replay: replay a recorded job, say who straggles, and ask what if."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import parse_numbers
from simcluster.base.errors import InputError
from simcluster.cli.common import format_table
from simcluster.cli.terminal import progress
from simcluster.documents.given_files import why_missing
from simcluster.interop.commands import waits
from simcluster.interop.kineto import is_profile
from simcluster.interop.recorded import Recorded, Straggling, load_trace, measure
from simcluster.interop.recorded.spans import spans
from simcluster.interop.recorded.waiting import waited
from simcluster.interop.recorded.whatif import ReplayAnswer, ask, own_schedule

if TYPE_CHECKING:
    from simcluster.show.pictures import Figure


_WORST = 5
_ASSUMED = """\
  another schedule: I and W are taken as half of the measured backward each; a stage's time is shared out evenly over
  its chunks, and what the last stage takes longer than the others stays with the end of the model"""


def run(args: argparse.Namespace) -> None:
    """Read, check where results go, replay, measure, print, write."""
    given = [*args.set, *args.overrides]
    if given and not args.cluster:
        raise InputError(
            f"{given[0]}: overrides change the cluster, and none is named (--cluster dgx_h100); what a job is asked "
            f"has --what-if before it, as in --what-if {given[0]}"
        )
    if is_profile(args.trace):
        from simcluster.interop.commands import profiles

        profiles.run(args, _steps(args.steps))
        return
    if not Path(args.trace).exists():
        raise InputError(
            f"cannot read {args.trace}: there is no such file or folder; give the path of a trace, "
            f"or of a folder of profiles{why_missing(Path(args.trace), '.parquet')}"
        )
    if args.export or args.cluster:
        raise InputError("--export and --cluster are for PyTorch profiles: give their folder")
    progress(f"reading {args.trace}")
    job = load_trace(args.trace, _steps(args.steps))
    progress(f"replaying {len(job.ranks)} ranks, {len(job.steps)} steps")
    with waits.played_as_events(job) as counted:
        answers = [ask(job, question) for question in args.what_if]
        found = measure(job)
        schedule, seconds = own_schedule(job), waited(job)
        events = counted(found)
    blocks = [
        _job(job, schedule), _answer(found), _who(found), waits.waits_table(job.ranks, seconds), _answers(answers),
        [f"note: {n}" for n in job.notes], [waits.played_line(job, events)],
    ]  # fmt: skip
    document = _document(job, found, answers, schedule, events)
    waits.tell(args, blocks, document, job, seconds)
    waits.draw(args, job, lambda: spans(job).frame(), lambda: _heatmap(job, found))


def _steps(text: str | None) -> list[int] | None:
    return None if text is None else parse_numbers(text, "--steps", "step")


def _job(job: Recorded, schedule: str) -> list[str]:
    order = f", {schedule}" if schedule else ""
    microbatches = max(int(graph.microbatch.max()) for graph in job.graphs) + 1
    return [
        f"{job.name}: {job.replicas} dp ranks x {job.stages} stages, {microbatches} microbatches{order}; "
        f"{len(job.steps)} steps"
    ]


def _answer(found: Straggling) -> list[str]:
    line = waits.seconds_line
    return [
        line("measured", found.measured.mean(), "mean of a step"),
        line("replayed", found.replayed.mean(), f"mean error {found.error:.2%}: delays between ops are left out"),
        line("T_ideal", found.ideal.mean(), "if every op took what is typical of its type"),
        waits.slowdown_line(found),
    ]


def _who(found: Straggling) -> list[str]:
    lines = [*waits.types_table(found), ""]
    stages = [[f"stage {stage}", f"{value:.4f}"] for stage, value in enumerate(found.by_stage)]
    ranked = sorted(enumerate(found.by_replica.tolist()), key=lambda entry: -entry[1])
    replicas = [[f"dp rank {dp}", f"{value:.4f}"] for dp, value in ranked[:_WORST]]
    lines += ["by stage, and the worst dp ranks", *format_table(("group", "S"), stages + replicas).splitlines(), ""]
    names = ", ".join(f"dp {dp} stage {stage} ({found.by_worker[dp, stage]:.3f})" for dp, stage in found.worst[:_WORST])
    more = f" and {len(found.worst) - _WORST} more" if len(found.worst) > _WORST else ""
    return [*lines, f"  the slowest 3 % of workers: {names}{more}", *waits.explained(found)]


def _answers(answers: list[ReplayAnswer]) -> list[str]:
    lines = waits.answers_table(answers)
    if any("schedule=" in answer.question for answer in answers):
        lines.append(_ASSUMED)
    return lines


def _heatmap(job: Recorded, found: Straggling) -> Figure:
    from simcluster.show.heatmaps import straggler_heatmap

    title = f"{job.name}: a step takes {found.slowdown - 1:.1%} longer; how much by each worker"
    return straggler_heatmap(
        found.by_worker,
        by_replica=found.by_replica.tolist(),
        by_stage=found.by_stage.tolist(),
        title=title,
        worst=found.worst,
    )


def _document(
    job: Recorded, found: Straggling, answers: list[ReplayAnswer], schedule: str, events: int
) -> dict[str, Any]:
    return {
        "trace": job.name,
        "dp_ranks": job.replicas,
        "stages": job.stages,
        "schedule": schedule or None,
        **found.to_dict(),
        **waits.played_document(job, answers, events),
    }
