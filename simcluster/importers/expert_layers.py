"""Which layers have experts, from a list of them to the fields of ``Moe``."""

from __future__ import annotations

from collections.abc import Sequence

MOST_LAYERS = 100_000
"""Beyond it no list of layers is made."""


def places(has_experts: Sequence[bool]) -> dict[str, int] | None:
    """``first_dense_layers``, ``every`` and ``offset`` of ``Moe`` for layers in their order; defaults are left out.

    None where experts are in no layer, or not in every n-th behind the first dense ones.
    """
    found = [number for number, here in enumerate(has_experts) if here]
    if not found:
        return None
    every = found[1] - found[0] if len(found) > 1 else len(has_experts)
    if found != list(range(found[0], len(has_experts), every)):
        return None
    first = found[0] if found[0] >= every else 0
    fields = {"first_dense_layers": first, "every": every, "offset": (found[0] + 1) % every}
    return {name: value for name, value in fields.items() if value != (name == "every")}
