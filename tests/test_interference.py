"""Communication and computation beside each other: two rates, against integration by hand and closed forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from conftest import Table, Tiny
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_fold import documents

from simcluster.base.clock import TICK, round_to_tick
from simcluster.base.errors import InputError
from simcluster.devices.device import kernel_sequence_seconds, load_device
from simcluster.devices.interference import (
    BandwidthInterference,
    ConcurrentCommunication,
    FactorInterference,
    Interference,
    MultiprocessorInterference,
)
from simcluster.devices.sensitivity import make_interference, make_sensitivity_function
from simcluster.engine.explicit_program import ExplicitProgram
from simcluster.engine.run import simulate_tables
from simcluster.engine.tables import CommunicationKind
from simcluster.model.kernels import Kernel
from simcluster.reference.step_record import OpTimes
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.traffic.traffic import Traffic

Row = tuple[float, float | None]
"""Seconds at full speed, and the sensitivity (None: a collective on the main lane)."""


def program(main: Sequence[Row], side: Sequence[tuple[float, float]], x: float, y: float) -> ExplicitProgram:
    """Return a program of one rank: ops on its main lane, concurrent with pauses and a transfer after each."""
    made = ExplicitProgram()
    lanes = made.add_lane(0), made.add_lane(0)
    for seconds, sensitivity in main:
        made.add_op(lanes[0], seconds, sensitivity=-1.0 if sensitivity is None else sensitivity)
    for pause, seconds in side:
        made.add_op(lanes[1], pause)
        made.add_op(lanes[1], rendezvous=transfer(made, 0, seconds, ranks=(0,), pressure=x, drag=y))
    return made


def transfer(made: ExplicitProgram, link: int, seconds: float, **effects: Any) -> int:
    """Add the meeting of a transfer on a link of 1 B/s and return its number."""
    made.meetings.append(CommunicationKind(1, (Traffic(((link, 1.0),), seconds, 1, 0.0),), **effects))
    return len(made.meetings) - 1


def times_of(made: ExplicitProgram, **profiles: Any) -> OpTimes:
    """Return the times of all ops on two links of 1 B/s."""
    found = simulate_tables(made.make_tables([1.0, 1.0], **profiles), str, keeps_times=True).times
    assert found is not None
    return found


def spans(made: ExplicitProgram, **profiles: Any) -> list[tuple[int, float, float]]:
    """Return (lane, start, end) of every op."""
    times = times_of(made, **profiles)
    start, end = times.start.tolist(), times.end.tolist()
    return sorted((lane, start[op], end[op]) for op, lane in enumerate(made.lane))


def by_hand(
    main: Sequence[Row], side: Sequence[tuple[float, float]], x: float, y: float
) -> list[tuple[int, float, float]]:
    """The same in exact fractions: from one change of rates to the next."""
    queues = [
        [(Fraction(seconds), feels is not None, Fraction(feels or 0)) for seconds, feels in main],
        [part for pause, seconds in side for part in ((Fraction(pause), False, Fraction(0)),
                                                      (Fraction(seconds), True, Fraction(0)))],
    ]  # fmt: skip
    found: list[tuple[int, float, float]] = []
    now, place, since = Fraction(0), [0, 0], [Fraction(0), Fraction(0)]
    left = [queue[0][0] if queue else None for queue in queues]
    while any(part is not None for part in left):
        busy = [part is not None and queue[at][1] for part, queue, at in zip(left, queues, place, strict=True)]
        slow = [Fraction(1), Fraction(1)]
        if all(busy):
            slow = [1 + queues[0][place[0]][2] * Fraction(x), 1 + Fraction(y)]
        step = min(part * slow[lane] for lane, part in enumerate(left) if part is not None)
        now += step
        for lane, part in enumerate(left):
            if part is None:
                continue
            left[lane] = part - step / slow[lane]
            if left[lane] == 0:
                found.append((lane, float(since[lane]), float(now)))
                place[lane] += 1
                since[lane] = now
                left[lane] = queues[lane][place[lane]][0] if place[lane] < len(queues[lane]) else None
    return sorted(found)


# --- the engine's rates -----------------------------------------------------------------------------------------------


def test_the_oracle() -> None:
    """MODELLING.md C.5: 10 s of computation beside 6 s of communication, 18.9 % and 10 % slower: 11.0491 s."""
    ends = {lane: end for lane, _, end in spans(program([(10.0, 1.0)], [(0.0, 6.0)], 0.189, 0.1))}
    assert ends[1] == pytest.approx(6.6, abs=TICK)
    assert ends[0] == pytest.approx(6.6 + 10 - 6.6 / 1.189, abs=4 * TICK)
    assert round(ends[0], 4) == 11.0491


@given(offset=st.floats(0, 12), x=st.floats(0, 2), y=st.floats(0, 2))
def test_the_oracle_from_any_offset(offset: float, x: float, y: float) -> None:
    """While both last, one of them ends first; what is left goes on at full speed."""
    compute, transfer, offset = 10.0, 6.0, round_to_tick(offset)
    beside = min((compute - offset) * (1 + x), transfer * (1 + y)) if offset < compute else 0.0
    ends = {lane: end for lane, _, end in spans(program([(compute, 1.0)], [(offset, transfer)], x, y))}
    assert ends[0] == pytest.approx(compute + beside * x / (1 + x), abs=8 * TICK)
    assert ends[1] == pytest.approx(offset + transfer + beside * y / (1 + y), abs=8 * TICK)


lengths = st.floats(0, 2).map(round_to_tick)
long = st.floats(1e-3, 2).map(round_to_tick)
ops = st.tuples(lengths, st.sampled_from([None, 0.0, 0.5, 1.0, 1.7]))
sides = st.lists(st.tuples(lengths, long), min_size=1, max_size=4)
slowdowns = st.sampled_from([0.0, 0.1, 0.189, 0.75, 2.0])


@settings(max_examples=100)
@given(main=st.lists(ops, min_size=1, max_size=12), side=sides, x=slowdowns, y=slowdowns)
def test_any_mixture_is_that_by_hand(main: list[Row], side: list[tuple[float, float]], x: float, y: float) -> None:
    flat = [one for one in main if one[0] > 1e-6]
    if not flat:
        return
    exact = by_hand(flat, side, x, y)
    found = spans(program(flat, side, x, y))
    assert [lane for lane, _, _ in found] == [lane for lane, _, _ in exact]
    for (_, start, end), (_, wanted_start, wanted_end) in zip(found, exact, strict=True):
        assert start == pytest.approx(wanted_start, abs=200 * TICK)
        assert end == pytest.approx(wanted_end, abs=200 * TICK)


@given(main=st.lists(ops, min_size=1, max_size=12), side=sides)
def test_no_pressure_and_no_drag_change_nothing(main: list[Row], side: list[tuple[float, float]]) -> None:
    disturbed = program(main, side, 0.0, 0.0)
    plain = program(main, side, 0.0, 0.0)
    plain.meetings = [meeting._replace(ranks=()) for meeting in plain.meetings]
    assert spans(disturbed) == spans(plain)


def test_the_strongest_of_several_communications_counts() -> None:
    made = program([(8.0, 1.0)], [(0.0, 2.0)], 1.0, 0.0)
    made.add_op(made.add_lane(0), rendezvous=transfer(made, 1, 4.0, ranks=(0,), pressure=0.25))
    end = times_of(made).end
    assert end[0] == pytest.approx(4 + 8 - 2 / 2 - 2 / 1.25, abs=8 * TICK)


def test_all_ranks_of_a_communication_feel_it_and_one_that_computes_drags_it() -> None:
    made = program([(3.0, 1.0)], [(0.0, 4.0)], 0.5, 1.0)
    other = made.add_lane(1)
    made.add_op(other, 1.0)
    made.add_op(other, 5.0, sensitivity=1.0)
    made.meetings[0] = made.meetings[0]._replace(ranks=(0, 1))
    end = times_of(made).end
    # both drag it until 8 s, when rank 1 has had 1 s of its own and 7 s at 1 / 1.5
    assert end[2] == pytest.approx(8.0)
    assert end[0] == pytest.approx(4.5)
    assert end[4] == pytest.approx(8.0 + 5.0 - 7 / 1.5, abs=8 * TICK)


def test_a_dragged_transfer_keeps_its_share_of_a_link() -> None:
    """Two transfers on one link; the one beside computation takes twice as long, the other does not gain by it."""
    made = program([(100.0, 1.0)], [(0.0, 4.0)], 0.0, 1.0)
    made.add_op(made.add_lane(1), rendezvous=transfer(made, 0, 4.0))
    end = times_of(made).end
    assert end[3] == 8.0  # half of the link until 8 s
    assert end[2] == 12.0  # 2 s worth done at 8 s, the other 2 s worth on the whole link


# --- where pressure and sensitivity come from -------------------------------------------------------------------------


def test_a_factor_in_a_node_and_between_nodes() -> None:
    spec = FactorInterference(kind="factor", compute=0.2, compute_between_nodes=0.02)
    found = [
        Interference(spec, 108, 2e12).compute_slowdown(ConcurrentCommunication(far, 1e11)) for far in (False, True)
    ]
    assert found == [0.2, 0.02]
    assert (
        Interference(FactorInterference(kind="factor", compute=0.2), 108, 2e12).compute_slowdown(
            ConcurrentCommunication(True, 1e11)
        )
        == 0.2
    )
    assert (
        FactorInterference(kind="factor", compute=0.2, compute_between_nodes=0.0).compute_slowdown(
            ConcurrentCommunication(True, 0.0), 1, 1.0
        )
        == 0.0
    )


def test_memory_bandwidth_oracle() -> None:
    """MODELLING.md C.5: A100, 300 GB/s over NVLink, 3 bytes each: 1 / (1 - 900 / 2039) = 1.79 (measured 1.83)."""
    a100 = load_device("a100-80gb")
    found = make_interference(a100, BandwidthInterference(kind="hbm", bytes_per_byte=3.0))
    assert found is not None
    assert 1 + found.compute_slowdown(ConcurrentCommunication(False, 300e9)) == pytest.approx(1.79, abs=0.005)
    assert found.compute_slowdown(ConcurrentCommunication(False, 1e15)) == 1.0  # no more than a fair share
    feels = make_sensitivity_function(a100, found, "bf16")
    assert feels([Kernel("add", "memory", 0.0, 1e9)]) == pytest.approx(1.0, abs=0.01)
    assert feels([Kernel("product", "matmul", 2 * 8192.0**3, 3 * 2 * 8192.0**2, 8192, 8192, 8192)]) < 0.05


def test_waves_oracle() -> None:
    """MODELLING.md C.5: 132 tiles on 132 multiprocessors, 24 of them taken: two waves instead of one, on the clock's
    ceiling twice as long (measured on H100: 1.70)."""
    h100 = load_device({"base": "h100", "matmul": {"power": 1.0, "clock": 0.5, "epilogue": 0.0, "tiles": [[128, 128]]}})
    product = Kernel("product", "matmul", 2.0 * 132 * 128 * 128 * 8192, 1.0, 132 * 128, 128, 8192)
    found = make_interference(h100, MultiprocessorInterference(kind="sms", channels=24))
    assert found is not None
    slower = 1 + make_sensitivity_function(h100, found, "bf16")([product]) * found.compute_slowdown(
        ConcurrentCommunication(False, 0.0)
    )
    alone = kernel_sequence_seconds(h100, [product], precision="bf16")
    assert slower == pytest.approx((2 * (alone - h100.launch) + h100.launch) / alone)
    assert make_sensitivity_function(h100, found, "bf16")([Kernel("add", "memory", 0.0, 1e9)]) == 0.0
    assert make_sensitivity_function(h100, None, "bf16")([product]) == 1.0


@pytest.mark.parametrize("name", ["h100", "h800", "a100-80gb", "b200"])
@pytest.mark.parametrize("channels", [8, 24, 32])
@pytest.mark.parametrize("exponent", [1.0, 2.1])
def test_a_matmul_at_the_power_limit_has_no_power_of_those_that_communicate(
    name: str, channels: int, exponent: float
) -> None:
    """S / (S - h) as long, but for its last wave: 1.22 with 24 of an H100's (18.9 % measured, arXiv:2507.03114)."""
    device = load_device({"base": name, "matmul": {"power_exponent": exponent, "epilogue": 0.0}})
    large = Kernel("large", "matmul", 2 * 16384.0**3, 3 * 2 * 16384.0**2, 16384, 16384, 16384)
    found = make_interference(device, MultiprocessorInterference(kind="sms", channels=channels))
    assert found is not None
    slower = 1 + make_sensitivity_function(device, found, "bf16")([large]) * found.compute_slowdown(
        ConcurrentCommunication(False, 0.0)
    )
    assert slower == pytest.approx(device.multiprocessors / (device.multiprocessors - channels), rel=0.02)


@pytest.mark.parametrize("reserved", [0, 20, 131])
def test_reserved_multiprocessors_slow_products_and_attention(reserved: int) -> None:
    """Where the clock limits a product: one that power limits may do with fewer of them."""
    free = {"power": 1.0, "sustained": 1.0}
    kernels = [
        Kernel("product", "matmul", 2 * 4096.0**3, 3 * 2 * 4096.0**2, 4096, 4096, 4096),
        Kernel("attention", "attention", 2.0 * 4096 * 4096 * 128 * 32, 1e6, 4096, 4096, 128, 32),
    ]
    whole = load_device({"base": "h100", "matmul": free})
    less = load_device({"base": "h100", "matmul": free, "reserved": reserved})
    for kernel in kernels:
        ratio = kernel_sequence_seconds(less, [kernel], precision="bf16") / kernel_sequence_seconds(
            whole, [kernel], precision="bf16"
        )
        assert (ratio == 1.0) if not reserved else (1.0 < ratio < 132)


def test_reserving_all_multiprocessors_is_an_error() -> None:
    with pytest.raises(InputError, match="leaves none of 132"):
        load_device({"base": "h100", "reserved": 132})


def test_auto_is_what_the_device_says() -> None:
    own: dict[str, Any] = {"base": "h100", "interference": {"kind": "factor", "compute": 0.5}}
    found = make_interference(load_device(own), "auto")
    assert found is not None
    assert found.compute_slowdown(ConcurrentCommunication(False, 0.0)) == 0.5
    assert make_interference(load_device(own), "none") is None
    assert make_interference(load_device({**own, "interference": None}), "auto") is None
    assert (
        make_interference(load_device({**own, "interference": None}), MultiprocessorInterference(kind="sms"))
        is not None
    )


def test_every_device_that_says_something_says_where_it_is_from() -> None:
    from simcluster.devices.device import device_names

    for name in device_names():
        spec = load_device(name).interference
        assert spec is None or "arXiv" in spec.source or "calculon" in spec.source


# --- whole steps ------------------------------------------------------------------------------------------------------

mechanisms = st.one_of(
    st.fixed_dictionaries({
        "kind": st.just("factor"),
        "compute": st.sampled_from([0.0, 0.189, 1.0]),
        "compute_between_nodes": st.sampled_from([0.0, 0.02, 0.5]),
        "communication": st.sampled_from([0.0, 0.1, 1.0]),
    }),
    st.fixed_dictionaries({"kind": st.just("sms"), "channels": st.sampled_from([1, 24, 60])}),
    st.fixed_dictionaries({
        "kind": st.just("hbm"), "bytes_per_byte": st.sampled_from([2.0, 3.0]),
        "communication": st.sampled_from([0.0, 0.3]),
    }),
)  # fmt: skip


_GROUPS_ON_ONE_LINK: dict[str, Any] = {  # two groups of one class reduce gradients over the same PCIe link
    "cluster": {"topology": "pcie_ethernet", "nodes": 1, "gpus_per_pcie_switch": 2},
    "gpus": 8,
    "model": {"layers": 8},
    "parallel": {"tp": 2, "dp": 4},
    "pipeline": {"schedule": "gpipe"},
    "training": {"global_batch": 4},
    "overlap": {"grad_reduce": True, "bucket_size": "1 MB"},
}

_PAIRS_ON_HOSTS: dict[str, Any] = {  # some pairs of stages cross hosts, some do not, and links are all alike
    "cluster": {"topology": "flat", "gpus": 8, "gpus_per_host": 4},
    "gpus": 6,
    "parallel": {"pp": 2, "dp": 3},
    "pipeline": {"schedule": "gpipe"},
    "training": {"global_batch": 6},
    "overlap": {"pipeline": True},
}


@settings(max_examples=12)
@given(document=documents(), mechanism=mechanisms)
@example(document=_PAIRS_ON_HOSTS, mechanism={"kind": "factor", "compute": 0.189, "compute_between_nodes": 0.0})
@example(document=_GROUPS_ON_ONE_LINK, mechanism={"kind": "hbm", "bytes_per_byte": 2.0})
def test_folded_is_unfolded_to_the_bit(
    tiny: Tiny, table: Table, document: dict[str, Any], mechanism: dict[str, Any]
) -> None:
    document["overlap"] = {**document["overlap"], "interference": mechanism}
    scenario = tiny(**document)
    folded, plain = simulate_scenario(scenario), simulate(scenario, folded=False)
    assert folded.step_time == plain.step_time
    for rank in range(scenario.gpus):
        ours, theirs = table(folded, rank), table(plain, rank)
        assert ours.equals(theirs), f"rank {rank}\n{ours.compare(theirs) if len(ours) == len(theirs) else ''}"


@settings(max_examples=12)
@given(document=documents())
def test_factors_of_nothing_are_none_to_the_bit(tiny: Tiny, table: Table, document: dict[str, Any]) -> None:
    """Played through all the machinery with x = y = 0 or not at all, the timeline is the same."""
    nothing = {"kind": "factor", "compute": 0.0, "communication": 0.0}
    overlap = document["overlap"]
    ours = simulate(tiny(**{**document, "overlap": {**overlap, "interference": nothing}}))
    theirs = simulate(tiny(**{**document, "overlap": {**overlap, "interference": "none"}}))
    assert ours.step_time == theirs.step_time
    for rank in theirs.weights:
        assert table(ours, rank).equals(table(theirs, rank))


CLOSED_SET: list[dict[str, Any]] = [
    {"gpus": 4, "parallel": {"dp": 4}, "overlap": {"grad_reduce": True, "bucket_size": "1 MB"}},
    {"gpus": 4, "parallel": {"dp": 4, "zero": 1},
     "overlap": {"grad_reduce": True, "param_gather": True, "bucket_size": "1 MB"}},
    {"gpus": 4, "parallel": {"pp": 4}},
    {"gpus": 4, "parallel": {"tp": 4, "sequence_parallel": True}, "overlap": {"tensor": True},
     "model": {"hidden_size": 1024, "sequence_length": 2048}},
    {"gpus": 8, "parallel": {"tp": 2, "pp": 2, "dp": 2},
     "overlap": {"grad_reduce": True, "tensor": True, "bucket_size": "1 MB"}},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CLOSED_SET)))
@pytest.mark.parametrize("knob", ["compute", "communication"])
def test_more_interference_never_makes_these_steps_shorter(tiny: Tiny, number: int, knob: str) -> None:
    document = dict(CLOSED_SET[number])
    gpus = document.pop("gpus")
    times = []
    for slower in (0.0, 0.05, 0.189, 0.5, 1.0, 4.0):
        mechanism = {"kind": "factor", "compute": 0.1, "communication": 0.1, knob: slower}
        overlap = {**document.get("overlap", {}), "interference": mechanism}
        cluster = {"topology": "flat", "gpus": gpus}
        times.append(simulate(tiny(**{**document, "cluster": cluster, "overlap": overlap})).step_time)
    assert times == sorted(times)
    assert times[-1] > times[0]


@pytest.mark.parametrize("tokens", [128, 4096])  # the transfer is longer, the computation is longer
@pytest.mark.parametrize("x", [0.0, 0.189, 1.0])
def test_a_bucket_beside_the_backward_costs_what_the_closed_form_says(tiny: Tiny, x: float, tokens: int) -> None:
    """Bucket 1 of 2 travels t_m beside the rest of the backward t_c, which takes min(t_c (1 + x), t_m) x / (1 + x)
    more."""

    def run(**interference: Any) -> tuple[list[tuple[str, float, float]], float]:
        overlap = {"grad_reduce": True, "bucket_size": "3 MB", "interference": interference or "none"}
        result = simulate(
            tiny(
                cluster={"topology": "flat", "gpus": 2},
                model={"layers": 2, "sequence_length": tokens},
                parallel={"dp": 2},
                overlap=overlap,
            )
        )
        frame = result.timeline_of(0)
        kept = frame[(frame["stream"] == "dp") | (frame["kind"] == "backward")]
        return list(zip(kept["stream"], kept["start"], kept["end"], strict=True)), result.step_time

    plain, plain_step = run()
    slowed, step = run(kind="factor", compute=x)
    first, *more = [(start, end) for stream, start, end in plain if stream == "dp"]
    assert len(more) == 1
    backward = max(end for stream, _, end in plain if stream == "compute")
    t_m, t_c = first[1] - first[0], backward - first[0]
    assert (t_m > t_c * (1 + x)) if tokens == 128 else (0 < t_m < t_c)
    lost = min(t_c * (1 + x), t_m) * x / (1 + x)
    assert max(end for stream, _, end in slowed if stream == "compute") == pytest.approx(backward + lost, abs=1e-11)
    queued = max(first[1], backward + lost)  # the second bucket follows both
    assert step - plain_step == pytest.approx(queued - max(first[1], backward), abs=1e-11)
    assert (step > plain_step) == (x > 0 and tokens > 128)


def test_a_receiver_feels_what_it_receives(tiny: Tiny) -> None:
    """Forward only, two stages: the send of one microbatch runs beside both stages' work on others."""
    overlap = {"interference": {"kind": "factor", "compute": 1.0}}
    scenario = tiny(cluster={"topology": "flat", "gpus": 2}, parallel={"pp": 2}, overlap=overlap)
    result = simulate(scenario)
    ops, times = result.record.ops, result.record.times
    slowed = (ops.seconds > 0) & (times.end - times.start > ops.seconds)
    assert set(ops.lane_rank[ops.lane[slowed]].tolist()) == {0, 1}


def test_steps_do_not_model_it_and_say_so(tiny: Tiny) -> None:
    mechanism = {"kind": "sms", "channels": 24}
    with pytest.raises(ValueError, match=r"not modelled with collectives\.detail: steps"):
        tiny(overlap={"interference": mechanism}, collectives={"detail": "steps"})
    with pytest.raises(ValueError, match="leaves none of"):
        tiny(overlap={"interference": {"kind": "sms", "channels": 500}})
    tiny(collectives={"detail": "steps"})


def test_given_times_know_no_interference() -> None:
    from simcluster.studies.bench.fixed_durations import Costs, simulate_costs

    run = simulate_costs(Costs(forward=1.0, backward=2.0, send=0.5), stages=2, microbatches=4)
    ops, times = run.record.ops, run.record.times
    assert np.array_equal((times.end - times.start)[ops.seconds > 0], ops.seconds[ops.seconds > 0])
    assert math.isfinite(run.step_time)
