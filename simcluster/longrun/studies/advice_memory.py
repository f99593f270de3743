"""Advice on copies in peers' memory: what they are worth against checkpoints on storage alone."""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.longrun.pattern import STORAGE
from simcluster.longrun.run import LongRun
from simcluster.longrun.studies.advised import (
    Advice,
    AdviceLine,
    AdviceMark,
    AdvicePicture,
    duration,
    left_out_note,
    percent,
    points,
)
from simcluster.longrun.studies.build import section_of
from simcluster.longrun.studies.in_theory import efficiency_of, left_out, two_levels_of
from simcluster.longrun.studies.policies import PolicyBench, half_width, paired, table_of
from simcluster.scenario.run_section import MemoryCopies

EVERY = (2, 4, 8, 16, 32)
"""Of so many snapshots one goes on to storage."""


def memory(bench: PolicyBench) -> Advice:
    """What copies in peers' memory are worth (Gemini, SOSP 2023): one snapshot in k on storage, others with peers,
    each k at the interval that loses least, against all on storage, on common random numbers."""
    runs = {1: _run(bench, 1), **{every: _run(bench, every) for every in EVERY}}
    goodput = bench.goodputs(runs)
    mean = {every: float(values.mean()) for every, values in goodput.items()}
    best = max(EVERY, key=lambda every: mean[every])
    gap = paired(goodput[1], goodput[best])
    verdict = "worth it" if gap.holds and gap.mean > 0 else "not worth it" if gap.holds else "of no difference"
    gpus = bench.scenario.gpus * gap.mean / mean[1]
    at = {every: duration(run.pattern.steps * run.pattern.step) for every, run in runs.items()}
    sentence = (
        f"Copies in peers' memory are {verdict}: {points(gap.mean, gap.half_width)} of goodput with one snapshot in "
        f"{best} on storage ({percent(mean[best])}, one every {at[best]}) against storage alone ({percent(mean[1])}, "
        f"every {at[1]}), as much as {gpus:,.1f} GPUs."
    )
    rows = [
        {
            "storage_every": every,
            "steps": run.pattern.steps,
            "interval_s": run.pattern.steps * run.pattern.step,
            "goodput": mean[every],
            "half_width": half_width(goodput[every]),
            "closed_form": efficiency_of(run) if every == 1 else two_levels_of(run),
            "difference": paired(goodput[1], goodput[every]).mean,
            "difference_half_width": paired(goodput[1], goodput[every]).half_width,
        }
        for every, run in runs.items()
    ]
    marks = (
        AdviceMark(1, mean[1], "storage alone", chosen=False),
        AdviceMark(best, mean[best], f"one in {best} on storage"),
    )
    lines = AdviceLine("goodput", "simulated", wide="half_width"), AdviceLine("closed_form", "closed form", theory=True)
    label = "snapshots for each that goes on to storage"
    picture = AdvicePicture("storage_every", label, "goodput, %", lines, marks, log="x")
    notes = (_stalls(runs[best]), _needs_storage(runs[best]), *left_out_note(left_out(runs[1])))
    return Advice("memory", bench.scenario.name, sentence, table_of(rows), picture, bench.played, notes)


def _run(bench: PolicyBench, every: int) -> LongRun:
    """The run with one snapshot in so many on storage, at the interval that loses least."""
    spec = section_of(bench.scenario).checkpoint
    if spec.to is None and (spec.memory is None or None in (spec.memory.stall, spec.memory.write)):
        raise InputError(
            "advice: memory: nothing says how long a copy to peers takes beside a stall that was measured; give what "
            "storage takes, as in run.checkpoint.to: 100 GB/s, or run.checkpoint.memory.stall and .write"
        )
    copies = (spec.memory or MemoryCopies()).model_copy(update={"storage_every": every}) if every > 1 else None
    return bench.with_section(checkpoint=spec.model_copy(update={"every": "auto", "memory": copies}))


def _stalls(run: LongRun) -> str:
    """What each kind stops training for."""
    storage, copies = run.pattern.storage, run.pattern.memory
    assert copies is not None
    return (
        f"a snapshot for storage stops training for {storage.stall:.3g} s, one for peers for {copies.stall:.3g} s and "
        f"takes {copies.write:.3g} s to them (run.checkpoint.memory.stall and .write, where they were measured)"
    )


def _needs_storage(run: LongRun) -> str:
    """Which failures the copies do not survive."""
    names = [cause.name for cause in run.causes if cause.stops and cause.survives == STORAGE]
    return f"only a checkpoint on storage survives: {', '.join(names) or 'no failure of this run'}"
