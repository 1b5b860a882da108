"""Statements: what a user may type, as data.

sqlglot's Spark tokens and parser read the frame of a statement (`cursor.py`); queries and expressions stay the author's
text, because their meaning is Spark's.  Every refusal has a line and a column.

    CREATE TABLE name (columns) [KEEP HISTORY FOR 'interval']
    CREATE TABLE name (columns) FROM SOURCE source (REFERENCE 'name there', …) [KEEP HISTORY FOR 'interval']
    CREATE SOURCE name [IN INSTANCE name] [(columns)]
        {FROM connector (option = value, …) | USING connector OPTIONS (key 'value', …)} [clauses]
        [KEEP HISTORY FOR 'interval']
    CREATE [OR REPLACE] CONNECTION name TO kind (option = value, …)
    CREATE [OR REPLACE] MATERIALIZED VIEW name [IN INSTANCE name] [REFRESH schedule] [KEEP HISTORY FOR 'interval']
        AS query
    CREATE MATERIALIZATION name [IN INSTANCE name] INTO endpoint OPTIONS (key 'value', …)
        AS collection [TO table] [KEY (columns)], …
    DROP {TABLE | SOURCE | CONNECTION | INSTANCE | INDEX | MATERIALIZED VIEW | MATERIALIZATION} [IF EXISTS] name
    INSERT INTO [TABLE] name [(columns)] query
    DELETE FROM name [[AS] alias] [WHERE condition]
    UPDATE name [[AS] alias] SET column = value, … [WHERE condition]
    BEGIN | COMMIT | ROLLBACK [TRANSACTION]
    SHOW {TABLES | … | COLUMNS FROM name | CREATE name}, DESCRIBE name, EXPLAIN name, SUBSCRIBE {name | query}
    a query

``IF NOT EXISTS`` is allowed after CREATE and its kind.  Not listed here: CREATE INSTANCE and CREATE INDEX
(`instances.py`), ALTER (`altering.py`).  The clauses of a source, IN INSTANCE, KEEP HISTORY FOR and schedules are read
in `clauses.py`, SHOW and its like in `showing.py`.  Statements that Spark has and Strandline has not are refused by
name (`unsupported.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa
from sqlglot.tokenizer_core import Token, TokenType

from strandline.algebra.notation import Excerpt
from strandline.compute.plan.sql import position
from strandline.controller.language import altering, clauses, instances, showing, unsupported
from strandline.controller.language.altering import Alter
from strandline.controller.language.clauses import Bind, Kept, Placed
from strandline.controller.language.cursor import QUERY_WORDS, Cursor, tokens_of
from strandline.controller.language.instances import CreateIndex, CreateInstance
from strandline.controller.language.showing import Show, Subscribe
from strandline.errors import DefinitionError, Position
from strandline.frontier import Refresh


@dataclass(frozen=True, slots=True)
class CreateTable(Kept):
    """CREATE TABLE: ``columns`` is Spark DDL, which begins at ``columns_at``."""

    name: str
    columns: str
    if_not_exists: bool = False
    columns_at: Position | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Configured(Kept):
    """``options_at``: where each option stands, by its name."""

    options_at: Mapping[str, Position] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CreateSource(_Configured):
    """CREATE SOURCE: ``columns`` is Spark DDL, which begins at ``columns_at``; ``options`` are the connector's.

    ``columns`` is empty where the source's tables are the collections.  ``instance``: as for `CreateView`.
    """

    name: str
    columns: str
    connector: str
    options: dict[str, str]
    if_not_exists: bool = False
    columns_at: Position | None = field(default=None, compare=False, repr=False)
    instance: str = ""
    instance_at: Position | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CreateSourceTable(_Configured):
    """CREATE TABLE … FROM SOURCE: a collection that a source feeds; ``reference`` is what upstream calls it."""

    name: str
    columns: str
    source: str
    reference: str
    options: dict[str, str] = field(default_factory=dict)
    if_not_exists: bool = False
    columns_at: Position | None = field(default=None, compare=False, repr=False)
    source_at: Position | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CreateConnection(Placed):
    """CREATE CONNECTION: options that sources share; ``replaces``: also where there is one, whose users then use it."""

    name: str
    system: str
    options: dict[str, str]
    if_not_exists: bool = False
    replaces: bool = False
    options_at: Mapping[str, Position] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CreateView(Kept):
    """CREATE MATERIALIZED VIEW; ``start`` is where the query begins in the statement, for positions.

    ``replaces``: also where there is one, in whose place it comes once it holds as much.  ``refresh``: its schedule,
    which stands at ``refresh_at``; None: it follows each time.  ``instance``: the one that runs it, whose name stands
    at ``instance_at``; empty: the process of the environment does.
    """

    name: str
    query: str
    start: Position
    if_not_exists: bool = False
    refresh: Refresh | None = None
    refresh_at: Position | None = field(default=None, compare=False, repr=False)
    instance: str = ""
    instance_at: Position | None = field(default=None, compare=False, repr=False)
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class CreateMaterialization(Placed):
    """CREATE MATERIALIZATION: keep an endpoint's tables equal to collections.  ``instance``: as for `CreateView`."""

    name: str
    endpoint: str
    options: dict[str, str]
    bindings: tuple[Bind, ...]
    if_not_exists: bool = False
    instance: str = ""
    instance_at: Position | None = field(default=None, compare=False, repr=False)
    options_at: Mapping[str, Position] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Drop(Placed):
    """DROP: ``kind`` is what the statement says, such as ``materialized view``, in lower case."""

    kind: str
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class Insert(Placed):
    """INSERT INTO: the rows of ``query``, for ``columns`` and where each stands (empty: all, in order)."""

    table: str
    columns: tuple[tuple[str, Position], ...]
    query: Excerpt


@dataclass(frozen=True, slots=True)
class Delete(Placed):
    """DELETE FROM: the rows for which ``where`` is true (None: all); ``alias`` is the table's name in it."""

    table: str
    alias: str
    where: Excerpt | None


@dataclass(frozen=True, slots=True)
class Assignment:
    """``column = value`` of an UPDATE; the column stands at ``at``."""

    column: str
    at: Position
    value: Excerpt


@dataclass(frozen=True, slots=True)
class Update(Placed):
    """UPDATE: sets columns, each once, in the rows for which ``where`` is true (None: all)."""

    table: str
    alias: str
    assignments: tuple[Assignment, ...]
    where: Excerpt | None


@dataclass(frozen=True, slots=True)
class Bracket(Placed):
    """BEGIN, COMMIT or ROLLBACK (``word``): where a transaction of a script begins and ends."""

    word: str


@dataclass(frozen=True, slots=True)
class Query:
    """A question, which Spark answers, moved by spaces to its place in its text; ``given``: see `Excerpt`."""

    text: str
    given: tuple[pa.Scalar, ...] = ()


Create: TypeAlias = (
    CreateConnection
    | CreateInstance
    | CreateIndex
    | CreateTable
    | CreateSource
    | CreateSourceTable
    | CreateView
    | CreateMaterialization
)
Question: TypeAlias = Query | Show  # answered with rows; changes nothing
Statement: TypeAlias = Create | Alter | Drop | Insert | Delete | Update | Bracket | Subscribe | Question

_BRACKETS: Final = ("BEGIN", "COMMIT", "ROLLBACK")
_VERBS: Final = ("CREATE", "ALTER", "DROP", "INSERT", "DELETE", "UPDATE", *_BRACKETS)
_WORDS: Final = [*QUERY_WORDS[:-1], *_VERBS, *showing.WORDS]
_KINDS: Final = (
    ("TABLE",),
    ("SOURCE",),
    ("CONNECTION",),
    ("INSTANCE",),
    ("INDEX",),
    ("MATERIALIZED", "VIEW"),
    ("MATERIALIZATION",),
)
REFERENCE: Final = "reference"
"""The option of a source's table that says what upstream calls it."""
_ANY_KIND: Final = "TABLE, SOURCE, CONNECTION, INSTANCE, INDEX, MATERIALIZED VIEW or MATERIALIZATION"


def split(text: str) -> list[str]:
    r"""Return the statements of a script, separated by ``;`` (not inside quotes or comments), empty ones left out.

    >>> split("select ';' ; -- a; b\n select 2;")
    ["select ';'", 'select 2']
    """
    return [statement.lstrip() for statement in placed(text)]


def placed(text: str) -> list[str]:
    r"""Return the statements of a script, each moved by spaces to the line and column where it stands there.

    So a position in the statement is the position in the script.

    >>> placed("select 1;\n  select 2")
    ['select 1', '\n  select 2']
    """
    return [_placed(text, tokens) for tokens in _statements(text)]


def parse(text: str) -> Statement:
    r"""Return the statement that ``text`` is; it may end with ``;``.

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
    found = _statements(text)
    if not found:
        raise DefinitionError("a statement is expected, and there is none")
    if len(found) > 1:
        raise DefinitionError(
            "one statement is expected, and another begins here; `strandline sql -f FILE` runs several",
            position(text, found[1][0].start),
        )
    cursor = Cursor(text, found[0])
    match cursor.peek():
        case "CREATE":
            statement = _create(cursor)
        case "ALTER" if cursor.peek(1) in altering.KINDS:
            statement = altering.alter(cursor)
        case "DROP":
            statement = _drop(cursor)
        case "INSERT":
            statement = _insert(cursor)
        case "DELETE":
            statement = _delete(cursor)
        case "UPDATE":
            statement = _update(cursor)
        case word if word in _BRACKETS:
            at = cursor.position
            cursor.take(word)
            cursor.accept("TRANSACTION")
            statement = Bracket(word, at=at)
        case word if word in showing.WORDS:
            statement = showing.read(cursor)
        case word if word in QUERY_WORDS:
            return _query(text, found[0])
        case word:
            instead = unsupported.STATEMENTS.get(word)
            if instead is not None:
                raise cursor.unsupported(word, instead)
            raise DefinitionError(unsupported.unknown(found[0][0].text, _WORDS), cursor.position)
    if not cursor.done:
        raise cursor.fail("the end of the statement")
    return statement


def _statements(text: str) -> list[list[Token]]:
    found: list[list[Token]] = [[]]
    for token in tokens_of(text):
        if token.token_type is TokenType.SEMICOLON:
            found.append([])
        else:
            found[-1].append(token)
    return [tokens for tokens in found if tokens]


def _placed(text: str, tokens: list[Token]) -> str:
    begin, end = tokens[0].start, tokens[-1].end + 1
    at = position(text, begin)
    return "\n" * (at.line - 1) + " " * (at.column - 1) + text[begin:end]


# ---- definitions -----------------------------------------------------------------------------------------------------


def _create(cursor: Cursor) -> Statement:
    cursor.take("CREATE")
    replaces = cursor.peek(2) in {"CONNECTION", "INSTANCE", "MATERIALIZED"} and cursor.accept("OR", "REPLACE")
    if cursor.peek() == "OR":
        instead = "DROP it first, then CREATE it; only a CONNECTION, an INSTANCE or a MATERIALIZED VIEW is replaced"
        raise cursor.unsupported("CREATE OR REPLACE", instead)
    kind = next((words for words in _KINDS if cursor.accept(*words)), None)
    quiet = kind is not None and cursor.accept("IF", "NOT", "EXISTS")
    if quiet and replaces:
        raise DefinitionError("OR REPLACE and IF NOT EXISTS contradict each other; leave one out", cursor.position)
    match kind:
        case ("TABLE",):
            return _table(cursor, quiet)
        case ("SOURCE",):
            return _source(cursor, quiet)
        case ("CONNECTION",):
            return _connection(cursor, quiet, replaces)
        case ("INSTANCE",):
            return instances.create_instance(cursor, quiet=quiet, replaces=replaces)
        case ("INDEX",):
            return instances.create_index(cursor, quiet=quiet)
        case ("MATERIALIZED", "VIEW"):
            return _view(cursor, quiet, replaces)
        case ("MATERIALIZATION",):
            return _materialization(cursor, quiet)
        case _:
            raise _other_kind(cursor, "CREATE")


def _other_kind(cursor: Cursor, word: str) -> DefinitionError:
    if (kind := cursor.peek()) in unsupported.KINDS:
        return cursor.unsupported(f"{word} {kind}", unsupported.KINDS[kind])
    return cursor.fail(_ANY_KIND)


def _table(cursor: Cursor, quiet: bool) -> CreateTable | CreateSourceTable:
    at, name = cursor.position, cursor.only_name()
    cursor.refuse("CREATE TABLE", unsupported.TABLE_CLAUSES)
    columns = cursor.columns()
    if cursor.accept("FROM", "SOURCE"):
        return _source_table(cursor, quiet, name, at, columns)
    history, history_at = clauses.history(cursor)
    cursor.refuse("CREATE TABLE", unsupported.TABLE_CLAUSES)
    return CreateTable(
        name, columns.text, quiet, columns.start, at=at, keep_history=history, keep_history_at=history_at
    )


def _source_table(cursor: Cursor, quiet: bool, name: str, at: Position, columns: Excerpt) -> CreateSourceTable:
    source_at, source = cursor.position, cursor.only_name()
    cursor.refuse("CREATE TABLE … FROM SOURCE", unsupported.SOURCE_TABLE_CLAUSES)
    given = clauses.options(cursor)
    if REFERENCE not in given.options:
        raise DefinitionError(f"say what {name!r} is called upstream: FROM SOURCE {source} (REFERENCE '…')", source_at)
    history, history_at = clauses.history(cursor)
    cursor.refuse("CREATE TABLE … FROM SOURCE", unsupported.SOURCE_TABLE_CLAUSES)
    return CreateSourceTable(
        name,
        columns.text,
        source,
        given.options.pop(REFERENCE),
        given.options,
        quiet,
        columns.start,
        source_at,
        at=at,
        options_at=given.at,
        keep_history=history,
        keep_history_at=history_at,
    )


def _source(cursor: Cursor, quiet: bool) -> CreateSource:
    at, name = cursor.position, cursor.only_name()
    instance, instance_at = clauses.instance(cursor)
    columns = cursor.columns() if cursor.peek() == "(" else None
    if cursor.accept("FROM"):
        connector, given = cursor.name("a connector").lower(), clauses.optional(cursor)
    elif cursor.accept("USING"):
        connector, given = cursor.name("a connector").lower(), clauses.behind_word(cursor)
    else:
        cursor.refuse("CREATE SOURCE", unsupported.SOURCE_CLAUSES)
        raise cursor.fail("FROM and a connector")
    clauses.of_source(cursor, given)
    history, history_at = clauses.history(cursor)
    cursor.refuse("CREATE SOURCE", unsupported.SOURCE_CLAUSES)
    return CreateSource(
        name,
        "" if columns is None else columns.text,
        connector,
        given.options,
        quiet,
        None if columns is None else columns.start,
        instance,
        instance_at,
        at=at,
        options_at=given.at,
        keep_history=history,
        keep_history_at=history_at,
    )


def _connection(cursor: Cursor, quiet: bool, replaces: bool) -> CreateConnection:
    at, name = cursor.position, cursor.only_name()
    cursor.take("TO")
    system, given = cursor.name("a kind of connection").lower(), clauses.optional(cursor)
    return CreateConnection(name, system, given.options, quiet, replaces, at=at, options_at=given.at)


def _view(cursor: Cursor, quiet: bool, replaces: bool) -> CreateView:
    at, name = cursor.position, cursor.only_name()
    instance, instance_at = clauses.instance(cursor)
    refresh_at, refresh = cursor.position, clauses.refresh(cursor)
    history, history_at = clauses.history(cursor)
    cursor.refuse("CREATE MATERIALIZED VIEW", unsupported.VIEW_CLAUSES)
    cursor.take("AS")
    if cursor.peek() not in QUERY_WORDS:
        raise cursor.fail("a query")
    query = cursor.rest("a query")
    return CreateView(
        name,
        query.text,
        query.start,
        quiet,
        refresh,
        refresh_at,
        instance,
        instance_at,
        replaces,
        at=at,
        keep_history=history,
        keep_history_at=history_at,
    )


def _materialization(cursor: Cursor, quiet: bool) -> CreateMaterialization:
    at, name = cursor.position, cursor.only_name()
    instance = clauses.instance(cursor)
    cursor.take("INTO")
    endpoint, given = cursor.name().lower(), clauses.behind_word(cursor)
    cursor.refuse("CREATE MATERIALIZATION", unsupported.MATERIALIZATION_CLAUSES)
    cursor.take("AS")
    bindings = [clauses.binding(cursor)]
    while cursor.accept(","):
        bindings.append(clauses.binding(cursor))
    cursor.refuse("CREATE MATERIALIZATION", unsupported.MATERIALIZATION_CLAUSES)
    return CreateMaterialization(name, endpoint, given.options, tuple(bindings), quiet, *instance, given.at, at=at)


def _drop(cursor: Cursor) -> Drop:
    cursor.take("DROP")
    for words in _KINDS:
        if cursor.accept(*words):
            quiet = cursor.accept("IF", "EXISTS")
            at, name = cursor.position, cursor.only_name()
            if (clause := cursor.peek()) in {"CASCADE", "PURGE", "RESTRICT"}:
                raise cursor.unsupported(f"DROP … {clause}", "")
            return Drop(" ".join(words).lower(), name, quiet, at=at)
    raise _other_kind(cursor, "DROP")


# ---- changes ---------------------------------------------------------------------------------------------------------


def _insert(cursor: Cursor) -> Insert:
    cursor.take("INSERT")
    if cursor.peek() == "OVERWRITE":
        raise cursor.unsupported("INSERT OVERWRITE", unsupported.ONE)
    cursor.take("INTO")
    cursor.accept("TABLE")
    at, table = cursor.position, cursor.only_name()
    cursor.refuse("INSERT", unsupported.INSERT_CLAUSES)
    query_next = cursor.peek() == "(" and cursor.peek(1) in QUERY_WORDS and cursor.peek(2) not in {",", ")"}
    columns = cursor.names() if cursor.peek() == "(" and not query_next else ()
    cursor.refuse("INSERT", unsupported.INSERT_CLAUSES)
    if cursor.peek() not in QUERY_WORDS:
        raise cursor.fail("VALUES or a query")
    return Insert(table, columns, cursor.rest("a query"), at=at)


def _delete(cursor: Cursor) -> Delete:
    cursor.take("DELETE")
    cursor.take("FROM")
    at, table = cursor.position, cursor.only_name()
    alias = _alias(cursor, table, "DELETE", "WHERE")
    return Delete(table, alias, _where(cursor, "DELETE"), at=at)


def _update(cursor: Cursor) -> Update:
    cursor.take("UPDATE")
    at, table = cursor.position, cursor.only_name()
    alias = _alias(cursor, table, "UPDATE", "SET")
    cursor.take("SET")
    assignments: dict[str, Assignment] = {}
    while True:
        assignment = _assignment(cursor, alias)
        if assignment.column.lower() in assignments:
            raise DefinitionError(f"column {assignment.column!r} is set twice", assignment.at)
        assignments[assignment.column.lower()] = assignment
        if not cursor.accept(","):
            return Update(table, alias, tuple(assignments.values()), _where(cursor, "UPDATE"), at=at)


def _alias(cursor: Cursor, table: str, statement: str, then: str) -> str:
    if cursor.accept("AS"):
        return cursor.only_name("an alias")
    cursor.refuse(statement, unsupported.CHANGE_CLAUSES)
    if cursor.done or cursor.peek() == then:
        return table
    if cursor.peek(1) not in {then, ""}:
        raise cursor.fail(then)
    return cursor.only_name(then)


def _assignment(cursor: Cursor, alias: str) -> Assignment:
    at, column = cursor.position, cursor.name("a column")
    if cursor.accept("."):
        if column.lower() != alias.lower():
            raise DefinitionError(
                f"{column!r} is not the table that is updated, which is {alias!r}; only its whole columns can be set",
                at,
            )
        at, column = cursor.position, cursor.name("a column")
    if cursor.peek() in {".", "["}:
        raise cursor.fail("'=': only whole columns can be set")
    cursor.take("=")
    return Assignment(column, at, cursor.scalar("a value"))


def _where(cursor: Cursor, statement: str) -> Excerpt | None:
    where = cursor.scalar("a condition") if cursor.accept("WHERE") else None
    cursor.refuse(statement, unsupported.CHANGE_CLAUSES)
    return where


def _query(text: str, tokens: list[Token]) -> Query:
    """Return a query, which may not be the head of another statement (``WITH … INSERT``)."""
    depth = 0
    for token in tokens if tokens[0].text.upper() == "WITH" else ():
        depth += {"(": 1, ")": -1}.get(token.text, 0) if token.token_type in _PARENTHESES else 0
        if depth == 0 and token.token_type in _CHANGES:
            what = token.text.upper()
            instead = f"write the WITH inside of it: {what} INTO t WITH …" if what == "INSERT" else "use a subquery"
            raise DefinitionError(unsupported.refusal(f"WITH … {what}", instead), position(text, token.start))
        if depth == 0 and token.token_type in {TokenType.SELECT, TokenType.VALUES}:
            break
    return Query(_placed(text, tokens))


_PARENTHESES: Final = (TokenType.L_PAREN, TokenType.R_PAREN)
_CHANGES: Final = (TokenType.INSERT, TokenType.DELETE, TokenType.UPDATE, TokenType.MERGE)
