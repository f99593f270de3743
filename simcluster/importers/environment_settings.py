"""Variables of a launch's environment that change a step's time: what is read of them, and what is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simcluster.documents.reading import read_document

_TABLES: Mapping[str, Mapping[str, str]] = read_document(Path(__file__).with_suffix(".yaml")).data
_BACKENDS = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")


def assumed_of_environment(environment: Mapping[str, object]) -> tuple[str, ...]:
    """Return a sentence for each kind of settings that change a step's time."""
    nccl, kernels, domains = (
        [
            f"{name}={value[:20]}" for name, usual in _TABLES[kind].items()
            if (value := str(environment.get(name, ""))) and value not in usual.split()
        ] for kind in ("nccl", "kernels", "domains")
    )  # fmt: skip
    sentences = [f"NCCL is taken as it is by default on the cluster, without {', '.join(nccl)}"] if nccl else []
    sentences += [f"kernels are taken as they are without {', '.join(kernels)}"] if kernels else []
    sentences += [f"NVLink's domains are those of the cluster, whatever {', '.join(domains)} says"] if domains else []
    return tuple(sentences)


def variables_in(settings: Mapping[str, object], section: str) -> dict[str, object]:
    """The variables that a section sets, all under its name or each under a dotted one."""
    whole = settings.get(section)
    found = {str(name): value for name, value in whole.items()} if isinstance(whole, Mapping) else {}
    return found | {
        name.removeprefix(f"{section}."): value for name, value in settings.items() if name.startswith(f"{section}.")
    }


def attention_in(environment: Mapping[str, object], options: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """The option of attention's backend where none is given and the environment of Transformer Engine leaves one.

    With both kernels off attention in steps is left (``get_attention_backend``, dot_product_attention/utils.py).
    """
    both = all(str(environment.get(name)) == "0" for name in _BACKENDS)
    given = {"attention-backend", "use-flash-attn"} & options.keys()
    return {"attention-backend": ("unfused",)} if both and not given else {}
