"""``simcluster budget packing``: compare rules that pack documents into sequences."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter, ValidationError

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.documents.csv_tables import read_histogram
from simcluster.documents.diagnostics import validate_mapping
from simcluster.faults import SequenceLengths
from simcluster.faults.random_factors import random_stream
from simcluster.model.packing import PACKING, LognormalLengths, mean_padded_tokens
from simcluster.scenario.run_section import Tokens
from simcluster.scenario.scenario import load
from simcluster.show.output_blocks import OutputBlocks, TableBlock, TextLines
from simcluster.studies.packing_comparison import compare_packing

_SIGMA = 1.0

if TYPE_CHECKING:
    import pandas as pd

    from simcluster.model.packing import Lengths

_MOST_DOCUMENTS = 10_000_000


def run(args: argparse.Namespace) -> None:
    """Pack documents by every rule, and print and write the comparison of the rules."""
    _check_arguments(args)
    law, documents, length, batch, unique = _read_request(args)
    table = compare_packing(documents, length, batch=batch, tokens=_parse_tokens(args, "tokens"), unique=unique)
    common.print_answer(
        args,
        lambda: _packing_blocks(table, law, documents, length),
        lambda: {
            "documents": len(documents),
            "tokens": float(documents.sum()),
            "length": length,
            "packing": {rule: table.loc[rule].to_dict() for rule in PACKING},
        },
    )


def _read_request(args: argparse.Namespace) -> tuple[Lengths | None, Floats, int, int | None, float | None]:
    scenario = load(args.scenario, read_overrides(args, args.scenario)) if args.scenario else None
    data = scenario.data if scenario else None
    length = args.length or (scenario.model.sequence_length if scenario else 0)
    if not length:
        raise InputError("packing: the sequence length is missing; give a scenario, or --length 8192")
    drawn = [fault.documents for fault in scenario.faults if isinstance(fault, SequenceLengths)] if scenario else []
    law: Lengths | None = (data and data.documents) or (drawn[0] if drawn else None)
    if args.median is not None:
        sigma = _SIGMA if args.sigma is None else args.sigma
        law = validate_mapping(LognormalLengths, {"kind": "lognormal", "median": args.median, "sigma": sigma}, "--")
    batch = args.batch or (scenario.training.global_batch if scenario else None)
    unique = _parse_tokens(args, "unique") or (data.unique if data else None)
    if args.documents:
        return None, _parse_documents(args.documents), length, batch, unique
    if law is None:
        raise InputError(
            "packing: documents are missing; give a scenario with data.documents, --documents 1200,700,300 (or a CSV "
            "of lengths), or --median 1000 --sigma 1.6"
        )
    return law, law.draw(random_stream(scenario.seed if scenario else 0, "packing"), args.drawn), length, batch, unique


def _check_arguments(args: argparse.Namespace) -> None:
    if args.documents and args.median is not None:
        raise InputError("--documents and --median both set the documents; give one of them")
    if args.sigma is not None and args.median is None:
        raise InputError("--sigma is the spread of lengths around a median; give --median, as in --median 1000")
    if args.tokens and not (args.batch or args.unique or args.scenario):
        raise InputError("--tokens needs --batch (sequences per step) for steps, or --unique for epochs; give one")
    if args.unique and not args.tokens:
        raise InputError("--unique needs --tokens, the training tokens; give them, as in --tokens 2T")


def _parse_tokens(args: argparse.Namespace, name: str) -> float | None:
    text = getattr(args, name)
    try:
        return None if text is None else float(TypeAdapter(Tokens).validate_python(text))
    except ValidationError:
        raise InputError(f"--{name}: must be a number of tokens, as in 2T or 300B; got {text!r}") from None


def _parse_documents(documents: str) -> Floats:
    if Path(documents).suffix == ".csv":
        found = read_histogram(documents)
        if (count := sum(found["weights"])) > _MOST_DOCUMENTS:
            raise InputError(
                f"{documents}: has {count:,.0f} documents, more than the limit of {_MOST_DOCUMENTS:,}; scale their "
                "weights down"
            )
        return np.repeat(np.array(found["values"]), np.array(found["weights"], dtype=np.int64))
    try:
        return np.array([float(each) for each in documents.split(",")])
    except ValueError:
        what = "must be lengths in tokens, as in 1200,700,300, or a file that ends in .csv"
        raise InputError(f"--documents: {what}; got {documents!r}") from None


def _packing_blocks(table: pd.DataFrame, law: Lengths | None, documents: Floats, length: int) -> OutputBlocks:
    columns = ["packing", "sequences", "real tokens", "attention", "dropped"]
    columns += [name for name in ("steps", "epochs") if name in table]
    rows = [
        [str(rule), f"{row.sequences:,.0f}", f"{row.utilization:.2%}", f"{row.attention:.2%}", f"{row.dropped:,.0f}",
         *([f"{row.steps:,.0f}"] if "steps" in table else []), *([f"{row.epochs:.3g}"] if "epochs" in table else [])]
        for rule, row in table.iterrows()
    ]  # fmt: skip
    head = f"{len(documents):,} documents of {documents.mean():,.0f} tokens on average, sequences of {length:,}"
    notes = ["real tokens: share of allocated tokens; attention: within documents, as a share of whole sequences"]
    if isinstance(law, LognormalLengths):
        mean = mean_padded_tokens(law, length)
        notes.append(f"closed form: a padded sequence holds {mean:,.1f} tokens, {mean / length:.2%}")
    return [TextLines([head]), TableBlock(columns, rows), TextLines(notes)]
