"""Kinds of input that are tables or documents beside a scenario: CSV, JSON lines, logs, saved results."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from fuzz import corpus, mutation
from fuzz.case import Case

OUT = ["--json", "-"]


def _text(dice: Random, content: bytes, separator: str = ",") -> bytes:
    """A table's text with lines or bytes changed."""
    if dice.random() < 0.25:
        return mutation.raw(dice, content)
    return mutation.lines(dice, content.decode(), separator)


def schedule_csv(dice: Random) -> Case:
    """A pipeline schedule in torch's CSV."""
    command = dice.choice(
        (
            ["run", "tiny_3d", "--pipeline.schedule", "s.csv"],
            ["schedule", "s.csv", "--stages", "2", "--microbatches", "4"],
        )
    )
    return Case([*command, *OUT], {"s.csv": _text(dice, corpus.content("examples/mine.csv"))})


def nccl_log(dice: Random) -> Case:
    """What nccl-tests printed."""
    changed = _text(dice, corpus.content("examples/nccl.log"), " ")
    return Case(["collective", "--measured", "n.log", "--platform", "dgx-h100", *OUT], {"n.log": changed})


def failure_log(dice: Random) -> Case:
    """A log of failures of one's own."""
    rows = dice.choice(
        (
            b"age,end,cause,count\n10 h,failed,gpu,1\n20 h,censored,,5\n35 h,failed,gpu,2\n",
            corpus.content("examples/failures.csv"),
        )
    )
    if dice.random() < 0.3:
        lines = [{"cause": "gpu", "time": f"{3 * n} h", "of": "gpu"} for n in range(5)]
        text = "\n".join(json.dumps(each) for each in mutation.tree(dice, lines) or [])
        return Case(
            ["failures", "f.jsonl", "--gpus", "64", "--days", "30", *OUT], {"f.jsonl": text.encode("utf-8", "replace")}
        )
    more = dice.choice(([], ["--by", "of"], ["--columns", "time=Start"], ["--began", "2024-07-01"]))
    return Case(["failures", "f.csv", "--gpus", "1024", "--days", "30", *more, *OUT], {"f.csv": _text(dice, rows)})


def replayed_log(dice: Random) -> Case:
    """A log of a run of weeks, played again."""
    rows = b"".join(corpus.content("scenarios/logs/simulated_54_days.csv").splitlines(keepends=True)[:12])
    return Case(
        ["train", "week.yaml", "--replay", "l.csv", "--played", "2", *OUT],
        {"l.csv": _text(dice, rows), "week.yaml": corpus.week()},
    )


def saved_result(dice: Random) -> Case:
    """A result as run --json saves it, compared or reported."""
    (text,) = corpus.made("run tiny_3d --json r.json", "r.json")
    changed = mutation.raw(dice, text) if dice.random() < 0.2 else corpus.dumped(mutation.tree(dice, json.loads(text)))
    command = dice.choice(
        (
            ["diff", "a.json", "b.json", *OUT],
            ["report", "a.json", "-o", "r.html", *OUT],
            ["report", "b.json", "a.json", "-o", "r.html"],
        )
    )
    return Case(command, {"a.json": changed, "b.json": text})


def lengths(dice: Random) -> Case:
    """Lengths of documents, or what every rank sends to every other."""
    if dice.random() < 0.5:
        return Case(
            ["packing", "--documents", "d.csv", "--length", "2048", *OUT],
            {"d.csv": _text(dice, corpus.LENGTHS.encode())},
        )
    sizes = "\n".join(",".join(str(1000 * (i + j)) for j in range(4)) for i in range(4)).encode()
    argv = ["collective", "all_to_all_v", "--sizes", "s.csv", "--cluster", "dgx_h100", *OUT]
    return Case(argv, {"s.csv": _text(dice, sizes)})


def losses(dice: Random) -> Case:
    """Rows of runs, of which a law of loss is fitted."""
    return Case(
        ["scaling", "--fit", "r.csv", "--compute", "1e22", *OUT],
        {"r.csv": _text(dice, corpus.content("tests/fuzz/seeds/losses.csv"))},
    )


def fits(dice: Random) -> Case:
    """A fit file: constants, and the rows that decide them."""
    shipped = dice.random() < 0.1
    document = corpus.tree("scenarios/fits/constants.yaml") if shipped else corpus.FITS
    rows = mutation.tree(dice, corpus.MEASURED) if not shipped and dice.random() < 0.5 else corpus.MEASURED
    change = mutation.gentle if dice.random() < 0.2 else mutation.tree
    document = document if rows != corpus.MEASURED else change(dice, document)
    return Case(
        ["fit", "--file", "f.yaml", "--no-cross-validation", *OUT],
        {"f.yaml": corpus.dumped(document), "r.yaml": corpus.dumped(rows)},
    )


def kernels(dice: Random) -> Case:
    """What kernels do by their names, for a trace."""
    files = {f"p/rank{rank}.json.gz": corpus.content(f"examples/profiles/rank00{rank}.json.gz") for rank in range(8)}
    words = [each["kind"] for each in corpus.KERNELS["kernels"]]
    patterns = (".*", "gemm|cutlass", "nccl.*", "(?i)flash", "^$", "a{1,3}", "[")
    own = [{"kind": dice.choice(words), "pattern": dice.choice(patterns)} for _ in range(dice.randrange(1, 4))]
    files["k.yaml"] = corpus.dumped({"kernels": own} if dice.random() < 0.3 else mutation.tree(dice, corpus.KERNELS))
    return Case(["diff", "tiny_3d", "p", "--kernels", "k.yaml", *OUT], files)


def measured(dice: Random) -> Case:
    """The raw table of a calibration."""
    head = {"format": "simcluster calibration 1", "device": "x", "kind": "cuda", "multiprocessors": 132}
    kinds = ({"kind": "matmul", "op": "TN", "n": 4096, "k": 4096}, {"kind": "memory", "op": "add", "n": 1})
    rows = [head] + [
        {"case": {**kind, "dtype": "bf16", "m": 1024 << n}, "seconds": 1e-4 * 2**n, "repeats": 5, "calls": 3}
        for kind in kinds
        for n in range(4)
    ]
    text = "\n".join(json.dumps(each) for each in mutation.tree(dice, rows) or [])
    return Case(["calibrate", "-o", "g.yaml", "--from", "g.jsonl", *OUT], {"g.jsonl": text.encode("utf-8", "replace")})


def histogram(dice: Random) -> Case:
    """Laws of a scenario's draws: documents, jitter, tokens of experts."""
    laws = [
        {"kind": "lognormal", "median": 1000, "sigma": 1.6},
        {"kind": "histogram", "values": [512, 1024, 2048], "weights": [3, 2, 1]},
        {"kind": "values", "values": [1.0, 1.1, 1.5]},
        {"kind": "empirical", "file": "h.csv"},
    ]
    law = mutation.tree(dice, dice.choice(laws))
    name, fault = dice.choice(
        (
            ("packing_16", {"kind": "sequence_lengths", "documents": law}),
            ("jitter_8", {"kind": "jitter", "factor": law}),
        )
    )
    document = {**corpus.scenario(name), "faults": [fault]}
    return Case(
        ["run", "s.yaml", *OUT], {"s.yaml": corpus.dumped(document), "h.csv": _text(dice, corpus.LENGTHS.encode())}
    )


TABLES: dict[str, Callable[[Random], Case]] = {
    "schedule as CSV": schedule_csv,
    "nccl-tests log": nccl_log,
    "failure log": failure_log,
    "log of a run": replayed_log,
    "saved result": saved_result,
    "lengths and sizes": lengths,
    "losses": losses,
    "fit file": fits,
    "table of kernels": kernels,
    "calibration table": measured,
    "laws and histograms": histogram,
}
