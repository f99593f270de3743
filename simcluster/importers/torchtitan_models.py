"""The model of a torchtitan job: one of the catalogue, or of the Python beside the job that says its sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
_LATENT = {"q_lora_rank": 0, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def model_of_flavor(beside: Beside, name: str, flavor: str) -> dict[str, Any] | None:
    """The fields of ``Model`` but its sequence length, and ``masks_documents`` of attention within each document alone;
    None where no file that lies beside says them.

    ``beside`` gives the text of a file by its name, relative to the configuration.  Raises InputError for Python that
    cannot be read.
    """
    for path in _paths(name):
        text = beside(path)
        found = _flavor(RecipeFile(text, path, closed=_MAKES_LAYERS), name, flavor) if text else None
        if found is not None and (fields := _fields(found, name)):
            return fields
    return None


def flavors_beside(beside: Beside, name: str) -> list[str]:
    """The names of flavors in the files that lie beside."""
    found: dict[str, None] = {}
    for path in _paths(name):
        tables = RecipeFile(text, path, closed=_MAKES_LAYERS).constants if (text := beside(path)) else {}
        for table in tables.values():
            made = isinstance(table, dict) and any(isinstance(value, Built) for value in table.values())
            found |= dict.fromkeys(map(str, table if made else ()))
    return list(found)


def _paths(name: str) -> list[str]:
    if not re.fullmatch(r"\w+", name):
        return []
    return [folder + file for folder in ("", "../", f"torchtitan/models/{name}/") for file in _FILES]


def _flavor(configs: RecipeFile, name: str, flavor: str) -> Built | None:
    """What the flavor stands for in a table of the file."""
    tables = {each: value for each, value in configs.constants.items() if isinstance(value, dict) and flavor in value}
    named = sorted(tables, key=lambda each: not each.lower().startswith(name.replace("_", "")[:6]))
    for table in named:
        found = tables[table][flavor]
        found = found[0] if isinstance(found, list) and found else found
        given: Mapping[str, Any] = {}
        if isinstance(found, Built) and found.name.endswith("partial") and found.args:
            found, given = found.args[0], found.fields
        if isinstance(found, Unread) and found.text in configs.functions:
            found = configs.read(found.text, given)
        if isinstance(found, Built):
            return found
    return None


def _fields(found: Built, name: str) -> dict[str, Any] | None:
    """Sizes as a scenario has them; None where one that must be there is no number, or the family is another."""
    layers = found.fields.get("layers")
    said = {
        **(layers.fields if isinstance(layers, Built) else {}),
        **_inside(found.fields.get("layer")),
        **found.fields,
    }
    sizes = {key: value for key, value in said.items() if isinstance(value, int)}
    if not _FAMILIES.search(f"{name} {found.name}") or not {"dim", "n_layers", "n_heads"} <= sizes.keys():
        return None
    latent = "deepseek" in f"{name} {found.name}".lower()
    model: dict[str, Any] = {
        "layers": sizes["n_layers"],
        "hidden_size": sizes["dim"],
        "heads": sizes["n_heads"],
        "vocab_size": sizes.get("vocab_size", 0) if sizes.get("vocab_size", 0) > 0 else _vocabulary(name),
        "gated_mlp": True,
    }
    if latent:
        model["mla"] = {key: sizes.get(key, size) for key, size in _LATENT.items() if sizes.get(key, size)}
    else:
        model["kv_heads"] = sizes.get("n_kv_heads", sizes["n_heads"])
        head_dim = sizes.get("head_dim", 128 if "qwen" in name else 0)
        model |= {"head_dim": head_dim} if head_dim and head_dim * sizes["n_heads"] != sizes["dim"] else {}
        model |= {"qk_norm": "head"} if said.get("qk_norm") or ("qwen3" in name and isinstance(layers, Built)) else {}
    if said.get("use_post_attn_norm") and said.get("use_post_ffn_norm"):
        model["layer_norms"] = 4
    model["tied_embeddings"] = said.get("enable_weight_tying") is True
    if said.get("attn_mask_type") == "block_causal":
        model["masks_documents"] = True
    moe = _experts(said, sizes)
    model |= {"moe": moe} if moe else {}
    first = (moe or {}).get("first_dense_layers")
    if not moe or first:
        model["ffn_hidden_size"] = _width(said, sizes, latent=latent)
    return model


def _inside(layer: Any) -> dict[str, Any]:
    """What the parts of a layer say, by the names of all years: attention, MLP, mixture."""
    if not isinstance(layer, Built):
        return {}
    parts = {name: part.fields for name, part in layer.fields.items() if isinstance(part, Built)}
    found = {**layer.fields, **parts.get("attention", {}), **parts.get("feed_forward", {})}
    mixture = dict(parts.get("moe", {}))
    if mixture and layer.fields.get("moe_enabled") is not False:
        found |= {"moe_args": Built("MoEArgs", (), mixture), "moe_inter_dim": mixture.get("hidden_dim")}
    return found


def _experts(said: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """The mixture, by the names of all years; None of a dense model."""
    args = said.get("moe_args")
    inner = {**sizes, **(args.fields if isinstance(args, Built) else {})}
    experts = inner.get("num_experts") or inner.get("n_routed_experts")
    width = sizes.get("moe_inter_dim") or sizes.get("moe_hidden_dim")
    if not experts or not width or said.get("moe_enabled") is False:
        return None
    top_k = inner.get("top_k") or inner.get("router_top_k") or inner.get("n_activated_experts") or 1
    groups = inner.get("num_expert_groups") or inner.get("router_num_expert_groups") or inner.get("n_expert_groups")
    top = inner.get("num_limited_groups") or inner.get("router_num_limited_groups") or inner.get("n_limited_groups")
    shared = inner.get("num_shared_experts", inner.get("n_shared_experts", 1 if args else 0))
    found = {
        "experts": experts, "top_k": top_k, "expert_ffn_hidden_size": width, "shared_experts": shared,
        "first_dense_layers": sizes.get("n_dense_layers", 1 if "inter_dim" in sizes else 0),
        "groups": groups if groups and top and groups > 1 else None,
        "top_groups": top if groups and top and groups > 1 else None,
    }  # fmt: skip
    return {key: value for key, value in found.items() if value}


def _width(said: Mapping[str, Any], sizes: Mapping[str, int], *, latent: bool) -> int:
    """Inside an MLP: as it is given, or by Llama's rule of ``multiple_of`` and ``ffn_dim_multiplier``."""
    given = sizes.get("hidden_dim") or sizes.get("dense_hidden_dim") or (sizes.get("inter_dim", 10944) if latent else 0)
    if given:
        return given
    rule = said.get("hidden_dim")
    rule = rule.fields if isinstance(rule, Built) else said
    multiple, times = rule.get("multiple_of", 256 if rule is said else 1), rule.get("ffn_dim_multiplier")
    if not isinstance(multiple, int) or multiple < 1 or not isinstance(times, int | float | None):
        raise InputError("the width inside the MLP is no number; give ffn_dim_multiplier and multiple_of as numbers")
    width = int(2 * 4 * sizes["dim"] / 3)
    width = int((1 if times is None else times) * width)
    return multiple * -(-width // multiple)


def _vocabulary(name: str) -> int:
    """What the family's tokenizer has, where the sizes leave it to that."""
    return (
        32000 if name in ("llama", "llama2") else 151936 if "qwen" in name else 102400 if "deepseek" in name else 128256
    )


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
    """The model section of a scenario; what lies beside has the last word, since forks change sizes under a name.

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
    """Whether sizes are others than those of the published model of the name."""
    published = published_model(preset)
    published = model_document(preset) if "preset" in published else published
    return any(own.get(size, published.get(size)) != published.get(size, own.get(size)) for size in _TELLING)


def _unknown(job: JobSettings, beside: Beside, family: str, name: str) -> InputError:
    """The complaint about a flavor that nothing says the sizes of, with those that are said."""
    where = f"torchtitan/models/{family}/__init__.py"
    if has := flavors_beside(beside, family):
        says = f"the {where} with the file does not say its sizes; it says those of {listed(has[:8])}"
        return job.error("model.flavor", f"{name} is not in the catalogue, and {says}")
    near = [known for known in (*_MODELS, *_OWN_MODELS) if known.startswith(f"{family} ")]
    of = "one of" if near else "a model of"
    near = near or list(dict.fromkeys(known.split()[0] for known in _MODELS))
    what = f"{name} is not in the catalogue, and no {where} that says its sizes lies with the file; put it there"
    return job.error("model.flavor", f"{what}, or take {of} {listed(near)}")
