"""NCCL as a cost model: what its tuner picks for a call, what that costs, what its logs say."""

from importlib import import_module
from typing import Any

_NAMES = {
    "case": ("Case", "Prediction", "bus_factor"),
    "constants": ("ALGORITHMS", "COLLECTIVES", "EXCHANGES", "PROTOCOLS", "TABLES"),
    "exchange": ("exchange",),
    "log": ("Log", "LogRow", "Reading", "health", "overall", "parse_log", "read_log"),
    "platforms": ("ChannelGraph", "Effective", "Graphs", "Platform", "load_platform", "platform_names"),
    "predictor": ("Choice", "Model", "choose", "predict"),
}
"""Names that users import from here, by module; each module is imported when one of its names is asked for."""


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
