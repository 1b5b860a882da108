"""ALTER: what is there changes while it goes on.

ALTER INSTANCE name {ADD REPLICA name 'host:port' | DROP REPLICA name}
ALTER MATERIALIZATION name {SET (option value, …) | RESET (option, …)}
ALTER MATERIALIZATION name {ADD VIEW name [TO table] [KEY (columns)] | DROP VIEW name [{KEEP | REMOVE} ROWS]}, …
ALTER SOURCE name {ADD COLUMN column type | ADD COLUMNS (column type, …)}
ALTER {SOURCE | TABLE} name {SET (option value, …) | RESET (option, …)}
ALTER TABLE name {ADD COLUMN column type | ADD COLUMNS (column type, …) | RENAME TO name}
ALTER TABLE name {SET KEEP HISTORY FOR 'interval' | RESET KEEP HISTORY}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from strandline.controller.language import clauses, instances
from strandline.controller.language.clauses import Bind, Kept, Placed
from strandline.controller.language.cursor import Cursor
from strandline.controller.language.instances import AddReplica, DropReplica
from strandline.errors import Position

Of: TypeAlias = Literal["SOURCE", "TABLE"]


@dataclass(frozen=True, slots=True)
class SetOptions(Placed):
    """SET or RESET of options; each stands at its place in ``places``.

    ``options``: what they are set to; None: to what they are if they are not given.
    """

    name: str
    options: dict[str, str | None]
    places: dict[str, Position] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AlterMaterialization(SetOptions):
    """ALTER MATERIALIZATION."""


@dataclass(frozen=True, slots=True)
class AddView:
    """ADD VIEW: what is bound, as CREATE MATERIALIZATION says it."""

    bind: Bind


@dataclass(frozen=True, slots=True)
class DropView(Placed):
    """DROP VIEW; ``removes``: whether REMOVE ROWS is said, or KEEP ROWS; None: neither."""

    collection: str
    removes: bool | None = None


@dataclass(frozen=True, slots=True)
class AlterMaterializationViews(Placed):
    """ALTER MATERIALIZATION … ADD VIEW, DROP VIEW: all ``actions`` are done, in order, or none."""

    name: str
    actions: tuple[AddView | DropView, ...]


@dataclass(frozen=True, slots=True)
class AlterSource(SetOptions):
    """ALTER SOURCE … {SET | RESET} of options, or ALTER TABLE of a source's table; ``kind``: which of them."""

    kind: Of = "SOURCE"


@dataclass(frozen=True, slots=True)
class AddColumns(Placed):
    """ALTER TABLE, or SOURCE, … ADD COLUMN: ``columns`` is Spark DDL, which begins at ``columns_at``."""

    name: str
    columns: str
    columns_at: Position | None = field(default=None, compare=False, repr=False)
    kind: Of = "TABLE"


@dataclass(frozen=True, slots=True)
class Rename(Placed):
    """ALTER TABLE … RENAME TO ``to``."""

    name: str
    to: str
    to_at: Position | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class KeepHistory(Kept):
    """ALTER TABLE … {SET KEEP HISTORY FOR 'interval' | RESET KEEP HISTORY}."""

    name: str


Alter: TypeAlias = (
    AddReplica
    | DropReplica
    | AlterMaterialization
    | AlterMaterializationViews
    | AlterSource
    | AddColumns
    | Rename
    | KeepHistory
)
KINDS: Final = ("INSTANCE", "MATERIALIZATION", "SOURCE", "TABLE")


def alter(cursor: Cursor) -> Alter:
    """Take ALTER and one of `KINDS`.  Raises `DefinitionError`, with its place, for any other text."""
    match cursor.peek(1):
        case "INSTANCE":
            return instances.alter(cursor)
        case "MATERIALIZATION":
            return _materialization(cursor)
        case "SOURCE":
            return _source(cursor)
        case _:
            return _table(cursor)


def _source(cursor: Cursor) -> AddColumns | AlterSource:
    cursor.take("ALTER", "SOURCE")
    at, name = cursor.position, cursor.only_name()
    if (added := _added(cursor, at, name, "SOURCE")) is not None:
        return added
    sets = cursor.accept("SET")
    if not sets and not cursor.accept("RESET"):
        raise cursor.fail("ADD COLUMN, SET or RESET")
    return AlterSource(name, *_options(cursor, sets=sets), at=at)


def _added(cursor: Cursor, at: Position, name: str, kind: Of) -> AddColumns | None:
    bare = cursor.accept("ADD", "COLUMN")
    if not bare and not cursor.accept("ADD", "COLUMNS"):
        return None
    if (cursor.peek(), cursor.peek(1), cursor.peek(2)) == ("IF", "NOT", "EXISTS"):
        raise cursor.unsupported("ADD COLUMN IF NOT EXISTS", "a column that is there already is refused")
    if bare and cursor.done:
        raise cursor.fail("a column and its type")
    columns = cursor.bare_columns() if bare else cursor.columns()
    return AddColumns(name, columns.text, columns.start, kind, at=at)


def _table(cursor: Cursor) -> AddColumns | AlterSource | Rename | KeepHistory:
    cursor.take("ALTER", "TABLE")
    at, name = cursor.position, cursor.only_name()
    if (added := _added(cursor, at, name, "TABLE")) is not None:
        return added
    if cursor.accept("RENAME", "TO"):
        to_at = cursor.position
        return Rename(name, cursor.only_name(), to_at, at=at)
    if cursor.accept("RESET"):
        if cursor.peek() == "(":
            return AlterSource(name, *_options(cursor, sets=False), "TABLE", at=at)
        cursor.take("KEEP", "HISTORY")
        return KeepHistory(name, at=at)
    if cursor.accept("SET"):
        if cursor.peek() == "(":
            return AlterSource(name, *_options(cursor, sets=True), "TABLE", at=at)
        history, history_at = clauses.history(cursor)
        if history is not None:
            return KeepHistory(name, at=at, keep_history=history, keep_history_at=history_at)
        raise cursor.fail("KEEP HISTORY FOR")
    raise cursor.fail("ADD COLUMN, RENAME TO, SET KEEP HISTORY FOR, RESET KEEP HISTORY, SET (…) or RESET (…)")


def _materialization(cursor: Cursor) -> AlterMaterialization | AlterMaterializationViews:
    cursor.take("ALTER", "MATERIALIZATION")
    at, name = cursor.position, cursor.only_name()
    if cursor.peek() in {"ADD", "DROP"}:
        actions = [_view(cursor)]
        while cursor.accept(","):
            actions.append(_view(cursor))
        return AlterMaterializationViews(name, tuple(actions), at=at)
    sets = cursor.accept("SET")
    if not sets and not cursor.accept("RESET"):
        raise cursor.fail("ADD VIEW, DROP VIEW, SET or RESET")
    return AlterMaterialization(name, *_options(cursor, sets=sets), at=at)


def _view(cursor: Cursor) -> AddView | DropView:
    """Take one ADD VIEW or DROP VIEW."""
    adds = cursor.accept("ADD", "VIEW")
    if not adds and not cursor.accept("DROP", "VIEW"):
        raise cursor.fail("ADD VIEW or DROP VIEW")
    if cursor.peek() == "IF" and cursor.peek(1) in {"EXISTS", "NOT"}:
        what = "ADD VIEW IF NOT EXISTS" if adds else "DROP VIEW IF EXISTS"
        raise cursor.unsupported(what, f"a view that is {'there already' if adds else 'not there'} is refused")
    if adds:
        return AddView(clauses.binding(cursor))
    at, collection = cursor.position, cursor.only_name("a view")
    removes = cursor.accept("REMOVE", "ROWS")
    keeps = not removes and cursor.accept("KEEP", "ROWS")
    return DropView(collection, removes if removes or keeps else None, at=at)


def _options(cursor: Cursor, *, sets: bool) -> tuple[dict[str, str | None], dict[str, Position]]:
    given = clauses.options(cursor) if sets else clauses.options_named(cursor)
    if not given.options:
        raise cursor.fail("an option between the brackets")
    return dict(given.options if sets else dict.fromkeys(given.options)), given.at
