"""Command ``simcluster import``, which converts other tools' files to a scenario, a model or a topology."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.input_files import decode_utf8, read_input_bytes
from simcluster.documents.overrides import apply_overrides
from simcluster.documents.yaml_documents import Document
from simcluster.importers.astra_network import build_astra_document, parse_astra_network
from simcluster.importers.cluster_document import ImportSpec
from simcluster.importers.deepspeed import scenario_from_deepspeed
from simcluster.importers.file_kinds import check_framework
from simcluster.importers.hugging_face import (
    USUAL_LENGTH,
    import_model_config,
    model_at_default_length,
    model_from_config,
    parse_config_json,
)
from simcluster.importers.import_result import ImportResult
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.importers.megatron_bridge import scenario_from_bridge
from simcluster.importers.named_models import NamedModel, find_published_model_name, load_published_model
from simcluster.importers.nemo import scenario_from_nemo
from simcluster.importers.peft_adapters import import_adapters
from simcluster.importers.shell.shell_parser import is_shell_script
from simcluster.importers.torchtitan import scenario_from_torchtitan
from simcluster.importers.trainer_commands import is_trainer_option_file
from simcluster.importers.trainer_scripts import scenario_from_trainer
from simcluster.importers.training_logs import (
    PrintedDeepSpeedConfig,
    clean_log_text,
    has_step_times,
    measure_step_time,
    parse_printed_deepspeed,
)
from simcluster.longrun.launch.first_scenario import build_model_scenario
from simcluster.scenario.document_resolution import load_cluster, load_topology
from simcluster.scenario.scenario import from_document
from simcluster.topology.fabrics import DragonflyPlusSpec, MachinesSpec

_KIND_OPTIONS = {
    "megatron": "cluster gpus log arg", "megatron-bridge": "cluster gpus log arg",
    "torchtitan": "cluster gpus log arg sequence-length", "nemo": "cluster gpus log arg",
    "deepspeed": "cluster gpus log arg sequence-length model", "hugging-face": "cluster gpus sequence-length",
    "torch": "cluster gpus sequence-length", "astra-network": "device",
}  # fmt: skip
"""For each import kind, the options that it uses and that some other kind does not use."""
KINDS = tuple(_KIND_OPTIONS)
_READERS: dict[str, Callable[..., ImportResult]] = {
    "megatron": scenario_from_arguments, "megatron-bridge": scenario_from_bridge, "nemo": scenario_from_nemo,
    "torchtitan": scenario_from_torchtitan, "deepspeed": scenario_from_trainer,
}  # fmt: skip
_OPTIONS = ("cluster", "device", "gpus", "model", "sequence-length", "log", "arg")
_MAX_BYTES, _MAX_LOG = 2_000_000, 100_000_000
_LOGS = (".log", ".out", ".err", ".txt")
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_ARG_SUFFIXES = {"nemo": (".py",), "megatron-bridge": (".py",), "deepspeed": _SCRIPTS, "torchtitan": _SCRIPTS}
"""Kinds that take --arg for files with these suffixes; megatron always does."""
_MAX_PARENT_FOLDERS = 8  # parents of a file, searched for paths that it names
_LISTS = ("mapped", "facts", "no_effect", "assumed", "unknown")
_GPU_WORDS = re.compile(r"\b(dp|ranks|GPUs)\b")


def run(args: argparse.Namespace) -> None:
    """Import the file named on the command line, check the result, and write it."""
    if args.kind not in KINDS:
        raise InputError(f"unknown kind {args.kind!r}{did_you_mean(args.kind, KINDS)}; known: {', '.join(KINDS)}")
    file, _, function = args.file.rpartition(":")
    named = file.endswith(".py") and function.isidentifier()  # as in config_registry.py:llama3_8b
    args.file, args.function = (file, function) if named else (args.file, "")
    text = _read_import_text(args.file)
    check_framework(text, args.file, args.kind)
    _check_options(args)
    readers = {"hugging-face": _import_config_json, "astra-network": _import_astra_topology, "torch": _import_module}
    try:
        found = readers.get(args.kind, _import_as_scenario)(args, text)
    except RecursionError:
        raise InputError(
            f"{args.file}: refers to itself or is nested too deeply; give the part that configures the training"
        ) from None
    found.refuse_unknown(args.file, strict=args.strict, by_option=args.kind in ("megatron", "deepspeed"))
    if found.unknown:
        print(
            f"note: {args.file}: ignored unknown settings: {', '.join(found.unknown)}; their effect on the step time "
            f"is unknown (--strict refuses them)",
            file=sys.stderr,
        )
    yaml = found.to_yaml_text(f"{args.kind}: {'stdin' if args.file == '-' else args.file}")
    if args.output:
        common.write_text_atomic(args.output, yaml)
    lists = {name: list(getattr(found, name)) for name in _LISTS}
    counts = {"mapped": "mapped", "no_effect": "without effect", "assumed": "assumed", "unknown": "unknown"}
    summary = ", ".join(
        f"{len(lists[name])} {what}" for name, what in counts.items() if lists[name] or what != "unknown"
    )
    common.print_answer(
        args,
        lambda: (
            f"{common.report_written_file(args, args.output)}: {summary}" if args.output else yaml.removesuffix("\n")
        ),
        lambda: {"document": found.document, **lists},
    )


def _check_options(args: argparse.Namespace) -> None:
    """Raise InputError for an option that this kind of import does not use, and for a missing required option."""
    taken = set(_KIND_OPTIONS[args.kind].split())
    if args.kind != "megatron" and not args.file.endswith(_ARG_SUFFIXES.get(args.kind, ())):
        taken.discard("arg")
    if args.kind == "torchtitan" and not args.file.endswith(".py"):
        taken.discard("sequence-length")
    if args.kind in ("hugging-face", "torch") and not args.cluster:
        taken.discard("gpus")
        if args.set or args.overrides:
            raise InputError("--set changes a scenario, but only a model is written; add --cluster to get a scenario")
    for name in _OPTIONS:
        if name not in taken and getattr(args, name.replace("-", "_")) not in (None, []):
            raise InputError(f"--{name} does not apply to {args.kind}; remove it")
    if "log" in taken and not args.cluster:
        raise InputError("--cluster is missing; name the cluster to run on, as in --cluster dgx_h100")
    if "device" in taken and not args.device:
        raise InputError("--device is missing; name the GPU to simulate for each NPU, as in --device h100")
    if args.gpus is not None and args.gpus < 1:
        raise InputError(f"--gpus {args.gpus}: a job needs at least 1 GPU")
    if args.kind in ("hugging-face", "torch") and args.sequence_length is not None and args.sequence_length < 1:
        raise InputError(f"--sequence-length {args.sequence_length}: a sequence has at least 1 token")


def _read_import_text(name: str) -> str:
    if name != "-":
        raw = read_input_bytes(name)
    else:
        raw = sys.stdin.buffer.read(_MAX_BYTES + 1)
        if not raw.strip():
            raise InputError("stdin is empty; paste the text to import")
    if len(raw) > (_MAX_LOG if name.endswith(_LOGS) else _MAX_BYTES):
        raise InputError(f"{name}: is larger than {_MAX_BYTES:,} bytes, the limit for such files; name a smaller file")
    return decode_utf8(raw, name)


def _import_as_scenario(args: argparse.Namespace, text: str) -> ImportResult:
    cluster = _build_cluster_section(args.cluster, args.output)
    found = _import_framework_file(args, text, cluster)
    document, available = found.document, _count_cluster_gpus(args.cluster)
    log = clean_log_text(decode_utf8(read_input_bytes(args.log), args.log) if args.log else text)
    if args.log or has_step_times(log):
        measured, words = measure_step_time(log, Path(args.log or args.file).name, {"gpus": available, **document})
        document, found = {**document, "measured": measured}, replace(found, facts=(*found.facts, words))
    document["cluster"] = _add_node_count(args.cluster, cluster, document.get("gpus"))
    try:
        changed = _apply_set_options(args, document)
    except InputError as problem:
        why = str(problem).replace("<document>: ", "")
        counted = [each for each in found.assumed if "--gpus" in each] if _GPU_WORDS.search(why) else []
        rests = f"\n  assumed: {'; '.join(counted)}" if counted else ""
        raise InputError(f"{args.file}: its settings are not a valid scenario: {why}{rests}") from None
    return replace(found, document=changed)


def _apply_set_options(args: argparse.Namespace, document: dict[str, Any]) -> dict[str, Any]:
    """Apply the --set changes to the document; raise InputError if the result is not a valid scenario."""
    folder = Path(args.output).parent if args.output else Path()
    changed = apply_overrides(Document(document, args.file, folder), read_overrides(args)).data
    from_document(changed, folder=folder)
    return changed


def _import_framework_file(args: argparse.Namespace, text: str, cluster: dict[str, Any]) -> ImportResult:
    """Return the scenario that a file of a training framework (such as Megatron-LM) describes."""
    available, machine = _count_cluster_gpus(args.cluster), _count_gpus_per_node(args.cluster)
    more: dict[str, Any] = {"cluster": cluster, "gpus": args.gpus, "available": available, "source": args.file}
    of_script = {"given": _parse_arg_options(args), "read_file": partial(_read_nearby_file, args.file)}
    printed = parse_printed_deepspeed(text, args.file) if args.kind == "deepspeed" else None
    starts = is_shell_script(text) or args.file.endswith(_SCRIPTS) or is_trainer_option_file(text)
    if args.kind == "deepspeed" and (printed or not starts):
        return _import_deepspeed(args, text, printed, more)
    if args.kind == "megatron" and (args.file.endswith(".py") or text.lstrip().startswith("{")):
        what = "is a Python program" if args.file.endswith(".py") else "is JSON"
        takes = "megatron takes a launch script (.sh), a program's arguments, or YAML"
        raise InputError(f"{args.file}: {what}; {takes}: give one of those")
    if args.kind == "deepspeed":
        more["model"] = _load_requested_model(args)
    if args.kind in ("deepspeed", "torchtitan"):
        more["sequence_length"] = args.sequence_length
    if args.kind in ("torchtitan", "nemo", "megatron-bridge"):
        more["function"] = args.function
    if args.kind != "megatron-bridge":
        more["gpus_per_node"] = machine[0] if machine else None
    reader = _READERS[args.kind]
    return reader(text, **of_script, **more)


def _import_deepspeed(
    args: argparse.Namespace, text: str, printed: PrintedDeepSpeedConfig | None, extra: dict[str, Any]
) -> ImportResult:
    named = _load_requested_model(args)
    if printed:
        text, extra = printed.config, {**extra, "launched": printed.ranks}
        named = named or (_model_from_config_json(printed.model, args, "the log") if printed.model else None)
    if not named:
        raise InputError(
            f"{args.file}: a DeepSpeed configuration has no model and no sequence length; give both, as in --model "
            "llama3-8b (or a config.json) and --sequence-length 4096"
        )
    length = {"sequence_length": args.sequence_length} if args.sequence_length else {}
    found = scenario_from_deepspeed(text, model={**named.section, **length}, **extra)
    if printed and printed.recomputes:
        found.document["training"]["recompute"] = "full"
    told = () if length else (f"{named.length} (--sequence-length changes it)",)
    return replace(found, assumed=(*found.assumed, *told))


def _load_requested_model(args: argparse.Namespace) -> NamedModel | None:
    """Return the model that --model names: a config.json, a built-in model or a published model."""
    if not args.model:
        return None
    path = Path(args.model)
    if path.suffix == ".json":
        return _model_from_config_json(
            parse_config_json(decode_utf8(read_input_bytes(path), args.model), args.model), args, args.model
        )
    return load_published_model(find_published_model_name(args.model) or load_model_entry(args.model)["name"])


def _model_from_config_json(config: dict[str, Any], args: argparse.Namespace, name: str) -> NamedModel:
    if args.sequence_length:
        return NamedModel(name, model_from_config(config, sequence_length=args.sequence_length))
    fields, length = model_at_default_length(config)
    return NamedModel(name, fields, length=length)


def _build_cluster_section(name: str, output: str | None) -> dict[str, Any]:
    """Return the scenario's cluster section, which names a built-in cluster or a file by relative path."""
    if not Path(name).exists():
        return {"topology": name}
    path = os.path.relpath(name, Path(output or "x").parent)
    return {"topology": path if "/" in path else f"./{path}"}


def _parse_arg_options(args: argparse.Namespace) -> dict[str, str]:
    """Parse the --arg options: values of a script's variables by name, and of its arguments by number."""
    given: dict[str, str] = {}
    for text in args.arg or []:
        name, equals, value = text.partition("=")
        if not equals or not (name == "@" or re.sub("[_-]", "a", name).isalnum()):
            raise InputError(
                f"--arg {text[:40]!r} is not NAME=VALUE; write it as in --arg GBS=512 (1=... sets the first argument)"
            )
        given[name] = value
    for number, word in enumerate(shlex.split(given.pop("@", "")), 1):
        given.setdefault(str(number), word)
    return given


def _read_nearby_file(file: str, name: str) -> str | None:
    """Return a file's text from the imported file's folder or a folder above; None if the file is in none of them."""
    folder = Path(file).parent
    searched = "/" in name and name.endswith((*_SCRIPTS, ".py", ".yaml", ".json"))
    around = list(folder.resolve().parents)[:_MAX_PARENT_FOLDERS] if searched else []
    paths = [*(place / name for place in (folder, *around)), folder / name.rsplit("/", 1)[-1]]
    path = next((path for path in paths if path.is_file() and path.stat().st_size), None) if file != "-" else None
    return None if path is None else decode_utf8(read_input_bytes(path), str(path))


def _count_gpus_per_node(name: str) -> tuple[int, int] | None:
    """Return a cluster's GPUs per host (as a launcher counts) and per topology node (a rack); None without nodes."""
    topology = load_topology(name)
    if isinstance(topology, MachinesSpec):
        return topology.machine.gpus, topology.machine.num_gpus
    each = getattr(topology, "gpus_per_node", None)
    return (each, each) if isinstance(each, int) and hasattr(topology, "nodes") else None


def _count_cluster_gpus(name: str) -> int:
    machine, nodes = _count_gpus_per_node(name), getattr(load_topology(name), "nodes", None)
    return machine[1] * nodes if machine and isinstance(nodes, int) else len(load_cluster(name).gpus)


def _add_node_count(name: str, cluster: dict[str, Any], gpus: int | None) -> dict[str, Any]:
    """Add the node count that the job needs to the cluster section, if the topology accepts any node count."""
    machine, fabric = _count_gpus_per_node(name), getattr(load_topology(name), "fabric", None)
    if not gpus or machine is None or isinstance(fabric, DragonflyPlusSpec):
        return cluster
    return {**cluster, "nodes": -(-gpus // machine[1])}


def _import_config_json(args: argparse.Namespace, text: str) -> ImportResult:
    """Import a config.json as a model or, with --cluster, as a scenario that trains it; or PEFT's adapters of one."""
    config, read_file = parse_config_json(text, args.file), partial(_read_nearby_file, args.file)
    if "peft_type" not in config:
        limit = USUAL_LENGTH if args.cluster else math.inf
        return _complete_model(args, import_model_config(config, args.file, args.sequence_length, limit))
    if not args.cluster:
        raise InputError(f"{args.file}: adapters are part of a scenario; add --cluster, as in --cluster dgx_h100")
    return _complete_model(args, import_adapters(config, args.file, args.sequence_length, read_file))


def _import_module(args: argparse.Namespace, text: str) -> ImportResult:
    """Import a PyTorch module, or the module that transformers makes of a config.json, by tracing it."""
    try:
        from simcluster.importers.torch_modules.torch_import import import_module
    except ModuleNotFoundError:
        raise InputError("tracing a module needs PyTorch; pip install 'simcluster[torch]'") from None
    return _complete_model(args, import_module(args.file, args.function, text, args.sequence_length))


def _complete_model(args: argparse.Namespace, found: ImportResult) -> ImportResult:
    """Return an imported model, or with --cluster a scenario that trains it on that cluster."""
    if not args.cluster:
        return found
    gpus, keys = args.gpus or _count_cluster_gpus(args.cluster), [path for path, _ in read_overrides(args)]
    cluster = _add_node_count(args.cluster, _build_cluster_section(args.cluster, args.output), gpus)
    folder = Path(args.output).parent if args.output else Path()
    job = {"cluster": cluster, "gpus": gpus, **found.document}
    document, notes = build_model_scenario(job, folder, found.assumed, keys)
    return replace(found, document=_apply_set_options(args, document), assumed=notes)


def _import_astra_topology(args: argparse.Namespace, text: str) -> ImportResult:
    dimensions = parse_astra_network(text, args.file)
    spec = ImportSpec(kind="import", files=(args.file,))
    name = "network" if args.file == "-" else Path(args.file).stem
    document = build_astra_document(dimensions, spec, args.device, name).to_dict()
    each = [f"{part.kind} of {part.npus}: {part.bandwidth / 1e9:.6g} GB/s (10^9 B) per link" for part in dimensions]
    return ImportResult(document, tuple(each), facts=tuple(each))
