"""The model of a torchtitan job: one of the catalogue, or of the Python beside the job that says its sizes."""

from __future__ import annotations

import re
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import model_document
from simcluster.documents.diagnostics import listed
from simcluster.importers.beside import Beside
from simcluster.importers.published_models import published_model
from simcluster.importers.torchtitan_flavors import flavors_beside, model_of_flavor
from simcluster.importers.torchtitan_settings import TABLES, JobSettings

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
