"""No field of run: is accepted in silence: a value changes a number, is rejected, is noted, or is excused here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from simcluster import cli
from simcluster.base.errors import InputError
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_chunks import RunSimulator
from simcluster.longrun.studies.training import PreparedStage, TrainingRun, simulate_policies
from simcluster.scenario.run_failures import DefectiveNodesSpec, FailureSpec, FailuresSpec, WeibullLifetimes
from simcluster.scenario.run_section import (
    CheckpointSpec,
    MaintenanceSpec,
    PeerMemoryCopies,
    PowerSpec,
    RestartPhaseSpec,
    RunSpec,
    SparesSpec,
    ValidationSpec,
)
from simcluster.scenario.scenario import load

STOP = {"name": "node", "of": "host", "mtbf": "2 d", "repair": {"kind": "exponential", "mean": "12 h"}}
BUG = {"name": "bug", "of": "job", "count": 20, "within": "10 d"}
SLOW = {"name": "hot", "effect": "slow", "of": "gpu", "mtbf": "3 d", "by": [1.3], "lasts": "8 h"}
PAUSE = {
    "name": "flap",
    "effect": "pause",
    "of": "nic",
    "mtbf": "1 d",
    "lasts": {"kind": "exponential", "mean": "5 min"},
}
SILENT = {"name": "sdc", "effect": "silent", "of": "gpu", "mtbf": "10 d", "lasts": "3 h"}
ALARM = {"name": "alarm", "effect": "alarm", "of": "gpu", "mtbf": "10 d", "repair": "2 h"}
BAD = {"share": "50%", "times": 10, "cured": 0.5, "retire": 2}
AGED, LAW = {**STOP, "name": "part"}, {"kind": "weibull", "shape": 0.7}
PLANNED = {"maintenance": {"every": "3 d", "lasts": "1 h"}, "validation": {"every": 100}}
SAVED = {"to": "20 MB/s", "every": "2 h"}
PLAIN: dict[str, Any] = {
    "days": "10 d",
    "failures": {"also": [STOP, BUG]},
    "checkpoint": SAVED,
    "restart": [{"part": "stop", "takes": "2 min", "exposed": False}, {"part": "load"}],
    "spares": {"warm": 1},
    "price": 2,
}
EVERY = [STOP, SLOW, PAUSE, SILENT, ALARM]
BASES: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "snapshots": {**PLAIN, "checkpoint": {**SAVED, "mode": "snapshot", "memory": {"storage_every": 4}}},
    "every effect": {**PLAIN, **PLANNED, "failures": {"also": EVERY}},
    "replace": {**PLAIN, "failures": {"also": EVERY}, "straggler": "replace"},
    "checkpoint": {**PLAIN, "failures": {"also": EVERY}, "straggler": "checkpoint"},
    "shrink": {**PLAIN, "short": "shrink", "spares": {"warm": 0}},
    "rejoin": {**PLAIN, "recovery": "rejoin", "failures": {"also": EVERY}, "straggler": "replace"},
    "bad batch": {**PLAIN, "failures": {"also": [{**STOP, "bad": BAD}, {**AGED, "law": LAW}]}},
    "catalogue": {**PLAIN, "failures": {"of": "llama3", "times": 1000}},
    "nothing fails": {"days": "10 d", "price": 2},
}  # fmt: skip

VALUES: dict[str, dict[str, list[Any]]] = {
    "RunSpec": {
        "days": ["10 d", "30 d"],
        "steps": [4000000],
        "loss": [3.0],
        "detection": ["5 min", "0 s"],
        "short": ["wait", "shrink"],
        "shrink_to": [1, 2],
        "recovery": ["restart", "rejoin"],
        "straggler": ["leave", "replace", "checkpoint"],
        "noticed": ["1 h", "1 min"],
        "wrong_diagnosis": [0.2, 0.5],
        "timeout": ["1 s", "1 h"],
        "price": [3],
        "achievable_mfu": [0.5, 0.01],
        "law": ["chinchilla", "besiroglu"],
        "played": [20],
    },
    "checkpoint": {
        "every": ["1 h", "auto"],
        "mode": ["blocking", "snapshot"],
        "to": ["40 MB/s", "1 GB/s"],
        "read": ["10 MB/s", "1 GB/s"],
        "bytes_per_parameter": [2, 30],
        "stall": ["1 s", "100 s"],
        "write": ["50 s", "200 s"],
        "slowed": [0.1, 0.3],
        "memory": [{}],
        "verify": ["10 s"],
        "keep": [1, 9],
        "price": [20],
    },
    "checkpoint.memory": {"storage_every": [3, 9], "stall": ["5 s", "1 s"], "write": ["50 s", "1 s"]},
    "validation": {"every": [50], "batches": [10], "seconds": ["1 s"]},
    "restart.0": {"takes": ["1 min"], "exposed": [True]},
    "restart.1": {"takes": ["1 min"], "exposed": [False]},
    "spares": {
        "hot": [1, 2],
        "warm": [0, 1, 3],
        "cold": [1, 2],
        "hot_ready": ["1 min", "1 h"],
        "warm_ready": ["1 min", "1 h"],
        "cold_ready": ["1 min", "1 h"],
        "crews": [1, 2],
        "unlimited": [True],
        "price": [1, 5],
    },
    "maintenance": {"every": ["2 d"], "lasts": ["2 h"]},
    "power": {
        "idle": [50],
        "full": [800],
        "node": [500],
        "communication": [0.5],
        "waiting": [0.5],
        "pue": [1.5],
        "price": [0.1],
    },
    "failures": {"of": ["llama3"], "times": [3], "only": [["node"], ["faulty GPU"]]},
    "also": {
        "of": ["gpu", "memory", "host", "rack", "nic", "cable", "switch", "neighbour", "job"],
        "effect": ["stop", "slow", "pause", "silent", "alarm"],
        "gpus": [4, 8],
        "law": [{"kind": "weibull", "shape": 0.6}],
        "bad": [{"share": 0.5, "times": 9}],
        "detect": ["10 min"],
        "repair": ["1 d"],
        "machines": [2, 3],
        "survives": ["memory", "storage"],
        "by": [[1.5]],
        "left": [[0.5]],
        "shares": [[2.0]],
        "lasts": ["4 h"],
        "mtbf": ["1 d"],
        "count": [5],
        "within": ["5 d"],
        "per_year": [1.0],
    },
    "bad": {
        "share": [0.25],
        "times": [5],
        "cured": [1.0, 0.1],
        "retire": [3, 0],
        "within": ["1 h"],
        "rule": ["window", "fading"],
        "replaced": ["3 d"],
    },
    "lawspec": {"shape": [0.5, 1.5], "youngest": ["10 d"], "oldest": ["30 d"]},
}
"""Values to try, by the place below run: ("also": each failure) and the key."""
MODELS = {
    "RunSpec": RunSpec, "checkpoint": CheckpointSpec, "checkpoint.memory": PeerMemoryCopies,
    "validation": ValidationSpec, "restart.0": RestartPhaseSpec, "spares": SparesSpec, "maintenance": MaintenanceSpec,
    "power": PowerSpec, "failures": FailuresSpec, "also": FailureSpec, "bad": DefectiveNodesSpec,
    "lawspec": WeibullLifetimes,
}  # fmt: skip
ELSEWHERE = {
    "tokens", "stages", "checkpoint", "validation", "restart", "spares", "maintenance", "power", "failures",
    "part", "kind", "name", "source", "also", "per_1000_node_days",
}  # fmt: skip
"""Sections, names, and keys that ends and rates have in other bases."""
EXCUSED = {
    r"run\.played": "how many runs there are; every one stays what it is",
    r"run\.spares\.crews": "two crews never have a queue where few nodes are out at once",
    r"run\.failures\.also\.\d\.of": "another device of which there are as many",
    r"run\.failures\.also\.\d\.gpus": "as many GPUs as the job has",
    r"run\.failures\.also\.\d\.shares": "one level has all of the chance",
    r"run\.failures\.also\.\d\.lasts": "a device that is replaced sooner",
    r"run\.failures\.only": "all failures that there are",
    r"run\.power\.waiting": "nothing ever waits",
}
"""Fields of which a value may change nothing without a word, and why."""


@pytest.fixture(scope="module")
def states() -> ClusterStateSimulator:
    return ClusterStateSimulator(load("tiny_dp"))


def section(base: Any, place: str) -> Any:
    for part in place.split("."):
        base = base[int(part)] if isinstance(base, list) else base.get(part) if isinstance(base, dict) else None
    return base


def changes(base: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of every field that the base may have; beyond the plain one, the first of each."""
    few = None if base is PLAIN else 1
    also = base.get("failures", {}).get("also", [])
    places = {name: [name] for name in VALUES} | {
        "RunSpec": [""],
        "also": [f"failures.also.{number}" for number in range(len(also))],
        "bad": [f"failures.also.{number}.bad" for number, each in enumerate(also) if "bad" in each],
        "lawspec": [f"failures.also.{number}.law" for number, each in enumerate(also) if "law" in each],
    }
    for name, fields in VALUES.items():
        for place in places[name]:
            there = section(base, place) if place else base
            if there is None and name not in ("power", "checkpoint", "spares", "failures"):
                continue
            for key, values in fields.items():
                default = MODELS.get(name, RestartPhaseSpec).model_fields[key].default
                given = (there or {}).get(key, default)
                yield from (
                    (f"run.{place}.{key}".replace("..", "."), value)
                    for value in [each for each in values if each != given][:few]
                )


def outcome(states: ClusterStateSimulator, base: dict[str, Any], **change: Any) -> tuple[Any, ...]:
    """Return all that a run comes to, and its notes."""
    scenario = load("tiny_dp", {"run": base, **change})
    runs = simulate_policies({"": (scenario, [PreparedStage.from_scenario(scenario, states)])}, 3, RunSimulator())[""]
    assert isinstance(runs, TrainingRun)
    numbers = [runs.outcomes.arrays_by_name()[name] for name in ("wall", "at", "steps", "fates", "strikes", "weekly")]
    money, energy = runs.money, runs.energy
    return (
        tuple(each.tobytes() for each in numbers), runs.played, runs.notes, runs.loss, runs.price_of_mfu,
        None if money is None else (money.total.tobytes(), tuple(money.parts.items())),
        None if energy is None else (energy.total.tobytes(), energy.peak),
        tuple(part.name for part in runs.run.restart), runs.assumed,
    )  # fmt: skip


@pytest.mark.parametrize("name", BASES)
def test_no_value_is_accepted_in_silence(name: str, states: ClusterStateSimulator) -> None:
    base = BASES[name]
    before, silent = outcome(states, base), []
    for path, value in changes(base):
        if any(re.fullmatch(pattern, path) for pattern in EXCUSED):
            continue
        try:
            after = outcome(states, base, **{path: value})
        except InputError:
            continue
        if after == before:
            silent.append((path, value))
    assert silent == []


def test_every_field_is_walked() -> None:
    missing = {
        f"{name}.{key}"
        for name, model in MODELS.items()
        for key in model.model_fields
        if key not in VALUES[name] and key not in ELSEWHERE
    }
    assert missing == set()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": 4}, "'gpus' applies only with 'count', which is not set; remove gpus"),
        ({"machines": 2}, "'machines' applies only with 'repair' or 'of: rack'"),
        ({"effect": "stop"}, "'by' applies only to 'effect: slow'"),
        ({"effect": "alarm", "by": []}, "'lasts' applies only to effect"),
    ],
)
def test_what_a_failure_does_not_have_is_rejected(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load("tiny_dp", {"run": {**PLAIN, "failures": [{**SLOW, **change}]}})


@pytest.mark.parametrize(
    "option", [("run.noticed", "1 h"), ("run.shrink_to", "1"), ("run.timeout", "1 s"), ("run.spares.cold_ready", "1 s")]
)
def test_the_command_notes_what_has_no_effect(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["train", "tiny_dp", "--run.days", "5", "--run.failures", "rsc-1", "--run.checkpoint.to", "1 GB/s"]
    assert cli.main([*argv, "--played", "2", f"--{option[0]}", option[1]]) == 0
    assert f"note: {option[0]} has no effect: " in capsys.readouterr().out
