"""simcluster import: what other tools are started with, as a scenario, a model or a topology."""

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
from simcluster.cli.overrides import overrides_of
from simcluster.documents.catalogue.models import model_document
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.given_files import decode, read_bytes
from simcluster.documents.overrides import apply_overrides
from simcluster.documents.reading import Document
from simcluster.importers.astra_network import network_document, parse_network
from simcluster.importers.deepspeed import scenario_from_deepspeed
from simcluster.importers.file_kinds import require_kind
from simcluster.importers.hugging_face import (
    USUAL_LENGTH,
    assumptions_of_config,
    keys_of_config,
    model_at_usual_length,
    model_from_config,
    parameters_of_config,
    parse_config,
    told_of_length,
)
from simcluster.importers.import_parameters import ImportSpec
from simcluster.importers.imported import Imported
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.importers.megatron_bridge import scenario_from_bridge
from simcluster.importers.named_models import NamedModel, model_called, model_published
from simcluster.importers.nemo import scenario_from_nemo
from simcluster.importers.shell.syntax import is_script
from simcluster.importers.torchtitan import scenario_from_torchtitan
from simcluster.importers.trainer_commands import is_trainer_file
from simcluster.importers.trainer_scripts import scenario_of_trainer
from simcluster.importers.training_logs import deepspeed_printed, has_step_times, measured_of_log, plain_log
from simcluster.longrun.launch.first import scenario_of_model
from simcluster.scenario.files import load_cluster, load_topology
from simcluster.scenario.scenario import from_document
from simcluster.topology.fabrics import DragonflyPlusSpec, MachinesSpec

KINDS = ("megatron", "megatron-bridge", "torchtitan", "nemo", "deepspeed", "hugging-face", "astra-network")
_MAX_BYTES, _MAX_LOG = 2_000_000, 100_000_000
_LOGS = (".log", ".out", ".err", ".txt")
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_TAKE_ARG = {"nemo": (".py",), "megatron-bridge": (".py",), "deepspeed": _SCRIPTS, "torchtitan": _SCRIPTS}
"""Kinds whose files of these endings have arguments and variables; those of megatron always do."""
_MOST_FOLDERS = 8  # above a file, in which the path of another one may begin
_COUNTED = ("mapped", "no_effect", "assumed", "unknown")
_OF_GPUS = re.compile(r"\b(dp|ranks|GPUs)\b")


def run(args: argparse.Namespace) -> None:
    """Read, translate, check that it loads, write."""
    if args.kind not in KINDS:
        raise InputError(f"unknown kind {args.kind!r}{did_you_mean(args.kind, KINDS)}; known: {', '.join(KINDS)}")
    file, _, function = args.file.rpartition(":")
    named = file.endswith(".py") and function.isidentifier()  # as in config_registry.py:llama3_8b
    args.file, args.function = (file, function) if named else (args.file, "")
    text = _text(args.file)
    require_kind(text, args.file, args.kind)
    readers = {"hugging-face": _model, "astra-network": _topology}
    try:
        found = readers.get(args.kind, _scenario)(args, text)
    except RecursionError:
        raise InputError(
            f"{args.file}: refers to itself, or is nested too deeply to be read; give the part that sets the training"
        ) from None
    _tell_unknown(args, found)
    written = found.text(f"{args.kind}: {'stdin' if args.file == '-' else args.file}")
    if args.output:
        common.write_text(args.output, written)
    lists = {"mapped": found.mapped, "facts": found.facts, "no_effect": found.no_effect, "assumed": found.assumed,
             "unknown": found.unknown}  # fmt: skip
    counts = {name.replace("no_effect", "without effect"): len(lists[name]) for name in _COUNTED}
    summary = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what != "unknown")
    common.answer(
        args,
        lambda: f"{common.wrote(args, args.output)}: {summary}" if args.output else written.removesuffix("\n"),
        lambda: {"document": found.document, **{key: list(value) for key, value in lists.items()}},
    )


def _tell_unknown(args: argparse.Namespace, found: Imported) -> None:
    """Report the settings that are not known on stderr; raise InputError for those that cannot be passed over."""
    found.require_known(args.file, strict=args.strict, by_option=args.kind in ("megatron", "deepspeed"))
    if found.unknown:
        print(
            f"note: {args.file}: ignored, unknown: {', '.join(found.unknown)}; whether they change the time of a step "
            f"is not known here (--strict refuses them)",
            file=sys.stderr,
        )


def _text(name: str) -> str:
    """Return the text of the file, or of stdin."""
    if name != "-":
        raw = read_bytes(name)
    else:
        raw = sys.stdin.buffer.read(_MAX_BYTES + 1)
        if not raw.strip():
            raise InputError("stdin is empty; paste what is to be imported")
    if len(raw) > (_MAX_LOG if name.endswith(_LOGS) else _MAX_BYTES):
        raise InputError(
            f"{name}: is larger than {_MAX_BYTES:,} bytes, which no such file is; give the configuration alone"
        )
    return decode(raw, name)


def _scenario(args: argparse.Namespace, text: str) -> Imported:
    _refuse(args, "device")
    if args.kind != "deepspeed":
        registry = args.kind == "torchtitan" and args.file.endswith(".py")
        _refuse(args, "model", *(() if registry else ("sequence_length",)))
    if args.arg and args.kind != "megatron" and not args.file.endswith(_TAKE_ARG.get(args.kind, ())):
        _refuse(args, "arg")
    if not args.cluster:
        raise InputError("name the cluster that it is to run on, as in --cluster dgx_h100")
    if args.gpus is not None and args.gpus < 1:
        raise InputError(f"--gpus {args.gpus}: a job takes at least 1")
    if args.kind == "megatron" and text.lstrip().startswith("{"):
        raise InputError(f"{args.file}: holds JSON, and megatron takes a launch script, its arguments or YAML")
    if args.kind == "megatron" and args.file.endswith(".py"):
        raise InputError(
            f"{args.file}: is a program in Python, and megatron takes the arguments that one is launched with; name "
            "the launch script (.sh), or a file with its arguments"
        )
    readers: dict[str, Callable[..., Imported]] = {
        "megatron": scenario_from_arguments,
        "torchtitan": scenario_from_torchtitan,
        "nemo": scenario_from_nemo,
    }
    cluster = _cluster(args.cluster, args.output)
    found: Imported
    if args.kind == "deepspeed":
        found = _deepspeed(args, text, cluster)
    else:
        more: dict[str, Any] = {"available": _gpus_of(args.cluster), "beside": partial(_beside, args.file)}
        more |= {"given": _given(args)}
        more |= {"function": args.function} if args.kind != "megatron" else {}
        more |= {"sequence_length": args.sequence_length} if args.kind == "torchtitan" else {}
        if args.kind != "megatron-bridge":
            more["gpus_per_node"] = (_machine_of(args.cluster) or (None,))[0]
        reader: Callable[..., Imported] = readers.get(args.kind, scenario_from_bridge)
        found = reader(text, cluster=cluster, gpus=args.gpus, source=args.file, **more)
    document = found.document
    log = plain_log(decode(read_bytes(args.log), args.log) if args.log else text)
    if args.log or has_step_times(log):
        numbers = {"gpus": _gpus_of(args.cluster), **document}
        measured, words = measured_of_log(log, Path(args.log or args.file).name, numbers)
        document, found = {**document, "measured": measured}, replace(found, facts=(*found.facts, words))
    document["cluster"] = _sized(args.cluster, cluster, document.get("gpus"))
    folder = Path(args.output).parent if args.output else Path()
    changed = apply_overrides(Document(document, args.file, folder), overrides_of(args)).data
    try:
        from_document(changed, folder=folder)
    except InputError as problem:
        why = str(problem).replace("<document>: ", "")
        raise InputError(f"{args.file}: what it says makes no scenario: {why}{_counted(found, why)}") from None
    return replace(found, document=changed)


def _counted(found: Imported, why: str) -> str:
    """Return what was assumed of how many GPUs there are, behind a refusal that rests on it; empty of any other."""
    said = [each for each in found.assumed if "--gpus" in each] if _OF_GPUS.search(why) else []
    return f"\n  assumed: {'; '.join(said)}" if said else ""


def _deepspeed(args: argparse.Namespace, text: str, cluster: dict[str, Any]) -> Imported:
    """A DeepSpeed configuration with the model that is named beside it, or a script that starts a program with one."""
    more: dict[str, Any] = {
        "gpus": args.gpus,
        "available": _gpus_of(args.cluster),
        "cluster": cluster,
        "source": args.file,
    }
    printed = deepspeed_printed(text, args.file)
    if not printed and (is_script(text) or args.file.endswith(_SCRIPTS) or is_trainer_file(text)):
        machine = _machine_of(args.cluster)
        return scenario_of_trainer(
            text, model=_model_named(args), sequence_length=args.sequence_length, given=_given(args),
            gpus_per_node=machine[0] if machine else None, beside=partial(_beside, args.file), **more,
        )  # fmt: skip
    named = _model_named(args)
    if printed:
        text, more = printed.config, {**more, "launched": printed.ranks}
        named = named or (_model_of(printed.model, args, "the log") if printed.model else None)
    if not named:
        raise InputError(
            "a DeepSpeed configuration says nothing of the model and of the length of its sequences; name both: "
            "--model llama3-8b, or a config.json, and --sequence-length 4096"
        )
    length = {"sequence_length": args.sequence_length} if args.sequence_length else {}
    found = scenario_from_deepspeed(text, model={**named.section, **length}, **more)
    if printed and printed.recomputes:
        found.document["training"]["recompute"] = "full"
    told = () if length else (f"{named.length} (--sequence-length sets another)",)
    return replace(found, assumed=(*found.assumed, *told))


def _model_named(args: argparse.Namespace) -> NamedModel | None:
    """Return the model that --model names: a config.json, or one that is built in or known by its name."""
    if not args.model:
        return None
    path = Path(args.model)
    if path.suffix == ".json":
        return _model_of(parse_config(decode(read_bytes(path), args.model), args.model), args, args.model)
    return model_published(model_called(args.model) or model_document(args.model)["name"])


def _model_of(config: dict[str, Any], args: argparse.Namespace, name: str) -> NamedModel:
    """Return the model of a config.json at the length that is asked for, or at the usual one."""
    if args.sequence_length:
        return NamedModel(name, model_from_config(config, sequence_length=args.sequence_length))
    fields, length = model_at_usual_length(config)
    return NamedModel(name, fields, length=length)


def _cluster(name: str, output: str | None) -> dict[str, Any]:
    """Return the cluster section: the name that ships, or the path from where the scenario will lie."""
    if not Path(name).exists():
        return {"topology": name}
    folder = Path(output).parent if output else Path()
    path = os.path.relpath(name, folder)
    return {"topology": path if "/" in path else f"./{path}"}


def _given(args: argparse.Namespace) -> dict[str, str]:
    """Return the values of a script's variables, or of a program's arguments, by name or number."""
    given: dict[str, str] = {}
    for text in args.arg or []:
        name, equals, value = text.partition("=")
        if not equals or not (name == "@" or re.sub("[_-]", "a", name).isalnum()):
            raise InputError(
                f"--arg {text[:40]!r}: write NAME=VALUE, as in --arg GBS=512 (or 1=... for its first argument)"
            )
        given[name] = value
    for number, word in enumerate(shlex.split(given.pop("@", "")), 1):
        given.setdefault(str(number), word)
    return given


def _beside(file: str, name: str) -> str | None:
    """Return the text of a file that lies with the one that is read, or whose path begins in a folder around; None."""
    folder = Path(file).parent
    searched = "/" in name and name.endswith((*_SCRIPTS, ".py", ".yaml", ".json"))
    around = list(folder.resolve().parents)[:_MOST_FOLDERS] if searched else []
    paths = [*(place / name for place in (folder, *around)), folder / name.rsplit("/", 1)[-1]]
    path = next((path for path in paths if path.is_file() and path.stat().st_size), None) if file != "-" else None
    return None if path is None else decode(read_bytes(path), str(path))


def _machine_of(name: str) -> tuple[int, int] | None:
    """GPUs of a box, as launchers count machines, and of what the topology counts as one (a rack); None without."""
    topology = load_topology(name)
    if isinstance(topology, MachinesSpec):
        return topology.machine.gpus, topology.machine.num_gpus
    each = getattr(topology, "gpus_per_node", None)
    return (each, each) if isinstance(each, int) and hasattr(topology, "nodes") else None


def _gpus_of(name: str) -> int:
    """Return the GPUs of a topology."""
    machine, nodes = _machine_of(name), getattr(load_topology(name), "nodes", None)
    return machine[1] * nodes if machine and isinstance(nodes, int) else len(load_cluster(name).gpus)


def _sized(name: str, cluster: dict[str, Any], gpus: int | None) -> dict[str, Any]:
    """Return as many machines as the job takes, where the topology counts machines and takes any number of them."""
    machine, fabric = _machine_of(name), getattr(load_topology(name), "fabric", None)
    if not gpus or machine is None or isinstance(fabric, DragonflyPlusSpec):
        return cluster
    return {**cluster, "nodes": -(-gpus // machine[1])}


def _model(args: argparse.Namespace, text: str) -> Imported:
    """Return the model of a config.json; with a cluster the whole scenario, with a layout that fits."""
    _refuse(args, "device", "log", "model", *(("gpus",) if not args.cluster else ()))
    if args.sequence_length is not None and args.sequence_length < 1:
        raise InputError(f"--sequence-length {args.sequence_length}: a sequence has at least 1 token")
    config = parse_config(text, args.file)
    try:
        fields, assumed = _fields(config, args)
        count = parameters_of_config(config)
        mapped, idle, unknown = keys_of_config(config, sequence_length=fields["sequence_length"])
    except InputError as problem:
        raise InputError(f"{args.file}: {problem}") from None
    if not args.sequence_length:
        told = told_of_length(config)
        assumed, idle = (*assumed, *told.values()), tuple(key for key in idle if key not in told)
    active = f", of which a token meets {count.active:,}" if count.active < count.total else ""
    fact = f"{count.total:,} parameters{active}"
    if not args.cluster:
        return Imported({"model": fields}, mapped, idle, assumed, (fact,), unknown)
    gpus = args.gpus or _gpus_of(args.cluster)
    cluster = _sized(args.cluster, _cluster(args.cluster, args.output), gpus)
    folder = Path(args.output).parent if args.output else Path()
    document, chosen = scenario_of_model(fields, cluster, gpus, folder)
    changed = apply_overrides(Document(document, args.file, folder), overrides_of(args)).data
    from_document(changed, folder=folder)
    return Imported(changed, mapped, idle, (*assumed, *chosen), (fact,), unknown)


def _fields(config: dict[str, Any], args: argparse.Namespace) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of the model and what is assumed: without a length the longest, of a scenario 8192 at most."""
    if args.sequence_length:
        return model_from_config(config, sequence_length=args.sequence_length), assumptions_of_config(config)
    fields, length = model_at_usual_length(config, USUAL_LENGTH if args.cluster else math.inf)
    return fields, (*assumptions_of_config(config), f"{length} (--sequence-length sets another)")


def _topology(args: argparse.Namespace, text: str) -> Imported:
    _refuse(args, "cluster", "gpus", "sequence_length", "log", "model")
    if not args.device:
        raise InputError("say which GPU the NPUs are, as in --device h100")
    dimensions = parse_network(text, args.file)
    spec = ImportSpec(kind="import", files=(args.file,))
    name = "network" if args.file == "-" else Path(args.file).stem
    document = network_document(dimensions, spec, args.device, name).document()
    each = [f"{part.kind} of {part.npus}: {part.bandwidth / 1e9:.6g} GB/s (of 10^9 B) a link" for part in dimensions]
    return Imported(document, tuple(each), facts=tuple(each))


def _refuse(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} means nothing for {args.kind}; leave it out")
