"""Settings of NCCL in a launch's environment that a simulated cluster does not follow."""

from __future__ import annotations

from collections.abc import Mapping

_USUAL: dict[str, tuple[str, ...]] = {
    "NCCL_IB_DISABLE": ("0",), "NCCL_P2P_DISABLE": ("0",), "NCCL_SHM_DISABLE": ("0",), "NCCL_NVLS_ENABLE": ("1", "2"),
    "NCCL_P2P_LEVEL": ("NVL", "SYS"), "NCCL_NET": ("IB",), "NCCL_ALGO": (), "NCCL_PROTO": (), "NCCL_NTHREADS": (),
    "NCCL_MIN_NCHANNELS": (), "NCCL_MAX_NCHANNELS": (), "NCCL_MIN_CTAS": (), "NCCL_MAX_CTAS": (), "NCCL_BUFFSIZE": (),
    "NCCL_MIN_P2P_NCHANNELS": (), "NCCL_MAX_P2P_NCHANNELS": (), "NCCL_P2P_NET_CHUNKSIZE": (),
    "NCCL_NCHANNELS_PER_NET_PEER": (), "NCCL_PXN_DISABLE": ("0",), "NCCL_COLLNET_ENABLE": ("0",),
    "NCCL_BLOCKING_WAIT": ("0",), "TORCH_NCCL_BLOCKING_WAIT": ("0",), "TORCH_DISTRIBUTED_DEBUG": ("OFF", "INFO"),
}  # fmt: skip
"""What changes how long a collective takes, with the values at which it does not."""


def assumed_of_nccl(environment: Mapping[str, object]) -> tuple[str, ...]:
    """What is said of the settings that change the time of collectives, if there are any."""
    found = given_otherwise(environment, _USUAL)
    return (f"NCCL is taken as it is by default on the cluster, without {', '.join(found)}",) if found else ()


def given_otherwise(environment: Mapping[str, object], usual: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The settings of a table that are given with another value than what is usual, as they are written."""
    given = {name: str(environment[name]) for name in usual if name in environment}
    return [f"{name}={value[:20]}" for name, value in given.items() if value and value not in usual[name]]
