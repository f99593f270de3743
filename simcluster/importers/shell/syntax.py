"""Statements of a launch script: a parser for the bash that they use, which skips what it cannot read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from simcluster.base.errors import InputError
from simcluster.importers.shell.tokens import Token, tokens_of

MOST_CHARACTERS = 200_000
_PLACEHOLDER = re.compile(r"<([A-Za-z][A-Za-z0-9_./,'-]*(?: [A-Za-z0-9_./,'-]+)*)>")
_SCRIPT = re.compile(
    r"^#!|^\s*#SBATCH\s|^\s*(?:(?:export|local|declare|readonly)\s+)?[A-Za-z_]\w*\+?=|^(?:if|for|while|case|source)\s"
    r"|^(?:sh|bash|srun|sbatch|nohup|time)\s.*\.(?:sh|slurm|sbatch)\b",
    re.MULTILINE,
)
_REDIRECT = re.compile(r"\d*[<>]|&>")


@dataclass
class Statement:
    """A statement: its words as written, the statements in it, and the patterns of a case's branches."""

    kind: str
    line: int
    words: list[str] = field(default_factory=list)
    parts: list[Statement] = field(default_factory=list)
    patterns: list[list[str]] = field(default_factory=list)
    redirects: list[tuple[str, str]] = field(default_factory=list)
    """Operator and word of each; ``<<`` with the body, ``<<'`` where nothing in the body is expanded."""
    text: str = ""
    end: str = ""
    """Of a list: its tokens, and the word that ends it."""


def is_script(text: str) -> bool:
    """Return whether the text is more than one command: it assigns variables, or names its shell."""
    return _SCRIPT.search(text) is not None


def parse(text: str, source: str) -> Statement:
    """Return the statements of a script; places to fill in, as ``<PATH TO DATA>``, are words.

    Raises InputError for a text of more than MOST_CHARACTERS.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{source}: has more than {MOST_CHARACTERS:,} characters, which no launch script has")
    text = _PLACEHOLDER.sub(lambda found: f"_{found[1].replace(' ', '_')}_".replace("'", ""), text)
    try:
        return _Parser(text.replace("\r\n", "\n")).statements()
    except RecursionError:
        raise InputError(f"{source}: is nested too deeply to be read; give the command alone") from None


class _Parser:
    """The tokens of a script, which end with one of its own kind, and a place in them."""

    def __init__(self, text: str) -> None:
        self._tokens, self._place = tokens_of(text), 0

    def _at(self, *texts: str) -> bool:
        return self._next.text in texts and self._next.kind != "end"

    @property
    def _next(self) -> Token:
        return self._tokens[self._place]

    @property
    def _ended(self) -> bool:
        return self._next.kind == "end"

    def _take(self) -> str:
        text = self._next.text
        self._place += not self._ended
        return text

    def _take_all(self, *texts: str) -> None:
        while self._at(*texts):
            self._place += 1

    def _statement(self, kind: str, *parts: Statement) -> Statement:
        return Statement(kind, self._next.line, parts=list(parts))

    def statements(self, *ends: str) -> Statement:
        """Return the statements up to one of these words, which is taken."""
        found, begin = self._statement("list"), self._place
        while not self._ended and not self._at(*ends):
            if self._at("\n", ";", "&"):
                self._place += 1
                continue
            before = self._place
            found.parts.append(self._joined())
            if self._place == before:  # what has no meaning here
                self._place += 1
        found.text = " ".join(token.text for token in self._tokens[begin : self._place]).strip("; \n")
        found.end = self._take() if ends else ""
        return found

    def _joined(self) -> Statement:
        found = self._pipeline()
        while self._at("&&", "||"):
            kind = self._take()
            self._take_all("\n")
            found = self._statement(kind, found, self._pipeline())
        return found

    def _pipeline(self) -> Statement:
        if self._at("!"):
            self._place += 1
            return self._statement("not", self._pipeline())
        found = self._statement("pipeline", self._command())
        while self._at("|", "|&"):
            self._place += 1
            self._take_all("\n")
            found.parts.append(self._command())
        return found if len(found.parts) > 1 else found.parts[0]

    def _command(self) -> Statement:
        readers = {
            "(": self._group, "{": self._group, "if": self._if, "while": self._while, "until": self._while,
            "for": self._for, "select": self._for, "case": self._case, "function": self._function, "[[": self._test,
        }  # fmt: skip
        following = [token.text for token in self._tokens[self._place + 1 : self._place + 3]]
        if self._next.kind == "arithmetic":
            found = self._statement("arithmetic")
            found.words = [self._take()]
        elif self._next.kind == "word" and following == ["(", ")"]:
            found = self._statement("function")
            self._function(found)
        elif self._next.text in readers:
            found = self._statement(self._next.text)
            readers[self._take()](found)
        else:
            found = self._statement("command")
            while self._next.kind == "word" or (self._next.kind == "operator" and _REDIRECT.match(self._next.text)):
                self._redirect(found)
                while self._next.kind == "word":
                    found.words.append(self._take())
        self._redirect(found)
        return found

    def _redirect(self, found: Statement) -> None:
        while self._next.kind == "operator" and _REDIRECT.match(self._next.text):
            operator = self._take()
            if self._next.kind == "word":
                found.redirects.append((operator, self._take()))

    def _group(self, found: Statement) -> None:
        found.parts = [self.statements(")" if found.kind == "(" else "}")]

    def _if(self, found: Statement) -> None:
        """Conditions and bodies in turn, and the body of else."""
        end = "elif"
        while end == "elif":
            found.parts += [self.statements("then", "fi"), self.statements("elif", "else", "fi")]
            end = found.parts[-1].end
        if end == "else":
            found.parts.append(self.statements("fi"))

    def _while(self, found: Statement) -> None:
        found.parts = [self.statements("do", "done"), self.statements("done")]

    def _for(self, found: Statement) -> None:
        """Return the words begin with the variable; none but that mean the arguments of the script."""
        found.kind = "counted" if self._next.kind == "arithmetic" else "for"
        while not self._ended and not self._at("do", ";", "\n", "done"):
            found.words.append(self._take())
        self._take_all(";", "\n", "do")
        found.parts = [self.statements("done")]

    def _case(self, found: Statement) -> None:
        found.words = [self._take()]
        self._take_all("\n", "in")
        while not self._ended and not self._at("esac"):
            patterns: list[str] = []
            while not self._ended and not self._at(")", "esac"):
                patterns += [self._next.text] if self._next.kind == "word" else []
                self._place += 1
            self._take_all(")")
            found.patterns.append(patterns)
            found.parts.append(self.statements(";;", ";&", ";;&", "esac"))
            if found.parts[-1].end == "esac":
                return
            self._take_all("\n")
        self._take_all("esac")

    def _function(self, found: Statement) -> None:
        found.words = [self._take()]
        self._take_all("(", ")", "\n")
        found.parts = [self._command()]

    def _test(self, found: Statement) -> None:
        while not self._ended and not self._at("]]"):
            found.words.append(self._take())
        self._take()
