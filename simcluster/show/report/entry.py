"""One run of an HTML report: a simulated result, or the numbers of a saved one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.units import is_number
from simcluster.planning.footprint import Footprint
from simcluster.results.account import Account
from simcluster.results.file import SavedResult
from simcluster.results.loads import hottest_links_over_time
from simcluster.results.memory_timeline import MemoryPeak
from simcluster.results.numbers import METRICS
from simcluster.results.played import Run
from simcluster.results.result import Result
from simcluster.results.timeline import COLUMNS, Spans
from simcluster.scenario.likely import LikelyInterval, predict_interval
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.schedules import Schedule
from simcluster.show.gantt_rows import evenly_spaced
from simcluster.show.report.html import Markup
from simcluster.show.report.rows import RankRow, SpanFacts, describe_spans, make_rank_rows
from simcluster.studies.whatif.straggling import Stragglers, stragglers

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
"""Parts of memory in the numbers of a result, and what a page calls them."""
MOST_WORKERS = 64
"""Workers up to which the page prices stragglers, for which the step is simulated again without each cause."""


@dataclass(frozen=True)
class ReportedTrace:
    """A recorded trace that the report compares with its only run: name, ranks, page section, and first step."""

    name: str
    ranks: tuple[int, ...]
    section: Markup
    step: Spans


class MemoryCurve(NamedTuple):
    """Memory of one rank over time: constant model state, variable pools, and the op at the peak.

    From time[i] (s) until time[i + 1] the pools hold pools[name][i] bytes.
    """

    rank: int
    state: Footprint
    time: Floats
    pools: Mapping[str, Floats]
    peak: MemoryPeak


@dataclass(frozen=True, kw_only=True)
class ReportEntry:
    """One run of an HTML report, simulated or read from a result file.

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
    account: Account
    weights: Mapping[int, int] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    replays: bool = True

    @cached_property
    def document(self) -> dict[str, Any]:
        """The complete scenario as a document; for a saved result, the one in its file."""
        return self.scenario.document() if self.scenario else dict(self.numbers["scenario"])

    @cached_property
    def shown_numbers(self) -> dict[str, Any]:
        """The run's numbers, with the bubble of the breakdown, since older versions saved another definition."""
        return {**self.numbers, "bubble_fraction": self.account.breakdown["bubble"] / self.account.step_time}

    @cached_property
    def facts(self) -> SpanFacts:
        """Columns that describe each span of the timeline; only for a simulated run."""
        assert self.result is not None
        return describe_spans(self.result)

    @cached_property
    def rows(self) -> tuple[RankRow, ...]:
        """A timeline row for each rank to show; only for a simulated run."""
        assert self.result is not None
        return make_rank_rows(self.result, self.facts, self.ranks or sorted(self.result.weights))

    @cached_property
    def capacity(self) -> float:
        """Memory of a GPU in bytes; 0 if the saved scenario cannot be read."""
        if self.result is not None:
            return self.result.facts.memory
        return self.scenario.cluster.device.memory if self.scenario else 0.0

    @cached_property
    def likely(self) -> LikelyInterval | None:
        """The likely interval of a measured step time; None if the scenario cannot be read."""
        return predict_interval(self.scenario, self.model_flops, self.account.step_time) if self.scenario else None

    @property
    def model_flops(self) -> float:
        """FLOP per step as counted for MFU; for a saved result as precise as its numbers."""
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
        """Memory over time of the fullest rank and of some others, spread evenly over the simulated ones."""
        if self.result is None or not len(self.result.memory_timeline):
            return ()
        ranks = sorted(self.result.weights)
        if len(ranks) > _MEMORY_RANKS:
            ranks = sorted({self.result.memory_peak.rank, *evenly_spaced(ranks, _MEMORY_RANKS - 1)})
        found = []
        for rank in ranks:
            peak, (time, pools) = self.result.peak_of(rank), self.result.memory_timeline.curve(rank)
            state = self.result.facts.footprints[peak.stage].with_pools(dict.fromkeys(pools, 0.0))
            found.append(MemoryCurve(rank, state, time, pools, peak))
        return tuple(found)

    @cached_property
    def links(self) -> tuple[pd.DataFrame, Floats] | None:
        """The busiest links, with rate / capacity of each per time bin; None if no link carries anything."""
        if self.result is None:
            return None
        table, _, matrix = hottest_links_over_time(self.result, _LINKS, _BINS)
        return (table, matrix) if len(table) else None

    @cached_property
    def stragglers(self) -> Stragglers | str:
        """The cost of stragglers by cause, or the reason why the report does not show it."""
        if self.result is None:
            return "A saved result does not hold what each cause costs; give the scenario instead."
        scenario = self.result.scenario
        if not (self.replays or scenario.faults):
            return "No fault here; the command simcluster stragglers prices uneven stages and the LM head."
        workers = scenario.dp * scenario.parallel.pp
        if workers == 1:
            return "One worker: dp and pp are 1, so none is slower than another."
        if workers > MOST_WORKERS:
            return (
                f"{workers:,} workers (dp × pp) are more than the {MOST_WORKERS} for which this page simulates the "
                "step without each cause; the command simcluster stragglers does it for any number."
            )
        try:
            return stragglers(self.result)
        except InputError as problem:
            return f"Not to be had for this run: {problem}"


def make_entry(result: Result, *, name: str = "", origin: str = "", ranks: Sequence[int] | None = None) -> ReportEntry:
    """Return a result as a run of the report; raise InputError for a rank that the job does not have.

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


def make_saved_entry(saved: SavedResult, *, origin: str = "", name: str = "") -> ReportEntry:
    """Return a saved result as a run of the report; raise InputError if it lacks numbers."""
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
        raise InputError(f"{where}: step_time_s is {values['step_time_s']!r}; a step takes longer than 0 s")
    try:
        scenario = from_document(saved.document)
    except InputError:  # of another version
        scenario = None
    return ReportEntry(name=name or saved.name, numbers=values, origin=origin, scenario=scenario, account=saved.account)


def check_ranks(run: Run, ranks: Sequence[int]) -> None:
    """Raise InputError for an empty list of ranks, and for a rank that the job does not have."""
    wrong = [rank for rank in ranks if not 0 <= rank < len(run.ranks)]
    if wrong or not ranks:
        what = f"there is no rank {wrong[0]}" if wrong else "no rank is named"
        raise InputError(f"ranks: {what}; this job has ranks 0 to {len(run.ranks) - 1}")


def spans_of_ranks(result: Run, ranks: Sequence[int]) -> Spans:
    """Return the timeline of any ranks, copied from the simulated ranks that represent them."""
    words = {word: code for code, word in enumerate(result.spans.words)}
    parts = []
    for rank in ranks:
        spans = result.spans.of_rank(result.simulated_for(rank))
        codes = np.arange(len(result.spans.words))
        for group in np.unique(spans.group).tolist():
            axis = spans.words[group].rstrip("0123456789")
            own = result.folding.communicators.group_name(axis, result.ranks.start + rank) if axis else ""
            codes[group] = words.setdefault(own, len(words))
        parts.append(replace(spans, rank=np.full(len(spans), rank), group=codes[spans.group]))
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("op", *COLUMNS)}
    return Spans(tuple(words), **columns)
