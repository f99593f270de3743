"""A new op as a stranger adds one: a class, and its example in ``WORKS``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from conftest import tiny_scenario
from test_ops import MAIN, is_played_alike, job

from simcluster import monte_carlo, simulate
from simcluster import plan as search
from simcluster.base.errors import InputError
from simcluster.planning.ops import Op, Segment, Work
from simcluster.planning.segments import Pass, Passes
from simcluster.planning.works import WORKS
from simcluster.studies.sweep.quick import quick_step
from simcluster.studies.sweep.stage_network import NotQuickError


@dataclass(frozen=True, slots=True)
class Write(Work):
    """``size`` bytes that the rank's host writes to a store of ``rate`` B/s, as for a checkpoint."""

    size: float = field()
    rate: float

    @property
    def seconds(self) -> float:
        return self.size / self.rate

    def free(self) -> Write:
        return replace(self, size=0.0)


EXAMPLE = Write(6e6, 2e9)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKS, Write, EXAMPLE)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every forward pass ends with it."""
    plain = Passes.segment

    def with_write(self: Passes, kind: str, part: Pass) -> Segment:
        made = plain(self, kind, part)
        op = Op(EXAMPLE, "host", "write", "checkpoint")
        return Segment((*made.ops, op)) if kind == "F" else made

    monkeypatch.setattr(Passes, "segment", with_write)


@pytest.mark.parametrize("lane", [MAIN, "beside"])
def test_all_who_only_ask_play_it(registered: None, lane: str) -> None:
    is_played_alike(EXAMPLE, lane, job(disturbed=True))


def test_it_is_planned_in_one_place(registered: None, planned: None) -> None:
    plain = simulate(job(), engine="reference")
    spans = plain.timeline_of(0)
    assert (spans.kind == "write").sum() == 1  # one a microbatch
    assert simulate(job()).step_time == plain.step_time


def test_what_is_not_proved_for_it_refuses_it_by_name(registered: None, planned: None) -> None:
    with pytest.raises(NotQuickError, match="Write"):
        quick_step(job())
    chance = tiny_scenario(faults=[{"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}])
    with pytest.raises(InputError, match="Write; use method events"):
        monte_carlo(chance.model_copy(update={"replicas": 2}))
    with pytest.raises(InputError, match="Write"):
        search(job(), gpus=4)


def test_nobody_plays_what_is_not_registered(planned: None) -> None:
    for engine in ("reference", "compiled"):
        with pytest.raises(InputError, match=r"Write is not a kind of work that planning/works\.WORKS names"):
            simulate(job(), engine=engine)  # type: ignore[arg-type]
