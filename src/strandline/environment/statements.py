"""Statements: what a person may type, as data.

Queries stay text: their meaning is Spark's.  Only the frame of a statement is read here, token by token (sqlglot's
Spark tokenizer), so that every refusal has a line and a column.

    CREATE TABLE name (columns)
    CREATE SOURCE name (columns) USING connector OPTIONS (key 'value', …)
    CREATE MATERIALIZED VIEW name AS query
    CREATE MATERIALIZATION name INTO endpoint OPTIONS (key 'value', …) AS collection [TO table] [KEY (columns)], …
    DROP {TABLE | SOURCE | MATERIALIZED VIEW | MATERIALIZATION} [IF EXISTS] name
    INSERT INTO name [(columns)] query
    DELETE FROM name [WHERE condition]
    UPDATE name SET column = value, … [WHERE condition]
    BEGIN | COMMIT | ROLLBACK [TRANSACTION]
    anything else is a query

``IF NOT EXISTS`` is allowed after CREATE and its kind.

Source: design page "the public face" (`env.execute`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from strandline.errors import DefinitionError, Position


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE: ``columns`` is Spark DDL."""

    name: str
    columns: str
    if_not_exists: bool = False
    keep_history: str | None = None


@dataclass(frozen=True, slots=True)
class CreateSource:
    """CREATE SOURCE: ``columns`` is Spark DDL, ``options`` the connector's."""

    name: str
    columns: str
    connector: str
    options: dict[str, str]
    if_not_exists: bool = False
    keep_history: str | None = None


@dataclass(frozen=True, slots=True)
class CreateView:
    """CREATE MATERIALIZED VIEW; ``start`` is where the query begins in the statement, for positions."""

    name: str
    query: str
    start: Position
    if_not_exists: bool = False
    keep_history: str | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """One collection of a materialization; an empty key is to be inferred."""

    collection: str
    table: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreateMaterialization:
    """CREATE MATERIALIZATION: keep an endpoint's tables equal to collections."""

    name: str
    endpoint: str
    options: dict[str, str]
    bindings: tuple[Bind, ...]
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """DROP: ``kind`` is ``table``, ``source``, ``materialized view`` or ``materialization``."""

    kind: str
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT INTO: the rows of ``query``, for ``columns`` (empty: all, in order)."""

    table: str
    columns: tuple[str, ...]
    query: str


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE FROM: the rows for which ``where`` is true."""

    table: str
    where: str


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE: ``assignments`` are ``(column, expression)``."""

    table: str
    assignments: tuple[tuple[str, str], ...]
    where: str


@dataclass(frozen=True, slots=True)
class Bracket:
    """BEGIN, COMMIT or ROLLBACK (``word``): where a transaction of a script begins and ends."""

    word: str


@dataclass(frozen=True, slots=True)
class Query:
    """Anything else: Spark is asked."""

    text: str


Statement: TypeAlias = (
    CreateTable | CreateSource | CreateView | CreateMaterialization | Drop | Insert | Delete | Update | Bracket | Query
)


def split(text: str) -> list[str]:
    r"""Return the statements of a script, separated by ``;`` (not inside quotes or comments), empty ones left out.

    >>> split("select ';' ; -- a; b\n select 2;")
    ["select ';'", 'select 2']
    """
    return [statement.lstrip() for statement in placed(text)]


def placed(text: str) -> list[str]:
    r"""Return the statements of a script, each moved by spaces to the line and column where it stands there.

    So a position that is told of the statement is one in the script.

    >>> placed("select 1;\n  select 2")
    ['select 1', '\n  select 2']
    """
    statements: list[str] = []
    tokens = _tokens(text)
    begin = end = None
    for token in tokens:
        if token.token_type is not TokenType.SEMICOLON:
            begin, end = token.start if begin is None else begin, token.end + 1
        elif begin is not None:
            statements.append(_placed(text, begin, end))
            begin = None
    return statements if begin is None else [*statements, _placed(text, begin, end)]


def _placed(text: str, begin: int, end: int | None) -> str:
    at = position_at(text, begin)
    return "\n" * (at.line - 1) + " " * (at.column - 1) + text[begin:end]


def parse(text: str) -> Statement:
    r"""Return the statement that ``text`` is.

    >>> parse("DROP TABLE IF EXISTS t")
    Drop(kind='table', name='t', if_exists=True)
    >>> parse("create source s (a int) using files options (path '/d', format 'csv')").options
    {'path': '/d', 'format': 'csv'}
    >>> parse("drop table t x")
    Traceback (most recent call last):
        ...
    strandline.errors.DefinitionError: expected the end of the statement, found 'x' (at line 1, column 14)

    Raises `DefinitionError` with a position.
    """
    reader = _Reader(text)
    match reader.peek():
        case "CREATE":
            return _create(reader)
        case "DROP":
            return _drop(reader)
        case "INSERT":
            return _insert(reader)
        case "DELETE":
            reader.take("DELETE")
            reader.take("FROM")
            return _finish(reader, Delete(reader.name(), _where(reader)))
        case "UPDATE":
            return _update(reader)
        case "BEGIN" | "COMMIT" | "ROLLBACK" as word:
            reader.take(word)
            reader.accept("TRANSACTION")
            return _finish(reader, Bracket(word))
        case _:
            return Query(text)


# ---- reading tokens --------------------------------------------------------------------------------------------------


@dataclass
class _Reader:
    text: str
    at: int = 0
    tokens: list[Token] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = _tokens(self.text)

    def peek(self, ahead: int = 0) -> str:
        n = self.at + ahead
        return self.tokens[n].text.upper() if n < len(self.tokens) else ""

    @property
    def position(self) -> Position:
        if self.at < len(self.tokens):
            return position_at(self.text, self.tokens[self.at].start)
        return position_at(self.text, len(self.text.rstrip()))

    def fail(self, wanted: str) -> DefinitionError:
        found = repr(self.tokens[self.at].text) if self.at < len(self.tokens) else "the end"
        return DefinitionError(f"expected {wanted}, found {found}", self.position)

    def accept(self, *words: str) -> bool:
        if all(self.peek(n) == word for n, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def take(self, *words: str) -> None:
        if not self.accept(*words):
            raise self.fail(" ".join(words))

    def name(self) -> str:
        """Take an identifier."""
        if self.at < len(self.tokens):
            token = self.tokens[self.at]
            quoted = token.token_type is TokenType.IDENTIFIER
            if quoted or (
                (token.text[:1].isalpha() or token.text[:1] == "_") and token.token_type is not TokenType.STRING
            ):
                self.at += 1
                return token.text
        raise self.fail("a name")

    def string(self) -> str:
        """Take a string or a number."""
        if self.at < len(self.tokens) and self.tokens[self.at].token_type in _LITERALS:
            self.at += 1
            return self.tokens[self.at - 1].text
        raise self.fail("a quoted value")

    def parenthesised(self) -> str:
        """Take ``( … )`` and return what is between, as text."""
        self.take("(")
        depth, first = 1, self.at
        while self.at < len(self.tokens):
            depth += {"(": 1, ")": -1}.get(self.tokens[self.at].text, 0)
            self.at += 1
            if depth == 0:
                begin, end = self.tokens[first].start, self.tokens[self.at - 1].start
                return self.text[begin:end].strip()
        raise self.fail("')'")

    def until(self, *words: str) -> str:
        """Take everything up to one of ``words`` at depth 0, or to the end, and return it as text."""
        if self.at >= len(self.tokens):
            raise self.fail("an expression")
        depth, begin = 0, self.tokens[self.at].start
        first = self.at
        while self.at < len(self.tokens) and not (depth == 0 and self.peek() in words):
            depth += {"(": 1, ")": -1}.get(self.tokens[self.at].text, 0)
            self.at += 1
        if self.at == first:
            raise self.fail("an expression")
        return self.text[begin : self.tokens[self.at - 1].end + 1]

    def names(self) -> tuple[str, ...]:
        """Take ``(name, …)``."""
        self.take("(")
        found = [self.name()]
        while self.accept(","):
            found.append(self.name())
        self.take(")")
        return tuple(found)


_LITERALS: Final = (TokenType.STRING, TokenType.NUMBER)


def position_at(text: str, offset: int) -> Position:
    r"""Return the line and column of ``text[offset]``.

    >>> str(position_at("ab\ncd", 4))
    'line 2, column 2'
    """
    before = text[:offset]
    return Position(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def _tokens(text: str) -> list[Token]:
    try:
        return list(Spark().tokenize(text))
    except TokenError as error:
        raise DefinitionError(f"the text cannot be read: {str(error).splitlines()[0]}") from error


# ---- the statements --------------------------------------------------------------------------------------------------


def _create(reader: _Reader) -> Statement:
    reader.take("CREATE")
    if reader.accept("TABLE"):
        quiet = reader.accept("IF", "NOT", "EXISTS")
        return _finish(reader, CreateTable(reader.name(), reader.parenthesised(), quiet))
    if reader.accept("SOURCE"):
        quiet = reader.accept("IF", "NOT", "EXISTS")
        name, columns = reader.name(), reader.parenthesised()
        reader.take("USING")
        return _finish(reader, CreateSource(name, columns, reader.name().lower(), _options(reader), quiet))
    if reader.accept("MATERIALIZED", "VIEW"):
        quiet = reader.accept("IF", "NOT", "EXISTS")
        name = reader.name()
        reader.take("AS")
        start = reader.position
        return CreateView(name, reader.until(), start, quiet)
    if reader.accept("MATERIALIZATION"):
        return _materialization(reader)
    raise reader.fail("TABLE, SOURCE, MATERIALIZED VIEW or MATERIALIZATION")


def _materialization(reader: _Reader) -> Statement:
    quiet = reader.accept("IF", "NOT", "EXISTS")
    name = reader.name()
    reader.take("INTO")
    endpoint, options = reader.name().lower(), _options(reader)
    reader.take("AS")
    bindings = [_binding(reader)]
    while reader.accept(","):
        bindings.append(_binding(reader))
    return _finish(reader, CreateMaterialization(name, endpoint, options, tuple(bindings), quiet))


def _binding(reader: _Reader) -> Bind:
    collection = reader.name()
    table = reader.name() if reader.accept("TO") else collection
    return Bind(collection, table, reader.names() if reader.accept("KEY") else ())


def _options(reader: _Reader) -> dict[str, str]:
    options: dict[str, str] = {}
    if not reader.accept("OPTIONS"):
        return options
    reader.take("(")
    while True:
        key = reader.name().lower()
        reader.accept("=")
        if key in options:
            raise DefinitionError(f"option {key!r} is given twice", reader.position)
        options[key] = reader.string()
        if not reader.accept(","):
            reader.take(")")
            return options


def _drop(reader: _Reader) -> Statement:
    reader.take("DROP")
    for words in (("TABLE",), ("SOURCE",), ("MATERIALIZED", "VIEW"), ("MATERIALIZATION",)):
        if reader.accept(*words):
            quiet = reader.accept("IF", "EXISTS")
            return _finish(reader, Drop(" ".join(words).lower(), reader.name(), quiet))
    raise reader.fail("TABLE, SOURCE, MATERIALIZED VIEW or MATERIALIZATION")


def _insert(reader: _Reader) -> Statement:
    reader.take("INSERT")
    reader.take("INTO")
    reader.accept("TABLE")
    table = reader.name()
    columns = reader.names() if reader.peek() == "(" and reader.peek(1) not in {"SELECT", "WITH", "VALUES"} else ()
    return Insert(table, columns, reader.until())


def _update(reader: _Reader) -> Statement:
    reader.take("UPDATE")
    table = reader.name()
    reader.take("SET")
    assignments = []
    while True:
        column = reader.name()
        reader.take("=")
        assignments.append((column, reader.until(",", "WHERE")))
        if not reader.accept(","):
            return _finish(reader, Update(table, tuple(assignments), _where(reader)))


def _where(reader: _Reader) -> str:
    return reader.until() if reader.accept("WHERE") else "true"


def _finish(reader: _Reader, statement: Statement) -> Statement:
    if reader.at < len(reader.tokens):
        raise reader.fail("the end of the statement")
    return statement
