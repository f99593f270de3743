"""Parser for the bash subset that launch scripts use; it skips what it cannot read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from simcluster.base.errors import InputError

MAX_CHARACTERS = 200_000
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^]]*)\])?(\+?)=")
_PLACEHOLDER = re.compile(r"<([A-Za-z][A-Za-z0-9_./,'-]*(?: [A-Za-z0-9_./,'-]+)*)>")
_SCRIPT = re.compile(
    r"^#!|^\s*#SBATCH\s|^\s*(?:(?:export|local|declare|readonly)\s+)?[A-Za-z_]\w*\+?=|^(?:if|for|while|case|source)\s"
    r"|^(?:sh|bash|srun|sbatch|nohup|time)\s.*\.(?:sh|slurm|sbatch)\b",
    re.MULTILINE,
)
_NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[\d@*#?$!-])?")
_BLANKS = re.compile(r"(?:[^\S\n]|\\\n)*(?:#.*)?(?:[^\S\n]|\\\n)*")
_REDIRECT = re.compile(r"\d*(?:<<<|<<-?|>>|>&|<&|>\||[<>](?!\())|&>>?")
_OPERATOR = re.compile(rf"{_REDIRECT.pattern}|&&|\|\||;;&?|;&|\|&|[;&|()\n]")
_PLAIN = re.compile(r"[^\\'\"$`\s;&|<>()]+")
_CLOSING_BRACKETS = {"(": ")", "{": "}"}


@dataclass
class Statement:
    """A parsed shell statement, with its words as written and its nested statements."""

    kind: str
    line: int
    words: list[str] = field(default_factory=list)
    parts: list[Statement] = field(default_factory=list)
    redirects: list[tuple[str, str]] = field(default_factory=list)
    """Operator and word of each redirect; ``<<`` has the body, ``<<'`` a body without expansions."""
    text: str = ""
    """Source text of a list."""


def is_script(text: str) -> bool:
    """Return whether a text is a shell script, not one command."""
    return _SCRIPT.search(text) is not None


def parse_script(text: str, source: str) -> Statement:
    """Parse a shell script into statements; placeholders such as ``<PATH TO DATA>`` are words.

    Raises InputError for a text of more than MAX_CHARACTERS.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{source}: longer than {MAX_CHARACTERS:,} characters, so not a launch script; check the path")
    text = _PLACEHOLDER.sub(lambda found: f"_{found[1].replace(' ', '_')}_".replace("'", ""), text)
    try:
        return _ShellParser(text.replace("\r\n", "\n")).parse_statements()
    except RecursionError:
        raise InputError(f"{source}: is nested too deeply to be read; give only the launch command") from None


def split_shell_array(text: str) -> list[str]:
    """Return the words between the brackets of a shell array, as written."""
    parser, found = _ShellParser(text), list[str]()
    while (token := parser.take_token()).kind != "end":
        found += [token.text] if token.kind == "word" else []
    return found


def find_expansion_end(text: str, place: int) -> int:
    """Return the index after the shell quotation or expansion that begins at ``place``."""
    char, after = text[place], text[place + 1 : place + 2]
    if char == "\\":
        return place + 2
    if char == "'":
        return (text.find("'", place + 1) + 1) or len(text)
    if char in '"`':
        place, special = place + 1, "\\$`" if char == '"' else "\\"
        while place < len(text) and text[place] != char:
            place = find_expansion_end(text, place) if text[place] in special else place + 1
        return place + 1
    if after in _CLOSING_BRACKETS:
        return _find_closing_bracket(text, place + 1)
    found = _NAME.match(text, place)
    return found.end() if found else place + 1


def _find_closing_bracket(text: str, place: int) -> int:
    opens, depth = text[place], 0
    while place < len(text):
        char = text[place]
        if char in "\\'\"`$":
            place = find_expansion_end(text, place)
            continue
        if char == "#" and opens == "(" and text[place - 1].isspace():
            place = text.find("\n", place) if "\n" in text[place:] else len(text)
            continue
        depth += (char == opens) - (char == _CLOSING_BRACKETS[opens])
        place += 1
        if depth == 0:
            return place
    return len(text)


class _ShellToken(NamedTuple):
    """A shell token (word, operator, text of ``((...))`` or the end) with its position."""

    kind: str
    text: str
    begin: int
    end: int


class _ShellParser:
    """Recursive-descent parser of a shell script, with its next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._documents: list[tuple[Statement, int]] = []
        """Redirects whose here-documents begin in the next line."""
        self._ended_by = ""
        self._next = self._read_token(0)

    def _read_token(self, place: int) -> _ShellToken:
        text, blank = self._text, _BLANKS.match(self._text, place)
        begin = place = blank.end() if blank else place
        if place == len(text):
            return _ShellToken("end", "", begin, place)
        if text.startswith("((", place):
            end = _find_closing_bracket(text, place)
            return _ShellToken("arithmetic", text[place + 2 : end - 2], begin, end)
        if operator := _OPERATOR.match(text, place):
            return _ShellToken("operator", operator[0], begin, operator.end())
        if text.startswith(("<(", ">("), place):
            place = _find_closing_bracket(text, place + 1)
        while place < len(text):
            if text[place] in "\\'\"$`":
                place = find_expansion_end(text, place)
            elif text[place] == "(" and ASSIGNMENT.fullmatch(text, begin, place):
                place = _find_closing_bracket(text, place)
            elif plain := _PLAIN.match(text, place):
                place = plain.end()
            else:
                break
        place = min(place, len(text))
        return _ShellToken("word", text[begin:place], begin, place)

    def take_token(self) -> _ShellToken:
        """Consume and return the next token, with the here-documents that begin after it."""
        token, place = self._next, self._next.end
        if token.text == "\n":
            for statement, number in self._documents:
                operator, word = statement.redirects[number]
                until, body, line = re.sub(r"[\"'\\]", "", word), "", ""
                while place < len(self._text) and line.rstrip("\n") != until:
                    end = self._text.find("\n", place) + 1 or len(self._text)
                    body, line, place = body + line, self._text[place:end], end
                    line = line.lstrip("\t") if operator == "<<-" else line
                body += line if line.rstrip("\n") != until else ""
                statement.redirects[number] = ("<<'" if word[:1] in "'\"\\" else "<<", body)
            self._documents = []
        self._next = self._read_token(place)
        return token

    def _is_next(self, *texts: str) -> bool:
        return self._next.text in texts and self._next.kind != "end"

    def _take_all(self, *texts: str) -> bool:
        found = self._is_next(*texts)
        while self._is_next(*texts):
            self.take_token()
        return found

    def _new_statement(self, kind: str, *parts: Statement) -> Statement:
        return Statement(kind, self._text.count("\n", 0, self._next.begin) + 1, parts=list(parts))

    def parse_statements(self, *ends: str) -> Statement:
        """Parse shell statements up to one of the words ``ends``, which is consumed."""
        found, begin = self._new_statement("list"), self._next.begin
        while self._next.kind != "end" and not self._is_next(*ends):
            if self._take_all("\n", ";", "&"):
                continue
            before = self._next
            found.parts.append(self._parse_and_or())
            if self._next is before:  # skip a token that is invalid here
                self.take_token()
        found.text = self._text[begin : self._next.begin].strip("; \n")
        self._ended_by = self.take_token().text if ends else ""
        return found

    def _parse_and_or(self) -> Statement:
        found = self._parse_pipeline()
        while self._is_next("&&", "||"):
            kind = self.take_token().text
            self._take_all("\n")
            found = self._new_statement(kind, found, self._parse_pipeline())
        return found

    def _parse_pipeline(self) -> Statement:
        if self._is_next("!"):
            self.take_token()
            return self._new_statement("not", self._parse_pipeline())
        found = self._new_statement("pipeline", self._parse_command())
        while self._is_next("|", "|&"):
            self.take_token()
            self._take_all("\n")
            found.parts.append(self._parse_command())
        return found if len(found.parts) > 1 else found.parts[0]

    def _parse_command(self) -> Statement:
        token, found = self._next, self._new_statement("command")
        if token.kind == "arithmetic":
            found.kind, found.words = token.kind, [self.take_token().text]
        elif token.kind == "word" and re.compile(r"[ \t]*\([ \t]*\)").match(self._text, token.end):
            self._parse_function(found)
        elif token.text in ("(", "{", "if", "while", "until", "for", "case", "function", "[["):
            found.kind = self.take_token().text
            self._parse_compound(found)
        while self._next.kind == "word" or _REDIRECT.match(self._next.text):
            token = self._next
            if token.kind == "word" and found.kind != "command":
                break
            if self.take_token().kind == "word":
                found.words.append(token.text)
            elif self._next.kind == "word":
                self._documents += [(found, len(found.redirects))] if token.text in ("<<", "<<-") else []
                found.redirects.append((token.text, self.take_token().text))
        return found

    def _parse_compound(self, found: Statement) -> None:
        match found.kind:
            case "(" | "{":
                found.parts = [self.parse_statements(")" if found.kind == "(" else "}")]
            case "[[":
                while self._next.kind != "end" and (word := self.take_token().text) != "]]":
                    found.words += [word] if word != "\n" else []
            case "if":  # alternating conditions and bodies, then the body of else
                end = "elif"
                while end == "elif":
                    found.parts += [self.parse_statements("then", "fi"), self.parse_statements("elif", "else", "fi")]
                    end = self._ended_by
                found.parts += [self.parse_statements("fi")] if end == "else" else []
            case "while" | "until":
                found.parts = [self.parse_statements("do", "done"), self.parse_statements("done")]
            case "for":  # the first word is the variable; without others it loops over "$@"
                while self._next.kind != "end" and not self._is_next("do", ";", "\n", "done"):
                    found.words.append(self.take_token().text)
                self._take_all(";", "\n", "do")
                found.parts = [self.parse_statements("done")]
            case "case":
                found.words = [self.take_token().text]
                self._take_all("\n", "in")
                self._ended_by = ""
                while self._next.kind != "end" and self._ended_by != "esac" and not self._take_all("esac"):
                    patterns: list[str] = []
                    while self._next.kind != "end" and not self._is_next(")", "esac"):
                        patterns += [token.text] if (token := self.take_token()).kind == "word" else []
                    self._take_all(")")
                    found.parts.append(self.parse_statements(";;", ";&", ";;&", "esac"))
                    found.parts[-1].words = patterns
                    self._take_all("\n")
            case _:
                self._parse_function(found)

    def _parse_function(self, found: Statement) -> None:
        found.kind, found.words = "function", [self.take_token().text]
        self._take_all("(", ")", "\n")
        found.parts = [self._parse_command()]
