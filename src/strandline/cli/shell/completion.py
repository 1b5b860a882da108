"""Completion: what can come next where the cursor stands: keywords, names, columns, commands of the shell.

`candidates` is a function of what was typed and of the names that there are; it knows no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from sqlglot.tokenizer_core import Token, TokenType

from strandline.cli.shell.texts import ESCAPE
from strandline.controller.introspection.definition import named
from strandline.controller.language import cursor
from strandline.controller.language.showing import LISTS
from strandline.errors import DefinitionError

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
