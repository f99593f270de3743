"""Overrides of a scenario on a command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any


def overrides_of(args: argparse.Namespace, *scenarios: str) -> list[tuple[str, Any]]:
    """Every override on the command line as (path, value): --set first, then the shorter spellings.

    Says on stderr what they take away from these ``scenarios``.
    """
    from simcluster.documents.overrides import parse_override  # heavy: reads YAML

    found = [parse_override(text) for text in (*args.set, *args.overrides)]
    for scenario in scenarios:
        say_what_is_replaced(scenario, found)
    return found


def say_what_is_replaced(scenario: str, overrides: Sequence[tuple[str, Any]]) -> None:
    """One line on stderr where other faults take the place of the scenario's own."""
    given = [value for path, value in overrides if path == "faults"]
    if not given or not given[-1]:
        return
    from simcluster.documents.reading import read_document
    from simcluster.faults.words import all_in_words
    from simcluster.scenario.scenario import scenario_path

    own = read_document(scenario_path(scenario)).data.get("faults")
    if isinstance(own, list) and own and own != given[-1] and all(isinstance(fault, dict) for fault in own):
        print(
            f"note: faults=... takes the place of the scenario's own faults ({all_in_words(own)}); "
            "faults+=... adds to them",
            file=sys.stderr,
        )


def cluster_overrides_of(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """The same where the document is a topology: nodes=4 and, as in a scenario, cluster.nodes=4."""
    return [(path.removeprefix("cluster."), value) for path, value in overrides_of(args)]
