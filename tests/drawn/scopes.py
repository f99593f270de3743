"""The scopes within which scenarios are drawn, by the names of fast paths."""

from __future__ import annotations

from simcluster.scenario.scope import FastPath
from simcluster.step.planned import FOLDING
from simcluster.studies.scopes import PLAN, QUICK, REPLICAS

SCOPES: dict[str, FastPath] = {
    "folding": FOLDING, "plan": PLAN, "quick": QUICK, "replicas": REPLICAS,
}  # fmt: skip
