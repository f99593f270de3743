"""Parser for the bash subset that launch scripts use; it skips syntax that it does not know."""

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
class ShellStatement:
    """A parsed shell statement, with its unexpanded words and its nested statements."""

    kind: str
    line: int
    words: list[str] = field(default_factory=list)
    parts: list[ShellStatement] = field(default_factory=list)
    redirects: list[tuple[str, str]] = field(default_factory=list)
    """Operator and word of each redirect; ``<<`` has the body, ``<<'`` a body without expansions."""
    text: str = ""
    """Source text of a list."""


def is_shell_script(text: str) -> bool:
    """Return whether a text is a shell script, rather than a single command."""
    return _SCRIPT.search(text) is not None


def parse_shell_script(text: str, source: str) -> ShellStatement:
    """Parse a shell script into statements; placeholders such as ``<PATH TO DATA>`` are parsed as words.

    Raises InputError for a text of more than MAX_CHARACTERS.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{source}: longer than {MAX_CHARACTERS:,} characters, the limit; check the path")
    text = _PLACEHOLDER.sub(lambda found: f"_{found[1].replace(' ', '_')}_".replace("'", ""), text)
    try:
        return _ShellParser(text.replace("\r\n", "\n")).parse_statements()
    except RecursionError:
        raise InputError(f"{source}: is nested too deeply to be read; give only the launch command") from None


def split_shell_array(text: str) -> list[str]:
    """Return the unexpanded words between the brackets of a shell array."""
    parser, found = _ShellParser(text), list[str]()
    while (token := parser.take_token()).kind != "end":
        found += [token.text] if token.kind == "word" else []
    return found


def find_expansion_end(text: str, start: int) -> int:
    """Return the index just after the quoted text or expansion that begins at index ``start``."""
    char, after = text[start], text[start + 1 : start + 2]
    if char == "\\":
        return start + 2
    if char == "'":
        return (text.find("'", start + 1) + 1) or len(text)
    if char in '"`':
        start, special = start + 1, "\\$`" if char == '"' else "\\"
        while start < len(text) and text[start] != char:
            start = find_expansion_end(text, start) if text[start] in special else start + 1
        return start + 1
    if after in _CLOSING_BRACKETS:
        return _find_closing_bracket(text, start + 1)
    found = _NAME.match(text, start)
    return found.end() if found else start + 1


def _find_closing_bracket(text: str, start: int) -> int:
    opens, depth = text[start], 0
    while start < len(text):
        char = text[start]
        if char in "\\'\"`$":
            start = find_expansion_end(text, start)
            continue
        if char == "#" and opens == "(" and text[start - 1].isspace():
            start = text.find("\n", start) if "\n" in text[start:] else len(text)
            continue
        depth += (char == opens) - (char == _CLOSING_BRACKETS[opens])
        start += 1
        if depth == 0:
            return start
    return len(text)


class _ShellToken(NamedTuple):
    """A shell token with its position: a word, an operator, the text of ``((...))``, or the end."""

    kind: str
    text: str
    begin: int
    end: int


class _ShellParser:
    """Recursive-descent parser of shell scripts, with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._documents: list[tuple[ShellStatement, int]] = []
        """Redirects whose here-documents begin in the next line."""
        self._ended_by = ""
        self._next = self._read_token(0)

    def _read_token(self, start: int) -> _ShellToken:
        text, blank = self._text, _BLANKS.match(self._text, start)
        begin = start = blank.end() if blank else start
        if start == len(text):
            return _ShellToken("end", "", begin, start)
        if text.startswith("((", start):
            end = _find_closing_bracket(text, start)
            return _ShellToken("arithmetic", text[start + 2 : end - 2], begin, end)
        if operator := _OPERATOR.match(text, start):
            return _ShellToken("operator", operator[0], begin, operator.end())
        if text.startswith(("<(", ">("), start):
            start = _find_closing_bracket(text, start + 1)
        while start < len(text):
            if text[start] in "\\'\"$`":
                start = find_expansion_end(text, start)
            elif text[start] == "(" and ASSIGNMENT.fullmatch(text, begin, start):
                start = _find_closing_bracket(text, start)
            elif plain := _PLAIN.match(text, start):
                start = plain.end()
            else:
                break
        start = min(start, len(text))
        return _ShellToken("word", text[begin:start], begin, start)

    def take_token(self) -> _ShellToken:
        """Consume and return the next token; also read the here-documents that the token opens."""
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

    def _next_token_is(self, *texts: str) -> bool:
        return self._next.text in texts and self._next.kind != "end"

    def _skip_tokens(self, *texts: str) -> bool:
        found = self._next_token_is(*texts)
        while self._next_token_is(*texts):
            self.take_token()
        return found

    def _new_statement(self, kind: str, *parts: ShellStatement) -> ShellStatement:
        return ShellStatement(kind, self._text.count("\n", 0, self._next.begin) + 1, parts=list(parts))

    def parse_statements(self, *ends: str) -> ShellStatement:
        """Parse shell statements up to one of the words ``ends``, and consume that word."""
        found, begin = self._new_statement("list"), self._next.begin
        while self._next.kind != "end" and not self._next_token_is(*ends):
            if self._skip_tokens("\n", ";", "&"):
                continue
            before = self._next
            found.parts.append(self._parse_and_or())
            if self._next is before:  # skip a token that is invalid here
                self.take_token()
        found.text = self._text[begin : self._next.begin].strip("; \n")
        self._ended_by = self.take_token().text if ends else ""
        return found

    def _parse_and_or(self) -> ShellStatement:
        found = self._parse_pipeline()
        while self._next_token_is("&&", "||"):
            kind = self.take_token().text
            self._skip_tokens("\n")
            found = self._new_statement(kind, found, self._parse_pipeline())
        return found

    def _parse_pipeline(self) -> ShellStatement:
        if self._next_token_is("!"):
            self.take_token()
            return self._new_statement("not", self._parse_pipeline())
        found = self._new_statement("pipeline", self._parse_command())
        while self._next_token_is("|", "|&"):
            self.take_token()
            self._skip_tokens("\n")
            found.parts.append(self._parse_command())
        return found if len(found.parts) > 1 else found.parts[0]

    def _parse_command(self) -> ShellStatement:
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

    def _parse_compound(self, result: ShellStatement) -> None:
        match result.kind:
            case "(" | "{":
                result.parts = [self.parse_statements(")" if result.kind == "(" else "}")]
            case "[[":
                while self._next.kind != "end" and (word := self.take_token().text) != "]]":
                    result.words += [word] if word != "\n" else []
            case "if":  # alternating conditions and bodies, then the body of else
                end = "elif"
                while end == "elif":
                    result.parts += [self.parse_statements("then", "fi"), self.parse_statements("elif", "else", "fi")]
                    end = self._ended_by
                result.parts += [self.parse_statements("fi")] if end == "else" else []
            case "while" | "until":
                result.parts = [self.parse_statements("do", "done"), self.parse_statements("done")]
            case "for":  # the first word is the variable; without others it loops over "$@"
                while self._next.kind != "end" and not self._next_token_is("do", ";", "\n", "done"):
                    result.words.append(self.take_token().text)
                self._skip_tokens(";", "\n", "do")
                result.parts = [self.parse_statements("done")]
            case "case":
                result.words = [self.take_token().text]
                self._skip_tokens("\n", "in")
                self._ended_by = ""
                while self._next.kind != "end" and self._ended_by != "esac" and not self._skip_tokens("esac"):
                    patterns: list[str] = []
                    while self._next.kind != "end" and not self._next_token_is(")", "esac"):
                        patterns += [token.text] if (token := self.take_token()).kind == "word" else []
                    self._skip_tokens(")")
                    result.parts.append(self.parse_statements(";;", ";&", ";;&", "esac"))
                    result.parts[-1].words = patterns
                    self._skip_tokens("\n")
            case _:
                self._parse_function(result)

    def _parse_function(self, result: ShellStatement) -> None:
        result.kind, result.words = "function", [self.take_token().text]
        self._skip_tokens("(", ")", "\n")
        result.parts = [self._parse_command()]
