"""Output of simcluster collective: text, JSON, tables and pictures of times and link loads."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from simcluster.base.units import format_bytes, format_bytes_per_second
from simcluster.cli.common import save_picture, write_text_atomic
from simcluster.collectives.all_to_all import busiest_port_bytes
from simcluster.studies.bench.collective import CollectiveTime, make_collective_methods
from simcluster.studies.bench.collective_loads import BusiestLinks, CollectiveLoads, link_utilization_over_time
from simcluster.topology import Cluster
from simcluster.topology.links import node_label
from simcluster.traffic.traffic import Traffic

_MOST_LEVELS = 4
_MOST_HOTTEST = 3
_MOST_ROWS = 20
_MOST_DRAWN = 4096  # links that are looked at for the picture
_JUST_ABOVE = 1 + 1e-9

ROOTED_KINDS = ("broadcast", "reduce")
_ELEMENT_BYTES = 4  # nccl-tests counts floats unless told otherwise
_SHARDED = ("reduce_scatter", "all_gather", "all_to_all")  # their count is of one rank's part
_BUS = {"all_reduce": "algbw x 2(N-1)/N", **dict.fromkeys(_SHARDED, "algbw x (N-1)/N")}
_HEADER = (
    ("size", "count", "type", "time", "algbw", "busbw", "algorithm"),
    ("(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)", ""),
)
LINK_COLUMNS = ("link_from", "link_to", "medium", "capacity", "bytes", "busy_s", "flows", "collisions")
COLUMN_WIDTHS = (14, 14, 8, 14, 9, 9, 18)


@dataclass(frozen=True)
class CollectiveJob:
    """The collective to simulate: kind, size, cluster, and groups of GPUs.

    ``note`` states how the cluster was enlarged; ``sizes`` are those of an uneven all-to-all.
    """

    kind: str
    algorithm: str
    nccl: str
    cluster: Cluster
    groups: tuple[tuple[int, ...], ...]
    note: str
    root: int = 0
    sizes: tuple[tuple[float, ...], ...] = ()

    @property
    def name(self) -> str:
        """Name of the collective on the command line."""
        return "all_to_all_v" if self.sizes else self.kind

    def busbw(self, time: CollectiveTime) -> float:
        """Return the bus bandwidth (B/s) as nccl-tests defines it, at the GPU with the most traffic."""
        return busiest_port_bytes(self.sizes) / time.duration if self.sizes and time.duration else time.busbw


@dataclass(frozen=True)
class SizeResult:
    """Result for one message size: times of the slowest group, limiting links, load per link."""

    slowest: CollectiveTime
    limit: BusiestLinks
    loads: CollectiveLoads
    traffics: Sequence[Sequence[Traffic]]


def title_lines(job: CollectiveJob, row: SizeResult) -> list[str]:
    """Return the title lines of a simulated collective."""
    hosts = len(set(job.cluster.host_of))
    groups = f"{len(job.groups)} groups of {len(job.groups[0])} GPUs at once" if len(job.groups) > 1 else ""
    used = sum(len(group) for group in job.groups)
    first = "the first " if max(map(max, job.groups)) + 1 == used else ""
    of = f"{first}{used:,} of " if used < job.cluster.num_gpus or not first else ""
    where = f"{of}{job.cluster.num_gpus:,} GPUs in {hosts:,} node{'s' * (hosts > 1)}{job.note}"
    methods = make_collective_methods(job.cluster, job.kind, job.algorithm, nccl=job.nccl)
    platform = methods.platform
    how = "NCCL's choice by size" if platform and job.algorithm == "auto" else f"algorithm {row.slowest.algorithm}"
    how += f" as on {platform.name}" if platform else ""
    what = [job.name, how, f"detail {row.slowest.detail}"]
    return [", ".join([*what, *([groups] if groups else [])]), f"cluster  {job.cluster.name}: {where}"]


def summary_lines(job: CollectiveJob, row: SizeResult) -> list[str]:
    """Return the lines that show the times for one message size and what limits them."""
    time, limit = row.slowest, row.limit
    ranks = len(time.gpus)
    factor = f"{_BUS[job.kind]}, N = {ranks}" if job.kind in _BUS else "the same"
    size = f"{format_bytes(time.size)} ({int(time.size):,} B)"
    if job.sizes:
        size += f", the most that a rank sends; {format_bytes(sum(map(sum, job.sizes)))} in total"
        factor = "bytes of the busiest rank over time"
    several = limit.links > 1
    links = f"{limit.links:,} links {limit.ends} ({limit.medium}, {format_bytes_per_second(limit.bandwidth)})"
    if not several:
        links = links.replace("links", "link", 1)
    load = f"carr{'y' if several else 'ies'} {format_bytes(limit.load)}{' each' if several else ''}"
    return [
        *title_lines(job, row),
        f"size     {size}",
        f"time     {time.duration * 1e3:.6f} ms" + (", the slowest group's" if len(job.groups) > 1 else ""),
        f"algbw    {format_bytes_per_second(time.algbw)}",
        f"busbw    {format_bytes_per_second(job.busbw(time))}  ({factor})",
        *_nccl_lines(time),
        f"limit    {links} {load}: {limit.busy / time.duration:.1%} of the time",
        f"latency  {limit.latency * 1e3:.6f} ms in all rounds: {limit.latency / time.duration:.1%} of the time",
        *hottest_link_lines(row.loads),
    ]


def _nccl_lines(time: CollectiveTime) -> list[str]:
    method = time.method
    if method.pace is None:
        return []
    seconds = method.pace.latency + time.size / method.pace.bandwidth
    return [
        f"nccl     {method.why}",
        f"         on free links {seconds * 1e3:.6f} ms: {method.pace.latency * 1e6:.1f} us latency, then "
        f"{format_bytes_per_second(method.pace.bandwidth)} of algbw",
    ]


def size_table_line(job: CollectiveJob, row: SizeResult, *, with_header: bool) -> str:
    """Return one line of a table as nccl-tests prints; the ``with_header`` line comes with the header."""
    time = row.slowest
    size = int(time.size)
    count = size // _ELEMENT_BYTES // (len(time.gpus) if job.kind in _SHARDED else 1)
    cells = (str(size), str(count), "float", f"{time.duration * 1e6:.3f}")
    how = f"{time.algorithm} {time.method.protocol}".rstrip()
    line = align_cells((*cells, f"{time.algbw / 1e9:.2f}", f"{job.busbw(time) / 1e9:.2f}", how))
    if not with_header:
        return " " + line
    head = [f"# {text}" for text in title_lines(job, row)]
    return "\n".join([*head, "#", *("#" + align_cells(texts) for texts in _HEADER), " " + line])


def align_cells(cells: Sequence[str]) -> str:
    """Join cells to a table line with right-aligned columns."""
    return "".join(f" {cell.rjust(width - 1)}" for cell, width in zip(cells, COLUMN_WIDTHS, strict=True)).rstrip()


def results_json(job: CollectiveJob, detail: str, rows: Sequence[SizeResult]) -> dict[str, object]:
    """Return the results as JSON values in B, s and B/s; times are those of the slowest group."""
    return {
        "collective": job.name,
        "detail": detail,
        "nccl": job.nccl,
        "cluster": job.cluster.name,
        "cluster_gpus": job.cluster.num_gpus,
        **({"root": job.root} if job.kind in ROOTED_KINDS else {}),
        "groups": len(job.groups),
        "gpus_per_group": len(job.groups[0]),
        "results": [
            {
                "size_bytes": row.slowest.size,
                "time_s": row.slowest.duration,
                "algbw_bytes_per_s": row.slowest.algbw,
                "busbw_bytes_per_s": job.busbw(row.slowest),
                "algorithm": row.slowest.algorithm,
                "protocol": row.slowest.method.protocol,
                "limit": asdict(row.limit),
                **level_loads_json(row.loads),
            }
            for row in rows
        ],
    }


# --- where flows meet -------------------------------------------------------------------------------------------------


def hottest_link_lines(loads: CollectiveLoads) -> list[str]:
    """Return lines that name the topology levels with uneven link loads, and their most loaded links."""
    uneven = [level for level in loads.levels if level.collisions > _JUST_ABOVE]
    if not uneven:
        return ["links    no link carries more than an even share of its level's flows"]
    lines = [
        f"{level.ends} ({format_bytes_per_second(level.capacity)}): most {level.most:.4g} flows, mean "
        f"{level.mean:.3g}: {level.collisions:.2f} x an even share; {level.used:,} of {level.links:,} links used"
        for level in uneven[:_MOST_LEVELS]
    ]
    if len(uneven) > _MOST_LEVELS:
        lines.append(f"and {len(uneven) - _MOST_LEVELS} more levels; --links FILE.csv has all links")
    above = [load for load in loads.links if load.collisions > _JUST_ABOVE]
    hot = [
        f"{load.link[0]} -> {load.link[1]}: {format_bytes(load.bytes)} in {load.flows:.4g} flows, "
        f"{load.collisions:.2f} x an even share"
        for load in sorted(above, key=lambda load: -load.busy)[:_MOST_HOTTEST]
    ]
    return _label_lines("levels", lines) + _label_lines("hottest", hot)


def level_loads_json(loads: CollectiveLoads) -> dict[str, object]:
    """Return link loads by topology level, and the most loaded links, as JSON values in B, s and B/s."""
    return {
        "levels": [{**asdict(level), "collisions": level.collisions} for level in loads.levels],
        "hottest": [{**asdict(load), "busy": load.busy} for load in loads.links[:10]],
    }


def write_links(
    args: argparse.Namespace,
    path: Path,
    cluster: Cluster,
    loads: CollectiveLoads,
    traffics: Sequence[Sequence[Traffic]],
    title: str,
) -> None:
    """Write link loads to a table file, or draw the most loaded links over time, by the file's ending."""
    if path.suffix == ".csv":
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(LINK_COLUMNS)
        for load in loads.links:
            loaded = load.bytes, load.busy, load.flows, load.collisions
            writer.writerow([*load.link, load.medium, load.capacity, *loaded])
        write_text_atomic(path, table.getvalue())
        return
    import numpy as np
    import pandas as pd

    from simcluster.show.link_plots import plot_link_rows

    links = loads.links[:_MOST_DRAWN]
    edges, matrix = link_utilization_over_time(cluster, traffics, [load.link for load in links])
    alike: dict[object, list[int]] = {}
    for number, load in enumerate(links):  # the same kind of ends, and alike at any time
        kind = tuple(node_label(cluster.graph, end) for end in load.link)
        alike.setdefault((kind, load.capacity, matrix[number].round(6).tobytes()), []).append(number)
    shown = list(alike.values())[:_MOST_ROWS]
    first = [same[0] for same in shown]
    drawn = pd.DataFrame(
        {
            "link_from": [links[number].link[0] for number in first],
            "link_to": [links[number].link[1] for number in first],
            "capacity": [links[number].capacity for number in first],
            "links": [len(same) for same in shown],
            "utilisation": matrix[first].mean(axis=1),
            "peak_utilisation": np.minimum(1.0, matrix[first].max(axis=1)),
        }
    )
    save_picture(args, plot_link_rows(drawn, edges, matrix[first], title=f"{title}: hottest links"), path)


def _label_lines(label: str, lines: Sequence[str]) -> list[str]:
    return [f"{label if not place else '':9}{line}" for place, line in enumerate(lines)]
