"""simcluster collective: how long one collective takes by itself, as nccl-tests reports it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from simcluster.cli import health
from simcluster.cli.common import add_override_arguments
from simcluster.errors import InputError

if TYPE_CHECKING:
    from simcluster.collective import CollectiveTime
    from simcluster.topology import Cluster

EXAMPLES = """examples:
  simcluster collective all_reduce --size 1GiB --gpus 64 --cluster dgx_h100
  simcluster collective all_gather --size 1MiB:8GiB --gpus 16 --cluster dgx_a100
  simcluster collective all_reduce --size 1GiB --gpus 256 --cluster flat --detail steps
  simcluster collective all_reduce --size 1GiB --gpus 512 --split %64 --cluster leaf_spine_512
  simcluster collective --measured nccl.log --platform dgx-h100

Sizes are of the full buffer, algbw is size over time, and busbw algbw x 2(N-1)/N for all_reduce and x (N-1)/N for
reduce_scatter, all_gather and all_to_all: the conventions of nccl-tests. --split is their NCCL_TESTS_SPLIT: %64 puts
GPU i into group i mod 64, /8 into group i div 8, and all groups run at once. A send goes from the first GPU to the
second.
"""

_MOST_TRANSFERS = 50_000_000  # some four minutes
_ELEMENT_BYTES = 4  # nccl-tests counts floats unless told otherwise
_SPREAD = ("reduce_scatter", "all_gather", "all_to_all")  # their count is of one rank's part
_BUS = {"all_reduce": "algbw x 2(N-1)/N", **dict.fromkeys(_SPREAD, "algbw x (N-1)/N")}
_HEADER = (
    ("size", "count", "type", "time", "algbw", "busbw", "algorithm"),
    ("(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)", ""),
)
_WIDTHS = (14, 14, 8, 14, 9, 9, 18)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's arguments."""
    parser = subparsers.add_parser(
        "collective",
        help="time one collective by itself, as nccl-tests does",
        description="Play one collective where nothing else runs; a range of sizes gives the table of nccl-tests.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="all_reduce, reduce_scatter, all_gather, send, ...")
    parser.add_argument("--size", metavar="S[:T]", help="1GiB, or 1MiB:8GiB for all doublings")
    parser.add_argument("--gpus", type=_count, metavar="N", help="the first N GPUs of the cluster")
    parser.add_argument("--cluster", metavar="FILE", help="a topology file, or one that ships")
    add_override_arguments(parser, "change the file; also nodes=16")
    parser.add_argument(
        "--algorithm", default="auto", metavar="A", help="ring, ...; auto (the default) is what NCCL would pick"
    )
    parser.add_argument(
        "--nccl", default="auto", metavar="P",
        help="the platform whose latencies, rates and choices NCCL has; none: the links alone (default: the cluster's)",
    )  # fmt: skip
    parser.add_argument("--detail", default="flow", metavar="D", help="flow: one activity (default); steps: every hop")
    parser.add_argument("--split", metavar="%K|/K", help="several groups at once, as NCCL_TESTS_SPLIT makes them")
    parser.add_argument("--json", metavar="FILE", help='write the numbers as JSON (B, s, B/s); "-" prints them alone')
    health.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Build the cluster, play each size, print and write."""
    from simcluster.cli import common

    if args.measured:
        return health.run(args)
    _check_given(args)
    common.check_json_path(args.json)
    sizes = _sizes(args.size)
    job = _job(args)
    rows = []
    for row in _rows(job, args.detail, sizes):
        rows.append(row)
        if args.json == "-":
            continue
        if len(sizes) == 1:
            print("\n".join(_summary(job, row)))
        else:
            print(_table_line(job, row, first=len(rows) == 1), flush=True)  # a line a size: it may take long
    if args.json:
        common.write_json(args.json, _document(job, args.detail, rows))
    return 0


def _check_given(args: argparse.Namespace) -> None:
    """All of what a collective needs; argparse cannot ask for it, since --measured needs none of it."""
    needed = {"NAME": args.name, "--size": args.size, "--gpus": args.gpus, "--cluster": args.cluster}
    missing = [option for option, value in needed.items() if value is None]
    if missing:
        raise InputError(
            f"the following arguments are required: {', '.join(missing)}, as in "
            "simcluster collective all_reduce --size 1GiB --gpus 64 --cluster dgx_h100"
        )


# --- what is asked ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """A collective over groups of a cluster; ``note`` says how the cluster was made to fit."""

    kind: str
    algorithm: str
    nccl: str
    cluster: Cluster
    groups: tuple[tuple[int, ...], ...]
    note: str


@dataclass(frozen=True)
class _Row:
    """One size: the slowest group's times, and what limits it."""

    slowest: CollectiveTime
    limit: dict[str, Any]


def _job(args: argparse.Namespace) -> _Job:
    from simcluster.cli.common import overrides_of
    from simcluster.collective import methods_for

    kind = args.name.replace("-", "_").lower()
    groups = _groups(args.gpus, args.split)
    cluster, note = _cluster_of(args.cluster, overrides_of(args), args.gpus)
    methods_for(cluster, kind, args.algorithm, nccl=args.nccl)
    return _Job(kind, args.algorithm, args.nccl, cluster, groups, note)


def _groups(gpus: int, split: str | None) -> tuple[tuple[int, ...], ...]:
    if split is None:
        return (tuple(range(gpus)),)
    divisor = int(split[1:]) if split[:1] in ("%", "/") and split[1:].isdecimal() and len(split) < 12 else 0
    if divisor < 1:
        raise InputError(f"--split {split!r}: write %64 for groups of equal i mod 64, or /8 for groups of 8 neighbours")
    groups: dict[int, list[int]] = {}
    for gpu in range(gpus):
        groups.setdefault(gpu % divisor if split[0] == "%" else gpu // divisor, []).append(gpu)
    if len({len(group) for group in groups.values()}) > 1:
        raise InputError(f"--split {split}: {gpus} GPUs do not make equal groups; use a number that divides {gpus}")
    return tuple(tuple(group) for group in groups.values())


def _cluster_of(file: str, overrides: list[tuple[str, Any]], gpus: int) -> tuple[Cluster, str]:
    """The file's cluster, made larger by its ``nodes`` or ``gpus`` if it is too small and nobody set them."""
    from simcluster.scenario_files import load_cluster, load_topology

    cluster = load_cluster(file, overrides)
    have = len(cluster.gpus)
    if gpus <= have:
        return cluster, ""
    size = {name: value for name, value in load_topology(file, overrides) if isinstance(value, int)}
    given = dict(overrides)
    for name, each in (("nodes", size.get("gpus_per_node", 1)), ("gpus", 1)):
        if name in size:
            fits = f"{name}={-(-gpus // each)}"
            if name in given:
                raise InputError(f"--gpus {gpus}: cluster {cluster.name!r} has {have} GPUs; set {fits}")
            note = f", made so large by {fits} (the file has {name}={size[name]})"
            return load_cluster(file, [*overrides, (name, -(-gpus // each))]), note
    raise InputError(f"--gpus {gpus}: cluster {cluster.name!r} has {have} GPUs; use at most {have}, or change {file}")


def _sizes(text: str) -> list[int]:
    """ "1MiB:8MiB" as 1, 2, 4 and 8 MiB in bytes."""
    first, colon, last = text.partition(":")
    low = _size(first)
    high = _size(last) if colon else low
    if high < low:
        raise InputError(f"--size {text!r}: the first size must not be larger than the second, as in 1MiB:8GiB")
    sizes = [low]
    while 2 * sizes[-1] <= high:
        sizes.append(2 * sizes[-1])
    return sizes


def _size(text: str) -> int:
    from simcluster.units import parse_bytes

    size = parse_bytes(text)
    if not 1 <= size <= 1e18 or size != int(size):
        raise InputError(f"--size {text!r}: a size is a whole number of bytes from 1 B to 1 EB")
    return int(size)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 2 <= int(text[:20]) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 2")
    return int(text)


# --- what comes out ---------------------------------------------------------------------------------------------------


def _rows(job: _Job, detail: str, sizes: Sequence[int]) -> Iterator[_Row]:
    from simcluster.collective import concurrent_times, limit_of, num_transfers

    if detail == "steps":
        transfers = len(sizes) * len(job.groups)
        transfers *= num_transfers(
            job.cluster, job.groups[0], job.kind, sizes[0], algorithm=job.algorithm, nccl=job.nccl
        )
        if transfers > _MOST_TRANSFERS:
            raise InputError(
                f"--detail steps: {transfers:,} transfers would take too long; up to {_MOST_TRANSFERS:,} are played: "
                "use --detail flow, fewer GPUs or fewer sizes"
            )
    for size in sizes:
        times = concurrent_times(
            job.cluster, job.groups, job.kind, size, algorithm=job.algorithm, nccl=job.nccl,
            detail=detail,  # type: ignore[arg-type]
        )  # fmt: skip
        limit = limit_of(job.cluster, job.groups, job.kind, size, algorithm=job.algorithm, nccl=job.nccl)
        yield _Row(max(times, key=lambda time: time.duration), asdict(limit))


def _headline(job: _Job, row: _Row) -> list[str]:
    from simcluster.collective import methods_for

    hosts = len(set(job.cluster.host_of))
    groups = f"{len(job.groups)} groups of {len(job.groups[0])} GPUs at once" if len(job.groups) > 1 else ""
    used = sum(len(group) for group in job.groups)
    of = f"the first {used:,} of " if used < len(job.cluster.gpus) else ""
    where = f"{of}{len(job.cluster.gpus):,} GPUs in {hosts:,} machine{'s' * (hosts > 1)}{job.note}"
    methods = methods_for(job.cluster, job.kind, job.algorithm, nccl=job.nccl)
    platform = methods.platform
    how = "NCCL's choice by size" if platform and job.algorithm == "auto" else f"algorithm {row.slowest.algorithm}"
    how += f" as on {platform.name}" if platform else ""
    what = [job.kind, how, f"detail {row.slowest.detail}"]
    return [", ".join([*what, *([groups] if groups else [])]), f"cluster  {job.cluster.name}: {where}"]


def _summary(job: _Job, row: _Row) -> list[str]:
    """One size for a person, with what limits it."""
    from simcluster.units import format_bytes, format_bytes_per_second

    time, limit = row.slowest, row.limit
    ranks = len(time.gpus)
    factor = f"{_BUS[job.kind]}, N = {ranks}" if job.kind in _BUS else "the same"
    several = limit["links"] > 1
    links = (
        f"{limit['links']:,} links {limit['ends']} ({limit['medium']}, {format_bytes_per_second(limit['bandwidth'])})"
    )
    if not several:
        links = links.replace("links", "link", 1)
    load = f"carr{'y' if several else 'ies'} {format_bytes(limit['load'])}{' each' if several else ''}"
    return [
        *_headline(job, row),
        f"size     {format_bytes(time.size)} ({int(time.size):,} B)",
        f"time     {time.duration * 1e3:.6f} ms" + (", the slowest group's" if len(job.groups) > 1 else ""),
        f"algbw    {format_bytes_per_second(time.algbw)}",
        f"busbw    {format_bytes_per_second(time.busbw)}  ({factor})",
        *_nccl_lines(time),
        f"limit    {links} {load}: {limit['busy'] / time.duration:.1%} of the time",
        f"latency  {limit['latency'] * 1e3:.6f} ms in all rounds: {limit['latency'] / time.duration:.1%} of the time",
    ]


def _nccl_lines(time: CollectiveTime) -> list[str]:
    """What NCCL picked and why, and what it makes of the call by itself."""
    from simcluster.units import format_bytes_per_second

    method = time.method
    if method.pace is None:
        return []
    seconds = method.pace.latency + time.size / method.pace.bandwidth
    return [
        f"nccl     {method.why}",
        f"         on free links {seconds * 1e3:.6f} ms: {method.pace.latency * 1e6:.1f} us latency, then "
        f"{format_bytes_per_second(method.pace.bandwidth)} of algbw",
    ]


def _table_line(job: _Job, row: _Row, *, first: bool) -> str:
    """A line of the table that users know from nccl-tests, after its head if it is the first."""
    time = row.slowest
    size = int(time.size)
    count = size // _ELEMENT_BYTES // (len(time.gpus) if job.kind in _SPREAD else 1)
    cells = (str(size), str(count), "float", f"{time.duration * 1e6:.3f}")
    how = f"{time.algorithm} {time.method.protocol}".rstrip()
    line = _aligned((*cells, f"{time.algbw / 1e9:.2f}", f"{time.busbw / 1e9:.2f}", how))
    if not first:
        return " " + line
    head = [f"# {text}" for text in _headline(job, row)]
    return "\n".join([*head, "#", *("#" + _aligned(texts) for texts in _HEADER), " " + line])


def _aligned(cells: Sequence[str]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _document(job: _Job, detail: str, rows: Sequence[_Row]) -> dict[str, object]:
    """What --json writes, in B, s and B/s; of several groups the slowest one's times."""
    return {
        "collective": job.kind,
        "detail": detail,
        "nccl": job.nccl,
        "cluster": job.cluster.name,
        "cluster_gpus": len(job.cluster.gpus),
        "groups": len(job.groups),
        "gpus_per_group": len(job.groups[0]),
        "results": [
            {
                "size_bytes": row.slowest.size,
                "time_s": row.slowest.duration,
                "algbw_bytes_per_s": row.slowest.algbw,
                "busbw_bytes_per_s": row.slowest.busbw,
                "algorithm": row.slowest.algorithm,
                "protocol": row.slowest.method.protocol,
                "limit": row.limit,
            }
            for row in rows
        ],
    }
