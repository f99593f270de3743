"""Translation of options found only in Megatron-LM forks, and layer counts per model slice.

The forks are MindSpeed-LLM (Ascend NPUs), Pai-Megatron-Patch (Alibaba) and Intel's for Gaudi. ``megatron_options.yaml``
has the options that only differ in name. Names are those of their arguments.py, from knowledge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import join_or
from simcluster.importers.megatron_options import MegatronOptions

OptionWords = dict[str, tuple[str, ...]]

_PATTERNS = ("hybrid-layer-pattern", "hybrid-override-pattern")
_PREDICTED = "mtp-hybrid-override-pattern"
_LAYERS = re.compile(r"(?:\*[-E])+")
"""Pattern of blocks that are layers of attention and an MLP or experts; each ``/`` starts a multi-token prediction
layer. In other patterns each letter is a layer."""
_EQUIVALENT_SPECS = ("qwen3", "deepseek", "bailing", "magistral", "plm", "phi35_moe", "seed_oss", "minimax")
"""Layer specs equivalent to what the other options describe."""
_CONTEXT = {"megatron_cp_algo": "p2p", "ulysses_cp_algo": "a2a", "kvallgather_cp_algo": "all_gather"}
_REPLACED_OPTIONS = (
    "first-k-dense-replace", "n-shared-experts", "num-shared-experts", "moe-tp-extend-ep", "context-parallel-algo",
    "use-fused-sdpa", "reuse-fp32-param", "use-mc2",
)  # fmt: skip
"""Fork options that are replaced by other options."""
_DEEPSEEK_NAMES = {
    "num-routed-experts": "num-experts", "n-routed-experts": "num-experts",
    "moe-first-k-dense-replace": "first-k-dense-replace",
}  # fmt: skip
"""Option names as in the config.json of DeepSeek's models, with the standard names."""
_FORK_OPTIONS = {
    *_REPLACED_OPTIONS, *_DEEPSEEK_NAMES, "noop-layers", "num-layer-list", "schedules-method",
    "moe-alltoall-overlap-comm", "swap-optimizer", "qk-nope-head-dim", "use-ascend-coc",
}  # fmt: skip


def expand_hybrid_pattern(options: Mapping[str, tuple[str, ...]], source: str) -> tuple[OptionWords, tuple[str, ...]]:
    """Replace a hybrid layer pattern such as ``*-*E`` by equivalent transformer options."""
    name = next((each for each in _PATTERNS if each in options), "")
    if not name:
        return dict(options), ()
    pattern = "".join(options[name])
    ahead = _option_text(options, _PREDICTED).strip("'\\\"")
    if ahead and (depths := _option_number(options, "mtp-num-layers")) > 0 and "/" not in pattern:
        pattern = "/".join([pattern, *[ahead] * (0 if ahead == "none" else depths)])  # as its arguments.py does
        options = {key: words for key, words in options.items() if key != _PREDICTED}
    main, *predicted = pattern.split("/")
    if set(main) <= set("M*-E"):  # other patterns are rejected where they are read
        counts = {"num-layers": len(main)} | ({"mtp-num-layers": len(predicted)} if predicted else {})
        for key, count in counts.items():
            given = _option_text(options, key)
            if given.isdecimal() and int(given[:9]) != count:
                what = f"{given[:9]} differs from the {count} of {name} {pattern[:60]}, which Megatron-LM rejects"
                raise InputError(f"{source}: --{key}: {what}; correct one of them, or remove {key}")
    if not all(_LAYERS.fullmatch(each) for each in (main, *predicted)):
        gone = (*_PATTERNS, "is-hybrid-model", "spec", "encoder-num-layers")
        kept = {key: words for key, words in options.items() if key not in gone}
        layers = {"num-layers": (str(len(main)),), "hybrid-override-pattern": (pattern,)}
        layers |= {"mtp-num-layers": (str(len(predicted)),)} if predicted else {}
        return kept | layers, (f"{name} means {len(main)} layers, each of one layer kind",)
    kinds = main[1::2]
    found = {key: words for key, words in options.items() if key not in (*_PATTERNS, "is-hybrid-model", "spec")}
    found["num-layers"] = (str(len(kinds)),)
    if "E" in kinds:
        found["moe-layer-freq"] = (str([int(kind == "E") for kind in kinds]),)
    else:
        found.pop("num-experts", None)
    if predicted:
        found |= {"mtp-num-layers": (str(len(predicted)),), "hybrid-override-pattern": ("/".join(["", *predicted]),)}
    return found, (f"{name} means {len(kinds)} layers, each of attention and an MLP or experts",)


def uses_fork_options(options: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether any of the options exists only in a Megatron-LM fork."""
    return _option_text(options, "spec").startswith("mindspeed_llm.") or not _FORK_OPTIONS.isdisjoint(options)


def translate_fork_options(options: Mapping[str, tuple[str, ...]], source: str) -> tuple[OptionWords, tuple[str, ...]]:
    """Translate a Megatron-LM fork's options to Megatron-LM's; raise InputError for an unknown layer spec."""
    given = {_DEEPSEEK_NAMES.get(name, name): words for name, words in options.items()}
    found = {name: words for name, words in given.items() if name not in (*_REPLACED_OPTIONS, "enable-shared-expert")}
    assumed = []
    spec = _option_text(given, "spec")
    if spec.startswith("mindspeed_llm."):
        kind = spec.rpartition(".")[2].removesuffix("_spec")
        if kind not in _EQUIVALENT_SPECS:
            what = f"--spec {spec[:60]} selects layers that the options do not describe and that are not modelled"
            raise InputError(f"{source}: {what}; known specs: {join_or(_EQUIVALENT_SPECS)}")
        if kind == "minimax":
            assumed.append("query and key norms are per head, although this layer has one over all heads")
        del found["spec"]
    if "context-parallel-size" in given and (spec or "context-parallel-algo" in given):
        algorithm = _option_text(given, "context-parallel-algo", "ulysses_cp_algo")
        if algorithm in _CONTEXT:
            found.setdefault("cp-comm-type", (_CONTEXT[algorithm],))
        elif _option_text(given, "context-parallel-size") != "1":
            what = f"context-parallel-algo {algorithm[:40]} is not modelled; use one of {join_or(_CONTEXT)}"
            raise InputError(f"{source}: --{what}")
    if "gemm-gradient-accumulation-fusion" in given:  # the same fusion by a MindSpeed kernel
        found.pop("no-gradient-accumulation-fusion", None)
    if "num-experts" in given:
        found |= _fork_expert_options(given)
    if {"kv-lora-rank", "qk-nope-head-dim"} <= given.keys() and not any("latent-attention" in name for name in given):
        found["multi-latent-attention"] = ()
        assumed.append("attention is latent, as qk-nope-head-dim implies")
    if "use-fused-sdpa" in given and _option_text(given, "use-fused-sdpa", "1").lower() not in ("0", "false"):
        found["attention-backend"] = ("fused",)
    if "reuse-fp32-param" in given:
        found["use-precision-aware-optimizer"] = ()
        assumed.append("reuse-fp32-param is modelled as aware-16: the master copy has only the bits missing in bf16")
    if {"use-ascend-coc", "use-mc2"} & given.keys():
        found["tp-comm-overlap"] = ()
    return found, tuple(assumed)


def _fork_expert_options(options: OptionWords) -> OptionWords:
    """Return a fork's MoE options as Megatron-LM's: dense first layers, shared experts, experts not sharded over tp."""
    found: OptionWords = {}
    idle = len(_option_text(options, "noop-layers").split(",")) if "noop-layers" in options else 0
    layers = _option_number(options, "num-layers") - idle
    if "first-k-dense-replace" in options and layers > 0:
        dense, every = (
            _option_number(options, "first-k-dense-replace"),
            max(_option_number(options, "moe-layer-freq", 1), 1),
        )
        pattern = [int(number >= max(dense, 0) and number % every == 0) for number in range(layers)]
        found["moe-layer-freq"] = (str(pattern).replace(" ", ""),)
    width = _option_number(options, "moe-ffn-hidden-size") or _option_number(options, "moe-intermediate-size")
    shared = (_option_number(options, "n-shared-experts") or _option_number(options, "num-shared-experts")) * width
    if shared and "moe-shared-expert-intermediate-size" not in options:
        found["moe-shared-expert-intermediate-size"] = (str(shared),)
    if "moe-tp-extend-ep" in options:
        tp = _option_number(options, "tensor-model-parallel-size", 1)
        ep = tp * _option_number(options, "expert-model-parallel-size", 1)
        found |= {"expert-model-parallel-size": (str(ep),), "expert-tensor-parallel-size": ("1",)}
    return found


def _option_text(options: Mapping[str, tuple[str, ...]], name: str, default: str = "") -> str:
    return next(iter(options.get(name, ())), default)


def _option_number(options: Mapping[str, tuple[str, ...]], name: str, default: int = 0) -> int:
    word = _option_text(options, name)
    return int(word) if word.lstrip("-").isdecimal() and len(word) < 10 else default


def real_layer_flags(run: MegatronOptions) -> list[bool]:
    """Return for each layer index whether the layer is real rather than a no-op (listed in ``noop-layers``)."""
    count, text = run.require("num-layers", "encoder-num-layers"), run.get("noop-layers")
    idle = set((text or "").replace(" ", "").split(",")) - {""}
    if any(not word.isdecimal() or len(word) > 6 or int(word) >= count for word in idle):
        raise run.error("noop-layers", f"{str(text)[:40]!r} is not a list of layers from 0 to {count - 1}, as in 3,4")
    return [str(number) not in idle for number in range(count)]


def count_layers_per_slice(run: MegatronOptions, slices: int) -> list[int]:
    """Return each model slice's layer count; an empty list if the options do not determine the counts."""
    given, works = run.get("num-layer-list"), real_layer_flags(run)
    if given:
        words = re.split(r"[,\s]+", given.strip())
        counts = [int(word) if word.isdecimal() and len(word) < 7 else 0 for word in words]
        if len(counts) != slices or sum(counts) != len(works):
            raise run.error("num-layer-list", f"{given[:60]!r} must be {slices} layer counts that sum to {len(works)}")
    elif all(works) or len(works) % slices:
        return []
    else:
        counts = [len(works) // slices] * slices
    begins = [sum(counts[:number]) for number in range(slices)]
    return [sum(works[begin : begin + count]) for begin, count in zip(begins, counts, strict=True)]
