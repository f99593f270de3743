"""What ranks do in step is one op of what is played, and whoever looks sees every op, as if they had been lowered so.

Nobody looks as long as the step time is all that is asked for.
"""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Tiny, tiny_scenario
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster import simulate
from simcluster.engine.engine import play
from simcluster.engine.lockstep import Expanded
from simcluster.programs import collapse as collapsing
from simcluster.programs.expand import whole
from simcluster.programs.program import Program
from simcluster.programs.told_ops import first_ops
from simcluster.results.played import Run
from simcluster.scenario.scenario import Scenario
from simcluster.simulate import replay
from simcluster.step.planned import prepare

CLUSTER = {"topology": "dgx_a100", "nodes": 4, "gpus_per_node": 4}
RANKS = st.integers(0, 15)


@st.composite
def faults(draw: st.DrawFn) -> list[dict[str, Any]]:
    """At least one that makes ranks of a group differ."""
    one: dict[str, Any] = {"kind": "slow_gpu", "factor": draw(st.sampled_from([1.1, 1.5, 3.0])), "rank": draw(RANKS)}
    other: dict[str, Any] = {"kind": "slow_gpu", "factor": 2.0, "rank": draw(RANKS), "start": "1 ms", "end": "2 ms"}
    stall: dict[str, Any] = {
        "kind": "host_stall",
        "cause": "garbage_collection",
        "seconds": "1 ms",
        "rank": draw(RANKS),
    }
    jitter: dict[str, Any] = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}
    more: list[list[dict[str, Any]]] = [[], [other], [stall], [stall, other], [jitter]]
    return [one, *draw(st.sampled_from(more))]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Tensor-parallel groups of unequal ranks, in every kind of overlap."""
    tp, pp, cp = draw(st.sampled_from([(4, 2, 1), (2, 2, 2), (4, 1, 1), (2, 4, 1), (2, 1, 1)]))
    parallel = {"tp": tp, "pp": pp, "cp": cp, "dp": 16 // tp // pp // cp, "sequence_parallel": draw(st.booleans())}
    interference = draw(st.sampled_from(["auto", "none", {"kind": "factor", "compute": 0.5}]))
    overlap = {name: draw(st.booleans()) for name in ("tensor", "grad_reduce", "pipeline")}
    chunks = draw(st.sampled_from([1, 2])) if pp == 2 else 1
    return tiny_scenario(
        cluster=CLUSTER,
        parallel={**parallel, "zero": draw(st.sampled_from([0, 1]))},
        pipeline={"schedule": "interleaved" if chunks > 1 else "1f1b", "chunks": chunks},
        training={"global_batch": 16},
        overlap={**overlap, "interference": interference},
        faults=draw(faults()),
        steps=draw(st.sampled_from([1, 2])),
    )


def op_by_op(scenario: Scenario, folded: bool) -> Program:
    """The program as it is lowered where nobody goes in step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collapsing, "_in_step", lambda segment, parts, with_lead: (-1, ()))
        return prepare(scenario, folded=folded).lowered.played


@settings(max_examples=6)
@given(scenario=scenarios(), folded=st.booleans())
def test_all_ops_are_as_they_would_be_lowered_and_played(scenario: Scenario, folded: bool) -> None:
    found = replay(scenario, folded=folded)
    lowered, record = found.lowered, found.record
    assert lowered.program == op_by_op(scenario, folded)
    alone = play(lowered.program, lowered.capacity)
    for name in ("ready", "start", "end", "last"):
        assert getattr(record, name).tolist() == getattr(alone, name).tolist(), name
    assert found.step_time == float(alone.end.max()) / scenario.steps
    other = Run(lowered=lowered, record=alone, steps=scenario.steps, ranks=found.ranks)
    assert found.times == other.times
    assert found.waits == other.waits
    assert found.critical_path.by_kind() == other.critical_path.by_kind()
    for column in ("op", "rank", "start", "end"):
        assert getattr(found.spans, column).tolist() == getattr(other.spans, column).tolist(), column


SLOW = {"kind": "slow_gpu", "factor": 1.5, "rank": 3}


def slow(tiny: Tiny, **overlap: Any) -> Scenario:
    return tiny(
        cluster=CLUSTER, parallel={"tp": 4, "pp": 2, "dp": 2, "sequence_parallel": True}, faults=[SLOW],
        training={"global_batch": 8}, overlap=overlap,
    )  # fmt: skip


def test_a_stretch_is_one_op_of_each_member(tiny: Tiny) -> None:
    program = prepare(slow(tiny, interference="auto")).lowered.played
    every = whole(program)
    assert len(program.seconds) < 0.5 * len(every.seconds)
    assert every.in_step == []
    assert whole(every) is every
    first = first_ops(program)
    assert first[-1] == len(every.seconds)
    for number, stretch in enumerate(program.in_step):
        for op, part in zip(stretch.ops, stretch.parts, strict=True):
            assert program.meeting[op] == -2 - number
            inside = range(first[op], first[op + 1])
            assert [every.lane_name[every.lane[each]] for each in inside] == list(part.lanes)
            assert [every.seconds[each] for each in inside] == list(part.seconds)
            assert [every.row_sets[every.rows[each]] for each in inside] == list(part.rows)
    shared = {id(stretch.parts) for stretch in program.in_step}
    assert len(shared) < 0.5 * len(program.in_step)  # microbatches go through the same


@pytest.mark.parametrize("overlap", [{"pipeline": True}, {"tensor": True}])  # what presses is inside stretches, too
def test_who_asks_for_the_step_time_sees_no_op(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, overlap: dict[str, bool]
) -> None:
    def looked(*_: object) -> None:
        raise AssertionError("somebody looked at every op")

    with monkeypatch.context() as patch:
        for module in ("engine.lower", "engine.choose"):
            patch.setattr(f"simcluster.{module}.whole", looked)
        patch.setattr(Expanded, "__init__", looked)
        found = simulate(slow(tiny, interference="auto", **overlap), engine="compiled")
        assert found.lowered.played.in_step
        assert found.record.kind == "events"
        assert found.mfu > 0
        assert found.step_time > (found.without_faults or 0.0) > 0.0
        with pytest.raises(AssertionError, match="somebody looked"):
            _ = found.record.end
    assert float(found.record.end.max()) == found.step_time
    assert vars(found.lowered).get("program") is None
    assert found.times.breakdown
    assert vars(found.lowered)["told"] is found.lowered.told
