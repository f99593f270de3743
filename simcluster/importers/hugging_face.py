"""Import of a model from the ``config.json`` that Hugging Face transformers writes next to its weights.

``hf_families`` has the meaning of each ``model_type``. Anything else is refused rather than guessed, and so are
features of a known family that are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents import yaml_documents
from simcluster.documents.diagnostics import join_or
from simcluster.importers import hf_families, hf_fields
from simcluster.importers.checked_config import CheckedConfig
from simcluster.importers.import_result import ImportResult
from simcluster.importers.layer_lists import MAX_LAYERS
from simcluster.model.layers import ParameterCount, parameters
from simcluster.model.transformer import Model

_TABLES = yaml_documents.read_document(Path(__file__).with_suffix(".yaml")).data
_NO_EFFECT, _NO_EFFECT_OFF, _DROPOUT = (
    frozenset(_TABLES[name].split()) for name in ("no_effect", "no_effect_off", "dropout")
)
_REASONS = {kind: why for why, kinds in _TABLES["reasons"].items() for kind in kinds.split()}
_SPARSE_KEYS = ("index_topk", "sparse_attention_config")
_TOWER_KEYS = ("vision_config", "audio_config", "speech_config")
_DECODER_KEYS = ("text_config", "llm_config", "language_config")
_FLAT_MODEL_TYPES = ("qwen2_vl", "qwen2_5_vl", "kimi_k25")  # decoder sizes are at the top level, next to the towers
_PART_SECTIONS = {"dbrx": ("attn_config", "ffn_config"), "mpt": ("attn_config",)}  # sections with decoder sizes
_QUANTIZATION_KEYS = ("quantization_config", "compression_config")
_QUANTIZATION_LABELS = {"quant_method": "", "bits": " bits"}
_LENGTHS = ("max_sequence_length", "seq_length", "model_max_length")  # keys of forks, which transformers does not read
USUAL_LENGTH = 8192
"""Default pre-training sequence length (tokens) of a model that supports longer sequences."""
UNQUANTIZED = "weights are trained unquantized"
_SHARED_KEYS = ("model_type", "tie_word_embeddings", "vocab_size", "max_position_embeddings")


def model_from_config(config: Mapping[str, Any], *, sequence_length: int | None = None) -> dict[str, Any]:
    """Return a scenario's ``model`` fields for the model that a parsed ``config.json`` describes.

    A config does not state the length of training sequences. The default of ``sequence_length`` is the longest that the
    model takes (``max_position_embeddings`` and its like), which for models of long context is far more than most of
    their training: give it where it matters.

    ``assumptions_of_config`` lists what is omitted.

    Raises InputError for an unknown ``model_type``, for a missing or impossible field, and for what is not modelled:
    experts in irregular layers, embeddings of another width than the layers, vision towers, encoders.
    """
    return _read_model_config(config, sequence_length)[0]


def model_at_default_length(config: Mapping[str, Any], limit: float = USUAL_LENGTH) -> tuple[dict[str, Any], str]:
    """Return a config's model fields at its longest sequence, or at 8192 tokens if that exceeds ``limit``."""
    try:
        fields = model_from_config(config)
    except InputError:
        fields = {}  # a shorter sequence may be valid, as with chunked attention
    if fields and fields["sequence_length"] <= limit:
        return fields, f"sequences of {fields['sequence_length']} tokens, the longest that the model supports"
    return model_from_config(config, sequence_length=USUAL_LENGTH), f"sequences of {USUAL_LENGTH} tokens"


def assumptions_of_config(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the assumptions made on import of a ``config.json``, such as parts of the model that are omitted."""
    return _read_model_config(config, 1)[1]


def sequence_length_notes(config: Mapping[str, Any]) -> dict[str, str]:
    """Return notes on the model's maximum sequence length by config key, for users who give no length.

    They say that it is the model_type's default, or that the config has a shorter length that is not read.
    """
    read = _read_model_config(config, 1)[2]
    family = hf_families.FAMILIES[read.kind]
    keys, default = family["keys"]["sequence_length"], family["fallback"].get("sequence_length")
    longest, told = read.optional_size(keys), dict[str, str]()
    if longest is None and default:
        longest = default
        told[keys] = f"{keys.split()[0]} {default}, the default of model_type {read.kind}: not in the config"
    for key in _LENGTHS:
        value = read.data.get(key)
        if type(value) is int and key not in keys.split() and 1 <= value < (longest or 0):
            told[key] = f"{key} {value} is not read by model_type {read.kind} (--sequence-length {value} uses it)"
    return told


def count_config_parameters(config: Mapping[str, Any]) -> ParameterCount:
    """Return the exact parameter count of the model that a ``config.json`` describes."""
    fields = _read_model_config(config, 1)[0]
    document = yaml_documents.Document(fields, "config.json", Path())
    return parameters(yaml_documents.validate_document(Model, document))


def classify_config_keys(
    config: Mapping[str, Any], *, sequence_length: int
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return three lists of config keys: imported to the scenario, without effect on the step time, and unknown.

    For a model of several parts they are the keys of its decoder; errors as ``model_from_config``.
    """
    read = _read_model_config(config, sequence_length)[2]
    parts = ("model_type", *_PART_SECTIONS.get(read.kind, ()))
    mapped = tuple(key for key in read.data if key in read.read_keys or key in parts)
    rest = [key for key in read.data if key not in mapped]
    idle = tuple(key for key in rest if _config_key_has_no_effect(key, read.data[key]))
    return mapped, idle, tuple(key for key in rest if key not in idle)


def import_model_config(
    config: Mapping[str, Any], source: str, sequence_length: int | None = None, limit: float = USUAL_LENGTH
) -> ImportResult:
    """Return the model of a ``config.json``, and which of its keys are used.

    Without a length it is the model's longest, or 8192 tokens if that exceeds ``limit``.
    """
    try:
        assumed = assumptions_of_config(config)
        if sequence_length:
            fields = model_from_config(config, sequence_length=sequence_length)
        else:
            fields, length = model_at_default_length(config, limit)
            assumed = (*assumed, f"{length} (--sequence-length changes it)")
        count = count_config_parameters(config)
        mapped, idle, unknown = classify_config_keys(config, sequence_length=fields["sequence_length"])
    except InputError as problem:
        raise InputError(f"{source}: {problem}") from None
    if not sequence_length:
        told = sequence_length_notes(config)
        assumed, idle = (*assumed, *told.values()), tuple(key for key in idle if key not in told)
    active = f", of which {count.active:,} are active per token" if count.active < count.total else ""
    fact = f"{count.total:,} parameters{active}"
    return ImportResult({"model": fields}, mapped, idle, assumed, (fact,), unknown)


def _config_key_has_no_effect(key: str, value: Any) -> bool:
    if key == "layer_types" and isinstance(value, list):
        return all(kind == "full_attention" for kind in value)
    return value is None or key in _NO_EFFECT | _DROPOUT or (key in _NO_EFFECT_OFF and value is False)


def _read_model_config(
    data: Mapping[str, Any], sequence_length: int | None
) -> tuple[dict[str, Any], tuple[str, ...], CheckedConfig]:
    """Return a ``config.json``'s model fields, the assumptions made, and the config with a record of the keys read."""
    whole, (data, without) = data, _extract_text_decoder(data)
    kind = data.get("model_type")
    for part in (data.get(name) for name in _PART_SECTIONS.get(str(kind), ())):
        data = {**part, **data} if isinstance(part, Mapping) else data
    if towers := [key for key in _TOWER_KEYS if data.get(key)]:
        what = "only text decoders are modelled: give the config.json of a text decoder"
        raise InputError(f"the config has {join_or(towers)}, so the model is multimodal; {what}")
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if data.get(key) is True:
            what = "only decoders without cross-attention are modelled: give such a model's config.json"
            raise InputError(f"{key} is true; {what}")
    if not isinstance(kind, str) or kind not in hf_families.FAMILIES:
        stated = "has no model_type" if kind is None else f"has model_type {str(kind)[:40]!r}, which is not supported"
        if isinstance(kind, str) and kind in _REASONS:
            raise InputError(f"the config {stated}: {_REASONS[kind]}")
        instead = "for another model write its fields (layers, hidden_size, heads, ...) in the scenario"
        raise InputError(f"the config {stated}; supported: {', '.join(hf_families.FAMILIES)}; {instead}")
    config, family = CheckedConfig(data, kind), hf_families.FAMILIES[kind]
    sparse = next((key for key in _SPARSE_KEYS if data.get(key)), "")
    if sparse and not {"indexer", "deepseek_v4"} & {*family.get("further", "").split()}:
        raise InputError(f"the config has {sparse}: {_REASONS['minimax_m3']}")
    fields = _model_fields(config, family, sequence_length)
    if encoder := hf_families.vision_encoder_fields(whole.get("vision_config"), family, fields):
        fields["encoder"], without = encoder[0], encoder[1:]
    lacks = family.get("without", {}).items()
    assumed = [*without, *(said for key, (on, said) in lacks if config.boolean_value(key, on))]
    assumed += hf_families.token_prediction_assumption(config) if "predicts" in family else ()
    if rates := [key for key in data if key in _DROPOUT and isinstance(data[key], int | float) and data[key] > 0]:
        are = "are" if len(rates) > 1 else "is"
        assumed.append(f"no dropout, although {join_or(rates)} {are} above 0 (--set training.dropout=true)")
    if stored := next((key for key in _QUANTIZATION_KEYS if config.finite_value(key)), ""):
        says = data[stored] if isinstance(data[stored], Mapping) else {}
        parts = [str(says[name])[:20] + after for name, after in _QUANTIZATION_LABELS.items() if name in says]
        how = f"{stored} ({', '.join(parts)})" if parts else stored
        assumed.append(f"{UNQUANTIZED}: training with {how} is not modelled")
    return {name: value for name, value in fields.items() if value is not None}, tuple(assumed), config


def _model_fields(config: CheckedConfig, family: Mapping[str, Any], sequence_length: int | None) -> dict[str, Any]:
    fields: dict[str, Any] = {name: config.optional_size(keys, name) for name, keys in family["keys"].items()}
    if isinstance(blocks := config.finite_value("layers_block_type"), list):
        fields["layers"] = fields["layers"] or len(blocks) or None
    for name, value in family["fallback"].items():
        fields[name] = value if fields[name] is None else fields[name]
    if sequence_length is not None:
        fields["sequence_length"] = sequence_length
    defaulted = ("kv_heads", "head_dim", "position_rows", *(("ffn_hidden_size",) if "four_times" in family else ()))
    if missing := [name for name in family["keys"] if fields[name] is None and name not in defaulted]:
        named = ", ".join(f"{family['keys'][name].replace(' ', ' or ')} ({name})" for name in missing)
        lacks = f"lacks {named}, which is required; add it"
        hint = "; sequence_length may also be set next to the preset" if "sequence_length" in missing else ""
        raise InputError(f"the config of model_type {config.kind!r} {lacks}{hint}")
    fields |= family["implied"]
    fields["tied_embeddings"] = config.boolean_value("tie_word_embeddings", fields["tied_embeddings"])
    for key, (needed, why, *default) in family["refused"].items():
        read = config.boolean_value if isinstance(needed, bool) else config.whole_number_value
        if read(key, default[0] if default and key not in config.data else needed) != needed:
            raise InputError(why)
    if "final_logit_softcapping" in config.data:
        wrong, known = "is not a number of at least 0; write one, or null for no cap", (int, float)
        cap = config.checked_value("final_logit_softcapping", lambda cap: type(cap) in known and cap >= 0, wrong)
        fields["logit_softcap"] = True if cap else None
    bias = {"bias": family["bias"]} if "bias" in family else {}
    for field, (key, default, value) in {**family.get("on", {}), **bias}.items():
        fields[field] = value if config.boolean_value(key, default) else False if field == "bias" else None
    if (window := family.get("window")) is not None:
        hf_fields.set_attention_window(config, fields, **window)
    for name in family.get("further", "").split():
        hf_families.FAMILY_RULES[name](config, fields)
    if linear := family.get("linear"):
        _set_linear_layers(config, fields, linear)
    if family["moe"]:
        hf_fields.set_moe_fields(config, fields, family["moe"])
    moe, types = fields.get("moe"), fields.get("layer_types", {"": {"blocks": ()}} if "pattern" in fields else {})
    names_kinds = any(each.keys() & {"mixer", "blocks"} for each in types.values())
    if moe and not moe.keys() & {"first_dense_layers", "every"} and not names_kinds:
        fields["ffn_hidden_size"] = None  # no layer has a dense MLP
    return fields


def _set_linear_layers(config: CheckedConfig, fields: dict[str, Any], row: Mapping[str, Any]) -> None:
    """Set which layers have linear attention, and its sizes, by ``row``, the family's rules in ``hf_families.yaml``.

    Keys of the ``section`` are read with linear_ before them.
    """
    kind, key, layers = row["kind"], row.get("list", "layer_types"), min(fields["layers"], MAX_LAYERS)
    if isinstance(section := config.finite_value(row.get("section", "")), Mapping):
        inner = {f"linear_{name}": value for name, value in section.items()}
        config = CheckedConfig({**config.data, **inner}, config.kind, config.read_keys)
    known = ("linear_attention", "full_attention", "sliding_attention") if key == "layer_types" else (0, 1)
    words, step = config.finite_value(key), config.optional_size(row.get("every", "")) or row.get("step")
    if words is None and step:
        listed = config.layer_numbers("linear_full_attn_layers")  # from 1
        full = [number - 1 for number in listed] or range(row.get("first", step - 1), layers, step)
        words = [known[layer in full] for layer in range(layers)]
        linear = config.layer_numbers("linear_kda_layers")
        if linear and sorted(listed + linear) != [*range(1, layers + 1)]:
            raise InputError(f"{row['section']}: each layer from 1 must be in one of kda_layers and full_attn_layers")
    if not isinstance(words, list) or len(words) != fields["layers"] or any(word not in known for word in words):
        raise InputError(f"{key} must be a list of {layers} values, each {' or '.join(map(str, known))}")
    letters, window = ["LFS"[known.index(word)] for word in words], config.optional_size("sliding_window")
    short = {"attention_window": window} if window and window < (fields["sequence_length"] or 0) else {}
    hf_fields.set_layer_types(fields, letters, {"L": {"mixer": kind}, "F": row.get("full", {}), "S": short})
    own = (fields.pop("layer_kinds", None) or {}).get(kind, {})  # a rule of the family set them
    for name, keys in row.get("sizes", {}).items():
        if size := config.optional_size(keys) or row.get("fallback", {}).get(name):
            own[name] = size
    if "L" in letters:
        fields["layer_kinds"] = {kind: own}


def _extract_text_decoder(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the text decoder's config from a multimodal model's config, and a note on the omitted parts."""
    towers = [key for key in _TOWER_KEYS if data.get(key)]
    alone = f"only the text decoder, without {join_or(towers)}"
    part = next((key for key in _DECODER_KEYS if isinstance(data.get(key), Mapping)), "")
    if data.get("is_encoder_decoder") is True:
        return data, ()
    if part:
        about = {key: data[key] for key in _SHARED_KEYS if key in data}
        head = {key: value for key, value in about.items() if key == "tie_word_embeddings" and value is not None}
        return {**about, **data[part], **head}, (alone if towers else f"the {part} of the config",)
    if towers and data.get("model_type") in _FLAT_MODEL_TYPES:
        return {key: value for key, value in data.items() if key not in towers}, (alone,)
    return data, ()


def parse_config_json(text: str, source: str) -> dict[str, Any]:
    """Parse the text of a ``config.json``; raise InputError for invalid JSON or a repeated key."""
    try:
        # transformers writes Infinity and NaN
        config = yaml_documents.parse_json(text, source, object_pairs_hook=yaml_documents.require_unique_keys)
    except InputError as problem:
        raise InputError(f"{problem}; a config.json of transformers is expected") from None
    if not isinstance(config, dict):
        raise InputError(f"{source}: is not a JSON object; a config.json of transformers is expected")
    return config
