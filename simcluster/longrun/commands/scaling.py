"""``simcluster scaling``: answers of a loss law about a compute budget, a model or a loss."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simcluster.base.counts import parse_count
from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.answers import build_answer
from simcluster.cli.common import read_overrides
from simcluster.documents.csv_numbers import Row, read_csv
from simcluster.documents.overrides import expand_vary, parse_override
from simcluster.longrun.budget.loss_fit import ComputeLaw, LossFit, fit_compute_law, fit_loss_law, has_compute_only
from simcluster.longrun.budget.loss_laws import LossLaw
from simcluster.longrun.scaling.scale import Scaling, compute_optimal
from simcluster.scenario.scenario import load
from simcluster.show.blocks import Fact, Figures
from simcluster.show.pictures import picture

_DRAWS, _DEVICE = 100, "h100"
_QUESTION_OPTIONS = ("compute", "gpus", "days", "mfu", "parameters", "tokens", "loss", "serve", "unique", "price")


def run(args: argparse.Namespace) -> None:
    """Fit a loss law if requested, print the answer to the question, and draw the plots."""
    given = {name: value for name in _QUESTION_OPTIONS if (value := getattr(args, name)) is not None}
    if args.leave_out and not args.fit:
        raise InputError("--leave-out excludes rows from a fit; give the rows: --fit rows.csv")
    if args.leave_out < 0:
        raise InputError(f"--leave-out {args.leave_out}: the number of rows to exclude must be 0 or more")
    if args.fit and args.law:
        raise InputError("--fit and --law both set the law; give one of them")
    rows = read_csv(Path(args.fit)) if args.fit else ()
    if rows and has_compute_only(rows):
        _answer_by_compute(args, rows, given)
        return
    fit = None
    if args.fit:
        fit = fit_loss_law(rows, Path(args.fit).name, left_out=args.leave_out, draws=_DRAWS)
    head, document = ([], {}) if fit is None else ([_loss_fit_figures(fit)], {"fit": fit.to_dict()})
    if fit is not None and not args.scenario and not given:
        if args.plot or args.costs:
            raise InputError("--plot and --costs draw an answer; ask a question, as in --compute 1e22 or --loss 2.0")
        common.print_answer(args, lambda: head, lambda: document)
        return
    found = _answer_question(args, given, None if fit is None else fit.law)
    common.print_answer(args, lambda: [*head, *build_answer(found)], lambda: document | found.to_dict())
    common.draw_pictures(
        args, (args.plot, lambda: picture("isoflop")(found)), (args.costs, lambda: picture("costs")(found))
    )


def _answer_question(args: argparse.Namespace, given: dict[str, Any], fitted: LossLaw | None) -> Scaling:
    scenario, law = None, fitted or args.law
    if args.scenario and args.device:
        raise InputError(f"--device is for a budget without a scenario; change it with --cluster.device {args.device}")
    if args.law:  # a name, or a mapping written as YAML
        value = parse_override(f"law={args.law}")[1]
        law = value if isinstance(value, dict) else args.law
    if args.scenario:
        scenario = load(args.scenario, read_overrides(args, args.scenario))
    elif args.set or args.overrides or args.vary:
        raise InputError("--set and --vary change a scenario; name one, as in simcluster scaling tiny_dp --loss 5")
    how: dict[str, Any] = {
        "device": args.device or _DEVICE,
        "law": law,
        "critical_batch": args.critical_batch,
        "batch": args.batch,
    }
    return compute_optimal(scenario, **given, **how, vary=dict(expand_vary(text) for text in args.vary))


def _loss_fit_figures(fit: LossFit) -> Figures:
    law = fit.law
    constants = ", ".join(f"{name} {getattr(law, name):.5g} +- {error:.2g}" for name, error in law.errors.items())
    own = ", ".join(f"{name}: {getattr(law, name):.6g}" for name in law.errors)
    facts = [
        Fact("constants", constants, f" ({_DRAWS} bootstrap draws)"),
        Fact("objective", f"{fit.objective:.7g}", " (sum of Huber losses of the log loss, delta 1e-3)"),
        Fact("largest", f"error of a loss: {fit.worst:.2%}"),
        Fact("range", law.describe_range()),
        Fact("as a law", f"{{form: NDC, {own}}}"),
    ]
    return Figures(facts, f"{law.formula()}   fitted to {fit.rows} rows, {fit.left_out} excluded")


def _answer_by_compute(args: argparse.Namespace, rows: Sequence[Row], given: Mapping[str, Any]) -> None:
    others = [name for name in given if name not in ("compute", "loss")]
    others += [name for name in ("scenario", "vary", "set", "plot", "costs") if getattr(args, name)]
    if others:
        option = others[0] if others[0] == "scenario" else f"--{others[0]}"
        raise InputError(
            f"{Path(args.fit).name}: rows of compute and loss alone give no model, and {option} needs one; ask for "
            "--compute or --loss, or give the rows parameters"
        )
    law = fit_compute_law(rows, Path(args.fit).name, left_out=args.leave_out)
    asked = {name: parse_count(given[name], name) for name in ("compute", "loss") if name in given}
    document: dict[str, Any] = {"fit": law.to_dict()}
    if "compute" in asked:
        document["budget"] = {"flops": asked["compute"], "loss": law.loss(asked["compute"])}
    if "loss" in asked:
        document["to_loss"] = {"loss": asked["loss"], "flops": law.compute_to(asked["loss"])}
    common.print_answer(args, lambda: [_compute_fit_figures(law, asked)], lambda: document)


def _compute_fit_figures(law: ComputeLaw, asked: Mapping[str, float]) -> Figures:
    constants = ", ".join(f"{name} {getattr(law, name):.5g} +- {error:.2g}" for name, error in law.errors.items())
    constants += " (standard errors)"
    if law.rows == 2:
        constants = "two rows determine two constants: L_inf is taken as 0, a pure power law"
    elif not law.errors:
        constants = "as many rows as constants: the law passes through them, and its uncertainty is unknown"

    def extrapolation_note(flops: float) -> str:
        times = law.extrapolation_factor(flops)
        return f"extrapolated: C x {times:.3g} beyond the runs" if times > 1 else ""

    facts = [
        Fact("constants", constants),
        Fact("largest", f"error of a loss: {law.worst:.2%}"),
        Fact("range", f"{law.compute[0]:.3g} to {law.compute[1]:.3g} FLOP"),
    ]
    if (flops := asked.get("compute")) is not None:
        facts.append(Fact("budget", f"{flops:.4g} FLOP", f": loss {law.loss(flops):.4f}", extrapolation_note(flops)))
    if (loss := asked.get("loss")) is not None:
        needed, never = law.compute_to(loss), f"never: no compute gets below {law.L_inf:.4g}"
        fact = (never, "", "") if needed is None else (f"{needed:.4g} FLOP", "", extrapolation_note(needed))
        facts.append(Fact(f"loss {loss:g}", *fact))
    left_out = f", {law.left_out} excluded" * bool(law.left_out)
    return Figures(facts, f"{law.formula()}   fitted to {law.rows} rows{left_out}; C in FLOP")
