"""What a training run costs and draws, in words, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import whole_dollars
from simcluster.base.units import format_seconds
from simcluster.longrun.studies.energy import STANDING_BY, RunEnergy
from simcluster.longrun.studies.money import RunMoney

if TYPE_CHECKING:
    from simcluster.longrun.studies.played import PlayedRuns

_INDENT = " " * 15
_SECOND = 1.0  # s: the mean over it is what is left of a step's swings where capacitors hide what is shorter
_PRICES = {
    "gpus": "run.price",
    "spares": "run.spares.price",
    "storage": "run.checkpoint.price",
    "electricity": "run.power.price",
}


def format_energy(kwh: float) -> str:
    """With three digits or more, in kWh, MWh or GWh."""
    for unit, scale in (("GWh", 1e6), ("MWh", 1e3)):
        if abs(kwh) >= 10 * scale:
            return f"{kwh / scale:,.4g} {unit}" if kwh < 1e4 * scale else f"{kwh / scale:,.0f} {unit}"
    return f"{kwh:,.4g} kWh"


def format_power(watts: float) -> str:
    """With four digits, in W, kW or MW."""
    for unit, scale in (("MW", 1e6), ("kW", 1e3)):
        if abs(watts) >= scale:
            return f"{watts / scale:.4g} {unit}"
    return f"{watts:.4g} W"


# --- lines ------------------------------------------------------------------------------------------------------------


def money_lines(training: PlayedRuns) -> Iterator[str]:
    """Hours, dollars of what has a price, what failures and an MFU that is not reached cost."""
    hours = f"{training.gpu_hours:,.0f} GPU-hours"
    if training.spare_gpu_hours:
        hours += f", {training.spare_gpu_hours:,.0f} of spares beside"
    money = training.money
    if money is None:
        yield f"  money        {hours}; for dollars say what one costs: run.price"
        return
    at = f" at ${training.price:.2f} a GPU-hour" if training.price is not None else ""
    yield f"  money        {whole_dollars(training.dollars or 0.0)}{_spread(training)}{at} ({hours})"
    parts = dict(money.parts())
    said = [f"{what if what != 'gpus' else 'GPUs'} {whole_dollars(each)}" for what, each in parts.items() if each]
    without = [path for what, path in _PRICES.items() if what not in parts]
    rest = [f"not in it, for want of a price: {', '.join(without)}"] if without else []
    yield _INDENT + "; ".join([", ".join(said), *rest])
    yield from _lost(training, money)


def _spread(training: PlayedRuns) -> str:
    """Between which dollars nine runs of ten are, where they differ."""
    row = training.numbers.to_dict(orient="index")["dollars"]
    low, high = row["p5"], row["p95"]
    if high - low < 1e-3 * high:
        return ""
    return f" ({whole_dollars(low)} to {whole_dollars(high)} in nine runs of ten)"


def _lost(training: PlayedRuns, money: RunMoney) -> Iterator[str]:
    total = training.dollars or 0.0
    if money.failures > 0:
        count = training.numbers.to_dict(orient="index")["failures"]["mean"]
        each = f", {whole_dollars(money.failures / count)} a failure" if count >= 1 else ""
        share = money.failures / total
        yield f"{_INDENT}lost to what fails {whole_dollars(money.failures)} ({share:.2%}{each})"
    held = training.price_of_mfu
    if held is None:
        return
    if not held.lost:
        yield f"{_INDENT}held to an MFU of {held.achievable:.0%}: nothing is lost"
        return
    yield (
        f"{_INDENT}at an MFU of {held.achievable:.0%} the same tokens cost {whole_dollars(held.dollars)}: "
        f"{whole_dollars(held.lost)} is lost ({held.lost / total:.1%}; {held.more:.1%} more training for the money)"
    )
    step = max(0.0, total * training.goodput * (1 - training.step_mfu / held.achievable))
    rest = whole_dollars(held.lost - step)
    yield f"{_INDENT}of it {whole_dollars(step)} in the step, {rest} in what is not productive"


def energy_lines(training: PlayedRuns) -> Iterator[str]:
    """kWh, the power of the whole job, how it swings, and what is assumed in that."""
    energy = training.energy
    if energy is None:
        yield "  energy       nobody says what these GPUs draw: run.power.idle and run.power.full, in W"
        return
    kwh = float(energy.total.mean())
    per_token = f", {kwh * 3.6e6 / training.tokens:.3g} J a token" if training.tokens else ""
    pue = f"PUE {energy.pue:.2f}" if energy.pue != 1 else "machines alone: PUE 1"
    yield (
        f"  energy       {format_energy(kwh)} ({pue}): {format_power(energy.average)} on average, "
        f"{format_power(energy.peak)} at most{per_token}"
    )
    yield (
        f"{_INDENT}in a step between {format_power(energy.low)} and {format_power(energy.peak)}, "
        f"{format_power(energy.swing(_SECOND))} from peak to peak in means of {format_seconds(_SECOND)}"
    )
    idle, waits = (energy.watts(fate) + energy.standing_by for fate in ("restart", "checkpoint"))
    yield f"{_INDENT}at a checkpoint that stops the job {format_power(waits)}, in a restart {format_power(idle)}"
    for words in energy.assumed():
        yield f"{_INDENT}assumed: {words}"


# --- JSON -------------------------------------------------------------------------------------------------------------


def cost_document(training: PlayedRuns) -> dict[str, Any]:
    """Two keys, ``money`` and ``energy``; their values are none where they are not known."""
    return {
        "money": None if training.money is None else _money(training, training.money),
        "energy": None if training.energy is None else _energy(training, training.energy),
    }


def _money(training: PlayedRuns, money: RunMoney) -> dict[str, Any]:
    held = training.price_of_mfu
    return {
        "gpus": money.gpus,
        "spares": money.spares,
        "storage": money.storage,
        "electricity": money.electricity,
        "lost_to_failures": money.failures,
        "price_of_mfu": None if held is None else asdict(held),
    }


def _energy(training: PlayedRuns, energy: RunEnergy) -> dict[str, Any]:
    kwh, tokens = float(energy.total.mean()), training.tokens
    return {
        "kwh": kwh,
        "standing_by_kwh": float(energy.kwh[STANDING_BY].mean()),
        "joules_per_token": kwh * 3.6e6 / tokens if tokens else None,
        "pue": energy.pue,
        "average_w": energy.average,
        "step_low_w": energy.low,
        "peak_w": energy.peak,
        "swing_1s_w": energy.swing(_SECOND),
        "checkpoint_w": energy.watts("checkpoint") + energy.standing_by,
        "restart_w": energy.watts("restart") + energy.standing_by,
        "draw": energy.draw.model_dump(exclude={"source"}),
        "assumed": list(energy.assumed()),
        "source": energy.draw.source,
    }


def columns_of(training: PlayedRuns, fate: str) -> str:
    """What a fate costs and draws, as columns of a table; empty where neither is known."""
    cells = []
    if training.money is not None:
        cells.append(f"{whole_dollars(training.money.by_fate[fate]):>13}")
    if training.energy is not None:
        mega = float(training.energy.total.mean()) >= 1e4
        kwh = float(training.energy.kwh[fate].mean()) / (1e3 if mega else 1.0)
        cells.append(f"{kwh:>9,.2f} {'MWh' if mega else 'kWh'}")
    return "".join(f"  {cell}" for cell in cells)
