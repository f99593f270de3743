"""Vocabulary size derived from Megatron-LM's tokenizer options, without reading the tokenizer file."""

from __future__ import annotations

import re

from simcluster.base.errors import InputError
from simcluster.importers.megatron_options import TOKENIZERS, UNREAD_TOKENIZERS, VOCABULARIES, MegatronOptions
from simcluster.importers.named_models import published_model_fields, published_model_names

_DEFAULT_KIND = "GPT2BPETokenizer"
_KINDS_WITH_END_TOKEN = ("NullTokenizer", "NullMultimodalTokenizer")
"""Tokenizer kinds whose vocab_size is _vocab_size_without_eod + 1 (megatron/training/tokenizer)."""
_FILE_KINDS = {
    *VOCABULARIES, "HuggingFaceTokenizer", "HFTokenizer", "SFTTokenizer", "PretrainedFromHF", "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
}  # fmt: skip
"""Tokenizer kinds with as many tokens as their file: vocab-size is passed to NullTokenizer and TikTokenizer only
(``_build_library_kwargs``, megatron/core/tokenizers/utils/build_tokenizer.py)."""
_MAX_UNUSED_SHARE = 1 / 40
"""Maximum share of rows without a token in a published embedding (DeepSeek-V2: 2385 of 102400)."""
_SIZES = {"num-layers": "layers", "hidden-size": "hidden_size", "num-attention-heads": "heads"}
_OPTIONAL = {"ffn-hidden-size": "ffn_hidden_size", "num-query-groups": "kv_heads"}
_LLAMA_3_ROTARY_BASE = ("500000",)
"""Distinguishes Llama 3 70B from Llama 2 70B (same sizes), and Llama 3 8B from Mistral 7B."""
_EXTENSION_WORDS = re.compile(r"(?<![a-z])(ve|ext(end(ed)?)?|expand(ed)?|merged?|enlarged|added|resized?)(?![a-z])")
"""Words after a known tokenizer's name that mark an extended vocabulary, as in Mixtral-8x7B-v0.1-VE."""
_STANDARD_FILE = re.compile(r"llama|gpt[-_]?2|/tokenizer\.model$")
"""Pattern that the paths of standard tokenizer files match."""


def vocabulary_size(run: MegatronOptions) -> int:
    """Return the vocabulary size: the size given, that of the tokenizer's type or name, or an assumed one.

    Raises InputError if no tokenizer is given.
    """
    kind, name, given = run.get("tokenizer-type"), run.get("tokenizer-model"), run.get("vocab-size")
    if given and kind in _KINDS_WITH_END_TOKEN:
        run.assumed.append(f"{kind} adds an end-of-document token to the {given} of vocab-size")
        return int(given) + 1
    default = kind is None and run.get("vocab-file") is not None
    kind = _DEFAULT_KIND if default else kind
    file = run.get("vocab-file") if kind == _DEFAULT_KIND else name
    if given and kind in _FILE_KINDS:
        return _choose_vocabulary_size(run, int(given), str(kind), file or "")
    if given or (given := run.get("pad-vocab-size-to")):
        return int(given)
    known = _find_known_tokenizer(name or "")
    if kind in VOCABULARIES and not known:
        by = ", pretrain_gpt.py's default," if default else ""
        unread = f"; {file} is not read and may differ (--set model.vocab_size=...)"
        unread = unread if _is_nonstandard_tokenizer_file(file) else ""
        run.assumed.append(f"{kind}{by} has {VOCABULARIES[kind]} tokens{unread}")
        return VOCABULARIES[kind]
    if (kind is None and not name) or kind == "NullTokenizer":
        raise InputError(
            f"{run.source}: the vocabulary size is in the tokenizer, not in the arguments; add "
            "--vocab-size, as in --vocab-size 128256 (Llama 3)"
        )
    if known := known or _find_known_tokenizer(kind or ""):
        more = " of the tokenizer that it extends; the added ones are not read (--set model.vocab_size=...)"
        size, extended = TOKENIZERS[known], _is_extended_vocabulary(name or "", known)
        run.assumed.append(f"{name or kind} has {size} tokens{more * extended}")
        return size
    kind = kind or "a tokenizer"
    if alike := _find_model_of_equal_sizes(run):
        size = int(published_model_fields(alike)["vocab_size"])
        run.assumed.append(f"a vocabulary of {size} tokens, as in {alike} with equal sizes: {kind} is not read")
        return size
    size = next(size for part, size in UNREAD_TOKENIZERS.items() if part in kind)
    what = f"the tokenizer ({kind} {name or ''}) is not read (--set model.vocab_size=...)"
    run.assumed.append(f"a vocabulary of {size} tokens: {what}")
    return size


def _choose_vocabulary_size(run: MegatronOptions, given: int, kind: str, file: str) -> int:
    """Return ``given`` (option vocab-size), or the tokenizer's size if Megatron-LM ignores the option."""
    known = _find_known_tokenizer(file)
    if known and _is_extended_vocabulary(file, known):
        known = None
    size = TOKENIZERS[known] if known else None if _is_nonstandard_tokenizer_file(file) else VOCABULARIES.get(kind)
    if size is None:
        what = f"{kind} uses {file or 'its file'}, which is not read (--set model.vocab_size=...)"
        run.assumed.append(f"a vocabulary of {given} tokens, as given: {what}")
        return given
    if given == size or (known and abs(size - given) <= _MAX_UNUSED_SHARE * size):
        return given
    has, reads = (file, kind) if known else (kind, "it")
    run.assumed.append(f"{has} has {size} tokens: {reads} ignores vocab-size {given}")
    return size


def _is_nonstandard_tokenizer_file(file: str | None) -> bool:
    """Return whether a tokenizer file is not a standard one by its path, so that its vocabulary may differ."""
    return bool(file) and not _STANDARD_FILE.search(str(file).lower())


def _find_known_tokenizer(text: str) -> str | None:
    return next((part for part in TOKENIZERS if part in text.lower()), None)


def _is_extended_vocabulary(name: str, known: str) -> bool:
    """Return whether a tokenizer's name marks it as an extension of a known tokenizer, with added tokens."""
    return _EXTENSION_WORDS.search(name.lower().rpartition(known)[2]) is not None


def _find_model_of_equal_sizes(run: MegatronOptions) -> str | None:
    """Return the name of a published model with the same layer sizes as the options; None if no model has them."""
    needed = {field: run.values.get(option) for option, field in _SIZES.items()} | {"gated_mlp": run.is_on("swiglu")}
    optional = {field: run.values.get(option) for option, field in _OPTIONAL.items()}
    of_experts = {
        "experts": run.values.get("num-experts"),
        "expert_ffn_hidden_size": run.values.get("moe-ffn-hidden-size"),
    }

    def has_equal_sizes(name: str) -> bool:
        model = published_model_fields(name)
        moe, fields = {"experts": None, **model.get("moe", {})}, {"kv_heads": model["heads"], **model}
        same = all(model[field] == size for field, size in needed.items()) and moe["experts"] == of_experts["experts"]
        some = [(fields.get(field), size) for field, size in optional.items()]
        some += [(moe.get("expert_ffn_hidden_size"), of_experts["expert_ffn_hidden_size"])]
        return same and all(None in (own, size) or own == size for own, size in some)

    folders = "/".join(run.source.replace("_", "-").split("/")[-3:])
    named = "llama3" if run.given.get("rotary-base") == _LLAMA_3_ROTARY_BASE else _find_known_tokenizer(folders)

    def sort_key(name: str) -> tuple[bool, bool, bool]:
        size = int(published_model_fields(name)["vocab_size"])
        return (
            named is not None and size != TOKENIZERS[named],
            not name.startswith("llama"),
            size != TOKENIZERS["llama-2"],
        )

    return min(filter(has_equal_sizes, published_model_names()), key=sort_key, default=None)
