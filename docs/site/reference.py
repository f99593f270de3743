"""The reference of scenario keys, of commands and of built-in things, generated from the package."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Iterable
from pathlib import Path

from simcluster.cli import COMMANDS, ENTRIES, make_parser
from simcluster.scenario.keys import ScenarioKey, scenario_keys
from simcluster.show.registry.kinds import KINDS, entries_of


def key_pages(root: Path) -> dict[str, str]:
    """Return one page per section of a scenario, and one about the sections."""
    del root
    sections: dict[str, list[ScenarioKey]] = {}
    tops = {}
    for key in scenario_keys():
        top = key.path.partition(".")[0]
        sections.setdefault(top.partition("[")[0], []).append(key)
        if "." not in key.path:
            tops[key.path] = key
    head = [
        "# Every key of a scenario",
        "",
        f"{len(scenario_keys()):,} keys, as the program knows them; `simcluster schema` gives them to an editor,",
        "`simcluster show NAME --full` fills in a scenario's defaults.  On the command line a key is `--a.b value`.",
        "An item of a list is `*`; where a section has several kinds the kind stands in brackets, as in",
        "`faults.*[slow_gpu].rank`.",
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
    return {"reference/keys/index.md": "\n".join([*head, *_TABLE, *rows]) + "\n", **pages}


_TABLE = ("| key | takes | if left out | what it says |", "|---|---|---|---|")


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
    cells = (name, _cell(key.takes), default, _cell(key.description))
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """Return a text as code for a table, where a bar would end the cell."""
    return (
        f"<code>{text.replace('&', '&amp;').replace('<', '&lt;').replace('|', '&#124;').replace('*', '&#42;')}</code>"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("\n", " ")


def command_pages(root: Path) -> dict[str, str]:
    """Return one page per command: its help."""
    del root
    rows = [f"| [{name}]({name}.md) | {_cell(ENTRIES[name]['help'])} |" for name in COMMANDS]
    text = [
        "# Every command",
        "",
        "`simcluster COMMAND --help` prints what these pages say.",
        "",
        "| command | what it does |",
        "|---|---|",
    ]
    pages = {"reference/commands/index.md": "\n".join([*text, *rows]) + "\n"}
    for name in COMMANDS:
        parser = make_parser(name)
        parts = [f"# {name}", "", parser.description or "", ""]
        for group in parser._action_groups:
            shown = [action for action in group._group_actions if action.help != SUPPRESS]
            if shown:
                title = {"positional arguments": "Arguments", "options": "Options"}.get(group.title or "", group.title)
                parts += [f"## {str(title)[0].upper()}{str(title)[1:]}", "", "| name | what it is |", "|---|---|"]
                for action in shown:
                    formatter = parser._get_formatter()
                    spelled = formatter._format_action_invocation(action)
                    parts.append(
                        f"| `{spelled.replace('|', chr(92) + '|')}` | {_cell((action.help or '').replace('%%', '%'))} |"
                    )
                parts.append("")
        parts += ["## Examples and details", "", "```text", (parser.epilog or "").strip(), "```"]
        pages[f"reference/commands/{name}.md"] = "\n".join(parts) + "\n"
    return pages


def shipped_pages(root: Path) -> dict[str, str]:
    """Return one page per kind of built-in things."""
    del root
    rows = [f"| [{kind}]({kind}.md) | {_cell(thing.what)} | {_cell(thing.named)} |" for kind, thing in KINDS.items()]
    text = [
        "# What ships",
        "",
        "`simcluster list` prints these lists, `simcluster show NAME` one thing.",
        "",
        "| list | what | named in |",
        "|---|---|---|",
    ]
    pages = {"reference/ships/index.md": "\n".join([*text, *rows]) + "\n"}
    for kind, thing in KINDS.items():
        table = [f"| `{each.name}` | {_cell(each.what)} | {_cell(each.source)} |" for each in entries_of(kind)]
        heads = [
            f"# {kind}",
            "",
            f"{thing.what[0].upper()}{thing.what[1:]}; named in {thing.named}.",
            "",
            "| name | what it is | source |",
            "|---|---|---|",
        ]
        pages[f"reference/ships/{kind}.md"] = "\n".join([*heads, *table]) + "\n"
    return pages
