"""Stage programs: small ones as text, and what every one obeys (sends met, gradients covered once)."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.model.layers import layer_parameters_per_tp_rank, stage_parameters_per_tp_rank
from simcluster.model.transformer import Model
from simcluster.planning.job import DataParallelOptions, Job, ModelSlices, balance_layers
from simcluster.planning.ops import MAIN, Op, Segment, StageProgram, WorkItem
from simcluster.planning.pass_segments import PassLayers
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.planning.work_kinds import Collective, Compute, StageSend
from simcluster.schedules import schedule_entry

MODEL = Model(
    layers=8,
    hidden_size=512,
    heads=8,
    kv_heads=8,
    ffn_hidden_size=2048,
    vocab_size=1024,
    sequence_length=128,
    gated_mlp=False,
    tied_embeddings=False,
)
LAYER = layer_parameters_per_tp_rank(MODEL, 1)
LETTERS = {"forward": "F", "backward": "B", "input_grad": "I", "weight_grad": "W"}
KINDS = {letter: kind for kind, letter in LETTERS.items()}


class Described:
    """Passes whose one op is named after what it covers: layers, then e(mbedding), h(ead), b(oundary)."""

    def segment(self, letter: str, part: PassLayers) -> Segment:
        kind, seconds = KINDS[letter], 2.0 if letter == "B" else 1.0
        ends = ("e" if part.embedding else "") + ("h" if part.lm_head else "") + ("b" if part.gathers_input else "")
        name = "+".join(map(str, part.layers)) + (f" {ends}" if ends else "")
        return Segment((Op(Compute(seconds), "compute", kind, name),))


def job(
    *,
    pp: int = 2,
    dp: int = 2,
    tp: int = 1,
    schedule: str = "1f1b",
    chunks: int = 1,
    microbatches: int = 2,
    **other: Any,
) -> Job:
    data: dict[str, Any] = {
        "zero": 0,
        "overlap_reduce": False,
        "overlap_gather": False,
        "gradient_bytes": 4.0,
        "parameter_bytes": 2.0,
        "bucket_bytes": 1e18,
        "optimizer_seconds": lambda parameters: parameters * 1e-9,
        "norm_seconds": lambda parameters: parameters * 1e-10,
    }
    data |= {name: other.pop(name) for name in list(other) if name in data}
    fields: dict[str, Any] = {
        "model": MODEL,
        "pass_maker": Described(),
        "send_bytes": 100.0,
        "gather_boundary": False,
        "overlap_sends": True,
        "steps": 1,
    }
    order = schedule_entry(schedule)(pp, microbatches, chunks)
    fields["slices"] = ModelSlices.split_evenly(MODEL.layers, len(order.routes[0]))
    return Job(
        plan=ParallelPlan(tp=tp, dp=dp, pp=pp),
        schedule=order,
        data_parallel=DataParallelOptions(**data),
        **{**fields, **other},
    )


def text(key: Any) -> str:
    """('F', 0, 1, 0) is F1.0: microbatch 1 through virtual stage 0; /n is its n-th part; others as they are."""
    if key[0] in ("F", "B", "send F", "send B"):
        return f"{key[0]}{key[2]}.{key[3]}" + "".join(f"/{part}" for part in key[4:])
    return " ".join(str(word) for word in key)


def lines(program: StageProgram) -> list[str]:
    """Lane, item, what it does, what it waits for."""
    found = []
    for lane, items in program.lanes.items():
        for item in items:
            op = item.segment.ops[0]
            work = f"{op.work.kind} {op.work.axis}" if isinstance(op.work, Collective) else op.name
            needs = "".join(f" < {need.stage}:{text(need.key)}" for need in item.needs)
            found.append(f"{lane} | {text(item.key)} | {work}{needs}")
    return found


def items(job: Job) -> list[tuple[int, str, WorkItem]]:
    return [
        (program.stage, lane, item)
        for program in build_stage_programs(job)
        for lane, row in program.lanes.items()
        for item in row
    ]


def works(job: Job, stage: int, name: str) -> list[Any]:
    """The work of the stage's ops of that name."""
    return [op.work for at, _, item in items(job) for op in item.segment.ops if at == stage and op.name == name]


# --- goldens ---------------------------------------------------------------------------------------------------------


def test_one_after_the_other() -> None:
    first, second = build_stage_programs(job())
    assert lines(first) == [
        "main | F0.0 | 0+1+2+3 e",
        "main | F1.0 | 0+1+2+3 e",
        "main | B0.0 | 0+1+2+3 e < 1:send B0.1",
        "main | B1.0 | 0+1+2+3 e < 1:send B1.1",
        "main | gradients all_reduce 0 | all_reduce dp",
        "main | norm 0 | gradient_norm",
        "main | gradient_norm all_reduce 0 | all_reduce model",
        "main | optimizer 0 | optimizer",
        "send F | send F0.0 | activation < 0:F0.0",
        "send F | send F1.0 | activation < 0:F1.0",
    ]
    assert lines(second) == [
        "main | F0.1 | 4+5+6+7 h < 0:send F0.0",
        "main | B0.1 | 4+5+6+7 h",
        "main | F1.1 | 4+5+6+7 h < 0:send F1.0",
        "main | B1.1 | 4+5+6+7 h",
        "main | gradients all_reduce 0 | all_reduce dp",
        "main | norm 0 | gradient_norm",
        "main | gradient_norm all_reduce 0 | all_reduce model",
        "main | optimizer 0 | optimizer",
        "send B | send B0.1 | gradient < 1:B0.1",
        "send B | send B1.1 | gradient < 1:B1.1",
    ]


def test_everything_beside() -> None:
    """Buckets of two layers: gradients leave beside the last backward, parameters come beside the first forward."""
    made = job(zero=1, overlap_reduce=True, overlap_gather=True, bucket_bytes=4.0 * 2 * LAYER)
    first, second = build_stage_programs(made)
    assert lines(first) == [
        "main | F0.0/0 | 0+1 e < 0:gathered 0 0 1",
        "main | F0.0 | 2+3 < 0:gathered 0 0 0",
        "main | F1.0 | 0+1+2+3 e",
        "main | B0.0 | 0+1+2+3 e < 1:send B0.1",
        "main | B1.0/0 | 2+3 < 1:send B1.1",
        "main | B1.0 | 0+1 e",
        "main | norm 0 | gradient_norm < 0:reduced 0 0 0 < 0:reduced 0 0 1",
        "main | gradient_norm all_reduce 0 | all_reduce world",
        "main | optimizer 0 | optimizer",
        "dp | gathered 0 0 1 | all_gather dp",
        "dp | gathered 0 0 0 | all_gather dp",
        "dp | reduced 0 0 0 | reduce_scatter dp < 0:B1.0/0",
        "dp | reduced 0 0 1 | reduce_scatter dp < 0:B1.0",
        "send F | send F0.0 | activation < 0:F0.0",
        "send F | send F1.0 | activation < 0:F1.0",
    ]
    assert lines(second)[:6] == [
        "main | F0.1/0 | 4+5 < 0:send F0.0 < 1:gathered 0 0 1",
        "main | F0.1 | 6+7 h < 1:gathered 0 0 0",
        "main | B0.1 | 4+5+6+7 h",
        "main | F1.1 | 4+5+6+7 h < 0:send F1.0",
        "main | B1.1/0 | 6+7 h",
        "main | B1.1 | 4+5",
    ]


def test_zero_one_gathers_behind_the_optimizer() -> None:
    first, _ = build_stage_programs(job(zero=1))
    assert lines(first)[4:9] == [
        "main | gradients reduce_scatter 0 | reduce_scatter dp",
        "main | norm 0 | gradient_norm",
        "main | gradient_norm all_reduce 0 | all_reduce world",
        "main | optimizer 0 | optimizer",
        "main | parameters all_gather 0 | all_gather dp",
    ]


def test_tied_embeddings_are_summed_between_the_ends() -> None:
    tied = MODEL.model_copy(update={"tied_embeddings": True})
    made = job(pp=4, model=tied)
    folded = job(pp=2, schedule="zb-v", model=tied)  # both ends on stage 0, which sums them by itself
    assert [works(folded, stage, "embedding_gradients") for stage in range(2)] == [[], []]
    for stage in range(4):
        expected = [Collective("all_reduce", "embedding", 4.0 * 1024 * 512)] if stage in (0, 3) else []
        assert works(made, stage, "embedding_gradients") == expected
    assert works(job(pp=1, model=tied), 0, "embedding_gradients") == []
    beside = build_stage_programs(job(model=tied, overlap_reduce=True))[0]
    assert "main | embedding_gradients all_reduce 0 | all_reduce embedding < 0:reduced 0 0 0" in lines(beside)


def test_sends_may_hold_up_the_sender() -> None:
    first, _ = build_stage_programs(job(overlap_sends=False))
    assert [line.split(" | ")[1] for line in lines(first)][:4] == ["F0.0", "send F0.0", "F1.0", "send F1.0"]
    assert list(first.lanes) == [MAIN]


def test_chunks_hand_on_to_each_other_and_across() -> None:
    """Interleaved over two stages: virtual stages 0 1 2 3 on stages 0 1 0 1, layers in that order."""
    first, second = build_stage_programs(job(schedule="interleaved", chunks=2))
    assert "main | F0.2 | 4+5 < 1:send F0.1" in lines(first)
    assert "main | F0.1 | 2+3 < 0:send F0.0" in lines(second)
    assert "main | F0.3 | 6+7 h < 0:send F0.2" in lines(second)
    assert "main | B0.1 | 2+3 < 0:send B0.2" in lines(second)


def test_one_stage_hands_on_without_sending() -> None:
    (alone,) = build_stage_programs(job(pp=1, schedule="interleaved", chunks=2))
    assert list(alone.lanes) == [MAIN]
    assert "main | F0.1 | 4+5+6+7 h < 0:F0.0" in lines(alone)
    assert "main | B0.0 | 0+1+2+3 e < 0:B0.1" in lines(alone)


def test_a_second_step_follows_the_first() -> None:
    (alone,) = build_stage_programs(job(pp=1, microbatches=1, zero=1, overlap_gather=True, steps=2))
    assert lines(alone) == [
        "main | F0.0 | 0+1+2+3+4+5+6+7 eh < 0:gathered 0 0 0",
        "main | B0.0 | 0+1+2+3+4+5+6+7 eh",
        "main | gradients reduce_scatter 0 | reduce_scatter dp",
        "main | norm 0 | gradient_norm",
        "main | gradient_norm all_reduce 0 | all_reduce world",
        "main | optimizer 0 | optimizer",
        "main | F0.0 | 0+1+2+3+4+5+6+7 eh < 0:gathered 1 0 0",
        "main | B0.0 | 0+1+2+3+4+5+6+7 eh",
        "main | gradients reduce_scatter 1 | reduce_scatter dp",
        "main | norm 1 | gradient_norm",
        "main | gradient_norm all_reduce 1 | all_reduce world",
        "main | optimizer 1 | optimizer",
        "dp | gathered 0 0 0 | all_gather dp",
        "dp | gathered 1 0 0 | all_gather dp < 0:optimizer 0",
    ]


# --- what every program obeys ---------------------------------------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    schedule, pp, chunks = draw(
        st.sampled_from(
            [
                ("1f1b", 1, 1),
                ("1f1b", 4, 1),
                ("gpipe", 2, 1),
                ("interleaved", 1, 2),
                ("interleaved", 2, 2),
                ("interleaved", 4, 2),
                ("breadth-first", 2, 2),
                ("zb-h1", 4, 1),
                ("zb-h2", 2, 1),
                ("zb-v", 2, 1),
                ("v-min", 4, 1),
                ("dualpipe-v", 2, 1),
                ("hanayo", 2, 4),
            ]
        )
    )
    zero = draw(st.sampled_from([0, 1]))
    return job(
        schedule=schedule,
        pp=pp,
        chunks=chunks,
        dp=draw(st.sampled_from([1, 2, 3])),
        tp=draw(st.sampled_from([1, 2])),
        microbatches=pp * draw(st.sampled_from([2] if schedule == "dualpipe-v" else [1, 2])),
        zero=zero,
        overlap_reduce=draw(st.booleans()),
        overlap_gather=zero == 1 and draw(st.booleans()),
        overlap_sends=draw(st.booleans()),
        gather_boundary=draw(st.booleans()),
        bucket_bytes=draw(st.sampled_from([1.0, 2.1 * 4 * LAYER, 1e18])),
        model=MODEL.model_copy(update={"tied_embeddings": draw(st.booleans())}),
        steps=draw(st.sampled_from([1, 2])),
    )


@given(made=jobs())
def test_every_need_is_made_once_and_every_send_is_needed(made: Job) -> None:
    every = items(made)
    ends = Counter((stage, key) for stage, _, item in every for key in (item.key, *item.also))
    needed_by: dict[tuple[int, Any], list[int]] = {}
    for stage, _, item in every:
        for need in item.needs:
            needed_by.setdefault((need.stage, need.key), []).append(stage)
    assert all(ends[need] == 1 for need in needed_by)
    sends = [(stage, item) for stage, _, item in every if isinstance(item.segment.ops[0].work, StageSend)]
    for stage, item in sends:
        (receiver,) = needed_by[stage, item.key]
        assert item.segment.ops[0].work == StageSend(receiver, 100.0)
        assert receiver != stage
    crossings = sum(
        one[0] != other[0] for one, other in zip(made.schedule.routes[0], made.schedule.routes[0][1:], strict=False)
    )
    assert len(sends) == 2 * crossings * made.schedule.num_microbatches * made.steps


@given(made=jobs())
def test_the_main_lane_runs_the_row_of_the_schedule(made: Job) -> None:
    for program in build_stage_programs(made):
        passes = (item for item in program.lanes[MAIN] if item.segment.ops[0].kind in LETTERS)
        ran = [(item.step, LETTERS[item.segment.ops[0].kind], item.microbatch, item.chunk) for item in passes]
        row = made.schedule.rows[program.stage]
        once = [action for action, _ in itertools.groupby(ran)]  # parts of one pass follow each other
        assert once == [(step, *action) for step in range(made.steps) for action in row]


def test_a_fused_pair_waits_for_both_and_both_are_there_at_its_end() -> None:
    """DualPipe-V on two stages: stage 0 begins its first pair when the gradient for its B is there too."""
    made = job(schedule="dualpipe-v", microbatches=4)
    (program, _) = build_stage_programs(made)
    first = made.schedule.fused_positions(0)[0]
    halves = [item for item in program.lanes[MAIN] if item.microbatch >= 0][first : first + 2]
    forward, backward = made.schedule.rows[0][first : first + 2]
    assert [item.microbatch for item in halves] == [forward.microbatch, backward.microbatch]
    assert halves[0].key[0] == "half"
    assert halves[1].needs == ()
    both = {made.schedule.virtual_stage(each.microbatch, 0, each.chunk) for each in (forward, backward)}
    assert {halves[0].key[-1], halves[1].key[-1]} == both
    assert halves[1].also == (halves[0].key[1:],)


@given(made=jobs())
def test_every_pass_covers_its_chunk_once(made: Job) -> None:
    """Cut into buckets or whole: each layer once per microbatch and direction, each end on the slice that has it."""
    covered: Counter[tuple[int, str, int, int]] = Counter()
    ends: Counter[tuple[int, str, int, str]] = Counter()
    for _, _, item in items(made):
        op = item.segment.ops[0]
        if op.kind in LETTERS:
            layers, _, extra = op.name.partition(" ")
            for kind in ("input_grad", "weight_grad") if op.kind == "backward" else (op.kind,):  # B = I + W
                covered.update((item.step, kind, item.microbatch, int(layer)) for layer in layers.split("+"))
                ends.update((item.step, kind, item.microbatch, end) for end in extra if end in "eh")
    keys = [
        (step, kind, microbatch)
        for step in range(made.steps)
        for kind in ("forward", "input_grad", "weight_grad")
        for microbatch in range(made.schedule.num_microbatches)
    ]
    assert covered == Counter((*key, layer) for key in keys for layer in range(8))
    assert ends == Counter((*key, end) for key in keys for end in "eh")


@given(made=jobs())
def test_gradients_cover_the_parameters_of_the_stage_once(made: Job) -> None:
    """Buckets, or all at once; and only after the last microbatch's backward."""
    plan, per_slice = made.plan, 8 // len(made.schedule.routes[0])
    for program in build_stage_programs(made):
        parameters = stage_parameters_per_tp_rank(
            made.model,
            plan.tp,
            layers=per_slice * made.schedule.num_chunks,
            first=program.stage == made.schedule.routes[0][0][0],
            last=program.stage == made.schedule.routes[0][-1][0],
        )
        for name, per_element in (("gradients", 4.0), ("parameters", 2.0)):
            sizes = [work.size for work in works(made, program.stage, name)]
            moves = plan.dp > 1 and (name == "gradients" or made.data_parallel.zero)
            assert sum(sizes) == (made.steps * per_element * parameters if moves else 0.0)
        share = plan.dp if made.data_parallel.zero else 1
        assert works(made, program.stage, "optimizer") == [Compute(parameters / share * 1e-9)] * made.steps
        reduced = [item for item in program.lanes.get("dp", []) if item.key[0] == "reduced"]
        row = made.schedule.rows[program.stage]
        last = {action.chunk: action[:2] for action in row if action.kind in ("B", "W")}
        for item in reduced:
            (need,) = item.needs
            kind, step, microbatch = need.key[1:4] if need.key[0] == "half" else need.key[:3]
            assert step == item.step
            assert (kind, microbatch) == last[item.chunk]


@given(made=jobs())
def test_buckets_are_at_least_as_large_as_asked_but_for_the_last_of_a_chunk(made: Job) -> None:
    for program in build_stage_programs(made):
        chunks: dict[tuple[int, int], list[float]] = {}
        for item in program.lanes.get("dp", []):
            work = item.segment.ops[0].work
            if item.key[0] == "reduced":
                assert isinstance(work, Collective)
                chunks.setdefault((item.step, item.chunk), []).append(work.size)
        for sizes in chunks.values():
            assert all(size >= made.data_parallel.bucket_bytes for size in sizes[:-1])


@given(made=jobs())
def test_an_arriving_tensor_is_gathered_where_it_was_sent_split(made: Job) -> None:
    for _, _, item in items(made):
        op = item.segment.ops[0]
        if op.kind in LETTERS:
            sent = {"forward": "send F"}.get(op.kind, "send B")  # a half of a pair waits for the other's as well
            arrives = any(need.key[0] == sent for need in item.needs)
            if item.key[0] != "half" and not item.also:
                assert op.name.endswith("b") == (arrives and made.gather_boundary)


def test_layers_are_split_evenly_in_order() -> None:
    made = job(schedule="interleaved", pp=2, chunks=2)
    assert [made.slices.layers_of_slice(virtual) for virtual in range(4)] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_uneven_slices_are_in_the_programs() -> None:
    made = job(pp=2, slices=ModelSlices((5, 3)))
    assert made.pass_over_chunk(0, 0).layers == (0, 1, 2, 3, 4)
    assert made.pass_over_chunk(1, 0).layers == (5, 6, 7)


def longest(seconds: list[int], first: int, last: int, counts: tuple[int, ...]) -> int:
    """Of a cut, the slice with most to do."""
    ends = list(itertools.accumulate(counts))
    sums = [sum(seconds[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    sums[0] += first
    sums[-1] += last
    return max(sums)


@given(
    seconds=st.lists(st.integers(1, 9), min_size=2, max_size=8),
    first=st.integers(0, 9),
    last=st.integers(0, 30),
    empty_ends=st.booleans(),
    data=st.data(),
)
def test_no_cut_is_better_balanced(
    seconds: list[int], first: int, last: int, empty_ends: bool, data: st.DataObject
) -> None:
    slices = data.draw(st.integers(1, len(seconds)))
    hollow = empty_ends and slices > 1
    cut = balance_layers(seconds, first, last, slices, empty_ends=empty_ends)
    assert sum(cut.counts) == len(seconds)
    assert min(cut.counts[1:-1], default=1) >= 1
    assert hollow or min(cut.counts) >= 1
    cuts = (
        tuple(b - a for a, b in itertools.pairwise((0, *ends, len(seconds))))
        for ends in itertools.combinations_with_replacement(range(len(seconds) + 1), slices - 1)
    )
    legal = [each for each in cuts if min(each[1:-1], default=1) >= 1 and (hollow or min(each) >= 1)]
    assert longest(seconds, first, last, cut.counts) == min(longest(seconds, first, last, each) for each in legal)


def test_an_end_without_layers() -> None:
    """The embedding and the LM head take as long as a layer: arXiv:2407.21783 leaves those chunks without one."""
    assert balance_layers([1.0] * 6, 1.0, 1.0, 8, empty_ends=True).counts == (0, 1, 1, 1, 1, 1, 1, 0)
    with pytest.raises(InputError, match=r"5 layers are too few for 8 slices .* \(except the first and the last\)"):
        balance_layers([1.0] * 5, 1.0, 1.0, 8, empty_ends=True)


def test_layers_of_stages_are_spread_over_their_chunks() -> None:
    order = schedule_entry("interleaved")(4, 4, 2)  # stage s holds slices s and s + 4
    assert ModelSlices.from_stage_layers([3, 4, 5, 3], order).counts == (1, 2, 3, 2, 2, 2, 2, 1)
    folded = schedule_entry("zb-v")(2, 4)  # stage 0 holds slices 0 and 3, both ends of the model
    assert ModelSlices.from_stage_layers([3, 6], folded).counts == (2, 3, 3, 1)


def test_more_slices_than_layers_are_refused() -> None:
    with pytest.raises(InputError, match="at least one layer"):
        balance_layers([1.0], 0.0, 0.0, 2)


@pytest.mark.parametrize(("zero", "axis"), [(0, "model"), (1, "world")])
def test_the_norm_is_taken_over_all_who_hold_a_part(zero: int, axis: str) -> None:
    """Under ZeRO the gradients themselves are spread over dp."""
    assert Collective("all_reduce", axis, 4.0) in works(job(zero=zero), 0, "gradient_norm")
    norms = [work for work in works(job(pp=1, dp=2, zero=zero), 0, "gradient_norm") if isinstance(work, Collective)]
    assert len(norms) == zero
