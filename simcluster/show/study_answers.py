"""Answers of questions about steps: what differs, what stragglers cost, what takes the time, how replicas spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from simcluster.base.satellites import provided
from simcluster.base.units import format_bytes, format_seconds
from simcluster.results.overlap import Key, OverlapSeconds
from simcluster.show.blocks import Answer, Block, Fact, Figures, Lines, TableBar, TableBlock
from simcluster.show.cells import NO_TIME, cause_class, change, short_seconds
from simcluster.show.yaml_text import setting_text
from simcluster.studies.whatif.difference import phrase

if TYPE_CHECKING:
    from simcluster.results.critical_path import CriticalPath
    from simcluster.results.distribution import Distribution, MeanDifference
    from simcluster.results.played import Run
    from simcluster.results.traffic import AxisTraffic
    from simcluster.studies.whatif.difference import ChangedSetting, Difference
    from simcluster.studies.whatif.free import Free
    from simcluster.studies.whatif.straggling import Cause, Stragglers

_MOST_SETTINGS = 20
_MOST_STAGES = 32
_WORST = 5


# --- two steps --------------------------------------------------------------------------------------------------------


def difference_answer(found: Difference) -> Answer:
    """Return the blocks about the difference of two steps."""
    names = [f"A: {found.names[0]}", f"B: {found.names[1]}"] if found.names != ("A", "B") else []
    held = [f"faster links: {found.held.in_words()}"] if found.held else []
    return [
        Lines(names), Lines([found.in_words()]), Lines(held), settings_lines(found.settings),
        *causes_table(found), *_stages(found),
    ]  # fmt: skip


def settings_lines(settings: Sequence[ChangedSetting]) -> Lines:
    """Return what differs in the scenario."""
    shown = [f"  {each.path}: {setting_text(each.before)} -> {setting_text(each.after)}" for each in settings]
    more = [f"  and {len(shown) - _MOST_SETTINGS} more"] if len(shown) > _MOST_SETTINGS else []
    head = "what differs in the scenario" if settings else "no setting differs"
    return Lines([head, *shown[:_MOST_SETTINGS], *more], "list" if settings else "plain")


def causes_table(found: Difference) -> list[TableBlock]:
    """Return where a difference went, cause by cause, each bar beginning where the one before ends; none for none."""
    base = found.base.step_time
    causes = {name: seconds for name, seconds in found.causes.items() if abs(seconds) > NO_TIME}
    if not causes:
        return []
    rows = [[phrase(name), change(seconds), f"{seconds / base:+.1%}"] for name, seconds in causes.items()]
    rows.append(["sum", change(sum(found.causes.values())), f"{found.seconds / base:+.1%}"])
    levels = [*accumulate(causes.values(), initial=0.0)]
    bars = [TableBar(levels[at], levels[at + 1], cause_class(name)) for at, name in enumerate(causes)]
    bars.append(TableBar(0.0, found.seconds, "whole"))
    return [TableBlock(["cause", "B - A", "of A"], rows, title=["where it went (a step, mean over ranks)"], bars=bars)]


def _stages(found: Difference) -> list[Block]:
    if len(found.stages) < 2:
        counts = len(found.base.stages), len(found.other.stages)
        return (
            [Lines([f"no table by stage: A has {counts[0]} stages, B {counts[1]}"])] if counts[0] != counts[1] else []
        )
    shown = [name for name in found.stages[0] if any(abs(stage[name]) > NO_TIME for stage in found.stages)]
    rows = [
        [str(number), *(change(stage[name]) for name in shown), change(sum(stage.values()))]
        for number, stage in enumerate(found.stages[:_MOST_STAGES])
    ]
    more = [f"and {len(found.stages) - len(rows)} more stages (--json)"] if len(found.stages) > len(rows) else []
    title = ["by stage (the mean of its ranks)"]
    return [TableBlock(["stage", *shown, "sum"], rows, title=title, notes=more)] if shown else []


# --- stragglers -------------------------------------------------------------------------------------------------------


def stragglers_answer(found: Stragglers) -> Answer:
    """Return the blocks about stragglers."""
    estimated = found.estimated
    by_trace = "the estimator's: over a step where every op takes what is typical of its type"
    facts = [
        Fact("step time", format_seconds(found.step_time)),
        Fact("T_ideal", format_seconds(found.clean), aside="without the faults of the scenario, played"),
        Fact("S", f"{found.slowdown:.4f}", aside="the step over T_ideal"),
        Fact("S, by trace", f"{estimated.slowdown:.4f}", aside=by_trace),
    ]
    return [Figures(facts), straggler_causes(found), _where(found)]


def straggler_causes(found: Stragglers) -> Block:
    """Return what each cause costs."""
    if not found.causes:
        return Lines(["nothing straggles: no faults, and no stage that others wait for"])

    def row(cause: Cause) -> list[str]:
        estimate = cause.estimated_cost
        by_trace = ["", ""] if estimate is None else [f"{estimate:.1%}", f"{100 * (estimate - cause.cost):+.1f}"]
        alone = "" if cause.alone is None else f"+{cause.alone / found.clean - 1:.1%}"
        return [cause.what, f"{cause.cost:.1%}", *by_trace, format_seconds(cause.without), alone]

    return TableBlock(
        ["cause", "costs", "by trace", "points off", "step without", "alone"],
        [row(cause) for cause in found.causes],
        title=[
            "what the step would save without it (costs), what a trace's estimator makes of that, by how many points",
            "it is off, and what it adds to a step without the others (alone)",
        ],
        notes=[f"{cause.what}: {cause.note}" for cause in found.causes if cause.note],
        bars=[TableBar(0.0, cause.cost) for cause in found.causes],
    )


def _where(found: Stragglers) -> TableBlock:
    estimated = found.estimated
    types = [(name, value) for name, value in estimated.by_type.items() if value >= 1.0005][:_WORST]
    stages = [(f"stage {stage}", value) for stage, value in enumerate(estimated.by_stage)]
    replicas = sorted(enumerate(estimated.by_replica.tolist()), key=lambda entry: -entry[1])[:_WORST]
    slow = [*types, *stages, *((f"dp rank {dp}", value) for dp, value in replicas)]
    workers = estimated.worst[:_WORST]
    worst = ", ".join(f"dp {dp} stage {stage} ({estimated.by_worker[dp, stage]:.3f})" for dp, stage in workers)
    notes = [f"  the slowest 3 % of workers: {worst}", *provided("straggling in words")(estimated)]
    title = ["where, by trace: S if only this took what it took, and all else what is typical"]
    return TableBlock(["group", "S"], [[name, f"{value:.4f}"] for name, value in slow], title=title, notes=notes)


# --- why a step takes as long as it does ------------------------------------------------------------------------------

_MOST_RANKS = 16


def explanation(run: Run, free: Sequence[Free]) -> Answer:
    """Return all tables; ``free`` is what ``whatif.what_if_free`` found."""
    parts = [path_table(run.critical_path), _what_if(free, run.step_time)]
    if run.overlap.mean[Key()].calls:
        parts = [_overlap(run.overlap.mean), *_traffic(run.traffic), _ranks(run), *parts]
    return parts


def _overlap(mean: Mapping[Key, OverlapSeconds]) -> TableBlock:
    header = ["communication (a step, mean over ranks)", "calls", *_TIMES, "shared"]
    rows = []
    for key, value in mean.items():
        name = "all" if not key.axis else key.axis if not key.kind else f"  {key.kind} {key.name}"
        rows.append([name, f"{value.calls:,.4g}", *_times(value), short_seconds(value.contention)])
    notes = [
        "  on the wire: last arrival to end, hidden beside compute or exposed; waiting: own arrival to last arrival;",
        "  shared: the part on the wire that free links would spare",
    ]
    return TableBlock(header, rows, notes=notes, indent=2)


def _traffic(traffic: Sequence[AxisTraffic]) -> list[TableBlock]:
    """Return bytes by axis; nothing where durations were given."""
    header = ["traffic (a step, mean GPU)", "calls", "buffers", "sent", "across machines", "on the wire", "hidden"]
    rows = [
        [each.axis or "all", f"{each.calls:,.4g}", *(format_bytes(size) for size in (each.buffer, each.sent)),
         f"{format_bytes(each.across)} ({each.across / each.sent:.0%})" if each.sent else "-",
         short_seconds(each.wire), f"{each.hidden / each.wire:.1%}" if each.wire else "-"]
        for each in traffic
        if not each.kind
    ]  # fmt: skip
    note = "  buffers: full sizes of what calls carry; sent: bytes that a GPU sends for them, by how they are done"
    return [TableBlock(header, rows, notes=[note], indent=2)] if rows else []


def _ranks(run: Run) -> TableBlock:
    weights, of_rank = run.weights, run.overlap.of_rank
    stages = dict(zip(run.spans.rank.tolist(), run.spans.stage.tolist(), strict=True))
    on_path = run.critical_path.by_rank()
    longest = sorted(weights, key=lambda rank: (-of_rank[rank][Key()].exposed, rank))[:_MOST_RANKS]
    rows = []
    for rank in sorted(longest):
        value = of_rank[rank][Key()]
        overlap = f"{value.hidden / value.wire:.1%}" if value.wire else "-"
        place = [str(rank), str(weights[rank]), str(stages[rank])]
        rows.append([*place, *_times(value), overlap, short_seconds(on_path.get(rank, 0.0))])
    header = ["rank", "stands for", "stage", *_TIMES, "overlap", "critical path"]
    left = len(weights) - len(rows)
    return TableBlock(header, rows, notes=[f"  {left} more ranks expose less"] if left else [], indent=2)


def _what_if(free: Sequence[Free], step_time: float) -> TableBlock:
    rows = [
        [each.kind, *map(short_seconds, (each.on_path, each.estimate, each.step_time)),
         f"{each.step_time / step_time - 1:+.1%}"]
        for each in free
    ]  # fmt: skip
    header = ["if this were free", "on the path", "step less that", "step, played", "change"]
    return TableBlock(header, rows, notes=[f"  {each.kind} free: {each.note}" for each in free if each.note], indent=2)


_TIMES = ("on the wire", "hidden", "exposed", "waiting")


def _times(value: OverlapSeconds) -> list[str]:
    return [short_seconds(seconds) for seconds in (value.wire, value.hidden, value.exposed, value.waiting)]


# --- replicas and paths -----------------------------------------------------------------------------------------------


def distribution_answer(found: Distribution, off: Sequence[float] = ()) -> Answer:
    """Return the blocks about replicas of a step.

    ``off`` is how far replicas of a sweep are from events, as parts of their steps.
    """
    mean, (low, high) = found.mean, found.interval
    parts = {"p5": 0.05, "median": 0.5, "p95": 0.95}
    how = "longest paths through the step above, with other times of kernels"
    some = " and ".join(f"{each:+.2%}" for each in off)
    facts = [
        Fact(
            "step time", f"{mean:.6g} s", f" on average, {mean / found.planned - 1:+.2%}",
            f"95 % interval of the mean {low:.6g} to {high:.6g} s",
        ),
        Fact("", ", ".join(f"{name} {found.quantile(part):.6g} s" for name, part in parts.items())),
        Fact("played as", how if found.method == "sweep" else "events, one after the other"),
    ]  # fmt: skip
    if any(off):
        facts.append(Fact("", f"links and interference as without chance: {some} from events with the same draws"))
    title = f"{len(found):,} replicas, each with draws of its own (all above: the step without chance)"
    return [Figures(facts, title)]


def mean_difference_answer(found: MeanDifference) -> Answer:
    """Return the blocks about the difference of two sets of replicas."""
    low, high = found.interval
    return [
        Lines([
            f"{found.mean:+.6g} s a step on average (95 % interval {low:+.6g} to {high:+.6g} s); common random numbers "
            f"made that {found.noise_saved:.3g} times narrower"
        ])
    ]  # fmt: skip


def path_table(path: CriticalPath) -> TableBlock:
    """Return the seconds of every kind of op on the critical path."""
    kinds = path.by_kind()
    rows = [[kind, short_seconds(seconds), f"{seconds / path.seconds:.1%}"] for kind, seconds in kinds.items()]
    bars = [TableBar(0.0, seconds, cause_class(kind)) for kind, seconds in kinds.items()]
    return TableBlock(["critical path of the step", "seconds", "share"], rows, indent=2, bars=bars)


def path_answer(path: CriticalPath) -> Answer:
    """Return the blocks about a critical path."""
    return [path_table(path)]
