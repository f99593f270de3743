"""Every value of every field of a scenario, in the neighbourhood of every base: what comes of each change.

  python tests/fields                    all bases, some minutes of one core
  python tests/fields cp moe             some of them

A change has an effect on a number of the step, is rejected, is noted as without effect, or is silent: then its field
must be in ``REVIEWED``, or be one of ``software`` for which the job has no use (``software.NEEDS``).  Two values of a
Literal must differ somewhere.
"""
# ruff: noqa: T201

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from fields.bases import BASES
from fields.walk import Change, alike, lacks, outcomes, reviewed, unexplained


def main(names: list[str]) -> int:
    """Walk, count, and list what nothing comes of; 1 if there is any that is not reviewed."""
    changes: list[Change] = []
    for name in names or BASES:
        found = list(outcomes(name, BASES[name]))
        print(name, dict(Counter(each.outcome for each in found)), flush=True)
        changes += found
    print("all", dict(Counter(each.outcome for each in changes)))
    for path, count in Counter(each.path for each in changes if each.outcome == "silent").items():
        of = [f"{each.base} {each.value}" for each in changes if each.outcome == "silent" and each.path == path]
        print(f"  silent {count}: {path}: {', '.join(of[:8])}")
    print("values of a Literal that never differ:", sorted(alike(changes)))
    reviews = Counter(
        "reviewed" if reviewed(each.path) else "no use in the job"
        for each in changes
        if each.outcome == "silent" and (reviewed(each.path) or lacks(each.base, each.path))
    )
    print("silent", dict(reviews))
    left = unexplained(changes)
    print(f"{len(left)} silent changes are not reviewed", *((each.base, each.path, each.value) for each in left))
    return int(bool(left))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
