"""Topology kind ``sites``: several equal clusters joined by a wide-area network (WAN).

Every site's top switches (spines, cores) are linked to one ``border`` router, and each border router to the WAN by one
port, which all traffic that leaves or enters the site shares: ``wan`` in each direction. A GPU reaches one of another
site over its site's fabric, border, WAN, border and the other's fabric. NCCL's measurements do not cover such routes:
the time of collectives whose ranks are on several sites follows from the links alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from simcluster.base.arrays import Int32s, Ints
from simcluster.base.errors import InputError
from simcluster.documents.field_annotations import ModelFromRegistry
from simcluster.topology.cluster import Cluster, make_cluster_from_draft
from simcluster.topology.draft import ClusterDraft, check_gpu_count
from simcluster.topology.links import COMPUTE, LinkSpec, Title
from simcluster.topology.regular_wiring import RegularWiring
from simcluster.topology.spec import Fields, TopologySpec


def make_sites_spec(kinds: Mapping[str, type[TopologySpec]]) -> type[TopologySpec]:
    """Make the spec class of topology kind ``sites``; each site is a cluster of one of these ``kinds``."""

    class SitesSpec(TopologySpec):
        """Several equal sites joined by a wide-area network; nodes are numbered site by site."""

        EXAMPLE: ClassVar[Fields] = {
            "sites": 2,
            "site": {"kind": "dgx", **kinds["dgx"].EXAMPLE},
            "wan": {"line_rate": "100 Gbit/s", "latency": "5 ms"},
        }

        kind: Literal["sites"]
        name: Title = "sites"
        sites: Annotated[int, Field(strict=True, ge=2, le=64)]
        """Number of sites (data centers) of the cluster."""
        site: Annotated[TopologySpec, ModelFromRegistry(kinds)]
        """Cluster inside each site (all sites are equal); the GPU and the NCCL platform are set once, for all sites."""
        wan: LinkSpec
        """Link of each site to the wide-area network, shared by all its traffic in one direction; latency is one way
        from site to site (light in fibre takes 5 us per km)."""

        @model_validator(mode="before")
        @classmethod
        def _fill_in_device(cls, document: object) -> object:
            """Copy the topology's GPU and NCCL platform to ``site`` where it does not set them."""
            if not isinstance(document, Mapping) or not isinstance(document.get("site"), Mapping):
                return document
            own = {key: document[key] for key in ("device", "nccl") if key in document}
            return {**document, "site": {**own, **document["site"]}}

        def build(self) -> Cluster:
            """Build the cluster: nodes of all sites, then site0.leaf0, ..., site0.border, ..., and the node wan."""
            one = self.site.build()
            check_gpu_count(one.num_gpus * self.sites)
            if not isinstance(one.wiring, RegularWiring):
                raise InputError(
                    f"site is {one.name!r}, whose machines are not identical on one tree of switches; use a site of "
                    "kind dgx, machines, pcie_box, flat or leaf_spine"
                )
            draft = _join_sites(one.wiring.draft, self.sites, self.wan)
            whole = make_cluster_from_draft(self.name, self.device, draft, self.routing, self.nccl or one.nccl)
            return replace(whole, machines_per_site=len(set(one.host_of)))

    return SitesSpec


def _join_sites(one: ClusterDraft, sites: int, wan: LinkSpec) -> ClusterDraft:
    """Return one draft with ``sites`` copies of a site's draft, joined by the WAN."""
    if one.num_machines % one.per_host:
        raise InputError(f"site has {one.num_machines} GPUs, but needs a multiple of {one.per_host}, its GPUs per node")
    draft = ClusterDraft(per_host=one.per_host)
    draft.add_machines(one.recorded, one.num_machines * sites, one.domain, one.kinds)
    copies = [_copy_site_switches(draft, one, site) for site in range(sites)]
    for block in one.blocks:
        lower, upper = (
            draft.nodes if table is one.nodes else np.concatenate([of_site[table] for of_site in copies])
            for table in block.tables
        )
        if upper is not draft.nodes:
            draft.blocks.append(replace(block, tables=(lower, upper)))
    top = _find_top_switches(one)
    network = {"kind": "switch", "tier": "border"}
    borders = draft.add_switches([f"site{site}.border" for site in range(sites)], network)
    (hub,) = draft.add_switches(["wan"], network | {"tier": "wan"})
    near = wan.edge_attributes("wan", 0.0)
    draft.connect_switches(np.concatenate([of_site[top] for of_site in copies]), np.repeat(borders, len(top)), near)
    draft.connect_switches(borders, [hub] * sites, wan.edge_attributes("wan", wan.latency / 2))
    return draft


def _copy_site_switches(draft: ClusterDraft, site_draft: ClusterDraft, site: int) -> Int32s:
    """Add one site's switches to the draft; return the new number of each node of that site."""
    of_site = np.empty(site_draft.size, dtype=np.int32)
    of_site[site_draft.nodes] = draft.nodes[site * site_draft.num_machines : (site + 1) * site_draft.num_machines]
    for data, alike in itertools.groupby(site_draft.switches.items(), key=lambda item: item[1][1]):
        named = list(alike)
        of_site[[number for number, _ in named]] = draft.add_switches(
            [f"site{site}.{name}" for _, (name, _) in named], data
        )
    return of_site


def _find_top_switches(one: ClusterDraft) -> Ints:
    """Return a site's switches of the highest level; raise InputError if they do not connect the whole site."""
    among = np.zeros(one.size, dtype=bool)
    among[[number for number, (_, data) in one.switches.items() if data.get("network", COMPUTE) == COMPUTE]] = True
    start, end = (
        np.concatenate([each.nodes_at_one_end(side).ravel() for each in one.blocks if each.tables[1] is not one.nodes])
        for side in (0, 1)
    )
    level = np.zeros(one.size, dtype=np.int64)
    level[start[among[start] & (end < one.nodes.size)]] = 1
    between = among[start] & among[end]
    start, end = start[between], end[between]
    height = 1
    while True:
        above = end[(level[start] == height) & (level[end] == 0)]
        if not len(above):
            break
        height += 1
        level[above] = height
    found = np.flatnonzero(level == height)
    if not _are_connected(start, end, among, int(found[0])):
        raise InputError("site has separate rails or planes; use a site whose switches form one connected tree")
    return found


def _are_connected(start: Int32s, end: Int32s, allowed: Sequence[bool] | Any, first: int) -> bool:
    met = np.zeros(len(allowed), dtype=bool)
    met[first], many = True, 0
    while many != met.sum():
        many = int(met.sum())
        met[end[met[start]]] = True
    return bool((met == allowed).all())
