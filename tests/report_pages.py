"""Pages for tests of the report: a small run, and timelines of a given size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from conftest import tiny_scenario

from simcluster.interactive.report import ReportEntry, make_entry
from simcluster.interactive.report.rows import RankRow, SpanDescriptions
from simcluster.results.timeline import Spans
from simcluster.step.simulate import simulate

_KINDS = ("forward", "backward", "all_gather", "reduce_scatter")
_NAMES = ("attention", "mlp", "attention_grad", "mlp_grad")


def small_entry(**sections: Any) -> ReportEntry:
    """Two stages, two replicas, one slow GPU: milliseconds to play, and everything that a report shows."""
    scenario = tiny_scenario(
        name="tiny",  # type: ignore[arg-type]
        cluster={"topology": "flat", "gpus": 4},
        parallel={"pp": 2, "dp": 2},
        training={"global_batch": 8},
        faults=[{"kind": "slow_gpu", "rank": 3, "factor": 1.5}],
        **sections,
    )
    return make_entry(simulate(scenario), origin="tiny.yaml")


def other_entry() -> ReportEntry:
    """The same model on as many GPUs with tensor parallelism, and no slow GPU: to be put beside the small one."""
    scenario = tiny_scenario(
        name="tiny",  # type: ignore[arg-type]
        cluster={"topology": "flat", "gpus": 4},
        parallel={"tp": 2, "pp": 2},
        training={"global_batch": 8},
    )
    return make_entry(simulate(scenario), name="tensor parallel")


def large_entry(ranks: int, spans_of_rank: int) -> ReportEntry:
    """The small run with a timeline of so many spans, half of them on a communication stream, as a real step has."""
    entry, spans = replace(small_entry(), weights={}), many_spans(ranks, spans_of_rank)
    zero = np.zeros(len(spans), dtype=np.int64)
    path = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)
    facts = SpanDescriptions(("",), zero, np.zeros(len(spans)), zero - 1, zero - 1, path)
    assert entry.links
    assert entry.stragglers  # these are of the small run
    vars(entry).update(span_descriptions=facts, rows=tuple(RankRow(rank, rank) for rank in range(ranks)))
    vars(entry.result)["spans"] = spans
    return entry


def many_spans(ranks: int, spans_of_rank: int) -> Spans:
    """Spans with irregular lengths and gaps, in layers, microbatches and kinds."""
    generator = np.random.default_rng(1)
    place = np.tile(np.arange(spans_of_rank), ranks)
    rank = np.repeat(np.arange(ranks), spans_of_rank)
    communicates = place % 2 == 1
    begin = place * 1e-3 + rank * 1e-4 + generator.uniform(0, 2e-4, len(place))
    length = generator.uniform(1e-4, 7e-4, len(place))
    words = ("compute", "tp", "", *(f"tp{number}" for number in range(ranks)), *_KINDS, *_NAMES)
    kind = np.array([words.index(name) for name in _KINDS])
    name = np.array([words.index(text) for text in _NAMES])
    nothing = np.zeros(len(place), dtype=np.int64)
    direction = place // 96 % 2
    columns = {
        "op": nothing,
        "step": nothing,
        "rank": rank,
        "stream": np.where(communicates, 1, 0),
        "kind": kind[2 * communicates + direction],
        "name": name[place // 2 % 4],
        "layer": place // 8 % 12,
        "stage": rank // 8,
        "chunk": nothing,
        "microbatch": place // 192,
        "group": np.where(communicates, 3 + rank, 2),
        "bytes": np.where(communicates, 50331648.0, 0.0),
        "ready": begin - np.where(communicates, 5e-5, 0.0),
        "start": begin,
        "end": begin + length,
    }
    columns["ready"] = np.maximum(columns["ready"], 0.0)
    return Spans(words, **columns)
