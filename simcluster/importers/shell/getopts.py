"""``getopts``: a script's arguments one letter after the other."""

from __future__ import annotations

from simcluster.importers.shell.state import State, joined


def next_option(words: list[str], state: State) -> bool:
    """Reads the next option into the variable that is named, and its value into OPTARG; whether there is one."""
    if len(words) < 2:
        return False
    letters, name, *given = words
    arguments = given or state.positional
    place = int(joined(state.variables.get("OPTIND") or "1"))
    inside = int(joined(state.variables.get("OPTIND[]") or "1"))
    word = arguments[place - 1] if place <= len(arguments) else ""
    if not word.startswith("-") or word in ("-", "--"):
        state.put(name, "?")
        return False
    letter, rest = word[inside], word[inside + 1 :]
    takes = f"{letter}:" in letters
    value = (rest or (arguments[place] if place < len(arguments) else "")) if takes else ""
    place += 1 if (takes and rest) or (not takes and not rest) else 2 if takes else 0
    state.put("OPTIND", str(place))
    state.put("OPTIND[]", str(inside + 1) if rest and not takes else "1")
    state.put("OPTARG", value)
    state.put(name, letter if letter in letters and letter != ":" else "?")
    return True
