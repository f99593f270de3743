"""simcluster scaling: what a law of loss says of a budget, a model or a loss."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.overrides import overrides_of
from simcluster.documents.overrides import expand_vary, parse_override
from simcluster.documents.rows import Row, read_csv
from simcluster.longrun.budget.compute_law import of_compute_alone
from simcluster.longrun.budget.loss_fit import LossFit, fit_loss_law
from simcluster.longrun.budget.loss_laws import LossLaw
from simcluster.longrun.commands import scaling_compute
from simcluster.longrun.scaling.scale import Scaling, scaling
from simcluster.scenario.scenario import load
from simcluster.show.pictures import picture

_DRAWS, _DEVICE = 100, "h100"
_ASKED = ("compute", "gpus", "days", "mfu", "parameters", "tokens", "loss", "serve", "unique", "price")


def run(args: argparse.Namespace) -> None:
    """Fit where that is asked for, answer, draw."""
    given = {name: value for name in _ASKED if (value := getattr(args, name)) is not None}
    if args.leave_out and not args.fit:
        raise InputError("--leave-out says which rows are not fitted; give them: --fit rows.csv")
    if args.leave_out < 0:
        raise InputError(f"--leave-out {args.leave_out}: how many rows of the highest loss; it is not below zero")
    if args.fit and args.law:
        raise InputError("--fit and --law are two laws; give one of them")
    rows = read_csv(Path(args.fit)) if args.fit else ()
    if rows and of_compute_alone(rows):
        scaling_compute.run(args, rows, given)
        return
    fit = _fit(args, rows) if args.fit else None
    if fit is not None and not args.scenario and not given:
        if args.plot or args.costs:
            raise InputError("--plot and --costs draw an answer; ask for one, as in --compute 1e22 or --loss 2.0")
        common.answer(args, lambda: _told(fit), lambda: {"fit": _fitted(fit)})
        return
    found = _answer(args, given, fit.law if fit is not None else args.law and _law(args.law))
    head = [] if fit is None else [_told(fit)]
    common.answer(
        args,
        lambda: "\n\n".join([*head, found.summary()]),
        lambda: {**({} if fit is None else {"fit": _fitted(fit)}), **found.to_dict()},
    )
    common.draw(args, (args.plot, lambda: picture("isoflop")(found)), (args.costs, lambda: picture("costs")(found)))


def _answer(args: argparse.Namespace, given: dict[str, Any], law: str | dict[str, Any] | LossLaw | None) -> Scaling:
    scenario = None
    if args.scenario and args.device:
        raise InputError(f"--device is of a budget without a scenario; change it with --cluster.device {args.device}")
    if args.scenario:
        scenario = load(args.scenario, overrides_of(args, args.scenario))
    elif args.set or args.overrides or args.vary:
        raise InputError("--set and --vary change a scenario; name one, as in simcluster scaling tiny_dp --loss 5")
    return scaling(
        scenario,
        **given,
        device=args.device or _DEVICE,
        law=law,
        critical_batch=args.critical_batch,
        vary=dict(expand_vary(text) for text in args.vary),
        batch=args.batch,
    )


def _law(text: str) -> str | dict[str, Any]:
    """A name, or a mapping written as YAML."""
    value = parse_override(f"law={text}")[1]
    return value if isinstance(value, dict) else text


def _fit(args: argparse.Namespace, rows: Sequence[Row]) -> LossFit:
    return fit_loss_law(rows, Path(args.fit).name, left_out=args.leave_out, draws=_DRAWS)


def _told(fit: LossFit) -> str:
    values = ((name, getattr(fit.law, name), error) for name, error in fit.law.errors.items())
    constants = ", ".join(f"{name} {value:.5g} +- {error:.2g}" for name, value, error in values)
    own = ", ".join(f"{name}: {getattr(fit.law, name):.6g}" for name in fit.law.errors)
    return "\n".join([
        f"{fit.law.formula()}   fitted to {fit.rows} rows, {fit.left_out} left out",
        f"  constants    {constants} ({_DRAWS} bootstrap draws)",
        f"  objective    {fit.objective:.7g} (sum of Huber losses of the logarithm, delta 1e-3)",
        f"  largest      error of a loss: {fit.worst:.2%}",
        f"  range        {fit.law.range_words()}",
        f"  as a law     {{form: NDC, {own}}}",
    ])  # fmt: skip


def _fitted(fit: LossFit) -> dict[str, Any]:
    constants = {name: getattr(fit.law, name) for name in fit.law.errors}
    return {
        **constants, "errors": fit.law.errors, "rows": fit.rows, "left_out": fit.left_out, "objective": fit.objective,
        "largest_error": fit.worst, "parameters": list(fit.law.parameters or ()), "tokens": list(fit.law.tokens or ()),
    }  # fmt: skip
