"""No field of a scenario is accepted in silence: each change has an effect, is rejected, or is noted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fields.bases import BASES
from fields.software import NEEDS
from fields.walk import AS_IT_IS, REVIEWED, Change, alike, changed, fields, lacks, outcomes, unexplained, values

import simcluster
from simcluster.base.errors import InputError
from simcluster.scenario.field_effects import CONDITIONS, describe_idle_fields
from simcluster.scenario.scenario import BaseScenario, ScenarioVariant, from_document
from simcluster.studies.sweep.quick_rows import make_variant_scenario as changed_quickly

BELOW: dict[str, tuple[str, ...]] = {
    "plain": (),
    "3d": (),
    "moe": ("model.moe", "model.clamped_activation", "parallel.ep", "parallel.etp", "parallel.expert_dispatch",
            "overlap.experts", "training.recompute", "training.recompute_modules"),
    "mla": ("model.mla", "training.recompute_modules"),
    "encoder": ("model.encoder",),
    "cp": ("software", "parallel.cp", "parallel.cp_comm", "parallel.cp_inner", "parallel.cp_shares",
           "parallel.cp_states", "training.recompute", "training.recompute_every"),
    "fsdp": ("fsdp", "parallel.zero", "overlap.bucket_size", "overlap.param_gather", "software.shards",
             "software.piece", "software.checkpoint"),
    "fp8": ("software.experts", "software.probabilities", "software.rope", "software.launch", "software.sync"),
    "zero-bubble": ("pipeline", "overlap.pipeline"),
    "offload": ("memory",),
    "muon": ("training.muon", "training.optimizer"),
    "steps": ("parallel.zero", "collectives.detail", "overlap.interference"),
    "packed": ("data", "memory.activation_input"),
    "checkpoint": ("checkpoint",),
    "outer": ("training.outer",),
    "window": ("model.attention_window", "training.attention", "training.dropout", "software.selective"),
}  # fmt: skip
"""Sections whose fields are tried in each base: where they matter (`python tests/fields` tries all in all)."""


_LEFT = ("software", "model.moe", "model.mla", "model.encoder", "data")
BUT = {name: () if below else _LEFT for name, below in BELOW.items()}
BUT["plain"] = (*BUT["plain"], "model", "training", "checkpoint")
"""Sections left to the other bases, since the suite has seconds for this."""


@pytest.fixture(scope="module")
def changes() -> list[Change]:
    return [each for name, below in BELOW.items() for each in outcomes(name, BASES[name], below=below, but=BUT[name])]


def test_no_change_of_one_field_is_silent(changes: list[Change]) -> None:
    assert [(each.base, each.path, each.value) for each in unexplained(changes)] == []
    assert len(changes) > 900
    assert {each.path for each in changes} == {path for path in fields() if values(path)}
    assert len(REVIEWED) < 30


def test_two_values_of_a_literal_differ_somewhere(changes: list[Change]) -> None:
    """A new value that is taken for another is found here; those that need more than these bases are listed."""
    assert alike(changes) == set()


def test_every_field_of_software_has_an_effect_where_a_job_has_a_use_for_it(changes: list[Change]) -> None:
    """And none elsewhere: what each needs is true."""
    effective = [each for each in changes if each.outcome == "effective" and each.said != AS_IT_IS]
    assert {path for path in fields() if path.startswith("software.")} - {each.path for each in effective} == set()
    assert [(each.base, each.path, each.value) for each in effective if lacks(each.base, each.path)] == []
    assert {*NEEDS} <= {*fields()}


def test_a_note_is_true(changes: list[Change]) -> None:
    """What is said to be without effect changes no number."""
    named = r"without effect: [^;]*\b{}\b[^;]*, since "
    noted = [each for each in changes if re.search(named.format(re.escape(each.path)), each.said)]
    assert len(noted) > 60
    assert [(each.base, each.path, each.value) for each in noted if each.outcome == "effective"] == []


def test_conditions_are_about_fields_that_there_are() -> None:
    sections = {path.rpartition(".")[0] for path in fields()} | {"gpus", "faults", "run", "cluster.scale"}
    for condition in CONDITIONS:
        assert {path for path in condition.fields if path not in fields() and path not in sections} == set()
        assert bool(condition.purpose) == bool(condition.remedy)


REJECTED: dict[str, tuple[str, Any, str]] = {
    "dispatch": ("parallel.expert_dispatch.kind", "deepep", "only to experts .model.moe., but the model is dense"),
    "overlap": ("overlap.experts", True, "applies only to experts .model.moe., but the model is dense; set model.moe"),
    "bucket": ("memory.offload.bucket", 1000, "but memory.offload.optimizer is none; set optimizer to stream"),
    "every": ("training.recompute_every", 4, "but training.recompute is none; set recompute to selective or full"),
    "ahead": ("memory.offload.ahead", 2, "but memory.offload.activations is 0"),
    "unit": ("fsdp.unit_layers", 2, "applies only to FSDP .ZeRO 3., but parallel.zero is 1; set zero to 3"),
    "norms": ("training.recompute_modules", ["layernorm"], "layernorm is a part of model.moe or model.mla"),
    "muon": ("training.muon.iterations", 3, "applies only to Muon, but training.optimizer is adam"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_field_of_an_absent_feature_is_rejected_with_its_line(case: str) -> None:
    path, value, told = REJECTED[case]
    with pytest.raises(InputError, match=f"(?s){path.replace('.', '[.]')}.*{told}") as found:
        simcluster.scenario("tiny_3d", {path: value})
    assert "or remove" in str(found.value) or "remove layernorm" in str(found.value)
    with pytest.raises(InputError, match=told):
        from_document(changed(BASES["3d"], path, value))


def test_what_a_sweep_takes_away_is_noted_in_its_row() -> None:
    document = changed(changed(BASES["3d"], "training.recompute", "full"), "training.recompute_every", 2)
    base = from_document(document)
    varied = base.with_({"training.recompute": "none"})
    assert [*describe_idle_fields(varied)] == [
        "without effect: training.recompute_every, since training.recompute is none"
    ]
    assert from_document(varied.document()) == varied.with_({"training.recompute_every": 1})
    with pytest.raises(InputError, match=r"training\.recompute is none"):
        varied.with_({"training.recompute_every": 4})


def test_a_degree_of_one_is_noted_in_every_answer() -> None:
    """As in simcluster compare tiny_3d --vary parallel.pp=1,2."""
    given = {"pipeline.p2p": "rendezvous", "parallel": {"tp": 2, "dp": 2, "pp": 1}, "gpus": 4}
    told = "without effect: pipeline.p2p, since parallel.pp is 1"
    result = simcluster.simulate(simcluster.scenario("tiny_3d", given))
    assert told in [note.text for note in result.notes()]
    assert told in [note["text"] for note in result.to_dict()["notes"]]
    assert f"note: {told}" in str(result)
    check = simcluster.check("tiny_3d", given)
    assert f"note: {told}" in str(check)
    assert told in [note["text"] for note in check.to_dict()["notes"]]


def test_a_quick_row_rejects_what_a_full_one_does() -> None:
    for change in ("training.recompute_every", 4), ("overlap.experts", True), ("parallel.etp", 2):
        variant = ScenarioVariant(BaseScenario("tiny_3d"), (change,))
        with pytest.raises(InputError) as full:
            variant.scenario()
        with pytest.raises(InputError) as quick:
            changed_quickly(variant)
        assert str(full.value) == str(quick.value)
