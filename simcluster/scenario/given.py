"""The way in from Python: whatever says a scenario, as a checked Scenario.

Every public function that takes a scenario takes it through ``scenario_of``; those that take one's results,
through ``simcluster.simulate.result_of``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from simcluster.documents.argument_types import checked
from simcluster.documents.diagnostics import refuse
from simcluster.documents.overrides import Changes, pairs_of
from simcluster.scenario.files import A_CLUSTER, load_cluster
from simcluster.scenario.scenario import Base, Scenario, keyword_pairs, load, load_text
from simcluster.topology import Cluster


class HasScenario(Protocol):
    """What was made of a scenario and still knows it: a result, a plan, a training run."""

    @property
    def scenario(self) -> Scenario: ...


ScenarioLike = str | Path | Mapping[str, Any] | Scenario | HasScenario
"""A shipped name, a path, a document, a Scenario, or what was made of one."""

ClusterLike = str | Path | Mapping[str, Any] | Cluster | Scenario
"""A shipped topology's name, a path, a topology's document, a Cluster, or the scenario that has one."""

A_SCENARIO = "a scenario (a shipped name, a path, a dict, a Scenario)"


@checked
def scenario(source: ScenarioLike, /, changes: Changes = (), *, allow_python: bool = False, **more: Any) -> Scenario:
    """The scenario of a shipped name, a path, a document or another scenario, with values changed.

    A document is what a file holds, as nested dicts: ``scenario({"cluster": "dgx_h100", "model": "llama3-8b",
    "training": {"global_batch": 64}})``; text of several lines is a file's text.  ``changes`` have dotted paths,
    ``{"parallel.tp": 4}``, and keywords two underscores for a dot, ``parallel__tp=4``; a section given whole takes the
    place of the one that is there.  With ``allow_python`` what the source says may name code of a schedule, as changes
    always may.  Raises InputError that says where, what and which rule.
    """
    pairs = [*pairs_of(changes), *keyword_pairs(more)]
    if isinstance(source, str) and "\n" in source:
        return load_text(source, pairs, allow_python=allow_python)
    if isinstance(source, str | Path | Mapping):
        return load(source, pairs, allow_python=allow_python)
    found = scenario_of(source, "scenario")
    return found.with_(pairs) if pairs else found


def scenario_of(given: ScenarioLike, caller: str, takes: str = A_SCENARIO) -> Scenario:
    """What ``caller`` was given, as a scenario; InputError that says what it ``takes`` for what is none."""
    if isinstance(given, str | Path | Mapping):
        return scenario(given)
    found = given if isinstance(given, Scenario) else getattr(given, "scenario", None)
    return found if isinstance(found, Scenario) else refuse(given, caller, takes)


def base_of(given: ScenarioLike, caller: str) -> Base:
    """The same, as what variants are made of: read again for each."""
    if isinstance(given, str | Path) and "\n" not in str(given):
        return Base(str(given))
    return Base.of(scenario_of(given, caller))


def cluster_of(given: ClusterLike, caller: str) -> Cluster:
    """What ``caller`` was given, as a cluster."""
    if isinstance(given, Cluster):
        return given
    if isinstance(given, str | Path | Mapping):
        return load_cluster(given)
    if isinstance(given, Scenario):
        return given.cluster.built
    return refuse(given, caller, f"{A_CLUSTER} or a Scenario")
