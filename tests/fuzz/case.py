"""One input of the fuzzer, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

BEGUN = 1.0
"""The estimate in seconds up to which a scenario is begun: what takes 10 s nevertheless, no estimate foresaw.

A week plays several steps, each begun by its own estimate.
"""


@dataclass(frozen=True)
class Case:
    """Files by name, and the command that reads them, run in their folder.

    ``call`` names a function of ``calls`` that is given the files instead of a command line (requests of the studio).
    """

    argv: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    call: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a case: its status, processor seconds, most memory in MB, and what is wrong with it."""

    kind: str
    number: int
    status: int
    seconds: float
    megabytes: float
    wrong: str
    told: str
    """What it wrote on stderr: the message."""
