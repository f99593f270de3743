"""A scenario from the arguments that Megatron-LM is launched with.

Defaults are Megatron-LM's (megatron/training/arguments.py), not those of a scenario.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.arguments import parse_arguments
from simcluster.importers.imported import Imported
from simcluster.importers.megatron_sections import (
    add_experts,
    add_latent_attention,
    attention_of,
    overlaps_batches,
    overlaps_experts,
    recompute_of,
    require_adam,
    training_of,
    window_of,
)
from simcluster.importers.option_values import VOCABULARIES, Options

_TOKENIZER = "GPT2BPETokenizer"
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
    source: str = "<arguments>",
) -> Imported:
    """The scenario of a pasted Megatron-LM command line on a cluster (as ``cluster`` stands in a scenario).

    ``gpus`` left out is what torchrun is told to start, and otherwise all of the cluster.
    ``available`` is how many GPUs the cluster has, where that is known.
    Raises InputError with all options that are not modelled or have no value that can be, all that are missing, and for
    what ``arguments.parse_arguments`` refuses.  An option that is not known is in ``unknown``.
    """
    arguments = parse_arguments(text, source)
    found = scenario_from_options(
        arguments.options, cluster=cluster, gpus=gpus or arguments.gpus, available=available, source=source,
        dashes="--", problems=arguments.problems,
    )  # fmt: skip
    if not arguments.launcher:
        return found
    facts = [f"launched by: {' '.join(arguments.launcher)[:200]}"]
    if gpus and arguments.gpus not in (None, gpus):
        facts.append(f"{gpus} GPUs as asked for, and not the {arguments.gpus} that it launches")
    return replace(found, facts=tuple(facts))


def scenario_from_options(
    options: Mapping[str, tuple[str, ...]],
    *,
    cluster: Mapping[str, Any],
    gpus: int | None,
    source: str,
    dashes: str = "",
    available: int | None = None,
    problems: Iterable[str] = (),
) -> Imported:
    """The scenario of options by Megatron-LM's names, each with the words behind it.

    InputError with ``problems`` and all that are found here.
    """
    run = Options(source, dashes, problems)
    run.sort(options)
    document: dict[str, Any] = {"cluster": dict(cluster)}
    if gpus:
        document["gpus"] = gpus
    document |= _sections(run, gpus, available)
    if run.flag("cross-entropy-loss-fusion"):
        document["memory"] = {"logits": "in-place"}
    if run.flag("no-gradient-accumulation-fusion"):
        document["software"] = {"accumulate": "separate", "source": "no-gradient-accumulation-fusion"}
    document = {key: value for key, value in document.items() if value not in ({}, None)}
    return Imported(document, tuple(run.values), tuple(run.no_effect), tuple(run.assumed), unknown=tuple(run.unknown))


def _sections(run: Options, gpus: int | None, available: int | None) -> dict[str, Any]:
    """Model, parallel, pipeline, training and overlap; InputError with all that stands against any of them."""
    for names in _NEEDED:
        run.problems.of(run.needed, *names)
    vocabulary = run.problems.of(_vocabulary, run)
    for check in (require_adam, recompute_of, attention_of):
        run.problems.of(check, run)
    model = run.problems.of(_model, run, vocabulary or 1)
    parallel = run.problems.of(_parallel, run)
    pipeline = training = overlap = None
    if parallel:
        run.problems.of(_require_gpus, parallel, gpus, available)
        training = run.problems.of(training_of, run, gpus, parallel)
        if model:
            pipeline = run.problems.of(_pipeline, run, model["layers"], parallel["pp"])
        if training is not None and pipeline is not None:
            overlap = run.problems.of(_overlap, run, training, pipeline, parallel["tp"])
    run.problems.tell()
    return {"model": model, "parallel": parallel, "pipeline": pipeline, "training": training, "overlap": overlap}


def _require_gpus(parallel: Mapping[str, Any], gpus: int | None, available: int | None) -> None:
    """InputError where nobody says how many GPUs the job takes and it does not go on all of the cluster's."""
    sizes = {axis: parallel.get(axis, 1) for axis in ("tp", "pp", "cp")}
    least = math.prod(sizes.values())
    if gpus is None and available is not None and available % least:
        what = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        raise InputError(
            f"how many GPUs the job takes is not said, and {what} = {least} does not divide the cluster's {available}; "
            f"add --gpus with a multiple of {least}"
        )


def _model(run: Options, vocabulary: int) -> dict[str, Any]:
    """The fields of ``Model``."""
    hidden, heads = run.needed("hidden-size"), run.needed("num-attention-heads")
    sequence, gated = run.needed("seq-length", "encoder-seq-length"), run.flag("swiglu", "quick-geglu")
    position = run.get("position-embedding-type") or "learned_absolute"
    if run.flag("use-rotary-position-embeddings") or position == "yarn":
        position = "rope"
    bias: bool | str = not run.flag("disable-bias-linear")
    narrow = int(4 * hidden * 2 / 3 / 64) * 64  # three matrices of it have the weights of two
    model: dict[str, Any] = {
        "layers": run.needed("num-layers", "encoder-num-layers"),
        "hidden_size": hidden,
        "heads": heads,
        "kv_heads": (run.get("num-query-groups") or 1) if run.flag("group-query-attention") else heads,
        "ffn_hidden_size": run.get("ffn-hidden-size") or (narrow if run.flag("swiglu") else 4 * hidden),
        "vocab_size": vocabulary,
        "sequence_length": sequence,
        "gated_mlp": gated,
        "tied_embeddings": not run.flag("untie-embeddings-and-output-weights"),
        "norm": "rmsnorm" if run.get("normalization") == "RMSNorm" else "layernorm",
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
    model |= window_of(run, model["layers"], sequence)
    if run.get("softmax-type") == "learnable":
        model["attention_sinks"] = True
    add_experts(run, model)
    add_latent_attention(run, model)
    return model


def _vocabulary(run: Options) -> int:
    tokenizer = run.get("tokenizer-type")
    default = tokenizer is None and run.get("vocab-file") is not None
    if default:
        tokenizer = _TOKENIZER
    size = run.get("vocab-size") or VOCABULARIES.get(tokenizer or "")
    if size is None:
        raise InputError(
            f"{run.source}: the size of the vocabulary is in the tokenizer, not in the arguments; add "
            "--vocab-size, as in --vocab-size 128256 (Llama 3)"
        )
    if not run.get("vocab-size"):
        why = ", what pretrain_gpt.py takes where no other is named," if default else ""
        run.assumed.append(f"{tokenizer}{why} has {size} tokens")
    return int(size)


def _parallel(run: Options) -> dict[str, Any]:
    tp = run.get("tensor-model-parallel-size", "model-parallel-size") or 1
    if run.get("num-experts") is None:
        run.without("num-experts", "the model is dense", ("expert-tensor-parallel-size",))
    parallel: dict[str, Any] = {"tp": tp, "pp": run.get("pipeline-model-parallel-size") or 1}
    sizes = {"context-parallel-size": "cp", "expert-model-parallel-size": "ep", "expert-tensor-parallel-size": "etp"}
    parallel |= {axis: run.get(name) for name, axis in sizes.items() if run.get(name)}
    comm = _context(run)
    if comm != "ring" and parallel.get("cp", 1) > 1:
        parallel["cp_comm"] = comm
    if run.flag("sequence-parallel"):
        if tp > 1:
            parallel["sequence_parallel"] = True
        else:
            run.assumed.append("sequence parallelism is switched off where tp is 1, as Megatron-LM does")
    shards = ("no_shard", "optim", "optim_grads", "optim_grads_params")
    strategy = run.get("data-parallel-sharding-strategy") or "no_shard"
    zero = shards.index(strategy)
    if run.flag("use-torch-fsdp2") or (run.flag("use-megatron-fsdp", "use-custom-fsdp") and zero == 0):
        zero = 3
    parallel["zero"] = max(zero, int(run.flag("use-distributed-optimizer")))
    if run.flag("use-tp-pp-dp-mapping"):
        parallel["order"] = ["tp", "cp", "pp", "dp"]
    return parallel


def _context(run: Options) -> str:
    """How queries meet the keys of other cp ranks; one word, or the same for every layer."""
    known = {"p2p": "ring", "all_gather": "all_gather", "a2a": "all_to_all"}
    words = dict.fromkeys((run.get("cp-comm-type") or "p2p").split())
    if len(words) != 1 or not known.keys() >= words.keys():
        what = f"{' '.join(words)[:40]!r} is not modelled; one of {', '.join(known)} for all layers is"
        raise run.error("cp-comm-type", what)
    return known[next(iter(words))]


def _pipeline(run: Options, layers: int, pp: int) -> dict[str, Any]:
    chunks = run.get("num-virtual-stages-per-pipeline-rank")
    per = run.get("num-layers-per-virtual-pipeline-stage")
    if per:
        if layers % (pp * per):
            raise run.error(
                "num-layers-per-virtual-pipeline-stage", f"{per} x {pp} stages does not divide {layers} layers"
            )
        if chunks and chunks != layers // (pp * per):
            raise run.error("num-virtual-stages-per-pipeline-rank", "says otherwise than the layers per virtual stage")
        chunks = layers // (pp * per)
    if pp == 1:
        return {}
    interleaved = (chunks or 1) > 1
    group = run.get("microbatch-group-size-per-virtual-pipeline-stage")
    pipeline: dict[str, Any] = {"schedule": "interleaved" if interleaved else "1f1b"}
    if interleaved:
        pipeline["chunks"] = chunks
        grouped = {"group_size": group} if group and group != pp else {}
        paired = {"pairs": True} if overlaps_batches(run) else {}
        if grouped or paired:
            pipeline["schedule"] = {"name": "interleaved", **grouped, **paired}
    if not interleaved or run.flag("no-overlap-p2p-communication"):
        pipeline["p2p"] = "rendezvous"
    first, last = run.get("decoder-first-pipeline-num-layers"), run.get("decoder-last-pipeline-num-layers")
    if first or last:
        pipeline["layers_per_stage"] = _uneven(run, layers, pp, first, last)
    if run.flag("no-scatter-gather-tensors-in-pipeline"):
        pipeline["scatter_gather"] = False
    return pipeline


def _uneven(run: Options, layers: int, pp: int, first: int | None, last: int | None) -> list[int]:
    """Layers of each stage where the ends have their own number and the rest is even."""
    rest, stages = layers - (first or 0) - (last or 0), pp - bool(first) - bool(last)
    if rest < 0 or (rest % stages if stages else rest):
        raise run.error(
            "decoder-first-pipeline-num-layers" if first else "decoder-last-pipeline-num-layers",
            f"leaves {rest} of {layers} layers for {stages} stages, which does not come out even",
        )
    middle = [rest // stages] * stages if stages else []
    return [*([first] if first else []), *middle, *([last] if last else [])]


def _overlap(run: Options, training: Mapping[str, Any], pipeline: Mapping[str, Any], tp: int) -> dict[str, Any]:
    overlap: dict[str, Any] = {
        "grad_reduce": run.flag("overlap-grad-reduce"),
        "param_gather": run.flag("overlap-param-gather"),
        "tensor": tp > 1 and not run.flag("no-async-tensor-model-parallel-allreduce"),
    }
    schedule = pipeline.get("schedule")
    paired = isinstance(schedule, dict) and schedule.get("pairs", False)
    if paired:
        overlap["pairs"] = True
    if overlaps_experts(run, paired=paired):
        overlap["experts"] = True
    if run.flag("tp-comm-overlap") and tp > 1:
        overlap["tensor_pieces"] = tp
        run.assumed.append("tp-comm-overlap cuts the products around collectives into tp pieces")
    bucket = run.get("ddp-bucket-size")
    if bucket:
        element = 2 if training.get("memory_recipe") == "mixed-16" else 4
        overlap["bucket_size"] = f"{bucket * element} B"
    return overlap
