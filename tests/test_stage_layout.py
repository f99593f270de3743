"""Pipelines laid out slice by slice: Megatron-Core's grammar, what a scenario makes of it, slices without layers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_reference import compare_scenario
from test_same_answer import every_way

from simcluster import InputError, Scenario
from simcluster.scenario.scenario import load
from simcluster.schedules.stage_layout import StageLayout


def tiny(**changes: Any) -> Scenario:
    return load("tiny_3d", {"model.layers": 8, "training.global_batch": 4, **changes})


@pytest.mark.parametrize(
    ("text", "slices"),
    [
        ("Et*3|(tt|)*29,m|L", ["Ettt", *["tt"] * 29, "m", "L"]),
        ("Ettt|(tt|)*29,tL", ["Ettt", *["tt"] * 29, "tL"]),
        ("E|(t*2|t)*2 | L", ["E", "tt", "ttt", "t", "L"]),
        ("E,t|*3t L", ["Et", "", "", "tL"]),
        ([["embedding", "decoder"], "tt", [], ["Decoder", "mtp", "loss"]], ["Et", "tt", "", "tmL"]),
        (["Et*3", "L"], ["Ettt", "L"]),
    ],
)
def test_layouts_are_read_as_megatron_core_does(text: Any, slices: list[str]) -> None:
    layout = StageLayout.parse(text)
    assert list(layout.slices) == slices
    assert layout.decoder_layers == tuple(each.count("t") for each in slices)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12))
def test_a_layout_is_what_its_text_says(counts: list[int]) -> None:
    slices = ["t" * count for count in counts]
    layout = StageLayout(("E" + slices[0], *slices[1:-1], slices[-1] + "L"))
    assert StageLayout.parse(str(layout)) == layout
    assert StageLayout.parse([list(each) for each in layout.slices]) == layout


def test_a_layout_says_layers_chunks_and_schedule() -> None:
    """Left out, the schedule of several slices a stage is the interleaved one; the same as by the list."""
    sections = tiny().document()
    sections["pipeline"] = {"layout": "Ettt|t*2|tt|tL"}
    made = load(sections)
    listed = tiny(pipeline={"schedule": "interleaved", "chunks": 2, "layers_per_stage": [3, 2, 2, 1]})
    assert made.pipeline == listed.pipeline.model_copy(update={"layout": "Ettt|t*2|tt|tL"})
    assert load(made.document()) == made
    even = made.with_({"pipeline.layout": None, "pipeline.chunks": 2, "pipeline.schedule": "interleaved"})
    assert even.pipeline.layers_per_stage == "even"
    assert made.with_(made.pipeline.stage_layer_changes("auto")).pipeline.layers_per_stage == "auto"


EMPTY: list[dict[str, Any]] = [
    {"pipeline.schedule": "interleaved", "pipeline.layout": "Et*4|||t*4L", "parallel.zero": 3,
     "overlap.grad_reduce": True},
    {"pipeline.schedule": "interleaved", "pipeline.layout": "Et*4|t||t*3L", "overlap.grad_reduce": True,
     "overlap.param_gather": True},
    {"pipeline.schedule": "zb-v", "pipeline.layout": "E|t*8||L", "parallel.zero": 3},
]  # fmt: skip


@pytest.mark.parametrize("changes", EMPTY)
def test_slices_without_layers_hand_on_what_arrives(changes: dict[str, Any]) -> None:
    """Every way to play them, the reference among them, gives the same spans."""
    made = tiny(**changes, engine="compiled")
    every_way(made)
    compare_scenario(made)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("Ettt|tttxtL", "character 9 of 'Ettt|tttxtL' is 'x', which is not a layer"),
        ("Et(tt|*3L", "'(' near 'Et(tt|||L' repeats no layer"),
        ("Et*9999999|L", "repeats to more than 100,000 letters"),
        ("Et|(tttt|)*99999L", "repeats to more than 100,000 letters"),
        ("ttttE|ttttL", "the first slice must begin with E (embedding)"),
        ("Etttt|ttttLL", "the last slice must end with L (loss), which must occur exactly once; it is in slice 1, 1"),
        ("Etttt|tttt", "it is nowhere"),
        ("Em|ttttttttL", "come after all decoder layers"),
        ("Etttt|ttttmL", "slice 1 has 1 x 'm' (multi-token prediction), but the model has none"),
        ("Ettt|ttttL", "has 7 decoder layers (t), but model.layers is 8"),
        ("Ettt|ttt|ttL", "has 3 slices (one more than the number of |), not a multiple of pp 2"),
        ("Ettt|ttt|t|tL", "has 4 slices for pp 2, but 1f1b has 2"),
        ([["embeding"], ["loss"]], "'embeding' is not a layer; did you mean 'embedding'?"),
        (["E|t", "L"], "each item of a list is one slice"),
        (3, "got 3"),
        ([[1]], "names of layers"),
    ],
)
def test_what_is_no_layout_says_where(layout: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        tiny(**{"pipeline.layout": layout})
    assert "pipeline.layout" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": "interleaved", "chunks": 4, "layout": "Ettt|ttt|t|tL"}, "remove chunks"),
        ({"layers_per_stage": [5, 3], "layout": "Etttt|ttttL"}, "keep one of the two"),
    ],
)
def test_nothing_else_cuts_what_is_laid_out(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tiny(pipeline=changes)
