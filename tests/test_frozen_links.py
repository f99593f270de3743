"""A sweep of replicas beside events with the same draws: equal where nothing meets, and how far off where it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Tiny

import simcluster
from simcluster.cli import main
from simcluster.show.explanation import describe_distribution
from simcluster.show.output_blocks import render_as_text
from simcluster.studies.whatif.frozen_link_error import compare_frozen_links

JITTER = {"kind": "jitter", "factor": {"kind": "lognormal", "sigma": 0.3}}
JOB: dict[str, Any] = {
    "cluster": {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4},
    "training": {"global_batch": 16, "attention": "fused"},
}
BESIDE = {"pipeline": True, "grad_reduce": True, "interference": {"kind": "factor", "compute": 0.5}}
FAULTS = [
    JITTER,
    {"kind": "speeds", "law": {"kind": "normal", "sigma": 0.1}},
    {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 40, "sigma": 1}},
    {"kind": "slow_gpu", "rank": 3, "slowdown": 1.5},
]


def test_where_nothing_meets_both_are_equal_to_the_bit(tiny: Tiny) -> None:
    found = compare_frozen_links(tiny(**JOB, parallel={"tp": 2, "pp": 2}, faults=FAULTS), cases=3)
    assert [each.relative_error for each in found] == [0.0] * 3
    assert len({each.exact_step_time for each in found}) == 3


def test_where_communication_slows_computation_down_they_are_near(tiny: Tiny) -> None:
    scenario = tiny(**JOB, parallel={"pp": 4}, overlap=BESIDE, faults=[JITTER])
    (one, other) = compare_frozen_links(scenario)
    assert 0 < abs(one.relative_error) < 0.05
    found = simcluster.monte_carlo(scenario.with_({"replicas": 2}))
    said = render_as_text(describe_distribution(found, [one.relative_error, other.relative_error]))
    assert f"off by {one.relative_error:+.2%} and {other.relative_error:+.2%} from full simulations" in said
    assert "full simulations" not in render_as_text(describe_distribution(found, [0.0]))


def test_it_is_printed_where_it_matters(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for overlap, there in ((BESIDE, True), ({**BESIDE, "interference": "none"}, False)):
        scenario = tiny(**JOB, parallel={"pp": 4}, overlap=overlap, faults=[JITTER])
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(scenario.document()))
        assert main(["run", str(file), "--replicas", "3"]) in (0, None)
        assert ("from full simulations, same seeds" in capsys.readouterr().out) == there


def test_ranks_that_do_other_ops_are_not_compared(tiny: Tiny) -> None:
    stall = {"kind": "host_stall", "cause": "garbage_collection", "seconds": "1 ms", "rank": 1}
    assert compare_frozen_links(tiny(**JOB, parallel={"dp": 8}, faults=[JITTER, stall])) == ()
