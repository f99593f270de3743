"""MLCommons Chakra execution traces: reader, simulation on a cluster, and export of simulated runs.

``simulate_trace(read_chakra_trace("traces/"), cluster).seconds`` is the simulated time of a trace.
"""

from __future__ import annotations

from simcluster.interop.chakra.simulation import SimulatedTrace, simulate_trace
from simcluster.interop.chakra.trace import ChakraTrace, TraceNode, read_chakra_trace
from simcluster.interop.chakra.writer import write_chakra_trace, write_run_as_chakra

__all__ = ["ChakraTrace", "SimulatedTrace", "TraceNode", "read_chakra_trace", "simulate_trace"]
__all__ += ["write_chakra_trace", "write_run_as_chakra"]
