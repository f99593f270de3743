"""What every refusal has: what is wrong, where, the rule, and what would work; and whose words it is told in.

A rule of thumb that can fail, not a judge: a message is held to words that name a place, quote what was found, state
what holds, and tell somebody to do something.
"""

from __future__ import annotations

import re

_PLACE = re.compile(
    r"(?:\.(?:ya?ml|json|jsonl|csv|parquet|log|xml|txt|toml|sh|py|et|gz|sqlite|rows|store|graphml|ibnetdiscover|html)\b)"
    r"|--?[a-z][\w.-]*|<text>|<stdin>|override|\b\w+\.\w+[:\s]|^[\w .+-]+:|^(?:row|event|step|schedule|stage"
    r"|profile|trace) "
)
_FOUND = re.compile(
    r"'[^']*'|\"[^\"]*\"|\d|\bgot\b|missing|required|empty|no such|cannot|\bis (?:a|an|no|not|the|in|on|of)\b"
    r"|\bhas (?:no|a)\b"
    r"|\b(?:holds|there (?:is|are) no|without|does not|nothing|both|unknown|nested|damaged|stands|unexpected)\b"
)
_RULE = re.compile(
    r"\b(?:must|needs?|required|known|written as|expected|not supported|not valid|cannot|can(?:not)?|only"
    r"|at most|at least|has to|have to"
    r"|is (?:a|an|no|not|in|one|the|needed|another)|are (?:a|in|not|no|needed|called)|holds?|there (?:is|are)"
    r"|unknown|multiple|takes?|larger"
    r"|does not|do not|did not|different|differ|both|is for|each|every|nested|same|equal|no such|stands?"
    r"|one of|once|twice|has (?:no|\d)|names)\b"
)
_REMEDY = re.compile(
    r"\b(?:write|use|name|give|did you mean|as in|see|choose|delete|set|add|leave|put|save|make|run|keep|take"
    r"|try|indent|join|begin|count"
    r"|close|align|build|remove|raise|lower|change|export|record|copy|split|install|read|start|create|swap|mend|measure)\b"
    r"|\b(?:known|known keys|shipped|near it|YAML files there): |; it has |, and it has |there are "
    r"|the columns are |are written as"
    r"|must be [^;]* or |must be a whole number from|is expected"
)
_OTHERS = re.compile(
    r"Input should|mapping values are not allowed here|while (?:parsing|scanning)|expected <|Expecting "
    r"|invalid literal|C error|[Tt]hrift"
    r"|not well-formed|the following arguments are required|argument --|invalid (?:int|float) value|[Pp]ydantic"
    r"|Traceback|object is not|codec can"
    r"|validation error|value_error|NoneType|KeyError|IndexError|TypeError|deserialize"
)


def missing_points(message: str) -> list[str]:
    """Which of the four points a refusal lacks, and whose words stand in it that are not ours."""
    text = message.removeprefix("simcluster: error: ").strip()
    lacks = [
        name
        for name, rule in (("where", _PLACE), ("what", _FOUND), ("rule", _RULE), ("what would work", _REMEDY))
        if not rule.search(text)
    ]
    return lacks + [f"words of another program: {found[0]}" for found in _OTHERS.finditer(text)]
