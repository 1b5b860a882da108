"""Colours: the words, values and comments of a statement, told apart while it is typed and where it is shown.

It is only looks: what a statement means is read by `controller.language`.  So a text that is not finished has colours,
too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.lexers import Lexer
from rich.text import Text

from strandline.cli.shell.completion import KEYWORDS

_PARTS: Final = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<text>'(?:\\.|[^'\\])*(?:'|\Z)|\"(?:\\.|[^\"\\])*(?:\"|\Z))"
    r"|(?P<name>`(?:``|[^`])*(?:`|\Z))"
    r"|(?P<number>\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b)"
    r"|(?P<word>\w+)"
    r"|(?P<escape>^\s*\\\S*)",
    re.DOTALL,
)
_WORDS: Final = frozenset(word for each in KEYWORDS for word in each.split())
STYLES: Final = {
    "word": "ansiblue bold",
    "text": "ansigreen",
    "number": "ansicyan",
    "comment": "ansibrightblack italic",
    "escape": "ansimagenta",
}
_RICH: Final = {"word": "bold blue", "text": "green", "number": "cyan", "comment": "bright_black italic", "escape": ""}


def parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of ``text``, in order and without gaps, each behind its kind: a key of `STYLES`, or nothing.

    >>> [each for each in parts("select 'a;', b -- c") if each[0]]
    [('word', 'select'), ('text', "'a;'"), ('comment', '-- c')]
    """
    end = 0
    for found in _PARTS.finditer(text):
        if found.start() > end:
            yield "", text[end : found.start()]
        kind, end = found.lastgroup or "", found.end()
        plain = kind == "name" or (kind == "word" and found[0].upper() not in _WORDS)
        yield "" if plain else kind, found[0]
    if end < len(text):
        yield "", text[end:]


def coloured(text: str) -> Text:
    """Return a statement with its colours, to be printed."""
    return Text.assemble(*((piece, _RICH.get(kind, "")) for kind, piece in parts(text)))


class StatementLexer(Lexer):
    """Colours what is typed."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """Return what gives each line its colours."""
        lines: list[StyleAndTextTuples] = [[]]
        for kind, piece in parts(document.text):
            for n, line in enumerate(piece.split("\n")):
                if n:
                    lines.append([])
                lines[-1].append((STYLES.get(kind, ""), line))
        return lambda number: lines[number] if number < len(lines) else []
