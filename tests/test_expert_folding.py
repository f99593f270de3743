"""Experts folded over tp x cp x dp: who splits, shares and holds the same ones, and where their shards are."""

from __future__ import annotations

import numpy as np
import pytest
from test_mixture import MODEL, scenario

from simcluster import InputError, simulate
from simcluster.planning.owned_parameters import parameters_of_layers, parameters_of_stage
from simcluster.planning.rank_grid import ParallelPlan


def test_experts_are_folded_as_megatron_core_does() -> None:
    """Megatron-Core's order tp-cp-ep-dp-pp of expert ranks: rank = etp + etp' (ep + ep' (edp + edp' pp))."""
    plan = ParallelPlan(tp=2, cp=2, dp=4, pp=2, ep=4, etp=2)
    ranks = np.arange(32).reshape(2, 2, 4, 2)  # pp, edp, ep, etp
    assert plan.groups("etp").tolist() == ranks.reshape(-1, 2).tolist()
    assert plan.groups("ep").tolist() == sorted(np.moveaxis(ranks, 2, -1).reshape(-1, 4).tolist())
    assert plan.groups("edp").tolist() == sorted(np.moveaxis(ranks, 1, -1).reshape(-1, 2).tolist())
    with pytest.raises(
        InputError, match=r"ep x etp = 8 x 4 must divide 16, the ranks of a stage \(tp 2 x cp 2 x dp 4\)"
    ):
        ParallelPlan(tp=2, cp=2, dp=4, ep=8, etp=4)


def test_hsdp_shards_experts_inside_its_groups() -> None:
    """Groups of 2 x tp 2 ranks with ep 2: experts are gathered from the 2 ranks there that have the same, and the
    shards of their gradients summed with the other group's; state is sharded over the group alone."""
    changes = {"parallel.ep": 2, "parallel.etp": 1, "parallel.zero": 3, "fsdp.shard_group": 2}
    result = simulate(scenario(**changes, **{"parallel.pp": 1, "gpus": 8}))
    plan = ParallelPlan(tp=2, dp=4, ep=2, etp=1, shard=2)
    assert (plan.expert_replicas, plan.expert_shard_size) == (4, 2)
    table, held = result.timeline_of(0), parameters_of_layers(MODEL, plan, [1])
    layer = table[(table["layer"] == 1) & (table["microbatch"] < 1)]
    assert set(layer[layer["name"] == "parameters"]["bytes"]) == {2 * held.common, 2 * held.experts}
    summed = layer[(layer["kind"] == "all_reduce") & (layer["name"] == "gradients")]
    assert set(summed["bytes"]) == {4 * held.common / 2, 4 * held.experts / 2}
    whole = parameters_of_stage(MODEL, plan, range(4), first=True, last=True)
    assert result.facts.footprints[0].parameters == pytest.approx(2 * whole.total / 2)


def test_experts_that_do_not_fit_split_are_whole() -> None:
    """ep of all of a stage's ranks with tp 2: etp left out is 1; where both fit, as many as tp."""
    folded, split = (scenario(**{"parallel.ep": ep}) for ep in (8, 4))
    assert (folded.parallel.etp, split.parallel.etp) == (1, None)
    assert folded == scenario(**{"parallel.ep": 8, "parallel.etp": 1})


def test_an_order_is_also_megatron_cores_text() -> None:
    """Experts are folded by place, so ep says nothing between tp and dp; elsewhere it is refused."""
    order = ("tp", "cp", "pp", "dp")
    for text in ("tp-cp-ep-pp-dp", "tp-cp-pp-dp", ["tp", "cp", "ep", "pp", "dp"]):
        assert scenario(**{"parallel.order": text}).parallel.order == order
    with pytest.raises(InputError, match="ep must be after tp and before dp"):
        scenario(**{"parallel.order": "tp-cp-pp-dp-ep"})


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("overlapped", [False, True])
def test_whole_experts_of_a_tp_group_sum_their_gradients_without_dp(zero: int, overlapped: bool) -> None:
    """With tp 2, etp 1, ep 1 and dp 1 both ranks hold all experts, each with the gradients of its own tokens."""
    changes = {"parallel.tp": 2, "parallel.dp": 1, "parallel.pp": 1, "parallel.ep": 1, "parallel.etp": 1, "gpus": 2}
    result = simulate(scenario(**changes, **{"parallel.zero": zero, "overlap.grad_reduce": overlapped}))
    held = parameters_of_stage(MODEL, ParallelPlan(tp=2, ep=1, etp=1), range(MODEL.layers), first=True, last=True)
    table = result.timeline_of(0)
    summed = table[table["kind"] == ("reduce_scatter" if zero else "all_reduce")]
    summed = summed[(summed["name"] == "gradients") & (summed["microbatch"] < 1)]
    training = result.scenario.training
    times = training.global_batch // training.micro_batch if zero == 2 else 1
    assert held.experts > 0
    assert summed["bytes"].sum() == pytest.approx(4 * held.experts * times)
