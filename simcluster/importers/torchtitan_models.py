"""The model of a torchtitan job: one of the catalogue, or of the Python beside the job that says its sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import model_document
from simcluster.documents.diagnostics import listed
from simcluster.importers.beside import Beside
from simcluster.importers.named_models import published_model
from simcluster.importers.python_recipes import RecipeFile
from simcluster.importers.python_values import Built, Unread
from simcluster.importers.torchtitan_settings import TABLES, JobSettings

_FILES = ("__init__.py", "flavors.py")
_MAKES_LAYERS = r"^_?build_\w*layers$"  # its arguments say the sizes
_FAMILIES = re.compile(r"llama(?!4)|qwen3|deepseek", re.IGNORECASE)
_VOCABULARIES = {"llama|llama2": 32000, "qwen": 151936, "deepseek": 102400, "": 128256}
"""Tokens of the family's tokenizer, where the sizes leave the vocabulary to that."""
_LATENT = {"q_lora_rank": 0, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def model_of_flavor(beside: Beside, name: str, flavor: str) -> dict[str, Any] | None:
    """Return the fields of ``Model`` but its sequence length, and ``masks_documents`` of attention within documents.

    None where no file that lies beside says them; ``beside`` gives the text of a file by its name, relative to the
    configuration.  Raises InputError for Python that cannot be read.
    """
    for file in _files(beside, name):
        found = _flavor(file, name, flavor)
        if found is not None and (fields := _fields(found, name)):
            return fields
    return None


def flavors_beside(beside: Beside, name: str) -> list[str]:
    """Return the names of flavors in the files next to it."""
    tables = (table for file in _files(beside, name) for table in file.constants.values() if isinstance(table, dict))
    made = (table for table in tables if any(isinstance(value, Built) for value in table.values()))
    return list(dict.fromkeys(str(flavor) for table in made for flavor in table))


def _files(beside: Beside, name: str) -> Iterator[RecipeFile]:
    folders = ("", "../", f"torchtitan/models/{name}/") if re.fullmatch(r"\w+", name) else ()
    for path in (folder + file for folder in folders for file in _FILES):
        if text := beside(path):
            yield RecipeFile(text, path, closed=_MAKES_LAYERS)


def _flavor(file: RecipeFile, name: str, flavor: str) -> Built | None:
    """Return what the flavor stands for in a table of the file."""
    tables = {each: value for each, value in file.constants.items() if isinstance(value, dict) and flavor in value}
    for table in sorted(tables, key=lambda each: not each.lower().startswith(name.replace("_", "")[:6])):
        found = tables[table][flavor]
        found = found[0] if isinstance(found, list) and found else found
        given: Mapping[str, Any] = {}
        if isinstance(found, Built) and found.name.endswith("partial") and found.args:
            found, given = found.args[0], found.fields
        if isinstance(found, Unread) and found.text in file.functions:
            found = file.read(found.text, given)
        if isinstance(found, Built):
            return found
    return None


def _fields(found: Built, name: str) -> dict[str, Any] | None:
    """Return sizes as a scenario has them; None where one that must be there is no number, or of another family."""
    layers = found.fields.get("layers")
    of_layers = layers.fields if isinstance(layers, Built) else {}
    said = {**of_layers, **_inside(found.fields.get("layer")), **found.fields}
    sizes = {key: value for key, value in said.items() if isinstance(value, int)}
    called = f"{name} {found.name}"
    if not _FAMILIES.search(called) or not {"dim", "n_layers", "n_heads"} <= sizes.keys():
        return None
    latent = "deepseek" in called.lower()
    vocabulary = next(size for part, size in _VOCABULARIES.items() if name in part.split("|") or part in name)
    model: dict[str, Any] = {
        "layers": sizes["n_layers"],
        "hidden_size": sizes["dim"],
        "heads": sizes["n_heads"],
        "vocab_size": sizes["vocab_size"] if sizes.get("vocab_size", 0) > 0 else vocabulary,
        "gated_mlp": True,
    }
    if latent:
        model["mla"] = {key: sizes.get(key, size) for key, size in _LATENT.items() if sizes.get(key, size)}
    else:
        model["kv_heads"] = sizes.get("n_kv_heads", sizes["n_heads"])
        head_dim = sizes.get("head_dim", 128 if "qwen" in name else 0)
        model |= {"head_dim": head_dim} if head_dim and head_dim * sizes["n_heads"] != sizes["dim"] else {}
        model |= {"qk_norm": "head"} if said.get("qk_norm") or ("qwen3" in name and of_layers) else {}
    if said.get("use_post_attn_norm") and said.get("use_post_ffn_norm"):
        model["layer_norms"] = 4
    model["tied_embeddings"] = said.get("enable_weight_tying") is True
    if said.get("attn_mask_type") == "block_causal":
        model["masks_documents"] = True
    moe = _experts(said, sizes)
    model |= {"moe": moe} if moe else {}
    if not moe or moe.get("first_dense_layers"):
        model["ffn_hidden_size"] = _width(said, sizes, latent=latent)
    return model


def _inside(layer: Any) -> dict[str, Any]:
    """Return what the parts of a layer say, by the names of all years: attention, MLP, mixture."""
    if not isinstance(layer, Built):
        return {}
    parts = {name: part.fields for name, part in layer.fields.items() if isinstance(part, Built)}
    found = {**layer.fields, **parts.get("attention", {}), **parts.get("feed_forward", {})}
    mixture = dict(parts.get("moe", {}))
    if mixture and layer.fields.get("moe_enabled") is not False:
        found |= {"moe_args": Built("MoEArgs", (), mixture), "moe_inter_dim": mixture.get("hidden_dim")}
    return found


def _experts(said: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the mixture, by the names of all years; None of a dense model."""
    args = said.get("moe_args")
    inner = {**sizes, **(args.fields if isinstance(args, Built) else {})}

    def first(names: str) -> Any:
        return next((inner[name] for name in names.split() if inner.get(name)), None)

    experts, width = first("num_experts n_routed_experts"), sizes.get("moe_inter_dim") or sizes.get("moe_hidden_dim")
    if not experts or not width or said.get("moe_enabled") is False:
        return None
    groups = first("num_expert_groups router_num_expert_groups n_expert_groups")
    top = first("num_limited_groups router_num_limited_groups n_limited_groups")
    found = {
        "experts": experts, "top_k": first("top_k router_top_k n_activated_experts") or 1,
        "expert_ffn_hidden_size": width,
        "shared_experts": inner.get("num_shared_experts", inner.get("n_shared_experts", 1 if args else 0)),
        "first_dense_layers": sizes.get("n_dense_layers", 1 if "inter_dim" in sizes else 0),
        **({"groups": groups, "top_groups": top} if groups and top and groups > 1 else {}),
    }  # fmt: skip
    return {key: value for key, value in found.items() if value}


def _width(said: Mapping[str, Any], sizes: Mapping[str, int], *, latent: bool) -> int:
    """Return the width inside an MLP: as given, or by Llama's rule of ``multiple_of`` and ``ffn_dim_multiplier``."""
    given = sizes.get("hidden_dim") or sizes.get("dense_hidden_dim") or (sizes.get("inter_dim", 10944) if latent else 0)
    if given:
        return given
    rule = said.get("hidden_dim")
    rule = rule.fields if isinstance(rule, Built) else said
    multiple, times = rule.get("multiple_of", 256 if rule is said else 1), rule.get("ffn_dim_multiplier")
    if not isinstance(multiple, int) or multiple < 1 or not isinstance(times, int | float | None):
        raise InputError("the width inside the MLP is no number; give ffn_dim_multiplier and multiple_of as numbers")
    width = int((1 if times is None else times) * int(2 * 4 * sizes["dim"] / 3))
    return multiple * -(-width // multiple)


_MODELS: dict[str, str] = TABLES["models"]
_OWN_MODELS: dict[str, dict[str, Any]] = TABLES["own_models"]
_DEBUG_MODELS: dict[str, dict[str, Any]] = TABLES["debug_models"]
_NO_DECODERS: dict[str, str] = TABLES["no_decoders"]
_MASKED = frozenset(TABLES["masked"])
_MASKING_BACKENDS = TABLES["masking_backends"].split()
_OF_LLAMA_2 = ("llama", "llama2")  # whose vocabulary is that of the tokenizer which the job reads
_OF_A_KERNEL = re.compile(r"_(flex|varlen)(_attn)?$")  # flavors by their kernel: 8B_flex, debugmodel_varlen_attn
_TELLING = ("layers", "hidden_size", "heads", "kv_heads", "ffn_hidden_size", "vocab_size", "tied_embeddings")


def model_of_job(job: JobSettings, beside: Beside) -> dict[str, Any]:
    """Return the model section of a scenario; what lies beside has the last word, since forks change sizes under a
    name.

    Raises InputError for a model that nothing says the sizes of, and for one that is no decoder of text.
    """
    family, flavor = job.values["model.name"], job.values["model.flavor"]
    more: dict[str, Any] = {"sequence_length": job.values["training.seq_len"]}
    if job.values["model.num_mtp_layers"]:
        more["mtp_layers"] = job.values["model.num_mtp_layers"]
    if family in _NO_DECODERS:
        raise job.error("model.name", f"{family} {_NO_DECODERS[family]}, which is not modelled")
    own = model_of_flavor(beside, family, flavor)
    plain = _OF_A_KERNEL.sub("", flavor)
    name = f"{family} {flavor if own else plain}"
    found = next((known for known in _MODELS if known.lower() == name.lower()), None)
    masks = own.pop("masks_documents", False) if own else plain != flavor or found in _MASKED
    if masks or job.values["model.attn_backend"] in _MASKING_BACKENDS:
        job.assumed.append("a sequence is one document, though attention is masked to each of several (block_causal)")
    if family in _OF_LLAMA_2 and not own and name not in _DEBUG_MODELS:
        job.assumed.append("a vocabulary of 32000 tokens, those of Llama 2's tokenizer")
    if found and not (own and _differs(own, _MODELS[found])):
        return {**published_model(_MODELS[found]), **more}
    if own:
        return {**own, **more}
    if name in _OWN_MODELS:
        return {"gated_mlp": True, **_OWN_MODELS[name], **more}
    if name not in _DEBUG_MODELS:
        raise _unknown(job, beside, family, f"{family} {flavor}")
    when = "in 2024" if job.early else "longest"
    job.assumed.append(f"the sizes of the debug model are those that it had {when}; they changed at times")
    then = {"layers": TABLES["early_debug_layers"].get(name)} if job.early else {}
    return {"gated_mlp": True, **_DEBUG_MODELS[name], **{key: value for key, value in then.items() if value}, **more}


def _differs(own: dict[str, Any], preset: str) -> bool:
    published = published_model(preset)
    published = model_document(preset) if "preset" in published else published
    return any(own.get(size, published.get(size)) != published.get(size, own.get(size)) for size in _TELLING)


def _unknown(job: JobSettings, beside: Beside, family: str, name: str) -> InputError:
    """Return the complaint about a flavor that nothing says the sizes of, with those that are said."""
    where = f"torchtitan/models/{family}/__init__.py"
    if has := flavors_beside(beside, family):
        says = f"the {where} with the file does not say its sizes; it says those of {listed(has[:8])}"
        return job.error("model.flavor", f"{name} is not in the catalogue, and {says}")
    near = [known for known in (*_MODELS, *_OWN_MODELS) if known.startswith(f"{family} ")]
    of = "one of" if near else "a model of"
    near = near or list(dict.fromkeys(known.split()[0] for known in _MODELS))
    what = f"{name} is not in the catalogue, and no {where} that says its sizes lies with the file; put it there"
    return job.error("model.flavor", f"{what}, or take {of} {listed(near)}")
