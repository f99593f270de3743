"""A run in an HTML report: simulated now, or read from a result file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import is_number
from simcluster.interactive.report.html import Markup
from simcluster.interactive.report.rows import RankRow, SpanDescriptions, describe_spans, make_rank_rows
from simcluster.planning.footprint import Footprint
from simcluster.results.link_loads import hottest_links_over_time
from simcluster.results.memory_timeline import MemoryPeak
from simcluster.results.result import Result
from simcluster.results.result_file import SavedResult
from simcluster.results.simulated_run import Run
from simcluster.results.simulated_run import spans_of_ranks as spans_of_ranks
from simcluster.results.step_account import StepAccount
from simcluster.results.step_metrics import METRICS
from simcluster.results.timeline import Spans
from simcluster.scenario.prediction_intervals import PredictionInterval, predict_interval
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.schedules import Schedule
from simcluster.show.gantt_rows import pick_evenly_spaced
from simcluster.studies.whatif.straggling import StragglerCosts, stragglers

_LINKS = 24
_BINS = 240
_MEMORY_RANKS = 8
MEMORY = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "other": "other, buffers included",
}
"""Label of each category of memory in the numbers of a result."""
MOST_WORKERS = 64
"""Maximum number of workers for which the page shows straggler costs, which need one more simulation per cause."""


@dataclass(frozen=True)
class ReportedTrace:
    """A recorded trace that the report compares with a run: name, ranks, HTML section, and the first step's spans."""

    name: str
    ranks: tuple[int, ...]
    section: Markup
    step: Spans


class MemoryCurve(NamedTuple):
    """Memory of one rank over time: constant model state, bytes in each pool, and the peak.

    From time[i] (s) until time[i + 1] the pools hold pools[name][i] bytes.
    """

    rank: int
    model_state: Footprint
    time: Floats
    pools: Mapping[str, Floats]
    peak: MemoryPeak


@dataclass(frozen=True, kw_only=True)
class ReportEntry:
    """A run in an HTML report, either simulated or read from a result file.

    ``numbers`` is its result JSON, ``account`` its time breakdown by cause, and ``weights`` the number of ranks that
    each rank of its timeline represents; ``ranks`` are the ranks to show, () for the simulated ones. ``result`` is None
    for a saved run, which has no timeline. ``origin`` is its name on the command line. With ``replays`` the step is
    simulated again to find remedies and the cost of stragglers; without, stragglers only if the scenario has faults.
    """

    name: str
    numbers: Mapping[str, Any]
    origin: str = ""
    scenario: Scenario | None = None
    result: Result | None = None
    account: StepAccount
    weights: Mapping[int, int] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    replays: bool = True

    @cached_property
    def document(self) -> dict[str, Any]:
        """Complete scenario document; for a saved result, the document in the result file."""
        return self.scenario.document() if self.scenario else dict(self.numbers["scenario"])

    @cached_property
    def shown_numbers(self) -> dict[str, Any]:
        """Metrics to show; the bubble comes from the breakdown, because old result files define it differently."""
        return {**self.numbers, "bubble_fraction": self.account.breakdown["bubble"] / self.account.step_time}

    @cached_property
    def span_descriptions(self) -> SpanDescriptions:
        """Details of each span in the timeline, stored as columns; only for a simulated run."""
        assert self.result is not None
        return describe_spans(self.result)

    @cached_property
    def rows(self) -> tuple[RankRow, ...]:
        """Timeline rows, one row per shown rank; only for a simulated run."""
        assert self.result is not None
        return make_rank_rows(self.result, self.span_descriptions, self.ranks or sorted(self.result.weights))

    @cached_property
    def capacity(self) -> float:
        """Memory of one GPU in bytes; 0 if a saved result's scenario cannot be read."""
        if self.result is not None:
            return self.result.facts.memory
        return self.scenario.cluster.device.memory if self.scenario else 0.0

    @cached_property
    def likely_interval(self) -> PredictionInterval | None:
        """Interval in which a measured step time probably lies; None if the scenario cannot be read."""
        return predict_interval(self.scenario, self.model_flops, self.account.step_time) if self.scenario else None

    @property
    def model_flops(self) -> float:
        """Model FLOPs per step, as counted for MFU; for a saved result, computed from the saved metrics."""
        if self.result is not None:
            return self.result.facts.model_flops
        numbers = self.numbers
        return float(1e12 * numbers["model_tflops_per_gpu"] * numbers["gpus"] * numbers["step_time_s"])

    @cached_property
    def schedule(self) -> Schedule | None:
        """The pipeline schedule; None without a pipeline and for a saved result."""
        if self.result is None or self.result.scenario.parallel.pp == 1:
            return None
        return self.result.job.schedule

    @cached_property
    def memory(self) -> tuple[MemoryCurve, ...]:
        """Memory curves of the fullest rank and of a few other simulated ranks, evenly spaced."""
        if self.result is None or not len(self.result.memory_timeline):
            return ()
        ranks = sorted(self.result.weights)
        if len(ranks) > _MEMORY_RANKS:
            ranks = sorted({self.result.memory_peak.rank, *pick_evenly_spaced(ranks, _MEMORY_RANKS - 1)})
        found = []
        for rank in ranks:
            peak, (time, pools) = self.result.memory_peak_of(rank), self.result.memory_timeline.curve(rank)
            state = self.result.facts.footprints[peak.stage].with_pool_bytes(dict.fromkeys(pools, 0.0))
            found.append(MemoryCurve(rank, state, time, pools, peak))
        return tuple(found)

    @cached_property
    def links(self) -> tuple[pd.DataFrame, Floats] | None:
        """Table of the busiest links, and their utilisation over time bins; None if no link carries traffic."""
        if self.result is None:
            return None
        table, _, matrix = hottest_links_over_time(self.result, _LINKS, _BINS)
        return (table, matrix) if len(table) else None

    @cached_property
    def stragglers(self) -> StragglerCosts | str:
        """Cost of stragglers by cause, or a sentence that says why the report omits these costs."""
        if self.result is None:
            return "A saved result does not contain the cost of each cause; give the scenario instead."
        scenario = self.result.scenario
        if not (self.replays or scenario.faults):
            return "The scenario has no faults; simcluster stragglers computes what uneven stages and the LM head cost."
        workers = scenario.dp * scenario.parallel.pp
        if workers == 1:
            return "One worker: dp and pp are 1, so none is slower than another."
        if workers > MOST_WORKERS:
            return (
                f"Straggler costs are omitted above {MOST_WORKERS} workers (dp × pp), and this job has {workers:,}. "
                "The command simcluster stragglers computes them for any number."
            )
        try:
            return stragglers(self.result)
        except InputError as problem:
            return f"Not available for this run: {problem}"


def make_entry(result: Result, *, name: str = "", origin: str = "", ranks: Sequence[int] | None = None) -> ReportEntry:
    """Convert a simulated result to a report entry; raise InputError if the job has no such rank.

    ``ranks`` are those whose timeline is shown (default: the simulated ones).
    """
    weights = dict(result.weights)
    if ranks is not None:
        check_ranks(result, ranks)
        weights = dict.fromkeys(ranks, 1)
    return ReportEntry(
        name=name or result.scenario.title,
        numbers=result.to_dict(),
        origin=origin,
        scenario=result.scenario,
        result=result,
        account=result.account,
        weights=weights,
        ranks=() if ranks is None else tuple(sorted(set(ranks))),
    )


def make_saved_entry(saved: SavedResult, *, origin: str = "") -> ReportEntry:
    """Convert a saved result to a report entry; raise InputError if metrics are missing."""
    where = origin or saved.name
    was = saved.values  # older results: all tokens are real, MFU is over bf16 and had another name without padding
    mfu, rates = was.get("mfu"), ("tokens_per_s", "tokens_per_s_per_gpu")
    older = {"real_token_fraction": 1.0, "mfu_bf16": mfu, "mfu_without_padding": was.get("real_mfu", mfu)}
    values = {**older, **{f"real_{each}": was.get(each) for each in rates}, **was}
    memory = values.get("memory_bytes")
    needed = {each: values.get(each) for each, metric in METRICS.items() if metric.unit != "yes or no"}
    needed |= {f"memory_bytes.{each}": memory.get(each) if isinstance(memory, Mapping) else None for each in MEMORY}
    for each, value in needed.items():
        if not is_number(value):
            raise InputError(f"{where}: {each} is {value!r}, not a number; save the result again with run --json")
    if not values["step_time_s"] > 0:
        raise InputError(f"{where}: step_time_s must be above 0, got {values['step_time_s']!r}; run the scenario again")
    try:
        scenario = from_document(saved.document)
    except InputError:  # of another version
        scenario = None
    return ReportEntry(name=saved.name, numbers=values, origin=origin, scenario=scenario, account=saved.account)


def check_ranks(run: Run, ranks: Sequence[int]) -> None:
    """Raise InputError if the caller's list of ranks is empty or names a rank outside the job."""
    wrong = [rank for rank in ranks if not 0 <= rank < len(run.ranks)]
    if wrong or not ranks:
        what = f"there is no rank {wrong[0]}" if wrong else "no rank is named"
        raise InputError(f"ranks: {what}; this job has ranks 0 to {len(run.ranks) - 1}")
