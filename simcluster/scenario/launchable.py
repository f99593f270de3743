"""Which framework can launch what a scenario asks for, where not every one can: ZeRO 2 and 3 under a pipeline.

A pipeline passes many microbatches through a stage before its gradients are whole, so most programs that have both
refuse to shard gradients or parameters there:

* DeepSpeed asserts ``zero_optimization_stage() < 2`` in the constructor of ``PipelineEngine``
  (deepspeed/runtime/pipe/engine.py: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism").
* Megatron-LM's ``--use-distributed-optimizer`` shards the optimizer's state alone, which is ZeRO 1, and
  ``--use-torch-fsdp2`` asserts that there is no pipeline (megatron/training/arguments.py).  Megatron-FSDP, which
  replaces both, is not judged here.
* torchtitan puts PyTorch's ``fully_shard`` under ``torch.distributed.pipelining``; its ``reshard_after_forward`` is
  ``default`` (with a pipeline: parameters stay behind the forward), ``always`` (ZeRO 3) or ``never``
  (torchtitan/models/llama3/infra/parallelize.py).

Planning: nothing is played.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario

_REFUSES = "DeepSpeed refuses it"
_SHARDS_LESS = "Megatron-LM's distributed optimizer is ZeRO-1"


def launch_words(zero: int, pp: int, replicas: int, *, reshards: bool = True) -> str:
    """Which framework launches this ZeRO stage under so many stages; "" where all that have both do.

    ``replicas`` share the state, ``reshards``: ZeRO 3 gives parameters up behind the forward.
    """
    if zero < 2 or pp == 1 or replicas == 1:
        return ""
    policy = "always" if zero == 3 and reshards else "never"
    return (
        f"ZeRO-{zero} under a pipeline: torchtitan launches it (FSDP2, reshard_after_forward {policy}); {_REFUSES}, "
        f"{_SHARDS_LESS}"
    )


def launch_note(scenario: Scenario) -> str:
    """The same of a scenario; where it names its software and that is one of those that cannot, it comes first."""
    parallel, reshards = scenario.parallel, scenario.fsdp.reshard_after_forward
    words = launch_words(parallel.zero, parallel.pp, scenario.dp * parallel.cp, reshards=reshards)
    name = scenario.software.name if scenario.software else ""
    if not words or not name.startswith("megatron"):
        return words
    return f"software {name} cannot launch this: {words}"
