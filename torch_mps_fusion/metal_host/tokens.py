"""Tokens of Metal source text, with places, for the lint and the mutator.

This is a lexer, not a compiler: it knows comments, strings, preprocessor lines and brackets, so
that a rule about `double` never fires on the word in a comment, a string or a longer name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LEX = re.compile(
    r"""
    (?P<comment>//(?:[^\n\\]|\\\r?\n|\\)*|/\*.*?\*/)
  | (?P<str>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
  | (?P<char>'(?:[^'\\\n]|\\.)*')
  | (?P<num>\.?[0-9](?:[eEpP][+-]|'[0-9a-fA-F]|[\w.])*)
  | (?P<id>[A-Za-z_]\w*)
  | (?P<punct>::|->\*?|\+\+|--|<<=|[-+*/%&|^<>=!]=|&&|\|\||<<|\.\.\.|[^\s\w])
    """,
    re.S | re.X,
)
_RAW = re.compile(r'(?:u8|[uUL])?R"([^()\\\s]{0,16})\(.*?\)\1"', re.S)
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w*)")


@dataclass(frozen=True)
class Token:
    """One token.

    kind: id, num, str, char, punct or comment.  start: an offset.  line: counted from 1.
    macro: the name of the macro whose replacement text the token belongs to, or None.
    file: whatever name was given to `lex`.
    """

    kind: str
    text: str
    start: int
    line: int
    macro: str | None = None
    file: str = ""

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class Directive:
    """One preprocessor line (with its continuations): `#word rest`."""

    word: str
    rest: str
    start: int
    line: int


@dataclass(frozen=True)
class Source:
    """Lexed text: tokens of the code (macro bodies among them), comments, directives, in order."""

    text: str
    tokens: tuple[Token, ...]
    comments: tuple[Token, ...]
    directives: tuple[Directive, ...]


def _logical_end(text: str, i: int) -> int:
    """Offset after the logical line that holds offset i; block comments and `\\` continue it."""
    while i < len(text):
        if text.startswith("//", i):
            return _LEX.match(text, i).end()  # type: ignore[union-attr]
        if text.startswith("/*", i):
            close = text.find("*/", i + 2)
            i = len(text) if close < 0 else close + 2
        elif text[i] == '"':
            m = _LEX.match(text, i)
            i = m.end() if m else i + 1
        elif text[i] == "\\" and re.match(r"\\\r?\n", text[i : i + 3]):
            i = text.index("\n", i) + 1
        elif text[i] == "\n":
            return i
        else:
            i += 1
    return i


class _Lexer:
    def __init__(self, text: str, file: str):
        self.text = text
        self.file = file
        self.tokens: list[Token] = []
        self.comments: list[Token] = []
        self.directives: list[Directive] = []
        self._counted = (0, 1)  # the last offset whose line was asked for, and that line

    def line(self, offset: int) -> int:
        at, line = self._counted
        if offset < at:
            at, line = 0, 1
        line += self.text.count("\n", at, offset)
        self._counted = (offset, line)
        return line

    def run(self) -> Source:
        i, fresh = 0, True  # fresh: nothing but space and comments on this line so far
        while i < len(self.text):
            if fresh and (m := _DIRECTIVE.match(self.text, i)):
                i = self._directive(m)
                continue
            ch = self.text[i]
            if ch.isspace() or ch == "\\":
                fresh = fresh or ch == "\n"
                i += 1
                continue
            token = self._token(i, None)
            fresh = fresh and token.kind == "comment"
            i = token.end
        return Source(self.text, tuple(self.tokens), tuple(self.comments), tuple(self.directives))

    def _token(self, i: int, macro: str | None) -> Token:
        if raw := _RAW.match(self.text, i):
            token = Token("str", raw[0], i, self.line(i), macro, self.file)
        else:
            m = _LEX.match(self.text, i)
            if m is None:  # an unpaired quote or an odd character: a token of its own
                token = Token("punct", self.text[i], i, self.line(i), macro, self.file)
            else:
                token = Token(m.lastgroup or "punct", m[0], i, self.line(i), macro, self.file)
        (self.comments if token.kind == "comment" else self.tokens).append(token)
        return token

    def _directive(self, m: re.Match[str]) -> int:
        end = _logical_end(self.text, m.end())
        word, rest = m[1], self.text[m.end() : end]
        self.directives.append(
            Directive(word, _without_comments(rest), m.start(), self.line(m.start()))
        )
        if word == "define" and (d := re.match(r"\s*(\w+)(\([^)]*\))?", rest)):
            self._span(m.end() + d.end(), end, d[1])
        else:
            self._comments_of(m.end(), end)
        return end

    def _span(self, i: int, end: int, macro: str) -> None:
        while i < end:
            if self.text[i].isspace() or self.text[i] == "\\":
                i += 1
            else:
                i = self._token(i, macro).end

    def _comments_of(self, i: int, end: int) -> None:
        for m in re.finditer(r"//(?:[^\n\\]|\\\r?\n|\\)*|/\*.*?\*/", self.text[i:end], re.S):
            at = i + m.start()
            self.comments.append(Token("comment", m[0], at, self.line(at), None, self.file))


def _without_comments(text: str) -> str:
    text = re.sub(r"/\*.*?\*/|//.*", " ", text, flags=re.S)
    return re.sub(r"\\\r?\n", " ", text).strip()


def lex(text: str, file: str = "") -> Source:
    """Lex Metal source text.  Never fails: what it does not know becomes a one-character token."""
    return _Lexer(text, file).run()


_PAIRS = {"(": ")", "[": "]", "{": "}"}


def closing(tokens: Sequence[Token], i: int) -> int:
    """Index of the bracket that closes the one at index i; the last index if it is never closed."""
    open_, close = tokens[i].text, _PAIRS[tokens[i].text]
    depth = 0
    for j in range(i, len(tokens)):
        depth += (tokens[j].text == open_) - (tokens[j].text == close)
        if depth == 0:
            return j
    return len(tokens) - 1


def arguments(tokens: Sequence[Token], i: int) -> list[list[Token]]:
    """The comma-separated arguments of the bracket that opens at index i, as lists of tokens."""
    out: list[list[Token]] = [[]]
    depth = 0
    for t in tokens[i + 1 : closing(tokens, i)]:
        depth += (t.text in _PAIRS) - (t.text in _PAIRS.values())
        if t.text == "," and depth == 0:
            out.append([])
        else:
            out[-1].append(t)
    return out if any(out) else []
