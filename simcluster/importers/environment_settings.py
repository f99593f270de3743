"""Variables of a launch's environment that change a step's time: what is read of them, and what is told."""

from __future__ import annotations

from collections.abc import Mapping

_OF_NCCL: dict[str, tuple[str, ...]] = {
    "NCCL_IB_DISABLE": ("0",), "NCCL_P2P_DISABLE": ("0",), "NCCL_SHM_DISABLE": ("0",), "NCCL_NVLS_ENABLE": ("1", "2"),
    "NCCL_P2P_LEVEL": ("NVL", "SYS"), "NCCL_NET": ("IB",), "NCCL_ALGO": (), "NCCL_PROTO": (), "NCCL_NTHREADS": (),
    "NCCL_MIN_NCHANNELS": (), "NCCL_MAX_NCHANNELS": (), "NCCL_MIN_CTAS": (), "NCCL_MAX_CTAS": (), "NCCL_BUFFSIZE": (),
    "NCCL_MIN_P2P_NCHANNELS": (), "NCCL_MAX_P2P_NCHANNELS": (), "NCCL_P2P_NET_CHUNKSIZE": (),
    "NCCL_NCHANNELS_PER_NET_PEER": (), "NCCL_PXN_DISABLE": ("0",), "NCCL_COLLNET_ENABLE": ("0",),
    "NCCL_BLOCKING_WAIT": ("0",), "TORCH_NCCL_BLOCKING_WAIT": ("0",), "TORCH_DISTRIBUTED_DEBUG": ("OFF", "INFO"),
}  # fmt: skip
"""What changes how long a collective takes, with the values at which it does not."""

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
    """Return a sentence for each kind of settings that change a step's time."""
    tables = _OF_NCCL, _OF_KERNELS, _OF_DOMAINS
    nccl, kernels, domains = (_given_otherwise(environment, table) for table in tables)
    sentences = [f"NCCL is taken as it is by default on the cluster, without {', '.join(nccl)}"] if nccl else []
    sentences += [f"kernels are taken as they are without {', '.join(kernels)}"] if kernels else []
    sentences += [f"NVLink's domains are those of the cluster, whatever {', '.join(domains)} says"] if domains else []
    return tuple(sentences)


def _given_otherwise(environment: Mapping[str, object], usual: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The settings of a table that are given with another value than what is usual, as they are written."""
    given = {name: str(environment[name]) for name in usual if name in environment}
    return [f"{name}={value[:20]}" for name, value in given.items() if value and value not in usual[name]]


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
