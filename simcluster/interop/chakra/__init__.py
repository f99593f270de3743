"""MLCommons Chakra execution traces: read, played on our network, and written from a run of ours.

trace = read_traces("traces/")
print(play_traces(trace, cluster).seconds)
"""

from __future__ import annotations

from simcluster.interop.chakra.playing import Played, play_traces
from simcluster.interop.chakra.reading import read_traces
from simcluster.interop.chakra.trace import Node, Trace
from simcluster.interop.chakra.writing import write_run, write_traces

__all__ = ["Node", "Played", "Trace", "play_traces", "read_traces", "write_run", "write_traces"]
