"""Public functions with arguments that they take, and values that somebody might give instead, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import simcluster

_WEEK = {"a": "week.yaml", "b": "week.yaml"}
FUNCTIONS: dict[str, dict[str, Any]] = {
    "check": {"scenario": "tiny_dp", "overrides": ()},
    "collective_times": {
        "cluster": "dgx_h100", "gpus": [0, 1], "kind": "all_reduce", "size": 1e6, "algorithm": "auto",
        "detail": "flow", "arrivals": None, "nccl": "auto", "root": 0,
    },
    "compare_packing": {"documents": [100, 200, 300], "length": 512, "batch": None, "tokens": None, "unique": None},
    "compare_policies": {
        "policies": _WEEK, "measure": "goodput", "played": 2, "workers": 1, "store": None, "strict": True,
    },
    "diff": {"base": "tiny_dp", "other": "tiny_3d", "kernels": None, "steps": None},
    "first_scenario": {
        "model": "llama3-8b", "cluster": "dgx_h100", "gpus": 8, "batch": None, "sequence_length": None, "headroom": 0.1,
    },
    "inflation": {"scenarios": {"a": "tiny_dp"}, "sigmas": [0.01], "per": "kernel", "replicas": 2},
    "job_memory": {"scenario": "tiny_dp"},
    "kernels": {"scenario": "tiny_dp", "stage": 0},
    "largest_that_fits": {"scenario": "tiny_dp", "path": "training.micro_batch", "overrides": ()},
    "load_cluster": {"name": "dgx_h100", "overrides": ()},
    "monte_carlo": {
        "scenario": "jitter_8", "replicas": 2, "seed": None, "method": "auto", "processes": 0, "base": None,
        "until": None,
    },
    "list_names": {"kind": "models"},
    "simulate_schedules": {"schedules": ["1f1b"], "stages": 2, "microbatches": 4, "chunks": 2},
    "plan": {
        "scenario": "tiny_dp", "gpus": None, "objective": "step_time", "max_memory": None, "headroom": None,
        "price": None, "top": 2, "vary": None, "front": False, "time_limit": None, "executor": None, "store": None,
    },
    "compute_optimal": {
        "scenario": None, "compute": 1e22, "gpus": None, "days": None, "mfu": None, "device": "h100",
        "parameters": None, "tokens": None, "loss": None, "serve": None, "unique": None, "law": None, "price": None,
        "critical_batch": "kaplan", "vary": None, "batch": "grows",
    },
    "replay_failures": {"scenario": "week.yaml", "log": "simulated_54_days", "what_if": None, "played": 2},
    "sensitivity": {"scenario": "tiny_dp", "resources": ("flops",), "by": 0.01, "prices": {}},
    "scenario": {"source": "tiny_dp", "changes": (), "allow_python": False},
    "simulate": {"scenario": "tiny_dp", "changes": (), "schedule": None, "folded": True, "engine": None},
    "simulate_costs": {
        "costs": simcluster.Costs(forward=1.0, backward=2.0), "stages": 2, "microbatches": 4, "schedule": "1f1b",
        "chunks": 1, "tp": 1, "dp": 1, "steps": 1, "sync": 0.0, "slowness": None, "engine": "auto",
        "optimizer_sync": "post_validation",
    },
    "simulate_jobs": {"jobs": [("tiny_dp", range(8))], "cluster": "dgx_h100", "folded": True},
    "zero_stages": {"parameters": 7e9, "recipe": "mixed-18", "dp": 8, "device": "h100"},
    "stragglers": {"result": "slow_gpu"},
    "sweep": {
        "base": "tiny_dp", "vary": {"training.micro_batch": [1, 2]}, "executor": None, "store": None, "sample": None,
        "seed": 0,
    },
    "train": {"scenario": "week.yaml", "played": 2, "workers": 1, "store": None},
    "estimate_training": {
        "parameters": 7e9, "tokens": None, "device": "h100", "precision": "bf16", "gpus": None, "mfu": None,
        "achievable": None, "price": None, "days": None, "budget": None, "recipe": None, "bytes_per_parameter": None,
        "zero": 3,
    },
    "write_trace": {"result": "tiny_dp", "path": "t.json", "ranks": None, "begins": "arrival", "kernels": False},
    "what_if_free": {"result": "tiny_dp", "kinds": ()},
    "mitigations": {"result": "slow_gpu"},
}  # fmt: skip
"""By name, with arguments by name that give a small answer."""


class _Posing:
    """An object with a scenario that is none."""

    scenario = 3


@functools.cache
def _result() -> Any:
    return simcluster.simulate("tiny_dp")


_MADE: dict[str, Callable[[], Any]] = {
    "a Scenario": lambda: simcluster.scenario("tiny_dp"),
    "a Result": _result,
    "a list of Scenario": lambda: [simcluster.scenario("tiny_dp")],
    "a dict of Scenario": lambda: {"a": simcluster.scenario("tiny_dp")},
    "a generator": lambda: (each for each in [1]),
}
_PLAIN: tuple[Any, ...] = (
    None, True, False, 0, -1, 3, 2**31, 2**62, 10**400, 1.5, 1e308, 5e-324, float("nan"), float("inf"), -float("inf"),
    "", "x", "1e3", "10%", "-1", "nan", "a\nb", "tiny_dp", "~/x", "C:\\x.yaml", "a" * 5000, "\u202ex\x1b[31m", "\ud800",
    b"bytes", Path("nowhere"), Path("/"), 1j, Fraction(1, 3), Decimal("1.5"), Decimal("NaN"), int, len, object(),
    np.int64(2), np.float32(0.5), np.float64("nan"), np.bool_(True), np.array([1, 2]), np.array([]), np.array(3),
    np.array([[1, 2], [3, 4]]), np.str_("x"), pd.DataFrame({"a": [1, 2]}), pd.DataFrame(), pd.Series([1, 2]),
    pd.Series(["a"]), pd.NaT, pd.NA, pd.Timestamp("2024-01-01"), pd.Timedelta("1s"), range(3), {1, 2},
    frozenset("a"), (), [], [None], [[[]]], [1, 2, 3], ["a", "b"], ["tiny_dp"], [("training.micro_batch", 2)], [("a",)],
    [("a", 1, 2)], {}, {"a": 1}, {1: 2}, {"a": [1]}, {"training.micro_batch": [1, 2]}, {"training.micro_batch": 2},
    {"training.micro_batch": []}, {"training.micro_batch": "1,2"}, {"name": "x"}, {"a": None}, simcluster, _Posing(),
)  # fmt: skip
VALUES: dict[str, Callable[[], Any]] = {
    **{f"{number} {type(each).__name__}": (lambda one=each: one) for number, each in enumerate(_PLAIN)},
    **_MADE,
}
