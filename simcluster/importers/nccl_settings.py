"""Settings of NCCL in a launch's environment that a simulated cluster does not follow."""

from __future__ import annotations

from collections.abc import Mapping

_USUAL: dict[str, tuple[str, ...]] = {
    "NCCL_IB_DISABLE": ("0",), "NCCL_P2P_DISABLE": ("0",), "NCCL_SHM_DISABLE": ("0",), "NCCL_NVLS_ENABLE": ("1", "2"),
    "NCCL_P2P_LEVEL": ("NVL", "SYS"), "NCCL_NET": ("IB",), "NCCL_ALGO": (), "NCCL_PROTO": (), "NCCL_NTHREADS": (),
    "NCCL_MIN_NCHANNELS": (), "NCCL_MAX_NCHANNELS": (), "NCCL_MIN_CTAS": (), "NCCL_MAX_CTAS": (), "NCCL_BUFFSIZE": (),
}  # fmt: skip
"""What changes how long a collective takes, with the values at which it does not."""


def assumed_of_nccl(environment: Mapping[str, object]) -> tuple[str, ...]:
    """What is said of the settings that change the time of collectives, if there are any."""
    given = {name: str(environment[name]) for name in _USUAL if name in environment}
    found = [f"{name}={value[:20]}" for name, value in given.items() if value and value not in _USUAL[name]]
    return (f"NCCL is taken as it is by default on the cluster, without {', '.join(found)}",) if found else ()
