"""Text and JSON of what a training run costs and draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import whole_dollars
from simcluster.base.units import format_seconds
from simcluster.longrun.studies.money import STANDING_BY

if TYPE_CHECKING:
    from simcluster.longrun.studies.run_numbers import RunNumbers

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


def money_lines(training: RunNumbers) -> Iterator[str]:
    """Yield GPU-hours, dollars by what has a price, and what failures and a low MFU cost."""
    hours = f"{training.gpu_hours:,.0f} GPU-hours"
    if training.spare_gpu_hours:
        hours += f", {training.spare_gpu_hours:,.0f} of spares beside"
    money, total, held = training.money, training.dollars or 0.0, training.price_of_mfu
    if money is None:
        yield f"  money        {hours}; for dollars say what one costs: run.price"
        return
    numbers = training.numbers.to_dict(orient="index")
    low, high = (whole_dollars(numbers["dollars"][name]) for name in ("p5", "p95"))
    varies = numbers["dollars"]["p95"] - numbers["dollars"]["p5"] >= 1e-3 * numbers["dollars"]["p95"]
    spread = f" ({low} to {high} in nine runs of ten)" if varies else ""
    at = f" at ${training.price:.2f} a GPU-hour" if training.price is not None else ""
    yield f"  money        {whole_dollars(total)}{spread}{at} ({hours})"
    named = {"GPUs" if what == "gpus" else what: each for what, each in money.parts.items()}
    said = ", ".join(f"{what} {whole_dollars(each)}" for what, each in named.items() if each)
    without = [path for what, path in _PRICES.items() if what not in money.parts]
    rest = [f"not in it, for want of a price: {', '.join(without)}"] if without else []
    yield _INDENT + "; ".join([said, *rest])
    if money.failures > 0:
        count = numbers["failures"]["mean"]
        each_failure = f", {whole_dollars(money.failures / count)} a failure" if count >= 1 else ""
        share = f"{money.failures / total:.2%}"
        yield f"{_INDENT}lost to what fails {whole_dollars(money.failures)} ({share}{each_failure})"
    if held is not None and not held.lost:
        yield f"{_INDENT}held to an MFU of {held.achievable:.0%}: nothing is lost"
    elif held is not None:
        yield (
            f"{_INDENT}at an MFU of {held.achievable:.0%} the same tokens cost {whole_dollars(held.dollars)}: "
            f"{whole_dollars(held.lost)} is lost ({held.lost / total:.1%}; {held.more:.1%} more training for the money)"
        )
        step = max(0.0, total * training.goodput * (1 - training.step_mfu / held.achievable))
        others = whole_dollars(held.lost - step)
        yield f"{_INDENT}of it {whole_dollars(step)} in the step, {others} in what is not productive"


def energy_lines(training: RunNumbers) -> Iterator[str]:
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


def cost_document(training: RunNumbers) -> dict[str, Any]:
    """Return the JSON of ``money`` and ``energy``, each None if not known."""
    money, energy, held, tokens = training.money, training.energy, training.price_of_mfu, training.tokens
    found: dict[str, Any] = {"money": None, "energy": None}
    if money is not None:
        found["money"] = {
            **{what: money.parts.get(what) for what in _PRICES},
            "lost_to_failures": money.failures,
            "price_of_mfu": None if held is None else asdict(held),
        }
    if energy is not None:
        kwh = float(energy.total.mean())
        found["energy"] = {
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
    return found


def columns_of(training: RunNumbers, fate: str) -> str:
    """What a fate costs and draws, as columns of a table; empty where neither is known."""
    cells = []
    if training.money is not None:
        cells.append(f"{whole_dollars(training.money.by_fate[fate]):>13}")
    if training.energy is not None:
        mega = float(training.energy.total.mean()) >= 1e4
        kwh = float(training.energy.kwh[fate].mean()) / (1e3 if mega else 1.0)
        cells.append(f"{kwh:>9,.2f} {'MWh' if mega else 'kWh'}")
    return "".join(f"  {cell}" for cell in cells)
