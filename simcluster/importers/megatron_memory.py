"""What a GPU keeps, from Megatron-LM's options: formats of optimizer states, the loss, and what moves to the host."""

from __future__ import annotations

from typing import Any, get_args

from simcluster.importers.deepspeed import HOST_UPDATE, HOST_UPDATE_ASSUMED
from simcluster.importers.option_values import Options
from simcluster.model.kept import OffloadModule
from simcluster.model.recipes import recipe_named

_BYTES = {"fp32": 4, "float32": 4, "float": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "fp8": 1}
_OFFLOADED: tuple[str, ...] = get_args(OffloadModule)
_OF_EXPERTS = ("expert_fc1", "moe_act")


def memory_of(run: Options) -> dict[str, Any]:
    """The fields of ``Memory``."""
    memory: dict[str, Any] = {}
    if run.flag("cross-entropy-loss-fusion"):
        memory["logits"] = "in-place"
    if run.flag("activation-func-fp8-input-store"):
        memory["activation_input"] = "fp8"
    if run.flag("cpu-offloading"):
        if share := _layers_offloaded(run):
            memory["offload"] = {"activations": share}
    elif run.flag("fine-grained-activation-offloading"):
        modules = _offloaded(run)
        if modules:
            memory["offload"] = {"modules": modules}
            run.assumed.append(
                "what is offloaded goes when a microbatch's forward is over, and layer by layer where its backward "
                "follows at once"
            )
    if optimizer := _optimizer_offloaded(run):
        memory["offload"] = memory.get("offload", {}) | optimizer
    return memory


def _layers_offloaded(run: Options) -> float:
    """Return the share of layers whose activations go to the host; the checks are those of TransformerConfig."""
    layers, count = run.needed("num-layers", "encoder-num-layers"), run.get("cpu-offloading-num-layers") or 0
    if (run.get("pipeline-model-parallel-size") or 1) > 1:
        raise run.error("cpu-offloading", "Megatron offloads layers without a pipeline only; take one of the two out")
    if run.get("recompute-granularity") or run.flag("recompute-activations", "checkpoint-activations"):
        raise run.error("cpu-offloading", "Megatron offloads no layers while it recomputes; take one of the two out")
    if count >= layers:
        raise run.error(
            "cpu-offloading-num-layers", f"{count} of {layers} layers: the last stays; at most {layers - 1}"
        )
    return float(count / layers)


def _optimizer_offloaded(run: Options) -> dict[str, str]:
    """Return the fields of ``memory.offload`` for the optimizer's state; MindSpeed swaps it in and out."""
    if run.flag("swap-optimizer"):
        return {"optimizer": "stream"}
    part = run.get("optimizer-offload-fraction")
    if not run.flag("optimizer-cpu-offload") or part == 0:
        return {}
    if part not in (None, 1):
        raise run.error("optimizer-offload-fraction", f"{part} is not modelled; 1 (all of the state) and 0 are")
    run.assumed.append(HOST_UPDATE_ASSUMED)
    return dict(HOST_UPDATE)


def _offloaded(run: Options) -> list[str]:
    words = (run.get("offload-modules") or "").replace(",", " ").split()
    modules = [word.strip("[]\"'") for word in words]
    strange = next((module for module in modules if module not in _OFFLOADED), None)
    if strange is not None:
        raise run.error("offload-modules", f"{strange[:40]!r} is not known; known: {', '.join(_OFFLOADED)}")
    if run.get("num-experts") is None:
        modules = [module for module in modules if module not in _OF_EXPERTS]
    return modules


def state_recipe(run: Options, usual: str) -> str:
    """The memory recipe where the optimizer is aware of precision, else the ``usual`` one.

    The nearest that has a name; what differs is told.
    """
    if not run.flag("use-precision-aware-optimizer") or usual == "fp32-16":
        return usual
    names = ("main-grads-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
    gradient, *moments = (_bytes(run, name) for name in names)
    if usual == "mixed-16":  # the optimizer reads the buffer that is reduced (decoupled_grad of distrib_optimizer.py)
        gradient = 2
    small = sum(moments) < 8 and not usual.startswith("nvfp4")
    if sum(moments) != (4 if small else 8):
        run.assumed.append(
            f"both moments in {'bf16' if small else 'fp32'}, though {names[1]} and {names[2]} make them {sum(moments)} "
            "B together: the nearest"
        )
    if usual.startswith(("fp8", "nvfp4")):
        found = ("fp8-params-14" if usual.startswith("fp8-params") else "fp8-aware-14") if small else usual
        if gradient != 4 and recipe_named(found).gradient == 4:
            run.assumed.append(f"gradients in fp32, though main-grads-dtype is another, as recipe {found} has them")
        return found
    return {(4, False): "aware-16", (2, False): "aware-14", (4, True): "aware-12", (2, True): "aware-10"}[
        gradient, small
    ]


def _bytes(run: Options, name: str) -> int:
    """Of an element in the format that an option names, fp32 where it is not given."""
    word = str(run.get(name) or "fp32").removeprefix("torch.")
    if word not in _BYTES:
        raise run.error(name, f"{word[:40]!r} is not known; known: {', '.join(_BYTES)}")
    if name == "main-grads-dtype" and _BYTES[word] < 2:
        raise run.error(name, "gradients are in fp32 or bf16")
    return _BYTES[word]
