"""Import of Megatron-LM's launch arguments as a scenario.

Defaults are Megatron-LM's (megatron/training/arguments.py), not those of a scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simcluster.importers import pre_training_checks
from simcluster.importers.flat_settings import is_option_file, parse_option_file
from simcluster.importers.framework_files import is_flagscale_or_primus_file, read_flagscale_or_primus_file
from simcluster.importers.import_result import FileReader, ImportResult, read_no_file
from simcluster.importers.launch_arguments import LaunchArguments, override_options, parse_launch_command
from simcluster.importers.launch_scripts import is_shell_script, parse_launch_script
from simcluster.importers.megatron_forks import expand_hybrid_pattern, translate_fork_options, uses_fork_options
from simcluster.importers.megatron_model import model_section
from simcluster.importers.megatron_named_models import adapt_published_model, add_named_model
from simcluster.importers.megatron_options import MegatronOptions, current_option_name
from simcluster.importers.megatron_parallel import (
    choose_gpu_count,
    fsdp_section,
    overlap_section,
    parallel_section,
    set_etp_to_one_if_needed,
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
from simcluster.importers.process_counts import count_processes_with_note, partial_node_assumption
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
    """Return the scenario for Megatron-LM options in a command line, a launch script, a YAML file or a log.

    ``cluster`` is the scenario's cluster section. ``gpus`` defaults to what the launcher starts, or to all of the
    cluster, or to the fewest that the layout needs. ``available`` is the cluster's GPU count, if known. ``given`` are
    values of a script's variables, and ``read_file`` gives the text of a file next to it. Raises InputError listing all
    options that are not modelled, have unusable values or are missing, and for what ``launch_arguments`` and
    ``launch_scripts`` refuse. An option that is not known is in ``unknown``.
    """
    given = given or {}
    written = override_options(_parse_command_script_or_log(text, source, given, read_file, gpus_per_node, gpus), given)
    arguments, model = add_named_model(written, source, read_file)
    options, assumed = expand_hybrid_pattern(arguments.options, source)
    pre_training_checks.check_pre_training(replace(arguments, options=options), source, layers=bool(assumed))
    if uses_fork_options(options):
        options, more = translate_fork_options(options, source)
        assumed = (*assumed, *more)
    arguments = replace(arguments, options=options, assumed=(*arguments.assumed, *assumed))
    found = scenario_from_options(
        options, cluster=cluster, gpus=gpus, launched=arguments.process_count, available=available,
        node_gpus=gpus_per_node, source=source, dashes="--", problems=arguments.problems,
    )  # fmt: skip
    if model.name:
        own = {f"model.{name.replace('-', '_')}": words for name, words in written.options.items()}
        found.document["model"] = adapt_published_model(model.section, found.document["model"], own)
    said = [*pre_training_checks.unread_program_assumption(arguments)]
    if not gpus:
        said += [_node_size_assumption(arguments, gpus_per_node), _gpu_count_assumption(arguments, found.document)]
    facts = [f"launched by: {' '.join(arguments.launcher)[:200]}"] if arguments.launcher else []
    if facts and gpus and arguments.process_count not in (None, gpus) and not arguments.lacks_node_count:
        facts.append(f"{gpus} GPUs as requested, not the {arguments.process_count} that the launch starts")
    read = (name for name in written.options if name not in options)  # read by their translation
    names = {name: current_option_name(name) for name in written.options}
    return replace(
        found,
        assumed=(*arguments.assumed, *found.assumed, *filter(None, said)),
        unknown=(*found.unknown, *arguments.unknown),
        mapped=(*found.mapped, *read, *written.disabled_settings),
        facts=tuple(facts),
    ).classify_all_settings((*names, *written.disabled_settings), names)


def _parse_command_script_or_log(
    text: str, source: str, given: Mapping[str, str], read_file: FileReader, gpus_per_node: int | None, gpus: int | None
) -> LaunchArguments:
    """Parse Megatron-LM options from a command, a launch script, a YAML file of options or a log."""
    if printed := parse_printed_arguments(text, gpus_per_node):
        return printed
    if is_flagscale_or_primus_file(text):
        return read_flagscale_or_primus_file(text, source, read_file)
    if is_option_file(text):
        return parse_option_file(text, source)
    if is_shell_script(text):
        return parse_launch_script(
            text, source, user_values=given, read_file=read_file, gpus_per_node=gpus_per_node, gpus=gpus
        )  # fmt: skip
    arguments = parse_launch_command(text, source)
    pre_training_checks.check_megatron_options(arguments, source)
    launched, started = count_processes_with_note(arguments.launcher, (), gpus_per_node)
    return replace(arguments, launched=launched, assumed=started)


def _node_size_assumption(arguments: LaunchArguments, gpus_per_node: int | None) -> str:
    """Return the assumption made if a script's processes per node differ from the cluster's GPUs per node."""
    nodes, each = arguments.launched.get("nnodes", "1"), arguments.launched.get("nproc-per-node", "")
    known = nodes.isdecimal() and each.isdecimal()
    return partial_node_assumption(int(each), int(nodes), gpus_per_node) if known else ""


def _gpu_count_assumption(arguments: LaunchArguments, document: Mapping[str, Any]) -> str:
    """Return the assumption made if a launch states no number of nodes or GPUs."""
    if arguments.process_count is None and "gpus" not in document:
        starts = "the script starts" if arguments.launcher else "it runs on"
        return f"all GPUs of the cluster: how many {starts} is not stated (--gpus sets it)"
    if arguments.lacks_node_count and document.get("gpus") == arguments.process_count:
        starts = "the number of nodes is not stated (--gpus sets the GPUs)"
        return f"one node of {arguments.process_count} GPUs: {starts}"
    return ""


def scenario_from_options(
    options: Mapping[str, tuple[str, ...]], *, cluster: Mapping[str, Any], gpus: int | None, source: str,
    dashes: str = "", launched: int | None = None, available: int | None = None, node_gpus: int | None = None,
    problems: Iterable[str] = (),
) -> ImportResult:  # fmt: skip
    """Return the scenario for a set of Megatron-LM options.

    ``available`` is the cluster's GPU count, ``node_gpus`` that of one of its nodes. Raises InputError listing
    ``problems`` and all that are found here.
    """
    run = MegatronOptions(source, dashes, problems)
    run.classify_all(options)
    there = "use-checkpoint-args" in run.given and not {"hidden-size", "moe-ffn-hidden-size"} & run.given.keys()
    for names in (*_REQUIRED_OPTIONS, *((("ffn-hidden-size",),) if there else ())):  # also in the checkpoint
        run.problems.attempt(run.require, *names)
    vocabulary = run.problems.attempt(vocabulary_size, run)
    for check in (refuse_sgd, recompute_fields, attention_kernel, memory_section):
        run.problems.attempt(check, run)
    model = run.problems.attempt(model_section, run, vocabulary or 1)
    parallel = run.problems.attempt(parallel_section, run) or {}
    pipeline = training = overlap = None
    if parallel:
        set_etp_to_one_if_needed(run, parallel, gpus or launched)
        gpus = gpus or choose_gpu_count(run, parallel, launched, available, node_gpus)
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
