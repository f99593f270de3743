"""Seeded inputs of every kind that simcluster reads, each damaged, played, and held to what no input may do.

  python tests/fuzz --inputs 50000 --seed 1        on all cores; run it again and it goes on where it was
  python tests/fuzz --inputs 2000 --kinds store options
  python tests/fuzz --seed 1 --again store:17        one input again: its files stay in out/fuzz/

No input may end in a traceback, in a status but 0, 2 and 130, take more than 10 s of processor or 2 GB, write outside
its folder, or run anything.  Scenarios are begun up to an estimate of 1 s, so that what takes 10 was not foreseen.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from fuzz.case import Outcome
from fuzz.kinds import KINDS
from fuzz.playing import HANGS, play

WARM = (
    *(f"run {name} --json -" for name in ("tiny_3d", "jitter_8", "packing_16")),
    "topology dgx_a100",
    "train week_64xa100 --played 1",
    "scaling --compute 1e22",
    "import megatron examples/train.sh --cluster dgx_h100",
    "collective --measured examples/nccl.log --platform dgx-h100",
    "failures examples/failures.csv --gpus 8 --days 30",
    "show h100",
)
"""What is run once before the cases: each leaves in memory what it has read of the package's own data."""

Job = tuple[int, str, int]
"""Seed, kind, number."""
_WIDE = 8
"""Bytes of a number in the file that the processes are dealt their jobs from."""


def drawn(job: Job) -> Outcome:
    """One input, made and played.

    One that hangs is played twice: this process has threads of libraries (Arrow's, OpenBLAS's), and a copy of it may
    wait for a lock that one of them held.  An input that hangs by itself does so again.
    """
    seed, kind, number = job
    case = KINDS[kind](Random(f"{seed} {kind} {number}"))
    outcome = play(kind, number, case)
    return play(kind, number, case) if outcome.status == HANGS else outcome


def jobs(inputs: int, seed: int, kinds: Iterable[str]) -> list[Job]:
    """All inputs of a run, kind by kind in turn, so that a run that is stopped has seen all kinds."""
    names = list(kinds)
    return [(seed, names[each % len(names)], each // len(names)) for each in range(inputs)]


def warm(commands: Iterable[str] = WARM) -> None:
    """Import all that a case might, and read what most read, so that no case pays for it."""
    from simcluster import cli

    for command in cli.COMMANDS:
        importlib.import_module(cli.command_module_name(command))
    for name in (
        "pyarrow.parquet",
        "matplotlib.pyplot",
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_svg",
        "scipy.stats",
        "scipy.optimize",
        "networkx",
        "simcluster.interactive.page.page_parts",
        "simcluster.interactive.page.server",
    ):
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for command in commands:
            cli.main([*command.split(), "-q"])
    gc.collect()
    gc.freeze()


def played(waiting: list[Job], processes: int) -> Iterator[Outcome]:
    """Their outcomes, in the order in which they are done, from copies of this process."""
    warm()
    for kind in KINDS.values() if len(waiting) > 200 else ():
        for number in range(8):
            kind(Random(number))  # what it changes is made here, once for all processes
    if processes == 1:
        yield from map(drawn, waiting)
        return
    reading, writing = os.pipe()
    with tempfile.TemporaryFile(buffering=0) as dealt:  # copies share the place in a file: each reads the next number
        dealt.write(b"".join(number.to_bytes(_WIDE, "big") for number in range(len(waiting))))
        dealt.seek(0)
        workers = [_worker(waiting, dealt.fileno(), reading, writing) for _ in range(processes)]
    os.close(writing)
    with open(reading, encoding="utf-8") as lines:  # noqa: PTH123
        yield from (Outcome(**json.loads(line)) for line in lines)
    ends = [os.waitpid(worker, 0)[1] for worker in workers]
    if any(ends):
        sys.exit(f"{sum(map(bool, ends))} of {processes} processes broke off; run it again for the inputs they left")


def _worker(waiting: list[Job], dealt: int, reading: int, writing: int) -> int:
    """A copy that plays the next of these that no other has begun, and writes a line for each; its number.

    No process of ``multiprocessing``, whose own may start no others, as some cases do.
    """
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.close(reading)
        with open(writing, "w", encoding="utf-8") as lines:
            while place := os.read(dealt, _WIDE):
                lines.write(_line(drawn(waiting[int.from_bytes(place, "big")])))
                lines.flush()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _line(outcome: Outcome) -> str:
    """As JSON, short enough that a pipe takes it in one piece from several writers."""
    line = json.dumps(asdict(outcome))
    return (line if len(line) < 4000 else json.dumps(asdict(replace(outcome, told=outcome.told[:500])))) + "\n"


def known(path: Path) -> list[Outcome]:
    """What an earlier run has left; a line that was cut is none."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(Outcome(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def table(outcomes: list[Outcome], seed: int) -> str:
    """A line a kind, and the failures with what makes each again."""
    lines = [f"{'kind':<26}{'inputs':>8}{'0':>8}{'2':>8}{'other':>7}{'worst s':>9}{'worst MB':>10}{'failed':>8}"]
    for kind in KINDS:
        own = [each for each in outcomes if each.kind == kind]
        if own:
            lines.append(_row(kind, own))
    lines += [_row("all", outcomes)] if outcomes else []
    bad: dict[str, list[Outcome]] = {}
    for each in outcomes:
        if each.wrong:
            bad.setdefault(f"{each.kind}: {each.wrong}", []).append(each)
    lines += [""] * bool(bad)
    for what, those in sorted(bad.items(), key=lambda item: -len(item[1])):
        first = min(those, key=lambda each: each.number)
        lines.append(
            f"{len(those):>5}  {what}\n       python tests/fuzz --seed {seed} --again '{first.kind}:{first.number}'"
        )
    return "\n".join(lines)


def _row(name: str, own: list[Outcome]) -> str:
    statuses = Counter(each.status for each in own)
    other = len(own) - statuses[0] - statuses[2]
    worst, most = max(each.seconds for each in own), max(each.megabytes for each in own)
    failed = sum(bool(each.wrong) for each in own)
    counts = f"{len(own):>8}{statuses[0]:>8}{statuses[2]:>8}{other:>7}"
    return f"{name:<26}{counts}{worst:>9.1f}{most:>10.0f}{failed:>8}"


def again(text: str, seed: int, folder: Path) -> int:
    """One input: its files on disk, its command, and what it says."""
    kind, _, number = text.rpartition(":")
    case = KINDS[kind](Random(f"{seed} {kind} {number}"))
    place = folder / f"{kind.replace(' ', '_')}_{seed}_{number}"
    for name, content in case.files.items():
        place.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        place.joinpath(name).write_bytes(content)
    warm()
    outcome = play(kind, int(number), case)
    print(
        f"in {place}: simcluster {' '.join(map(repr, case.argv))}{case.call}\n{outcome.told}\n"
        f"{outcome.wrong or 'as it should be'}; status {outcome.status}, {outcome.seconds} s, {outcome.megabytes} MB"
    )
    return 1 if outcome.wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser("fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND", help=", ".join(KINDS)
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--folder", type=Path, default=Path("out/fuzz"), help="where what is done is kept (default: out/fuzz)"
    )
    parser.add_argument("--again", metavar="KIND:NUMBER")
    parser.add_argument("--restart", action="store_true", help="forget what an earlier run has done")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.again:
        return again(args.again, args.seed, args.folder.resolve())
    path = args.folder / f"seed{args.seed}.jsonl"
    if args.restart:
        path.unlink(missing_ok=True)
    all_jobs = jobs(args.inputs, args.seed, args.kinds)
    asked = {(kind, number) for _, kind, number in all_jobs}
    done = [each for each in known(path) if (each.kind, each.number) in asked]
    ready = {(each.kind, each.number) for each in done}
    with path.open("a") as file:
        for outcome in played([job for job in all_jobs if job[1:] not in ready], args.processes):
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()
            done.append(outcome)
            if len(done) % 500 == 0:
                print(
                    f"{len(done):,} of {len(all_jobs):,}, {sum(bool(each.wrong) for each in done)} failed",
                    file=sys.stderr,
                    flush=True,
                )
    print(table(done, args.seed))
    return 1 if any(each.wrong for each in done) else 0


if __name__ == "__main__":
    sys.exit(main())
