"""Fused pairs [F|B] whose halves run beside each other: the same work, sooner, and never sooner than it takes."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.planning.ops import MAIN, Op, Segment
from simcluster.planning.stage_programs import FusedPairPiece, cut_into_pieces, interleave_halves
from simcluster.planning.work_kinds import Collective, Compute
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.studies.search.plan import plan

BOXES = {"topology": "dgx_h100", "nodes": 2, "gpus_per_node": 4}
MOE = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256, "shared_experts": 1}
SECONDS = st.integers(1, 9).map(float)


def segment(seconds: list[float]) -> Segment:
    """Computation of these seconds, with a collective over ep between each two."""
    ops: list[Op] = []
    for number, each in enumerate(seconds):
        if number:
            ops.append(Op(Collective("all_to_all", "ep", 1.0), "ep", "all_to_all", f"c{number}"))
        ops.append(Op(Compute(each), "compute", "forward", f"k{number}"))
    return Segment(tuple(ops))


def times(halves: list[list[float]], collective: float) -> float:
    """When both halves are over, by the rules: one compute stream, one lane of collectives, both in order of issue."""
    pieces = [cut_into_pieces(segment(half)) for half in halves]
    over: dict[tuple[int, int], float] = {}
    free = {MAIN: 0.0, "pair ep": 0.0}
    for half, index in interleave_halves(pieces):
        piece = pieces[half][index]
        works = [op.work for op in piece.segment.ops]
        takes = sum(work.seconds if isinstance(work, Compute) else collective for work in works)
        waits = [over[half, other] for other in piece.waits]
        free[piece.lane] = over[half, index] = max(free[piece.lane], *waits, 0.0) + takes
    return max(over.values())


# --- a pair by itself -------------------------------------------------------------------------------------------------


@given(first=st.lists(SECONDS, min_size=1, max_size=6), second=st.lists(SECONDS, min_size=1, max_size=6), wire=SECONDS)
def test_a_pair_takes_what_its_work_takes(first: list[float], second: list[float], wire: float) -> None:
    """At least its computation, at least its traffic, at most both one after the other (MODELLING.md C.5)."""
    compute, traffic = sum(first) + sum(second), wire * (len(first) + len(second) - 2)
    found = times([first, second], wire)
    assert max(compute, traffic) <= found <= compute + traffic


@given(count=st.integers(2, 6), compute=SECONDS, share=st.floats(0, 1))
def test_even_halves_hide_all_but_the_ends(count: int, compute: float, share: float) -> None:
    """Equal pieces, and collectives no longer than they: only the last one has nothing beside it."""
    wire = share * compute
    found = times([[compute] * count, [compute] * count], wire)
    assert found == pytest.approx(2 * count * compute, rel=1e-12)


@given(first=st.lists(SECONDS, min_size=1, max_size=6), second=st.lists(SECONDS, min_size=1, max_size=6))
def test_pieces_are_the_ops_of_a_half_in_order(first: list[float], second: list[float]) -> None:
    halves = [cut_into_pieces(segment(half)) for half in (first, second)]
    order = list(interleave_halves(halves))
    for half, whole in enumerate((first, second)):
        mine = [index for turn, index in order if turn == half]
        assert mine == list(range(len(halves[half])))
        ops = [op for piece in halves[half] for op in piece.segment.ops]
        assert [op.name for op in ops] == [op.name for op in segment(whole).ops]
        for index, piece in enumerate(halves[half]):
            assert all(other < index for other in piece.waits)
            assert {op.lane for op in piece.segment.ops} == {piece.lane}


def test_what_was_beside_a_half_stays_beside_it() -> None:
    """The host issues beside the first kernel's successors; a gather beside a product is joined where it was."""
    ops = (
        Op(Compute(1.0), "compute", "backward", "a"),
        Op(Collective("all_gather", "tp", 1.0), "tp", "all_gather", "input", lane="tp", after=(0,)),
        Op(Compute(1.0), "compute", "backward", "b"),
        Op(Compute(1.0), "compute", "backward", "c", after=(1,)),
    )
    found = cut_into_pieces(Segment(ops))
    assert [(piece.lane, piece.waits, [op.name for op in piece.segment.ops]) for piece in found] == [
        (MAIN, (), ["a"]), ("pair tp", (0,), ["input"]), (MAIN, (), ["b"]), (MAIN, (1,), ["c"]),
    ]  # fmt: skip


def test_turns_end_where_computation_would_wait() -> None:
    one, other = (cut_into_pieces(segment([1.0] * count)) for count in (3, 2))
    assert list(interleave_halves([one, other])) == [
        (0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (0, 4),
    ]  # fmt: skip


def test_a_half_that_is_left_over_goes_on_alone() -> None:
    alone: list[FusedPairPiece] = list(cut_into_pieces(segment([1.0, 1.0])))
    assert list(interleave_halves([alone, []])) == [(0, 0), (0, 1), (0, 2)]


# --- in a step --------------------------------------------------------------------------------------------------------


SCHEDULES: list[tuple[Any, int]] = [
    ("dualpipe-v", 2), ("dualpipe-v", 4), ({"name": "1f1b", "pairs": "forward-backward"}, 1),
    ({"name": "1f1b", "pairs": "forward-backward"}, 2), ({"name": "1f1b", "pairs": "microbatches"}, 1),
    ({"name": "1f1b", "pairs": "microbatches"}, 2), ({"name": "interleaved", "pairs": True}, 2),
]  # fmt: skip


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Sections for ``tiny`` with pairs: experts or none, tensor parallelism, replicas that reduce or gather beside."""
    schedule, pp = draw(st.sampled_from([*SCHEDULES, ("dualpipe", 2)]))
    tp, dp = draw(st.sampled_from([(1, 2), (2, 2), (2, 1), (1, 4)])) if pp < 4 else (1, 2)
    experts = draw(st.booleans())
    zero = draw(st.sampled_from([0, 1, 2] if schedule != "dualpipe" else [0, 1])) if dp > 1 else 0
    return {
        "cluster": BOXES,
        "gpus": tp * pp * dp,
        "model": {"layers": 8, "gated_mlp": True, **({"moe": MOE} if experts else {})},
        "parallel": {
            "tp": tp, "pp": pp, "dp": dp, "zero": zero, "ep": dp if experts else 1,
            "sequence_parallel": tp > 1 and (experts or draw(st.booleans())),
        },
        "pipeline": {"schedule": schedule},
        "training": {
            "global_batch": 4 * pp * dp, "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        },
        "overlap": {
            "grad_reduce": draw(st.booleans()), "param_gather": zero > 0 and draw(st.booleans()),
            "bucket_size": "2 MB", "tensor": draw(st.booleans()), "experts": experts and draw(st.booleans()),
            "interference": "none",
        },
    }  # fmt: skip


def both(tiny: Tiny, document: dict[str, Any]) -> tuple[Result, Result]:
    """One half after the other, and beside each other."""
    overlap = document["overlap"]
    apart, beside = (tiny(**{**document, "overlap": {**overlap, "pairs": pairs}}) for pairs in (False, True))
    return simulate(apart), simulate(beside)


@settings(max_examples=8)
@given(document=scenarios())
def test_the_same_work_is_done(tiny: Tiny, document: dict[str, Any]) -> None:
    """Every kernel as long as before, every byte as before; the compute stream does one thing at a time."""
    apart, beside = both(tiny, document)
    key = ["rank", "stream", "kind", "name", "layer", "chunk", "microbatch", "bytes"]
    tables = []
    for result in (apart, beside):
        table = result.timeline.copy()
        table["seconds"] = (table["end"] - table["start"]).where(table["stream"] == "compute", 0.0).round(12)
        tables.append(table.sort_values([*key, "seconds"])[[*key, "seconds"]].reset_index(drop=True))
    assert tables[0].equals(tables[1])
    compute = beside.timeline[beside.timeline["stream"] == "compute"].sort_values(["rank", "start"])
    follows = compute["rank"].to_numpy()[1:] == compute["rank"].to_numpy()[:-1]
    assert (compute["start"].to_numpy()[1:] >= compute["end"].to_numpy()[:-1])[follows].all()


@pytest.mark.parametrize(
    ("schedule", "pp"), [each for each in SCHEDULES if each[0] != "dualpipe-v"] + [("dualpipe-v", 2)]
)
def test_experts_are_hidden(tiny: Tiny, schedule: Any, pp: int) -> None:
    """Experts on other ranks: what was exposed overlaps with the other half, and the step is shorter."""
    document: dict[str, Any] = {
        "cluster": BOXES,
        "model": {"layers": 8, "gated_mlp": True, "moe": MOE},
        "gpus": 4 * pp,
        "parallel": {"pp": pp, "dp": 4, "ep": 4},
        "pipeline": {"schedule": schedule},
        "training": {"global_batch": 32 * pp},
        "overlap": {"interference": "none"},
    }
    apart, beside = both(tiny, document)
    exposed = [result.times.breakdown["exposed_ep"] for result in (apart, beside)]
    assert exposed[1] < 0.7 * exposed[0]
    assert beside.step_time < apart.step_time - 0.5 * (exposed[0] - exposed[1])


@settings(max_examples=5)
@given(document=scenarios(), interference=st.sampled_from(["none", {"kind": "factor", "compute": 0.3}]))
def test_every_way_of_playing_gives_the_same(tiny: Tiny, document: dict[str, Any], interference: Any) -> None:
    overlap = {**document["overlap"], "pairs": True, "interference": interference}
    scenario: Scenario = tiny(**{**document, "overlap": overlap})
    folded, plain = simulate_scenario(scenario), simulate(scenario, folded=False)
    assert folded.step_time == plain.step_time
    for rank in range(scenario.gpus):
        order = ["start", "end", "stream", "kind", "name", "ready", "microbatch", "chunk", "step", "layer"]
        one, other = (run.timeline_of(rank).sort_values(order).reset_index(drop=True) for run in (folded, plain))
        assert one.equals(other), rank


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"parallel": {"pp": 2}}, ["1f1b on pp 2 has no fused pairs", "dualpipe-v"]),
        ({"parallel": {"pp": 2, "zero": 3}, "pipeline": {"schedule": "dualpipe-v"}}, ["zero 3", "zero 0, 1 or 2"]),
    ],
)
def test_pairs_that_cannot_be(tiny: Tiny, sections: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        tiny(
            **{"cluster": BOXES, "model": {"layers": 8}, "training": {"global_batch": 32}, **sections},
            overlap={"pairs": True},
        )
    assert "overlap.pairs" in str(error.value)
    assert all(word in str(error.value) for word in words)


def test_layouts_are_not_searched_with_them(tiny: Tiny) -> None:
    scenario = tiny(
        cluster=BOXES, model={"layers": 8}, parallel={"pp": 2}, pipeline={"schedule": "dualpipe-v"},
        training={"global_batch": 32}, overlap={"pairs": True},
    )  # fmt: skip
    with pytest.raises(InputError, match=r"overlap\.pairs"):
        plan(scenario, [8])


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("size", ["1 MB", "100 MB"])
def test_two_backwards_beside_each_other_reduce_under_zero_2(tiny: Tiny, overlapped: bool, size: str) -> None:
    """No half waits for reductions of the other, which come after it; planned memory has the gradients of both."""
    result = simulate(tiny(
        cluster=BOXES, gpus=8, model={"layers": 8}, parallel={"zero": 2, "cp": 2},
        pipeline={"schedule": {"name": "1f1b", "pairs": "microbatches"}}, training={"global_batch": 32},
        overlap={"pairs": True, "grad_reduce": overlapped, "bucket_size": size},
    ))  # fmt: skip
    held = result.memory_timeline.curve(0)[1]["gradients"].max()
    assert 0 < held <= result.facts.footprints[0].unsharded
