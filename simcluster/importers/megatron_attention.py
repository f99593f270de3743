"""The core of attention in Megatron-LM's options: one kernel or several, and whose layers it stands in."""

from __future__ import annotations

from simcluster.importers.option_values import Options

_BEFORE_2024 = ("deepspeed", "data-impl", "DDP-impl", "checkpoint-activations", "activations-checkpoint-method")
"""Options of versions whose layers are their own, not Transformer Engine's, unless another is asked for."""


_HALF = ("bf16", "fp16", "fp8-format", "fp4-format")
"""The options of formats that the one kernel takes; with none of them all is in fp32."""


def attention_of(run: Options) -> str:
    """Whether the core of attention is one kernel."""
    asked = _asked(run)
    in_fp32 = not any(run.get(name) for name in _HALF)
    if asked == "fused" and in_fp32 and (run.get("context-parallel-size") or 1) == 1:
        run.assumed.append("attention in steps, as without --bf16 or --fp16: its one kernel takes no fp32")
        return "unfused"
    return asked


def _asked(run: Options) -> str:
    backend = run.get("attention-backend") or "auto"
    if run.flag("use-flash-attn"):
        return "fused"
    if backend in ("unfused", "local"):
        return "unfused"
    local = run.get("transformer-impl") == "local"
    if backend == "auto" and "transformer-impl" not in run.given and not local:
        old = _of_before_2024(run)
        if old:
            run.assumed.append(f"attention in steps, as of versions that have {old} it is without use-flash-attn")
            return "unfused"
    return "unfused" if backend == "auto" and local else "fused"


def is_flash_of_legacy_layers(run: Options) -> bool:
    """Whether attention is the flash kernel of Megatron-LM's legacy layers, which is never run again by itself.

    ``ParallelAttention.forward`` (megatron/legacy/model/transformer.py, and Megatron-DeepSpeed's) looks at
    ``checkpoint_core_attention`` only where ``use_flash_attn`` is off.  Layers of Transformer Engine and of
    Megatron-Core look at it in any case.
    """
    if not run.flag("use-flash-attn") or run.flag("use-mcore-models"):
        return False
    implementation = run.get("transformer-impl")
    if implementation == "local":
        return run.flag("use-legacy-models") or bool(_of_before_2024(run))
    return implementation is None and bool(_of_before_2024(run))


def _of_before_2024(run: Options) -> str:
    """The first of those options that is given."""
    return next((name for name in _BEFORE_2024 if name in run.given), "")
