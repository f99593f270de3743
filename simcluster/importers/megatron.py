"""A scenario from the arguments that Megatron-LM is launched with.

Defaults are Megatron-LM's (megatron/training/arguments.py), not those of a scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simcluster.importers.arguments import Arguments, parse_arguments, with_given
from simcluster.importers.beside import Beside, nothing_beside
from simcluster.importers.framework_files import arguments_of_framework, is_framework_file
from simcluster.importers.imported import Imported
from simcluster.importers.launches import arguments_of_script, is_script
from simcluster.importers.megatron_attention import attention_of
from simcluster.importers.megatron_forks import as_megatron, is_of_a_fork, layers_that_work
from simcluster.importers.megatron_hybrid import as_layers
from simcluster.importers.megatron_memory import memory_of
from simcluster.importers.megatron_models import whole_model, with_named_model
from simcluster.importers.megatron_parallel import (
    gpus_of,
    hybrid_of,
    parallel_of,
    sharded_parameters,
    uncut_experts,
)
from simcluster.importers.megatron_recompute import recompute_of
from simcluster.importers.megatron_sections import (
    add_experts,
    add_latent_attention,
    expert_kernels,
    overlaps_batches,
    overlaps_experts,
    require_adam,
    training_of,
    window_of,
)
from simcluster.importers.megatron_stages import pipeline_of
from simcluster.importers.megatron_vocabulary import vocabulary_of
from simcluster.importers.option_files import arguments_of_yaml, is_option_file
from simcluster.importers.option_values import Options, option_called
from simcluster.importers.pre_training import assumed_of_program, require_options_of_megatron, require_pre_training
from simcluster.importers.processes import filled_otherwise, started_by
from simcluster.importers.training_logs import arguments_printed
from simcluster.model.recipes import recipe_named

ALL_GPUS = "all GPUs of the cluster: how many there are to be is not said (--gpus says how many)"
_STARTS = ("it runs on", "the script starts")
_NEEDED = (
    ("num-layers", "encoder-num-layers"),
    ("hidden-size",),
    ("num-attention-heads",),
    ("seq-length", "encoder-seq-length"),
    ("micro-batch-size", "batch-size"),
)


def scenario_from_arguments(
    text: str,
    *,
    cluster: Mapping[str, Any],
    gpus: int | None = None,
    available: int | None = None,
    gpus_per_node: int | None = None,
    given: Mapping[str, str] | None = None,
    beside: Beside = nothing_beside,
    source: str = "<arguments>",
) -> Imported:
    """The scenario of a Megatron-LM command line, launch script, file of options in YAML or log, on a cluster (as
    ``cluster`` stands in a scenario).

    ``gpus`` left out is what the launcher is told to start, and otherwise all of the cluster, or the fewest that the
    layout takes.  ``available`` is how many GPUs the cluster has, where that is known.  ``given`` are values of a
    script's variables, and ``beside`` the text of a file that lies with it.
    Raises InputError with all options that are not modelled, have no value that can be or are missing, and for what
    ``arguments`` and ``launches`` refuse.  An option that is not known is in ``unknown``.
    """
    given = given or {}
    written = with_given(_written(text, source, given, beside, gpus_per_node, gpus), given)
    arguments, model = with_named_model(written, source, beside)
    options, assumed = as_layers(arguments.options)
    arguments = replace(arguments, options=options, assumed=(*arguments.assumed, *assumed))
    require_pre_training(arguments, source, layers=bool(assumed))
    if is_of_a_fork(arguments.options):
        options, assumed = as_megatron(arguments.options, source, gpus or arguments.gpus)
        arguments = replace(arguments, options=options, assumed=(*arguments.assumed, *assumed))
    found = scenario_from_options(
        arguments.options, cluster=cluster, gpus=gpus, launched=arguments.gpus, available=available,
        machine=gpus_per_node, source=source, dashes="--", problems=arguments.problems,
    )  # fmt: skip
    if model.name:
        own = {f"model.{name.replace('-', '_')}": words for name, words in written.options.items()}
        found.document["model"] = whole_model(model.section, found.document["model"], own)
    assumed = (*arguments.assumed, *found.assumed, *assumed_of_program(arguments))
    found = replace(found, assumed=assumed, unknown=(*found.unknown, *arguments.unknown))
    read = (name for name in written.options if name not in arguments.options)  # by what translates them
    found = replace(found, mapped=(*found.mapped, *read, *written.off))
    found = found.accounted((*written.options, *written.off), {name: option_called(name) for name in written.options})
    if not gpus and (said := _other_machines(arguments, gpus_per_node)):
        found = replace(found, assumed=(*found.assumed, said))
    if not gpus and (said := _gpus_not_said(arguments, found.document)):
        found = replace(found, assumed=(*found.assumed, f"{said} (--gpus says how many)"))
    if not arguments.launcher:
        return found
    facts = [f"launched by: {' '.join(arguments.launcher)[:200]}"]
    if gpus and arguments.gpus not in (None, gpus) and not arguments.machines_not_said:
        facts.append(f"{gpus} GPUs as asked for, and not the {arguments.gpus} that it launches")
    return replace(found, facts=tuple(facts))


def _written(
    text: str, source: str, given: Mapping[str, str], beside: Beside, gpus_per_node: int | None, gpus: int | None
) -> Arguments:
    """Return the arguments in a text of any kind."""
    if printed := arguments_printed(text, gpus_per_node):
        return printed
    if is_framework_file(text):
        return arguments_of_framework(text, source, beside)
    if is_option_file(text):
        return arguments_of_yaml(text, source)
    if is_script(text):
        return arguments_of_script(
            text, source, fixed=given, beside=beside, gpus_per_node=gpus_per_node, gpus=gpus
        )  # fmt: skip
    arguments = parse_arguments(text, source)
    require_options_of_megatron(arguments, source)
    launched, started = started_by(arguments.launcher, (), gpus_per_node)
    return replace(arguments, launched=launched, assumed=started)


def _other_machines(arguments: Arguments, gpus_per_node: int | None) -> str:
    """What is taken where the script starts so many processes on a machine that the cluster's are filled otherwise."""
    nodes, each = arguments.launched.get("nnodes", "1"), arguments.launched.get("nproc-per-node", "")
    if not (nodes.isdecimal() and each.isdecimal()):
        return ""
    return filled_otherwise(int(each), int(nodes), gpus_per_node)


def _gpus_not_said(arguments: Arguments, document: Mapping[str, Any]) -> str:
    """What is taken where a launch does not say on how many machines it is, or how many GPUs there are."""
    if arguments.gpus is None and "gpus" not in document:
        return f"all GPUs of the cluster: how many {_STARTS[bool(arguments.launcher)]} is not said"
    if arguments.machines_not_said and document.get("gpus") == arguments.gpus:
        return f"one machine of {arguments.gpus} GPUs: on how many the script starts is not said"
    if arguments.machines_by_default and document.get("gpus") == arguments.gpus:
        nodes = arguments.launched["nnodes"]
        return f"{nodes} machine{'s' * (nodes != '1')}, as {arguments.machines_by_default} is by default"
    return ""


def scenario_from_options(
    options: Mapping[str, tuple[str, ...]],
    *,
    cluster: Mapping[str, Any],
    gpus: int | None,
    source: str,
    dashes: str = "",
    launched: int | None = None,
    available: int | None = None,
    machine: int | None = None,
    problems: Iterable[str] = (),
) -> Imported:
    """The scenario of options by Megatron-LM's names, each with the words behind it.

    InputError with ``problems`` and all that are found here.
    """
    run = Options(source, dashes, problems)
    run.sort(options)
    document: dict[str, Any] = {"cluster": dict(cluster)}
    document |= _sections(run, gpus, launched, (available, machine))
    document["memory"] = memory_of(run)
    document["software"] = _software(run, document["model"].get("position", ""))
    document = {key: value for key, value in document.items() if value not in ({}, None)}
    return Imported(
        document, run.values.read, (*run.no_effect, *run.values.unread), tuple(dict.fromkeys(run.assumed)),
        unknown=tuple(run.unknown),
    )  # fmt: skip


def _sections(
    run: Options, gpus: int | None, launched: int | None, there: tuple[int | None, int | None]
) -> dict[str, Any]:
    """Model, parallel, pipeline, training and overlap; InputError with all that stands against any of them.

    ``there`` are the GPUs of the cluster and of one of its machines.
    """
    for names in (*_NEEDED, *_in_the_checkpoint(run)):
        run.problems.of(run.needed, *names)
    vocabulary = run.problems.of(vocabulary_of, run)
    for check in (require_adam, recompute_of, attention_of, memory_of):
        run.problems.of(check, run)
    model = run.problems.of(_model, run, vocabulary or 1)
    parallel = run.problems.of(parallel_of, run)
    pipeline = training = overlap = None
    if parallel:
        uncut_experts(run, parallel, gpus or launched)
        gpus = gpus or gpus_of(run, parallel, launched, *there)
        training = run.problems.of(training_of, run, gpus, parallel)
        if model:
            pipeline = run.problems.of(pipeline_of, run, model["layers"], parallel["pp"])
        if training is not None and pipeline is not None:
            overlap = run.problems.of(_overlap, run, training, pipeline, parallel)
    run.problems.tell()
    return {
        **({"gpus": gpus} if gpus else {}),
        "model": model, "parallel": parallel, "pipeline": pipeline, "training": training, "overlap": overlap,
        "fsdp": hybrid_of(run, parallel or {}, gpus or there[0]),
    }  # fmt: skip


def _in_the_checkpoint(run: Options) -> tuple[tuple[str, ...], ...]:
    """What else to ask for where the sizes are in a checkpoint: how wide its MLPs are inside."""
    there = "use-checkpoint-args" in run.given and "hidden-size" not in run.given
    return (("ffn-hidden-size",),) if there and "moe-ffn-hidden-size" not in run.given else ()


def _model(run: Options, vocabulary: int) -> dict[str, Any]:
    """The fields of ``Model``."""
    hidden, heads = run.needed("hidden-size"), run.needed("num-attention-heads")
    sequence, gated = run.needed("seq-length", "encoder-seq-length"), run.flag("swiglu", "quick-geglu")
    position = run.get("position-embedding-type") or "learned_absolute"
    if run.flag("use-rotary-position-embeddings") or position in ("yarn", "rotary", "mrope"):
        position = "rope"
    if position == "learned_absolute" and "no-position-embedding" in run.given:
        position = "none"
    if position == "alibi":
        run.assumed.append("ALiBi takes no time of its own within the kernel of attention, and has no parameters")
        position = "none"
    query_groups = run.get("num-query-groups", "num-key-value-heads")
    grouped = run.flag("group-query-attention") or run.get("num-key-value-heads")
    if query_groups and query_groups != heads and not grouped:  # core_transformer_config_from_args passes it over
        run.assumed.append("--num-query-groups counts with --group-query-attention alone, and all heads have keys")
    bias: bool | str = not run.flag("disable-bias-linear")
    model: dict[str, Any] = {
        "layers": sum(layers_that_work(run)),
        "hidden_size": hidden,
        "heads": heads,
        "kv_heads": (query_groups or 1) if grouped else heads,
        "ffn_hidden_size": run.get("ffn-hidden-size") or _inner_width(run, hidden),
        "vocab_size": vocabulary,
        "sequence_length": sequence,
        "gated_mlp": gated,
        "tied_embeddings": not run.flag("untie-embeddings-and-output-weights"),
        "norm": "rmsnorm" if (run.get("normalization") or "").lower() == "rmsnorm" else "layernorm",
        "position": "learned" if position == "learned_absolute" else position,
        "bias": "qkv" if not bias and run.flag("add-qkv-bias") else bias,
    }
    if run.get("kv-channels"):
        model["head_dim"] = run.get("kv-channels")
    rows = run.get("max-position-embeddings")
    if model["position"] == "learned" and rows and rows != sequence:
        model["position_rows"] = rows
    if run.flag("qk-layernorm"):
        model["qk_norm"] = "head"
    if run.get("make-vocab-size-divisible-by"):
        model["vocab_multiple"] = run.get("make-vocab-size-divisible-by")
    if run.flag("embed-layernorm"):
        model["embedding_norm"] = True
    predicted = run.get("mtp-num-layers")
    if predicted and sharded_parameters(run):
        which = "layer" if predicted == 1 else f"{predicted} layers"
        run.assumed.append(f"without the {which} of multi-token prediction, which FSDP is not modelled with")
    elif predicted:
        model["mtp_layers"] = predicted
    model |= window_of(run, model["layers"], sequence)
    if run.get("softmax-type") == "learnable":
        model["attention_sinks"] = True
    if run.get("activation-func-clamp-value") not in (None, "", "None", "null"):
        model["clamped_activation"] = True
    add_experts(run, model)
    add_latent_attention(run, model)
    return model


def _inner_width(run: Options, hidden: int) -> int:
    """The width inside an MLP of which nothing is said: of three matrices that have the weights of two, as wide as
    Megatron-LM rounds it, or as FlagScale does (Llama's multiple_of and ffn_dim_multiplier)."""
    if "use-checkpoint-args" in run.given and "moe-ffn-hidden-size" not in run.given:
        run.assumed.append(
            "MLPs have Megatron-LM's default width inside, and those of the checkpoint may have another "
            "(--arg=--ffn-hidden-size=... says it)"
        )
    if not run.flag("swiglu"):
        return 4 * hidden
    multiple, times = run.get("multiple-of"), run.get("hidden-dim-multiplier")
    if not multiple:
        return int(4 * hidden * 2 / 3 / 64) * 64
    try:
        width = int(int(4 * hidden * 2 / 3) * float(times or 1))
    except (ValueError, OverflowError):
        raise run.error("hidden-dim-multiplier", f"{str(times)[:40]!r} is not a number; give one, as in 1.3") from None
    return int(multiple * max(1, -(-width // multiple)))


def _software(run: Options, position: str) -> dict[str, Any]:
    """Return which mechanisms the step has, where options or the day's Megatron-Core say so."""
    software: dict[str, Any] = {}
    if run.flag("no-gradient-accumulation-fusion"):
        software |= {"accumulate": "separate", "source": "no-gradient-accumulation-fusion"}
    if run.get("num-experts") is not None and not run.flag("deepspeed"):
        software["probabilities"] = "activation"
        run.assumed.append(
            "the router's probabilities weigh in the experts' activation, as Megatron-Core's from 0.12 on"
        )
    if run.get("position-embedding-type") == "yarn" and not run.flag("multi-latent-attention"):
        software["rope"] = "steps"
        run.assumed.append("YaRN's positions are turned step by step: Transformer Engine's kernel takes no factor")
    if run.flag("no-rope-fusion") and position == "rope":
        software["rope"] = "steps"  # rope_utils.py's expression
    experts = expert_kernels(run)
    return software | ({"experts": experts} if experts else {})


def _overlap(
    run: Options, training: Mapping[str, Any], pipeline: Mapping[str, Any], parallel: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of ``Overlap``; torch's FSDP2 gathers ahead and reduces beside the backward, whatever flags say."""
    tp, sharded, fully = parallel["tp"], parallel["zero"] > 0, run.flag("use-torch-fsdp2")
    if run.flag("overlap-param-gather") and not sharded:
        run.assumed.append("overlap-param-gather says nothing without use-distributed-optimizer")
    overlap: dict[str, Any] = {
        "grad_reduce": run.flag("overlap-grad-reduce") or _by_torch(run) or fully,
        "param_gather": (run.flag("overlap-param-gather") and sharded) or fully,
        "tensor": tp > 1 and not run.flag("no-async-tensor-model-parallel-allreduce"),
    }
    schedule = pipeline.get("schedule")
    paired = isinstance(schedule, dict) and schedule.get("pairs", False)
    paired = paired or (schedule == "dualpipe-v" and overlaps_batches(run))
    if paired:
        overlap["pairs"] = True
    if overlaps_experts(run, paired=paired):
        overlap["experts"] = True
    if run.flag("tp-comm-overlap") and tp > 1:
        overlap["tensor_pieces"] = tp
        run.assumed.append("tp-comm-overlap cuts the products around collectives into tp pieces")
    bucket = run.get("ddp-bucket-size")
    if bucket:
        recipe = training.get("memory_recipe")
        overlap["bucket_size"] = f"{bucket * int(recipe_named(recipe).gradient if recipe else 4)} B"
    elif _by_torch(run):
        overlap["bucket_size"] = "25 MiB"  # DistributedDataParallel's bucket_cap_mb
    return overlap


def _by_torch(run: Options) -> bool:
    """Whether torch's DistributedDataParallel reduces gradients, beside the last backward as it always does."""
    return run.get("DDP-impl") == "torch" and not run.flag("deepspeed")
