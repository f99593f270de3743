"""Variables of a launch's environment that change a step's time: what is read of them, and what is told."""

from __future__ import annotations

from collections.abc import Mapping

from simcluster.importers.nccl_settings import assumed_of_nccl, given_otherwise

_OF_KERNELS: dict[str, tuple[str, ...]] = {
    "CUDA_LAUNCH_BLOCKING": ("0",), "HIP_LAUNCH_BLOCKING": ("0",), "ASCEND_LAUNCH_BLOCKING": ("0",),
    "TORCH_COMPILE_DISABLE": ("0",), "TORCHDYNAMO_DISABLE": ("0",), "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("1",),
    "NVTE_FWD_LAYERNORM_SM_MARGIN": ("0",), "NVTE_BWD_LAYERNORM_SM_MARGIN": ("0",),
}  # fmt: skip
"""What changes how long kernels take, or makes the host wait for each, with the values at which it does not."""

_OF_DOMAINS: dict[str, tuple[str, ...]] = {
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": (), "NVLINK_DOMAIN_SIZE": (), "USE_MNNVL": ("0",),
}  # fmt: skip
"""What HybridEP is told of NVLink's domains (deep_ep/hybrid_ep_buffer.py)."""

_BACKENDS = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")


def assumed_of_environment(environment: Mapping[str, object]) -> tuple[str, ...]:
    """What is said of the settings that change a step's time, if there are any."""
    kernels, domains = (given_otherwise(environment, table) for table in (_OF_KERNELS, _OF_DOMAINS))
    told = [f"kernels are taken as they are without {', '.join(kernels)}"] if kernels else []
    told += [f"NVLink's domains are those of the cluster, whatever {', '.join(domains)} says"] if domains else []
    return (*assumed_of_nccl(environment), *told)


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
