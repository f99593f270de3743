"""A stack of single blocks of Megatron-LM's hybrid models as layers, each an attention with an MLP or experts.

In ``--hybrid-layer-pattern`` (before: ``--hybrid-override-pattern``) ``*`` is attention, ``-`` an MLP, ``E`` experts;
behind each ``/`` stands a layer that predicts one more token.  Others, such as ``M`` (Mamba), are not modelled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Words = dict[str, tuple[str, ...]]

_PATTERNS = ("hybrid-layer-pattern", "hybrid-override-pattern")
_LAYERS = re.compile(r"(?:\*[-E])+")


def as_layers(options: Mapping[str, tuple[str, ...]]) -> tuple[Words, tuple[str, ...]]:
    """The options of the transformer that a pattern makes, and what is assumed; as they are where it makes none."""
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
