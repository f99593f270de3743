"""What crosses between stages, against the routes of schedules, and the rules of a rendezvous as small tables."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from test_stages import MODEL, items, job, lines

from simcluster.planning.job import Job
from simcluster.planning.ops import MAIN
from simcluster.planning.program_builder import ProgramBuilder
from simcluster.planning.stage_boundaries import SendReceiveBuilder
from simcluster.planning.stage_programs import build_stage_programs
from simcluster.planning.work_kinds import StageReceive, StageSend
from simcluster.schedules import Action

SCHEDULES = [
    ("1f1b", 1, 1), ("1f1b", 4, 1), ("interleaved", 1, 2), ("interleaved", 2, 2), ("zb-h1", 4, 1), ("zb-v", 2, 2),
    ("dualpipe", 4, 1), ("dualpipe-v", 2, 1), ("hanayo", 2, 4),
]  # fmt: skip
WAYS = [(False, True), (False, False), (True, False), (True, True)]  # rendezvous, overlap_sends


def crossings(made: Job) -> Iterator[tuple[str, int, int, tuple[int, int], int, tuple[int, int]]]:
    """Letter, step, microbatch, then sender, its place on the route, and receiver: every neighbours'
    tensor of every pass, sent or not."""
    schedule = made.schedule
    for step in range(made.steps):
        for microbatch, number in enumerate(schedule.route_of):
            route = schedule.routes[number]
            for place, (one, other) in enumerate(itertools.pairwise(route)):
                yield "F", step, microbatch, one, place, other
                yield "B", step, microbatch, other, place + 1, one


def made_by(schedule: str, pp: int, chunks: int, **ways: Any) -> Job:
    model = MODEL.model_copy(update={"layers": 16})
    return job(schedule=schedule, pp=pp, chunks=chunks, microbatches=2 * pp, steps=2, model=model, **ways)


# --- against the routes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rendezvous", "overlap_sends"), WAYS)
@pytest.mark.parametrize(("schedule", "pp", "chunks"), SCHEDULES)
def test_what_crosses_is_what_the_routes_say(
    schedule: str, pp: int, chunks: int, rendezvous: bool, overlap_sends: bool
) -> None:
    """Every send and receive, op by op; who needs it waits for it, and nobody else does."""
    made = made_by(schedule, pp, chunks, rendezvous=rendezvous, overlap_sends=overlap_sends)
    sides: Counter[Any] = Counter()
    awaited: Counter[Any] = Counter()
    for letter, step, microbatch, (sender, chunk), place, (receiver, there) in crossings(made):
        key = (f"send {letter}" if sender != receiver else letter, step, microbatch, place)
        awaited[receiver, "B" if letter == "B" else "F", step, microbatch, there, sender, key] += 1
        if sender == receiver:
            continue
        name = "activation" if letter == "F" else "gradient"
        lane = f"send {letter}" if overlap_sends or rendezvous else MAIN
        sent = StageSend(receiver, 100.0, rendezvous=rendezvous)
        sides[sender, lane, key, step, microbatch, chunk, "pp", "send", name, lane, sent] += 1
        if rendezvous:
            lane, needed = f"recv {letter}", ("receive", key)
            sides[receiver, lane, needed, step, microbatch, there, "pp", "recv", name, lane, StageReceive(sender)] += 1
    found: Counter[Any] = Counter()
    segments: dict[Any, Any] = {}
    for stage, lane, item in items(made):
        op = item.segment.ops[0]
        if isinstance(op.work, StageSend | StageReceive):
            assert len(item.segment.ops) == 1
            what = (op.stream, op.kind, op.name, op.lane, op.work)
            found[(stage, lane, item.key, item.step, item.microbatch, item.chunk, *what)] += 1
            assert segments.setdefault((stage, *what), item.segment) is item.segment  # equal messages share one
    assert found == sides
    assert waits(made, pairs=any(made.schedule.fused)) == (
        Counter((stage, step, need, key) for stage, _, step, _, _, need, key in awaited.elements())
        if any(made.schedule.fused)
        else awaited
    )


def waits(made: Job, *, pairs: bool) -> Counter[Any]:
    """Who waits for which neighbour's tensor (of fused pairs: the stage), but for what a rendezvous holds up."""
    found: Counter[Any] = Counter()
    for stage, lane, item in items(made):
        op = item.segment.ops[0]
        if lane != MAIN or op.kind not in ("forward", "backward", "input_grad", "weight_grad"):
            continue
        for need in item.needs:
            held_up = need.stage == stage and need.key[0].startswith("send")
            if held_up or need.key[0] not in ("F", "B", "send F", "send B"):
                continue
            who = () if pairs else ("F" if op.kind == "forward" else "B", item.step, item.microbatch, item.chunk)
            found[(stage, *(who or (item.step,)), need.stage, need.key)] += 1
    return found


@pytest.mark.parametrize("overlap_sends", [False, True])
def test_an_asynchronous_send_waits_for_what_it_sends_alone(overlap_sends: bool) -> None:
    made = made_by("zb-v", 2, 2, overlap_sends=overlap_sends)
    for stage, _, item in items(made):
        if isinstance(item.segment.ops[0].work, StageSend):
            kind, *rest = item.key
            assert [(need.stage, need.key) for need in item.needs] == [(stage, (kind.removeprefix("send "), *rest))]


# --- rendezvous by hand -----------------------------------------------------------------------------------------------


def met(*, stage: int, microbatches: int = 2, **made: Any) -> dict[str, str]:
    """What each item of a stage's rendezvous waits for, behind its name; of passes what they wait for beside sends."""
    program = build_stage_programs(job(rendezvous=True, microbatches=microbatches, **made))[stage]
    found = {}
    for line in lines(program):
        lane, name, what = line.split(" | ")
        if lane != MAIN or name[0] in "FBIW":
            found[name] = what.partition(" < ")[2].replace(" < ", ", ")
    return found


def received(letter: str, microbatch: int, place: int) -> str:
    return f"receive ('send {letter}', 0, {microbatch}, {place})"


def test_sends_and_receives_with_one_stage_are_posted_together() -> None:
    """Two stages of 1F1B: whoever posts a receive with a send waits for the pass before, not for that send."""
    assert met(stage=0) == {
        "F0.0": "", "F1.0": "0:send F0.0", "B0.0": "1:send B0.1, 0:send F1.0", "B1.0": "1:send B1.1",
        "send F0.0": "0:F0.0", "send F1.0": "0:F1.0", received("B", 0, 1): "0:F1.0", received("B", 1, 1): "0:B0.0",
    }  # fmt: skip
    assert met(stage=1) == {
        "F0.1": "0:send F0.0", "B0.1": "", "F1.1": "0:send F1.0, 1:send B0.1", "B1.1": "",
        "send B0.1": "1:B0.1", "send B1.1": "1:B1.1", received("F", 0, 0): "", received("F", 1, 0): "1:B0.1",
    }  # fmt: skip


def test_receives_from_another_stage_follow_the_sends() -> None:
    """The middle of GPipe: it takes the next microbatch from one side when the other side has got the last."""
    assert met(stage=1, schedule="gpipe", pp=4) == {
        "F0.1": "0:send F0.0", "F1.1": "0:send F1.0, 1:send F0.1",
        "B0.1": "2:send B0.2, 1:send F1.1", "B1.1": "2:send B1.2, 1:send B0.1",
        "send F0.1": "1:F0.1", "send F1.1": "1:F1.1", "send B0.1": "1:B0.1", "send B1.1": "1:B1.1",
        received("F", 0, 0): "", received("F", 1, 0): "1:F0.1, 1:send F0.1",
        received("B", 0, 2): "1:F1.1", received("B", 1, 2): "1:B0.1, 1:send B0.1",
    }  # fmt: skip


def test_with_chunks_all_are_posted_together() -> None:
    """The middle of an interleaved pipeline: no receive waits for the send that it is posted with."""
    found = met(stage=1, schedule="interleaved", pp=4, chunks=2, microbatches=4)
    needs = [needs for name, needs in found.items() if name.startswith("receive")]
    assert len(needs) == 2 * 2 * 4  # slices 1 and 5, both ways
    assert not any("send" in each for each in needs)
    assert found["F1.1"] == "0:send F1.0, 1:send F0.1"


# Which actions a rendezvous stands before, and how many are then one action; stage 1 of 2 with two chunks, the slices
# 1 and 3 of 4, unless the case says otherwise: B of slice 3 has its input from its own F, not from another stage.
ALTERNATING: dict[str, tuple[str, tuple[int, ...], dict[int, int]]] = {
    "nothing": ("", (), {}),
    "forwards": ("F0 F1 F2", (), {0: 1, 1: 1, 2: 1}),
    "a last forward": ("F0", (), {0: 1}),
    "alone at the end": ("F0 B1", (), {0: 1, 1: 1}),
    "another forward behind": ("F0 B1 F2", (), {0: 2, 2: 1}),
    "a backward behind": ("F0 B1 B2", (), {0: 1, 1: 1, 2: 1}),
    "a backward in front": ("B0 F1 B2", (), {0: 1, 1: 2}),
    "an input gradient in front": ("I0 F1 I2", (), {0: 1, 1: 2}),
    "a weight gradient in front": ("W0 F1 B2", (), {0: 1, 1: 1, 2: 1}),
    "a forward in front": ("F0 F1 B2", (), {0: 1, 1: 1, 2: 1}),
    "a weight gradient between": ("B0 F1 W0 F2", (), {0: 1, 1: 1, 2: 1, 3: 1}),
    "several in turn": ("F4 B0 F5 B1 F6 B2", (), {0: 2, 2: 2, 4: 2}),
    "the last behind an end that is none": ("F0 F1 B9", (), {0: 1, 1: 1, 2: 1}),
    "its own backward": ("F0 B0 F1", (), {0: 1, 1: 1, 2: 1}),
    "its own backward, of the last slice": ("F0.1 B0.1 F1.1", (), {0: 2, 2: 1}),
    "a fused pair": ("F0 B0 F1", (0,), {0: 2, 2: 1}),
    "a fused pair further on": ("F0 F1 B1", (1,), {0: 1, 1: 2}),
}


@pytest.mark.parametrize("case", ALTERNATING)
def test_a_forward_and_a_backward_in_turn_are_one_action(case: str) -> None:
    text, halves, expected = ALTERNATING[case]
    made = job(schedule="interleaved", chunks=2, microbatches=10, rendezvous=True)
    row = [Action.parse(word) for word in text.split()]
    assert at(made, 1).find_rendezvous(row, halves) == expected


def test_without_chunks_or_a_rendezvous_nothing_takes_turns() -> None:
    row = [Action.parse(word) for word in ("F4", "B0", "F5")]
    one_chunk = job(microbatches=10, rendezvous=True)
    assert at(one_chunk, 1).find_rendezvous(row, ()) == {0: 1, 1: 1, 2: 1}
    assert at(job(schedule="interleaved", chunks=2, microbatches=10), 1).find_rendezvous(row, (0,)) == {}


def at(made: Job, stage: int) -> SendReceiveBuilder:
    return SendReceiveBuilder(made, ProgramBuilder(stage, pipelined=True))


def test_what_arrives_from_another_stage_may_be_split() -> None:
    """Slices 0 to 3 on stages 0 1 0 1: the model's ends have their input themselves, and W never gets any."""
    for gather in (False, True):
        made = job(schedule="interleaved", chunks=2, gather_boundary=gather)
        found = {f"{stage} {word}" for stage in (0, 1) for word in ("F0.0", "F0.1", "B0.0", "B0.1", "I0.1", "W0.0")
                 if at(made, stage).input_arrives_split(Action.parse(word))}  # fmt: skip
        all_of = {"0 F0.1", "0 B0.0", "0 B0.1", "0 I0.1", "1 F0.0", "1 F0.1", "1 B0.0"}
        assert found == (all_of if gather else set())
    alone = job(pp=1, schedule="interleaved", chunks=2, gather_boundary=True)
    assert not any(at(alone, 0).input_arrives_split(Action.parse(word)) for word in ("F0.1", "B0.0"))


def test_an_input_gradient_makes_what_a_backward_makes() -> None:
    boundaries = at(job(schedule="interleaved", chunks=2), 1)
    keys = {word: boundaries.output_key(Action.parse(word), 7) for word in ("F1.0", "B1.0", "I1.0", "W1.1", "F0.1")}
    assert keys == {
        "F1.0": ("F", 7, 1, 1), "B1.0": ("B", 7, 1, 1), "I1.0": ("B", 7, 1, 1), "W1.1": ("W", 7, 1, 3),
        "F0.1": ("F", 7, 0, 3),
    }  # fmt: skip
    assert boundaries.input_dependencies(Action.parse("W1.1"), 7) == ()
