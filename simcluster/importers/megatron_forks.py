"""Options of forks of Megatron-LM as its own, and layers of a stage that do nothing.

The forks are MindSpeed-LLM (Ascend NPUs), Pai-Megatron-Patch and Megatron-LLaMA (Alibaba), Intel's for Gaudi, EPFL's
Megatron-LLM and that of MegaBlocks.
What only has another name is in ``megatron_options.yaml``.  Names are those of their arguments.py, from knowledge.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.importers.option_values import Options

Words = dict[str, tuple[str, ...]]

_PATTERNS = ("hybrid-layer-pattern", "hybrid-override-pattern")
_LAYERS = re.compile(r"(?:\*[-E])+")
"""A stack of single blocks: ``*`` is attention, ``-`` an MLP, ``E`` experts; behind each ``/`` is a layer that predicts
one more token.  Others, such as ``M`` (Mamba), are not modelled."""
_PLAIN_SPECS = ("qwen3", "deepseek", "bailing", "magistral", "plm", "phi35_moe", "seed_oss", "minimax")
"""Layer specifications that make what the other options say."""
_EPFL_MODELS = ("gpt", "llama", "llama2", "codellama", "falcon", "mistral", "gemma")
_CONTEXT = {"megatron_cp_algo": "p2p", "ulysses_cp_algo": "a2a", "kvallgather_cp_algo": "all_gather"}
_OWN = (
    "first-k-dense-replace", "n-shared-experts", "moe-tp-extend-ep", "context-parallel-algo", "noop-layers",
    "num-layer-list", "schedules-method", "reuse-fp32-param", "moe-alltoall-overlap-comm", "swap-optimizer",
    "num-shared-experts", "qk-nope-head-dim", "use-fused-sdpa", "use-mc2", "use-ascend-coc", "glu-activation",
    "model-name", "moe-num-experts", "overlapped-distributed-optimizer",
    "num-routed-experts", "n-routed-experts", "moe-first-k-dense-replace",
)  # fmt: skip
_READ = (
    "first-k-dense-replace", "n-shared-experts", "num-shared-experts", "enable-shared-expert", "moe-tp-extend-ep",
    "context-parallel-algo", "use-fused-sdpa", "reuse-fp32-param", "use-mc2",
)  # fmt: skip
"""Options of forks that other options take the place of."""
_AS_DEEPSEEK = {
    "num-routed-experts": "num-experts", "n-routed-experts": "num-experts",
    "moe-first-k-dense-replace": "first-k-dense-replace",
}  # fmt: skip
"""The number of experts beside those that are shared, and of the dense layers before them, by names that are like those
in the config.json of DeepSeek's models."""
_MEGABLOCKS = {
    "moe-num-experts": "num-experts", "moe-top-k": "moe-router-topk", "moe-loss-weight": "moe-aux-loss-coeff",
    "moe-capacity-factor": "moe-expert-capacity-factor",
}  # fmt: skip


def as_layers(options: Mapping[str, tuple[str, ...]]) -> tuple[Words, tuple[str, ...]]:
    """Return the options of the transformer that a hybrid pattern makes, if there is one, and what is assumed."""
    name = next((each for each in _PATTERNS if each in options), "")
    main, *predicted = " ".join(options.get(name, ())).split("/")
    if not _LAYERS.fullmatch(main) or any(not _LAYERS.fullmatch(each) for each in predicted):
        return dict(options), ()
    kinds = main[1::2]
    found = {key: words for key, words in options.items() if key not in (*_PATTERNS, "is-hybrid-model", "spec")}
    found["num-layers"] = (str(len(kinds)),)
    if "E" in kinds:
        found["moe-layer-freq"] = (str([int(kind == "E") for kind in kinds]),)
    else:
        found.pop("num-experts", None)
    if predicted:
        found["mtp-num-layers"] = (str(len(predicted)),)
    return found, (f"{name} makes {len(kinds)} layers of attention and an MLP or experts",)


def is_of_a_fork(options: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether the options are of a fork, by those that Megatron-LM has not."""
    return _spec(options).startswith("mindspeed_llm.") or any(name in options for name in _OWN)


def as_megatron(
    options: Mapping[str, tuple[str, ...]], source: str, gpus: int | None = None
) -> tuple[Words, tuple[str, ...]]:
    """Return the options by Megatron-LM's names, for a job of so many GPUs if that is known, and what is assumed.

    Raises InputError for a layer of another kind.
    """
    plain = {_AS_DEEPSEEK.get(name, name): words for name, words in options.items()}
    found, assumed = _of_megablocks(plain, gpus)
    spec = _spec(options)
    if spec.startswith("mindspeed_llm."):
        kind = spec.rpartition(".")[2].removesuffix("_spec")
        if kind not in _PLAIN_SPECS:
            what = f"--spec {spec[:60]} makes layers of another kind than the options say, and they are not modelled"
            raise InputError(f"{source}: {what}; of these they are known: {listed(_PLAIN_SPECS)}")
        if kind == "minimax":
            assumed.append("norms of queries and keys are taken for each head: this layer has one over all heads")
        del found["spec"]
    if "context-parallel-size" in found and (spec or "context-parallel-algo" in found):
        algorithm = _first(found.get("context-parallel-algo", ()), "ulysses_cp_algo")
        if algorithm in _CONTEXT:
            found.setdefault("cp-comm-type", (_CONTEXT[algorithm],))
        elif _first(found["context-parallel-size"]) != "1":
            what = f"context-parallel-algo {algorithm[:40]} is not modelled; one of {listed(_CONTEXT)} is"
            raise InputError(f"{source}: --{what}")
    if "gemm-gradient-accumulation-fusion" in found:  # the same fusion, by a kernel of MindSpeed's
        found.pop("no-gradient-accumulation-fusion", None)
    found = _of_megatron_llama(_of_epfl(found))
    if "num-experts" in found:
        found |= _experts(found)
    found = {name: words for name, words in found.items() if name not in _READ}
    if {"kv-lora-rank", "qk-nope-head-dim"} <= found.keys() and not any("latent-attention" in name for name in found):
        found["multi-latent-attention"] = ()
        assumed.append("attention is latent, as qk-nope-head-dim says, which is of models that have no other")
    if "use-fused-sdpa" in options and _first(options["use-fused-sdpa"], "1").lower() not in ("0", "false"):
        found["attention-backend"] = ("fused",)
    if "reuse-fp32-param" in options:
        found["use-precision-aware-optimizer"] = ()
        assumed.append("reuse-fp32-param keeps of a master copy what a bf16 weight lacks, as aware-16 does")
    if {"use-ascend-coc", "use-mc2"} & options.keys():
        found["tp-comm-overlap"] = ()
    return found, tuple(assumed)


def _of_megablocks(options: Words, gpus: int | None) -> tuple[Words, list[str]]:
    """MegaBlocks' experts: grouped, one to a token and a loss unless it is said, and shared over all of dp."""
    if "moe-num-experts" not in options:
        return options, []
    found: Words = {
        "moe-router-topk": ("1",), "moe-aux-loss-coeff": ("0.1",), "moe-token-dispatcher-type": ("alltoall",),
    }  # fmt: skip
    found |= {_MEGABLOCKS.get(name, name): words for name, words in options.items()} | {"moe-grouped-gemm": ()}
    if _first(found.get("moe-expert-capacity-factor", ())) == "0":  # no token is dropped
        del found["moe-expert-capacity-factor"]
    if found.pop("moe-expert-model-parallelism", None) is None:
        return found, []
    sizes = [_number(found, f"{axis}-model-parallel-size", 1) for axis in ("tensor", "pipeline")]
    replicas = (gpus or 0) // max(math.prod(sizes), 1)
    if not replicas:
        return found, ["moe-expert-model-parallelism shares experts over dp, whose size is not said (--gpus): ep 1"]
    found["expert-model-parallel-size"] = (str(math.gcd(replicas, _number(found, "num-experts", 1))),)
    return found, []


def _of_epfl(options: Words) -> Words:
    """Megatron-LLM's, whose linear layers have no biases unless ``use-bias`` is given and which names a gate; with one,
    too, an MLP of which nothing is said is four times as wide inside (``validate_args``, megatron/arguments.py)."""
    found = dict(options)
    gate = _first(found.pop("glu-activation", ()))
    if gate:
        found["swiglu" if gate == "swiglu" else "quick-geglu"] = ()
        hidden = _number(found, "hidden-size", 0)
        if hidden and "use-checkpoint-args" not in found:  # of which the width is told as not known
            found.setdefault("ffn-hidden-size", (str(4 * hidden),))
    if _first(found.get("model-name", ())) in _EPFL_MODELS:
        del found["model-name"]
        if found.pop("use-bias", None) is None:
            found["disable-bias-linear"] = ()
    return found


def _of_megatron_llama(options: Words) -> Words:
    """Megatron-LLaMA's, whose optimizer reduces and gathers bucket by bucket beside the passes
    (``OverlappedDistributedOptimizer``; ``reduce-bucket-size`` in elements, 5e8 where nothing is said)."""
    found = dict(options)
    if found.pop("overlapped-distributed-optimizer", None) is None:
        return found
    size = _first(found.pop("reduce-bucket-size", ()), "5e8")
    size = str(int(float(size))) if re.fullmatch(r"\d+(\.\d+)?(e\d{1,2})?", size) else size
    found |= dict.fromkeys(("use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather"), ())
    return found | {"ddp-bucket-size": (size,)}


def layers_that_work(run: Options) -> list[bool]:
    """Of each layer whether it is one: those of ``noop-layers`` hand on what they get."""
    count, text = run.needed("num-layers", "encoder-num-layers"), run.get("noop-layers")
    idle = set((text or "").replace(" ", "").split(",")) - {""}
    if any(not word.isdecimal() or len(word) > 6 or int(word) >= count for word in idle):
        raise run.error("noop-layers", f"{str(text)[:40]!r} is no list of layers from 0 to {count - 1}, as in 61,62,63")
    return [str(number) not in idle for number in range(count)]


def layers_of_slices(run: Options, slices: int) -> list[int]:
    """Return the layers of each slice, where a list of them or layers that do nothing say; else none."""
    given, works = run.get("num-layer-list"), layers_that_work(run)
    if given:
        words = re.split(r"[,\s]+", given.strip())
        counts = [int(word) if word.isdecimal() and len(word) < 7 else 0 for word in words]
        if len(counts) != slices or sum(counts) != len(works):
            raise run.error("num-layer-list", f"{given[:60]!r} does not cut {len(works)} layers into {slices}")
    elif all(works) or len(works) % slices:
        return []
    else:
        counts = [len(works) // slices] * slices
    begins = [sum(counts[:number]) for number in range(slices)]
    return [sum(works[begin : begin + count]) for begin, count in zip(begins, counts, strict=True)]


def _experts(options: Words) -> Words:
    """Of a mixture: dense layers before it, shared experts, and experts that are not cut over tp."""
    found: Words = {}
    dense, every = (
        _number(options, name, default) for name, default in (("first-k-dense-replace", 0), ("moe-layer-freq", 1))
    )
    layers = _number(options, "num-layers", 0) - len(_first(options.get("noop-layers", ())).split(",")) * (
        "noop-layers" in options
    )
    if "first-k-dense-replace" in options and layers > 0:
        pattern = [int(number >= max(dense, 0) and number % max(every, 1) == 0) for number in range(layers)]
        found["moe-layer-freq"] = (str(pattern).replace(" ", ""),)
    width = _number(options, "moe-ffn-hidden-size", 0) or _number(options, "moe-intermediate-size", 0)
    shared = (_number(options, "n-shared-experts", 0) or _number(options, "num-shared-experts", 0)) * width
    if shared and "moe-shared-expert-intermediate-size" not in options:
        found["moe-shared-expert-intermediate-size"] = (str(shared),)
    if "moe-tp-extend-ep" in options:
        tp = _number(options, "tensor-model-parallel-size", 1)
        found["expert-model-parallel-size"] = (str(tp * _number(options, "expert-model-parallel-size", 1)),)
        found["expert-tensor-parallel-size"] = ("1",)
    return found


def _spec(options: Mapping[str, tuple[str, ...]]) -> str:
    return _first(options.get("spec", ()))


def _first(words: tuple[str, ...], default: str = "") -> str:
    return words[0] if words else default


def _number(options: Mapping[str, tuple[str, ...]], name: str, default: int) -> int:
    word = _first(options.get(name, ()))
    return int(word) if word.lstrip("-").isdecimal() and len(word) < 10 else default
