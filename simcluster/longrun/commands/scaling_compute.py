"""simcluster scaling --fit of rows with compute and loss alone: the law of compute, and what it says."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simcluster.base.counts import parse_count
from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.documents.rows import Row
from simcluster.longrun.budget.compute_law import ComputeLaw, fit_compute_law

_ASKED = ("compute", "loss")


def run(args: argparse.Namespace, rows: Sequence[Row], given: Mapping[str, Any]) -> None:
    """Fit, answer."""
    others = [name for name in given if name not in _ASKED]
    others += [name for name in ("scenario", "vary", "set", "plot", "costs") if getattr(args, name)]
    if others:
        option = others[0] if others[0] == "scenario" else f"--{others[0]}"
        raise InputError(
            f"{Path(args.fit).name}: rows of compute and loss alone know no model, and {option} is of one; ask for "
            "--compute or --loss, or give the rows parameters"
        )
    law = fit_compute_law(rows, Path(args.fit).name, left_out=args.leave_out)
    asked = {name: parse_count(given[name], name) for name in _ASKED if name in given}
    common.answer(args, lambda: _text(law, asked), lambda: {"fit": law.to_dict(), **_answers(law, asked)})


def _answers(law: ComputeLaw, asked: Mapping[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "compute" in asked:
        found["budget"] = {"flops": asked["compute"], "loss": law.loss(asked["compute"])}
    if "loss" in asked:
        found["to_loss"] = {"loss": asked["loss"], "flops": law.compute_to(asked["loss"])}
    return found


def _text(law: ComputeLaw, asked: Mapping[str, float]) -> str:
    left = f", {law.left_out} left out" if law.left_out else ""
    errors = ", ".join(f"{name} {getattr(law, name):.5g} +- {error:.2g}" for name, error in law.errors.items())
    low, high = law.compute
    lines = [
        f"{law.formula()}   fitted to {law.rows} rows{left}; C in FLOP",
        f"  constants    {errors} (standard errors)" if errors else f"  constants    {_fixed(law)}",
        f"  largest      error of a loss: {law.worst:.2%}",
        f"  range        {low:.3g} to {high:.3g} FLOP",
    ]
    if "compute" in asked:
        flops = asked["compute"]
        lines.append(f"  budget       {flops:.4g} FLOP: loss {law.loss(flops):.4f}{_beyond(law, flops)}")
    if "loss" in asked:
        needed = law.compute_to(asked["loss"])
        never = f"never: no compute gets below {law.L_inf:.4g}"
        said = never if needed is None else f"{needed:.4g} FLOP{_beyond(law, needed)}"
        lines.append(f"  loss {asked['loss']:<8g}{said}")
    return "\n".join(lines)


def _fixed(law: ComputeLaw) -> str:
    """Why there are no errors."""
    if law.rows == 2:
        return "two rows fix two constants: L_inf is taken as 0, a plain power law"
    return "as many rows as constants: the law goes through them, and nothing says how sure it is"


def _beyond(law: ComputeLaw, flops: float) -> str:
    times = law.beyond(flops)
    return f"   (extrapolated: C x {times:.3g} beyond the runs)" if times > 1 else ""
