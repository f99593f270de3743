"""Allow-lists of the short ways: every field and every kind of fault is on one, and what is on none is not played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from conftest import Tiny
from drawn.scopes import SCOPES
from drawn.varied import Record, missing, proved, records

from simcluster.engine.stage_sweep import PROVED
from simcluster.faults import FAULTS
from simcluster.planning.work_kinds import WORKS
from simcluster.scenario.fast_path import STEP_FIELDS, FastPath, FieldLimit
from simcluster.scenario.scenario import Scenario, load
from simcluster.step.step_plan import FOLDING, fold_step, plan_step
from simcluster.studies.fast_path_scopes import QUICK

each = pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)


def gone(scope: FastPath) -> list[str]:
    """What a scope lists and no scenario has (any more)."""
    sections = {path[:end] for path in STEP_FIELDS for end, letter in enumerate(path) if letter == "."}
    return sorted({*scope.unrestricted, *scope.field_limits} - {*STEP_FIELDS, *sections})


@each
def test_every_field_of_a_scenario_is_on_a_list(scope: FastPath) -> None:
    """A new field: say in each scope whether its short way is proved for it (free, limited), and test that it is."""
    assert scope.fields_without_rule == ()
    assert gone(scope) == []


@each
def test_a_scope_lists_kinds_of_faults_that_there_are(scope: FastPath) -> None:
    """A kind on no list is an obstacle by its name (below): who adds one need not write it here."""
    assert not {*scope.fault_rules} - {*FAULTS}


@each
def test_no_field_is_on_two_lists(scope: FastPath) -> None:
    for held in scope.field_limits:
        assert not [path for path in scope.unrestricted if path == held or path.startswith(f"{held}.")], held


def test_fields_are_those_of_all_sections() -> None:
    some = {"steps", "parallel.tp", "model.moe.top_k", "memory.offload.ahead", "software.shards", "cluster.topology"}
    assert some <= {*STEP_FIELDS}
    assert "faults" not in STEP_FIELDS


# --- what is on a list is compared with the reference -----------------------------------------------------------------


def test_every_field_that_a_scope_vouches_for_is_varied_in_a_compared_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that is added to EVERYWHERE: run ``python tests/drawn --vary``, which draws and compares documents."""
    found = [each.varied() for each in records()]
    assert {name: paths for name, paths in missing(found).items() if paths} == {}
    more = replace(
        QUICK, unrestricted=QUICK.unrestricted | {"fsdp.prefetch"}
    )  # as before there are documents for a new field
    monkeypatch.setitem(SCOPES, "quick", more)
    assert missing(found)["quick"] == {"fsdp.prefetch"}


@pytest.mark.parametrize("record", records())
def test_a_document_of_a_scope_gives_what_the_reference_gives(record: Record) -> None:
    assert {*proved(record.sections).scopes} >= {*record.scopes}


# --- what is on no list -----------------------------------------------------------------------------------------------


def plain(change: Mapping[str, Any] | None = None) -> Scenario:
    """A scenario that every short way plays."""
    return load("gpt3_175b_64xa100", {"training.dropout": False, "overlap.tensor": False, **(change or {})})


def without(scope: FastPath, path: str) -> FastPath:
    """The scope as it is before somebody has listed a new field."""
    limited = {name: rule for name, rule in scope.field_limits.items() if name != path}
    return replace(scope, unrestricted=scope.unrestricted - {path}, field_limits=limited)


UNKNOWN = [
    ("training.dropout", {"training.dropout": True}),
    ("cluster.scale.network", {"cluster.scale.network": 0.5}),
    ("model.mla.v_head_dim", {}),  # in a section that is left out: asked for by nobody
    ("overlap.tensor", {"overlap.tensor": True}),
]


@each
@pytest.mark.parametrize(("path", "change"), UNKNOWN)
def test_a_field_on_no_list_is_an_obstacle_by_its_name(scope: FastPath, path: str, change: Mapping[str, Any]) -> None:
    blind = without(scope, path)
    assert blind.fields_without_rule == (path,)
    assert blind.find_obstacle(plain()) == scope.find_obstacle(plain()) == ""
    changed = plain(change)
    assert scope.find_obstacle(changed) == ""
    assert blind.find_obstacle(changed) == (f"{scope.name} does not support {path}" if change else "")


@each
def test_a_kind_of_fault_on_no_list_is_an_obstacle_by_its_name(scope: FastPath) -> None:
    slow = plain({"faults": [{"kind": "slow_gpu", "rank": 0, "factor": 1.1}]})
    blind = replace(scope, fault_rules={kind: rule for kind, rule in scope.fault_rules.items() if kind != "slow_gpu"})
    assert blind.find_obstacle(slow) == f"{scope.name} does not support faults of kind slow_gpu"


def test_a_list_that_is_longer_than_the_scenario_says_so() -> None:
    more = replace(
        QUICK,
        unrestricted=QUICK.unrestricted | {"model.taste"},
        field_limits={**QUICK.field_limits, "spice": FieldLimit("none", (0,))},
    )
    assert gone(more) == ["model.taste", "spice"]


def test_what_folding_does_not_know_is_played_rank_by_rank(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcluster.step.step_plan.FOLDING", without(FOLDING, "training.dropout"))
    replicas = {"gpus": 4, "parallel": {"dp": 4}, "cluster": {"topology": "flat", "gpus": 4}}
    both = (tiny(training={"dropout": more}, **replicas) for more in (False, True))
    known, unknown = (fold_step(each, plan_step(each)).folding.classes.rank_representatives for each in both)
    assert len(known) < len(unknown)


def test_the_sweep_of_stages_knows_every_kind_of_work() -> None:
    assert {*PROVED} == {*WORKS}
