"""Command ``simcluster chakra``: simulate Chakra execution traces, or export a simulated scenario as Chakra traces."""

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
from simcluster.documents.input_files import decode_utf8, read_input_bytes
from simcluster.importers.astra_network import NetworkDimension, is_astra_network, parse_astra_network
from simcluster.scenario.document_resolution import load_cluster
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate_scenario
from simcluster.topology import Cluster

if TYPE_CHECKING:
    from simcluster.interop.chakra import SimulatedTrace

_MAX_RANKS = 8


def run(args: argparse.Namespace) -> None:
    """Run the selected action of ``simcluster chakra``: simulate traces or write traces."""
    actions = {"simulate": _simulate_traces, "write": _write_traces}
    action = "simulate" if args.action == "play" else args.action  # its name up to version 0.1
    if action not in actions:
        hint = did_you_mean(action, actions)
        raise InputError(f"unknown action {action!r}{hint}; choose one of: simulate, write")
    actions[action](args)


def _simulate_traces(args: argparse.Namespace) -> None:
    from simcluster.interop.chakra import read_chakra_trace, simulate_trace

    if args.output:
        raise InputError("--output applies only to chakra write; to write simulated times, use --nodes or --json")
    if not args.cluster:
        raise InputError("--cluster is missing; name the cluster to simulate on, as in --cluster dgx_h100")
    cluster, dimensions = _load_cluster(args, read_cluster_overrides(args))
    trace = read_chakra_trace(args.what, args.groups)
    result = simulate_trace(trace, cluster, dimensions=dimensions, roofline=args.roofline, nccl=args.nccl)
    common.print_answer(args, lambda: "\n".join(_report_lines(result, cluster)), result.to_dict)
    if args.nodes:
        import pandas as pd

        common.write_table(args.nodes, pd.DataFrame(result.nodes))


def _load_cluster(args: argparse.Namespace, given: list[tuple[str, Any]]) -> tuple[Cluster, Sequence[NetworkDimension]]:
    if args.device:
        given = [*given, ("device", args.device)]
    dimensions: Sequence[NetworkDimension] = ()
    if Path(args.cluster).suffix in (".yml", ".yaml") and Path(args.cluster).is_file():
        text = decode_utf8(read_input_bytes(args.cluster), args.cluster)
        dimensions = parse_astra_network(text, args.cluster) if is_astra_network(text) else ()
    return load_cluster(args.cluster, given), dimensions


def _report_lines(result: SimulatedTrace, cluster: Cluster) -> list[str]:
    found = result.to_dict()

    def show(name: str, seconds: float, text: str) -> str:
        return f"  {name:<16}{format_seconds(seconds):>9}   {text}".rstrip()

    lines = [
        f"{result.name}: {found['ranks']} ranks, {found['nodes']:,} nodes, on {cluster.name}", "",
        show("time", result.seconds, "until the last node ends"), show("compute", found["compute_s"], "mean per rank"),
        show("exposed", found["exposed_communication_s"], "communication not overlapped with compute, mean per rank"),
    ]  # fmt: skip
    slow = sorted(enumerate(result.rank_seconds), key=lambda each: -each[1])[:_MAX_RANKS]
    if slow[0][1] > min(result.rank_seconds):
        lines += ["", "last to finish: " + ", ".join(f"rank {rank} {format_seconds(end)}" for rank, end in slow)]
    return [*lines, *(f"note: {note}" for note in result.notes)]


def _write_traces(args: argparse.Namespace) -> None:
    from simcluster.interop.chakra import write_run_as_chakra
    from simcluster.interop.chakra.writer import require_writable_op_count

    for name in ("cluster", "device", "groups", "nodes"):
        if getattr(args, name):
            raise InputError(f"--{name} applies only to chakra simulate; remove it: chakra write takes a scenario")
    if not args.output:
        raise InputError("--output is missing; name the folder for the traces, as in -o traces/")
    scenario = load(args.what, read_overrides(args))
    require_writable_op_count(simulate_scenario(scenario), args.what)
    result = simulate_scenario(scenario, folded=False)
    files = write_run_as_chakra(result, args.output, Path(args.what).stem)
    step = format_seconds(result.step_time)
    common.print_answer(
        args,
        lambda: f"wrote {len(files):,} traces to {args.output}: {files[0].name}, ...; the simulated step takes {step}",
        lambda: {"files": [str(file) for file in files], "step_time_s": result.step_time},
    )
