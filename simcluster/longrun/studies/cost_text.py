"""Text and JSON of what a training run costs and draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from simcluster.base.counts import whole_dollars
from simcluster.base.units import format_seconds
from simcluster.longrun.studies.run_costs import STANDING_BY
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
    """Return an energy with three digits or more, in kWh, MWh or GWh."""
    for unit, scale in (("GWh", 1e6), ("MWh", 1e3)):
        if abs(kwh) >= 10 * scale:
            return f"{kwh / scale:,.4g} {unit}" if kwh < 1e4 * scale else f"{kwh / scale:,.0f} {unit}"
    return f"{kwh:,.4g} kWh"


def format_power(watts: float) -> str:
    """Return a power with four digits, in W, kW or MW."""
    unit, scale = next((each for each in (("MW", 1e6), ("kW", 1e3)) if abs(watts) >= each[1]), ("W", 1.0))
    return f"{watts / scale:.4g} {unit}"


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
    """Yield kWh, the power of the whole job, how it swings, and what is assumed in that."""
    found = cost_document(training)["energy"]
    if found is None:
        yield "  energy       nobody says what these GPUs draw: run.power.idle and run.power.full, in W"
        return
    per_token = f", {found['joules_per_token']:.3g} J a token" if found["joules_per_token"] is not None else ""
    pue = f"PUE {found['pue']:.2f}" if found["pue"] != 1 else "machines alone: PUE 1"
    average, peak, low, swing, waits, idle = (
        format_power(found[f"{name}_w"])
        for name in ("average", "peak", "step_low", "swing_1s", "checkpoint", "restart")
    )
    yield f"  energy       {format_energy(found['kwh'])} ({pue}): {average} on average, {peak} at most{per_token}"
    window = format_seconds(_SECOND)
    yield f"{_INDENT}in a step between {low} and {peak}, {swing} from peak to peak in means of {window}"
    yield f"{_INDENT}at a checkpoint that stops the job {waits}, in a restart {idle}"
    yield from (f"{_INDENT}assumed: {words}" for words in found["assumed"])


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
    """Return the cost and energy of a fate as columns of a table; empty where neither is known."""
    cells = []
    if training.money is not None:
        cells.append(f"{whole_dollars(training.money.by_fate[fate]):>13}")
    if training.energy is not None:
        mega = float(training.energy.total.mean()) >= 1e4
        kwh = float(training.energy.kwh[fate].mean()) / (1e3 if mega else 1.0)
        cells.append(f"{kwh:>9,.2f} {'MWh' if mega else 'kWh'}")
    return "".join(f"  {cell}" for cell in cells)
