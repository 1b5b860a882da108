"""The text of a statement as it is typed: what can come next at the cursor, where the statement ends, and its colours.

`candidates` returns keywords, names, columns and commands of the shell.  It is a function of the typed text and of the
existing names; it knows no terminal.

Words, values and comments have colours while they are typed and where they are shown.  Colours are only looks:
`controller.language` decides what a statement means.  So an unfinished text has colours, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.lexers import Lexer
from rich.cells import cell_len
from rich.text import Text
from sqlglot.tokenizer_core import Token, TokenType

from strandline.cli.terminal.output import printable
from strandline.controller.introspection.definition import named
from strandline.controller.language import cursor, statements
from strandline.controller.language.showing import LISTS
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


BEGINNINGS: Final = (
    "SELECT", "WITH", "INSERT INTO", "UPDATE", "DELETE FROM", "CREATE", "DROP", "ALTER", "SHOW", "DESCRIBE", "EXPLAIN",
    "SUBSCRIBE", "BEGIN", "COMMIT", "ROLLBACK", "VALUES", "FROM", "TABLE",
)  # fmt: skip
KINDS: Final = ("TABLE", "SOURCE", "CONNECTION", "INSTANCE", "INDEX", "MATERIALIZED VIEW", "MATERIALIZATION")
INSIDE: Final = (
    "FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN",
    "CROSS JOIN", "SEMI JOIN", "ANTI JOIN", "ON", "USING", "AS", "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE",
    "BETWEEN", "EXISTS", "CASE", "WHEN", "THEN", "ELSE", "END", "CAST", "DISTINCT", "UNION", "UNION ALL", "EXCEPT",
    "INTERSECT", "ASC", "DESC", "OVER", "PARTITION BY", "INTERVAL", "TRUE", "FALSE", "VALUES", "SELECT", "SET",
    "OPTIONS", "INTO", "REFRESH", "EVERY", "KEEP HISTORY FOR", "IN INSTANCE", "IF EXISTS", "IF NOT EXISTS", "KEY",
    "FORMAT", "ENVELOPE", "INCLUDE", "REPLICAS", "TO",
)  # fmt: skip
FUNCTIONS: Final = (
    "abs", "avg", "coalesce", "concat", "count", "current_date", "date_trunc", "greatest", "least", "length", "lower",
    "max", "min", "round", "substring", "sum", "to_date", "to_timestamp", "trim", "upper",
)  # fmt: skip
TYPES: Final = (
    "BIGINT", "BOOLEAN", "BINARY", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "SMALLINT", "STRING", "TIMESTAMP",
)  # fmt: skip
_SHOWN: Final = (*(each.value for each in LISTS), "COLUMNS FROM", "CREATE")
KEYWORDS: Final = (*BEGINNINGS, *KINDS, *INSIDE, *_SHOWN, *TYPES)
RELATIONS: Final = frozenset(("FROM", "JOIN", "INTO", "UPDATE", "TABLE", "DESCRIBE", "SUBSCRIBE"))
"""Behind these stands a collection."""
ASKED_MAX: Final = 30
"""Where a statement names no collection yet, the columns of all are offered, if there are no more."""
_QUOTES: Final = (TokenType.STRING, TokenType.RAW_STRING)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may be put in: ``text``, in the place of ``back`` signs before the cursor; ``about``: what it is."""

    text: str
    back: int
    about: str


class Known(Protocol):
    """The names that there are."""

    def items(self) -> Sequence[tuple[str, str]]:
        """Return the name of every item, and its kind."""
        ...

    def columns(self, name: str) -> Sequence[tuple[str, str]]:
        """Return the columns of a collection, and their types; none if there is no such collection."""
        ...


def candidates(text: str, at: int, known: Known, commands: Sequence[tuple[str, str]]) -> list[Candidate]:
    """Return what can come at ``at`` of ``text``.  ``commands``: those of the shell, each with what it does."""
    before = text[:at]
    line = before.lstrip()
    if line.startswith(ESCAPE):
        return _of_command(line, known, commands)
    try:
        done = cursor.tokens_of(before)
    except DefinitionError:
        return _in_backquotes(before, known)
    if before[done[-1].end + 1 if done else 0 :].strip() or (done and done[-1].token_type in _QUOTES):
        return []  # in a comment, or behind a text
    word = _word(before, done)
    done = done[: len(done) - 1] if word else done
    begin = max((n + 1 for n, token in enumerate(done) if token.token_type is TokenType.SEMICOLON), default=0)
    here = done[begin:]
    after = _rest(text, at)
    return _fitting(word, _offered([*here], [*here, *after], known))


def _of_command(line: str, known: Known, commands: Sequence[tuple[str, str]]) -> list[Candidate]:
    command, blank, argument = line.partition(" ")
    if not blank:
        return [Candidate(name, len(command), about) for name, about in commands if name.startswith(command)]
    if command.startswith("\\d"):
        return _fitting(argument.lstrip(), known.items())
    return []


def _offered(here: list[Token], around: list[Token], known: Known) -> Iterator[tuple[str, str]]:
    """Yield what can come behind the tokens ``here`` of a statement with the tokens ``around``."""
    words = [token.text.upper() for token in here]
    match words:
        case []:
            yield from _keywords(BEGINNINGS)
            return
        case ["SHOW"]:
            yield from _keywords(_SHOWN)
            return
        case ["CREATE"] | ["CREATE", "OR", "REPLACE"] | ["DROP"] | ["ALTER"]:
            yield from _keywords(KINDS)
            return
        case ["DROP" | "ALTER", kind, *_] if kind in {each.split()[0] for each in KINDS}:
            yield from _of_kind(kind, known)
            return
        case ["SHOW", "CREATE"]:
            yield from known.items()
            return
        case ["EXPLAIN"]:
            yield from _of_kind("MATERIALIZED", known)
            return
    if words[-1] == "." and len(here) > 1:
        yield from known.columns(_aliases(around, known).get(here[-2].text.lower(), here[-2].text))
        return
    if words[-1] in RELATIONS or (words[-1] == "DESC" and len(words) == 1):
        yield from _collections(known)
        return
    named_here = dict.fromkeys(_aliases(around, known).values())
    everything = [name for name, _ in _collections(known)]
    for name in named_here or (everything if len(everything) <= ASKED_MAX else ()):
        yield from known.columns(name)
    yield from _collections(known)
    yield from _keywords(INSIDE)
    yield from ((each, "function") for each in FUNCTIONS)
    if words[:1] == ["CREATE"]:
        yield from _keywords(TYPES)


def _aliases(tokens: Sequence[Token], known: Known) -> dict[str, str]:
    """Return the collections that a statement names, each by its name and by the word behind it, in lower case."""
    collections = {name.lower(): name for name, _ in _collections(known)}
    found: dict[str, str] = {}
    for n, token in enumerate(tokens):
        if (name := collections.get(token.text.lower())) is None or token.token_type in _QUOTES:
            continue
        found[name.lower()] = name
        behind = tokens[n + 1 : n + 3]
        if behind and behind[0].text.upper() == "AS":
            behind = behind[1:]
        if behind and behind[0].token_type in {TokenType.VAR, TokenType.IDENTIFIER}:
            found.setdefault(behind[0].text.lower(), name)
    return found


def _collections(known: Known) -> Iterator[tuple[str, str]]:
    yield from ((name, kind) for name, kind in known.items() if kind in {"table", "source", "source table", "view"})


def _of_kind(word: str, known: Known) -> Iterator[tuple[str, str]]:
    kinds = {"TABLE": ("table", "source table"), "SOURCE": ("source", "shared source"), "MATERIALIZED": ("view",)}
    yield from ((name, kind) for name, kind in known.items() if kind in kinds.get(word, (word.lower(),)))


def _keywords(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    yield from ((word, "") for word in words)


def _fitting(word: str, offered: Iterable[tuple[str, str]]) -> list[Candidate]:
    """Return what begins as ``word`` does; a keyword in capitals or not, as ``word`` is written."""
    found: dict[str, Candidate] = {}
    for text, about in offered:
        if text.lower().startswith(word.lower()):
            shown = _quoted(text, about) if about else text.lower() if word.islower() else text
            found.setdefault(shown, Candidate(shown, len(word), about))
    return list(found.values())


def _quoted(name: str, about: str) -> str:
    return name if about == "function" else named(name)


def _in_backquotes(before: str, known: Known) -> list[Candidate]:
    """Return the names that begin as what stands behind an open backquote."""
    head, quote, word = before.rpartition("`")
    try:
        cursor.tokens_of(head)
    except DefinitionError:
        return []  # inside a string or a comment
    if not quote:
        return []
    around = [name for name, _ in known.items()]
    names = [*known.items(), *(column for name in around for column in known.columns(name))]
    found = {name: kind for name, kind in names if name.lower().startswith(word.lower())}
    return [Candidate(f"{name.replace('`', '``')}`", len(word), kind) for name, kind in found.items()]


def _word(before: str, tokens: Sequence[Token]) -> str:
    """Return the word that the cursor stands behind; none behind a space or a sign."""
    if not tokens or tokens[-1].end != len(before) - 1:
        return ""
    word = before[tokens[-1].start :]
    return word if word.replace("_", "a").isalnum() else ""


def _rest(text: str, at: int) -> list[Token]:
    """Return the tokens behind the cursor, up to the end of the statement."""
    try:
        tokens = cursor.tokens_of(text)
    except DefinitionError:
        return []
    behind = [token for token in tokens if token.start >= at]
    end = next((n for n, token in enumerate(behind) if token.token_type is TokenType.SEMICOLON), len(behind))
    return behind[:end]


class ShellCompleter(Completer):
    """Offers `candidates` as one types."""

    def __init__(self, known: Known, commands: Sequence[tuple[str, str]]) -> None:
        self._known = known
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield what can come at the cursor."""
        for each in candidates(document.text, document.cursor_position, self._known, self._commands):
            yield Completion(each.text, start_position=-each.back, display_meta=each.about)


class Names:
    """The names in an environment, asked for when they are needed and kept until something was defined."""

    def __init__(self, ask: Callable[[str], Sequence[Sequence[str]]]) -> None:
        """``ask``: returns the rows of SHOW; it raises nothing."""
        self._ask = ask
        self._items: Sequence[tuple[str, str]] | None = None
        self._columns: dict[str, Sequence[tuple[str, str]]] = {}

    def forget(self) -> None:
        """Ask again from now on."""
        self._items, self._columns = None, {}

    def items(self) -> Sequence[tuple[str, str]]:
        """Return the name of every item, and its kind."""
        if self._items is None:
            found = {row[0]: row[1] for row in self._ask("SHOW COLLECTIONS")}
            others = {"SOURCES": "shared source", "MATERIALIZATIONS": "materialization", "INDEXES": "index"}
            others |= {"CONNECTIONS": "connection", "INSTANCES": "instance"}
            for what, kind in others.items():
                for row in self._ask(f"SHOW {what}"):
                    found.setdefault(row[0], kind)
            if not found:
                return []  # it could not be asked, maybe: the next key asks again
            self._items = list(found.items())
        return self._items

    def columns(self, name: str) -> Sequence[tuple[str, str]]:
        """Return the columns of a collection, and their types."""
        if name not in self._columns:
            known = {each.lower() for each, _ in self.items()}
            rows = self._ask(f"SHOW COLUMNS FROM {named(name)}") if name.lower() in known else []
            self._columns[name] = [(row[0], row[1]) for row in rows]
        return self._columns[name]


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
