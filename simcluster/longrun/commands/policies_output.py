"""What simcluster train says of several policies: which is best, a row of each, and the reasons of those refused."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.overrides import overrides_of
from simcluster.documents.overrides import expand_vary, parse_override
from simcluster.longrun.studies.comparing import MEASURES, Measure, Policy, PolicyComparison
from simcluster.results.assumptions import assumed_lines
from simcluster.scenario.paths import check_path
from simcluster.scenario.scenario import Scenario, load
from simcluster.studies.variations import distinct


def policies_of(args: argparse.Namespace, scenario: Scenario) -> dict[str, Policy]:
    """The scenario as it is, one for every combination of --vary, one for each --against; named by what they change."""
    found: list[tuple[str, Policy]] = [(scenario.name, scenario)]
    grid = [expand_vary(text) for text in args.vary]
    for path, _ in grid:
        check_path(path)
    if grid:
        for values in product(*(values for _, values in grid)):
            changes = {path: value for (path, _), value in zip(grid, values, strict=True)}
            found.append((_named(changes), changes))
    for text in args.against:
        if not text.strip():
            raise InputError("--against: changes nothing; write it as 'run.spares.hot=8 run.short=shrink'")
        if "=" in text:
            changes = dict(_changes(text))
            found.append((_named(changes), changes))
        else:
            with _as_changes(text):
                other = load(text, overrides_of(args))
            found.append((other.name, other))
    names = distinct([name for name, _ in found])
    return dict(zip(names, (policy for _, policy in found), strict=True))


@contextmanager
def _as_changes(text: str) -> Iterator[None]:
    """Inside, a scenario that is not there may be meant as changes."""
    try:
        yield
    except InputError as problem:
        raise InputError(
            f"--against {text!r}: {problem}; a policy is a scenario, or changes of it as in 'run.spares.hot=8'"
        ) from None


def _changes(text: str) -> Iterator[tuple[str, Any]]:
    """ "run.spares.hot=8 run.noticed='5 min'"."""
    try:
        words = shlex.split(text)
    except ValueError as problem:
        raise InputError(f"--against {text!r}: {problem}; write it as 'run.spares.hot=8 run.short=shrink'") from None
    for word in words:
        if word.endswith("="):
            raise InputError(f"--against: {word!r} has an empty value; null leaves a key out, as in {word}null")
        path, value = parse_override(word)
        check_path(path.removesuffix("+"))
        yield path, value


def _named(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{path.removeprefix('run.')} {_shown(value)}" for path, value in changes.items())


def _shown(value: Any) -> str:
    """As a document has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def text_of(found: PolicyComparison) -> str:
    """The answer, the table, and what was refused."""
    title = next(iter(found.runs))
    head = f"{title}: {len(found.runs)} policies, {found.played:,} runs of each on the same failures"
    refused = [f"  {name}: {common.on_one_line(why)}" for name, why in found.refused.items()]
    notes = ["+- is half a 95 % interval; ~ zero is in it"]
    blocks = [[head], [found.sentence], [_table(found), *notes], ["refused", *refused] if refused else []]
    blocks.append(assumed_lines(found.assumed))
    return common.in_blocks(blocks)


def _table(found: PolicyComparison) -> str:
    header, columns = ["policy"], [list(found.runs)]
    for measure, table in found.tables.items():
        scale, unit = MEASURES[measure]
        header.append(measure)
        rows = table.to_dict("records")
        columns.append([_mean(measure, row["mean"], row["half_width"]) for row in rows])
        if any(abs(row["difference"]) > 1e-12 * row["mean"] for row in rows):
            header.append(f"against the first, {unit}")
            digits = 0 if measure == "dollars" else 3
            gaps = [(scale * row["difference"], scale * row["difference_half_width"]) for row in rows]
            columns.append(["", *(_gap(gap, half, digits) for gap, half in gaps[1:])])
    return common.format_table(header, list(zip(*columns, strict=True)))


def _mean(measure: Measure, mean: float, half: float) -> str:
    digits, scale, unit = {"goodput": (2, 100, " %"), "days": (2, 1, ""), "dollars": (0, 1, "")}[measure]
    noise = f" +- {scale * half:,.{digits}f}" if half > 1e-12 * abs(mean) else ""
    return f"{scale * mean:,.{digits}f}{noise}{unit}"


def _gap(gap: float, half: float, digits: int) -> str:
    if not gap and not half:
        return "0"
    return f"{'~ ' if abs(gap) <= half else ''}{gap:+,.{digits}f} +- {half:,.{digits}f}"
