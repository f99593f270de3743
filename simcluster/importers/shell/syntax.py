"""Statements of a launch script: a parser for the bash that they use, which skips what it cannot read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from simcluster.base.errors import InputError

MOST_CHARACTERS = 200_000
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^]]*)\])?(\+?)=")
_PLACEHOLDER = re.compile(r"<([A-Za-z][A-Za-z0-9_./,'-]*(?: [A-Za-z0-9_./,'-]+)*)>")
_SCRIPT = re.compile(
    r"^#!|^\s*#SBATCH\s|^\s*(?:(?:export|local|declare|readonly)\s+)?[A-Za-z_]\w*\+?=|^(?:if|for|while|case|source)\s"
    r"|^(?:sh|bash|srun|sbatch|nohup|time)\s.*\.(?:sh|slurm|sbatch)\b",
    re.MULTILINE,
)
_NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[\d@*#?$!-])")
_ESCAPED = re.compile(r"\$'(?:\\.|[^'\\])*+'?", re.DOTALL)
_BLANK, _BLANK_IN_TEST = re.compile(r"(?:[^\S\n]|\\\n)*(?:#.*)?(?:[^\S\n]|\\\n)*"), re.compile(r"(?:\s|\\\n)*")
_REDIRECT = re.compile(r"\d*(?:<<<|<<-?|>>|>&|<&|>\||[<>](?!\())|&>>?")
_OPERATOR = re.compile(rf"{_REDIRECT.pattern}|&&|\|\||;;&?|;&|\|&|[;&|()\n]")
_PLAIN = re.compile(r"[^\\'\"$`\s;&|<>()]+")
_BRACKETS = {"(": ")", "{": "}", "[": "]"}


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
    """Of a list: its text, and the word that ends it."""


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


def array_words(text: str) -> list[str]:
    """Return the words between the brackets of an array, as written."""
    parser, found = _Parser(text), list[str]()
    while (token := parser.take()).kind != "end":
        found += [token.text] if token.kind == "word" else []
    return found


def piece_end(text: str, place: int, *, quoted: bool = False) -> int:
    """Return where the quotation or expansion that begins at a place ends; ``quoted``: between double quotes."""
    char, after = text[place], text[place + 1 : place + 2]
    if char == "\\":
        return place + 2
    if char == "'":
        return (text.find("'", place + 1) + 1) or len(text)
    if char in '"`':
        place, special = place + 1, "\\$`" if char == '"' else "\\"
        while place < len(text) and text[place] != char:
            place = piece_end(text, place, quoted=True) if text[place] in special else place + 1
        return place + 1
    if after in ("(", "{", "["):
        return _closing(text, place + 1)
    found = (_NAME if after != "'" or quoted else _ESCAPED).match(text, place)
    return found.end() if found else place + 1


def _closing(text: str, place: int) -> int:
    """Return the place after the bracket that closes the one at a place."""
    opens, depth = text[place], 0
    while place < len(text):
        char = text[place]
        if char in "\\'\"`$":
            place = piece_end(text, place)
            continue
        if char == "#" and opens == "(" and text[place - 1].isspace():
            place = text.find("\n", place) if "\n" in text[place:] else len(text)
            continue
        depth += (char == opens) - (char == _BRACKETS[opens])
        place += 1
        if depth == 0:
            return place
    return len(text)


class _Token(NamedTuple):
    """A word, an operator, the text of ``((...))`` or the end, and where it begins and ends."""

    kind: str
    text: str
    begin: int
    end: int


class _Parser:
    """A script, and a place in it."""

    def __init__(self, text: str) -> None:
        self._text, self._place, self._seen = text, 0, dict[tuple[int, bool], _Token]()
        self._documents: list[tuple[Statement, int]] = []
        """Redirects whose bodies begin in the next line."""

    def _peek(self, *, test: bool = False) -> _Token:
        """Return the token at the place; ``test``: between double brackets, where spaces alone end a word."""
        if (token := self._seen.get((self._place, test))) is None:
            token = self._seen[self._place, test] = self._token(test=test)
        return token

    def _token(self, *, test: bool) -> _Token:
        text, blank = self._text, (_BLANK_IN_TEST if test else _BLANK).match(self._text, self._place)
        begin = place = blank.end() if blank else self._place
        if place == len(text):
            return _Token("end", "", begin, place)
        if test and text.startswith("]]", place):
            return _Token("word", "]]", begin, place + 2)
        if not test and text.startswith("((", place):
            end = _closing(text, place)
            return _Token("arithmetic", text[place + 2 : end - 2], begin, end)
        if not test and (operator := _OPERATOR.match(text, place)):
            return _Token("operator", operator[0], begin, operator.end())
        if text.startswith(("<(", ">("), place) and not test:
            place = _closing(text, place + 1)
        while place < len(text):
            char = text[place]
            if char in "\\'\"$`":
                place = piece_end(text, place)
            elif char == "(" and not test and ASSIGNMENT.fullmatch(text, begin, place):
                place = _closing(text, place)
            elif plain := _PLAIN.match(text, place):
                place = plain.end()
            elif test and not char.isspace():
                place += 1
            else:
                break
        place = min(place, len(text))
        return _Token("word", text[begin:place], begin, place)

    def take(self, *, test: bool = False) -> _Token:
        """Return the token at the place and pass it, with the here-documents that begin behind it."""
        token = self._peek(test=test)
        self._place = token.end
        if token.text == "\n":
            for statement, number in self._documents:
                statement.redirects[number] = self._document(*statement.redirects[number])
            self._documents = []
        return token

    def _document(self, operator: str, word: str) -> tuple[str, str]:
        """Return ``<<``, or ``<<'`` where nothing is expanded, and the body of a here-document."""
        until, body = re.sub(r"[\"'\\]", "", word), list[str]()
        while self._place < len(self._text):
            end = self._text.find("\n", self._place) + 1 or len(self._text)
            line, self._place = self._text[self._place : end], end
            line = line.lstrip("\t") if operator.endswith("-") else line
            if line.rstrip("\n") == until:
                break
            body.append(line)
        return "<<'" if word[:1] in "'\"\\" else "<<", "".join(body)

    def _at(self, *texts: str) -> bool:
        token = self._peek()
        return token.text in texts and token.kind != "end"

    @property
    def _ended(self) -> bool:
        return self._peek().kind == "end"

    def _take_all(self, *texts: str) -> None:
        while self._at(*texts):
            self.take()

    def _statement(self, kind: str, *parts: Statement) -> Statement:
        return Statement(kind, self._text.count("\n", 0, self._peek().begin) + 1, parts=list(parts))

    def statements(self, *ends: str) -> Statement:
        """Return the statements up to one of these words, which is taken."""
        found, begin = self._statement("list"), self._peek().begin
        while not self._ended and not self._at(*ends):
            if self._at("\n", ";", "&"):
                self.take()
                continue
            before = self._place
            found.parts.append(self._joined())
            if self._place == before:  # what has no meaning here
                self.take()
        found.text = self._text[begin : self._place].strip("; \n")
        found.end = self.take().text if ends else ""
        return found

    def _joined(self) -> Statement:
        found = self._pipeline()
        while self._at("&&", "||"):
            kind = self.take().text
            self._take_all("\n")
            found = self._statement(kind, found, self._pipeline())
        return found

    def _pipeline(self) -> Statement:
        if self._at("!"):
            self.take()
            return self._statement("not", self._pipeline())
        found = self._statement("pipeline", self._command())
        while self._at("|", "|&"):
            self.take()
            self._take_all("\n")
            found.parts.append(self._command())
        return found if len(found.parts) > 1 else found.parts[0]

    def _command(self) -> Statement:
        token, found = self._peek(), self._statement("command")
        if token.kind == "arithmetic":
            found.kind, found.words = token.kind, [self.take().text]
        elif token.kind == "word" and re.compile(r"[ \t]*\([ \t]*\)").match(self._text, token.end):
            self._function(found)
        elif token.text in ("(", "{", "if", "while", "until", "for", "case", "function", "[["):
            found.kind = self.take().text
            self._compound(found)
        while (kind := self._peek().kind) == "word" or (kind == "operator" and _REDIRECT.match(self._peek().text)):
            if kind == "operator":
                self._redirect(found)
            elif found.kind == "command":
                found.words.append(self.take().text)
            else:
                break
        return found

    def _redirect(self, found: Statement) -> None:
        operator = self.take().text
        if self._peek().kind == "word":
            self._documents += [(found, len(found.redirects))] if operator in ("<<", "<<-") else []
            found.redirects.append((operator, self.take().text))

    def _compound(self, found: Statement) -> None:
        match found.kind:
            case "(" | "{":
                found.parts = [self.statements(")" if found.kind == "(" else "}")]
            case "[[":
                while self._peek(test=True).kind != "end" and (word := self.take(test=True).text) != "]]":
                    found.words.append(word)
            case "if":  # conditions and bodies in turn, and the body of else
                end = "elif"
                while end == "elif":
                    found.parts += [self.statements("then", "fi"), self.statements("elif", "else", "fi")]
                    end = found.parts[-1].end
                found.parts += [self.statements("fi")] if end == "else" else []
            case "while" | "until":
                found.parts = [self.statements("do", "done"), self.statements("done")]
            case "for":  # its words begin with the variable; none but that mean the arguments of the script
                found.kind = "counted" if self._peek().kind == "arithmetic" else "for"
                while not self._ended and not self._at("do", ";", "\n", "done"):
                    found.words.append(self.take().text)
                self._take_all(";", "\n", "do")
                found.parts = [self.statements("done")]
            case "case":
                self._case(found)
            case _:
                self._function(found)

    def _case(self, found: Statement) -> None:
        found.words = [self.take().text]
        self._take_all("\n", "in")
        while not self._ended and not self._at("esac"):
            patterns: list[str] = []
            while not self._ended and not self._at(")", "esac"):
                patterns += [token.text] if (token := self.take()).kind == "word" else []
            self._take_all(")")
            found.patterns.append(patterns)
            found.parts.append(self.statements(";;", ";&", ";;&", "esac"))
            if found.parts[-1].end == "esac":
                return
            self._take_all("\n")
        self._take_all("esac")

    def _function(self, found: Statement) -> None:
        found.kind, found.words = "function", [self.take().text]
        self._take_all("(", ")", "\n")
        found.parts = [self._command()]
