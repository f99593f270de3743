"""What the functions that Python users call refuse of their arguments, in one clear message each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import for_each

import simcluster
from simcluster import simulate_costs
from simcluster.base.errors import InputError
from simcluster.documents.argument_types import check_arguments, find_argument_error
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.scenario_arguments import ScenarioLike, scenario
from simcluster.show.gantt import gantt

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
TAKE_NOTHING = {"scenario_schema", "no_time_limit"}
FUNCTIONS = {
    **{name: one for name in simcluster.__all__ if inspect.isfunction(one := getattr(simcluster, name))},
    **{name: getattr(simcluster.plots, name) for name in simcluster.plots.__all__},
    "gantt": simcluster.Result.gantt,
    "timeline_of": simcluster.Result.timeline_of,
    "memory_of": simcluster.Result.memory_of,
    "memory_table": simcluster.Result.memory_table,
}


@check_arguments
def search(
    gpus: int | Sequence[int],
    vary: Mapping[str, Sequence[float]] | None = None,
    *,
    top: int = 3,
    share: float = 0.5,
    to: str | Path | None = None,
    wide: bool = False,
    names: Sequence[str] | None = None,
    other: inspect.Signature | None = None,
    one: Scenario | None = None,
) -> str:
    """One of every type that is looked at, and one that is not."""
    return "taken"


@check_arguments
def some(ranks: Sequence[int] | None = None) -> list[int]:
    """One that asks whether there are any."""
    return sorted(ranks) if ranks else []


def test_arrays_are_the_lists_that_they_stand_for() -> None:
    """A truth of several numbers is a ValueError: simcluster.write_trace(result, path, ranks=pd.Series([1, 2]))."""
    assert some(pd.Series([2, 1])) == some(np.array([1, 2])) == some(ranks=(2, 1)) == [1, 2]
    assert some(np.array([], dtype=int)) == some(pd.Series([], dtype=int)) == []


@check_arguments
def free(name: str, *more: int, **rest: Any) -> tuple[int, ...]:
    """One that takes any number of arguments, and any name."""
    return more


@for_each("name", FUNCTIONS)
def test_every_function_refuses_an_argument_that_it_does_not_have(name: str) -> None:
    takes_any = any(one.kind == one.VAR_KEYWORD for one in inspect.signature(FUNCTIONS[name]).parameters.values())
    if name in TAKE_NOTHING or takes_any:
        return
    with pytest.raises(InputError, match=f"^{name}: there is no argument 'nonsense'.*; it takes "):
        FUNCTIONS[name](nonsense=1)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: search("8"), "search: gpus must be a whole number or a list, got str: '8'; write gpus=8"),
        (lambda: search("many"), "gpus must be a whole number or a list, got str: 'many'; write gpus=2"),
        (lambda: search(True), "gpus must be a whole number or a list, got bool: true"),
        (lambda: search([8, 2.5]), "gpus[1] must be a whole number, got float: 2.5; write gpus[1] = 2"),
        (lambda: search(8, {"tp": 2}), "vary['tp'] must be a list, got int: 2; write vary['tp'] = [2]"),
        (lambda: search(8, {"tp": [1, "2"]}), "vary['tp'][1] must be a number, got str: '2'; write vary['tp'][1] = 2"),
        (lambda: search(8, ["tp"]), "vary must be a dict, got list"),
        (lambda: search(8, top=1.5), "top must be a whole number, got float: 1.5; write top=2"),
        (lambda: search(8, top=None), "top must be a whole number, got"),
        (lambda: search(8, share="0.96"), "share must be a number, got str: '0.96'; write share=0.96"),
        (lambda: search(10**400), "search: gpus must be a whole number or a list, got int: 1000"),
        (lambda: search(8, wide=1), "wide must be True or False, got int: 1; write wide=True"),
        (lambda: search(8, to=3), "to must be a text or a path, got int: 3; write to='...'"),
        (lambda: search(8, names="a"), "names must be a list, got str: 'a'; write names=['a']"),
        (lambda: search(8, tops=1), "search: there is no argument 'tops'; did you mean 'top'?; it takes gpus, vary, "),
        (lambda: search(), "search: gpus is required and missing; write gpus=...; it takes gpus, vary, top, "),
        (lambda: search(8, {}, 3), "search: too many positional arguments; it takes gpus, vary, top, "),
        (lambda: search(8, gpus=8), "search: multiple values for argument 'gpus'; it takes gpus, "),
        (
            lambda: search(8, one=3),
            "search: one must be a Scenario, got int: 3; pass what simcluster.scenario(...)",
        ),
        (lambda: simulate_costs(1.0, stages=2, microbatches=4), "costs must be a Costs or a list, got float: 1.0"),
        (lambda: simcluster.compare_packing("x", 4096), "documents: document lengths must be whole numbers of tokens"),
        (lambda: gantt(simcluster.simulate("tiny_dp"), window=3), "window=3 must be two times in seconds, (from, to)"),
        (lambda: gantt(simcluster.simulate("tiny_dp"), window=(0, "x")), "must be two times in seconds, (from, to)"),
        (lambda: simcluster.simulate("tiny_dp", engine="gpu"), "engine"),
        (
            lambda: simcluster.collective_times("dgx_h100", [0, 1], "all_reduce", "1MB"),
            "size is '1MB'; it must be a number",
        ),
        (lambda: simcluster.Costs(1.0, 2.0), "Costs: too many positional arguments; it takes forward, backward, "),
        (
            lambda: simcluster.Costs(forward=1.0),
            "Costs: backward is required and missing; write backward=...; it takes forward, ",
        ),
        (
            lambda: simcluster.plots.pareto("tiny_dp"),
            "a PlanResult, got str: 'tiny_dp'; pass what simcluster.plan(...) ret",
        ),
        (lambda: simcluster.plots.sensitivity(3), "must be a list, got int: 3; pass what simcluster.sensitivity(...)"),
        # known only once it has failed
        (
            lambda: gantt("tiny_dp"),
            "timeline must be a DataFrame or any object that has a timeline, such as a simulation result, got "
            "str: 'tiny_dp'; pass what simcluster.simulate(...) returns",
        ),
        (lambda: simcluster.plots.run_calendar(3), "got int: 3; pass what simcluster.train(...) returns"),
        (lambda: simcluster.plots.scaling("x"), "table must be a DataFrame, got str: 'x'"),
        (
            lambda: simcluster.scenario("tiny_dp").without(0),
            "no fault 0; the scenario has none: add one first",
        ),
        (lambda: free(3), "free: name must be a text, got int: 3"),
    ],
)
def test_one_message_says_what_is_wrong_and_what_to_write(wrong: Any, told: str) -> None:
    with pytest.raises(InputError) as refused:
        wrong()
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "right",
    [
        lambda: search(8),
        lambda: search([8, 16], {"tp": (1, 2.5)}, share=1),
        lambda: search(range(2, 4), None, to=Path("x"), names=("a",), wide=True),
        lambda: search([*range(2000), "not looked at one by one"]),
        lambda: search(8, other="of a type that is not in the table"),
        lambda: search(8, one=scenario("tiny_dp")),
        lambda: search(pd.Series([8, 16]), {"tp": np.array([1, 2])}, names=np.array(["a"])),
    ],
)
def test_what_fits_is_taken(right: Any) -> None:
    assert right() == "taken"


def test_what_takes_any_takes_any() -> None:
    assert free("a", 1, 2, later="x") == (1, 2)


def test_arrays_and_numbers_of_numpy_and_pandas_are_numbers_and_lists() -> None:
    import numpy as np
    import pandas as pd

    assert search(np.int64(8), share=np.float32(0.5)) == search(np.array([8, 16])) == search(pd.Series([8])) == "taken"
    one, two, three = check_arguments(lambda a, b, c: (a, b, c))(np.int64(8), (np.float64(0.5), "x"), c=[np.int32(2)])
    assert [type(each) for each in (one, *two, *three)] == [int, float, str, int]


def test_the_types_of_every_argument_can_be_compared_with_any_value() -> None:
    """What looks for the argument to blame must not raise an error of its own, which would hide the cause."""
    for function in FUNCTIONS.values():
        takes = inspect.signature(function).parameters
        for value in ("tiny_dp", {"cluster": "flat"}, object(), scenario("tiny_dp")):
            find_argument_error(function, dict.fromkeys((each for each in takes if takes[each].kind in NAMED), value))


@check_arguments
def fails(whole: ScenarioLike, other: Any, third: dict[str, Any] | None = None) -> None:
    """One that has an error of its own."""
    {}["internal"]


@pytest.mark.parametrize("whole", ["tiny_dp", {"cluster": "flat"}, Path("x"), scenario("tiny_dp")])
def test_an_error_of_a_function_stays_what_it_is(whole: Any) -> None:
    with pytest.raises(KeyError, match="internal"):
        fails(whole, object())
    with pytest.raises(InputError, match="fails: third must be a dict, got str: 'x'"):
        fails(whole, object(), third="x")  # type: ignore[arg-type]


def test_a_function_stays_the_one_that_is_documented() -> None:
    assert inspect.signature(simcluster.plan).parameters["gpus"]
    assert "GPUs" in (simcluster.plan.__doc__ or "")


def test_no_such_rank_is_told_with_those_that_there_are() -> None:
    result = simcluster.simulate(scenario("tiny_3d"))
    for asked in (result.timeline_of, result.memory_of):
        for rank in (-1, 8):
            with pytest.raises(InputError, match=f"there is no rank {rank}; this job has ranks 0 to 7"):
                asked(rank)
