"""What a newcomer gets wrong, and what the one message then offers: another section, a spelling, a shipped name."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simcluster.base.counts import parse_number_ranges
from simcluster.base.errors import InputError
from simcluster.cli.arguments import add_option_name
from simcluster.documents import yaml_documents
from simcluster.documents.builtin_documents import builtin_path
from simcluster.scenario.key_paths import find_key_paths
from simcluster.scenario.scenario import Scenario, from_document, load
from simcluster.studies.sweep.sweep import load_sweep

TINY = yaml_documents.read_document(builtin_path("scenarios", "tiny_dp")).data

WRONG: list[tuple[str, Any, str]] = [
    # a key in the wrong place
    ("training.sequence_length", 1, "it belongs to model, as model.sequence_length"),
    ("precision", 1, "it belongs to training, as training.precision"),
    ("parallel.schedule", 1, "it belongs to pipeline, as pipeline.schedule"),
    ("nodes", 1, "it belongs to cluster, as cluster.nodes"),
    ("num_layers", 1, "it belongs to model, as model.layers"),
    ("training.tensor_model_parallel_size", 1, "it belongs to parallel, as parallel.tp"),
    ("training.micro_batch_size", 1, "did you mean 'micro_batch'?"),
    ("trainng.micro_batch", 1, "did you mean 'training'?"),
    ("parallel.ppp", 1, "did you mean 'pp'?"),
    # the name of a model elsewhere
    ("model.preset", "meta-llama/Meta-Llama-3-8B", "did you mean the preset 'llama3-8b'?"),
    ("model.preset", "mistralai/Mixtral-8x7B-Instruct-v0.1", "did you mean the preset 'mixtral-8x7b'?"),
    ("model.preset", "deepseek-ai/DeepSeek-V3", "did you mean the preset 'deepseek-v3'?"),
    ("model.preset", "meta-llama/Llama-2-70b-chat-hf", "did you mean the preset 'llama2-70b'?"),
    ("model.preset", "openai/gpt-oss-20b", "did you mean the preset 'gpt-oss-20b'?"),
    ("model.preset", "Llama-3-8B", "did you mean 'llama3-8b'?"),
    ("model.preset", "my-org/own-model", "no such file"),
    ("model.preset", "gpt4", "there is no model preset 'gpt4'"),
    # a number in quotes
    ("memory.fragmentation", "104%", "write 1.04"),
    ("parallel.tp", "8", "write 8, without quotes"),
    ("training.micro_batch", "8%", "must be an integer"),
    ("memory.fragmentation", "much", "must be a number"),
]


@pytest.mark.parametrize(("path", "value", "said"), WRONG)
def test_a_value_or_key_that_is_wrong_says_what_works(path: str, value: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        from_document(TINY, {path: value})
    assert said in str(caught.value)


def test_every_home_is_a_path_of_the_scenario() -> None:
    """Each name of another tool leads to a key that there is."""
    for path, names in yaml_documents.read_document(
        Path(yaml_documents.__file__).parents[1] / "scenario/other_names.yaml"
    ).data.items():
        for name in names:
            assert find_key_paths(name)[0].rpartition(".")[2] in (path.rpartition(".")[2], name), name
        assert path in find_key_paths(path.rpartition(".")[2]), path


@pytest.mark.parametrize("path", ["scenarios/tiny_dp.yaml", "tiny_dp.yaml", "here/tiny_dp"])
def test_a_shipped_name_behind_a_path(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="write tiny_dp, without a folder and ending"):
        load(path)


def test_a_shipped_topology_behind_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="write dgx_h100, without a folder and ending"):
        load("tiny_dp", {"cluster.topology": "topologies/dgx_h100.yaml"})


def test_the_topology_of_an_override_lies_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = builtin_path("topologies", "flat").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(shipped, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load("tiny_dp", {"cluster.topology": "./mine.yaml"}) == load("tiny_dp", {"cluster.topology": "flat"})


# --- how slow ---------------------------------------------------------------------------------------------------------


def faulty(**fault: Any) -> Scenario:
    return from_document(TINY, {"faults": [fault]})


@pytest.mark.parametrize(("slowdown", "speed"), [(2, 0.5), ("100 %", "50%"), (1, "100 %"), ("25%", 0.8)])
@pytest.mark.parametrize("where", [{"kind": "slow_gpu", "rank": 0}, {"kind": "slow_link", "nic_of": 0}])
def test_slowdown_and_speed_are_one_thing(slowdown: Any, speed: Any, where: dict[str, Any]) -> None:
    one, other = faulty(**where, slowdown=slowdown), faulty(**where, speed=speed)
    assert one == other == from_document(one.document())


def test_the_factor_of_old_keeps_its_two_senses() -> None:
    assert faulty(kind="slow_gpu", rank=0, factor=2) == faulty(kind="slow_gpu", rank=0, slowdown=2)
    assert faulty(kind="slow_link", nic_of=0, factor=0.25) == faulty(kind="slow_link", nic_of=0, speed=0.25)


PACES: list[tuple[str, Any, str]] = [
    ("factor", 0.5, "the factor by which the device takes longer, 2 for twice as long; got 0.5; for 0.5 of the full "
                    "speed, write speed: 0.5"),
    ("factor", "20%", "a percentage is ambiguous here"),
    ("factor", True, "faults.0.factor"),
    ("slowdown", 0.2, "for 0.2 of the full speed, write speed: 0.2"),
    ("slowdown", "fast", "a factor of at least 1, as in 1.2 (takes 1.2 times as long), or the extra time"),
    ("slowdown", "-5 %", "a factor of at least 1, as in 1.2"),
    ("speed", 2, "if it takes 2 times as long, write slowdown: 2"),
    ("speed", "0 %", "above 0 and at most 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "words"), PACES)
def test_a_pace_out_of_range_names_the_other_word(name: str, value: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        faulty(kind="slow_gpu", rank=0, **{name: value})
    assert f"faults.0.{name}" in str(caught.value)
    assert words in str(caught.value)


def test_a_pace_is_said_once() -> None:
    with pytest.raises(InputError, match="slowdown and factor are both set"):
        faulty(kind="slow_link", nic_of=0, factor=0.5, slowdown=2)
    with pytest.raises(InputError, match="slowdown and speed are missing"):
        faulty(kind="slow_gpu", rank=0)


def test_an_override_in_another_word_wins() -> None:
    assert load("slow_gpu", {"faults.0.speed": "50 %"}) == load("slow_gpu", {"faults.0.factor": 2})


def test_an_unknown_kind_shows_how_the_nearest_is_written() -> None:
    with pytest.raises(
        InputError, match=r"did you mean 'slow_link'.*written as \{kind: slow_link, nic_of: 0, speed: 0.1\}"
    ):
        faulty(kind="slow_nic", rank=1)


# --- schedules of one's own -------------------------------------------------------------------------------------------


def test_a_function_may_return_rows_of_text(tmp_path: Path) -> None:
    rows = ["F0 F1 B0 B1 F2 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    (tmp_path / "own.py").write_text(f"def mine(stages, microbatches, chunks=1):\n    return {rows}\n"
                                     "def wrong(stages, microbatches, chunks=1):\n    return 7\n")  # fmt: skip
    made = load("tiny_3d", {"pipeline.schedule": f"{tmp_path / 'own.py'}:mine"}).pipeline.schedule
    assert (
        made
        == load("tiny_3d", {"pipeline.schedule": {"name": "rows", "rows": rows, "title": "mine"}}).pipeline.schedule
    )
    with pytest.raises(InputError, match=r"own\.py:wrong returned int; it must return"):
        load("tiny_3d", {"pipeline.schedule": f"{tmp_path / 'own.py'}:wrong"})


# --- standard input, and ranks ----------------------------------------------------------------------------------------


@pytest.fixture
def standard_input(monkeypatch: pytest.MonkeyPatch) -> Any:
    def written(text: bytes) -> None:
        yaml_documents._read_standard_input.cache_clear()
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))

    yield written
    yaml_documents._read_standard_input.cache_clear()


def test_a_scenario_from_standard_input(standard_input: Any) -> None:
    path = builtin_path("scenarios", "tiny_dp")
    standard_input(path.read_bytes())
    assert load("-") == load(path) == load("-"), "a command asks twice"
    made = load_sweep("-", {"seed": [1]})
    assert [made.make_variant(number).scenario() for number in made.numbers] == [load(path, {"seed": 1})]


def test_a_mistake_in_standard_input_has_its_line(standard_input: Any) -> None:
    standard_input(b"name: x\ncluster: {topology: flat}\nmodel: {preset: llama3-8b}\ntraining: {batch: 2}\n")
    with pytest.raises(InputError, match=r"<stdin>:4:12: training\.batch"):
        load("-")


@pytest.mark.parametrize(("text", "words"), [("0-", "is not a rank"), ("", "is not a rank"), ("3-1", "write 1-3"),
                                             ("0-99999999", "more than 1,000,000 ranks")])  # fmt: skip
def test_numbers_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_number_ranges(text, "--ranks")


# --- of studies, options and values -----------------------------------------------------------------------------------


def of_options(**values: Any) -> Any:
    actions = [argparse.Action([f"--{name.replace('_', '-')}"], name) for name in values]
    return argparse.Namespace(**values), actions


@pytest.mark.parametrize(
    ("text", "values", "told"),
    [
        ("'3' is not a quantity", {"window": "3", "width": "4"}, "--window: '3' is not a quantity"),
        ("'3' is not a quantity", {"window": "3:9"}, "--window: '3' is not a quantity"),
        ("time limit '3' needs a unit", {"time_limit": "3"}, "--time-limit '3' needs a unit"),
        ("there is no 'x' in it", {"vary": ["a=1", "x=2"]}, "--vary: there is no 'x' in it"),
        ("'3' is not a quantity", {"window": "3", "width": "3"}, "'3' is not a quantity"),  # either may be meant
        ("--width: '3' is too wide", {"window": "3"}, "--width: '3' is too wide"),  # names one itself
        ("a.yaml:3: '3' is none", {"window": "3"}, "a.yaml:3: '3' is none"),  # says where itself
        ("nothing quoted", {"window": "3"}, "nothing quoted"),
    ],
)
def test_the_option_is_the_one_that_has_the_value(text: str, values: dict[str, Any], told: str) -> None:
    assert add_option_name(text, *of_options(**values)) == told
