"""What of a layer backward can run again by itself: the modules of Megatron-Core's ``--recompute-modules``.

``core_attn``, the attention between projections; ``mla_up_proj``, what makes heads of latent attention's narrow
vectors, and their rotation; ``layernorm``, norms that stand by themselves: in front of latent attention and of experts
(others Transformer Engine fuses with the product behind them, and keeps both); ``moe_act``, the activation function of
the routed experts; ``shared_experts`` and ``mlp``, those of a layer whole; ``moe``, a whole mixture, its two
all-to-alls included.  Of the first four only the output goes, and comes back when its reader's backward needs it; the
last three keep their input (Megatron-LM, core/transformer/transformer_config.py, ``recompute_modules``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from simcluster.model.kernels import Section

RecomputeModule = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]

RECOMPUTE_MODULES: tuple[RecomputeModule, ...] = get_args(RecomputeModule)


def absent_modules(*, experts: bool, shared: bool, dense: bool, latent: bool) -> dict[RecomputeModule, str]:
    """Return the modules that a model has not, each with what it lacks: routed ``experts``, ``shared`` ones, layers
    with a ``dense`` MLP, ``latent`` attention."""
    needs: dict[RecomputeModule, tuple[bool, str]] = {
        "moe_act": (experts, "model.moe"),
        "moe": (experts, "model.moe"),
        "shared_experts": (shared, "model.moe.shared_experts"),
        "mla_up_proj": (latent, "model.mla"),
        "layernorm": (experts or latent, "model.moe or model.mla (Transformer Engine fuses other norms)"),
        "mlp": (dense, "a layer without experts"),
    }
    return {module: lacks for module, (there, lacks) in needs.items() if not there}


def again(section: Section, *, when: bool) -> Section:
    """A section whose forward runs again in backward, ``when`` that is asked for."""
    return replace(section, recompute=section.forward) if when else section
