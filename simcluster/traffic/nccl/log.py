"""Reader of nccl-tests logs, and comparison of their times with the model.

Understood: the text that ``all_reduce_perf`` and its siblings print, old and new, also with the prefixes of mpirun and
srun and NCCL's INFO lines between. Source of the format: NVIDIA/nccl-tests src/common.cu.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.base.units import format_bytes
from simcluster.traffic.nccl.constants import ALGORITHMS, COLLECTIVES, GB, US, Collective
from simcluster.traffic.nccl.platforms import Platform
from simcluster.traffic.nccl.predictor import Choice, choose
from simcluster.traffic.nccl.tuner_query import bus_factor

_TAG = re.compile(r"\[(?:[\w.-]+@)?\d+(?:,\d+)*\](?:\[[\w.-]+:\d+\])?(?:<std(?:out|err|diag)>)?:?")
"""[1,0]<stdout>: of mpirun --tag-output, [0] of MPICH and PSM; inside a row, too, from another rank's empty output."""
_PREFIX = re.compile(rf"^(?:\s*(?:{_TAG.pattern}|\[[\w./-]+\]|[\w.-]+:(?=\s)))+")  # also of srun --label, pdsh, kubectl
_PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf\b")
_RANK = re.compile(r"#\s+Rank\s+(\d{1,9})\s+.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*\S)")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_NAMES = {"alltoall": "all_to_all", "sendrecv": "send_receive"}
_COUNT = re.compile(r"[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_NUMBERS = 8  # time, algbw, busbw, wrong: out of place, then in place


@dataclass(frozen=True, slots=True)
class LogRow:
    """Measured time of one size in an nccl-tests log, with its bandwidths in B/s.

    ``wrong`` is the number of wrong results, -1 if the log has no count (N/A, or old versions' largest error). ``line``
    counts from 1.
    """

    size: int
    seconds: float
    algorithm_bandwidth: float
    bus_bandwidth: float
    in_place: bool
    wrong: int
    line: int


@dataclass(frozen=True, slots=True)
class NcclTestsLog:
    """Contents of one nccl-tests log.

    ``collective`` is the name of the program if the log has it, else what the columns leave no doubt about, else "".
    ``hosts`` are the hosts of the ranks in order of rank, ``gpus`` their names; empty if the log does not list them.
    ``average_bus_bandwidth`` (B/s) and ``version`` (of NCCL) are as printed, None and "" if they are not.
    """

    source: str
    collective: str
    rows: tuple[LogRow, ...]
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    average_bus_bandwidth: float | None = None
    version: str = ""

    @property
    def nodes(self) -> int | None:
        """Number of hosts; None if the log does not list its devices."""
        return len(dict.fromkeys(self.hosts)) or None

    @property
    def gpus_per_node(self) -> int | None:
        """Ranks per host; None if the log does not list its devices, or the hosts differ."""
        counts = {self.hosts.count(host) for host in self.hosts}
        return counts.pop() if len(counts) == 1 else None


def read_log(path: str | Path) -> NcclTestsLog:
    """Read an nccl-tests log file; raise InputError, with the line, if it is not such a log."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_log(text, source=str(path))


def parse_log(text: str, *, source: str = "the log") -> NcclTestsLog:
    """Parse the text of an nccl-tests log; raise InputError, with the line, for an invalid row."""
    program, version, average = "", "", None
    rows: list[LogRow] = []
    ranks: dict[int, tuple[str, str]] = {}
    operations: set[bool] = set()
    for number, raw in enumerate(text.splitlines(), start=1):
        line, where = _PREFIX.sub("", raw).strip(), f"{source}:{number}"
        words = _TAG.sub(" ", line).split()
        if len(words) > 2 and _COUNT.fullmatch(words[0]) and _COUNT.fullmatch(words[1]):
            rows += _read_row(words, number, where, operations)
            continue
        if (found := _PROGRAM.search(line)) and not program:
            program = _NAMES.get(found[1], found[1])
        if found := _RANK.match(line):
            ranks[int(found[1])] = found[2], found[3]
        if found := _VERSION.search(line):
            version = found[1]
        if found := _AVERAGE.match(line):
            average = GB * _parse_number(found[1], where, "the average bus bandwidth")
    if not rows:
        raise InputError(
            f"{source}: contains no measured size; an nccl-tests log must have rows like "
            "'1048576 262144 float sum -1 74.78 14.02 24.54 0 74.50 14.07 24.63 0': give the output of all_reduce_perf"
        )
    hosts, gpus = zip(*(ranks[rank] for rank in sorted(ranks)), strict=True) if ranks else ((), ())
    return NcclTestsLog(
        source, program or _guess_collective(rows, len(ranks), operations), tuple(rows), hosts, gpus, average, version
    )


def _read_row(words: list[str], number: int, where: str, operations: set[bool]) -> Iterator[LogRow]:
    """Yield the out-of-place and the in-place time of a log row: size, count, type, [redop, [root]], 2 x 4 numbers."""
    if len(words) - _NUMBERS not in (3, 4, 5):
        raise InputError(
            f"{where}: {len(words)} columns; a row of nccl-tests has size, count, type, perhaps redop "
            "and root, then time, algbw, busbw, #wrong out of place and in place: 11 to 13 (is the line cut off?)"
        )
    size = int(words[0])
    if size == 0:  # nccl-tests asked for fewer bytes than ranks
        return
    operations.add(len(words) - _NUMBERS > 3 and words[3] not in ("none", "-1"))
    for in_place in (False, True):
        time, algorithm, bus, wrong = words[-_NUMBERS:][4 * in_place : 4 * in_place + 4]
        if time == "N/A":
            continue
        what = "in place" if in_place else "out of place"
        seconds = US * _parse_number(time, where, f"the time {what}")
        rate = GB * _parse_number(algorithm, where, f"algbw {what}")
        bus_rate = GB * _parse_number(bus, where, f"busbw {what}")
        if seconds <= 0:
            raise InputError(f"{where}: the time {what} is {time} us; it must be above zero")
        if abs(rate - size / seconds) > 0.0051 * GB + 0.01 * rate:
            raise InputError(
                f"{where}: {size} B in {time} us {what} are {size / seconds / GB:.2f} GB/s, but algbw says "
                f"{algorithm}; give the rows exactly as nccl-tests printed them"
            )
        checked = int(wrong) if _COUNT.fullmatch(wrong) else -1
        yield LogRow(size, seconds, rate, bus_rate, in_place, checked, number)


def _parse_number(word: str, where: str, what: str) -> float:
    value = float(word) if _FLOAT.fullmatch(word) else math.nan
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{where}: {what} is {word!r}, and must be a number; take the line as the program printed it")
    return value


def _guess_collective(rows: Sequence[LogRow], ranks: int, operations: Collection[bool]) -> str:
    """Return the collective implied by busbw / algbw and the redop column; "" if several are possible.

    All-gather and all-to-all look the same, so they are unknown.
    """
    last = max(rows, key=lambda row: row.size)
    if ranks < 3 or last.algorithm_bandwidth < GB or len(operations) != 1:
        return ""
    known: tuple[Collective, ...] = ("all_reduce", "reduce_scatter", "reduce") if True in operations else ("broadcast",)
    factor = last.bus_bandwidth / last.algorithm_bandwidth
    return next((name for name in known if abs(bus_factor(name, ranks) - factor) < 0.02), "")


# --- health ---------------------------------------------------------------------------------------------------------

# Measured over expected.  One size: the model's own error from 1 MiB is 2 to 9 % in the mean.  The mean of a log is
# surer than one size.
SLOWER, MUCH_SLOWER, FASTER = 1.12, 1.25, 0.8
SLOWER_OVERALL, MUCH_SLOWER_OVERALL = 1.10, 1.15
LIKENESS = 0.1
SMALL = 2.0**20  # B; below, the host's speed decides


@dataclass(frozen=True, slots=True)
class SizeComparison:
    """Comparison of one size of a log with the model: measured and expected seconds, ratio and verdict.

    ``expected_by`` is what NCCL should have picked; ``looks_like`` another algorithm whose expected time is the
    measured one within 10 %, empty if there is none or nothing is wrong.
    """

    size: int
    measured: float
    expected: float
    ratio: float
    verdict: str
    expected_by: str
    looks_like: str = ""


def compare_log(
    log: NcclTestsLog | Iterable[LogRow],
    platform: Platform,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    collective: str | None = None,
) -> tuple[SizeComparison, ...]:
    """Compare each size of a log with the model, using out-of-place times if the log has them.

    Arguments that are None are taken from the log. Verdicts: "as expected", "slower", "much slower than it should be",
    "faster than the model", and for sizes below 1 MiB, where the host decides, only "small: ..." with the ratio.

    Raises InputError if the log lacks what is needed, and for a collective that NCCL's tuner does not know.
    """
    if isinstance(log, NcclTestsLog):
        collective = collective or log.collective
        nodes = nodes or log.nodes
        gpus_per_node = gpus_per_node or log.gpus_per_node
    listed = log.rows if isinstance(log, NcclTestsLog) else log
    rows = {row.size: row for row in sorted(listed, key=lambda row: not row.in_place)}
    for what, value, how in (
        ("collective", collective, "its name, such as all_reduce"),
        ("number of nodes", nodes, "--machines M"),
        ("number of GPUs per node", gpus_per_node, "--per-machine G"),
    ):
        if not value:
            raise InputError(f"the log does not state the {what}, which the model needs; add {how}")
    known = next((name for name in COLLECTIVES if name == collective), None)
    if known is None:
        raise InputError(f"NCCL's tuner has no estimate for {collective!r}; supported: {', '.join(COLLECTIVES)}")
    ask = partial(choose, known, nodes=nodes or 0, gpus_per_node=gpus_per_node or 0, platform=platform)
    return tuple(_compare_row(rows[size], partial(ask, size=size)) for size in sorted(rows))


def overall_verdict(readings: Iterable[SizeComparison]) -> tuple[float, str]:
    """Return the geometric mean of measured / expected time over sizes from 1 MiB, and its verdict.

    Raises InputError if there is no such size.
    """
    logs = [math.log(reading.ratio) for reading in readings if reading.size >= SMALL]
    if not logs:
        raise InputError(
            f"no size of at least {format_bytes(SMALL)}: smaller sizes measure the host, not the network; run "
            f"nccl-tests with -e 1G"
        )
    ratio = math.exp(math.fsum(logs) / len(logs))
    return ratio, _verdict(ratio, SLOWER_OVERALL, MUCH_SLOWER_OVERALL)


def _verdict(ratio: float, slower: float, much_slower: float) -> str:
    if ratio > slower:
        return "much slower than it should be" if ratio > much_slower else "slower"
    return "faster than the model" if ratio < FASTER else "as expected"


def _compare_row(row: LogRow, ask: Callable[..., Choice]) -> SizeComparison:
    """Compare one size with the model; if slow, name another algorithm that NCCL may have used instead."""
    choice, likeness = ask(), dict[str, float]()
    expected = choice.prediction.seconds
    ratio = row.seconds / expected
    verdict = _verdict(ratio, SLOWER, MUCH_SLOWER)
    if row.size < SMALL:
        verdict = f"small: {ratio:.2f} x, the host limits the time below {format_bytes(SMALL)}"
    for algorithm in ALGORITHMS if row.size >= SMALL and ratio > SLOWER else ():
        if algorithm != choice.algorithm:
            with suppress(InputError):  # does not run there
                other = ask(algorithms=(algorithm,))
                distance = abs(math.log(row.seconds / other.prediction.seconds))
                if distance < LIKENESS:
                    likeness[f"{algorithm} {other.protocol}"] = distance
    by = f"{choice.algorithm} {choice.protocol}"
    nearest = min(likeness, key=likeness.__getitem__, default="")
    return SizeComparison(row.size, row.seconds, expected, ratio, verdict, by, nearest)
