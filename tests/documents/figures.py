"""Sentences with figures of README and ``docs``, and where each figure comes from.

A sentence is written with ``{}`` for its figures; lines may break anywhere in README.  What a run gives is run; what
takes minutes is read from a file that its own command writes (scores.json, residuals.yaml); every other number with a
unit stands in ``NOT_OURS``, with the reason.  ``unchecked`` finds those that stand nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from documents import above_aim, readme, scores
from documents.commands import ROOT, numbers
from documents.readme import figures_in, with_figures
from simcluster.longrun.event_log import read_event_log
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.failure_replay import resolve_log_path
from simcluster.longrun.studies.logged_failures import replace_failures_by_log
from simcluster.longrun.studies.training import TrainingRun

Figures = tuple[str, ...]


@dataclass(frozen=True)
class Sentence:
    """A sentence of README, and its figures as they are now."""

    text: str
    figures: Callable[[], Figures]


def _compared(scenario: str) -> Figures:
    """Measured and simulated seconds of a step, and the error in per cent."""
    from simcluster.scenario.scenario import load

    measured, simulated = load(scenario).measured, numbers(f"simcluster run {scenario}")["step_time_s"]
    assert measured is not None
    measured = measured.step_time
    return _four(measured), _four(simulated), f"{100 * (simulated / measured - 1):+.1f}"


def _steps(*commands: str) -> Figures:
    return tuple(_four(numbers(command)["step_time_s"]) for command in commands)


def _four(seconds: float) -> str:
    """Four digits, with the zeros at their end."""
    return f"{seconds:#.4g}"


def _together() -> Figures:
    steps = scores.read()["overall"]["steps"]
    return *_counts(), f"{100 * steps['mean_error']:.1f}", f"{100 * steps['bias']:+.1f}"


def _counts() -> Figures:
    """Return the rows of all steps, of whole ones, and of parts of one."""
    rows, whole = scores.read()["overall"]["steps"]["rows"], scores.whole_steps()
    return f"{rows:,}", f"{whole:,}", f"{rows - whole:,}"


def _worst() -> Figures:
    return (f"{100 * scores.read()['overall']['steps']['worst_error']:.1f}",)


def _deepseek() -> Figures:
    ((_, found),) = scores.read()["studies"]["DeepSeek-V3, pre-training"].items()
    return (f"{100 * found['bias']:+.1f}",)


def _inside() -> Figures:
    """From the head of the table of intervals, which says what it was worth when it was learned."""
    head = (ROOT / "simcluster" / "documents" / "catalogue" / "residuals.yaml").read_text(encoding="utf-8")
    found = re.search(r"with its own study excluded, (\d+)% of ([\d,]+) rows fall into theirs", head)
    assert found is not None
    assert found[2] == f"{scores.whole_steps():,}", "intervals are learned from whole steps"
    rows, whole, parts = _counts()
    return whole, rows, parts, found[1]


@cache
def _llama() -> TrainingRun:
    from simcluster import train

    return train("llama3_405b_54_days", played=200)


def _replayed() -> Figures:
    """Strikes of the log that ships, and what 16 spares for 64 cost with them, in points of goodput."""
    run, log = _llama().run, read_event_log(resolve_log_path("simulated_54_days"))
    spares = (run.spares, replace(run.spares, warm=16))
    played = [simulate_runs(replace_failures_by_log(replace(run, spares=each), log, run), 0, 200) for each in spares]
    goodput = [float((each.seconds_by_category()["productive"] / each.wall).mean()) for each in played]
    return f"{played[0].strikes.sum(axis=1).max()}", f"{100 * (goodput[0] - goodput[1]):.1f}"


def _weeks() -> Figures:
    """Failures, goodput, minutes of an outage, and those that 90 % would leave."""
    found = _llama()
    failures = float(found.numbers.loc["failures", "mean"])
    minutes = [found.restart_for(share) / 60 for share in (found.ettr, 0.90)]
    return f"{failures:.0f}", f"{100 * found.goodput:.1f}", *(f"{each:.1f}" for each in minutes)


RUN = "simcluster run gpt3_175b_64xa100"
SENTENCES = (
    Sentence(
        "sequence parallel (arXiv:2205.05198 table 5) | {} s | {} s | {} % |",
        lambda: _compared("gpt3_175b_64xa100"),
    ),
    Sentence(
        "| the same with full recompute, no sequence parallel | {} s | {} s | {} % |",
        lambda: _compared("gpt3_175b_64xa100_full_recompute"),
    ),
    Sentence(
        "| Llama-like 7B, HSDP on 128 A100 (fms-fsdp), ideal software | {} s | {} s | {} % |",
        lambda: _compared("hsdp_7b_128xa100"),
    ),
    Sentence(
        "| MPT-7B, FSDP on 64 A100 40 GB (LLM Foundry), ideal software | {} s | {} s | {} % |",
        lambda: _compared("fsdp_7b_64xa100"),
    ),
    Sentence(
        "(`--set collectives.nccl=none`) it takes {} s, without interference {} s.",
        lambda: _steps(f"{RUN} --set collectives.nccl=none", f"{RUN} --set overlap.interference=none"),
    ),
    Sentence(
        "Simulated 200 times, it has {} failures (419 were published) and a goodput of {} % (published: above 90 %). "
        "From a failure to resumed training takes {} min; at 90 % it would be {} min.",
        _weeks,
    ),
    Sentence(
        "The {} failures of the log `simulated_54_days` with 16 spare nodes instead of 64 cost {} points of goodput.",
        _replayed,
    ),
    Sentence(
        "All {} rows of steps together ({} whole steps and {} parts of one): {} % mean error, {} % bias.", _together
    ),
    Sentence("The worst row is off by {} %", _worst),
    Sentence("stops not included | GPU hours | | {} % |", _deepseek),
    Sentence(
        "is learned from {} whole steps; README's {} rows include {} parts of a step, such as a layer or a collective. "
        "If it is learned without a row's own study, {} % of the rows are inside.",
        _inside,
    ),
)

NOT_OURS = (
    # (what README says, why no run of ours gives it)
    ('--window "1.20 s:1.26 s"', "an argument"),
    ('--run.checkpoint.to "100 GB/s"', "an argument"),
    ('"memory": "32 GB"', "an argument"),
    ('--run.days "20 d"', "an argument"),
    ('--run.checkpoint.to "10 GB/s"', "an argument"),
    ("jobs.1.arrives=40ms", "an argument"),
    ("jobs.1.leaves=200ms", "an argument"),
    ("A silent scheduler is given up after 20 s", "a proxy that was stopped by hand, eleven times"),
    ("WORKER_TTL=60s` before `dask", "an argument"),
    ("level of a 700 W GPU", "of the device"),
    ("an H100 with 500 W have", "of the device"),
    ("fitted for 500 W GPUs", "of the device"),
    ("on 500 W H100", "of the device"),
    ("64 A100 40 GB", "of the device"),
    ("18.9 % in a node, arXiv:2507.03114", "of its source"),
    ("1 % more and less of each resource", "a question"),
    ("proven best with 10 % of memory free", "an option's default"),
    ("links=2x", "an argument"),
    ("(two rows are one run, 9 % apart)", "of its source"),
    ("without one study the error is at most 1.48 x as large", "`simcluster fit`, two minutes and all data"),
    ("without one of two model sizes the error is 1.9 x", "`simcluster fit`, likewise"),
    ("without one schedule 0.3 %", "`simcluster fit`, likewise"),
    ("without one row 13 %", "`simcluster fit`, likewise"),
    (
        "159 +- 10 us | two rows of Qwen3 30B on B200 | 5.9 % | the other of the two, about 12 %;",
        "`simcluster fit`, likewise",
    ),
    ("with one sequence on two nodes, 16 % | 2: missed", "`simcluster fit`, likewise"),
    ("measured 4 % apart where the model says 16 %", "`simcluster fit`, likewise"),
    (
        "expert matmuls, 8.7 us | two rows of DeepSeek-V3 | 3.3 % | DeepSeek-V2's six, 5.0 %",
        "`simcluster fit`, likewise",
    ),
    ("Fitted on all eight 3.8 %, but 7.7 %", "`simcluster fit`, likewise"),
    (
        "18 us per piece | three rows, 384 to 1,536 A100 | 6.7 % | each row, 13.4 %",
        "`simcluster fit`, likewise",
    ),
    ("attention with 500 W, 0.66", "of the device"),
    (
        "the error falls from 1.5 to 0.5 %. That of hidden size 20,480 falls from +2.7 to +1.2 %",
        "`simcluster validate` with the law, likewise",
    ),
    (
        "it is 1.6 % (1.7 without the law), and MegaScale with the level of table 5 is 3.2 % (3.2)",
        "`simcluster validate` with the law, likewise",
    ),
    ("a grid of 2^-44 s", "by construction"),
    ("should be (`likely`, 80 %)", "the level of residuals.yaml"),
)
_UNIT = re.compile(r"[-+−]?\d[\d.,]*(?: to \d[\d.,]*)? ?(?:s|ms|us|%|GB|TB|MB|x|events|rows|W)(?![\w^])")
_MEASURED = re.compile(r"\f# (?:Speed|Benchmarks and floors)\n.*?(?=\f|\Z)", re.DOTALL)  # of a day
_PLAYED = re.compile(r"```bash\n[^#`]*```\n(?:\n```text\n.*?```\n)?", re.DOTALL)  # arguments, and what played.py checks


def stale() -> list[str]:
    """The sentences whose figures are not those of now: what README says, and what it should."""
    found = []
    for sentence in SENTENCES:
        says, now = figures_in(sentence.text, readme.text()).groups(), sentence.figures()
        if says != now:
            found.append(f"{sentence.text.format(*says)}  now {', '.join(now)}")
    return found


def renewed(whole: str) -> str:
    """README with the figures of now."""
    for sentence in SENTENCES:
        whole = with_figures(sentence.text, sentence.figures(), whole)
    return whole


def unchecked(whole: str) -> list[str]:
    """Numbers with a unit that neither a run nor a reason stands behind, each with what is around it."""
    known = [figures_in(sentence.text, whole).span() for sentence in SENTENCES]
    known += [match.span() for pattern in (_MEASURED, _PLAYED) for match in pattern.finditer(whole)]
    known += [row.span for row in scores.rows_of(whole)]
    known += [span for *_, span in above_aim.lines_of(whole)]
    for text, _ in NOT_OURS:
        known.append(figures_in(text, whole).span())
    return [
        " ".join(whole[max(0, match.start() - 60) : match.end() + 20].split())
        for match in _UNIT.finditer(whole)
        if not any(begin <= match.start() and match.end() <= end for begin, end in known)
    ]


def all_stale() -> list[str]:
    """Return what README and the pages say and no longer holds: sentences and the tables of studies."""
    return [*stale(), *scores.stale(readme.text()), *above_aim.stale(scores.read(), readme.text())]


def all_renewed(whole: str) -> str:
    """README as it should be."""
    return above_aim.renewed(scores.read(), renewed(scores.renewed(whole)))
