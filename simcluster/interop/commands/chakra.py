"""Command ``simcluster chakra``: simulate Chakra execution traces, or write those of a scenario."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import read_cluster_overrides, read_overrides
from simcluster.documents.given_files import decode_utf8, read_bytes
from simcluster.importers.astra_network import Dimension, is_astra_network, parse_network
from simcluster.scenario.files import load_cluster
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate_scenario
from simcluster.topology import Cluster

if TYPE_CHECKING:
    from simcluster.interop.chakra import PlayedTrace

_MAX_RANKS = 8


def run(args: argparse.Namespace) -> None:
    """Simulate or write Chakra traces, as ``args.action`` selects."""
    actions = {"play": _simulate_traces, "write": _write_traces}
    if args.action not in actions:
        hint = did_you_mean(args.action, actions)
        raise InputError(f"unknown action {args.action!r}{hint}; choose one of: play, write")
    actions[args.action](args)


def _simulate_traces(args: argparse.Namespace) -> None:
    from simcluster.interop.chakra import play_traces, read_traces

    if args.output:
        raise InputError("--output applies to chakra write; --nodes and --json write the simulated times")
    if not args.cluster:
        raise InputError("--cluster is missing; name the cluster to simulate on, as in --cluster dgx_h100")
    cluster, dimensions = _load_cluster(args, read_cluster_overrides(args))
    trace = read_traces(args.what, args.groups)
    result = play_traces(trace, cluster, dimensions=dimensions, roofline=args.roofline, nccl=args.nccl)
    common.print_answer(args, lambda: "\n".join(_report_lines(result, cluster)), result.to_dict)
    if args.nodes:
        import pandas as pd

        common.write_table(args.nodes, pd.DataFrame(result.nodes))


def _load_cluster(args: argparse.Namespace, overrides: list[tuple[str, Any]]) -> tuple[Cluster, Sequence[Dimension]]:
    if args.device:
        overrides = [*overrides, ("device", args.device)]
    dimensions: Sequence[Dimension] = ()
    if Path(args.cluster).suffix in (".yml", ".yaml") and Path(args.cluster).is_file():
        text = decode_utf8(read_bytes(args.cluster), args.cluster)
        dimensions = parse_network(text, args.cluster) if is_astra_network(text) else ()
    return load_cluster(args.cluster, overrides), dimensions


def _report_lines(result: PlayedTrace, cluster: Cluster) -> list[str]:
    found = result.to_dict()

    def line(name: str, seconds: float, text: str) -> str:
        return f"  {name:<16}{format_seconds(seconds):>9}   {text}".rstrip()

    lines = [
        f"{result.name}: {found['ranks']} ranks, {found['nodes']:,} nodes, on {cluster.name}", "",
        line("time", result.seconds, "until the last node ends"), line("compute", found["compute_s"], "mean per rank"),
        line("exposed", found["exposed_communication_s"], "communication that no compute overlaps, mean per rank"),
    ]  # fmt: skip
    slow = sorted(enumerate(result.rank_seconds), key=lambda each: -each[1])[:_MAX_RANKS]
    if slow[0][1] > min(result.rank_seconds):
        lines += ["", "last to finish: " + ", ".join(f"rank {rank} {format_seconds(end)}" for rank, end in slow)]
    return [*lines, *(f"note: {note}" for note in result.notes)]


def _write_traces(args: argparse.Namespace) -> None:
    from simcluster.interop.chakra import write_run
    from simcluster.interop.chakra.writer import require_few_ops

    for name in ("cluster", "device", "groups", "nodes"):
        if getattr(args, name):
            raise InputError(f"--{name} applies to chakra play; chakra write takes everything from the scenario")
    if not args.output:
        raise InputError("--output is missing; name the folder for the traces, as in -o traces/")
    scenario = load(args.what, read_overrides(args))
    require_few_ops(simulate_scenario(scenario), args.what)
    result = simulate_scenario(scenario, folded=False)
    files = write_run(result, args.output, Path(args.what).stem)
    step = format_seconds(result.step_time)
    common.print_answer(
        args,
        lambda: f"wrote {len(files):,} traces to {args.output}: {files[0].name}, ...; the simulated step takes {step}",
        lambda: {"files": [str(file) for file in files], "step_time_s": result.step_time},
    )
