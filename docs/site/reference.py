"""Reference pages of scenario keys, commands and built-in things, generated from the package."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from simcluster.cli import _TEXTS, COMMANDS, ENTRIES, make_parser
from simcluster.scenario.scenario_keys import ScenarioKey, list_scenario_keys
from simcluster.show.registry.kinds import KINDS, list_entries

OTHER_NAMES = {  # a name by which readers search: the section's page, the key, and what to know
    "Gradient accumulation steps": (
        "training",
        "training.global_batch",
        "Accumulation steps are global_batch / (micro_batch x dp).",
    ),
    "Microbatch size, per-device batch size": ("training", "training.micro_batch", ""),
    "Activation checkpointing, gradient checkpointing, rematerialization": ("training", "training.recompute", ""),
    "GEMM, matmul efficiency": ("cluster", "cluster[dgx].device", "`simcluster kernels` lists the GEMMs of a rank."),
    "FSDP, sharded data parallelism": (
        "parallel",
        "parallel.zero",
        "FSDP is 3; more keys are in the section [fsdp](fsdp.md).",
    ),
    "ZeRO, distributed optimizer, optimizer sharding": ("parallel", "parallel.zero", ""),
    "HSDP, hybrid sharding": ("fsdp", "fsdp.shard_group", ""),
    "DDP, data parallelism": ("parallel", "parallel.dp", ""),
    "Tensor model parallelism": ("parallel", "parallel.tp", "See also `parallel.sequence_parallel`."),
    "Pipeline model parallelism": ("parallel", "parallel.pp", "See also `pipeline.schedule`."),
    "Virtual pipeline stages, VPP, interleaving": ("pipeline", "pipeline.chunks", ""),
    "Context parallelism, ring attention, Ulysses": (
        "parallel",
        "parallel.cp_comm",
        "The number of ranks is `parallel.cp`.",
    ),
    "Expert parallelism, MoE": ("parallel", "parallel.ep", "The experts are in `model.moe`."),
    "Grouped-query attention, GQA, MQA": ("model", "model.kv_heads", ""),
    "CPU offload, ZeRO-Offload": ("memory", "memory.offload", ""),
    "Gradient bucketing, DDP bucket size": ("overlap", "overlap.bucket_size", ""),
    "Straggler, slow GPU": ("faults", "faults.*[slow_gpu].rank", "`simcluster stragglers` shows what it costs."),
    "Slow NIC, slow link": ("faults", "faults.*[slow_link].nic_of", "`speed` is the share of the rate that is left."),
    "Checkpoint interval": ("run", "run.checkpoint.every", "`simcluster advise interval` finds the best."),
    "Goodput, MTBF, failures": ("run", "run.failures", "`simcluster train` simulates them."),
}


def key_pages(root: Path) -> dict[str, str]:
    """Return one page per section of a scenario, and one about the sections."""
    del root
    sections: dict[str, list[ScenarioKey]] = {}
    tops = {}
    for key in list_scenario_keys():
        top = key.path.partition(".")[0]
        sections.setdefault(top.partition("[")[0], []).append(key)
        if "." not in key.path:
            tops[key.path] = key
    head = [
        "# Scenario keys",
        "",
        f"For those who write scenarios: all {len(list_scenario_keys()):,} keys; `simcluster schema` writes a schema.",
        "`simcluster show NAME --full` prints a scenario with its defaults.  On the command line, write `--a.b value`.",
        "An item of a list is `*`.  If a section has several kinds, one is in brackets: `faults.*[slow_gpu].rank`.",
        "",
    ]
    pages = {}
    rows = []
    for top, keys in sections.items():
        alone = len(keys) == 1
        name = f"`{top}`" if alone else f"[`{top}`]({top}.md)"
        rows.append(_row(name, tops[top]))
        if not alone:
            pages[f"reference/keys/{top}.md"] = _section(top, keys)
    index = "\n".join([*head, *_TABLE, *rows]) + "\n"
    return {"reference/keys/index.md": index, "reference/keys/names.md": _names_page(), **pages}


def _names_page() -> str:
    """Return the page of other names, with a heading for each, which the search finds."""
    known = {key.path: key.description for key in list_scenario_keys()}
    parts = ["# Other names of keys\n\nFor those who know a setting by another name: the key, and where it is."]
    for name, (page, key, about) in OTHER_NAMES.items():
        parts.append(f"## {name}\n\n[`{key}`]({page}.md): {_cell(known[key])}  {about}")
    return "\n\n".join(parts) + "\n"


_TABLE = ("| key | type | default | description |", "|---|---|---|---|")


def _section(top: str, keys: Iterable[ScenarioKey]) -> str:
    """Return the keys of a section, one table per mapping inside it."""
    tables: dict[str, list[str]] = {}
    said = ""
    for key in keys:
        if key.path == top:
            said = key.description
            continue
        above, _, name = key.path.rpartition(".")
        tables.setdefault(above, []).append(_row(f"`{name}`", key))
    parts = [f"# {top}\n\n{said}\n"]
    for above, rows in tables.items():
        heading = "" if above == top else f"## `{above}`\n\n"
        parts.append(heading + "\n".join([*_TABLE, *rows]) + "\n")
    return "\n".join(parts)


def _row(name: str, key: ScenarioKey) -> str:
    default = "**required**" if key.required else _code(key.default_text) if key.default_text else ""
    cells = (name, _cell(key.type_text), default, _cell(key.description))
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """Return a text as code for a table, where a bar would end the cell."""
    return (
        f"<code>{text.replace('&', '&amp;').replace('<', '&lt;').replace('|', '&#124;').replace('*', '&#42;')}</code>"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("\n", " ")


def command_menu() -> list[Any]:
    """Return the menu of the pages of commands, by the groups of ``simcluster --help``."""
    groups = _TEXTS["groups"].items()
    inside = [{title.capitalize(): [f"reference/commands/{name}.md" for name in names]} for title, names in groups]
    return ["reference/commands/index.md", *inside]


def command_pages(root: Path) -> dict[str, str]:
    """Return one page per command: its help."""
    del root
    text = ["# Commands", "", "For users of the command line: the text of `simcluster COMMAND --help`."]
    text += ["", "| group | command | what it does |", "|---|---|---|"]
    for title, names in _TEXTS["groups"].items():
        text += [f"| {title} | [{name}]({name}.md) | {_cell(ENTRIES[name]['help'])} |" for name in names]
    pages = {"reference/commands/index.md": "\n".join(text) + "\n"}
    for name in COMMANDS:
        parser = make_parser(name)
        parts = [f"# {name}", "", parser.description or "", ""]
        for group in parser._action_groups:
            shown = [action for action in group._group_actions if action.help != SUPPRESS]
            if shown:
                title = {"positional arguments": "Arguments", "options": "Options"}.get(group.title or "", group.title)
                parts += [f"## {str(title)[0].upper()}{str(title)[1:]}", "", "| name | description |", "|---|---|"]
                for action in shown:
                    spelled = parser._get_formatter()._format_action_invocation(action)
                    parts.append(f"| {_code(spelled)} | {_cell((action.help or '').replace('%%', '%'))} |")
                parts.append("")
        parts += ["## Examples and details", "", "```text", (parser.epilog or "").strip(), "```"]
        pages[f"reference/commands/{name}.md"] = "\n".join(parts) + "\n"
    return pages


def built_in_pages(root: Path) -> dict[str, str]:
    """Return one page per kind of built-in things."""
    del root
    rows = [
        f"| [{kind}]({kind}.md) | {_cell(thing.description)} | {_cell(thing.used_by)} |"
        for kind, thing in KINDS.items()
    ]
    text = [
        "# Built-in models, devices, schedules, ...",
        "",
        "For those who need a name: `simcluster list` prints these lists, `simcluster show NAME` prints one entry.",
        "",
        "| list | what | named in |",
        "|---|---|---|",
    ]
    pages = {"reference/built-in/index.md": "\n".join([*text, *rows]) + "\n"}
    for kind, thing in KINDS.items():
        table = [f"| `{each.name}` | {_cell(each.description)} | {_cell(each.source)} |" for each in list_entries(kind)]
        heads = [
            f"# {kind}",
            "",
            f"{thing.description[0].upper()}{thing.description[1:]}; named in {thing.used_by}.",
            "",
            "| name | description | source |",
            "|---|---|---|",
        ]
        pages[f"reference/built-in/{kind}.md"] = "\n".join([*heads, *table]) + "\n"
    return pages
