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
from simcluster.planning.works import WORKS
from simcluster.scenario.scenario import Scenario, load
from simcluster.scenario.scope import FastPath, Limit, step_fields
from simcluster.step.planned import FOLDING, fold_step, plan_step
from simcluster.studies.scopes import QUICK

each = pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)


def gone(scope: FastPath) -> list[str]:
    """What a scope lists and no scenario has (any more)."""
    sections = {path[:end] for path in step_fields() for end, letter in enumerate(path) if letter == "."}
    return sorted({*scope.free, *scope.limited} - {*step_fields(), *sections})


@each
def test_every_field_of_a_scenario_is_on_a_list(scope: FastPath) -> None:
    """A new field: say in each scope whether its short way is proved for it (free, limited), and test that it is."""
    assert scope.unlisted == ()
    assert gone(scope) == []


@each
def test_a_scope_lists_kinds_of_faults_that_there_are(scope: FastPath) -> None:
    """A kind on no list is an obstacle by its name (below): who adds one need not write it here."""
    assert not {*scope.faults} - {*FAULTS}


@each
def test_no_field_is_on_two_lists(scope: FastPath) -> None:
    for held in scope.limited:
        assert not [path for path in scope.free if path == held or path.startswith(f"{held}.")], held


def test_fields_are_those_of_all_sections() -> None:
    some = {"steps", "parallel.tp", "model.moe.top_k", "memory.offload.ahead", "software.shards", "cluster.topology"}
    assert some <= {*step_fields()}
    assert "faults" not in step_fields()


# --- what is on a list is compared with the reference -----------------------------------------------------------------


def test_every_field_that_a_scope_vouches_for_is_varied_in_a_compared_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that is added to EVERYWHERE: run ``python tests/drawn --vary``, which draws and compares documents."""
    found = [each.varied() for each in records()]
    assert {name: paths for name, paths in missing(found).items() if paths} == {}
    more = replace(QUICK, free=QUICK.free | {"fsdp.prefetch"})  # as before there are documents for a new field
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
    limited = {name: rule for name, rule in scope.limited.items() if name != path}
    return replace(scope, free=scope.free - {path}, limited=limited)


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
    assert blind.unlisted == (path,)
    assert blind.obstacle(plain()) == scope.obstacle(plain()) == ""
    changed = plain(change)
    assert scope.obstacle(changed) == ""
    assert blind.obstacle(changed) == (f"{scope.name} does not support {path}" if change else "")


@each
def test_a_kind_of_fault_on_no_list_is_an_obstacle_by_its_name(scope: FastPath) -> None:
    slow = plain({"faults": [{"kind": "slow_gpu", "rank": 0, "factor": 1.1}]})
    blind = replace(scope, faults={kind: rule for kind, rule in scope.faults.items() if kind != "slow_gpu"})
    assert blind.obstacle(slow) == f"{scope.name} does not support faults of kind slow_gpu"


def test_a_list_that_is_longer_than_the_scenario_says_so() -> None:
    more = replace(QUICK, free=QUICK.free | {"model.taste"}, limited={**QUICK.limited, "spice": Limit("none", (0,))})
    assert gone(more) == ["model.taste", "spice"]


def test_what_folding_does_not_know_is_played_rank_by_rank(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcluster.step.planned.FOLDING", without(FOLDING, "training.dropout"))
    replicas = {"gpus": 4, "parallel": {"dp": 4}, "cluster": {"topology": "flat", "gpus": 4}}
    both = (tiny(training={"dropout": more}, **replicas) for more in (False, True))
    known, unknown = (fold_step(each, plan_step(each)).folding.classes.rank_representatives for each in both)
    assert len(known) < len(unknown)


def test_the_sweep_of_stages_knows_every_kind_of_work() -> None:
    assert {*PROVED} == {*WORKS}
