"""The kinds of input: a function each, which draws a case by dice."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from fuzz import corpus, mutation
from fuzz.binaries import BINARIES
from fuzz.case import Case
from fuzz.code import schedule_python
from fuzz.later import LATER
from fuzz.options import command_line, valid_command
from fuzz.tables import TABLES

OUT = ["--json", "-"]
READERS = (
    ["run"],
    ["run"],
    ["run"],
    ["run", "--explain"],
    ["run", "--trace", "t.json"],
    ["run", "--links", "l.csv"],
    ["run", "--timeline", "t.csv"],
    ["run", "--memory", "m.csv"],
    ["run", "--replicas", "3"],
    ["compare"],
    ["kernels"],
    ["memory"],
    ["check"],
    ["stragglers"],
    ["show", "--full"],
    ["diff", "tiny_3d"],
    ["report", "-o", "r.html"],
    ["sensitivity", "--resources", "flops"],
)


def _kept(dice: Random, document: Any, text: bytes | None = None) -> bytes:
    """A changed tree, or now and then the file's own text changed."""
    if text is not None and dice.random() < 0.25:
        return mutation.raw(dice, text)
    return corpus.dumped(mutation.tree(dice, document))


def scenario(dice: Random) -> Case:
    """A scenario with a value, a key or the nesting changed."""
    name = dice.choice((*corpus.SMALL, "mixture"))
    command = dice.choice(READERS)
    return Case(
        [command[0], *command[1:], "s.yaml", *OUT],
        {"s.yaml": corpus.dumped(mutation.tree(dice, corpus.scenario(name)))},
    )


def scenario_bytes(dice: Random) -> Case:
    """The text of a scenario, damaged; or of one that comes in by standard input."""
    text = mutation.raw(dice, corpus.content(f"scenarios/{dice.choice(corpus.SMALL)}.yaml"))
    if dice.random() < 0.2:
        return Case(["run", "-", *OUT], stdin=text)
    return Case(["run", "s.yaml", *OUT], {"s.yaml": text})


def overrides(dice: Random) -> Case:
    """--set and its other spellings, with paths and values that may be none."""
    from simcluster.scenario.key_paths import _index_keys_by_name

    paths = sorted({path for places in _index_keys_by_name().values() for path in places})

    argv = ["run", dice.choice(corpus.SMALL[:4])]
    own = [] if dice.random() < 0.45 else _own_values(corpus.scenario(argv[1]))
    for _ in range(dice.choice((1, 1, 2, 3))):
        path, said = dice.choice(paths), mutation.value(dice)
        if own:
            path, said = dice.choice(own)
            said = mutation.larger_or_smaller(dice, said)
        elif dice.random() < 0.2:
            path = str(mutation.near(dice, path))
        word = said if isinstance(said, str) else json.dumps(said)
        argv += dice.choice(
            (["--set", f"{path}={word}"], [f"--{path}", word], [f"{path}={word}"], ["--set", f"{path}+={word}"])
        )
    return Case([_argument(each) for each in (*argv, *OUT)])


def _own_values(document: Any) -> list[tuple[str, Any]]:
    """The numbers and words of a scenario's own sections, by path."""
    sections = {key: each for key, each in document.items() if isinstance(each, dict)}
    return [
        (f"{section}.{key}", each)
        for section, keys in sections.items()
        for key, each in keys.items()
        if not isinstance(each, dict | list)
    ]


def _argument(text: str) -> str:
    """As a system passes it: without the byte 0, and with nothing that no terminal encodes."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def study(dice: Random) -> Case:
    """A sweep's study file."""
    return Case(
        ["sweep", "study.yaml", "-o", "x.csv", "--executor", "1", *OUT], {"study.yaml": _kept(dice, corpus.STUDY)}
    )


def validation(dice: Random) -> Case:
    """A study of measured rows, with its formulas."""
    name = dice.choice([each for each in corpus.named("scenarios/validation") if "table" in corpus.tree(each)])
    document = {**corpus.tree(name)}
    if isinstance(document.get("table"), dict):
        document["table"] = {**document["table"], "rows": document["table"]["rows"][:2]}
    if isinstance(document.get("scenario"), str):
        document["scenario"] = "tiny_3d"
    return Case(["validate", "v.yaml", *OUT], {"v.yaml": _kept(dice, document, corpus.content(name))})


def topology(dice: Random) -> Case:
    """A topology file of our own."""
    name = dice.choice(corpus.named("topologies"))
    return Case(["topology", "t.yaml", *OUT], {"t.yaml": _kept(dice, corpus.tree(name), corpus.content(name))})


TOPOLOGY_FILES = (
    *corpus.named("tests/inputs", "xml"),
    *corpus.named("tests/inputs", "txt"),
    *corpus.named("tests/inputs", "ibnetdiscover"),
    "examples/host.xml",
)


def topology_file(dice: Random) -> Case:
    """A topology as another program writes it: NCCL's XML, nvidia-smi, ibnetdiscover, GraphML, node-link JSON."""
    if dice.random() < 0.3:
        files = {"t.json": corpus.dumped(mutation.tree(dice, corpus.NODE_LINK))}
    elif dice.random() < 0.3:
        files = {"t.graphml": mutation.raw(dice, corpus.content("tests/fuzz/seeds/cluster.graphml"))}
    else:
        name = dice.choice(TOPOLOGY_FILES)
        text = corpus.content(name)
        changed = (
            mutation.raw(dice, text)
            if dice.random() < 0.5
            else mutation.lines(dice, text.decode(), dice.choice((" ", '"', "\t")))
        )
        files = {f"t{name[name.rindex('.') :]}": changed}
    return Case(["topology", *files, *dice.choice(([], ["device=h100"], ["copies=2"])), *OUT], files)


def device(dice: Random) -> Case:
    """A device file of one's own."""
    known = json.loads(corpus.made("show h100 --json d.json", "d.json")[0])
    document = dice.choice((corpus.tree("examples/my_gpu.yaml"), known.get("of", known)))
    return Case(["run", "slow_gpu", "--cluster.device", "d.yaml", *OUT], {"d.yaml": _kept(dice, document)})


def run_section(dice: Random) -> Case:
    """The section of a run of weeks."""
    name = dice.choice(("week_64xa100", "llama3_405b_54_days"))
    document = {**corpus.scenario("tiny_dp"), "run": mutation.tree(dice, corpus.scenario(name)["run"])}
    command = dice.choice(
        (
            ["train", "s.yaml", "--played", "3"],
            ["advise", dice.choice(ADVICE), "s.yaml", "--played", "2"],
            ["check", "s.yaml"],
        )
    )
    return Case([*command, *OUT], {"s.yaml": corpus.dumped(document)})


ADVICE = ("interval", "spares", "restart", "straggler", "async-checkpoint", "memory", "reliability", "bad-batch")


def jobs(dice: Random) -> Case:
    """A file of jobs on one cluster."""
    name = "examples/jobs.yaml"
    return Case(["share", "j.yaml", *OUT], {"j.yaml": _kept(dice, corpus.tree(name), corpus.content(name))})


IMPORTS = (
    ("megatron", "examples/train.sh"),
    ("megatron", "tests/inputs/launch/arrays.sh"),
    ("megatron", "tests/inputs/launch/batch.sh"),
    ("megatron", "tests/inputs/launch/slurm.sh"),
    ("megatron", "tests/inputs/launch/options.yaml"),
    ("megatron-bridge", "tests/inputs/launch/recipes.txt"),
    ("torchtitan", "examples/torchtitan.toml"),
    ("torchtitan", "tests/inputs/launch/registry.txt"),
    ("deepspeed", "examples/ds_config.json"),
    ("hugging-face", "examples/config.json"),
    ("nemo", ""),
    ("astra-network", ""),
)


def imported(dice: Random) -> Case:
    """The launch script or configuration of another tool."""
    kind, path = dice.choice(IMPORTS)
    text = (
        corpus.content(path)
        if path
        else corpus.ASTRA.encode()
        if kind == "astra-network"
        else corpus.dumped(corpus.NEMO)
    )
    ending = path[path.rindex(".") :] if path else ".yaml"
    name = "registry.py" if path.endswith("registry.txt") else f"given{ending}"
    if ending == ".json" or kind == "nemo":
        changed = corpus.dumped(mutation.tree(dice, json.loads(text)))
    else:
        changed = (
            mutation.raw(dice, text)
            if dice.random() < 0.5
            else mutation.lines(dice, text.decode(), dice.choice((" ", "=", "\t")))
        )
    files = {name: changed, "model.json": corpus.content("examples/config.json")}
    argv = ["import", kind, f"{name}:llama3_8b" if name == "registry.py" else name]
    argv += ["--device", "h100"] if kind == "astra-network" else ["--cluster", "dgx_h100"]
    argv += ["--model", "model.json"] if kind == "deepspeed" else []
    argv += ["--gpus", "64"] if kind not in ("astra-network", "nemo") and dice.random() < 0.6 else []
    return Case([*argv, *OUT], files)


def studio(dice: Random) -> Case:
    """A message of the studio's page, or a link to it."""
    base = dice.choice((*corpus.SMALL[:4], "mine.yaml"))
    settings = {key: mutation.value(dice) for key in dice.sample(CONTROLS, dice.choice((0, 1, 1, 2)))}
    settings |= {"parallel.tp": 2} if dice.random() < 0.3 else {}
    files = {"mine.yaml": corpus.content("scenarios/tiny_3d.yaml")}
    if dice.random() < 0.3:
        pairs = "&".join(f"{key}={each}" for key, each in {"scenario": base, **settings}.items())
        return Case([], {**files, "link.txt": mutation.raw(dice, pairs.encode("utf-8", "replace"))}, call="studio link")
    message = {"ask": 1, "live": {"base": base, "settings": settings}, "pinned": None, "changed": dice.choice(CONTROLS)}
    message = mutation.tree(dice, message) if dice.random() < 0.6 else message
    return Case([], {**files, "message.json": corpus.dumped(message)}, call="studio message")


CONTROLS = (
    "pipeline.schedule",
    "parallel.tp",
    "parallel.pp",
    "parallel.zero",
    "training.global_batch",
    "training.recompute",
    "overlap.tensor",
    "model.sequence_length",
    "cluster.device",
    "cluster.nodes",
    "cluster.scale.network",
    "slow_gpu",
    "slow_link",
)


def notebook(dice: Random) -> Case:
    """A scenario as the text of a notebook's cell."""
    name = dice.choice((*corpus.SMALL[:4], "mixture"))
    text = (
        corpus.dumped(corpus.scenario(name))
        if dice.random() < 0.5
        else corpus.dumped(mutation.tree(dice, corpus.scenario(name)))
    )
    return Case([], {"cell.txt": mutation.raw(dice, text) if dice.random() < 0.5 else text}, call="notebook text")


def words(dice: Random) -> Case:
    """A command line of words that may be none of a command's."""
    return Case([_argument(each) for each in command_line(dice)], {"s.yaml": corpus.content("scenarios/tiny_dp.yaml")})


def options(dice: Random) -> Case:
    """A valid scenario, a command, and options that it documents."""
    return valid_command(dice)


KINDS: dict[str, Callable[[Random], Case]] = {
    "scenario": scenario,
    "scenario bytes": scenario_bytes,
    "overrides": overrides,
    "study": study,
    "validation study": validation,
    "topology": topology,
    "topology of another tool": topology_file,
    "device": device,
    "run section": run_section,
    "jobs": jobs,
    "import": imported,
    "schedule in Python": schedule_python,
    "studio": studio,
    "notebook text": notebook,
    "command line": words,
    "options": options,
    **TABLES,
    **BINARIES,
    **LATER,
}
