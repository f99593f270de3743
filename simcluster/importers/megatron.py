"""Import of the arguments that Megatron-LM is launched with as a scenario.

Defaults are Megatron-LM's (megatron/training/arguments.py), not those of a scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simcluster.importers.arguments import Arguments, override_options, parse_arguments
from simcluster.importers.flat_settings import is_option_file, parse_option_file
from simcluster.importers.framework_files import is_framework_file, read_framework_file
from simcluster.importers.launches import is_script, parse_launch_script
from simcluster.importers.megatron_forks import expand_hybrid_pattern, translate_fork_options, uses_fork_options
from simcluster.importers.megatron_model import model_section
from simcluster.importers.megatron_models import adapt_model, add_named_model
from simcluster.importers.megatron_parallel import (
    choose_gpu_count,
    fsdp_section,
    overlap_section,
    parallel_section,
    set_unsharded_experts,
    software_section,
)
from simcluster.importers.megatron_stages import pipeline_section
from simcluster.importers.megatron_training import (
    attention_kernel,
    memory_section,
    recompute_fields,
    refuse_sgd,
    training_section,
)
from simcluster.importers.megatron_vocabulary import vocabulary_size
from simcluster.importers.option_values import MegatronOptions, current_option_name
from simcluster.importers.pre_training import check_megatron_options, check_pre_training, unread_program_assumption
from simcluster.importers.processes import count_processes_with_note, node_fill_assumption
from simcluster.importers.results import FileReader, ImportResult, read_no_file
from simcluster.importers.training_logs import parse_printed_arguments

ALL_GPUS_ASSUMPTION = "all GPUs of the cluster: the number is not stated (--gpus sets it)"
_REQUIRED_OPTIONS = (
    ("num-layers", "encoder-num-layers"), ("hidden-size",), ("num-attention-heads",),
    ("seq-length", "encoder-seq-length"), ("micro-batch-size", "batch-size"),
)  # fmt: skip


def scenario_from_arguments(
    text: str, *, cluster: Mapping[str, Any], gpus: int | None = None, available: int | None = None,
    gpus_per_node: int | None = None, given: Mapping[str, str] | None = None, read_file: FileReader = read_no_file,
    source: str = "<arguments>",
) -> ImportResult:  # fmt: skip
    """Return the scenario of a Megatron-LM command line, launch script, YAML of options or log on a cluster.

    ``cluster`` is the scenario's cluster section. ``gpus`` defaults to what the launcher starts, or to all of the
    cluster, or to the fewest that the layout needs. ``available`` is the cluster's GPU count, if known. ``given`` are
    values of a script's variables, and ``read_file`` gives the text of a file next to it. Raises InputError listing all
    options that are not modelled, have unusable values or are missing, and for what ``arguments`` and ``launches``
    refuse. An option that is not known is in ``unknown``.
    """
    given = given or {}
    written = override_options(_parse_any_arguments(text, source, given, read_file, gpus_per_node, gpus), given)
    arguments, model = add_named_model(written, source, read_file)
    options, assumed = expand_hybrid_pattern(arguments.options)
    check_pre_training(replace(arguments, options=options), source, layers=bool(assumed))
    if uses_fork_options(options):
        options, more = translate_fork_options(options, source)
        assumed = (*assumed, *more)
    arguments = replace(arguments, options=options, assumed=(*arguments.assumed, *assumed))
    found = scenario_from_options(
        options, cluster=cluster, gpus=gpus, launched=arguments.gpus, available=available, machine=gpus_per_node,
        source=source, dashes="--", problems=arguments.problems,
    )  # fmt: skip
    if model.name:
        own = {f"model.{name.replace('-', '_')}": words for name, words in written.options.items()}
        found.document["model"] = adapt_model(model.section, found.document["model"], own)
    said = (
        []
        if gpus
        else [_node_size_assumption(arguments, gpus_per_node), _gpu_count_assumption(arguments, found.document)]
    )
    facts = [f"launched by: {' '.join(arguments.launcher)[:200]}"] if arguments.launcher else []
    if facts and gpus and arguments.gpus not in (None, gpus) and not arguments.lacks_node_count:
        facts.append(f"{gpus} GPUs as requested, not the {arguments.gpus} that it launches")
    read = (name for name in written.options if name not in options)  # read by their translation
    return replace(
        found,
        assumed=(*arguments.assumed, *found.assumed, *unread_program_assumption(arguments), *filter(None, said)),
        unknown=(*found.unknown, *arguments.unknown),
        mapped=(*found.mapped, *read, *written.off),
        facts=tuple(facts),
    ).with_all_settings((*written.options, *written.off), {name: current_option_name(name) for name in written.options})


def _parse_any_arguments(
    text: str, source: str, given: Mapping[str, str], read_file: FileReader, gpus_per_node: int | None, gpus: int | None
) -> Arguments:
    """Parse Megatron-LM options from a command, a launch script, a YAML file or a log."""
    if printed := parse_printed_arguments(text, gpus_per_node):
        return printed
    if is_framework_file(text):
        return read_framework_file(text, source, read_file)
    if is_option_file(text):
        return parse_option_file(text, source)
    if is_script(text):
        return parse_launch_script(
            text, source, fixed=given, read_file=read_file, gpus_per_node=gpus_per_node, gpus=gpus
        )  # fmt: skip
    arguments = parse_arguments(text, source)
    check_megatron_options(arguments, source)
    launched, started = count_processes_with_note(arguments.launcher, (), gpus_per_node)
    return replace(arguments, launched=launched, assumed=started)


def _node_size_assumption(arguments: Arguments, gpus_per_node: int | None) -> str:
    """Return the assumption if the script's processes per node differ from the cluster's GPUs per node."""
    nodes, each = arguments.launched.get("nnodes", "1"), arguments.launched.get("nproc-per-node", "")
    known = nodes.isdecimal() and each.isdecimal()
    return node_fill_assumption(int(each), int(nodes), gpus_per_node) if known else ""


def _gpu_count_assumption(arguments: Arguments, document: Mapping[str, Any]) -> str:
    """Return the assumption if a launch does not state its number of nodes or GPUs."""
    if arguments.gpus is None and "gpus" not in document:
        starts = "the script starts" if arguments.launcher else "it runs on"
        return f"all GPUs of the cluster: how many {starts} is not stated (--gpus sets it)"
    if arguments.lacks_node_count and document.get("gpus") == arguments.gpus:
        starts = "the number of nodes is not stated (--gpus sets the GPUs)"
        return f"one node of {arguments.gpus} GPUs: {starts}"
    return ""


def scenario_from_options(
    options: Mapping[str, tuple[str, ...]], *, cluster: Mapping[str, Any], gpus: int | None, source: str,
    dashes: str = "", launched: int | None = None, available: int | None = None, machine: int | None = None,
    problems: Iterable[str] = (),
) -> ImportResult:  # fmt: skip
    """Return the scenario that a set of Megatron-LM options describes.

    ``available`` is the cluster's GPU count, ``machine`` that of one of its nodes. Raises InputError listing
    ``problems`` and all that are found here.
    """
    run = MegatronOptions(source, dashes, problems)
    run.classify_all(options)
    there = "use-checkpoint-args" in run.given and not {"hidden-size", "moe-ffn-hidden-size"} & run.given.keys()
    for names in (*_REQUIRED_OPTIONS, *((("ffn-hidden-size",),) if there else ())):  # also in the checkpoint
        run.problems.attempt(run.required, *names)
    vocabulary = run.problems.attempt(vocabulary_size, run)
    for check in (refuse_sgd, recompute_fields, attention_kernel, memory_section):
        run.problems.attempt(check, run)
    model = run.problems.attempt(model_section, run, vocabulary or 1)
    parallel = run.problems.attempt(parallel_section, run) or {}
    pipeline = training = overlap = None
    if parallel:
        set_unsharded_experts(run, parallel, gpus or launched)
        gpus = gpus or choose_gpu_count(run, parallel, launched, available, machine)
        training = run.problems.attempt(training_section, run, gpus, parallel)
        if model:
            pipeline = run.problems.attempt(pipeline_section, run, model["layers"], parallel["pp"])
        if training is not None and pipeline is not None:
            overlap = run.problems.attempt(overlap_section, run, training, pipeline, parallel)
    run.problems.raise_all()
    document: dict[str, Any] = {
        "cluster": dict(cluster), **({"gpus": gpus} if gpus else {}), "model": model, "parallel": parallel,
        "pipeline": pipeline, "training": training, "overlap": overlap,
        "fsdp": fsdp_section(run, parallel, gpus or available), "memory": memory_section(run),
        "software": software_section(run, (model or {}).get("position", "")),
    }  # fmt: skip
    document = {key: value for key, value in document.items() if value not in ({}, None)}
    return ImportResult(
        document, run.values.read_names, (*run.no_effect, *run.values.unread_names), tuple(dict.fromkeys(run.assumed)),
        unknown=tuple(run.unknown),
    )  # fmt: skip
