"""Conversion of function arguments: any way to specify a scenario or cluster is converted to an object.

Every public function that takes a scenario converts it by ``to_scenario``; those that take its results, by
``simcluster.step.simulate.to_result``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from simcluster.documents.argument_types import check_arguments
from simcluster.documents.diagnostics import reject_argument
from simcluster.documents.overrides import Changes, list_overrides
from simcluster.scenario.document_resolution import A_CLUSTER, load_cluster
from simcluster.scenario.scenario import BaseScenario, Scenario, keywords_to_changes, load, load_text
from simcluster.topology import Cluster


class HasScenario(Protocol):
    """Interface of objects with a scenario, such as a result, a plan or a training run."""

    @property
    def scenario(self) -> Scenario:
        """The scenario from which the object was made."""


ScenarioLike = str | Path | Mapping[str, Any] | Scenario | HasScenario
"""A built-in name, a path, a document, a Scenario, or an object made from one."""

ClusterLike = str | Path | Mapping[str, Any] | Cluster | Scenario
"""A built-in topology's name, a path, a topology document, a Cluster, or a scenario."""

A_SCENARIO = "a scenario (a built-in name, a path, a dict, a Scenario)"


@check_arguments
def scenario(source: ScenarioLike, /, changes: Changes = (), *, allow_python: bool = False, **more: Any) -> Scenario:
    """Return a Scenario from a built-in name, a path, a document or another scenario, with changes applied.

    A document is what a file holds, as nested dicts: ``scenario({"cluster": "dgx_h100", "model": "llama3-8b",
    "training": {"global_batch": 64}})``; text of several lines is a file's text. ``changes`` have dotted paths,
    ``{"parallel.tp": 4}``, and keywords two underscores for a dot, ``parallel__tp=4``; a whole section replaces the
    existing one. With ``allow_python`` the source may name Python code of a schedule, as changes always may. Raises
    InputError that states where, what and which rule.
    """
    pairs = [*list_overrides(changes), *keywords_to_changes(more)]
    if isinstance(source, str) and "\n" in source:
        return load_text(source, pairs, allow_python=allow_python)
    if isinstance(source, str | Path | Mapping):
        return load(source, pairs, allow_python=allow_python)
    found = to_scenario(source, "scenario")
    return found.with_(pairs) if pairs else found


def to_scenario(given: ScenarioLike, caller: str, expected: str = A_SCENARIO) -> Scenario:
    """Convert an argument of function ``caller`` to a Scenario; raise InputError if the type is unsupported."""
    if isinstance(given, str | Path | Mapping):
        return scenario(given)
    found = given if isinstance(given, Scenario) else getattr(given, "scenario", None)
    return found if isinstance(found, Scenario) else reject_argument(given, caller, expected)


def to_base_scenario(given: ScenarioLike, caller: str) -> BaseScenario:
    """Convert an argument of function ``caller`` to a BaseScenario, from which variants are made."""
    if isinstance(given, str | Path) and "\n" not in str(given):
        return BaseScenario(str(given))
    return BaseScenario.from_scenario(to_scenario(given, caller))


def to_cluster(given: ClusterLike, caller: str) -> Cluster:
    """Convert an argument of function ``caller`` to a Cluster; raise InputError if the type is unsupported."""
    if isinstance(given, Cluster):
        return given
    if isinstance(given, str | Path | Mapping):
        return load_cluster(given)
    if isinstance(given, Scenario):
        return given.cluster.built
    return reject_argument(given, caller, f"{A_CLUSTER} or a Scenario")
