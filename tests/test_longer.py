"""A step that is longer with less wrong with it, or on faster links, says what takes longer, and why."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from hypothesis import given, settings
from test_same_answer import documents

from simcluster import cli
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate
from simcluster.studies.whatif.difference import explain_difference
from simcluster.studies.whatif.straggling import stragglers
from simcluster.studies.whatif.unexpected_slowdown import CAUSE_TEXTS, has_only_faster_parts

PCIE = {"topology": "pcie_ethernet", "nodes": 2, "gpus_per_node": 4, "gpus_per_pcie_switch": 2}
FLAP = {"kind": "link_flap", "between": ["node0.gpu1", "node0.pcie0"], "start": "1 ms", "down": "1 ms"}
COLLECT = {"kind": "host_stall", "cause": "garbage_collection", "seconds": "1 ms", "rank": 7}
SHARED: dict[str, Any] = {
    "cluster": PCIE, "gpus": 8, "model": {"layers": 8, "tied_embeddings": False},
    "parallel": {"tp": 1, "pp": 2, "dp": 4, "zero": 1}, "pipeline": {"schedule": "zb-auto"},
    "training": {"global_batch": 16},
    "overlap": {"grad_reduce": True, "tensor": True, "pipeline": False, "bucket_size": "1 MB"},
}  # fmt: skip
"""A link that flaps keeps transfers off a link that others need: found by drawing."""
JITTER = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.1}, "shared_by": "worker"}
DRAWN: dict[str, Any] = {
    "cluster": {"topology": "flat", "gpus": 1}, "gpus": 1, "parallel": {"tp": 1, "pp": 1, "dp": 1}, "faults": [JITTER],
}  # fmt: skip


def numbers_of(value: Any) -> list[float]:
    """All numbers in a document of results."""
    if isinstance(value, dict):
        return [each for inner in value.values() for each in numbers_of(inner)]
    if isinstance(value, list | tuple):
        return [each for inner in value for each in numbers_of(inner)]
    return [float(value)] if isinstance(value, int | float) else []


def faster(document: dict[str, Any]) -> list[dict[str, Any]]:
    """It without each of its faults, and with a network twice as fast."""
    faults = document["faults"]
    fewer = [{**document, "faults": [*faults[:place], *faults[place + 1 :]]} for place in range(len(faults))]
    return [*fewer, {**document, "cluster": {**document["cluster"], "scale": {"network": 2}}}]


def held_to_say(base: Result, other: Result) -> None:
    """Longer only with a reason, which makes up for all of it."""
    assert has_only_faster_parts(base.scenario, other.scenario)
    found = explain_difference(base, other)
    more = other.step_time - base.step_time
    if more > 1e-9 * base.step_time:
        assert found.slower_ops
        assert "None of the changes slows anything down in isolation" in found.describe()
        assert all(each.seconds > 0 and each.why in CAUSE_TEXTS for each in found.slower_ops)
    else:
        assert not found.slower_ops
    assert all(math.isfinite(each) for each in numbers_of(found.to_dict()))


@settings(max_examples=3)
@given(document=documents())
def test_a_step_is_longer_without_a_fault_or_with_more_bandwidth_only_with_a_reason(
    tiny: Tiny, document: dict[str, Any]
) -> None:
    base = simulate(tiny(**document))
    for each in faster(document):
        held_to_say(base, simulate(tiny(**each)))
    spans = base.spans
    assert (spans.end >= spans.start).all()
    assert (spans.start >= spans.ready).all()
    assert all(math.isfinite(each) for each in numbers_of(base.to_dict()))
    assert base.step_time > 0


def test_transfers_that_share_links_with_those_a_fault_held_up(tiny: Tiny) -> None:
    base = simulate(tiny(**SHARED, faults=[FLAP, COLLECT]))
    other = simulate(tiny(**SHARED, faults=[COLLECT]))
    held_to_say(base, other)
    (found,) = explain_difference(base, other).slower_ops
    assert (found.kind, found.why) == ("pp send", "contention")
    assert found.seconds == pytest.approx(other.step_time - base.step_time, rel=1e-9)


def test_the_stragglers_command_says_of_a_fault_that_saves_time_what_it_saves(tiny: Tiny) -> None:
    found = {cause.what: cause for cause in stragglers(tiny(**SHARED, faults=[FLAP, COLLECT])).causes}
    (saves,) = (each for each in found.values() if each.cost < 0)
    assert "pp send ops on its critical path take 5.530 us longer" in saves.note
    assert all(not each.note for each in found.values() if each.cost >= 0)


def test_draws_below_one(tiny: Tiny) -> None:
    """One rank's sum of jittered kernels is shorter than planned for some seed."""
    shorter = [result for seed in range(4) if (result := simulate(tiny(**DRAWN, seed=seed))).step_time < clean(tiny)]
    assert shorter
    other = simulate(tiny(**{**DRAWN, "faults": []}, seed=shorter[0].scenario.seed))
    held_to_say(shorter[0], other)
    assert {each.why for each in explain_difference(shorter[0], other).slower_ops} == {"draws"}


def clean(tiny: Tiny) -> float:
    """Seconds of the step without draws."""
    return simulate(tiny(**{**DRAWN, "faults": []})).step_time


def test_what_else_differs_is_no_step_that_is_faster_in_all(tiny: Tiny) -> None:
    base = tiny(**SHARED, faults=[COLLECT])
    assert not has_only_faster_parts(base, tiny(**SHARED, faults=[COLLECT, FLAP]))
    assert not has_only_faster_parts(base, tiny(**{**SHARED, "training": {"global_batch": 8}}, faults=[COLLECT]))
    assert not has_only_faster_parts(base, scaled(tiny, network=0.5))
    assert not has_only_faster_parts(base, scaled(tiny, latency=2))
    assert has_only_faster_parts(base, scaled(tiny, latency=0.5, flops=2))
    assert has_only_faster_parts(base, tiny(**SHARED, faults=[]))


def scaled(tiny: Tiny, **scale: float) -> Scenario:
    """The shared case on a cluster that is scaled."""
    return tiny(**{**SHARED, "cluster": {**PCIE, "scale": scale}}, faults=[COLLECT])


def test_compare_says_it(tmp_path: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for name, faults in (("with", [FLAP, COLLECT]), ("without", [COLLECT])):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**tiny(**SHARED, faults=faults).document(), "name": name}))
        names.append(str(path))
    assert cli.main(["compare", *names]) == 0
    assert "without: None of the changes slows anything down in isolation: pp send ops" in capsys.readouterr().out
