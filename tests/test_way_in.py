"""The way in from Python: every public function that takes a scenario takes whatever says one, and gives the same."""

from __future__ import annotations

import inspect
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import for_each

import simcluster
from simcluster.base.errors import InputError
from simcluster.base.old_names import RENAMED, RENAMED_MEMBERS
from simcluster.longrun.event_log import EventLog, LoggedFailure
from simcluster.scenario.scenario import BaseScenario, Scenario, from_document
from simcluster.scenario.sections import Parallel

DOCUMENT: dict[str, Any] = {
    "name": "small",
    "cluster": {"topology": "flat", "gpus": 2},
    "model": {"layers": 1, "hidden_size": 512, "heads": 8, "vocab_size": 4096, "sequence_length": 512},
    "training": {"global_batch": 2, "micro_batch": 1},
    "faults": [{"kind": "slow_gpu", "rank": 1, "factor": 1.5}],
    "run": {
        "days": "2 d",
        "failures": [{"name": "machine", "of": "host", "count": 400, "within": "54 d"}],
        "checkpoint": {"stall": "20 s", "every": "1 h"},
        "played": 2,
    },
}
OF_STAGES = {"days": None, "tokens": "1M", "stages": [{"until": "500k tokens"}, {}]}
STAGED = {**DOCUMENT, "run": {**DOCUMENT["run"], **OF_STAGES}}
HOME = import_module("simcluster.scenario.scenario")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of small scenarios that ship."""
    for name, document in (("small", DOCUMENT), ("staged", STAGED)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(document))
    monkeypatch.setattr(HOME, "builtin_folder", lambda kind: tmp_path)
    monkeypatch.setattr(HOME, "builtin_names", lambda kind: ["small", "staged"])
    return tmp_path


LOG = EventLog(tuple(LoggedFailure(7000.0 * number, "machine", lasts=400.0) for number in range(1, 5)))
LAYOUTS = {"parallel.tp": [1], "training.micro_batch": [1], "training.recompute": ["none"]}

CALLS: dict[str, Callable[[Any], object]] = {
    "check": simcluster.check,
    "collective_times": lambda one: (
        simcluster.collective_times(
            one if not isinstance(one, dict) else one["cluster"], [0, 1], "all_reduce", 1e6
        ).finishes
    ),
    "compare": lambda one: simcluster.compare(one, names=["it"]),
    "compare_policies": lambda one: simcluster.compare_policies({"now": one, "late": {"run.detection": "1 h"}}),
    "diff": lambda one: simcluster.diff(one, DOCUMENT),
    "differences": lambda one: simcluster.differences(one, one, names=["one", "again"]),
    "inflation": lambda one: simcluster.inflation({"it": one}, [0.05], per="gpu", replicas=2),
    "job_memory": simcluster.job_memory,
    "kernels": simcluster.kernels,
    "largest_that_fits": lambda one: simcluster.largest_that_fits(one, "training.micro_batch"),
    "monte_carlo": lambda one: simcluster.monte_carlo(one, replicas=3),
    "plan": lambda one: simcluster.plan(one, 2, top=1, vary=LAYOUTS).table,
    "replay_failures": lambda one: simcluster.replay_failures(one, LOG),
    "report": lambda one: simcluster.report(one, to=f"{tempfile.mkdtemp()}/page.html").stat().st_size,
    "compute_optimal": lambda one: simcluster.compute_optimal(one, tokens="1B"),
    "scenario": simcluster.scenario,
    "sensitivity": lambda one: simcluster.sensitivity(one, ["flops"]).table,
    "simulate": simcluster.simulate,
    "simulate_jobs": lambda one: simcluster.simulate_jobs([(one, range(2))], "flat")[0].step_time,
    "stragglers": simcluster.stragglers,
    "studio": lambda one: simcluster.studio(one).result.step_time,
    "sweep": lambda one: simcluster.sweep(one, {"seed": [1, 2]}),
    "train": simcluster.train,
    "train_stages": simcluster.train_stages,
    "what_if_free": lambda one: simcluster.what_if_free(one, ["dp"]).table,
    "mitigations": lambda one: simcluster.mitigations(one).table,
    "write_trace": lambda one: simcluster.write_trace(one, f"{tempfile.mkdtemp()}/trace.json").ranks,
}
"""Every public function that takes a scenario (by its name), and a quick call of it."""
FORMS: dict[str, Callable[[str, Path, Mapping[str, Any]], Any]] = {
    "path": lambda name, folder, document: folder / f"{name}.yaml",
    "dict": lambda name, folder, document: document,
    "Scenario": lambda name, folder, document: from_document(document),
}
SLOW = ("check", "largest_that_fits", "plan", "job_memory", "report")  # of these one form beside the name
TAKERS = re.compile(r"\b(ScenarioLike|ResultLike|ClusterLike|Variants|Comparable|Policy)\b")


def annotations(name: str) -> list[str]:
    found = getattr(simcluster, name)
    return [] if inspect.isclass(found) or not callable(found) else [
        str(each.annotation) for each in inspect.signature(found).parameters.values()
    ]  # fmt: skip


def test_no_public_function_is_left_out() -> None:
    takers = {name for name in simcluster.__all__ if any(TAKERS.search(each) for each in annotations(name))}
    assert takers == set(CALLS)
    narrow = {
        name for name in simcluster.__all__ for each in annotations(name) if re.match(r"(Scenario|Result)\b", each)
    }
    assert narrow == {"monte_carlo"}, "take a ScenarioLike or a ResultLike"  # its base is what it plays itself


def told(answer: object) -> object:
    """An answer as something that can be compared."""
    if isinstance(answer, pd.DataFrame):
        return answer.to_json()
    said = getattr(answer, "to_dict", None)
    return said() if said else repr(answer)


@pytest.mark.parametrize("function", [name for name in CALLS if name != "collective_times"])
def test_whatever_says_a_scenario_means_the_same(function: str, shipped: Path) -> None:
    name, document = ("staged", STAGED) if function == "train_stages" else ("small", DOCUMENT)
    by_name = told(CALLS[function](name))
    for form, made in list(FORMS.items())[-1 if function in SLOW else 0 :]:
        assert told(CALLS[function](made(name, shipped, document))) == by_name, form


@pytest.mark.parametrize("function", CALLS)
@for_each("wrong", [3, None, Parallel])
def test_a_wrong_type_is_told_what_to_pass(function: str, wrong: object) -> None:
    what = "cluster" if function == "collective_times" else "scenario"
    if wrong is None and function == "compute_optimal":
        return  # asks without one
    with pytest.raises(InputError, match=rf"{function}.* takes .*a {what} \(.*, got (int: 3|None|Parallel)"):
        CALLS[function](wrong)


def test_what_knows_its_scenario_stands_for_it() -> None:
    result = simcluster.simulate(DOCUMENT)
    assert simcluster.scenario(result) is result.scenario
    assert told(simcluster.kernels(result)) == told(simcluster.kernels(DOCUMENT))
    assert simcluster.simulate(simcluster.train(result)).step_time == result.step_time


def test_clusters() -> None:
    section = {"topology": "dgx_h100", "nodes": 1}
    job = from_document(DOCUMENT)
    assert simcluster.load_cluster(section).gpus == simcluster.load_cluster("dgx_h100", [("nodes", 1)]).gpus
    times = [
        simcluster.collective_times(one, [0, 1], "all_reduce", 1e6).finishes
        for one in (job, job.cluster.built, DOCUMENT["cluster"])
    ]
    assert times[0] == times[1] == times[2]
    with pytest.raises(InputError, match=r"load_cluster takes a cluster \(.*, got int: 3"):
        simcluster.load_cluster(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="scale: applies only to the cluster of a scenario"):
        simcluster.load_cluster({**section, "scale": {"network": 2}})


# --- changes ----------------------------------------------------------------------------------------------------------

CHANGES: list[dict[str, Any]] = [
    {"parallel.tp": 2},  # dp, which is left out, follows
    {"cluster.gpus": 4},  # and so do the GPUs of the job
    {"training.global_batch": 8, "name": "other"},
    {"parallel": {"pp": 2}},
    {"faults": []},
    {"faults+": [{"kind": "slow_gpu", "rank": 0, "factor": 2.0}]},
    {"pipeline.schedule": "gpipe"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_changed_afterwards_is_read_with_the_change(change: dict[str, Any], shipped: Path) -> None:
    first = {"model.layers": 2, "training.global_batch": 4}
    together = simcluster.scenario("small", {**first, **change})
    assert simcluster.scenario("small", first).with_(change) == together
    assert simcluster.scenario(shipped / "small.yaml", first).with_(change) == together
    assert simcluster.scenario(DOCUMENT, first).with_(change) == together
    assert (
        BaseScenario.from_scenario(simcluster.scenario("small", first)).with_changes(tuple(change.items())) == together
    )
    assert Scenario(**DOCUMENT).with_(first).with_(change) == together


def test_keywords_are_changes() -> None:
    made = simcluster.scenario(DOCUMENT, seed=3, parallel__tp=2)
    assert (
        made
        == from_document(DOCUMENT, {"seed": 3, "parallel.tp": 2})
        == from_document(DOCUMENT).with_(seed=3, parallel__tp=2)
    )
    assert simcluster.monte_carlo(DOCUMENT, replicas=4, seed=3).step_times.shape == (4,)


def test_a_copy_that_was_changed_otherwise_starts_from_what_it_is() -> None:
    plain = from_document(DOCUMENT).without_faults()
    assert plain.with_({"training.global_batch": 4}).faults == ()
    assert plain.model_copy().origin.document.data["faults"] == []


def test_errors_know_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "cluster: {topology: flat, gpus: 4}\nmodel: llama3-8b\ntraining: {global_batch: 6}\nparallel: {tp: 2}\n"
    )
    job = simcluster.scenario(path)
    assert job.name == "job"
    with pytest.raises(InputError, match=r"job\.yaml:3:12: training\.global_batch: 6 is not a multiple of dp 4"):
        job.with_({"parallel.tp": 1})
    with pytest.raises(InputError, match=r"override: training\.nothing: unknown key"):
        job.with_(training__nothing=1)
    for wrong in (3, [("a", 1, 2)], {3: 4}):
        with pytest.raises(InputError, match="changes must be"):
            job.with_(wrong)  # type: ignore[arg-type]


# --- Scenario(...), and what an editor sees ---------------------------------------------------------------------------


def test_a_scenario_takes_what_a_file_takes() -> None:
    direct = Scenario(
        cluster={"topology": "dgx_h100", "nodes": 1, "nic": {"line_rate": "200 Gbit/s"}},
        model="llama3-8b",
        training={"global_batch": 8},
        parallel=Parallel(tp=8),
        overlap={"bucket_size": "25 MB"},
    )
    text = (
        "cluster: {topology: dgx_h100, nodes: 1, nic: {line_rate: 200 Gbit/s}}\nmodel: {preset: llama3-8b}\n"
        "training: {global_batch: 8}\nparallel: {tp: 8}\noverlap: {bucket_size: 25 MB}\n"
    )
    assert direct == simcluster.scenario(text)
    assert direct.parallel.dp == 1
    assert Scenario(cluster="flat_8", model="llama3-8b", training={"global_batch": 8}).gpus == 8


def test_a_wrong_scenario_is_one_error_of_ours() -> None:
    with pytest.raises(InputError, match=r"training\.global_batch: 7 is not a multiple of dp 8") as caught:
        Scenario(cluster="flat_8", model="llama3-8b", training={"global_batch": 7})
    assert "pydantic" not in str(caught.value)
    with pytest.raises(InputError, match="did you mean 'model'") as caught:
        Scenario(cluster="flat_8", modle="llama3-8b", training={"global_batch": 8})  # type: ignore[call-arg]
    assert "https" not in str(caught.value)


@pytest.mark.parametrize("old", RENAMED)
def test_old_names_of_functions_work_and_warn(old: str) -> None:
    today = RENAMED[old][1]
    assert today in simcluster.__all__
    assert old not in simcluster.__all__
    with pytest.warns(
        DeprecationWarning, match=rf"simcluster\.{old} is deprecated: use simcluster\.{today}$"
    ) as caught:
        function = getattr(simcluster, old)
    assert caught[0].filename == __file__
    assert today == "scenario" or function is getattr(simcluster, today)


@pytest.mark.parametrize(
    ("owner", "old", "today"), [(o, *pair) for o, of in RENAMED_MEMBERS.items() for pair in of.items()]
)
def test_old_names_of_attributes_work_and_warn(owner: str, old: str, today: str) -> None:
    thing = simcluster.simulate(DOCUMENT) if owner == "Result" else getattr(simcluster, owner)
    with pytest.warns(DeprecationWarning, match=rf"{owner}\.{old} is deprecated: use {owner}\.{today}$") as caught:
        assert getattr(thing, old) == getattr(thing, today)
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        thing.nothing  # noqa: B018


def test_simulate_takes_changes() -> None:
    changed = from_document(DOCUMENT).with_({"training.global_batch": 4})
    result = simcluster.simulate(changed).to_dict()
    assert simcluster.simulate(DOCUMENT, {"training.global_batch": 4}).to_dict() == result
    assert simcluster.simulate(from_document(DOCUMENT), training__global_batch=4).to_dict() == result
    with pytest.raises(InputError, match="unknown key 'parallell'"):
        simcluster.simulate(DOCUMENT, parallell__tp=2)


def test_what_a_prompt_completes() -> None:
    assert {*simcluster.__all__, "__version__"} <= set(dir(simcluster))
    assert not {name for name in dir(simcluster) if not name.startswith("_")} - set(simcluster.__all__)
    assert {name for name in dir(simcluster.plots) if not name.startswith("_")} == set(simcluster.plots.__all__)
    mine = {name for name in dir(from_document(DOCUMENT)) if not name.startswith("_")}
    assert {"with_", "without_faults", "parallel", "document", "tokens_per_step"} <= mine
    assert not mine & {"parse_obj", "schema_json", "construct", "model_fields", "copy"}


# --- tables and labels ------------------------------------------------------------------------------------------------


def test_answers_are_tables() -> None:
    rows = {
        "plan": simcluster.plan(DOCUMENT, 2, top=2, vary=LAYOUTS).table,
        "sensitivity": simcluster.sensitivity(DOCUMENT, ["flops", "memory"]).table,
        "kernels": simcluster.kernels(DOCUMENT).table,
        "what_if_free": simcluster.what_if_free(DOCUMENT, ["dp"]).table,
        "mitigations": simcluster.mitigations(DOCUMENT).table,
        "stragglers": simcluster.stragglers(DOCUMENT).table,
        "monte_carlo": simcluster.monte_carlo(DOCUMENT, replicas=2).table,
        "simulate_jobs": simcluster.simulate_jobs([(DOCUMENT, range(2))], "flat").table,
        "diff": simcluster.diff(DOCUMENT, from_document(DOCUMENT).without_faults()).table,
    }
    for name, table in rows.items():
        assert isinstance(table, pd.DataFrame), name
        assert len(table) > 0, name
    assert rows["diff"]["seconds"].sum() == pytest.approx(
        simcluster.diff(DOCUMENT, from_document(DOCUMENT).without_faults()).seconds
    )
    assert rows["plan"]["step_time_s"].is_monotonic_increasing
    assert rows["kernels"]["launches"].sum() > 0


def test_variants_are_called_by_what_differs() -> None:
    job = from_document(DOCUMENT)
    more = job.with_({"training.global_batch": 4})
    assert list(simcluster.compare({"now": job, "more": more}).index) == ["now", "more"]
    assert list(simcluster.compare([job, more], ["a", "b"]).index) == ["a", "b"]
    assert list(simcluster.compare(job, more).index) == ["global_batch 2", "global_batch 4"]
    assert list(simcluster.compare(job, job.without_faults()).index)[1] == "no faults"
    assert list(simcluster.compare(job, job).index) == ["small", "small (2)"]
    other = job.with_({"name": "other"})
    assert list(simcluster.compare(job, more, other).index) == [
        "small: global_batch 2",
        "small: global_batch 4",
        "other",
    ]
