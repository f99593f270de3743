"""What every refusal has: what is wrong, where, the rule, and what would work; and whose words it is told in.

A rule of thumb that can fail, not a judge: a message is held to words that name a place, quote what was found, state
what holds, and tell somebody to do something.
"""

from __future__ import annotations

import re


def _any(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts))


_ENDINGS = "yaml yml json jsonl csv parquet log xml txt toml sh py et gz sqlite rows store graphml ibnetdiscover html"
_PLACE = _any(
    rf"\.(?:{'|'.join(_ENDINGS.split())})\b",
    r"--?[a-z][\w.-]*",  # an option
    r"\b\w+\.\w+[:\s]|^[\w .+-]+:",  # a key
    r"<text>|<stdin>|of the studio|\boverride\b",
    r"^(?:row|event|step|schedule|stage|profile|trace) ",
)
_FOUND = _any(
    r"'[^']*'|\"[^\"]*\"|\d",
    r"\b(?:got|missing|required|empty|no such|cannot|holds|without|does not|is for|fails|failed|nothing|both)\b",
    r"\b(?:twice|overflows)\b",
    r"\b(?:unknown|nested|stands|unexpected|is (?:a|an|no|not|the|in|on|of)|has (?:no|a)|there (?:is|are) no)\b",
)
_RULE = _any(
    r"\b(?:must|needs?|required|known|written as|not supported|not valid|can|cannot|only|at most|at least)\b",
    r"\b(?:has to|have to|holds?|there (?:is|are)|unknown|multiple|takes?|(?:does|do|did) not|different|differ)\b",
    r"\b(?:both|is for|each|every|nested|same|equal|no such|stands?|one of|once|twice|has (?:no|\d))\b",
    r"\bis (?:a|an|no|not|in|one|the|needed|another)\b|\bare (?:a|in|not|no|needed|called)\b",
)
_BEGINS = r"(?:^|[;:,(.?] |\n\s*|\b(?:or|and|to|then|first|instead|so) )"
"""Before what somebody is told to do, which begins a part of a sentence: "what is set" and "cannot use" are none."""
_REMEDY = _any(
    _BEGINS
    + r"(?:write|use|name|give|did you mean|as in|see|choose|delete|set|add|leave|put|save|make|run|keep|take|try)\b",
    _BEGINS + r"list\b",
    _BEGINS + r"(?:indent|join|begin|count|close|align|build|remove|raise|lower|change|export|copy|split|read)\b",
    _BEGINS + r"(?:start|create|swap|mend|measure|skip|simulate)\b|\b[Rr]ecord (?:it|them|all|with|again|or)\b",
    r"\b(?:known|known keys|built-in|shipped|ship|near it|YAML files there): |; it has |, and it has |there are ",
    r"the columns are |are written as|is expected|must be [^;]* or |must be a (?:whole )?number from",
)
_OTHERS = _any(
    r"Input should|mapping values are not allowed here|while (?:parsing|scanning)|expected <|validation error",
    r"Expecting |not well-formed|[Tt]hrift|deserialize|C error|codec can",
    r"the following arguments are required|argument --|invalid (?:int|float) value",  # argparse's
    r"invalid literal|object is not|Traceback|NoneType|KeyError|IndexError|TypeError|value_error|[Pp]ydantic",
)
_ITS_AUTHORS = re.compile(r"((?:failed|cannot run \S+): )\w+: [^;]*")
"""What code of the user's own raised, in its words."""


def missing_points(message: str) -> list[str]:
    """Which of the four points a refusal lacks, and whose words stand in it that are not ours."""
    text = message.removeprefix("simcluster: error: ").strip()
    text = _ITS_AUTHORS.sub(r"\1", text)
    points = (("where", _PLACE), ("what", _FOUND), ("rule", _RULE), ("what would work", _REMEDY))
    lacks = [name for name, rule in points if not rule.search(text)]
    return lacks + [f"words of another program: {found[0]}" for found in _OTHERS.finditer(text)]
