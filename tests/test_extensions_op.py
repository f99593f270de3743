"""A new op as a stranger adds one: a class, and its example in ``WORKS``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from conftest import tiny_scenario
from test_ops import MAIN, is_played_alike, job

from simcluster import monte_carlo, simulate
from simcluster import plan as search
from simcluster.base.errors import InputError
from simcluster.planning.ops import Op, OpWork, Segment
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.work_kinds import WORKS
from simcluster.studies.sweep.quick_steps import quick_step_time
from simcluster.studies.sweep.stage_network import NeedsFullRunError


@dataclass(frozen=True, slots=True)
class Write(OpWork):
    """``size`` bytes that the rank's host writes to a store of ``rate`` B/s, as for a checkpoint."""

    size: float = field()
    rate: float

    @property
    def seconds(self) -> float:
        return self.size / self.rate

    def without_duration(self) -> Write:
        return replace(self, size=0.0)


EXAMPLE = Write(6e6, 2e9)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKS, Write, EXAMPLE)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every forward pass ends with it."""
    plain = CachedPassSegmentMaker.segment

    def with_write(self: CachedPassSegmentMaker, kind: str, part: PassLayers) -> Segment:
        made = plain(self, kind, part)
        op = Op(EXAMPLE, "host", "write", "checkpoint")
        return Segment((*made.ops, op)) if kind == "F" else made

    monkeypatch.setattr(CachedPassSegmentMaker, "segment", with_write)


@pytest.mark.parametrize("lane", [MAIN, "beside"])
def test_all_who_only_ask_play_it(registered: None, lane: str) -> None:
    is_played_alike(EXAMPLE, lane, job(disturbed=True))


def test_it_is_planned_in_one_place(registered: None, planned: None) -> None:
    plain = simulate(job(), engine="reference")
    spans = plain.timeline_of(0)
    assert (spans.kind == "write").sum() == 1  # one a microbatch
    assert simulate(job()).step_time == plain.step_time


def test_what_is_not_proved_for_it_refuses_it_by_name(registered: None, planned: None) -> None:
    with pytest.raises(NeedsFullRunError, match="Write"):
        quick_step_time(job())
    chance = tiny_scenario(faults=[{"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}}])
    with pytest.raises(InputError, match="does not support Write ops; use method events"):
        monte_carlo(chance.model_copy(update={"replicas": 2}))
    with pytest.raises(InputError, match="Write"):
        search(job(), gpus=4)


def test_nobody_plays_what_is_not_registered(planned: None) -> None:
    for engine in ("reference", "compiled"):
        with pytest.raises(InputError, match=r"unknown kind of work Write; add it to planning/work_kinds\.WORKS"):
            simulate(job(), engine=engine)  # type: ignore[arg-type]
