"""``simcluster budget loss``: answers of a loss law to questions about a compute budget, a model or a loss."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simcluster.base.counts import parse_count
from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.answers import build_text_blocks
from simcluster.cli.common import read_overrides
from simcluster.documents.csv_tables import CsvRow, read_csv
from simcluster.documents.overrides import parse_override, parse_vary_option
from simcluster.longrun.budget import loss_fit
from simcluster.longrun.budget.loss_laws import LossLaw
from simcluster.longrun.scaling.scaling_result import ScalingResult, compute_optimal
from simcluster.scenario.scenario import load
from simcluster.show.output_blocks import HeadlineValues, NamedValue
from simcluster.show.plot_registry import load_plot

_DRAWS = 100
_DEVICE = "h100"
_QUESTION_OPTIONS = ("compute", "gpus", "days", "mfu", "parameters", "tokens", "loss", "serve", "unique", "price")


def run(args: argparse.Namespace) -> None:
    """Fit a loss law if requested, print its answer to the user's question, and draw the plots."""
    given = {name: value for name in _QUESTION_OPTIONS if (value := getattr(args, name)) is not None}
    if args.leave_out and not args.fit:
        raise InputError("--leave-out excludes rows from a fit, but --fit is missing; add --fit rows.csv")
    if args.leave_out < 0:
        raise InputError(f"--leave-out {args.leave_out}: the number of rows to exclude must be 0 or more")
    if args.fit and args.law:
        raise InputError("--fit and --law both set the loss law; give only one of the two")
    rows = read_csv(Path(args.fit)) if args.fit else ()
    if rows and loss_fit.lacks_parameters_and_tokens(rows):
        _answer_from_compute_law(args, rows, given)
        return
    fit = None
    if args.fit:
        fit = loss_fit.fit_loss_law(rows, Path(args.fit).name, left_out=args.leave_out, draws=_DRAWS)
    head, document = ([], {}) if fit is None else ([_loss_fit_figures(fit)], {"fit": fit.to_dict()})
    if fit is not None and not args.scenario and not given:
        if args.plot or args.costs:
            raise InputError("--plot and --costs need a question to answer; add e.g. --compute 1e22 or --loss 2.0")
        common.print_answer(args, lambda: head, lambda: document)
        return
    found = _answer_question(args, given, None if fit is None else fit.law)
    common.print_answer(args, lambda: [*head, *build_text_blocks(found)], lambda: document | found.to_dict())
    common.draw_pictures(
        args, (args.plot, lambda: load_plot("isoflop")(found)), (args.costs, lambda: load_plot("costs")(found))
    )


def _answer_question(args: argparse.Namespace, given: dict[str, Any], fitted: LossLaw | None) -> ScalingResult:
    scenario = None
    law = fitted or args.law
    if args.scenario and args.device:
        raise InputError(f"--device is only for a budget without a scenario; use --cluster.device {args.device}")
    if args.law:  # a name, or a mapping written as YAML
        value = parse_override(f"law={args.law}")[1]
        law = value if isinstance(value, dict) else args.law
    if args.scenario:
        scenario = load(args.scenario, read_overrides(args, args.scenario))
    elif args.set or args.overrides or args.vary:
        raise InputError("--set and --vary change a scenario; name one, as in simcluster budget loss tiny_dp --loss 5")
    vary = dict(parse_vary_option(text) for text in args.vary)
    how: dict[str, Any] = {"device": args.device or _DEVICE, "critical_batch": args.critical_batch, "batch": args.batch}
    return compute_optimal(scenario, law=law, vary=vary, **given, **how)


def _loss_fit_figures(fit: loss_fit.LossFit) -> HeadlineValues:
    law = fit.law
    constants = ", ".join(f"{name} {getattr(law, name):.5g} +- {error:.2g}" for name, error in law.errors.items())
    own = ", ".join(f"{name}: {getattr(law, name):.6g}" for name in law.errors)
    facts = [
        NamedValue("constants", constants, f" ({_DRAWS} bootstrap draws)"),
        NamedValue("objective", f"{fit.objective:.7g}", " (sum of Huber losses of the log loss, delta 1e-3)"),
        NamedValue("largest", f"error of a loss: {fit.worst:.2%}"),
        NamedValue("range", law.describe_range()),
        NamedValue("law as YAML", f"{{form: NDC, {own}}}"),
    ]
    return HeadlineValues(facts, f"{law.formula()}   fitted to {fit.rows} rows, {fit.left_out} excluded")


def _answer_from_compute_law(args: argparse.Namespace, rows: Sequence[CsvRow], given: Mapping[str, Any]) -> None:
    others = [name for name in given if name not in ("compute", "loss")]
    others += [name for name in ("scenario", "vary", "set", "plot", "costs") if getattr(args, name)]
    if others:
        option = others[0] if others[0] == "scenario" else f"--{others[0]}"
        raise InputError(
            f"{Path(args.fit).name}: a fit to compute and loss alone gives no model size, but {option} needs one; "
            "ask for --compute or --loss, or add a column 'parameters'"
        )
    law = loss_fit.fit_compute_law(rows, Path(args.fit).name, left_out=args.leave_out)
    asked = {name: parse_count(given[name], name) for name in ("compute", "loss") if name in given}
    document: dict[str, Any] = {"fit": law.to_dict()}
    if "compute" in asked:
        document["budget"] = {"flops": asked["compute"], "loss": law.loss(asked["compute"])}
    if "loss" in asked:
        document["to_loss"] = {"loss": asked["loss"], "flops": law.compute_to_loss(asked["loss"])}
    common.print_answer(args, lambda: [_compute_fit_figures(law, asked)], lambda: document)


def _compute_fit_figures(law: loss_fit.ComputeLaw, asked: Mapping[str, float]) -> HeadlineValues:
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
        NamedValue("constants", constants),
        NamedValue("largest", f"error of a loss: {law.worst:.2%}"),
        NamedValue("range", f"{law.compute[0]:.3g} to {law.compute[1]:.3g} FLOP"),
    ]
    if (flop := asked.get("compute")) is not None:
        facts.append(NamedValue("budget", f"{flop:.4g} FLOP", f": loss {law.loss(flop):.4f}", extrapolation_note(flop)))
    if (loss := asked.get("loss")) is not None:
        needed, never = law.compute_to_loss(loss), f"never: no compute gets below {law.L_inf:.4g}"
        fact = (never, "", "") if needed is None else (f"{needed:.4g} FLOP", "", extrapolation_note(needed))
        facts.append(NamedValue(f"loss {loss:g}", *fact))
    left_out = f", {law.left_out} excluded" * bool(law.left_out)
    return HeadlineValues(facts, f"{law.formula()}   fitted to {law.rows} rows{left_out}; C in FLOP")
