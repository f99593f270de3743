"""Reasons why faster links do not speed up communication: slower links in series, or NCCL's own rate.

A message moves at the rate of the narrowest link of its path. Every call of a run is compared on its links, before and
after: against another scenario's links, or those without this scenario's ``cluster.scale``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simcluster.base.units import format_bytes_per_second
from simcluster.documents.diagnostics import format_path
from simcluster.faults.capacities import apply_permanent_faults
from simcluster.results.contention import Call, list_link_calls
from simcluster.scenario.link_changes import RATES, find_link_changes
from simcluster.topology import Cluster
from simcluster.topology.links import node_label, resource_of
from simcluster.traffic.fairness import Usage
from simcluster.traffic.nccl.platforms import AS_MEASURED, PaceFactors
from simcluster.traffic.traffic import Traffic

if TYPE_CHECKING:
    from simcluster.results.played import Run
    from simcluster.scenario.scenario import Scenario


NCCL = "nccl"
"""The limit that is not a link: the rate at which NCCL feeds the links, its pace."""

_RESOURCE_LABELS = {"nvlink": " (NVLink)", "pcie": " (PCIe)", "network": "", NCCL: ""}
_MOSTLY = 0.5  # of the seconds of calls over raised links: a limit on a larger share is reported
_SAME = 1e-6
_NEXT_TO_NOTHING = 0.05  # of the raise


@dataclass(frozen=True, slots=True)
class UpgradeLimit:
    """Why raising link rates by ``factor`` speeds up communication by only ``gain`` (factors on its rate).

    ``links`` are the raised ones by their ends, with their resource (``raised``) and the B/s of one now; ``by`` is what
    limits, in series with them, with its ``resource`` (nvlink, pcie, network or nccl) and ``rate``; ``flows`` and
    ``links_flows`` are how many messages of a call share one of what limits and of the raised ones. ``axes`` are those
    of the communication, most seconds first; none if no call of the run uses the raised links. ``beside``: they were
    raised otherwise than by ``cluster.scale``, so its factors come on top.
    """

    factor: float
    gain: float
    links: str = ""
    raised: str = ""
    links_rate: float = 0.0
    links_flows: float = 1.0
    by: str = ""
    resource: str = ""
    rate: float = 0.0
    flows: float = 1.0
    axes: tuple[str, ...] = ()
    beside: bool = False

    def in_words(self) -> str:
        """Return one line: the gain, what limits it, at which rate, and what to raise."""
        if not self.axes:
            return "no gain: no communication of this job uses these links"
        rate, now = format_bytes_per_second(self.rate), format_bytes_per_second(self.links_rate)
        if self.flows != self.links_flows:
            rate, now = f"{rate} for {self.flows:g} messages at a time", f"{now} for {self.links_flows:g}"
        whose = " and ".join([part for part in (", ".join(self.axes[:-1]), self.axes[-1]) if part])
        return (
            f"{self._gain} for {whose}: bound by {self.by}{_RESOURCE_LABELS[self.resource]} at {rate}, in series with "
            f"{self.links}{_RESOURCE_LABELS[self.raised]} (now {now}); {self.remedy}"
        )

    @property
    def _gain(self) -> str:
        part = (self.gain - 1) / (self.factor - 1)
        if part < _NEXT_TO_NOTHING:
            return "no gain" if part < _SAME else "almost no gain"
        return f"x{self.factor:g} gives x{self.gain:.4g}"

    @property
    def remedy(self) -> str:
        """Change that would give the full gain: a factor to set, or no NCCL rate limit."""
        if self.resource == NCCL and self.beside:
            return "that pace was measured on the platform; with --collectives.nccl none only the links limit"
        other = "network" if self.resource == NCCL else self.resource
        apart = "nvlink" in (self.raised, other)
        name = other if self.beside or other == "nvlink" else "between_machines"
        return f"raise both: --cluster.scale.{name} {self.factor:g}" + (" as well" if self.beside or apart else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the sentence for JSON."""
        return {**asdict(self), "axes": list(self.axes), "in_words": self.in_words()}


@dataclass(frozen=True, slots=True)
class LinkUpgrade:
    """Link capacities (B/s) and factors on NCCL's rate before and after an upgrade, by ``cluster.scale`` or not."""

    cluster: Cluster
    before: npt.NDArray[np.float64]
    after: npt.NDArray[np.float64]
    pace_before: PaceFactors = AS_MEASURED
    pace_after: PaceFactors = AS_MEASURED
    by_scale: bool = True


def find_limit(calls: Iterable[Call], raised: LinkUpgrade) -> UpgradeLimit | None:
    """Return what limits most of the communication over raised links; None if most of it gains fully.

    ``calls`` are those of the run after. None as well where no link was raised.
    """
    up = raised.after > raised.before * (1 + _SAME)
    if not up.any():
        return None
    looks = [
        (call.seconds, look) for call in calls for traffic in call.traffics
        if (look := _find_gain(call.axis, traffic, raised, up))
    ]  # fmt: skip
    seconds = _total_seconds(looks)
    if not seconds:
        return UpgradeLimit(float((raised.after[up] / raised.before[up]).max()), 1.0)
    bound = [each for each in looks if each[1].by]
    if _total_seconds(bound) <= _MOSTLY * seconds:
        return None
    by, axes, equal = defaultdict(list), defaultdict(list), defaultdict(list)
    for each in bound:
        by[each[1].by, each[1].resource].append(each)
    held = max(by.values(), key=_total_seconds)
    for each in held:
        axes[each[1].axes].append(each)
        equal[each[1]].append(each)  # a folded run has one call for many, whose seconds add up
    order = sorted(axes, key=lambda own: (-_total_seconds(axes[own]), own))
    most = max(equal, key=lambda look: (float(f"{_total_seconds(equal[look]):.9g}"), look.links_flows, look.flows))
    gain = math.fsum(took * look.gain for took, look in looks) / seconds
    return replace(most, gain=gain, axes=tuple(chain.from_iterable(order)))


def _total_seconds(looks: Iterable[tuple[float, UpgradeLimit]]) -> float:
    return math.fsum(took for took, _ in looks)


def _find_gain(axis: str, traffic: Traffic, raised: LinkUpgrade, up: npt.NDArray[np.bool_]) -> UpgradeLimit | None:
    mine = [(link, flows) for link, flows in traffic.usage if up[link]]
    if not mine:
        return None
    others = [(link, flows) for link, flows in traffic.usage if not up[link]]
    now, flows, link = _find_narrowest(mine, raised.after)
    factor = now / _find_narrowest(mine, raised.before).rate
    beside, sharing, other = _find_narrowest(others, raised.after)
    bound_before = traffic.bound / _pace_ratio(raised, traffic.usage)
    was = min(_find_narrowest(traffic.usage, raised.before).rate, bound_before)
    found = UpgradeLimit(factor, min(now, beside, traffic.bound) / was, axes=(axis,), beside=not raised.by_scale)
    if found.gain >= factor * (1 - _SAME):
        return found
    ends, resource = _link_ends(raised.cluster, link), _resource_of_link(raised.cluster, link)
    found = replace(found, links=ends, raised=resource, links_rate=float(raised.after[link]), links_flows=flows)
    if traffic.bound < beside:  # a rate of each message
        return replace(found, by="NCCL's pace", resource=NCCL, rate=traffic.bound, flows=flows)
    ends, resource = _link_ends(raised.cluster, other), _resource_of_link(raised.cluster, other)
    return replace(found, by=ends, resource=resource, rate=float(raised.after[other]), flows=sharing)


class _Narrowest(NamedTuple):
    """Narrowest link of a path: B/s per flow, number of flows, and the link's number (-1: no link, no limit)."""

    rate: float
    flows: float
    link: int


def _find_narrowest(usage: Usage | Sequence[tuple[int, float]], capacity: npt.NDArray[np.float64]) -> _Narrowest:
    rates = (_Narrowest(float(capacity[link]) / flows, flows, link) for link, flows in usage)
    return min(rates, default=_Narrowest(math.inf, 1.0, -1))


def _pace_ratio(raised: LinkUpgrade, usage: Usage) -> float:
    if raised.pace_before == raised.pace_after:
        return 1.0
    kinds = raised.cluster.graph.nodes
    ends = (node for link, _ in usage for node in raised.cluster.links[link])
    between = any(kinds[node]["kind"] in ("nic", "switch") for node in ends)
    after, before = raised.pace_after, raised.pace_before
    return after.between / before.between if between else after.in_node / before.in_node


def _resource_of_link(cluster: Cluster, link: int) -> str:
    a, b = cluster.links[link]
    return resource_of(str(cluster.graph[a][b]["medium"]))


def _link_ends(cluster: Cluster, link: int) -> str:
    a, b = (node_label(cluster.graph, node) for node in cluster.links[link])
    order = ("gpu", "nvswitch", "pcie", "host", "nic")
    places = [order.index(name) if name in order else len(order) for name in (a, b)]
    return f"{a} - {b}" if places[0] <= places[1] else f"{b} - {a}"


# --- scenarios and their runs -----------------------------------------------------------------------------------------


LINKS = ("nvlink", "network", "pcie", "between_machines")
"""Factors of ``cluster.scale`` that are on links."""


def find_limit_between(before: Scenario, after: Scenario, run: Run) -> UpgradeLimit | None:
    """Return what limits the speedup of ``run``, whose scenario ``after`` has faster links than ``before``.

    None if nothing does, if no link is faster, and where the two clusters do not have the same links.
    """
    was, now = (apply_permanent_faults(each.faults, each.cluster.built, each.seed) for each in (before, after))
    if was.capacity.shape != now.capacity.shape or not (now.capacity > was.capacity).any() or was.links != now.links:
        return None
    if run.hop_by_hop:  # calls have no rates of their own
        return None
    made = list_link_calls(run.folding.communicators, run.called, run.spans, run.weights)
    pace = before.cluster.scale.pace, after.cluster.scale.pace
    by_scale = before.cluster.topology == after.cluster.topology
    return find_limit(made, LinkUpgrade(now, was.capacity, now.capacity, *pace, by_scale))


def explain_scale_limit(scenario: Scenario, run: Run) -> str:
    """Return a line on what limits a run whose links ``cluster.scale`` raises; "" if nothing does."""
    scale = scenario.cluster.scale
    raised = {name: factor for name in LINKS if (factor := getattr(scale, name)) > 1}
    if not raised:
        return ""
    plain = scale.model_copy(update=dict.fromkeys(raised, 1.0))
    before = scenario.model_copy(update={"cluster": scenario.cluster.with_scale(plain)})
    return _explain_limit(
        before, scenario, run, [f"cluster.scale.{name} {factor:g}" for name, factor in raised.items()]
    )


def explain_topology_limit(scenario: Scenario, run: Run) -> str:
    """Return a line on what limits a run whose scenario raises link rates of its topology; "" if nothing does."""
    origin = scenario.origin
    changed = [path for path in find_link_changes(origin.written_document, RATES) if path[1] != "topology"]
    return (
        _explain_limit(origin.without_values(changed), scenario, run, [*map(format_path, changed)]) if changed else ""
    )


def _explain_limit(before: Scenario, after: Scenario, run: Run, changed: Sequence[str]) -> str:
    what = ", ".join(changed)
    if np.array_equal(before.cluster.built.capacity, after.cluster.built.capacity):
        return f"{what}: no gain: the cluster has no such links"
    held = find_limit_between(before, after, run)
    return f"{what}: {held.in_words()}" if held else ""
