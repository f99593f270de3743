"""Closed stretches: layers between exchanges over contended links are one event each, and play as op by op."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reference import compare_scenario

from simcluster.programs import collapse as collapsing
from simcluster.results.result import Result
from simcluster.results.timeline import COLUMNS
from simcluster.simulate import replay

MACHINES = {"topology": "dgx_a100", "nodes": 4, "gpus_per_node": 2}
FAULTS: list[list[dict[str, Any]]] = [
    [],
    [],
    [],
    [],
    [{"kind": "slow_gpu", "factor": 1.5, "rank": 3}],
    [{"kind": "slow_gpu", "factor": 3.0, "rank": 1, "start": "0.2 ms", "end": "1 ms"}],
    [{"kind": "slow_link", "between": ["node1.gpu1", "node1.nic1"], "factor": 0.2}],
]


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Tensor parallelism in pieces inside machines, context parallelism and pipelines between them."""
    pp = draw(st.sampled_from([1, 2]))
    strength = draw(st.sampled_from([0.05, 0.3, 1.0]))
    return {
        "cluster": MACHINES,
        "gpus": 8,
        "model": {"layers": 4, "sequence_length": draw(st.sampled_from([128, 512]))},
        "parallel": {
            "tp": 2, "cp": 2, "pp": pp, "dp": 2 // pp, "sequence_parallel": True,
            "cp_comm": draw(st.sampled_from(["ring", "all_gather"])),
        },
        "pipeline": {"schedule": draw(st.sampled_from(["1f1b", "zb-h1"] if pp > 1 else ["1f1b"]))},
        "training": {"global_batch": 4, "recompute": draw(st.sampled_from(["none", "full"]))},
        "overlap": {
            "tensor": True,
            "tensor_pieces": draw(st.sampled_from([2, 4])),
            "pipeline": draw(st.booleans()),
            "grad_reduce": draw(st.booleans()),
            "interference": draw(
                st.sampled_from(["none", "auto", {"kind": "factor", "compute": strength, "communication": strength}])
            ),
        },
        "faults": draw(st.sampled_from(FAULTS)),
    }  # fmt: skip


@settings(max_examples=8)
@given(document=documents())
def test_every_span_is_that_of_the_reference(tiny: Tiny, document: dict[str, Any]) -> None:
    compare_scenario(tiny(**document))


def test_layers_between_exchanges_are_one_event_each(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same spans, the critical path included, as with every piece of a product an event."""
    scenario = tiny(
        cluster=MACHINES,
        parallel={"tp": 2, "cp": 2, "pp": 2, "sequence_parallel": True},
        training={"global_batch": 8},
        overlap={"tensor": True, "tensor_pieces": 4, "pipeline": True, "interference": "auto"},
    )
    found = replay(scenario)
    monkeypatch.setattr(collapsing, "_closed_stretches", lambda segment, seconds: ())
    alone = replay(scenario)
    assert found.record.events < 0.4 * alone.record.events
    assert _told(found) == _told(alone)


def _told(found: Result) -> list[object]:
    spans = [found.timeline_of(rank)[list(COLUMNS)].to_dict("list") for rank in (0, 4)]
    return [found.step_time, found.times, found.waits, found.critical_path.by_kind(), spans]
