"""Times beyond 512 s: played on a grid of 16, 256, ... times the tick, where every engine gives the same spans, too.

More examples than CI draws, of steps of any length and of those beyond 512 s, in all engines, folded and not:
python tests/test_coarser_grids.py 300 [SEED]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from conftest import Tiny, tiny_scenario
from drawn.scenarios import documents as any_documents
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from test_same_answer import documents, spans_of

import simcluster
from simcluster.base.clock import (
    TICK,
    ClockRangeError,
    bind_to_current_grid,
    exact_time_limit,
    round_to_tick,
    simulate_on_exact_grid,
)
from simcluster.base.errors import InputError
from simcluster.step.simulate import simulate_scenario

_LATER = {"1 ms": "3 h", "2 ms": "9 h"}


@st.composite
def slow_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Documents for ``tiny`` whose steps take minutes to months, with windows of faults hours into them."""
    document = draw(documents())
    slow, thin = draw(st.sampled_from([(1e-6, 1e-3), (1e-7, 1.0), (1e-8, 1e-6), (1e-5, 1e-8)]))
    faults = [
        {key: _LATER.get(value, value) if isinstance(value, str) else value for key, value in fault.items()}
        for fault in document["faults"]
    ]
    cluster = {**document["cluster"], "scale": {"flops": slow, "network": thin}}
    return {**document, "cluster": cluster, "faults": faults}


@settings(max_examples=10)
@given(document=slow_documents())
def test_engines_give_the_same_spans_beyond_512_s(tiny: Tiny, document: dict[str, Any]) -> None:
    every_engine(tiny, document, ways=[("auto", True)])


ALL = [("simpy", True), ("compiled", True), ("compiled", False)]


def every_engine(tiny: Tiny, document: dict[str, Any], ways: Sequence[tuple[Any, bool]] = ALL) -> float:
    """Simulate the document by the reference and in these ways (engine; whether ranks are folded), compare them, and
    return the length of all its steps in seconds."""
    plain = simulate_scenario(tiny(**document, engine="reference"))
    spans = {rank: spans_of(plain, rank) for rank in plain.weights}
    for engine, folded in ways:
        found = simulate_scenario(tiny(**document, engine=engine), folded=folded)
        assert found.step_time == plain.step_time
        for rank, own in spans.items():
            assert spans_of(found, rank) == own, f"{engine}, rank {rank}"
    return float(plain.record.times.end.max())


def test_a_step_of_hours_is_played_on_the_grid_that_it_fits(tiny: Tiny) -> None:
    found = simulate_scenario(tiny(cluster={"topology": "flat", "gpus": 4, "scale": {"flops": 1e-9}}, gpus=4))
    end = float(found.record.times.end.max())
    tick = TICK
    while end >= tick * 2.0**53:
        tick *= 16.0
    assert end > 512.0
    assert all(seconds % tick == 0.0 for seconds in found.record.times.end.tolist())


def test_twelve_steps_of_47_s_come_to_an_end(tiny: Tiny) -> None:
    cluster = {"topology": "dgx_h100", "nodes": 1, "gpus_per_node": 2, "scale": {"flops": 1e-6}}
    drags = {"kind": "factor", "compute": 0.3, "communication": 0.2}
    document = {"cluster": cluster, "gpus": 2, "parallel": {"tp": 2}, "model": {"layers": 1}, "steps": 40,
                "overlap": {"tensor": True, "interference": drags, "tensor_pieces": 2}}  # fmt: skip
    assert every_engine(tiny, document, ways=[("auto", True)]) > 512.0


def test_what_is_asked_later_is_told_on_the_grid_of_the_play() -> None:
    played: list[float] = []

    def play() -> Any:
        played.append(exact_time_limit())
        if exact_time_limit() <= 600.0:
            raise ClockRangeError
        return bind_to_current_grid(lambda: round_to_tick(1.4 * TICK))

    later = simulate_on_exact_grid(play)
    assert played == [512.0, 8192.0]
    assert (later(), round_to_tick(1.4 * TICK)) == (0.0, TICK)


def test_what_no_clock_counts_is_refused() -> None:
    def never() -> None:
        raise ClockRangeError

    with pytest.raises(InputError, match=r"longer than 9e\+15 s, .*cluster.scale.flops"):
        simulate_on_exact_grid(never)


@pytest.mark.parametrize("engine", ["compiled", "simpy", "reference"])
def test_an_op_that_never_ends_is_refused(engine: str) -> None:
    """It ends beyond every grid: nobody waits for anybody, so it is no deadlock."""
    endless = simcluster.scenario("tiny_dp", engine=engine, **{"software.gap": "1e99 s"})
    with pytest.raises(InputError, match=r"longer than 9e\+15 s"):
        simcluster.simulate(endless)


BATCH = 25
"""Documents drawn from one seed: of thousands, hypothesis makes most by small changes of others, and the last ones
only to be thrown away."""


def draw_widely(examples: int, start: int, long: bool) -> Iterator[str]:
    """So many drawn scenarios that are valid (``long``: that end beyond 512 s), each equal in every engine; a line on
    how far it is after each batch."""
    lengths: list[float] = []

    def compare(document: dict[str, Any]) -> None:
        if len(lengths) < examples:
            with suppress(InputError):  # some combinations are none
                length = every_engine(tiny_scenario, document)
                lengths.extend([length] if not long or length > 512.0 else [])

    drawn = slow_documents() if long else any_documents()
    batch = settings(
        max_examples=BATCH, derandomize=False, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    for number in count(1000 * start):
        batch(seed(number)(given(document=drawn)(compare)))()
        told = f"{min(lengths):.3g} to {max(lengths):.3g} s on the clock" if lengths else "none valid yet"
        yield f"{len(lengths)} drawn scenarios from seed {start}, {told}: every engine gives the same spans\n"
        if len(lengths) == examples:
            return


if __name__ == "__main__":  # python tests/test_coarser_grids.py 300 [SEED]
    for beyond in (True, False):
        for line in draw_widely(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, beyond):
            sys.stdout.write(line)
            sys.stdout.flush()
