"""Python entry points that accept any form of a scenario or cluster and return a validated object.

Every public function that takes a scenario converts it by ``scenario_of``; those that take its results, by
``simcluster.step.simulate.to_result``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from simcluster.documents.argument_types import checked
from simcluster.documents.diagnostics import reject_argument
from simcluster.documents.overrides import Changes, normalize_changes
from simcluster.scenario.files import A_CLUSTER, load_cluster
from simcluster.scenario.scenario import Base, Scenario, keyword_pairs, load, load_text
from simcluster.topology import Cluster


class HasScenario(Protocol):
    """An object made from a scenario that keeps it: a result, a plan, a training run."""

    @property
    def scenario(self) -> Scenario:
        """Return the scenario that the object was made from."""


ScenarioLike = str | Path | Mapping[str, Any] | Scenario | HasScenario
"""A built-in name, a path, a document, a Scenario, or an object made from one."""

ClusterLike = str | Path | Mapping[str, Any] | Cluster | Scenario
"""A built-in topology's name, a path, a topology document, a Cluster, or a scenario."""

A_SCENARIO = "a scenario (a built-in name, a path, a dict, a Scenario)"


@checked
def scenario(source: ScenarioLike, /, changes: Changes = (), *, allow_python: bool = False, **more: Any) -> Scenario:
    """Return the scenario of a built-in name, a path, a document or another scenario, with changes.

    A document is what a file holds, as nested dicts: ``scenario({"cluster": "dgx_h100", "model": "llama3-8b",
    "training": {"global_batch": 64}})``; text of several lines is a file's text. ``changes`` have dotted paths,
    ``{"parallel.tp": 4}``, and keywords two underscores for a dot, ``parallel__tp=4``; a whole section replaces the
    existing one. With ``allow_python`` the source may name Python code of a schedule, as changes always may. Raises
    InputError that states where, what and which rule.
    """
    pairs = [*normalize_changes(changes), *keyword_pairs(more)]
    if isinstance(source, str) and "\n" in source:
        return load_text(source, pairs, allow_python=allow_python)
    if isinstance(source, str | Path | Mapping):
        return load(source, pairs, allow_python=allow_python)
    found = scenario_of(source, "scenario")
    return found.with_(pairs) if pairs else found


def scenario_of(given: ScenarioLike, caller: str, takes: str = A_SCENARIO) -> Scenario:
    """Return the argument of ``caller`` as a scenario; raise InputError with what it ``takes`` otherwise."""
    if isinstance(given, str | Path | Mapping):
        return scenario(given)
    found = given if isinstance(given, Scenario) else getattr(given, "scenario", None)
    return found if isinstance(found, Scenario) else reject_argument(given, caller, takes)


def base_of(given: ScenarioLike, caller: str) -> Base:
    """Return the argument of ``caller`` as a base of variants, which is read again for each variant."""
    if isinstance(given, str | Path) and "\n" not in str(given):
        return Base(str(given))
    return Base.of(scenario_of(given, caller))


def cluster_of(given: ClusterLike, caller: str) -> Cluster:
    """Return the argument of ``caller`` as a cluster; raise InputError for other types."""
    if isinstance(given, Cluster):
        return given
    if isinstance(given, str | Path | Mapping):
        return load_cluster(given)
    if isinstance(given, Scenario):
        return given.cluster.built
    return reject_argument(given, caller, f"{A_CLUSTER} or a Scenario")
