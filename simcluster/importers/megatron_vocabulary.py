"""The rows of the embedding, from the options that name Megatron-LM a tokenizer, which is not read itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.named_models import model_sizes, published_names
from simcluster.importers.option_values import TOKENIZERS, UNREAD_TOKENIZERS, VOCABULARIES, Options

_DEFAULT = "GPT2BPETokenizer"
_ENDED = ("NullTokenizer", "NullMultimodalTokenizer")
"""Kinds whose vocab_size is _vocab_size_without_eod + 1 (megatron/training/tokenizer)."""
_OF_A_FILE = (
    *VOCABULARIES,
    "HuggingFaceTokenizer",
    "HFTokenizer",
    "SFTTokenizer",
    "PretrainedFromHF",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
)
"""Kinds that have as many tokens as their file: vocab-size is handed to NullTokenizer and TikTokenizer alone
(``_build_library_kwargs``, megatron/core/tokenizers/utils/build_tokenizer.py)."""
_WITHOUT_TOKENS = 1 / 40
"""The most rows of a published embedding that have no token, as a share of all (DeepSeek-V2: 2385 of 102400)."""
_SIZES = {"num-layers": "layers", "hidden-size": "hidden_size", "num-attention-heads": "heads"}
_INSIDE = {"ffn-hidden-size": "ffn_hidden_size", "num-query-groups": "kv_heads"}
_THOUSANDS = re.compile(r"(?<![a-z0-9.])v?(\d{2,3})k(?![a-z0-9])")  # nemotron_2_256k.model
_EXTENDED = re.compile(r"(?<![a-z])(ve|ext(end(ed)?)?|expand(ed)?|merged?|enlarged|added|resized?)(?![a-z])")
"""Words behind a known tokenizer's name that say of one that it has more tokens, as Mixtral-8x7B-v0.1-VE does."""
_LLAMA_3_ROTARY_BASE = ("500000",)
"""Llama 2 70B and Llama 3 70B have the same sizes, and Mistral 7B those of Llama 3 8B."""
_USUAL = re.compile(r"llama|gpt[-_]?2")
"""In the path of a file that is as its kind of tokenizer is known for."""
_FOLDERS = 2  # of the path of a file, in whose names a model may stand


def vocabulary_of(run: Options) -> int:
    """Return what is given, or follows from the tokenizer's kind or name, or from a known model of these sizes, and
    otherwise an assumed size; InputError where nothing is said of a tokenizer."""
    kind, name = run.get("tokenizer-type"), run.get("tokenizer-model")
    given = run.get("vocab-size") or run.get("pad-vocab-size-to")
    if given and kind in _ENDED and run.get("vocab-size"):
        run.assumed.append(f"{kind} adds a token for the end of a document to the {given} that vocab-size says")
        return int(given) + 1
    default = kind is None and run.get("vocab-file") is not None
    kind = _DEFAULT if default else kind
    file = run.get("vocab-file") if kind == _DEFAULT else name
    if given:
        return _given(run, int(given), kind, file)
    thousands, known = _THOUSANDS.search(str(file).lower()), _tokenizer_in(name or "")
    if file and thousands and not _tokenizer_in(file):
        size, why = 1000 * int(thousands[1]), f", as the name of {file} says"
    elif kind in VOCABULARIES and not known:
        by = ", what pretrain_gpt.py takes where no other is named," if default else ""
        unread = f"; whether {file} has as many is not read (--set model.vocab_size=...)" if _own(file) else ""
        run.assumed.append(f"{kind}{by} has {VOCABULARIES[kind]} tokens{unread}")
        return VOCABULARIES[kind]
    elif (kind is None and not name) or kind == "NullTokenizer":
        raise InputError(
            f"{run.source}: the size of the vocabulary is in the tokenizer, not in the arguments; add "
            "--vocab-size, as in --vocab-size 128256 (Llama 3)"
        )
    elif known := known or _tokenizer_in(kind or ""):
        more = " of the tokenizer that it extends; how many it adds is not read (--set model.vocab_size=...)"
        run.assumed.append(f"{name or kind} has {TOKENIZERS[known]} tokens{more * _is_extended(name or '', known)}")
        return TOKENIZERS[known]
    else:
        size, why = _unread(run, kind or "a tokenizer", name)
    run.assumed.append(f"a vocabulary of {size} tokens{why}")
    return size


def _given(run: Options, given: int, kind: str | None, file: str | None) -> int:
    """Return what vocab-size says, but for a kind that does not read it and a file that is known to have another
    number; where the file is not known that is noted."""
    if kind not in _OF_A_FILE or not run.get("vocab-size"):
        return given
    known = _tokenizer_in(file or "")
    if known and _is_extended(file or "", known):
        known = None
    size = TOKENIZERS[known] if known else None if _own(file) else VOCABULARIES.get(kind)
    if size is None:
        what = f"{kind} takes those of {file or 'its file'}, which is not read (--set model.vocab_size=...)"
        run.assumed.append(f"a vocabulary of {given} tokens, as given: {what}")
        return given
    if given == size or (known and abs(size - given) <= _WITHOUT_TOKENS * size):
        return given
    has, reads = (file, kind) if known else (kind, "it")
    run.assumed.append(f"{has} has {size} tokens: {reads} does not read the {given} that vocab-size says")
    return size


def _own(file: str | None) -> bool:
    """Return whether the file of a tokenizer may be another one than its kind is known for."""
    return file is not None and not _USUAL.search(file.lower()) and not file.endswith("/tokenizer.model")


def _unread(run: Options, kind: str, name: str | None) -> tuple[int, str]:
    """Return the size for a tokenizer whose kind and name do not tell it, and where that is from."""
    if alike := _alike(run):
        size = int(model_sizes(alike)["vocab_size"])
        return size, f", as of {alike}, which has these sizes: {kind} is not read"
    if named := _named(run):
        return TOKENIZERS[named], f", as the file's name says: {kind} is not read"
    size = next(size for part, size in UNREAD_TOKENIZERS.items() if part in kind)
    return size, f": the tokenizer ({kind} {name or ''}) is not read (--set model.vocab_size=...)"


def names_vocabulary(options: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether the kind or name of a tokenizer, as it stands in a command's options, says how many tokens it has."""
    kind, *names = (
        " ".join(options.get(name, ())) for name in ("tokenizer-type", "tokenizer-model", "tokenizer-name-or-path")
    )
    name = " ".join(names).lower()
    named = _tokenizer_in(f"{name} {kind}") is not None
    return kind in (_DEFAULT, "NullTokenizer") or named or _THOUSANDS.search(name) is not None


def _tokenizer_in(text: str) -> str | None:
    """Return the known tokenizer that a text names."""
    return next((part for part in TOKENIZERS if part in text.lower()), None)


def _is_extended(name: str, known: str) -> bool:
    """Return whether the name of a tokenizer says behind that of a known one that it has more tokens."""
    return _EXTENDED.search(name.lower().rpartition(known)[2]) is not None


def _alike(run: Options) -> str | None:
    """Return the model that has the same layers, width and heads, and whatever else is given of those that tell models
    of one size apart: groups of queries, widths inside MLP and experts, the base of rotary positions, the file's
    name."""
    sizes = {field: run.values.get(option) for option, field in _SIZES.items()}
    sizes |= {"gated_mlp": run.flag("swiglu")}
    inside = {field: run.values[option] for option, field in _INSIDE.items() if option in run.values}
    experts, width = run.values.get("num-experts") or 0, run.values.get("moe-ffn-hidden-size")

    def alike(model: Mapping[str, Any]) -> bool:
        moe, fields = model.get("moe", {}), {"kv_heads": model["heads"], **model}
        return (
            all(model[field] == size for field, size in sizes.items())
            and all(fields.get(field) in (value, None) for field, value in inside.items())
            and moe.get("experts", 0) == experts
            and (width is None or moe.get("expert_ffn_hidden_size") in (width, None))
        )

    named = "llama3" if run.given.get("rotary-base") == _LLAMA_3_ROTARY_BASE else _named(run)

    def unlike(name: str) -> tuple[bool, bool, bool]:
        size = int(model_sizes(name)["vocab_size"])
        other = named is not None and size != TOKENIZERS[named]
        return other, not name.startswith("llama"), size != TOKENIZERS["llama-2"]

    return min((name for name in published_names() if alike(model_sizes(name))), key=unlike, default=None)


def _named(run: Options) -> str | None:
    """Return the tokenizer that the names of the file and of its folders say, as in llama3/train_70b.sh."""
    return _tokenizer_in("/".join(run.source.replace("_", "-").split("/")[-1 - _FOLDERS :]))
