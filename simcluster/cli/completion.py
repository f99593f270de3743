"""simcluster completion: a script for bash, zsh or fish that completes what is typed.

The script asks this command again at every TAB, with the line so far; ``completing`` has the answers.
"""

from __future__ import annotations

import argparse
import re

_BASH = r"""
_simcluster() {
    local IFS=$'\n'
    COMPREPLY=($(command simcluster completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o nospace -F _simcluster simcluster
"""
_ZSH = r"""
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_simcluster() {
    local -a found open whole
    local line="${(j: :)words[1,CURRENT-1]} $QIPREFIX$PREFIX" none=1
    found=("${(@f)$(command simcluster completion zsh --line "$line" 2>/dev/null)}")
    open=(${(M)found:#*[/=.,]})
    whole=(${found:#*[/=.,]})
    (( $#open )) && compadd -Q -S '' -- $open && none=0
    (( $#whole )) && compadd -Q -- $whole && none=0
    return none
}
compdef _simcluster simcluster
"""
_FISH = r"""
function __simcluster
    command simcluster completion fish --line (commandline -cp | string collect) 2>/dev/null
end
complete -c simcluster -f -a '(__simcluster)'
"""
_SPECIAL = re.compile(r"[^\w@%+=:,./~-]")
"""Characters that mean something to a shell."""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run(args: argparse.Namespace) -> None:
    """Print the script, or what could come next."""
    from simcluster.cli import common
    from simcluster.cli.outputs import write_json

    if args.line is None:
        script = _SCRIPTS[args.shell].lstrip()
        common.answer(args, lambda: script.removesuffix("\n"), lambda: {"shell": args.shell, "script": script})
        return
    from simcluster.cli.completing import answers

    found = answers(args.line)
    if args.json:
        write_json(args.json, found)
    if args.json != "-":
        print("".join(f"{each}\n" for each in _for(args.shell, found, args.line)), end="")


def _for(shell: str, found: list[str], line: str) -> list[str]:
    """Answers as a shell wants them.

    fish escapes what it inserts itself; the others insert what they are given, and all of them close a quote. bash
    replaces only what stands behind the last = or : of a word (COMP_WORDBREAKS), and is told to add no space of its
    own; so it gets one where a word is complete.
    """
    from simcluster.cli.completing import open_quote

    found = [each for each in found if each.isprintable()]  # answers are lines, with a description behind a tab
    if shell == "fish" or open_quote(line):
        return found
    found = [_SPECIAL.sub(r"\\\g<0>", each) for each in found]
    if shell == "zsh":
        return found
    word = line.rpartition(" ")[2]
    kept = max(word.rfind("="), word.rfind(":")) + 1
    return [each[kept:] if each.endswith(("/", "=", ".", ",")) else f"{each[kept:]} " for each in found]
