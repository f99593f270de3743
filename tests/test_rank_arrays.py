"""Arrays over ranks beside the engine's events and the reference: all times of all ops, to the bit, or refused by name.

``python tests/test_rank_arrays.py 500 1`` draws so many scenarios from this seed and prints how many were equal to the
bit and how many were refused, by reason and by kind of fault; it ends with the first that differs.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from conftest import Tiny, tiny_scenario
from drawn.scenarios import documents, simulates
from drawn.scopes import SCOPES
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from simcluster.base.clock import on_fitting_grid
from simcluster.base.effort import however_long
from simcluster.base.errors import DeadlockError, InputError
from simcluster.engine.longest_path import NeedsEventsError
from simcluster.faults import placed
from simcluster.results.memory_timeline import memory_timeline
from simcluster.results.over_ranks import NotInArraysError, states_over_ranks
from simcluster.results.result import Result
from simcluster.results.step_time import step_time
from simcluster.results.waits import waits
from simcluster.scenario.scenario import Scenario
from simcluster.simulate import replay, simulate
from simcluster.step.in_arrays import in_arrays
from simcluster.step.planned import plan
from simcluster.step.play import play

SPEEDS = {"kind": "speeds", "law": {"kind": "normal", "sigma": 0.2}}
NICS = {"kind": "nic_speeds", "law": {"kind": "normal", "sigma": 0.3}}
UNEVEN: list[dict[str, Any]] = [
    SPEEDS,
    {"kind": "speeds", "law": {"kind": "lognormal", "sigma": 0.03}},
    {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}},
    {"kind": "jitter", "factor": {"kind": "normal", "sigma": 0.1}, "per": "pass", "adds": "10 us"},
    {"kind": "jitter", "factor": {"kind": "gumbel", "scale": 0.1}, "per": "step"},
    {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 40, "sigma": 1}},
]

MOE = {"experts": 4, "top_k": 2, "expert_ffn_hidden_size": 512}
ZIPF = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 1}}
POPULAR: list[Any] = [
    None,
    None,
    ZIPF,
    {**ZIPF, "per": "pass"},
    {**ZIPF, "tokens": {"kind": "dirichlet", "concentration": 2}},
]


@st.composite
def uneven(draw: st.DrawFn) -> dict[str, Any]:
    """Any scenario for which the scope of arrays vouches, with ranks that differ."""
    document = draw(documents(SCOPES["arrays"]))
    faults = draw(st.lists(st.sampled_from([*UNEVEN, NICS]), min_size=1, max_size=2, unique_by=lambda one: one["kind"]))
    if "moe" in document["model"]:
        faults += filter(None, [draw(st.sampled_from(POPULAR))])
    training = {**document["training"], "attention": "fused"}
    return {**document, "faults": faults, "training": training, "seed": draw(st.integers(0, 99))}


def reason(scenario: Scenario) -> str:
    """Why arrays refuse it; "" where they gave all that the events gave."""
    scenario = scenario.model_copy(update={"faults": placed(scenario.faults)})
    planned = plan(scenario)
    try:
        prepared, found = on_fitting_grid(lambda: in_arrays(scenario, planned))
    except NeedsEventsError as error:
        return re.sub(r", the first.*|after \d+ | [0-9.]+ times", "", str(error))
    meant = play(scenario.model_copy(update={"engine": "events"}), planned, prepared)
    for name in ("ready", "start", "end", "last"):
        assert getattr(found, name).tolist() == getattr(meant, name).tolist(), name
    assert found.lanes.tolist() == meant.lanes.tolist()
    return measured(Result(
        lowered=prepared.lowered, record=found, steps=scenario.steps, ranks=range(prepared.facts.ranks),
        scenario=scenario, job=planned.job, facts=prepared.facts,
    ))  # fmt: skip


def measured(result: Result) -> str:
    """Breakdown, waits and peaks of memory of all ranks from arrays are those from spans; what only spans tell."""
    assert result.record.over_ranks is not None
    try:
        over = states_over_ranks(result.record.over_ranks, result.steps)
    except NotInArraysError as error:
        return f"equal to the bit; measured by spans: {error}"
    last = result.scenario.gpus - 1
    assert result.timeline_of(last).equals(result.spans.of_rank(last).frame())
    program, meant = result.lowered.program, step_time(result.spans, result.weights, steps=result.steps)
    assert result.times == meant
    assert dict(result.times.of_rank) == dict(meant.of_rank)
    if over.waited is not None:
        assert over.waits == waits(program, result.record)
    stages = over.stage.tolist()
    held = memory_timeline(result.lowered.told, result.record.columns, result.record.slowed)
    peaks = [held.peak(rank, stages[rank]) for rank in result.weights]
    assert [result.peak_of(rank) for rank in result.weights] == peaks
    holding = [result.facts.footprints[peak.stage].holding(peak.pools).total for peak in peaks]
    assert result.memory_peak == peaks[holding.index(max(holding))]
    return ""


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(document=uneven().filter(simulates))
def test_arrays_are_the_events_or_say_why_not(document: dict[str, Any]) -> None:
    reason(tiny_scenario(**document))


MIXTURE = {"model": {"moe": MOE}, "parallel": {"tp": 2, "ep": 2, "zero": 1, "sequence_parallel": True}}


@pytest.mark.parametrize("change", [
    {},
    {**MIXTURE, "faults": [SPEEDS, {**ZIPF, "per": "pass"}, NICS],
     "overlap": {"grad_reduce": False, "param_gather": False}},
])  # fmt: skip
def test_all_that_is_measured_is_the_references(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """Chosen by itself where most ranks differ: the result JSON, spans and memory, as the reference has them."""
    monkeypatch.setattr("simcluster.step.in_arrays.ARRAYS_FROM", 4)
    job = {"cluster": {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4}, "parallel": {"tp": 2, "zero": 1},
           "training": {"global_batch": 8}, "overlap": {"tensor": True, "grad_reduce": True, "param_gather": True},
           "faults": [SPEEDS], **change}  # fmt: skip
    found, meant = simulate(tiny(**job)), simulate(tiny(**job), engine="reference")
    assert (found.record.kind, found.record.events) == ("arrays", 0)
    assert found.step_time == meant.step_time
    assert found.times == meant.times
    assert found.memory_peak == meant.memory_peak
    assert found.timeline_of(3).equals(meant.timeline_of(3))
    assert "lanes" not in found.record.__dict__, "what is measured in arrays makes no program"
    own, other = found.to_dict(), meant.to_dict()
    for told in (own, other):
        del told["engine"], told["scenario"]
    assert own == other
    assert found.timeline.equals(meant.timeline)
    assert found.waits == meant.waits
    assert found.memory_timeline.frame().equals(meant.memory_timeline.frame())


@pytest.mark.parametrize("change", [
    {"faults": [SPEEDS, {**UNEVEN[2], "rank": 3}]},
    {"faults": [{**UNEVEN[2], "rank": 3}]},
    {"parallel": {"pp": 4}, "pipeline": {"schedule": "interleaved", "chunks": 2, "p2p": "rendezvous"}},
])  # fmt: skip
def test_ranks_that_differ_from_the_first(tiny: Tiny, change: dict[str, Any]) -> None:
    """Of which the first is as planned, and where messages meet."""
    job = {"cluster": {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4}, "training": {"global_batch": 16},
           "model": {"layers": 8}, "faults": [SPEEDS]}  # fmt: skip
    assert reason(tiny(**{**job, **change})) in ("", "transfers hold each other back on links")


def test_few_different_ranks_fold(tiny: Tiny) -> None:
    job = {"cluster": {"topology": "flat", "gpus": 64}, "parallel": {"dp": 64}, "training": {"global_batch": 64}}
    few = simulate(tiny(**job, faults=[{"kind": "speeds", "table": [[3, 0.9], [40, 0.8]]}]))
    many = simulate(tiny(**job, faults=[SPEEDS]))
    assert (len(few.weights), many.record.kind) == (3, "arrays")
    assert many.step_time == replay(many.scenario, folded=False).step_time


def test_what_tells_more_ops_than_there_is_time_for_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrays measure is told; what needs ops one by one is refused, unless it is asked for again."""
    monkeypatch.setattr("simcluster.step.in_arrays._TELLING", 1e3)
    job = {"cluster": {"topology": "flat", "gpus": 32}, "parallel": {"dp": 32}, "training": {"global_batch": 32}}
    result = simulate(tiny(**job, faults=[SPEEDS]))
    assert result.times.breakdown
    assert result.record.over_ranks is not None
    with pytest.raises(InputError, match=f"32 ranks .* {result.record.over_ranks.count:,} ops one by one.* --yes"):
        _ = result.account
    with however_long():
        assert len(result.lowered.program.seconds) == result.record.over_ranks.count


@pytest.mark.parametrize(("change", "why"), [
    ({"overlap": {"interference": {"kind": "factor", "compute": 0.1, "communication": 0.1}}}, "slows down comm"),
    ({"faults": [{"kind": "slow_gpu", "rank": 0, "speed": 0.5, "start": "1 ms"}]}, "speeds that change"),
    ({"faults": [{"kind": "slow_link", "nic_of": 0, "speed": 0.5, "end": "1 ms"}]}, "links that change"),
    ({"faults": [{"kind": "link_flap", "nic_of": 0, "down": "1 us"}]}, "link_flap"),
    ({"engine": "path"}, "engine"),
    ({"collectives": {"detail": "steps"}}, "as flows"),
    ({"checkpoint": {"to": "20 GB/s", "mode": "blocking"}}, "different parts of a checkpoint"),
    ({"cluster": {"topology": "pcie_ethernet", "nodes": 2, "gpus_per_node": 4, "gpus_per_pcie_switch": 2},
      "parallel": {"pp": 4}, "training": {"global_batch": 64}, "overlap": {"interference": "none", "pipeline": False}},
     "meet on links would be played .* times over"),
])  # fmt: skip
def test_what_arrays_do_not_know_is_refused_by_name(tiny: Tiny, change: dict[str, Any], why: str) -> None:
    job = {"cluster": {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4}, "training": {"global_batch": 16}}
    scenario = tiny(**{"faults": [SPEEDS], **job, **change})
    with pytest.raises(NeedsEventsError, match=why):
        in_arrays(scenario, plan(scenario))


@pytest.mark.parametrize(("job", "why"), [
    ({"parallel": {"pp": 2}, "overlap": {"interference": {"kind": "factor", "compute": 0.1}}}, "another stage"),
    ({"parallel": {"pp": 2}, "overlap": {"interference": "none", "pipeline": False}}, "hold each other back"),
])  # fmt: skip
def test_what_takes_many_sweeps_is_left_to_events_where_a_sweep_is_long(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, job: dict[str, Any], why: str
) -> None:
    cluster = {"topology": "flat", "gpus": 8}
    scenario = tiny(**{"cluster": cluster, "training": {"global_batch": 16}, "faults": [SPEEDS], **job})
    assert reason(scenario) == ""
    monkeypatch.setattr("simcluster.engine.rank_arrays._MOST_TURNS", 0)
    with pytest.raises(NeedsEventsError, match=why):
        in_arrays(scenario, plan(scenario))


Case = tuple[str, tuple[str, ...]]
"""Why a scenario was refused ("": it was equal), and its kinds of faults."""


def drawn(count: int, first: int) -> list[Case]:
    """So many scenarios, drawn from this seed."""
    found: list[Case] = []

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=False, phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )  # fmt: skip
    @seed(first)
    @given(document=uneven().filter(simulates))
    def draw(document: dict[str, Any]) -> None:
        try:
            why = reason(tiny_scenario(**document))
        except DeadlockError:
            why = "deadlock"
        found.append((why, tuple(sorted(fault["kind"] for fault in document["faults"]))))

    draw()
    return found


if __name__ == "__main__":
    cases = drawn(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for why, many in Counter(why for why, _ in cases).most_common():
        print(f"{many:5} {why or 'equal to the bit'}")  # noqa: T201
    for kind in sorted({kind for _, kinds in cases for kind in kinds}):
        own = [why for why, kinds in cases if kind in kinds]
        print(f"{own.count(''):5} of {len(own)} with {kind} equal to the bit, the others refused")  # noqa: T201
