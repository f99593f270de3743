"""Command lines: valid scenarios with options that are documented, drawn at random, and words that may be nothing.

What commands take is read from the package's own ``commands.toml``, so a new option is drawn as soon as it is there.
"""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz import corpus, mutation
from fuzz.case import Case

DRAWN: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LEFT_OUT, SET, FILES, RAN, FOLDER = (DRAWN[name] for name in ("left_out", "set", "files", "ran", "folder"))
VALUES: dict[str, list[str]] = {**DRAWN["values"], "--set": SET}


@cache
def said() -> dict[str, Any]:
    """Of every command what it takes."""
    return tomllib.loads((corpus.ROOT / "simcluster/cli/commands.toml").read_text())


@cache
def drawn(letter: str) -> tuple[str, ...]:
    """What may stand in the place of a letter of ``RAN``."""
    from simcluster.collectives import ALGORITHMS
    from simcluster.schedules import SCHEDULES

    names = tuple(path.rpartition("/")[2].removesuffix(".yaml") for path in corpus.named("topologies"))
    small = (*corpus.SMALL, "mixture.yaml")
    return {
        "S": small,
        "T": small,
        "P": tuple(SCHEDULES),
        "C": names,
        "A": tuple(ALGORITHMS),
        "R": ("trace.parquet", "profiles"),
        "K": ("models", "devices", "faults", "laws", "topologies"),
        "N": (*corpus.SMALL, *names, "h100", "llama3-70b", "slow_gpu"),
        "Q": ("interval", "spares", "restart", "straggler", "async-checkpoint", "memory", "reliability", "bad-batch"),
    }.get(letter, (letter,))


def fault(dice: Random) -> str:
    """One or two of the registry's faults, on any rank."""
    from simcluster.faults import FAULTS

    found = []
    for spec in dice.sample(list(FAULTS.values()), dice.choice((1, 1, 2))):
        example = {**spec.EXAMPLE}
        example.update({"rank": dice.choice((0, 3, 7, 100))} if "rank" in example and dice.random() < 0.5 else {})
        found.append(example)
    return f"faults={json.dumps(found, default=str)}"


def valid_command(dice: Random) -> Case:
    """A command on what ships, with one to four of its options and changes of the scenario."""
    name = dice.choice(list(RAN))
    argv = [name, *(dice.choice(drawn(each)) for each in RAN[name])]
    arguments = dict(said()["commands"][name]["arguments"])
    for group in said()["commands"][name].get("groups", {}).values():
        arguments.update(group)
    options = [
        each
        for each in arguments
        if each.startswith("-") and not set(each.split()) & set(LEFT_OUT) and each.split()[-1] not in argv
    ]
    for option in dice.sample(options, min(len(options), dice.choice((0, 1, 1, 2, 3)))):
        argv += _given(dice, option, arguments[option])
    if "--set" in arguments and name not in ("topology", "collective", "replay", "chakra") and dice.random() < 0.7:
        argv += [part for each in dice.sample(SET, dice.choice((1, 1, 2))) for part in ("--set", each)]
        argv += ["--set", fault(dice)] if dice.random() < 0.3 else []
    if dice.random() < 0.5 and "--json" in arguments:
        argv += ["--json", "-"]
    files = {each: corpus.content(path) for each, path in FOLDER.items()}
    files["mixture.yaml"], files["study.yaml"] = corpus.dumped(corpus.MIXTURE), corpus.dumped(corpus.STUDY)
    files["week.yaml"], files["lengths.csv"] = corpus.week(), corpus.LENGTHS.encode()
    files["kernels.yaml"], files["sizes.csv"] = corpus.dumped(corpus.KERNELS), b"0,1000\n1000,0\n"
    return Case(argv, files)


def _given(dice: Random, option: str, about: Any) -> list[str]:
    """An option with a value that it may have."""
    word = option.split()[-1]
    about = {} if isinstance(about, str) else about
    if about.get("action") == "store_true":
        return [word]
    if "file" in about:
        return [word, dice.choice(FILES[about["file"]])]
    if "choices" in about:
        return [word, str(dice.choice(about["choices"]))]
    numbers = {"float": ["1", "0.5"], "time": ["1", "2.5", "0"]}.get(about.get("type", ""), ["1", "2", "3", "8"])
    return [word, dice.choice(VALUES.get(option, VALUES.get(word, numbers)))]


def command_line(dice: Random) -> list[str]:
    """Words in any order: commands, options, values, nonsense."""
    commands = list(said()["commands"])
    name = dice.choice(commands) if dice.random() < 0.95 else str(mutation.near(dice, dice.choice(commands)))
    if name == "studio":
        name = "run"
    known = [
        each
        for names in said()["commands"].get(name, {}).get("arguments", {})
        for each in names.split()
        if each.startswith("-")
    ]
    known = [each for each in known if each not in LEFT_OUT] or ["--set"]
    return [name, *(_word(dice, known) for _ in range(dice.choice((0, 1, 2, 3, 5))))]


def _word(dice: Random, known: list[str]) -> str:
    """One word of a command line: an option that there is, or nearly, a value, nonsense."""
    option, text = dice.choice(known), str(dice.choice(mutation.TEXTS))[:300]
    number, changed = str(dice.choice(mutation.NUMBERS))[:50], str(mutation.near(dice, option))
    words = (
        option,
        option,
        text,
        number,
        changed,
        dice.choice(SET),
        f"{option}={text}",
        "s.yaml",
        "tiny_3d",
        "--",
        "-",
        "--help",
    )
    return dice.choice(words)
