"""The walls of a run in words: about ten lines, with every assumption that is in them."""

from __future__ import annotations

from simcluster.base.counts import format_count, format_dollars
from simcluster.base.units import format_bytes
from simcluster.longrun.budget.counted import CountedRun

_DAY = 24.0


def describe(run: CountedRun) -> str:
    """A head line, then memory, time, cost and budget as far as the inputs go."""
    parts = {"memory": _memory(run), "time": _time(run), "cost": _cost(run), "budget": _budget(run)}
    tokens = "" if run.tokens is None else f" on {format_count(run.tokens)} tokens"
    number = "" if run.gpus is None else f"{run.gpus:,} x "
    lines = [
        f"{format_count(run.parameters)} parameters{tokens}, {number}{run.device} "
        f"({run.memory / 1e9:.4g} GB, {run.peak / 1e12:.4g} TFLOP/s in {run.precision})"
    ]
    for name, found in parts.items():
        lines += [f"  {name if not place else '':<8} {line}" for place, line in enumerate(found)]
    return "\n".join(lines)


def _memory(run: CountedRun) -> list[str]:
    recipe = run.recipe
    kept = f"{run.bytes_per_parameter:g} B a parameter"
    if recipe is not None:
        default = ", by default" if run.recipe_by_default else ""
        kept += (
            f" (weights {recipe.weight:g}, gradients {recipe.gradient:g}, optimizer {recipe.optimizer:g}: "
            f"{recipe.name}{default})"
        )
    least = "1 GPU holds" if run.least_gpus == 1 else f"{run.least_gpus:,} GPUs hold"
    lines = [
        f"{format_bytes(run.state_bytes)} of model state: {kept}",
        f"at least {least} it, with all of it sharded, before activations",
    ]
    if run.state_bytes_a_gpu is not None:
        how = f"ZeRO-{run.zero}" if run.zero else "without ZeRO"
        verdict = "fits" if run.fits else f"does not fit in {run.memory / 1e9:.4g} GB"
        where = f"over {run.gpus:,} GPUs" if run.gpus != 1 else "on 1 GPU"
        lines.append(f"{how} {where}: {format_bytes(run.state_bytes_a_gpu)} of it a GPU, {verdict}")
    return lines


def _time(run: CountedRun) -> list[str]:
    if run.flops is None or run.gpu_hours is None:
        return []
    lines = [f"{_plain(run.flops, 4)} FLOP (6 x parameters x tokens; attention not counted)"]
    days = "" if run.days is None else f"; {_days(run.days)} on {_gpus(run.gpus)}"
    lines.append(f"{_how(run)}: {run.gpu_hours / _DAY:,.1f} GPU-days{days}")
    if run.gpus_needed is not None:
        lines.append(f"in {run.days_wanted:g} days: {_gpus(run.gpus_needed)}")
    return lines


def _cost(run: CountedRun) -> list[str]:
    if run.gpu_hours is None:
        return []
    hours = f"{run.gpu_hours:,.0f} GPU-hours"
    if run.dollars is None:
        return [f"{hours}; dollars with a price a GPU-hour (--price)"]
    lines = [f"{hours} at ${run.price:.2f}: {format_dollars(run.dollars)}{', at peak' if run.at_peak else ''}"]
    return lines + (_lost(run) if run.budget is None else [])


def _budget(run: CountedRun) -> list[str]:
    if run.budget is None or run.bought_gpu_hours is None:
        return []
    days = "" if run.bought_days is None else f"; {_days(run.bought_days)} of {_gpus(run.gpus)}"
    lines = [
        f"{format_dollars(run.budget)} at ${run.price:.2f} buys {run.bought_gpu_hours:,.0f} GPU-hours{days}",
        f"{_how(run)}: {_plain(run.bought_flops or 0.0, 5)} FLOP, {format_count(run.bought_tokens or 0.0)} tokens",
    ]
    if run.dollars is not None:
        lines[-1] += f", {run.budget / run.dollars:.1%} of the run"
    return lines + _lost(run)


def _lost(run: CountedRun) -> list[str]:
    """What falls short of the achievable MFU, in money and in training."""
    if run.wasted is None or run.lost_dollars is None:
        return []
    assert run.achievable is not None
    if not run.wasted:
        return [f"nothing lost against {_percent(run.achievable)} MFU"]
    return [
        f"at {_percent(run.achievable)} MFU the same for {format_dollars(run.lost_dollars)} less "
        f"({run.wasted:.1%} is lost), or {run.more_training:.1%} more training for the same"
    ]


def _how(run: CountedRun) -> str:
    return "at peak, which no run reaches (give --mfu)" if run.at_peak else f"at {_percent(run.mfu or 0.0)} MFU"


def _gpus(number: int | None) -> str:
    return "1 GPU" if number == 1 else f"{number:,} GPUs"


def _days(days: float) -> str:
    years = f" ({days / 365.25:.1f} years)" if days > 730 else ""
    return f"{days:,.2f} days{years}" if days < 100 else f"{days:,.1f} days{years}"


def _percent(part: float) -> str:
    return f"{100 * part:.4g}%"


def _plain(number: float, digits: int) -> str:
    """3.15e23, as it is written in papers."""
    return f"{number:.{digits}g}".replace("e+", "e")
