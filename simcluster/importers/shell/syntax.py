"""The syntax tree of a shell script (tree-sitter's grammar of bash, which goes on behind what it cannot read)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError

if TYPE_CHECKING:
    from tree_sitter import Node

MOST_CHARACTERS = 200_000
EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")
_PLACEHOLDER = re.compile(r"<([A-Za-z][A-Za-z0-9_./,'-]*(?: [A-Za-z0-9_./,'-]+)*)>")
_NESTED = re.compile(r"(\$\[[^\[\]\n]*)\$\[([^\[\]\n]*)\]")
"""Old arithmetic in old arithmetic, which the grammar does not know."""
_SCRIPT = re.compile(
    r"^#!|^\s*#SBATCH\s|^\s*(?:(?:export|local|declare|readonly)\s+)?[A-Za-z_]\w*\+?=|^(?:if|for|while|case|source)\s"
    r"|^(?:sh|bash|srun|sbatch|nohup|time)\s.*\.(?:sh|slurm|sbatch)\b",
    re.MULTILINE,
)
_NAMED = re.compile(
    r"(?P<kept>(?:(?<![a-z])|(?<=\s-[a-z]))'[^'\n]*'|\\.|\$\$)|\$[A-Za-z_]\w*(?=[^\s\w\"'()|&;<>\]}])"
    r"|(?<=[^\s\"'=(|&;<>\[{!])\$[A-Za-z_]\w*|\$\d"
)
"""What stands in single quotes (``it's`` has none), and names of variables that touch something else of a word."""
_TICKED = re.compile(r"(?<!\\)`([^`\n\\]+)`")
_BRACKETED = re.compile(r"(?<!\S)\[ ((?:(?! \])[^\n])*\\\((?:(?! \])[^\n])*) \](?=[ \t]*(?:;|&&|\|\||\n|\Z))")
_TEST = re.compile(r"\[\[\s(?:[^\n]|(?<=\\)\n)*?\s\]\]")
_EQUALS = re.compile(r"\"[^\"]*\"|'[^']*'|(?<=\s)=(?=\s)")


def is_script(text: str) -> bool:
    """Whether the text is more than one command with its arguments: it assigns variables, or says which shell it is."""
    return _SCRIPT.search(text) is not None


def tree_of(text: str, source: str) -> Node:
    """The root of the tree; places to be filled in, as ``<PATH TO DATA>``, are taken as words.

    Raises InputError for a text of more than MOST_CHARACTERS, and where the grammar is not installed.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{source}: has more than {MOST_CHARACTERS:,} characters, which no launch script has")
    try:
        from tree_sitter import Language, Parser
        from tree_sitter_bash import language
    except ImportError:
        raise InputError(
            f"{source}: is a shell script, and reading one takes tree-sitter: pip install tree-sitter tree-sitter-bash"
        ) from None
    return Parser(Language(language())).parse(_plainer(text).encode()).root_node


def _double(test: re.Match[str]) -> str:
    """A test with brackets in it between double brackets."""
    inner = test[1].replace("\\(", "(").replace("\\)", ")")
    return f"[[ {inner.replace(' -a ', ' && ').replace(' -o ', ' || ')} ]]"


def _plainer(text: str) -> str:
    """The script without what the grammar misreads, in as many lines.

    It cannot read tests with ``\\(``, takes = between double brackets for an assignment, which reaches to the end of
    the line, and parts ``$A/$B/$C`` and ``--name=`command` `` into two words.
    """
    text = _BRACKETED.sub(_double, text)
    text = _TEST.sub(lambda test: _EQUALS.sub(lambda sign: "==" if sign[0] == "=" else sign[0], test[0]), text)
    text = _NAMED.sub(lambda name: name["kept"] or f"${{{name[0][1:]}}}", text)
    text = _TICKED.sub(r"$(\1)", text)
    text = _PLACEHOLDER.sub(lambda found: f"_{found[1].replace(' ', '_')}_".replace("'", ""), text)
    while (flat := _NESTED.sub(r"\1(\2)", text)) != text:
        text = flat
    return text.replace("\r\n", "\n")


def text_of(node: Node) -> str:
    """What the script says there."""
    return (node.text or b"").decode(errors="replace")


def kind_of(node: Node) -> str:
    """The grammar's name of it."""
    return str(node.type)
