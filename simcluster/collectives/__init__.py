"""Collective algorithms as data.  To add one: a function ``(group) -> phases`` and a line in ALGORITHMS.

The function raises InputError for a group that the algorithm cannot serve.  Reading order: ``description`` (hops and
phases), ``group`` (what an algorithm knows of the cluster), ``ring``, ``hierarchical``, then any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simcluster.collectives import (
    all_to_all,
    chain,
    halving_doubling,
    hierarchical,
    nvls,
    nvls_tree,
    pat,
    ring,
    sharp,
    tree,
)
from simcluster.collectives.description import SWITCH, Hop, Phase
from simcluster.collectives.group import Group, Ring

Algorithm = Callable[[Group], Sequence[Phase]]

# ALGORITHMS[collective][algorithm]; the root of broadcast and reduce is position 0
ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    "all_reduce": {
        "ring": ring.all_reduce,
        "tree": tree.all_reduce,
        "halving_doubling": halving_doubling.all_reduce,
        "hierarchical": hierarchical.all_reduce,
        "nvls": nvls.all_reduce,
        "nvls_tree": nvls_tree.all_reduce,
        "sharp": sharp.all_reduce,
    },
    "reduce_scatter": {
        "ring": ring.reduce_scatter,
        "halving_doubling": halving_doubling.reduce_scatter,
        "hierarchical": hierarchical.reduce_scatter,
        "nvls": nvls.reduce_scatter,
        "pat": pat.reduce_scatter,
    },
    "all_gather": {
        "ring": ring.all_gather,
        "halving_doubling": halving_doubling.all_gather,
        "hierarchical": hierarchical.all_gather,
        "nvls": nvls.all_gather,
        "pat": pat.all_gather,
    },
    "broadcast": {"chain": chain.broadcast, "binomial": chain.binomial_broadcast},
    "reduce": {"chain": chain.reduce, "binomial": chain.binomial_reduce},
    "all_to_all": {
        "direct": all_to_all.direct,
        "pairwise": all_to_all.pairwise,
        "hierarchical": all_to_all.hierarchical,
    },
    "send_recv": {"direct": ring.send_recv},
    "send": {"direct": ring.send},
}

__all__ = ["ALGORITHMS", "SWITCH", "Algorithm", "Group", "Hop", "Phase", "Ring"]
