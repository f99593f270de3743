"""Laws of chance: means, expected maxima (MODELLING.md G.2) within three deviations, streams of their own; packing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

import simcluster
from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.histogram import Histogram
from simcluster.faults.fast_streams import FastStreams
from simcluster.faults.random_factors import (
    ExponentialFactors,
    Factors,
    GumbelFactors,
    LognormalFactors,
    NormalFactors,
    random_stream,
)
from simcluster.faults.sequence_lengths import SequenceLengths, microbatch_loads, pack_sequence
from simcluster.model.packing import assign_documents
from simcluster.scenario.scenario import load_text
from simcluster.step.simulate import simulate_scenario

Z = {2: 0.5642, 8: 1.4236, 64: 2.3437, 1024: 3.2482}
"""Expected maximum of N standard normals."""
LOGNORMAL = {2: 1.02820, 8: 1.07294, 64: 1.12321, 1024: 1.17506}
"""The same of lognormals with mean 1 and sigma 0.05."""
HARMONIC = {2: 1.5, 8: 2.7179, 64: 4.7439, 1024: 7.5092}

NORMAL = NormalFactors(kind="normal", sigma=0.05)
LAWS: list[Factors] = [
    NORMAL,
    LognormalFactors(kind="lognormal", sigma=0.05),
    GumbelFactors(kind="gumbel", scale=0.05),
    ExponentialFactors(kind="exponential", scale=0.1),
]


def maxima(law: Factors, ranks: int, steps: int = 400) -> Floats:
    """The largest draw of so many ranks, step by step."""
    draws = law.draw(random_stream(7, "test", law.kind, ranks), ranks * steps)
    return np.asarray(draws.reshape(steps, ranks).max(axis=1))


def within(found: Floats, expected: float, *, rounding: float = 0.0) -> bool:
    """Is the mean where it should be, give or take three of its deviations (and what the table was rounded by)?"""
    return bool(abs(found.mean() - expected) <= 3 * found.std(ddof=1) / math.sqrt(len(found)) + rounding)


# --- expected maxima --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 8, 64, 1024])
def test_expected_maxima(ranks: int) -> None:
    normal, lognormal, gumbel, exponential = LAWS
    assert within(maxima(normal, ranks), 1 + 0.05 * Z[ranks], rounding=5e-6)
    assert within(maxima(lognormal, ranks), LOGNORMAL[ranks], rounding=5e-6)
    assert within(maxima(gumbel, ranks), 1 + 0.05 * math.log(ranks))
    assert within(maxima(exponential, ranks), 0.9 + 0.1 * HARMONIC[ranks], rounding=5e-6)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_the_mean_is_one(law: Factors) -> None:
    assert within(law.draw(random_stream(1), 40_000), 1.0)


def test_quick_normals_are_normal() -> None:
    """Moments, tails and neighbours, and the same first ones of more."""
    streams = FastStreams()
    found = streams(3, "x").standard_normal(400_000).copy()
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        assert within(found**power, moment)
    for beyond, part in ((1, 0.317311), (2, 0.0455003), (3, 0.0026998), (4, 6.334e-5)):
        assert within((np.abs(found) > beyond).astype(np.float64), part)
    assert within(found[:-1] * found[1:], 0)
    assert streams(3, "x").standard_normal(7).tolist() == found[:7].tolist()
    assert not {*streams(3, "y").standard_normal(1000)} & {*found[:1000]}


def test_a_rare_slow_rank() -> None:
    """1 + (phi - 1) (1 - (1 - p)^N) with p 0.001, phi 1.5, N 1024."""
    rare = Histogram(kind="histogram", values=(1.0, 1.5), weights=(999.0, 1.0))
    assert within(maxima(rare, 1024), 1.3205, rounding=5e-5)


def test_a_histogram_gives_what_is_in_it() -> None:
    law = Histogram(kind="histogram", values=(100.0, 300.0, 500.0), weights=(1.0, 0.0, 3.0), typical=400.0)
    draws = law.draw(random_stream(2), 20_000)
    assert sorted(np.unique(draws).tolist()) == [0.25, 1.25]
    assert within(np.asarray(draws == 1.25, dtype=np.float64), 0.75)


# --- in a step --------------------------------------------------------------------------------------------------------


def job(ranks: int, steps: int, law: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Data-parallel ranks with links that take no time to speak of."""
    return {
        "cluster": {"topology": "flat", "gpus": ranks, "link": {"line_rate": "1000 TB/s", "source": ""},
                    "path_latency": "0 s"},
        "training": {"global_batch": ranks},
        "model": {"layers": 1},
        "overlap": {"bucket_size": "1 GB"},
        "steps": steps,
        "faults": [{"kind": "jitter", "factor": law, **fields}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("law", "expected"),
    [({"kind": "lognormal", "sigma": 0.05}, LOGNORMAL[8]), ({"kind": "gumbel", "scale": 0.05}, 1 + 0.05 * math.log(8)),
     ({"kind": "normal", "sigma": 0.05}, 1 + 0.05 * Z[8])],
    ids=lambda value: str(value)[:24],
)  # fmt: skip
def test_a_step_takes_what_its_slowest_rank_takes(tiny: Tiny, law: dict[str, Any], expected: float) -> None:
    """N ranks, a draw a step: gradients are there when the slowest has computed them, E[max] later than planned.

    The time from the end of one reduction to the begin of the next holds one optimizer step and one pass of each rank:
    with equal factors on both within a rank's draw of a step the maxima are of passes alone, counted from each begin.
    """
    steps = 80
    result = simulate_scenario(tiny(**job(8, steps, law, per="step")))
    clean = simulate_scenario(tiny(**{**job(8, 1, law), "faults": []}))
    table = clean.timeline_of(0)
    planned = table[(table["stream"] == "compute") & (table["microbatch"] >= 0)]
    seconds = float((planned["end"] - planned["start"]).sum())
    factors = np.zeros((8, steps))
    for rank in range(8):
        spans = result.timeline_of(rank)
        spans = spans[(spans["stream"] == "compute") & (spans["microbatch"] >= 0)]
        factors[rank] = (spans["end"] - spans["start"]).groupby(spans["step"]).sum().to_numpy() / seconds
    assert within(factors.max(axis=0), expected, rounding=5e-6)
    first = result.timeline_of(0)
    reduction = first[(first["stream"] == "dp") & (first["step"] == 0) & (first["name"] == "gradients")]
    begin = float(reduction["start"].iloc[0])
    assert begin == pytest.approx(seconds * factors[:, 0].max(), rel=1e-9)  # from time 0, with the slowest


def test_many_small_draws_matter_less_than_one_large(tiny: Tiny) -> None:
    """K kernels between two waits: the deviation of their sum is smaller by the root of K (all alike)."""
    law, steps = {"kind": "normal", "sigma": 0.05}, 300
    found = {}
    for per in ("kernel", "step"):
        spans = simulate_scenario(tiny(**job(1, steps, law, per=per))).timeline_of(0)
        spans = spans[(spans["stream"] == "compute") & (spans["microbatch"] >= 0)]
        found[per] = (spans["end"] - spans["start"]).groupby(spans["step"]).sum().to_numpy()
    clean = simulate_scenario(tiny(**{**job(1, 1, law), "faults": []})).timeline_of(0)
    clean = clean[(clean["stream"] == "compute") & (clean["microbatch"] >= 0)]
    seconds = (clean["end"] - clean["start"]).to_numpy()
    relative = math.sqrt(float((seconds**2).sum())) / float(seconds.sum())  # 1 / root of K for equal kernels
    for per, expected in (("step", 0.05), ("kernel", 0.05 * relative)):
        deviation = found[per].std(ddof=1) / found[per].mean()
        assert abs(deviation - expected) <= 3 * expected / math.sqrt(2 * (steps - 1)), per
    assert relative < 0.5


# --- streams ----------------------------------------------------------------------------------------------------------


def test_streams_are_their_own() -> None:
    draws = {name: random_stream(1, *name).random(4).tolist() for name in (("a", 0), ("a", 1), ("b", 0), ("a", "0"))}
    assert len({tuple(each) for each in draws.values()}) == 4
    assert random_stream(1, "a", 0).random(4).tolist() == draws["a", 0]
    assert random_stream(2, "a", 0).random(4).tolist() != draws["a", 0]
    many = np.array([random_stream(0, "rank", rank).standard_normal() for rank in range(4000)])
    assert within(many, 0.0)
    assert within(many**2, 1.0)
    assert within(many[1:] * many[:-1], 0.0)


# --- packed documents -------------------------------------------------------------------------------------------------


def lengths(packing: str = "in_order", seed: int = 0, **law: Any) -> SequenceLengths:
    documents = law or {"kind": "lognormal", "median": 300, "sigma": 1.5}
    return SequenceLengths.model_validate(
        {"kind": "sequence_lengths", "documents": documents, "packing": packing, "seed": seed}
    )


@settings(max_examples=40)
@given(median=st.integers(1, 5000), sigma=st.floats(0, 3), length=st.integers(1, 4096), seed=st.integers(0, 99))
def test_sequences_are_full(median: int, sigma: float, length: int, seed: int) -> None:
    law = lengths(kind="lognormal", median=median, sigma=sigma).documents
    found = pack_sequence(law, length, random_stream(seed))
    assert found.sum() == length
    assert (found >= 1).all()
    assert float(np.dot(found, found)) <= length**2


def test_the_batch_is_the_same_however_it_is_split() -> None:
    def batch(dp: int, microbatches: int, micro_batch: int) -> Floats:
        """Loads of the batch's sequences in order, mean over each microbatch."""
        found = microbatch_loads(
            lengths(), seed=3, step=1, dp=dp, microbatches=microbatches, micro_batch=micro_batch, length=4096
        )
        assert found.shape == (dp, microbatches)
        return np.asarray(found.T.ravel())

    one = batch(1, 16, 1)
    assert (batch(4, 4, 1) == one).all()
    assert (batch(16, 1, 1) == one).all()
    np.testing.assert_allclose(batch(2, 4, 2), one.reshape(-1, 2).mean(axis=1), rtol=1e-12)


def test_packing_well_and_evenly() -> None:
    shape: dict[str, Any] = {"seed": 0, "step": 0, "dp": 8, "microbatches": 4, "micro_batch": 1, "length": 8192}
    drawn, dealt, even = (microbatch_loads(lengths(packing), **shape) for packing in ("in_order", "balanced", "even"))
    assert even.max() == even.min() == drawn.mean()
    assert np.ptp(dealt.sum(axis=1)) < 0.2 * np.ptp(drawn.sum(axis=1))  # what replicas wait for
    assert 0 < drawn.min() < drawn.max() <= 1
    assert dealt.mean() <= drawn.mean() * (1 + 1e-12)  # the same documents, some of them cut


@given(
    documents=st.lists(st.integers(1, 100), min_size=1, max_size=30), replicas=st.integers(1, 4), each=st.integers(1, 3)
)
def test_dealing_out_loses_no_token(documents: list[int], replicas: int, each: int) -> None:
    """With exactly enough room; the sum of squares is at most that of the documents, and that where none is cut."""
    bins = replicas * each
    room = math.ceil(sum(documents) / bins)
    filled = np.array([*documents, *([1] * (room * bins - sum(documents)))], dtype=np.float64)

    def sums(room: int) -> Floats:
        rows = assign_documents(filled, replicas, each, room)
        return np.array([[float(np.dot(found, found)) for found in row] for row in rows])

    squares = sums(room)
    assert squares.shape == (replicas, each)
    assert squares.sum() <= np.dot(filled, filled)
    assert (squares >= room).all()  # full, of documents of at least a token
    loose = sums(int(filled.sum()))
    assert loose.sum() == np.dot(filled, filled)


# --- measured histograms ----------------------------------------------------------------------------------------------

SCENARIO = """
cluster: {topology: flat, gpus: 2}
model: {layers: 2, hidden_size: 256, heads: 8, ffn_hidden_size: 1024, vocab_size: 1000, sequence_length: 128}
training: {global_batch: 2}
faults: [{kind: jitter, factor: {kind: histogram, file: measured.csv, typical: 200}}]
"""


def test_a_histogram_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "measured.csv").write_text("microseconds, seen\n200, 90 # most of them\n\n260, 10\n")
    scenario = load_text(SCENARIO, folder=tmp_path)
    law = scenario.document()["faults"][0]["factor"]
    assert law == {"kind": "histogram", "values": [200.0, 260.0], "weights": [90.0, 10.0], "typical": 200.0}
    assert simcluster.simulate(scenario).step_time >= simcluster.simulate(scenario.without(0)).step_time
    (tmp_path / "measured.csv").write_text("200\n260\n")
    assert load_text(SCENARIO, folder=tmp_path).document()["faults"][0]["factor"]["weights"] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [("200, 1\nmany, 2\n", ["measured.csv:2", "'many, 2' is not a list"]), ("200, 1, 3\n", ["a value and a weight"]),
     ("-1, 1\n", ["at least 0"]), ("nan\n", ["measured.csv:1", "at least 0"]), ("a, b\n", ["has no values"]),
     ("", ["empty"])],
)  # fmt: skip
def test_a_bad_file_says_where(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "measured.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        load_text(SCENARIO, folder=tmp_path)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
