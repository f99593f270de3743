"""Hidden, exposed, waiting: against interval algebra of its own, the breakdown, and closed forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from conftest import Tiny, run_programs
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_fold import documents

import simcluster
from simcluster.base.clock import round_to_tick
from simcluster.planning.ops import MAIN, Dependency, Op, Segment, StageProgram, WorkItem
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.work_kinds import Compute, FixedCollective
from simcluster.results.overlap import CommunicationKey, OverlapSeconds
from simcluster.results.result import Result
from simcluster.results.simulated_run import Run
from simcluster.results.span_states import EXPOSED
from simcluster.step.simulate import simulate
from simcluster.studies.bench.fixed_durations import Costs, simulate_costs
from simcluster.topology import parse_topology

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals, in order, that cover the same."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in union(intervals))


def both(first: Iterable[Interval], second: Iterable[Interval]) -> float:
    """Length of what two sets have in common: |A| + |B| - |A or B|."""
    a, b = union(first), union(second)
    return length(a) + length(b) - length([*a, *b])


@settings(max_examples=8)
@given(document=documents())
def test_every_number_by_interval_algebra(tiny: Tiny, document: dict[str, Any]) -> None:
    result = simulate(tiny(**document))
    for rank in result.weights:
        table = result.timeline_of(rank)
        found = result.overlap.of_rank[rank]
        close = {"rel": 1e-9, "abs": 1e-12}
        computing = [*zip(*(table[table["stream"] == "compute"][edge] for edge in ("start", "end")), strict=True)]
        for key, value in found.items():
            own = table[table["stream"].isin([key.axis] if key.axis else EXPOSED)]
            if key.kind:
                own = own[(own["kind"] == key.kind) & (own["name"] == key.name)]
            wire = [*zip(own["start"], own["end"], strict=True)]
            waiting = [*zip(own["ready"], own["start"], strict=True)]
            steps = result.steps
            assert value.calls * steps == len(own)
            assert value.wire * steps == pytest.approx(length(wire), **close)
            assert value.hidden * steps == pytest.approx(both(wire, computing), **close)
            assert value.exposed == pytest.approx(value.wire - value.hidden, **close)
            assert value.waiting * steps == pytest.approx(length(waiting), **close)
            assert 0 <= value.counted_contention <= value.counted + 1e-12
            assert value.counted <= value.exposed + 1e-12
            assert value.contention <= value.wire + 1e-12


@settings(max_examples=8)
@given(document=documents())
def test_it_sums_to_the_breakdown(tiny: Tiny, document: dict[str, Any]) -> None:
    result = simulate(tiny(**document))
    mean, breakdown = result.overlap.mean, result.times.breakdown
    close = {"rel": 1e-9, "abs": 1e-12}
    for axis in EXPOSED:
        calls = sum(value.counted for key, value in mean.items() if key.axis == axis and key.kind)
        assert calls == pytest.approx(breakdown[f"exposed_{axis}"], **close)
        assert mean.get(CommunicationKey(axis), OverlapSeconds()).counted == pytest.approx(calls, **close)
    assert mean[CommunicationKey()].exposed == pytest.approx(
        sum(breakdown[f"exposed_{axis}"] for axis in EXPOSED), **close
    )
    assert mean[CommunicationKey()].wire == pytest.approx(result.times.communication, **close)
    assert result.overlap.fraction == pytest.approx(result.times.overlap_fraction, **close)


@settings(max_examples=6)
@given(document=documents())
def test_folded_is_unfolded(tiny: Tiny, document: dict[str, Any]) -> None:
    """Contention too: what a group takes on free links does not depend on who plays for whom."""
    scenario = tiny(**document)
    folded, plain = simulate(scenario).overlap, simulate(scenario, folded=False).overlap
    assert list(folded.mean) == list(plain.mean)
    for key, value in folded.mean.items():
        for name in OverlapSeconds.__slots__:
            assert getattr(value, name) == pytest.approx(getattr(plain.mean[key], name), rel=1e-9, abs=1e-12), (
                key,
                name,
            )


# --- closed forms -----------------------------------------------------------------------------------------------------


def buckets(n: int, b: float, t: float) -> Run:
    """Two replicas: n backward passes of b seconds, each handing a bucket of t seconds to the dp lane; then the end."""

    def item(lane: str, key: object, op: Op, needs: tuple[Dependency, ...] = ()) -> WorkItem:
        return WorkItem(Segment((op,)), key, needs)

    main = [item(MAIN, ("b", i), Op(Compute(b), "compute", "backward", "layer")) for i in range(n)]
    reduce = Op(FixedCollective("dp", t), "dp", "all_reduce", "gradients", lane="dp")
    beside = [item("dp", ("r", i), reduce, (Dependency(0, ("b", i)),)) for i in range(n)]
    done = tuple(Dependency(0, ("r", i)) for i in range(n))
    main.append(item(MAIN, "end", Op(Compute(0.0), "compute", "optimizer", "optimizer"), done))
    plan = ParallelPlan(dp=2)
    program = StageProgram(0, {MAIN: main, "dp": beside})
    flat = {"kind": "flat", "device": "h100", "gpus": 2, "link": {"line_rate": "1 GB/s"}, "path_latency": "0 s"}
    return run_programs([program], plan, parse_topology(flat).build(), folded=False)


@settings(max_examples=60)
@given(n=st.integers(1, 30), b=st.floats(1e-3, 1.0), t=st.floats(1e-3, 1.0))
def test_gradient_buckets(n: int, b: float, t: float) -> None:
    """MODELLING.md F.1: exposed = t + max(0, (n - 1)(t - b)); the rest of the n t seconds is hidden."""
    b, t = round_to_tick(b), round_to_tick(t)
    assume(b != t)  # both paths are equally long
    run = buckets(n, b, t)
    found = run.overlap.mean[CommunicationKey("dp", "all_reduce", "gradients")]
    exposed = t + max(0.0, (n - 1) * (t - b))
    assert found.wire == pytest.approx(n * t, rel=1e-9)
    assert found.exposed == found.counted == pytest.approx(exposed, rel=1e-9)
    assert found.hidden == pytest.approx(n * t - exposed, rel=1e-9, abs=1e-12)
    assert (found.calls, found.waiting, found.contention) == (n, 0.0, 0.0)
    path = run.critical_path.by_kind()
    passes = 1 if t > b else n  # the reductions back to back behind the first bucket, or one behind the last
    assert path["backward"] == pytest.approx(passes * b, rel=1e-9)
    assert path["dp all_reduce"] == pytest.approx((n if t > b else 1) * t, rel=1e-9)


def test_24_buckets_of_the_reference() -> None:
    """n = 24, b = 10: t = 7 exposes 7, t = 12 exposes 58."""
    assert buckets(24, 10.0, 7.0).overlap.mean[CommunicationKey("dp")].exposed == 7
    assert buckets(24, 10.0, 12.0).overlap.mean[CommunicationKey("dp")].exposed == 58


def test_waiting_is_apart_from_the_wire() -> None:
    """A replica 1.5 times as slow: the other waits half of its own 30 s, then both reduce for 6."""
    costs = Costs(forward=10, backward=20, grad_reduce=6)
    run = simulate_costs(costs, stages=1, microbatches=1, dp=2, slowness={1: 1.5})
    key = CommunicationKey("dp", "all_reduce", "gradients")
    fast, slow, mean = run.overlap.of_rank[0][key], run.overlap.of_rank[1][key], run.overlap.mean[key]
    assert (fast.waiting, fast.wire, fast.exposed) == (15, 6, 6)
    assert (slow.waiting, slow.wire, slow.exposed) == (0, 6, 6)
    assert (mean.waiting, mean.wire) == (7.5, 6)


# --- contention -------------------------------------------------------------------------------------------------------


def shared_port(tiny: Tiny, *, overlap: bool) -> Result:
    """Gradients and the layers' collectives leave a GPU by its one port, at once or one after the other."""
    return simulate(
        tiny(
            cluster={"topology": "flat", "gpus": 4, "link": {"line_rate": "5 GB/s", "source": ""}},
            model={"layers": 8, "hidden_size": 512},
            parallel={"tp": 2, "dp": 2},
            overlap={"grad_reduce": overlap, "bucket_size": "1 MB"},
        )
    )


def test_contention_is_what_sharing_adds(tiny: Tiny) -> None:
    apart, together = (shared_port(tiny, overlap=overlap).overlap.mean for overlap in (False, True))
    assert apart[CommunicationKey()].contention == 0
    assert together[CommunicationKey("tp")].contention > 0 < together[CommunicationKey("dp")].contention
    free = together[CommunicationKey("tp")].wire - together[CommunicationKey("tp")].contention
    assert free == pytest.approx(apart[CommunicationKey("tp")].wire, rel=1e-9)  # the same transfers on free links


def test_groups_that_share_a_nic_contend_with_each_other(tiny: Tiny) -> None:
    """4 dp groups over machines with one NIC: each would take less alone, however many ranks are played."""
    scenario = tiny(
        cluster={"topology": "pcie_ethernet", "nodes": 2, "gpus_per_node": 4, "nics_per_node": 1},
        parallel={"tp": 4, "dp": 2},
    )
    for folded in (True, False):
        mean = simulate(scenario, folded=folded).overlap.mean
        reduced = next(value for key, value in mean.items() if key.axis == "dp" and key.kind)
        assert reduced.contention / reduced.wire == pytest.approx(3 / 4, abs=0.05)


def test_free_seconds_of_a_group_drawn_whole() -> None:
    """They are read from classes of links: as many as from the links of the group, one by one."""
    run = simulate(simcluster.scenario("llama3_405b_1024xh100"))
    communicators, classes = run.folding
    capacity = np.zeros(int(classes.used_links.max()) + 1)
    capacity[classes.used_links] = np.array(run.capacity)[classes.used_link_classes]
    keys = [
        key for key in run.span_calls[1] if communicators.seen.of_group[key.communicator] in communicators.seen.apart
    ]
    assert keys
    for key in keys:
        usages = communicators.link_usages(key.communicator)
        traffics = communicators.traffic_of_call(key.communicator, key.kind, key.size, usages)
        assert run.uncontended_durations.call_seconds(key) == sum(each.solo_seconds(capacity) for each in traffics)


def test_rows_for_json(tiny: Tiny) -> None:
    rows = shared_port(tiny, overlap=True).to_dict()["overlap"]
    assert [rows[0][name] for name in ("axis", "kind", "name")] == ["", "", ""]
    assert rows[0]["wire_s"] == pytest.approx(rows[0]["hidden_s"] + rows[0]["exposed_s"])
    assert {row["axis"] for row in rows} == {"", "tp", "dp", "pp"} - {"pp"}
