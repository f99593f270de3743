"""Configurations that frameworks wrote as the calls that make them again.

Megatron-Bridge writes ``run_config.yaml`` beside checkpoints, NeMo-Run ``NAME_config.yaml`` of a recipe of NeMo 2.

Sections and classes stand there as ``_target_: module.Name`` with their fields; ``_call_: false`` is the name alone,
and ``_args_`` stands for what has no name, as the number of an enumeration's member.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simcluster.documents.reading import parse_document
from simcluster.importers.python_values import Built, Unread

_KERNELS = {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"}  # AttnBackend of Megatron-Core
_SHARED, _REFERRED = re.compile(r"(?<=[:-] )&\w+[ ]?"), re.compile(r"(?<=[:-] )\*\w+$", re.MULTILINE)
_FORMATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def written_call(text: str, source: str) -> Built | None:
    """Return the call that a configuration is written from; None for any other text.

    What several parts share (``&id001``) is read where it is written, and nothing (null) elsewhere.
    """
    if "_target_:" not in text:
        return None
    made = _made(parse_document(_SHARED.sub("", _REFERRED.sub("null", text)), source=source).data)
    return made if isinstance(made, Built) else None


def _made(value: Any) -> Any:
    """What stands behind a key: a call, a name, or data."""
    if not isinstance(value, Mapping):
        return value
    name = str(value.get("_target_", "")).rpartition(".")[2]
    if not name:
        return {str(key): _made(each) for key, each in value.items()}
    if value.get("_call_") is False:
        return _FORMATS.get(name) or Unread(str(value["_target_"]))
    args = value.get("_args_")
    args = tuple(args) if isinstance(args, list) else ()
    if name == "AttnBackend" and args and args[0] in _KERNELS:
        return Unread(f"{name}.{_KERNELS[args[0]]}")
    return Built(name, args, {str(key): _made(each) for key, each in value.items() if not str(key).startswith("_")})
