"""Contents and text of the report of ``simcluster topology``, which describes a cluster in numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from simcluster.base.units import format_bytes_per_second, format_seconds

_INDENT = 13


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """A group of identical links: their number per direction, bandwidth (B/s) and latency (s)."""

    ends: str
    medium: str
    count: int
    one_way: bool
    line_rate: float
    efficiency: float
    bandwidth: float
    latency: float
    source: str


@dataclass(frozen=True, slots=True)
class RingReport:
    """Bandwidth of a large ring all-reduce over all GPUs of an otherwise idle cluster.

    ``channels`` rings share the message (NCCL's rail rings, ``collectives.ring.build_node_rings``), each at the rate
    that its most loaded link leaves it (B/s); ``limit`` is the kind of that link. ``busbw`` (B/s), as nccl-tests counts
    it, is channels x rate: T = 2 (N - 1) / N x S / busbw.
    """

    busbw: float
    channels: int
    rate: float
    limit: str


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """Bandwidths (B/s) of a network that collectives do not use, such as the storage network.

    ``per_machine`` is the bandwidth of one node into it, ``bisection`` that from the first half of its NICs to the
    rest.
    """

    name: str
    nodes: tuple[tuple[str, int], ...]
    links: tuple[LinkGroup, ...]
    per_machine: float
    bisection: float
    oversubscription: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class TopologyReport:
    """Numbers that describe a cluster: devices, links, bandwidths (B/s), longest route and its latency (s).

    * ``inside``: what one GPU can send to the others of its node (0 if it is alone), over NVLink alone where it has
      NVLink; ``outside``: what it can send out of the node, by the NICs nearest to it, when the others are silent,
      ``outside_shared`` when all of them send.  The minimum over all GPUs.
    * ``nics``: NIC ports of a node (0 where GPUs are ports themselves), ``nics_per_gpu``: NIC ports per GPU,
      ``rails``: leaves that a node is linked to; the maximum over all nodes.
    * ``way_out``: the links from the first GPU to the corresponding one in the last node, in series: their ends and the
      capacity of one of them (B/s); empty in a cluster of one node.
    * ``bisection``: the maximum flow from the first half of the nodes (of the GPUs, if there is one node) to the
      rest, in placement order, in the weaker direction.
    * ``oversubscription``: for each tier with another above it, line rate down over line rate up, of its worst switch;
      for switches linked across, to others of their tier (dragonfly), line rate down over across.
    * ``longest_hops``, ``longest_latency``: of the routes from one GPU per class to one per class under each leaf.
    """

    name: str
    device: str
    gpus: int
    machines: int
    nodes: tuple[tuple[str, int], ...]
    links: tuple[LinkGroup, ...]
    nics: int
    nics_per_gpu: float
    rails: int
    inside: float
    outside: float
    outside_shared: float
    way_out: tuple[tuple[str, float], ...]
    bisection: float
    oversubscription: tuple[tuple[str, float], ...]
    longest_hops: int
    longest_latency: float
    all_reduce: RingReport | None
    networks: tuple[NetworkReport, ...]

    def format_lines(self) -> list[str]:
        """Return the report as the lines of text that ``simcluster topology`` prints."""
        lines = [
            f"{self.name}: {_gpu_counts_text(self)}",
            *_wrap_with_heading("devices", _device_counts_text(self.nodes)),
            *_link_lines(self.links),
        ]
        lines += [line for head, text in self._heading_text_pairs() for line in _wrap_with_heading(head, text)]
        for network in self.networks:
            lines += ["", f"{network.name} network, which collectives do not use"]
            lines += [*_wrap_with_heading("devices", _device_counts_text(network.nodes)), *_link_lines(network.links)]
            rows = [("per node", format_bytes_per_second(network.per_machine))]
            rows += [("bisection", f"{format_bytes_per_second(network.bisection)} between halves of its NICs")]
            rows += _oversubscription_rows(network.oversubscription)
            lines += [line for head, text in rows for line in _wrap_with_heading(head, text)]
        every = [*self.links, *(group for network in self.networks for group in network.links)]
        return lines + _source_lines(every)

    def _heading_text_pairs(self) -> Iterator[tuple[str, str]]:
        rate = format_bytes_per_second
        if self.nics:
            each = self.gpus / self.machines
            ratio = f"{self.nics_per_gpu:.3g} per GPU" if each > 1 else ""
            rails = f"{self.rails} rails" if self.rails > 1 else ""
            ports = f"{self.nics} port{'s' * (self.nics > 1)} per node"
            yield "NICs", "; ".join(part for part in (ports, ratio, rails) if part)
        none = "the only GPU of its node" if self.gpus == self.machines else "no link inside its node"
        yield "per GPU", f"{rate(self.inside)} to the other GPUs of its node" if self.inside else none
        if self.outside:
            yield "", f"{rate(self.outside)} out of its node; {rate(self.outside_shared)} if all its GPUs send"
        if self.way_out:
            least = min(each for _, each in self.way_out)
            marks = {least: " (the narrowest)"} if any(each > least for _, each in self.way_out) else {}
            series = [f"{ends} {rate(each)}{marks.get(each, '')}" for ends, each in self.way_out]
            yield "way out", f"in series: {', '.join(series)}"
        if self.gpus > 1:
            count, of = (self.machines, "node") if self.machines > 1 else (self.gpus, "GPU")
            halves = f"{count // 2:,} {of}{'s' if count > 3 else ''} to the other {count - count // 2:,}"
            yield "bisection", f"{rate(self.bisection)} from {halves}"
        yield from _oversubscription_rows(self.oversubscription)
        yield "longest path", f"{self.longest_hops} links, {format_seconds(self.longest_latency)}"
        if self.all_reduce:
            ring = self.all_reduce
            rings = f"{ring.channels} rings at {rate(ring.rate)}" if ring.channels > 1 else "one ring"
            text = f"busbw {rate(ring.busbw)} over all GPUs, large messages: {rings}, bound by {ring.limit}"
            yield "all-reduce", text

    def format(self) -> str:
        """Return the report as one text with line breaks."""
        return "\n".join(self.format_lines())


def _gpu_counts_text(report: TopologyReport) -> str:
    each = report.gpus / report.machines
    average = f" of {each:g}" if each == int(each) else f", {each:.3g} on average"
    size = average if report.gpus != report.machines else ""
    machines = f"{report.machines:,} node{'s' if report.machines > 1 else ''}"
    return f"{report.gpus:,} GPU{'s' if report.gpus > 1 else ''} ({report.device}) in {machines}{size}"


def _device_counts_text(nodes: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{n:,} {kind}" for kind, n in nodes)


def _oversubscription_rows(oversubscription: Iterable[tuple[str, float]]) -> Iterator[tuple[str, str]]:
    for tier, ratio in oversubscription:
        head = tier if " " in tier else f"{tier} switch"
        yield head, f"{ratio:.3g}:1 oversubscribed" if ratio > 1.0005 else f"not oversubscribed ({ratio:.3g}:1)"


def _link_lines(links: Sequence[LinkGroup]) -> list[str]:
    rate = format_bytes_per_second
    width = max((len(group.ends) for group in links), default=0)
    lines = []
    for i, g in enumerate(links):
        line = f" = {rate(g.line_rate)} x {g.efficiency:g}" if g.efficiency < 1 else ""
        ways = "one way" if g.one_way else "each way"
        text = f"{g.count:,} x {rate(g.bandwidth)} {ways}{line}, {format_seconds(g.latency)}, {g.medium}"
        lines.append(f"{'links' if i == 0 else '':<{_INDENT}}{g.ends:<{width}}  {text}")
    if any(g.efficiency < 1 for g in links):
        lines.append(f"{'':<{_INDENT}}payload of a link = line rate x efficiency, each with its source below")
    return lines


def _source_lines(links: Iterable[LinkGroup]) -> list[str]:
    by_text: dict[str, list[str]] = {}
    for group in links:
        if group.source:
            by_text.setdefault(group.source, []).append(group.ends)
    lines: list[str] = []
    for text, ends in by_text.items():
        lines += _wrap_with_heading("" if lines else "sources", f"{', '.join(dict.fromkeys(ends))}: {text}")
    return lines


def _wrap_with_heading(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, 120, initial_indent=f"{head:<{_INDENT}}", subsequent_indent=" " * (_INDENT + 2), break_on_hyphens=False
    )
