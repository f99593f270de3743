"""Drawn scenarios in every way, each beside the reference: the step and all spans to the bit, or refused by name.

  python tests/drawn --count 5000 --seed 0            on two processes
  python tests/drawn --count 1 --seed 17 --show       one scenario again, with its document
  python tests/drawn --vary                           what a new field of a scope needs: documents that vary it
  python tests/drawn --shipped                        every built-in scenario that the reference simulates in 90 s

It says of every way how many scenarios were equal and how many were refused, by reason, and ends with status 1 if one
differs.
"""
# ruff: noqa: E402, T201

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import conftest

conftest.pytest_configure()  # what is read and planned is kept, as in the tests

from drawn.comparison import Answer, compared
from drawn.scenarios import sections
from drawn.scopes import SCOPES
from drawn.shipped import compare_shipped
from drawn.varied import vary

SECONDS, BYTES = 120, 4 << 30
"""Processor time for one scenario in all ways, and memory of a process: what takes more differs."""


def begin() -> None:
    """Limit a process."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    signal.signal(signal.SIGVTALRM, late)


def late(*_: Any) -> None:
    """End a scenario that takes too long."""
    raise TimeoutError(f"more than {SECONDS} s of processor time")


def answers(seed: int, within: str | None) -> list[Answer]:
    """Return what every way gives for the scenario of a seed."""
    conftest.PLANNED.clear()
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return compared(conftest.tiny_scenario(**sections(seed, SCOPES.get(within or ""))))
    except Exception as error:
        return [Answer("drawing", "differs", f"{type(error).__name__}: {error}")]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def main() -> int:
    """Draw, compare and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first scenario; the next ones have the next seeds")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--within", choices=SCOPES, help="draw what the scope of this fast path vouches for")
    parser.add_argument("--show", action="store_true", help="print the documents")
    parser.add_argument("--vary", action="store_true", help="draw documents for varied.json")
    parser.add_argument("--shipped", action="store_true", help="compare the built-in scenarios instead of drawn ones")
    asked = parser.parse_args()
    if asked.shipped:
        begin()
        return compare_shipped(lambda text: print(text, flush=True))
    if asked.vary:
        left = vary(lambda text: print(text, flush=True))
        print("missing", {name: sorted(paths) for name, paths in left.items() if paths})
        return int(any(left.values()))
    seeds = range(asked.seed, asked.seed + asked.count)
    if asked.show:
        for seed in seeds:
            print(json.dumps(sections(seed, SCOPES.get(asked.within or "")), indent=1))
    begun = time.monotonic()
    found: Counter[tuple[str, str, str]] = Counter()
    different = 0
    with ProcessPoolExecutor(asked.processes, initializer=begin) as pool:
        for number, (seed, own) in enumerate(
            zip(seeds, pool.map(answers, seeds, repeat(asked.within), chunksize=8), strict=True), 1
        ):
            found.update((each.way, each.verdict, each.why if each.verdict == "refused" else "") for each in own)
            for each in own:
                if each.verdict == "differs":
                    different += 1
                    print(f"seed {seed}, {each.way}: {each.why}", flush=True)
            if number % 250 == 0:
                print(f"{number} scenarios, {time.monotonic() - begun:.0f} s, {different} differ", flush=True)
    for (way, verdict, why), many in sorted(found.items(), key=lambda each: (each[0][0], -each[1])):
        print(f"{many:6} {way}: {verdict}{f': {why}' if why else ''}")
    print(f"{asked.count} scenarios from seed {asked.seed} in {time.monotonic() - begun:.0f} s: {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
