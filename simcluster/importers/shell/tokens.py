"""Tokens of a launch script: its words as they are written, and the operators between them."""

from __future__ import annotations

import re
from typing import NamedTuple

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^]]*)\])?(\+?)=")
_NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[\d@*#?$!-])")
_ESCAPED = re.compile(r"\$'(?:\\.|[^'\\])*+'?", re.DOTALL)
_OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\|&|&>>?|<<<|<<-?|[<>]\(|>>|>&|<&|>\||[;&|<>()]")
_BRACKETS = {"(": ")", "{": "}", "[": "]"}


class Token(NamedTuple):
    """A word, an operator or the text of ``((...))``, its line, and where it ends."""

    kind: str
    text: str
    line: int
    end: int


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a script, with one more of kind ``end``."""
    lexer = _Lexer(text)
    return [*lexer.tokens(), Token("end", "", lexer.line, len(text))]


def array_words(text: str) -> list[str]:
    """Return the words between the brackets of an array, as written."""
    return [token.text for token in tokens_of(text) if token.kind == "word"]


def piece_end(text: str, place: int, *, quoted: bool = False) -> int:
    """Return where the quotation or expansion that begins at a place ends; ``quoted``: between double quotes."""
    char, after = text[place], text[place + 1 : place + 2]
    if char == "\\":
        return place + 2
    if char == "'":
        return (text.find("'", place + 1) + 1) or len(text)
    if char in '"`':
        place += 1
        while place < len(text) and text[place] != char:
            place = (
                piece_end(text, place, quoted=True) if text[place] in ("\\$`" if char == '"' else "\\") else place + 1
            )
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


class _Lexer:
    """A script and a place in it."""

    def __init__(self, text: str) -> None:
        self._text, self._place, self.line, self._found = text, 0, 1, list[Token]()
        self._test = False
        """Between double brackets, where spaces alone end a word."""
        self._documents: list[int] = []

    def tokens(self) -> list[Token]:
        """Return all of them."""
        text = self._text
        while (place := self._place) < len(text):
            char = text[place]
            if text.startswith("\\\n", place):
                self._skip(place + 2)
            elif char.isspace() and (char != "\n" or self._test):
                self._skip(place + 1)
            elif char == "#" and not self._test:
                self._skip((text.find("\n", place) + 1 or len(text) + 1) - 1)
            elif char == "\n":
                self._add("operator", "\n", place + 1)
                self._read_documents()
            elif self._test:
                self._add("word", "]]", place + 2) if text.startswith("]]", place) else self._word()
            elif text.startswith("((", place):
                end = _closing(text, place)
                self._add("arithmetic", text[place + 2 : end - 2], end)
            elif operator := _OPERATOR.match(text, place):
                self._operator(operator[0])
            else:
                self._word()
            self._test = bool(self._found) and (
                self._found[-1].text == "[[" or (self._test and self._found[-1].text != "]]")
            )
        return self._found

    def _skip(self, end: int) -> None:
        self.line += self._text.count("\n", self._place, end)
        self._place = end

    def _add(self, kind: str, content: str, end: int) -> None:
        self._found.append(Token(kind, content, self.line, end))
        self._skip(end)

    def _operator(self, name: str) -> None:
        if name in ("<(", ">("):
            end = _closing(self._text, self._place + 1)
            self._add("word", self._text[self._place : end], end)
            return
        end = self._place + len(name)
        if name[0] in "<>" and self._found and self._found[-1].end == self._place and self._found[-1].text.isdecimal():
            name = self._found.pop().text + name
        self._documents += [len(self._found)] if name in ("<<", "<<-") else []
        self._add("operator", name, end)

    def _word(self) -> None:
        text, place = self._text, self._place
        while place < len(text):
            char = text[place]
            if char in "\\'\"$`":
                place = piece_end(text, place)
            elif char == "(" and not self._test and ASSIGNMENT.fullmatch(text, self._place, place):
                place = _closing(text, place)
            elif char.isspace() or (char in ";&|<>()" and not self._test):
                break
            else:
                place += 1
        end = min(max(place, self._place + 1), len(text))
        self._add("word", text[self._place : end], end)

    def _read_documents(self) -> None:
        """Read the here-documents of the line above: the operator ``<<`` or ``<<'`` is followed by the body."""
        for number in self._documents:
            operator, *word = self._found[number : number + 2]
            tabs = operator.text == "<<-"
            until = re.sub(r"[\"'\\]", "", word[0].text) if word else ""
            body: list[str] = []
            for line in self._text[self._place :].splitlines(keepends=True):
                line = line.lstrip("\t") if tabs else line
                self._skip(self._text.find("\n", self._place) + 1 or len(self._text))
                if line.rstrip("\n") == until:
                    break
                body.append(line)
            plain = word and word[0].text[:1] in "'\"\\"
            self._found[number] = operator._replace(text="<<'" if plain else "<<")
            self._found[number + 1 : number + 2] = [each._replace(text="".join(body)) for each in word]
        self._documents = []
