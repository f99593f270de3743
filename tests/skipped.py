"""Compare the tests that a run of the suite skipped with the list of those that may be skipped.

python -m pytest -n auto --junitxml=suite.xml && python tests/skipped.py suite.xml
"""

from __future__ import annotations

import sys
from collections import Counter
from xml.etree import ElementTree

_TABLES = "tables of other people's measured runs are not ours to distribute"
MOST = {
    "needs the measured runs: name their directory in SIMCLUSTER_DATA": (6, _TABLES),
    "needs the measured runs (SIMCLUSTER_DATA)": (1, _TABLES),
    "needs the published traces: name the directory of measured runs in SIMCLUSTER_DATA": (5, _TABLES),
    "needs korthikanti_table5_iteration_time.csv: name its directory in SIMCLUSTER_DATA": (1, _TABLES),
    "needs megatron_sc21_table1_weak_scaling.csv: name its directory in SIMCLUSTER_DATA": (1, _TABLES),
}
"""How many tests may be skipped for each reason, and why they may be."""


def excess(path: str) -> list[str]:
    """Return one line for each reason for which more tests were skipped than the list allows."""
    skipped = ElementTree.parse(path).getroot().iter("skipped")
    counts = Counter(each.get("message", "").removeprefix("Skipped: ") for each in skipped)
    lines = []
    for reason, count in sorted(counts.items()):
        most, _ = MOST.get(reason, (0, ""))
        if count > most:
            lines.append(f"{count} tests were skipped, {most} may be: {reason}")
    return lines


if __name__ == "__main__":
    sys.exit("\n".join(excess(sys.argv[1])) or 0)
