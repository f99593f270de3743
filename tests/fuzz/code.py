"""Kinds of input that are Python, or name it."""

from __future__ import annotations

from random import Random

from fuzz import mutation
from fuzz.case import Case

OUT = ["--json", "-"]


def _schedule_of_ours(dice: Random) -> Case:
    """A schedule in Python that is one, or nearly: passes in an order of their own, a microbatch more or less."""
    more, kind = dice.choice(("", "", "", "", "", " + 1", " - 1")), dice.choice(("B", "B", "B", "B", "I"))
    backwards = dice.choice(("range(m)", "range(m)", "reversed(range(m))", "range(0, m, 2)"))
    row = dice.choice(("forwards + backwards", "alternate_passes(forwards, backwards, warmup=p - 1 - s)"))
    text = f"""from simcluster.schedules.actions import Action, Schedule, loop_route
from simcluster.schedules.one_f_one_b import alternate_passes


def f(p, m, v=1):
    forwards = [Action("F", i) for i in range(m{more})]
    backwards = [Action("{kind}", i) for i in {backwards}]
    return Schedule.along(loop_route(p, v), "mine", [{row} for s in range(p)], m)
"""
    return _with_schedule(dice, text.encode())


def _with_schedule(dice: Random, code: bytes) -> Case:
    command = dice.choice(
        (
            ["run", "tiny_3d", "--pipeline.schedule", "s.py:f"],
            ["schedule", "s.py:f", "--stages", "2", "--microbatches", "4"],
        )
    )
    return Case([*command, *OUT], {"s.py": code})


def schedule_python(dice: Random) -> Case:
    """A schedule in Python, named on the command line, that gives something else than a schedule."""
    given = repr(mutation.value(dice))
    given = {"inf": "float('inf')", "-inf": "-float('inf')", "nan": "float('nan')"}.get(given, given)
    if dice.random() < 0.6:
        return _schedule_of_ours(dice)
    bodies = (
        f"return {given}",
        f"return Schedule.along(loop_route(p, v), 'x', {given}, m)",
        f"raise ValueError({given})",
        f"return Schedule.along(loop_route(p, v), 'x', [[Action({given}, 0)]] * p, m)",
        "import sys; sys.exit(0)",
        "return f(p)",
        f"return Schedule.along(loop_route(p, v), 'x', [[Action('F', {given}), Action('B', 0)]] * p, m)",
        "return 1 / 0",
    )
    head = "from simcluster.schedules.actions import Action, Schedule, loop_route"
    text = f"{head}\n\n\ndef f(p, m, v=1):\n    {dice.choice(bodies)}\n"
    code = mutation.raw(dice, text.encode()) if dice.random() < 0.1 else text.encode("utf-8", "backslashreplace")
    return _with_schedule(dice, code)
