"""What HolisticTraceAnalysis finds in a folder of traces, as JSON.

Usage: python ask_hta.py FOLDER.  Needs HolisticTraceAnalysis, and pandas before 3.  Rows are as HTA's tables have
them; ``stragglers`` is the one that HTA holds for most likely.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

from hta.trace_analysis import TraceAnalysis  # noqa: E402


def main(folder: str) -> None:
    found = TraceAnalysis(trace_dir=folder)
    ranks = sorted(found.t.traces)
    idle, _ = found.get_idle_time_breakdown(ranks=ranks, visualize=False)
    launches = found.get_cuda_kernel_launch_stats(ranks=ranks[:1], visualize=False)
    try:
        stragglers = [int(rank) for rank in found.get_potential_stragglers(num_candidates=1)]
    except (ValueError, TypeError):  # no call of a collective takes 1 % of the step, or there is one rank
        stragglers = None
    graph, reached = found.critical_path_analysis(rank=ranks[0], annotation="ProfilerStep", instance_id=0)
    tables = {
        "temporal": found.get_temporal_breakdown(visualize=False),
        "overlap": found.get_comm_comp_overlap(visualize=False),
        "idle": idle,
    }
    told = {name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}
    told |= {
        "stragglers": stragglers,
        "steps": [int(step) for step in found.get_profiler_steps()],
        "launches": len(next(iter(launches.values()))),
        "critical_path": len(graph.critical_path_nodes) if reached else 0,
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
