"""Kinds of input that came after the first: faults one by one, sites and outer steps, recipes over time, what --vary
takes, requests of the studio, arguments of Python functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from fuzz import corpus, mutation
from fuzz.case import Case

OUT = ["--json", "-"]
SITES: dict[str, Any] = {
    "name": "two sites",
    "cluster": {"topology": "two_sites_h100", "site": {"nodes": 1}, "wan": {"line_rate": "100 Gbit/s"}},
    "model": corpus.DENSE,
    "parallel": {"tp": 2, "pp": 2, "dp": 4, "order": ["tp", "cp", "pp", "dp"]},
    "pipeline": {"schedule": "1f1b"},
    "training": {
        "global_batch": 16,
        "outer": {"every": 10, "workers": 2, "parts": 2, "beside": 1, "bytes_per_parameter": 4},
    },
}
"""Workers that train apart on two sites, every key of theirs written out."""
STAGES: list[dict[str, Any]] = [
    {"until": "252M tokens", "set": {"training.global_batch": 8}},
    {
        "until": "1B tokens",
        "change": "10 min",
        "set": {"model.sequence_length": 1024, "parallel": {"tp": 8, "pp": 1, "dp": 8}},
    },
    {"change": "10 min"},
]


def _near(dice: Random, whole: Any) -> Any:
    """A copy with one or two of its values changed, mostly to such as may be; or what ``mutation.tree`` makes of it."""
    if dice.random() < 0.15:
        return mutation.tree(dice, whole)
    if dice.random() < 0.6:
        return mutation.gentle(dice, whole)
    changed = json.loads(json.dumps(whole))
    leaves = [(inside, key) for inside, key in mutation.places(changed) if not isinstance(inside[key], dict | list)]
    for inside, key in dice.sample(leaves, min(len(leaves), 1)):
        inside[key] = mutation.near(dice, inside[key])
    return changed


def faults(dice: Random) -> Case:
    """One to three faults of the registry, changed, on a small job."""
    from simcluster.faults import FAULTS

    name = dice.choice(("tiny_3d", "tiny_dp", "jitter_8", "packing_16", "mixture"))
    own = [dict(spec.EXAMPLE) for spec in dice.sample(list(FAULTS.values()), dice.choice((1, 1, 2, 3)))]
    own = _near(dice, own)
    commands = ["run"], ["run", "--replicas", "2"], ["run", "--explain"], ["stragglers", "--mitigate"], ["check"]
    command = dice.choice((*commands, ["report", "-o", "r.html"], ["diff", "tiny_3d"]))
    return Case(
        [command[0], *command[1:], "s.yaml", *OUT], {"s.yaml": corpus.dumped({**corpus.scenario(name), "faults": own})}
    )


def sites(dice: Random) -> Case:
    """Workers on several sites that meet in an outer step."""
    commands = ["run"], ["run", "--links", "l.csv"], ["memory"], ["check"], ["report", "-o", "r.html"], ["stragglers"]
    command = dice.choice((*commands, ["plan", "-o", "p.csv", "--executor", "1"], ["sensitivity"]))
    return Case([command[0], "s.yaml", *command[1:], *OUT], {"s.yaml": corpus.dumped(_near(dice, SITES))})


def recipe(dice: Random) -> Case:
    """A run whose recipe changes over time."""
    document = json.loads(corpus.week())
    document["run"] = {**{key: each for key, each in document["run"].items() if key != "days"}, "tokens": "2B"}
    document["run"]["stages"] = _near(dice, STAGES)
    document["run"] = _near(dice, document["run"]) if dice.random() < 0.2 else document["run"]
    command = dice.choice((["train", "--played", "2"], ["check"], ["train", "--played", "1", "--log", "l.csv"]))
    return Case([command[0], "s.yaml", *command[1:], *OUT], {"s.yaml": corpus.dumped(document)})


_TRIED = {
    "training.micro_batch": ("1", "2", "4"),
    "parallel.tp": ("1", "2", "4"),
    "pipeline.schedule": ("1f1b", "gpipe", "zb-h1"),
    "faults": ("[]", "[{kind: slow_gpu, rank: 0, factor: 2}]"),
    "model.preset": ("llama3-8b", "llama-7b"),
    "cluster.nodes": ("1", "2", "4"),
    "seed": ("0", "1", "2"),
}
"""Values of keys that go."""


def vary(dice: Random) -> Case:
    """Values that --vary is given, of keys that there are or nearly."""
    path = dice.choice(
        ("training.micro_batch", "parallel.tp", "pipeline.schedule", "faults", "model.preset", "cluster.nodes", "seed")
    )
    values = [mutation.near(dice, each) for each in dice.sample((1, 2, "1f1b", "gpipe", True, None, "llama3-8b"), 2)]
    written = ",".join(each if isinstance(each, str) else json.dumps(each) for each in values)
    if dice.random() < 0.4:  # such as there are
        written = ",".join(dice.sample(_TRIED[path], 2))
        if dice.random() < 0.7:
            return _varying(dice, f"{path}={written}")
    path = str(mutation.near(dice, path)) if dice.random() < 0.3 else path
    option = dice.choice(
        (f"{path}={written}", f"{path}={written}", path, f"{path}=", f"={written}", f"{path}=[{written}]")
    )
    return _varying(dice, option.replace("\x00", "").encode("utf-8", "replace").decode())


def _varying(dice: Random, option: str) -> Case:
    """A command that takes --vary, with it."""
    command = dice.choice(
        (
            ["compare", "tiny_dp"],
            ["report", "tiny_dp", "-o", "r.html"],
            ["sweep", "tiny_dp", "-o", "x.csv", "--executor", "1"],
            ["plan", "tiny_3d", "-o", "p.csv", "--executor", "1"],
            ["train", "week.yaml", "--played", "2"],
            ["scaling", "tiny_dp", "--loss", "5"],
        )
    )
    return Case([*command, "--vary", option, *OUT], {"week.yaml": corpus.week()})


def request(dice: Random) -> Case:
    """A part of the studio's page, of states that are changed, or a name to save one under."""
    from simcluster.interactive.page.hints import hint_parts
    from simcluster.interactive.page.page_parts import PARTS

    settings = {"parallel.tp": 2, "slow_gpu": 1.5, "cluster.nodes": 2, "cluster.scale.network": 2}
    live = {"base": dice.choice((*corpus.SMALL[:4], "mine.yaml", "week.yaml")), "settings": {}}
    live["settings"] = {key: settings[key] for key in dice.sample(list(settings), dice.choice((0, 1, 2)))}
    message: dict[str, Any] = {"ask": 1, "live": live, "pinned": dice.choice((None, live)), "changed": "parallel.tp"}
    message |= {"save": mutation.value(dice)} if dice.random() < 0.3 else {}
    message = _near(dice, message) if dice.random() < 0.5 else message
    asked = {"message": message, "part": dice.choice([*PARTS, *dice.sample(list(hint_parts()), 3)])}
    files = {"mine.yaml": corpus.content("scenarios/tiny_3d.yaml"), "week.yaml": corpus.week()}
    return Case([], {**files, "request.json": corpus.dumped(asked)}, call="studio request")


def python_call(dice: Random) -> Case:
    """A public function with one argument of another type or value than it takes."""
    from fuzz.arguments import FUNCTIONS, VALUES

    name = dice.choice(list(FUNCTIONS))
    argument = dice.choice(list(FUNCTIONS[name]))
    asked = {"function": name, "argument": argument, "value": dice.choice(list(VALUES))}
    own = FUNCTIONS[name][argument]
    if dice.random() < 0.3 and _in_json(own):
        asked["given"] = mutation.gentle(dice, [own])[0]
    return Case([], {"call.json": corpus.dumped(asked), "week.yaml": corpus.week()}, call="Python call")


def _in_json(value: object) -> bool:
    """Can a file hold it?"""
    try:
        json.dumps(value)
    except TypeError:
        return False
    return isinstance(value, str | int | float | list | dict)


LATER: dict[str, Callable[[Random], Case]] = {
    "faults": faults,
    "sites": sites,
    "recipe over time": recipe,
    "vary": vary,
    "studio request": request,
    "Python call": python_call,
}
