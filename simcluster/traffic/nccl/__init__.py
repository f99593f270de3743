"""Cost model of NCCL: its tuner's choice for a call, the predicted time, and a reader of nccl-tests logs."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a public name from the modules of this package, for users of ``simcluster.nccl``."""
    for module in ("tuner_query", "constants", "platforms", "predictor", "log", "exchange"):
        if name in (names := vars(import_module(f"{__name__}.{module}"))):
            return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
