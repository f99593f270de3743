"""The scopes within which scenarios are drawn, by the names of fast paths."""

from __future__ import annotations

from simcluster.scenario.fast_path import FastPath
from simcluster.step.step_plan import FOLDING
from simcluster.studies.fast_path_scopes import PLAN, QUICK, REPLICAS

SCOPES: dict[str, FastPath] = {
    "folding": FOLDING, "plan": PLAN, "quick": QUICK, "replicas": REPLICAS,
}  # fmt: skip
