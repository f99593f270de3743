"""Rules of packing: a worked example, what every rule of the registry keeps, closed forms."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster import cli, simulate
from simcluster.base.errors import InputError
from simcluster.faults import SequenceLengths
from simcluster.faults.sequence_lengths import Packing
from simcluster.model.packing import PACKING, LognormalLengths, PackingStatistics, assign_documents, mean_padded_tokens
from simcluster.scenario.scenario import from_document
from simcluster.studies.packing_comparison import compare_packing

EXAMPLE = np.array([1200.0, 700, 300, 1900, 100, 2048, 600, 450])
ENOUGH = 10**6
each = pytest.mark.parametrize("rule", PACKING.values(), ids=PACKING)


def packed(rule: str, documents: np.ndarray, length: int, most: int = ENOUGH) -> PackingStatistics:
    return PackingStatistics.from_sequences(PACKING[rule](documents, length, most), length)


def test_a_document_of_many_sequences_fills_the_empty_ones_in_order() -> None:
    assert assign_documents(np.array([7.0, 30, 5]), 1, 5, 9) == [[[9.0], [9.0], [9.0], [3.0, 5.0], [7.0]]]
    assert assign_documents(np.array([20.0, 4]), 2, 2, 8) == [[[8.0], [8.0]], [[4.0], [4.0]]]


def test_documents_that_take_too_long_to_pack_are_refused() -> None:
    with pytest.raises(InputError, match=r"packing 1,000,000 documents takes about 98 min.*give fewer"):
        compare_packing(np.full(1_000_000, 1000.0), 2048)


@pytest.mark.parametrize(
    ("rule", "sequences", "utilization"),
    [("pad", 8, 0.44543), ("cut", 4, 0.89087), ("first_fit", 4, 0.89087), ("first_fit_decreasing", 4, 0.89087)],
)
def test_the_worked_example(rule: str, sequences: int, utilization: float) -> None:
    found = packed(rule, EXAMPLE, 2048)
    assert found.sequences == sequences
    assert found.utilization == pytest.approx(utilization, abs=5e-6)


def test_first_fit_decreasing_packs_the_worked_example_as_by_hand() -> None:
    rows = PACKING["first_fit_decreasing"](EXAMPLE, 2048, ENOUGH)
    assert rows == [[2048], [1900, 100], [1200, 700], [600, 450, 300]]
    assert PackingStatistics.from_sequences(rows, 2048).attention == pytest.approx(0.6197, abs=5e-5)


documents = st.lists(st.integers(1, 300), min_size=1, max_size=40).map(lambda each: np.array(each, dtype=float))


@each
@settings(max_examples=40)
@given(lengths=documents, length=st.integers(1, 100), most=st.one_of(st.just(ENOUGH), st.integers(1, 12)))
def test_every_rule_fills_no_sequence_too_full_and_makes_no_token(
    rule: object, lengths: np.ndarray, length: int, most: int
) -> None:
    assert callable(rule)
    rows = rule(lengths, length, most)
    assert len(rows) <= most
    assert all(0 < sum(row) <= length and min(row) > 0 for row in rows)
    found, given_tokens = PackingStatistics.from_sequences(rows, length), lengths.sum()
    assert found.real <= given_tokens
    assert found.squares <= found.filled <= found.sequences * length**2
    if most == ENOUGH and rule is not PACKING["pad"]:
        assert found.real == given_tokens


@settings(max_examples=40)
@given(lengths=documents, length=st.integers(1, 100))
def test_rules_need_as_few_sequences_as_can_be_or_nearly(lengths: np.ndarray, length: int) -> None:
    least = int(np.ceil(lengths.sum() / length))
    assert packed("cut", lengths, length).sequences == packed("balanced", lengths, length).sequences == least
    for rule in ("first_fit", "first_fit_decreasing"):  # no two of them are at most half full
        assert packed(rule, lengths, length).sequences <= 2 * least
    assert packed("pad", lengths, length).sequences == len(lengths)


@pytest.mark.parametrize(
    ("median", "sigma", "length", "utilization"),
    [(1000, 1.6, 8192, 0.2645), (1000, 1.0, 8192, 0.1918), (500, 1.0, 2048, 0.3446), (500, 1.0, 4096, 0.1918)],
)
def test_what_padding_leaves_of_lognormal_documents(
    median: float, sigma: float, length: int, utilization: float
) -> None:
    law = LognormalLengths(kind="lognormal", median=median, sigma=sigma)
    assert mean_padded_tokens(law, length) / length == pytest.approx(utilization, abs=5e-5)
    assert sigma != 1.6 or mean_padded_tokens(law, length) == pytest.approx(2167.0, abs=0.05)
    drawn = law.draw(np.random.default_rng(1), 20_000)
    found = PackingStatistics.from_sequences(PACKING["pad"](drawn, length, ENOUGH), length)
    error = np.minimum(drawn, length).std() / np.sqrt(len(drawn)) / length
    assert abs(found.utilization - mean_padded_tokens(law, length) / length) < 4 * error


def test_a_run_takes_as_many_steps_as_its_real_tokens_ask_for() -> None:
    table = compare_packing(EXAMPLE * 4, 8192, batch=1024, tokens=2e12, unique=5e11)
    assert compare_packing([8192], 8192, batch=1024, tokens=2e12).loc["cut", "steps"] == 238_419  # without padding
    assert table.loc["cut", "steps"] == 267_625
    assert table.loc["pad", "steps"] == 535_250
    assert (table["epochs"] == 4).all()


@pytest.mark.parametrize("documents", [[], [0], [1.5], [float("nan")]])
def test_lengths_are_whole_tokens(documents: list[float]) -> None:
    with pytest.raises(InputError, match="whole numbers of tokens"):
        compare_packing(documents, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--median 0", "--median: must be greater than or equal to 1, got 0"),
        ("--median 10 --sigma nan", "--sigma: must be a finite number, got nan"),
        ("--median 10 --documents 5,6", "both set the documents"),
        ("--documents 5,6 --sigma 2", "give --median"),
        ("--documents 5,6 --tokens 2T", "--tokens needs --batch"),
        ("--documents 5,6 --unique 2T", "--unique needs --tokens"),
    ],
)
def test_options_that_say_nothing_are_one_message(options: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["packing", "--length", "10", *options.split()]) == 2
    assert words in capsys.readouterr().err


# --- in a scenario ----------------------------------------------------------------------------------------------------

LAW = {"kind": "lognormal", "median": 40, "sigma": 1.2}
S = 128


def test_a_scenario_knows_every_rule() -> None:
    assert {*get_args(Packing)} == {"in_order", *PACKING}


@pytest.mark.parametrize("packing", get_args(Packing))
def test_data_and_the_fault_play_the_same_documents(packing: str, tiny: Tiny) -> None:
    """The section makes the fault, counts real tokens beside it, and is written as it was read."""
    job = {"cluster": {"topology": "flat", "gpus": 2}, "training": {"global_batch": 8}, "steps": 2}
    scenario = tiny(**job, data={"documents": LAW, "packing": packing})
    fault = {"kind": "sequence_lengths", "documents": LAW, "packing": packing, "seed": 0}
    found, same = simulate(scenario), simulate(tiny(**job, faults=[fault]))
    assert found.step_time == same.step_time
    assert found.facts.attention == same.facts.attention
    assert scenario.document()["faults"] == []
    assert from_document(scenario.document()) == scenario
    assert scenario.data is not None
    drawn = SequenceLengths.model_validate(fault)
    tokens = sum(sum(map(sum, drawn.document_lengths(scenario.seed, step, 8, S))) for step in range(2))
    assert found.facts.real == pytest.approx(tokens / (2 * 8 * S), rel=1e-12)
    assert (found.facts.real == 1) == (packing in ("in_order", "balanced", "cut"))
    numbers = found.to_dict()
    assert numbers["real_tokens_per_s"] == pytest.approx(found.facts.real * numbers["tokens_per_s"], rel=1e-12)
    assert numbers["mfu_without_padding"] <= numbers["mfu"] * (1 + 1e-12)
    assert simulate(scenario.without_faults()).facts.real == found.facts.real


def test_without_a_mask_documents_cost_what_whole_sequences_do(tiny: Tiny) -> None:
    seen = simulate(tiny(data={"documents": LAW, "packing": "pad", "mask": "none"}))
    plain = simulate(tiny())
    assert seen.step_time == plain.step_time
    assert seen.facts.real < 1 == seen.facts.attention
    assert seen.facts.real_flops < seen.facts.real * plain.facts.model_flops  # less attention


def test_words_say_what_is_real(tiny: Tiny) -> None:
    found = simulate(tiny(data={"documents": LAW, "packing": "pad", "unique": "2T"}))
    text = str(found)
    assert "data: documents lognormal median 40.0 sigma 1.2, packing pad, 2e+12 unique tokens" in text
    assert f"real tokens  {found.facts.real:.1%}, the rest is padding" in text
    assert "faults:" not in text


@pytest.mark.parametrize(
    ("section", "training", "words"),
    [
        ({"packing": "pad"}, {}, "'packing' has no effect without 'documents'"),
        ({"documents": LAW, "packing": "tight"}, {}, "tight"),
        ({"documents": LAW}, {"attention": "unfused"}, "data.documents: unfused attention"),
        ({"unique": "many"}, {}, "data.unique"),
    ],
)
def test_what_cannot_be_is_said(section: dict[str, Any], training: dict[str, Any], words: str, tiny: Tiny) -> None:
    with pytest.raises(ValueError, match=words):
        tiny(data=section, training=training)
