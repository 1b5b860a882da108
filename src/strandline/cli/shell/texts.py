"""Texts: where a statement that is typed ends, what it says to others, and the mark under the place of an error."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len
from sqlglot.tokenizer_core import TokenType

from strandline.cli.terminal.output import printable
from strandline.controller.language import cursor, statements
from strandline.errors import DefinitionError, Position

ESCAPE: Final = "\\"
"""What the shell's own commands begin with."""
_MARGIN: Final = 20
"""So many columns of a long line are shown before the mark, at least."""
_CUT: Final = "…"


def finished(text: str) -> bool:
    r"""Return whether nothing more is needed: ``text`` is a command, or its last statement ends with a semicolon.

    >>> finished("SELECT ';"), finished("SELECT 1 -- ;"), finished("SELECT 1;\n"), finished(r"\d"), finished("  ")
    (False, False, True, True, True)
    """
    if not text.strip() or text.lstrip().startswith(ESCAPE):
        return True
    try:
        tokens = cursor.tokens_of(text)
    except DefinitionError:
        return False  # an open quote or comment
    return bool(tokens) and tokens[-1].token_type is TokenType.SEMICOLON


def typed(text: str) -> list[str]:
    r"""Return what was typed as the shell's commands, a line each, and statements, each where it stands.

    >>> typed("\\x\nSELECT 1;\n SELECT 2"), typed("-- only a comment")
    (['\\x', '\nSELECT 1', '\n\n SELECT 2'], [])

    Raises `DefinitionError` if it cannot be cut into tokens.
    """
    commands: list[str] = []
    lines = text.split("\n")
    for n, line in enumerate(lines):
        if not line.lstrip().startswith(ESCAPE):
            return commands + statements.placed("\n" * n + "\n".join(lines[n:]))
        commands.append(line.strip())
    return commands


def pointed(text: str, at: Position, width: int) -> tuple[str, str]:
    r"""Return the line of ``text`` at a position, as far as it fits, and a line with a mark under the position.

    >>> print(*pointed("SELECT a,\n  nope FROM t", Position(2, 3), 80), sep="\n")
    LINE 2:   nope FROM t
              ^^^^
    >>> print(*pointed("SELECT " + "a, " * 30 + "nope, b, c, d FROM t", Position(1, 98), 50), sep="\n")
    LINE 1: … a, a, a, a, a, a, nope, b, c, d FROM t
                                ^^^^
    """
    lines = text.split("\n")
    line = lines[min(at.line, len(lines)) - 1].replace("\t", " ")
    begin = min(at.column - 1, len(line))
    word = len(line) - len(line[begin:].lstrip("_" + _letters(line[begin:]))) - begin
    head = f"LINE {at.line}: "
    room = max(width - len(head) - 1, 2 * _MARGIN)
    start = 0 if begin + word <= room else max(0, begin - max(_MARGIN, room - len(line) + begin - 1))
    shown = line[start : start + room]
    if start:
        shown = _CUT + shown[1:]
    if start + room < len(line):
        shown = shown[:-1] + _CUT
    before = cell_len(printable(shown[: begin - start], lines=False))
    marks = "^" * max(1, min(word, room - (begin - start)))
    return head + printable(shown, lines=False), " " * (len(head) + before) + marks


def _letters(text: str) -> str:
    return "".join(sorted({sign for sign in text if sign.isalnum()}))
