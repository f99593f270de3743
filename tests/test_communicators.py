"""What every communicator promises, whoever adds it: its groups share out the ranks, and its time is booked by name.

The communicators are those of ``COMMUNICATORS``, and the methods of context parallelism those of ``CONTEXT_METHODS``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import tiny_scenario

from simcluster.base.errors import InputError
from simcluster.longrun.launch.small_version import small_version
from simcluster.model.kernel_choices import CONTEXT_METHODS
from simcluster.planning.ops import MAIN, Op, Segment, StageProgram, WorkItem
from simcluster.planning.rank_grid import (
    COMMUNICATORS,
    STREAMS,
    Communicator,
    ParallelPlan,
    get_communicator,
    make_group_function,
)
from simcluster.planning.work_kinds import Collective
from simcluster.results.span_states import EXPOSED
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.studies.fast_path_scopes import PLAN, QUICK
from simcluster.studies.search.layout_space import CP_COMMS

every_axis = pytest.mark.parametrize("axis", COMMUNICATORS)
every_method = pytest.mark.parametrize("method", CONTEXT_METHODS)
PLANS = [
    ParallelPlan(),
    ParallelPlan(tp=2, cp=4, dp=2, pp=2, order=("cp", "tp", "pp", "dp")),
    ParallelPlan(tp=2, cp=2, dp=4, pp=2, ep=4, etp=1, shard=4),
    ParallelPlan(tp=2, dp=4, workers=2),
    ParallelPlan(tp=2, dp=2, pp=2, copies=((0, 1),)),
]


@every_axis
@pytest.mark.parametrize("plan", PLANS, ids=range(len(PLANS)))
def test_its_groups_share_out_the_ranks(axis: str, plan: ParallelPlan) -> None:
    """Every rank is in one group (of the embedding's, those of its stages), in order of the groups' first ranks."""
    groups = plan.groups(axis)
    counts = np.bincount(groups.ravel(), minlength=plan.num_ranks)
    ends = np.isin(plan.stage_of_every_rank(), [0, plan.pp - 1]) * (1 + (plan.pp == 1))
    assert (counts == (ends if axis == "embedding" else 1)).all()
    assert (np.diff(groups[:, 0]) > 0).all()


@every_axis
def test_its_stream_has_an_entry_of_the_breakdown(axis: str) -> None:
    assert STREAMS == EXPOSED
    for pipelined in (False, True):
        assert get_communicator(axis).stream_name(pipelined=pipelined) in STREAMS


def blocked(axis: str, scenario: Scenario, programs: list[StageProgram]) -> list[StageProgram]:
    """Programs that end with an all-reduce over the axis."""
    stream = get_communicator(axis).stream_name(pipelined=scenario.parallel.pp > 1)
    op = Op(Collective("all_reduce", axis, 4e9), stream, "all_reduce", "mine")
    return [
        StageProgram(each.stage, {**each.lanes, MAIN: [*each.lanes[MAIN], WorkItem(Segment((op,)), "mine")]})
        for each in programs
    ]


@every_axis
@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_its_exposed_time_is_booked_where_it_says(axis: str, engine: str) -> None:
    """And nowhere else: the step is as much longer as the entry of its stream."""
    document: dict[str, Any] = {"cluster": {"topology": "flat", "gpus": 8}, "gpus": 8, "engine": engine}
    scenario = tiny_scenario(
        **document, parallel={"tp": 2, "cp": 2, "pp": 2, "dp": 1}, training={"global_batch": 2, "attention": "fused"}
    )
    before, after = simulate_scenario(scenario), simulate_scenario(scenario, change=partial(blocked, axis, scenario))
    entry = f"exposed_{get_communicator(axis).stream_name(pipelined=True)}"
    if ParallelPlan(tp=2, cp=2, pp=2).groups(axis).shape[1] == 1:
        assert after.step_time == before.step_time
    else:
        more = after.step_time - before.step_time
        assert more > 0
        one, two = (run.times.breakdown[entry] for run in (before, after))
        assert two - one == pytest.approx(more, rel=0.05)


def test_a_stream_without_an_entry_is_refused() -> None:
    with pytest.raises(InputError, match="stream 'ring' of a communicator is not a timeline stream"):
        Communicator("ring", make_group_function("cp"))


def test_an_axis_that_names_none_is_refused() -> None:
    with pytest.raises(InputError, match="unknown communicator 'sharded'; did you mean 'shard'"):
        ParallelPlan().groups("sharded")


# --- methods of context parallelism -----------------------------------------------------------------------------------


INNER = {"hybrid": {"cp_inner": 2}}
"""Fields that methods need, in addition to ``cp_comm``."""


def job(method: str, cp: int = 4, **parallel: Any) -> Scenario:
    return tiny_scenario(
        cluster={"topology": "dgx_h100", "nodes": 4, "gpus_per_node": 2}, gpus=8,
        model={"heads": 8, "kv_heads": 8, "hidden_size": 512, "sequence_length": 1024},
        parallel={"cp": cp, "cp_comm": method, **INNER.get(method, {}), **parallel},
        training={"attention": "fused", "global_batch": 8},
    )  # fmt: skip


@every_method
@pytest.mark.parametrize("cp", [2, 4])
def test_all_engines_simulate_a_method_alike(method: str, cp: int) -> None:
    found = simulate(job(method, cp))
    assert found.step_time == simulate(job(method, cp), engine="reference").step_time
    assert found.step_time == simulate(job(method, cp), folded=False).step_time
    assert found.times.breakdown["straggler_wait"] == 0
    axes = set(CONTEXT_METHODS[method].key_axis.split()) | set(CONTEXT_METHODS[method].trade_axis.split())
    assert {get_communicator(axis).stream for axis in axes} == {"cp"}


@every_method
def test_methods_differ(method: str) -> None:
    times = {each: simulate(job(each)).step_time for each in CONTEXT_METHODS}
    assert [each for each, seconds in times.items() if seconds == times[method]] == [method]


@every_method
@pytest.mark.parametrize(("heads", "kv_heads", "cp"), [(8, 8, 4), (8, 1, 4), (3, 3, 2), (64, 8, 8)])
def test_traders_divide_the_ranks(method: str, heads: int, kv_heads: int, cp: int) -> None:
    assert cp % CONTEXT_METHODS[method].head_trading_ranks(heads, kv_heads, cp) == 0


@every_method
def test_heads_that_cannot_be_traded_are_refused(method: str) -> None:
    traders = CONTEXT_METHODS[method].head_trading_ranks(2, 2, 4)
    parallel = {"cp": 4, "tp": 1, "cp_comm": method, **INNER.get(method, {})}
    more: dict[str, Any] = {"model": {"heads": 2, "kv_heads": 2, "hidden_size": 512, "sequence_length": 1024}}
    more |= {"cluster": {"topology": "flat", "gpus": 4}, "training": {"attention": "fused"}, "parallel": parallel}
    if 2 % traders:
        with pytest.raises(InputError, match="are not divisible by"):
            tiny_scenario(gpus=4, **more)
    else:
        assert tiny_scenario(gpus=4, **more).parallel.cp_comm == method


@every_method
def test_a_fast_path_knows_a_method_or_refuses_it(method: str) -> None:
    assert QUICK.find_obstacle(job(method))
    assert (method in CP_COMMS) == (PLAN.find_obstacle(job(method)) == "")


def test_a_method_that_names_none_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'ring'"):
        job("rings")


# --- hybrid: heads traded in groups of consecutive ranks, keys and values passed between groups -----------------------


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("changes", [{}, {"cp_shares": "contiguous"}, {"order": ["dp", "cp", "tp", "pp"]}])
def test_one_inner_rank_is_a_ring_and_all_are_an_all_to_all(cp: int, changes: dict[str, Any]) -> None:
    for inner, other in ((1, "ring"), (cp, "all_to_all")):
        found, known = simulate(job("hybrid", cp, cp_inner=inner, **changes)), simulate(job(other, cp, **changes))
        assert found.step_time == known.step_time
        assert found.times.breakdown == known.times.breakdown


@pytest.mark.parametrize("changes", [{"cp_shares": "contiguous"}, {"order": ["dp", "cp", "tp", "pp"]}, {"zero": 3}])
def test_every_engine_simulates_hybrid_groups(changes: dict[str, Any]) -> None:
    base = job("hybrid", **changes)
    found = simulate(base)
    assert found.step_time == simulate(base, engine="reference").step_time
    assert found.step_time == simulate(base, folded=False).step_time


def test_what_hybrid_ranks_exchange() -> None:
    """2 x 2 ranks of 256 tokens in 16 bits, 512 wide: all-to-alls of q, k, v and of the output, a hop of k and v."""
    whole = 2 * 256 * 512
    line = simulate(job("hybrid")).timeline
    own = line[(line["stream"] == "cp") & (line["rank"] == 0) & (line["layer"] == 0) & (line["microbatch"] == 0)]
    found = [(kind, size / whole) for kind, size in zip(own["kind"], own["bytes"], strict=True)]
    forward = [("all_to_all", 3), ("send_recv", 2), ("all_to_all", 1)]
    backward = [("all_to_all", 1), *[("send_recv", 2)] * 3, ("all_to_all", 3)]  # keys, and their gradients twice: home
    assert found == [*forward, *backward]


def test_hybrid_groups_of_ranks() -> None:
    """Those of Megatron-LM's ``create_hierarchical_groups`` with sizes 2 and 4, with tp between them."""
    plan = ParallelPlan(tp=2, cp=8, cp_inner=2)
    assert plan.groups("cp_inner").tolist()[:3] == [[0, 2], [1, 3], [4, 6]]
    assert plan.groups("cp_outer").tolist() == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cp_inner": None}, "parallel.cp_inner: is not set, and must divide cp 4 and the 8 key-value heads.*; use 4"),
        ({"cp_inner": 3}, "parallel.cp_inner: 3 must divide cp 4 and the 8 key-value heads .*; use 2 or 4"),
    ],
)
def test_hybrid_groups_that_cannot_be_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job("hybrid", **changes)


def test_the_search_for_layouts_rejects_hybrid_by_name() -> None:
    assert "parallel.cp_comm" in PLAN.find_obstacle(job("hybrid"))


@pytest.mark.parametrize("inner", [2, 4])
def test_a_small_version_has_hybrid_groups_that_fit(inner: int) -> None:
    """One node of four GPUs for eight: two ranks of cp, and as many that trade heads, whether two or four did."""
    sections = job("hybrid", 4, cp_inner=inner).document()
    whole = tiny_scenario(
        cluster={"topology": "dgx_h100", "nodes": 2, "gpus_per_node": 4}, gpus=8,
        **{name: sections[name] for name in ("model", "parallel", "training")},
    )  # fmt: skip
    small = small_version(whole).scenario.parallel
    assert (small.cp, small.cp_comm, small.cp_inner) == (2, "hybrid", 2)
