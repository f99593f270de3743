"""One meaning: what the reference interpreter plays is what all accelerators play, all spans of all ranks, to the bit.

Drawn scenarios are in tests/test_drawn.py.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from conftest import Tiny, tiny_scenario

from simcluster.base.errors import InputError
from simcluster.reference.fair_rates import BandwidthDemand, fair_rates
from simcluster.results.timeline import COLUMNS
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate, simulate_scenario


def compare_scenario(scenario: Scenario) -> None:
    """The step and every span of it."""
    plain = simulate_scenario(scenario.model_copy(update={"engine": "reference"}))
    fast = simulate_scenario(scenario)
    assert fast.step_time == plain.step_time
    for rank in range(scenario.gpus):
        expected, found = (run.timeline_of(rank)[list(COLUMNS)] for run in (plain, fast))
        assert found.to_dict("list") == expected.to_dict("list"), f"rank {rank}"


MIXTURE: dict[str, Any] = {
    "model": {"layers": 2, "hidden_size": 2048, "sequence_length": 2048, "gated_mlp": True,
              "moe": {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256}},
    "parallel": {"tp": 2, "ep": 4, "etp": 1, "sequence_parallel": True},
    "gpus": 8, "cluster": {"topology": "dgx_h100", "nodes": 1}, "training": {"global_batch": 4},
}  # fmt: skip


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("dispatch", ["alltoall", "allgather", "deepep", "hybridep"])
def test_collectives_of_one_segment_share_links(dispatch: str, recompute: str) -> None:
    """Tokens travel to their experts while shared experts gather over tp."""
    moe = {**MIXTURE["model"]["moe"], "shared_experts": 1}
    parallel = {**MIXTURE["parallel"], "expert_dispatch": {"kind": dispatch}}
    document = {
        **MIXTURE, "model": {**MIXTURE["model"], "moe": moe}, "parallel": parallel, "overlap": {"experts": True},
        "training": {"global_batch": 4, "recompute": recompute}, "collectives": {"nccl": "none"},
    }  # fmt: skip
    compare_scenario(tiny_scenario(**document))
    alone = {**document, "overlap": {"experts": False}}
    gathers = [simulate(tiny_scenario(**each)).timeline_of(0).query("name == 'shared' and kind == 'all_gather'")
               for each in (document, alone)]  # fmt: skip
    longest, apart = ((each["end"] - each["start"]).max() for each in gathers)
    assert longest > 1.01 * apart


@pytest.mark.parametrize(("tp", "ep"), [(4, 2), (8, 2), (8, 4)])
@pytest.mark.parametrize("rank", [0, 3])
def test_experts_inside_a_tensor_parallel_group_with_a_slow_gpu(tp: int, ep: int, rank: int) -> None:
    """Only one of the ep groups that share a tp group has the slow rank."""
    parallel = {"tp": tp, "ep": ep, "sequence_parallel": True}
    document = {**MIXTURE, "parallel": parallel, "gpus": tp}
    compare_scenario(tiny_scenario(**document, faults=[{"kind": "slow_gpu", "rank": rank, "factor": 1.1}]))


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_collectives_without_rounds_are_refused_in_steps(engine: str) -> None:
    document = {**MIXTURE, "collectives": {"all_reduce": "tree", "detail": "steps"}, "engine": engine}
    with pytest.raises(InputError, match="detail: steps simulates only algorithms with rounds"):
        simulate_scenario(tiny_scenario(**document))


ACCELERATORS = ("symmetry", "programs", "engine", "step", "results", "studies", "scenario", "simulate")


def test_the_reference_stands_on_no_accelerator() -> None:
    code = "import sys, simcluster.reference.step_simulation; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name.startswith("simcluster.")]
    assert [name for name in loaded if name.split(".")[1] in ACCELERATORS] == []


def test_a_run_by_the_reference_says_so_and_can_be_measured(tiny: Tiny) -> None:
    scenario = tiny(gpus=4, parallel={"tp": 2, "dp": 2}, cluster={"topology": "flat", "gpus": 4})
    plain, fast = simulate(scenario, engine="reference"), simulate(scenario)
    assert plain.to_dict()["engine"]["kind"] == "reference"
    assert plain.to_dict()["breakdown_s"] == fast.to_dict()["breakdown_s"]
    assert plain.critical_path.by_kind() == fast.critical_path.by_kind()


@pytest.mark.parametrize(
    ("demands", "rates"),
    [
        ([BandwidthDemand(((0, 1.0),)), BandwidthDemand(((0, 1.0),))], [5.0, 5.0]),
        ([BandwidthDemand(((0, 1.0),), 2.0), BandwidthDemand(((0, 1.0),))], [2.0, 8.0]),
        (
            [BandwidthDemand(((0, 1.0), (1, 1.0))), BandwidthDemand(((0, 1.0),)), BandwidthDemand(((1, 1.0),))],
            [2.0, 8.0, 2.0],
        ),
        ([BandwidthDemand(((0, 3.0),)), BandwidthDemand(((0, 1.0),))], [2.5, 2.5]),  # an activity of three flows
        ([BandwidthDemand(())], [float("inf")]),
    ],
)
def test_rates_are_fair(demands: list[BandwidthDemand], rates: list[float]) -> None:
    assert fair_rates(demands, {0: 10.0, 1: 4.0}) == rates


@pytest.mark.parametrize("old", ["events", "path"])
def test_old_names_of_engines_mean_the_compiled_one(tiny: Tiny, old: str) -> None:
    assert tiny(engine=old).engine == "compiled"
