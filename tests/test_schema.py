"""The schema of a scenario that editors read: what ships passes, and what it refuses the loader refuses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from simcluster.base.errors import InputError
from simcluster.documents.builtin_documents import builtin_folder, builtin_names
from simcluster.documents.yaml_documents import read_document
from simcluster.faults import FAULTS
from simcluster.scenario.run_times import TIMES
from simcluster.scenario.scenario import from_document, load
from simcluster.scenario.scenario_keys import list_scenario_keys
from simcluster.scenario.schema import scenario_schema
from simcluster.topology import TOPOLOGIES

BAD = Path(__file__).parent / "bad"
TINY = read_document(builtin_folder("scenarios") / "tiny_3d.yaml").data


@cache
def validator() -> Draft7Validator:
    schema = scenario_schema()
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def passes(document: Any) -> bool:
    return bool(validator().is_valid(document))


@pytest.mark.parametrize("name", builtin_names("scenarios"))
def test_what_ships_passes(name: str) -> None:
    path = builtin_folder("scenarios") / f"{name}.yaml"
    assert [error.message for error in validator().iter_errors(read_document(path).data)] == []
    assert [error.message for error in validator().iter_errors(load(path).document())] == []


LIBERTIES: list[dict[str, Any]] = [
    {"framework": "torchtitan"},
    {"software": {"base": "torchtitan", "kernel": "10 us"}},
    {"parallel": {"tensor_model_parallel_size": 2}},
    {"pipeline": {"schedule": {"name": "1f1b"}}},
    {"pipeline": {"schedule": "mine.py:schedule"}},
    {"cluster": {"topology": "dgx_h100", "nodes": 1, "fabric": {"oversubscription": 2.0}, "nic": {"preset": "ndr"}}},
    {"cluster": {"topology": "./mine.yaml", "device": "my_gpu.yaml", "host_memory": "2 TB"}},
    {"cluster": {"topology": {"kind": "import", "files": ["a.xml"]}}},
    {"model": {"preset": "llama3-8b", "sequence_length": 4096}},
    {"model": {"preset": "models/config.json"}},
    {"data": {"documents": {"kind": "histogram", "file": "lengths.csv"}, "unique": "0.5T"}},
    {"run": {"days": "3 d", "failures": "llama3", "detection": {"kind": "exponential", "mean": "2 min"}}},
    {
        "run": {
            "tokens": "15.6T",
            "failures": [{"name": "x", "mtbf": "50 d", "repair": "2 h"}],
            "wrong_diagnosis": "2 %",
        }
    },
    {"faults": [{"kind": "slow_link", "nic_of": 0, "speed": "50 %"}, {"kind": "slow_gpu", "rank": 0, "factor": 2}]},
    {"measured": {"tokens_per_s": "1.2M"}},
]


@pytest.mark.parametrize("changed", LIBERTIES, ids=str)
def test_what_the_loader_allows_passes(changed: dict[str, Any]) -> None:
    assert [error.message for error in validator().iter_errors({**TINY, **changed})] == []


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_pass(kind: str) -> None:
    assert passes({**TINY, "faults": [FAULTS[kind].EXAMPLE, FAULTS[kind].NEUTRAL]})


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_topologies_pass(kind: str) -> None:
    topology = {"kind": kind, "device": "h100", **TOPOLOGIES[kind].EXAMPLE}
    assert [error.message for error in validator().iter_errors({**TINY, "cluster": {"topology": topology}})] == []


def test_laws_of_durations_pass() -> None:
    for law in TIMES.values():
        assert passes({**TINY, "run": {"days": "1 d", "detection": law.EXAMPLE}}), law
    assert passes({**TINY, "run": {"days": "1 d", "detection": "5 min"}})
    assert not passes({**TINY, "run": {"days": "1 d", "detection": "5 minutes"}})


def test_what_it_refuses_the_loader_refuses() -> None:
    """Every leaf of a scenario replaced by what should not stand there, and every file that is known to be bad."""
    refused = 0
    for document in changed(TINY):
        if not passes(document):
            refused += 1
            with pytest.raises(InputError):
                from_document(document, folder=builtin_folder("scenarios"))
    assert refused > 60, "it is worth something"


def test_it_finds_mistakes_of_users() -> None:
    found = []
    for path in sorted(BAD.glob("*.yaml")):
        try:
            document = read_document(path).data
        except InputError:
            continue
        found += [] if passes(document) else [path.stem]
    assert {"misspelt_section", "unknown_key", "wrong_unit", "unknown_fault", "unknown_schedule", "wrong_type"} <= {
        *found
    }


def changed(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in leaves(document, ()):
        for value in ("no such word", -1, [], {"no": "key"}, 0.5, True):
            copied = copy.deepcopy(document)
            place: Any = copied
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            yield copied
    for section in document:
        if isinstance(document[section], dict):
            yield {**document, section: {**document[section], "no_such_key": 1}}


def leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for key, each in value.items():
        yield from leaves(each, (*path, key)) if isinstance(each, dict) else [(*path, key)]


# --- what keys say ----------------------------------------------------------------------------------------------------


def test_every_key_says_what_it_is() -> None:
    keys = list_scenario_keys()
    assert [
        key.path for key in keys if not key.description.endswith((".", "?", "?)")) and "?" not in key.description
    ] == []
    assert [key.path for key in keys if not key.type_text] == []


def test_a_word_that_is_offered_is_known() -> None:
    for key in list_scenario_keys():
        assert len(set(key.choices)) == len(key.choices), key.path
