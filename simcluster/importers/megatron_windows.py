"""Megatron-LM's options of attention that looks back only so far."""

from __future__ import annotations

from simcluster.importers.expert_layers import places
from simcluster.importers.layer_lists import Value
from simcluster.importers.option_values import Options


def window_of(run: Options, layers: int, sequence: int) -> dict[str, int]:
    """``attention_window`` and ``full_attention_every``, where it is shorter than the sequence.

    A window of (128, 0) is so many tokens before a token, besides itself.
    """
    text, skip = run.get("window-size"), run.layer_list("window-attn-skip-freq", layers)
    if text is None:
        return {}
    parts = text.strip("() ").replace(",", " ").split()
    if len(parts) != 2 or not parts[0].isdecimal() or len(parts[0]) > 9 or parts[1] != "0":
        raise run.error("window-size", f"{text[:40]!r} is not modelled; a window of tokens before is, as in 128,0")
    window, every = int(parts[0]) + 1, _full_every(run, skip)
    if window >= sequence or every == 1:
        return {}
    return {"attention_window": window, **({"full_attention_every": every} if every else {})}


def _full_every(run: Options, skip: Value | None) -> int:
    """Every which layer has no window (is_layer_window_attention, core/transformer/utils.py); 0: none."""
    if skip is None or isinstance(skip, int):
        return skip or 0
    if all(skip):
        return 0
    full = places([not windowed for windowed in skip])
    if full is None or full.keys() - {"every"}:
        raise run.error("window-attn-skip-freq", "every n-th layer without a window is modelled; these come otherwise")
    return full.get("every", 1)
