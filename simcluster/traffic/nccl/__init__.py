"""NCCL as a cost model: its tuner's choice for a call, the cost of that, and a reader of nccl-tests logs."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a name that one of the modules defines; users import it from ``simcluster.nccl``."""
    for module in ("case", "constants", "platforms", "predictor", "log", "exchange"):
        if name in (names := vars(import_module(f"{__name__}.{module}"))):
            return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
