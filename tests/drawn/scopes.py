"""The scopes within which scenarios are drawn, by the names of fast paths."""

from __future__ import annotations

from simcluster.scenario.scope import Scope
from simcluster.step.proved_for import FOLDING
from simcluster.studies.search.plan_scope import PLAN
from simcluster.studies.sweep.quick_scope import QUICK
from simcluster.studies.whatif.chance_scope import REPLICAS

SCOPES: dict[str, Scope] = {
    "folding": FOLDING, "plan": PLAN, "quick": QUICK, "replicas": REPLICAS,
}  # fmt: skip
