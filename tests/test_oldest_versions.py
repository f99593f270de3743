"""The oldest versions that pyproject.toml allows, in .ci/oldest.txt, with which ``OLDEST=1 .ci/run`` tests.

After a change of a lower bound: python tests/test_oldest_versions.py --regenerate
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / ".ci" / "oldest.txt"
EXTRAS = ("parquet", "notebooks", "chakra", "studio", "dask", "test")
"""What the tests are run with; other extras are tools, whose newest is used."""


def oldest() -> str:
    """Constraints of pip: every requirement at its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(each for name in EXTRAS for each in project["optional-dependencies"][name])]
    bounds = [re.fullmatch(r"([\w.-]+)>=([\w.]+)", each) for each in asked if not each.startswith("simcluster[")]
    assert all(bounds), asked
    lines = [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]
    return "\n".join(
        ["# The lower bounds of pyproject.toml: python tests/test_oldest_versions.py --regenerate", *lines, ""]
    )


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    assert LIST.read_text(encoding="utf-8") == oldest()


if __name__ == "__main__" and "--regenerate" in sys.argv:
    LIST.write_text(oldest(), encoding="utf-8")
