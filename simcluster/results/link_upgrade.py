"""Reasons why faster links do not speed up communication: slower links in series, or NCCL's own rate limit.

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

from simcluster.base.arrays import Bools, Floats
from simcluster.base.units import format_bytes_per_second
from simcluster.documents.diagnostics import format_path
from simcluster.faults.link_capacities import apply_permanent_faults
from simcluster.results.contention import EqualCalls, list_link_calls
from simcluster.scenario.link_changes import RATES, find_changed_link_settings
from simcluster.topology import Cluster
from simcluster.topology.links import node_label, resource_of_medium
from simcluster.traffic.fairness import Usage
from simcluster.traffic.nccl.platforms import AS_MEASURED, NcclTimingFactors
from simcluster.traffic.traffic import Traffic

if TYPE_CHECKING:
    from simcluster.results.simulated_run import Run
    from simcluster.scenario.scenario import Scenario


NCCL = "nccl"
"""The limit that is not a link: the rate at which NCCL feeds the links, its pace."""

_RESOURCE_LABELS = {"nvlink": " (NVLink)", "pcie": " (PCIe)", "network": "", NCCL: ""}
_MOSTLY = 0.5  # of the seconds of calls over raised links: a limit on a larger share is reported
_SAME = 1e-6
_NEXT_TO_NOTHING = 0.05  # of the raise


@dataclass(frozen=True, slots=True)
class UpgradeLimit:
    """What limits communication after links became faster: a slower link in series, or NCCL's own rate limit.

    ``links`` names the ends of a raised link, ``raised`` its resource, and ``links_rate`` its B/s now. ``by`` names
    what limits, in series with that link, with its ``resource`` (nvlink, pcie, network or nccl) and ``rate``; ``flows``
    and ``links_flows`` are how many messages of a call share ``by`` and ``links``. ``axes`` are the parallel axes of
    the communication, most seconds first; empty if no call of the run uses the raised links. With ``beside`` the links
    were not raised by ``cluster.scale``, so its factors come on top.
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

    def describe(self) -> str:
        """Return one line that states the speedup, what limits it, and what to raise."""
        if not self.axes:
            return "no gain: this job does not communicate over these links"
        rate, now = format_bytes_per_second(self.rate), format_bytes_per_second(self.links_rate)
        if self.flows != self.links_flows:
            rate, now = f"{rate} shared by {self.flows:g} messages", f"{now} shared by {self.links_flows:g}"
        whose = " and ".join([part for part in (", ".join(self.axes[:-1]), self.axes[-1]) if part])
        return (
            f"{self._gain_text} for {whose}: limited by {self.by}{_RESOURCE_LABELS[self.resource]} at {rate}, in "
            f"series with {self.links}{_RESOURCE_LABELS[self.raised]} (now {now}); {self.remedy}"
        )

    @property
    def _gain_text(self) -> str:
        part = (self.gain - 1) / (self.factor - 1)
        if part < _NEXT_TO_NOTHING:
            return "no gain" if part < _SAME else "almost no gain"
        return f"x{self.factor:g} link rate gives x{self.gain:.4g}"

    @property
    def remedy(self) -> str:
        """The change that would give the full speedup: a setting, or NCCL without its rate limit."""
        if self.resource == NCCL and self.beside:
            return "this rate was measured on the platform; with --collectives.nccl none, only the links limit"
        other = "network" if self.resource == NCCL else self.resource
        apart = "nvlink" in (self.raised, other)
        name = other if self.beside or other == "nvlink" else "between_machines"
        return f"raise both: --cluster.scale.{name} {self.factor:g}" + (" as well" if self.beside or apart else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON, with a description under ``in_words``."""
        return {**asdict(self), "axes": list(self.axes), "in_words": self.describe()}


@dataclass(frozen=True, slots=True)
class LinkUpgrade:
    """Link capacities (B/s) and NCCL rate factors before and after an upgrade to faster links."""

    cluster: Cluster
    before: Floats
    after: Floats
    pace_before: NcclTimingFactors = AS_MEASURED
    pace_after: NcclTimingFactors = AS_MEASURED
    by_scale: bool = True


def find_upgrade_limit(calls: Iterable[EqualCalls], upgrade: LinkUpgrade) -> UpgradeLimit | None:
    """Return what limits most of the communication over upgraded links; None if most of it reaches the full speedup.

    ``calls`` are those of the run after. None as well where no link was raised.
    """
    up = upgrade.after > upgrade.before * (1 + _SAME)
    if not up.any():
        return None
    looks = [
        (call.seconds, look) for call in calls for traffic in call.traffics
        if (look := _find_call_limit(call.axis, traffic, upgrade, up))
    ]  # fmt: skip
    seconds = _total_seconds(looks)
    if not seconds:
        return UpgradeLimit(float((upgrade.after[up] / upgrade.before[up]).max()), 1.0)
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


def _total_seconds(limits: Iterable[tuple[float, UpgradeLimit]]) -> float:
    return math.fsum(took for took, _ in limits)


def _find_call_limit(axis: str, traffic: Traffic, upgrade: LinkUpgrade, is_faster: Bools) -> UpgradeLimit | None:
    mine = [(link, flows) for link, flows in traffic.usage if is_faster[link]]
    if not mine:
        return None
    others = [(link, flows) for link, flows in traffic.usage if not is_faster[link]]
    now, flows, link = _find_narrowest_link(mine, upgrade.after)
    factor = now / _find_narrowest_link(mine, upgrade.before).rate
    beside, sharing, other = _find_narrowest_link(others, upgrade.after)
    bound_before = traffic.bound / _nccl_rate_ratio(upgrade, traffic.usage)
    was = min(_find_narrowest_link(traffic.usage, upgrade.before).rate, bound_before)
    found = UpgradeLimit(factor, min(now, beside, traffic.bound) / was, axes=(axis,), beside=not upgrade.by_scale)
    if found.gain >= factor * (1 - _SAME):
        return found
    ends, resource = _describe_link(upgrade.cluster, link)
    found = replace(found, links=ends, raised=resource, links_rate=float(upgrade.after[link]), links_flows=flows)
    if traffic.bound < beside:  # a rate of each message
        return replace(found, by="NCCL's pace", resource=NCCL, rate=traffic.bound, flows=flows)
    ends, resource = _describe_link(upgrade.cluster, other)
    return replace(found, by=ends, resource=resource, rate=float(upgrade.after[other]), flows=sharing)


class _NarrowestLink(NamedTuple):
    """Narrowest link of a path: bytes/s per flow, number of flows, and link number (-1: the path has no link)."""

    rate: float
    flows: float
    link: int


def _find_narrowest_link(usage: Usage | Sequence[tuple[int, float]], capacity: Floats) -> _NarrowestLink:
    rates = (_NarrowestLink(float(capacity[link]) / flows, flows, link) for link, flows in usage)
    return min(rates, default=_NarrowestLink(math.inf, 1.0, -1))


def _nccl_rate_ratio(upgrade: LinkUpgrade, usage: Usage) -> float:
    if upgrade.pace_before == upgrade.pace_after:
        return 1.0
    kinds = upgrade.cluster.graph.nodes
    ends = (node for link, _ in usage for node in upgrade.cluster.links[link])
    between = any(kinds[node]["kind"] in ("nic", "switch") for node in ends)
    after, before = upgrade.pace_after, upgrade.pace_before
    return after.between / before.between if between else after.in_node / before.in_node


def _describe_link(cluster: Cluster, link: int) -> tuple[str, str]:
    start, end = cluster.links[link]
    order = ("gpu", "nvswitch", "pcie", "host", "nic")
    names = [node_label(cluster.graph, node) for node in (start, end)]
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return " - ".join(names), resource_of_medium(str(cluster.graph[start][end]["medium"]))


# --- scenarios and their runs -----------------------------------------------------------------------------------------


LINK_SCALES = ("nvlink", "network", "pcie", "between_machines")
"""Factors of ``cluster.scale`` that are on links."""


def find_scenario_limit(before: Scenario, after: Scenario, run: Run) -> UpgradeLimit | None:
    """Return what limits a run's communication after the scenario was changed to faster links; None if nothing does.

    None if nothing does, if no link is faster, and where the two clusters do not have the same links.
    """
    was, now = (apply_permanent_faults(each.faults, each.cluster.built, each.seed) for each in (before, after))
    if was.capacity.shape != now.capacity.shape or not (now.capacity > was.capacity).any() or was.links != now.links:
        return None
    if run.hop_by_hop:  # calls have no rates of their own
        return None
    made = list_link_calls(run.folding.communicators, run.span_calls, run.spans, run.weights)
    pace = before.cluster.scale.nccl_factors, after.cluster.scale.nccl_factors
    by_scale = before.cluster.topology == after.cluster.topology
    return find_upgrade_limit(made, LinkUpgrade(now, was.capacity, now.capacity, *pace, by_scale))


def explain_scale_limit(scenario: Scenario, run: Run) -> str:
    """Return a line that says what limits the gain from the link factors in ``cluster.scale``; "" if nothing does."""
    scale = scenario.cluster.scale
    raised = {name: factor for name in LINK_SCALES if (factor := getattr(scale, name)) > 1}
    if not raised:
        return ""
    plain = scale.model_copy(update=dict.fromkeys(raised, 1.0))
    before = scenario.model_copy(update={"cluster": scenario.cluster.with_scale(plain)})
    return _explain_limit(
        before, scenario, run, [f"cluster.scale.{name} {factor:g}" for name, factor in raised.items()]
    )


def explain_topology_limit(scenario: Scenario, run: Run) -> str:
    """Return a line that says what limits the gain from faster links in the topology; "" if nothing does."""
    origin = scenario.origin
    changed = [path for path in find_changed_link_settings(origin.written_document, RATES) if path[1] != "topology"]
    return (
        _explain_limit(origin.without_values(changed), scenario, run, [*map(format_path, changed)]) if changed else ""
    )


def _explain_limit(before: Scenario, after: Scenario, run: Run, changed: Sequence[str]) -> str:
    what = ", ".join(changed)
    if np.array_equal(before.cluster.built.capacity, after.cluster.built.capacity):
        return f"{what}: no gain: the cluster has no such links"
    held = find_scenario_limit(before, after, run)
    return f"{what}: {held.describe()}" if held else ""
