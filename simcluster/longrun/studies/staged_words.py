"""A run of stages in words, for people, and as JSON, for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import format_tokens, whole_dollars
from simcluster.base.units import DAY, format_seconds
from simcluster.longrun.studies.cost_words import format_energy, format_power
from simcluster.longrun.studies.words import in_columns, plain
from simcluster.results.assumptions import assumed_lines
from simcluster.results.result import VERSION

if TYPE_CHECKING:
    from simcluster.longrun.studies.staged import StagedRuns


def summary(training: StagedRuns) -> str:
    """What a person needs: what comes of the run as a whole, and of each stage."""
    blocks = list(_whole(training)), list(_stages(training)), assumed_lines(training.assumed)
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _whole(training: StagedRuns) -> Iterator[str]:
    scenario, count = training.scenario, training.played
    yield scenario.title
    runs = f"{count:,} run{'s' * (count > 1)} of {len(training.stages)} stages"
    yield f"{scenario.cluster.built.name}; {runs} played, seed {scenario.seed}"
    yield f"  time         days {_between(training, 'days', '{:.4g}')}, for {format_tokens(training.tokens)} tokens"
    hours = f"GPU-hours {_between(training, 'gpu_hours', '{:,.0f}')}"
    if training.spare_gpu_hours:
        hours += f"; {training.spare_gpu_hours:,.0f} of spares beside"
    if training.dollars is None:
        yield f"  money        {hours}; for dollars say what one costs: run.price"
    else:
        lost = f"{whole_dollars(training.lost_to_failures or 0.0)} of it lost to what fails"
        yield f"  money        {whole_dollars(float(training.dollars.mean()))}, {lost}; {hours}"
    yield f"  failures     {_between(training, 'failures', '{:,.0f}')}"
    effective = f"effective MFU {training.effective_mfu:.1%} over the wall"
    yield f"  goodput      {training.goodput:.2%} of all GPU-hours; {effective}"
    if training.kwh is not None:
        kwh = float(training.kwh.mean())
        average = kwh * 3.6e6 / float(training.wall.mean())
        yield f"  energy       {format_energy(kwh)}: {format_power(average)} on average"


def _between(training: StagedRuns, name: str, form: str) -> str:
    """The mean, and between what nine runs of ten are."""
    row = training.numbers.astype(float).to_dict(orient="index")[name]
    mean, low, high = (row[each] for each in ("mean", "p5", "p95"))
    spread = f" ({form.format(low)} to {form.format(high)} in nine runs of ten)" if high - low > 1e-6 * mean else ""
    return form.format(mean) + spread


def _stages(training: StagedRuns) -> Iterator[str]:
    header = ["stage", "tokens", "a step", "sequence", "GPUs", "step", "MFU", "steps", "days", "goodput", "failures"]
    header += ["million GPU-hours"]
    header += ["costs"] if training.dollars is not None else []
    header += ["MWh"] if training.kwh is not None else []
    rows = []
    for number, row in enumerate(training.table.to_dict(orient="records"), 1):
        cells = [str(number), format_tokens(row["tokens"]), format_tokens(row["tokens_per_step"])]
        cells += [f"{row['sequence_length']:,}", f"{row['gpus']:,}", format_seconds(row["step_time_s"])]
        cells += [f"{row['step_mfu']:.1%}", f"{row['steps']:,.0f}", f"{row['days']:.2f}", f"{row['goodput']:.2%}"]
        cells += [f"{row['failures']:.1f}", f"{row['gpu_hours'] / 1e6:.3f}"]
        cells += [whole_dollars(row["dollars"])] if training.dollars is not None else []
        cells += [f"{row['kwh'] / 1e3:,.1f}"] if training.kwh is not None else []
        rows.append(cells)
    yield from in_columns(header, rows)
    for number, stage in enumerate(training.specs, 1):
        said = ", ".join(f"{path}: {_shown(value)}" for path, value in stage.set.items()) or "as the scenario"
        change = f", after {format_seconds(stage.change)} for the change" if stage.change else ""
        yield f"  stage {number}: {said}{change}"
    changes = sum(stage.change for stage in training.specs)
    if not changes:
        yield "  stages follow each other without a pause (run.stages.change)"
    yield "  each stage begins as the run says: its parts as old, its spares all there"


def _shown(value: object) -> str:
    if value is None:
        return "left out"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_shown(each)}" for name, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def document(training: StagedRuns) -> dict[str, Any]:
    """For JSON: CONTRACT.md, "A run of stages"."""
    found = {
        "name": training.scenario.name,
        "played": training.played,
        "seed": training.scenario.seed,
        "days": float(training.wall.mean()) / DAY,
        "tokens": training.tokens,
        "gpu_hours": float(training.gpu_hours.mean()),
        "spare_gpu_hours": training.spare_gpu_hours,
        "goodput": training.goodput,
        "effective_mfu": training.effective_mfu,
        "dollars": None if training.dollars is None else float(training.dollars.mean()),
        "lost_to_failures": training.lost_to_failures,
        "kwh": None if training.kwh is None else float(training.kwh.mean()),
        "numbers": training.numbers.to_dict(orient="index"),
        "breakdown_s": training.breakdown.to_dict(),
        "stages": training.table.reset_index().to_dict(orient="records"),
        "assumed": list(training.assumed),
        "runs": [stage.to_dict() for stage in training.stages],
        "scenario": training.scenario.document(),
        "version": VERSION,
    }
    return {name: plain(value) for name, value in found.items()}
