"""The walls of a run from two counts, and model state stage by stage of ZeRO: textbook numbers and what must hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_documents_cited import described, is_described, keys

import simcluster
from simcluster import cli
from simcluster.base.counts import format_count, format_dollars, parse_count, parse_share
from simcluster.base.errors import InputError
from simcluster.longrun.budget.training_estimate import estimate_training
from simcluster.model.recipes import RECIPES, state_bytes
from simcluster.studies.kernels import kernels
from simcluster.studies.state_ladder import find_smallest_dp, zero_stages
from simcluster.studies.whatif.job_memory import job_memory

GB = 1e9

# --- time and cost ----------------------------------------------------------------------------------------------------


def test_gpt3_on_one_gpu_at_peak() -> None:
    """3.15e23 FLOP at 989 TFLOP/s: ten years."""
    found = estimate_training("175B", "300B", gpus=1)
    assert found.flops == 3.15e23
    assert found.days == pytest.approx(3686.4, abs=0.05)
    assert found.at_peak
    assert "at peak, which no run reaches" in found.summary()
    assert "(10.1 years)" in found.summary()


def test_7b_on_2t() -> None:
    found = estimate_training("7B", "2T", mfu="50%", price=2, gpus=1024, days=30)
    assert found.flops == 8.4e22
    assert found.gpu_hours == pytest.approx(47_186, abs=0.5)
    assert found.gpu_hours is not None
    assert found.gpu_hours / 24 == pytest.approx(1966.1, abs=0.05)
    assert found.dollars == pytest.approx(94_371, abs=0.5)
    assert found.gpus_needed == 66
    assert found.days == pytest.approx(1.92, abs=0.001)


def test_70b_on_15t() -> None:
    found = estimate_training("70B", "15T", mfu=0.4, price="2", gpus="1,024", bytes_per_parameter=16)
    assert found.gpu_hours is not None
    assert found.gpu_hours / 24 == pytest.approx(184_319, abs=0.5)
    assert found.dollars == pytest.approx(8.847e6, abs=500)
    assert found.days == pytest.approx(180.0, abs=0.05)
    assert found.wasted is None  # against nothing that is achievable
    assert (found.state_bytes, found.least_gpus) == (1120 * GB, 14)
    assert found.state_bytes_a_gpu == pytest.approx(1.09375 * GB)


@pytest.mark.parametrize(("achievable", "kept", "lost"), [("50%", 7e6, 0.3), (0.35, 10e6, 0.0), (1.0, 3.5e6, 0.65)])
def test_ten_million_dollars(achievable: float | str, kept: float, lost: float) -> None:
    """At 35 %: against 50 % $3M lost, 42.9 % more training; against peak 65 %; against what is reached nothing."""
    found = estimate_training("70B", budget="$10M", price=2, mfu="35%", achievable=achievable)
    assert found.bought_gpu_hours == 5.0e6
    assert found.bought_flops == pytest.approx(6.2307e24, rel=1e-9)
    assert found.wasted == pytest.approx(lost)
    assert found.lost_dollars == pytest.approx(10e6 - kept)
    assert found.more_training == pytest.approx(1 / (1 - lost) - 1)
    if achievable == "50%":
        assert found.more_training == pytest.approx(0.429, abs=0.0005)
        assert "$3 M less (30.0% is lost), or 42.9% more training" in found.summary()
        assert found.bought_tokens == pytest.approx(6.2307e24 / (6 * 70e9))


@settings(max_examples=25, deadline=None)
@given(
    n=st.floats(1e6, 1e13), d=st.floats(1e6, 1e15), mfu=st.floats(0.01, 1.0), gpus=st.integers(1, 10**6),
    price=st.floats(0.1, 100.0), days=st.floats(0.1, 1e4),
)  # fmt: skip
def test_what_the_run_costs_buys_the_run(
    n: float, d: float, mfu: float, gpus: int, price: float, days: float
) -> None:  # fmt: skip
    """A budget of its cost buys its tokens; the GPUs needed are enough, and one fewer is not; peak is a floor."""
    found = estimate_training(n, d, mfu=mfu, gpus=gpus, price=price, days=days)
    again = estimate_training(n, d, mfu=mfu, gpus=gpus, price=price, budget=found.dollars)
    assert again.bought_tokens == pytest.approx(d)
    assert again.bought_days == pytest.approx(found.days)
    assert found.gpus_needed is not None
    assert found.gpu_hours is not None
    assert found.gpu_hours / 24 / found.gpus_needed <= days * (1 + 1e-12)
    assert found.gpus_needed == 1 or found.gpu_hours / 24 / (found.gpus_needed - 1) > days * (1 - 1e-12)
    floor = estimate_training(n, d).gpu_hours
    assert floor is not None
    assert floor <= found.gpu_hours * (1 + 1e-12)
    assert found.least_gpus * found.memory >= found.state_bytes > (found.least_gpus - 1) * found.memory


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"parameters": "many"}, "parameters 'many' is not a number above zero"),
        ({"tokens": -1}, "tokens -1 is not a number above zero"),
        ({"mfu": 40}, "mfu 40 must be a share above 0 and at most 1"),
        ({"mfu": True}, "mfu must be a number or a text, got bool: true; write mfu=0.5"),
        ({"gpus": 1.5}, "gpus must be a whole number or a text, got float: 1.5; write gpus=2"),
        ({"budget": "10M"}, "the GPU-hours that a budget buys need a price"),
        ({"days": 30}, "depend on the number of tokens"),
        ({"achievable": 0.5}, "depends on the actual MFU"),
        ({"recipe": "16"}, "there is no memory recipe '16'"),
        ({"bytes_per_parameter": 16, "zero": 2}, "name a recipe instead"),
        ({"bytes_per_parameter": 16, "recipe": "mixed-16"}, "give only one of the two"),
        ({"zero": 4}, "zero 4 is not a ZeRO stage"),
        ({"device": "h10"}, "did you mean 'h100'"),
        ({"precision": "int8"}, "no peak for precision 'int8'"),
    ],
)
def test_what_cannot_be(given_: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        estimate_training(**{"parameters": "7B", **given_})  # type: ignore[arg-type]


def test_the_command_says_what_the_function_counts(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["walls", "--parameters", "70B", "--tokens", "15T", "--mfu", "40%", "--price", "2", "--bytes", "16"]
    assert cli.main([*asked, "--json", "-"]) == 0
    found = simcluster.estimate_training("70B", "15T", mfu="40%", price=2, bytes_per_parameter=16)
    assert json.loads(capsys.readouterr().out) == found.to_dict()
    assert cli.main(asked) == 0
    assert capsys.readouterr().out == f"{found}\n"


def test_counts_as_people_write_them() -> None:
    assert [parse_count(text, "") for text in ("70B", "1.5 T", "$10M", "1,024", "3e9", 12)] == [
        70e9, 1.5e12, 10e6, 1024.0, 3e9, 12.0,
    ]  # fmt: skip
    assert (parse_share("42.5%", ""), parse_share(0.4, "")) == (0.425, 0.4)
    assert [format_count(n) for n in (70e9, 1.38e12, 131_072, 14.835e12)] == ["70B", "1.38T", "131,072", "14.84T"]
    assert [format_dollars(n) for n in (8.847e6, 94_371, 2)] == ["$8.847 M", "$94,371", "$2.00"]


# --- model state by stage of ZeRO -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "dp", "held", "reduction"),
    [
        ("13B", 8, (156.0, 65.0, 42.25, 19.5), (1.0, 2.4, 3.692, 8.0)),
        ("70B", 64, (840.0, 288.75, 150.9375, 13.125), (1.0, 2.909, 5.565, 64.0)),
    ],
)
def test_state_a_gpu(parameters: str, dp: int, held: tuple[float, ...], reduction: tuple[float, ...]) -> None:
    """12 B a parameter: weights 2, gradients 2, moments 8."""
    ladder = zero_stages(parameters, recipe="bf16-12", dp=dp)
    assert [stage.bytes / GB for stage in ladder.stages] == pytest.approx(held)
    assert [stage.reduction for stage in ladder.stages] == pytest.approx(reduction, abs=5e-4)
    if dp == 64:
        assert ladder.stages[0].total == 53.76e12  # 64 copies, of which one is needed
        assert ladder.stages[0].redundant == pytest.approx(63 / 64 * 53.76e12)
        assert ladder.stages[3].redundant == pytest.approx(0.0, abs=1.0)


@pytest.mark.parametrize(
    ("parameters", "recipe", "least"),
    [
        ("7B", "mixed-16", (None, 2, 2, 2)),
        ("13B", "mixed-16", (None, 6, 4, 3)),
        ("70B", "mixed-16", (None, None, None, 14)),
        ("175B", "mixed-16", (None, None, None, 35)),
        ("405B", "mixed-16", (None, None, None, 81)),
        ("13B", "bf16-12", (None, 4, 3, 2)),
        ("70B", "bf16-12", (None, None, None, 11)),
        ("175B", "bf16-12", (None, None, None, 27)),
        ("1B", "bf16-12", (1, 1, 1, 1)),
    ],
)
def test_fewest_replicas_of_80_gb(parameters: str, recipe: str, least: tuple[int | None, ...]) -> None:
    ladder = zero_stages(parameters, recipe=recipe, dp=8, device="a100-80gb")
    assert tuple(stage.smallest_dp for stage in ladder.stages) == least


def test_largest_model_on_8_of_80_gb() -> None:
    found = [stage.largest / GB for stage in zero_stages("13B", recipe="bf16-12", dp=8).stages]
    assert found == pytest.approx([6.67, 16.0, 24.6, 53.3], abs=0.05)


@settings(max_examples=30, deadline=None)
@given(
    parameters=st.floats(1e6, 1e13),
    recipe=st.sampled_from(list(RECIPES.values())),
    zero=st.sampled_from((0, 1, 2, 3)),
    capacity=st.floats(1e9, 1e12),
)
def test_the_fewest_replicas_fit_and_one_fewer_does_not(
    parameters: float, recipe: object, zero: int, capacity: float
) -> None:
    assert not isinstance(recipe, str)

    def held(dp: int) -> float:
        return state_bytes(parameters, recipe, zero=zero, dp=dp).total  # type: ignore[arg-type]

    least = find_smallest_dp(parameters, recipe, zero, capacity)  # type: ignore[arg-type]
    if least is None:
        assert held(10**9) > capacity * (1 - 1e-9)
    else:
        assert held(least) <= capacity * (1 + 1e-9)
        assert least == 1 or held(least - 1) > capacity * (1 - 1e-9)


# --- the contract -----------------------------------------------------------------------------------------------------


def test_every_key_is_described() -> None:
    """Of walls, of states, of a job's memory, of the largest value; of kernels in their own section."""
    scenario = simcluster.scenario("tiny_3d")
    written = [
        simcluster.estimate_training("7B", "2T", mfu=0.4).to_dict(),
        simcluster.zero_stages("7B").to_dict(),
        job_memory(scenario).to_dict(),
        {**simcluster.largest_that_fits(scenario, "training.micro_batch").to_dict(), "skipped": {}},
    ]
    names = described("Walls and states")
    assert [key for each in written for key in keys(each) if not is_described(key, names)] == []
    rows = {"stage": 0, "kernels": [row.to_dict() for row in kernels(scenario)]}
    assert [key for key in keys(rows) if not is_described(key, described("Kernels"))] == []


def test_integers_that_no_float_holds_are_refused_as_others_are() -> None:
    with pytest.raises(InputError, match="is too large; it must be at most"):
        parse_count(10**400, "tokens")
    with pytest.raises(InputError, match="is not a number above zero"):
        parse_count(-(10**400), "tokens")
    with pytest.raises(InputError, match="must be a share above 0 and at most 1"):
        parse_share(10**400, "share")
