"""FLOPs of packed documents: attention counts the squares of the lengths that were drawn, everywhere the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.faults import SequenceLengths
from simcluster.faults.fault_spec import BatchSizes
from simcluster.faults.random_factors import random_stream
from simcluster.faults.rank_effects import mean_attention_load
from simcluster.faults.sequence_lengths import pack_sequence
from simcluster.model.flops import hardware_flops_per_sequence, layer_flops, model_flops_per_sequence
from simcluster.results.result import Result
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.step.step_plan import plan_step
from simcluster.studies.search.layout import Layout
from simcluster.studies.search.plan import make_searchable_scenario
from simcluster.studies.search.step_time_bounds import StepTimeBounds
from simcluster.studies.sweep.quick_steps import quick_step_time
from simcluster.studies.sweep.stage_network import NeedsFullRunError

S = 128  # tokens of a sequence of the tiny model
DRAWN: dict[str, Any] = {"kind": "sequence_lengths", "documents": {"kind": "lognormal", "median": 20, "sigma": 1.2}}


def eighths() -> dict[str, Any]:
    return {"kind": "sequence_lengths", "documents": {"kind": "histogram", "values": [S // 8]}}


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_documents_of_an_eighth_leave_an_eighth_of_the_attention(recompute: str, tiny: Tiny) -> None:
    """sum(length^2) = 8 (s / 8)^2; each number of the result follows."""
    whole, found = (simulate(tiny(training={"recompute": recompute}, faults=faults)) for faults in ([], [eighths()]))
    model, batch = found.scenario.model, found.facts.samples
    core, layers = layer_flops(model, 1).core, model.layers
    assert found.facts.attention == pytest.approx(1 / 8, rel=1e-12)
    less = 7 / 8 * layers * core.total * batch
    assert whole.facts.model_flops - found.facts.model_flops == pytest.approx(less, rel=1e-12)
    again = 0.0 if recompute == "none" else 7 / 8 * layers * core.forward * batch
    assert whole.facts.hardware_flops - found.facts.hardware_flops == pytest.approx(less + again, rel=1e-12)
    numbers = found.to_dict()
    rate = found.facts.model_flops / found.step_time / found.facts.ranks
    assert numbers["model_flops_per_step"] == found.facts.model_flops
    assert numbers["mfu"] == pytest.approx(rate / found.facts.peak_flops, rel=1e-12)
    assert numbers["model_tflops_per_gpu"] == pytest.approx(rate / 1e12, rel=1e-12)
    assert (numbers["hfu"] == numbers["mfu"]) == (recompute == "none")


@settings(max_examples=25)
@given(
    seed=st.integers(0, 99), steps=st.integers(1, 3), dp=st.integers(1, 3), microbatches=st.integers(1, 4),
    micro_batch=st.integers(1, 3),
)  # fmt: skip
def test_the_part_is_of_the_documents_that_were_drawn(
    seed: int, steps: int, dp: int, microbatches: int, micro_batch: int
) -> None:
    """Document by document, over all sequences of all steps, however they are dealt out."""
    fault = SequenceLengths.model_validate(DRAWN)
    batch = BatchSizes(steps, microbatches, micro_batch, S)
    many = microbatches * dp * micro_batch
    squares = [
        float(np.sum(pack_sequence(fault.documents, S, random_stream(seed, "sequence", None, step, number)) ** 2))
        for step in range(steps)
        for number in range(many)
    ]
    expected = sum(squares) / (steps * many * S**2)
    assert mean_attention_load([fault], seed, batch, dp) == pytest.approx(expected, rel=1e-12)
    assert mean_attention_load([fault.replacement_if_removed()], seed, batch, dp) == pytest.approx(expected, rel=1e-12)
    assert mean_attention_load([], seed, batch, dp) == 1


@settings(max_examples=10)
@given(attention=st.floats(0, 1))
def test_flops_go_in_a_straight_line_with_the_part(attention: float, tiny: Tiny) -> None:
    model = tiny().model
    core = model.layers * layer_flops(model, 1).core.total
    whole = model_flops_per_sequence(model)
    found = model_flops_per_sequence(model, attention=attention)
    assert found == pytest.approx(whole - (1 - attention) * core, rel=1e-12)
    assert hardware_flops_per_sequence(model, "none", attention=attention) == found


def test_every_view_says_the_same(tiny: Tiny) -> None:
    scenario = tiny(faults=[DRAWN])
    found = simulate(scenario)
    words = f"attention within documents: {found.facts.attention:.1%} of the FLOPs for whole sequences"
    assert words in str(found)
    assert f"MFU          {found.mfu:.1%}" in str(found)
    assert "the sum of squares of their lengths" in found.to_dict()["mfu_convention"]
    assert "documents" not in simulate(tiny()).to_dict()["mfu_convention"]
    with pytest.raises(NeedsFullRunError, match="faults"):
        quick_step_time(scenario)


def test_a_plan_that_other_faults_share_counts_each_ones_documents(tiny: Tiny) -> None:
    scenario = tiny(faults=[DRAWN])
    planned = plan_step(scenario)
    healthy: Result = simulate_scenario(scenario.without_faults(), planned=planned)
    assert healthy.facts == simulate_scenario(scenario.without_faults()).facts
    assert (
        simulate_scenario(scenario, planned=plan_step(scenario.without_faults())).facts
        == simulate_scenario(scenario).facts
    )


def test_the_bound_of_a_search_has_the_documents_attention() -> None:
    """Whole sequences' attention would make a bound above what is played, and a search that leaves the best out."""
    short = {"kind": "sequence_lengths", "documents": {"kind": "histogram", "values": [128]}}
    scenario = make_searchable_scenario(load("tiny_3d", {"model.sequence_length": 8192, "faults": [short]}))
    layout = Layout(8, 2, 2, 2, True, 1, "selective", "1f1b", 1, 1, ("tp", "cp", "dp", "pp"))
    step = simulate_scenario(layout.apply_to(scenario)).step_time
    assert 0.5 * step < StepTimeBounds(scenario, [layout]).bound_with_schedule(layout) <= step
