"""MLCommons Chakra execution traces: reading, simulation on a cluster, and export of a simulated run.

trace = read_traces("traces/") print(play_traces(trace, cluster).seconds)
"""

from __future__ import annotations

from simcluster.interop.chakra.simulation import PlayedTrace, play_traces
from simcluster.interop.chakra.trace import ChakraTrace, TraceNode, read_traces
from simcluster.interop.chakra.writer import write_run, write_traces

__all__ = ["ChakraTrace", "PlayedTrace", "TraceNode", "play_traces", "read_traces", "write_run", "write_traces"]
