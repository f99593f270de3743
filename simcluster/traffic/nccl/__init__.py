"""NCCL as a cost model: what its tuner picks for a call, what that costs, what its logs say."""

from simcluster.traffic.nccl.case import Case, Prediction, bus_factor
from simcluster.traffic.nccl.constants import (
    ALGORITHMS,
    COLLECTIVES,
    EXCHANGES,
    PROTOCOLS,
    TABLES,
    Algorithm,
    Collective,
    Exchange,
    Protocol,
)
from simcluster.traffic.nccl.exchange import exchange
from simcluster.traffic.nccl.log import Log, LogRow, Reading, health, overall, parse_log, read_log
from simcluster.traffic.nccl.platforms import ChannelGraph, Effective, Graphs, Platform, load_platform, platform_names
from simcluster.traffic.nccl.predictor import Choice, Model, choose, predict

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "EXCHANGES",
    "PROTOCOLS",
    "TABLES",
    "Algorithm",
    "Case",
    "ChannelGraph",
    "Choice",
    "Collective",
    "Effective",
    "Exchange",
    "Graphs",
    "Log",
    "LogRow",
    "Model",
    "Platform",
    "Prediction",
    "Protocol",
    "Reading",
    "bus_factor",
    "choose",
    "exchange",
    "health",
    "load_platform",
    "overall",
    "parse_log",
    "platform_names",
    "predict",
    "read_log",
]
