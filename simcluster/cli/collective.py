"""simcluster collective: time one collective on an otherwise idle cluster, with output like nccl-tests."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from simcluster.base.counts import parse_number_ranges
from simcluster.base.errors import InputError, prefix_errors
from simcluster.base.units import format_bytes, format_seconds, parse_message_size
from simcluster.cli import collective_output as output
from simcluster.cli import common
from simcluster.cli.collective_output import ROOTED_KINDS, CollectiveJob, SizeResult
from simcluster.cli.common import read_cluster_overrides
from simcluster.cli.terminal import write_json
from simcluster.documents.csv_tables import read_message_sizes
from simcluster.scenario.document_resolution import load_cluster, load_topology
from simcluster.show.output_blocks import OutputBlocks, TableBlock, TextLines
from simcluster.studies.bench import collective as bench
from simcluster.studies.bench.collective_loads import find_busiest_links, measure_link_loads
from simcluster.topology import Cluster
from simcluster.traffic.nccl.log import compare_log, overall_verdict, read_log
from simcluster.traffic.nccl.platforms import load_platform, platform_names

_UNEVEN = "all_to_all_v"
_MOST_TRANSFERS = 50_000_000  # some four minutes


def run(args: argparse.Namespace) -> None:
    """Build the cluster, simulate the collective at each size, print and write the results."""
    if args.measured:
        _compare_with_log(args)
        return
    if args.smallest or args.largest:
        if args.size:
            raise InputError(f"--size {args.size}: -b and -e also set the sizes; give --size alone, or -b and -e")
        ends = (args.smallest or args.largest, args.largest or args.smallest)
        args.size = ":".join(f"{each} B" if each.isdecimal() else each for each in ends)
    _check_arguments(args)
    sizes = _parse_sizes(args.size, args.factor) if args.size else []
    job = _make_job(args)
    rows = []
    for row in _simulate_sizes(job, args.detail, sizes or [0]):
        rows.append(row)
        if args.json == "-":
            continue
        if len(sizes) < 2:
            print("\n".join(output.summary_lines(job, row)))
        else:
            print(output.size_table_line(job, row, with_header=len(rows) == 1), flush=True)  # one line per size
    if len(sizes) > 1 and args.json != "-":
        print("\n".join(f"# {line}" for line in output.hottest_link_lines(rows[-1].loads)))
    if args.json:
        write_json(args.json, output.results_json(job, args.detail, rows))
    if args.links:
        last = rows[-1]
        title = f"{job.name}, {last.slowest.algorithm}, {job.cluster.name}"
        output.write_links(args, args.links, job.cluster, last.loads, last.traffics, title)


def _check_arguments(args: argparse.Namespace) -> None:
    uneven = args.name is not None and _normalize_kind(args.name) == _UNEVEN
    if args.sizes and args.name and not uneven:
        raise InputError(f"--sizes {args.sizes}: only {_UNEVEN} takes a file of sizes; for {args.name} use --size")
    sized = {"--sizes": args.sizes} if uneven else {"--size": args.size, "--gpus": args.gpus or args.ranks}
    needed = {"NAME": args.name, **sized, "--cluster": args.cluster}
    missing = [option for option, value in needed.items() if value is None]
    if missing:
        example = f"{_UNEVEN} --sizes sizes.csv" if uneven else "all_reduce --size 1GiB --gpus 64"
        raise InputError(
            f"arguments are required: {', '.join(missing)}; write them, as in simcluster collective {example} "
            "--cluster dgx_h100"
        )
    if args.gpus and args.ranks:
        raise InputError(f"--gpus {args.gpus} and --ranks {args.ranks}: both choose the GPUs; give one of them")
    if uneven and args.size:
        raise InputError(f"--size {args.size}: {_UNEVEN} takes all sizes from the --sizes file; omit --size")


# --- the job ----------------------------------------------------------------------------------------------------------


def _make_job(args: argparse.Namespace) -> CollectiveJob:
    kind = _normalize_kind(args.name)
    sizes = read_message_sizes(args.sizes) if args.sizes else ()
    ranks = tuple(parse_number_ranges(args.ranks, "--ranks", "GPU") if args.ranks else range(args.gpus or len(sizes)))
    groups = _split_groups(ranks, args.split)
    if sizes and len(groups[0]) != len(sizes):
        each = "the group has" if len(groups) == 1 else "each group has"
        raise InputError(
            f"--sizes {args.sizes}: the file has {len(sizes)} ranks, but {each} {len(groups[0])} GPUs; make them equal"
        )
    kind = "all_to_all" if sizes else kind
    if args.root is not None and kind not in ROOTED_KINDS:
        raise InputError(f"--root {args.root}: {kind} has no root ({' and '.join(ROOTED_KINDS)} do); omit --root")
    cluster, note = _load_enlarged_cluster(args.cluster, read_cluster_overrides(args), max(ranks, default=-1) + 1)
    bench.make_collective_methods(cluster, kind, args.algorithm, nccl=args.nccl)
    return CollectiveJob(kind, args.algorithm, args.nccl, cluster, groups, note, args.root or 0, sizes)


def _normalize_kind(name: str) -> str:
    return name.replace("-", "_").lower()


def _split_groups(ranks: Sequence[int], split: str | None) -> tuple[tuple[int, ...], ...]:
    if split is None:
        return (tuple(ranks),)
    divisor = int(split[1:]) if split[:1] in ("%", "/") and split[1:].isdecimal() and len(split) < 12 else 0
    if divisor < 1:
        raise InputError(f"--split {split!r}: write %64 for groups of equal i mod 64, or /8 for groups of 8 neighbours")
    groups: dict[int, list[int]] = {}
    gpus = len(ranks)
    for place, gpu in enumerate(ranks):
        groups.setdefault(place % divisor if split[0] == "%" else place // divisor, []).append(gpu)
    if len({len(group) for group in groups.values()}) > 1:
        raise InputError(f"--split {split}: {gpus} GPUs do not make equal groups; use a number that divides {gpus}")
    return tuple(tuple(group) for group in groups.values())


def _load_enlarged_cluster(file: str, overrides: list[tuple[str, Any]], gpus: int) -> tuple[Cluster, str]:
    cluster = load_cluster(file, overrides)
    have = cluster.num_gpus
    if gpus <= have:
        return cluster, ""
    size = {name: value for name, value in load_topology(file, overrides) if isinstance(value, int)}
    given = dict(overrides)
    for name, each in (("nodes", size.get("gpus_per_node", 1)), ("gpus", 1)):
        if name in size:
            fits = f"{name}={-(-gpus // each)}"
            if name in given:
                raise InputError(f"--gpus {gpus}: cluster {cluster.name!r} has {have} GPUs; set {fits}")
            note = f", enlarged by {fits} (the file has {name}={size[name]})"
            return load_cluster(file, [*overrides, (name, -(-gpus // each))]), note
    raise InputError(f"--gpus {gpus}: cluster {cluster.name!r} has {have} GPUs; use at most {have}, or change {file}")


def _parse_sizes(text: str, factor: int) -> list[int]:
    first, colon, last = text.partition(":")
    low = _parse_whole_bytes(first)
    high = _parse_whole_bytes(last) if colon else low
    if high < low:
        raise InputError(f"--size {text!r}: the first size must not be larger than the second, as in 1MiB:8GiB")
    sizes = [low]
    while factor * sizes[-1] <= high:
        sizes.append(factor * sizes[-1])
    return sizes


def _parse_whole_bytes(text: str) -> int:
    size = parse_message_size(text)
    if not 1 <= size <= 1e18 or size != int(size):
        raise InputError(f"--size {text!r}: must be a whole number of bytes from 1 B to 1 EB")
    return int(size)


# --- what comes out ---------------------------------------------------------------------------------------------------


def _simulate_sizes(job: CollectiveJob, detail: str, sizes: Sequence[int]) -> Iterator[SizeResult]:
    wanted = [job.sizes] if job.sizes else sizes
    given: dict[str, Any] = {"algorithm": job.algorithm, "nccl": job.nccl}
    if detail == "steps":
        transfers = len(wanted) * len(job.groups)
        transfers *= bench.count_transfers(job.cluster, job.groups[0], job.kind, wanted[0], **given)
        if transfers > _MOST_TRANSFERS:
            raise InputError(
                f"--detail steps: {transfers:,} transfers would take too long; the limit is {_MOST_TRANSFERS:,}: "
                "use --detail flow, fewer GPUs or fewer sizes"
            )
    for size in wanted:
        times = bench.concurrent_collective_times(
            job.cluster, job.groups, job.kind, size, **given, root=job.root,
            detail=detail,  # type: ignore[arg-type]
        )  # fmt: skip
        slowest = max(times, key=lambda time: time.duration)
        given["algorithm"] = slowest.algorithm
        traffics = bench.collective_transfers(job.cluster, job.groups, job.kind, size, **given, root=job.root)
        given["algorithm"] = job.algorithm
        limit = find_busiest_links(job.cluster, traffics)
        yield SizeResult(slowest, limit, measure_link_loads(job.cluster, traffics), traffics)


# --- the health of a real cluster ------------------------------------------------------------------------------------


def _compare_with_log(args: argparse.Namespace) -> None:
    if args.platform is None:
        raise InputError(f"--measured needs --platform, one of {', '.join(platform_names())}")
    platform = load_platform(args.platform)
    log = read_log(args.measured)
    collective = args.name.replace("-", "_") if args.name else None
    with prefix_errors(args.measured):
        readings = compare_log(log, platform, args.machines, args.per_machine, collective)
        ratio, verdict = overall_verdict(readings)

    def blocks() -> OutputBlocks:
        rows = [
            [
                format_bytes(reading.size),
                format_seconds(reading.measured),
                format_seconds(reading.expected),
                f"{reading.ratio:.2f} x",
                reading.expected_by,
                reading.verdict + (f"; looks like {reading.looks_like}" if reading.looks_like else ""),
            ]
            for reading in readings
        ]
        overall = f"from 1 MiB up: {ratio:.2f} x the expected time (geometric mean): {verdict}"
        header = ["size", "measured", "expected", "ratio", "NCCL picks", "verdict"]
        return [TableBlock(header, rows), TextLines([overall])]

    document = {"ratio": ratio, "verdict": verdict, "rows": [asdict(reading) for reading in readings]}
    common.print_answer(args, blocks, lambda: document)
